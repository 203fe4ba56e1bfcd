"""What engines can do beyond the protocol's least (seam.py).

What an engine cannot do is in its CANNOT, beside its code, with the reason. The tests that all engines pass
(tests/engines/test_engine_conformance.py) leave out exactly that.
"""

from __future__ import annotations

__all__ = ["ABILITIES"]

ABILITIES = {
    "programs": "its tasks are programs, which are asked to stop and have a grace",
    "exit": "it knows how a program ended: its exit status, or the signal",
    "budget": "a program has its GPUs and its limit, whatever its environment says",
    "hasten": "a grace that has begun is cut short",
    "resize": "a task that runs gets another amount",
    "parts": "tasks of a job are started and stopped one by one",
    "foreign": "it sees what programs of others take of a GPU",
    "nodes": "it has several nodes, which fall silent, are lost and come back",
    "restart": "it may be killed: what runs goes on and is found again",
    "takeover": "of several allocators one leads, and another takes over when that one falls silent",
    "forgotten": "jobs that run are taken over by an allocator that has lost all its records",
}
"""Name -> what it means."""
