"""The running daemon: the loop that feeds the core, what carries its instructions out, and how a core is rebuilt."""
