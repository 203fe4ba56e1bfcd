"""The decisions: a pure state machine, events in, instructions out. Call it through node.py."""
