"""Which jobs could have more tasks, or another size of their ladder: lists that are kept as jobs change."""

from __future__ import annotations

from gpushare.cluster.jobs import JobState
from gpushare.cluster.state import State

__all__ = ["note_sizes"]


def note_sizes(state: State, job: JobState) -> None:
    cls = job.cls
    journal, shape, seq = state.journal, cls.shape, job.seq
    short = bool(job.places) and len(job.places) < shape.top and seq not in state.stalled
    listed = seq in cls.short
    if short and not listed:
        state.enlist(cls.short, seq)
        state.to_try(cls)
    elif listed and not short:
        state.delist(cls.short, seq)
    if shape.rungs == 1:
        return
    if not job.places or job.rung == 0:
        journal.drop(state.shrunk, seq)
    elif seq not in state.shrunk:
        journal.put(state.shrunk, seq, None)
    tall = bool(job.places) and job.rung < shape.rungs - 1
    listed = seq in cls.tall
    if tall and not listed:
        state.enlist(cls.tall, seq)
        journal.put(state.tall, cls, None)
    elif listed and not tall:
        state.delist(cls.tall, seq)
        if not cls.tall:
            journal.drop(state.tall, cls)
