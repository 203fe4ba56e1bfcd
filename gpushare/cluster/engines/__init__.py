"""Engines start and stop the jobs that the allocator has placed. seam.py is the protocol, reconcile.py the decision."""
