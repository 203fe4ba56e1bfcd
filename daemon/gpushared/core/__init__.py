"""What is decided, and nothing else: a pure state machine, events in, instructions out. node.py is its door."""
