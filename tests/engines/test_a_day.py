"""A day of jobs through the service on the engine in memory, in accelerated time: nothing is left of what is over."""

from __future__ import annotations

import gc
import os
from collections import Counter
from random import Random

import pytest
from conformance_stand import Work
from memory_stand import PacedStand

HOURS = 24
JOBS = int(os.environ.get("GPUSHARE_TEST_DAY_JOBS", "600"))
STEP = 120.0
"""Seconds of the day between two looks."""
WARM = 0.25
"""Part of the day after which nothing may grow any more: notices and results are kept in bounded numbers."""


def kept(stand: PacedStand) -> dict[str, int]:
    """Everything that remembers jobs."""
    work, allocator, notes = stand.service.work, stand.store.allocator, stand.loop.notes
    return {
        "entries": len(stand.service.book.entries),
        "ending": len(work._ending),
        "followers": len(work._followers),
        "per user": +work.per_user.total(),
        "active": len(stand.loop.active),
        "starts": len(notes.starts),
        "stops": len(notes.stops),
        "annotated": len(notes.annotated),
        "unfit": len(notes.unfit),
        "wrong": len(notes.wrong),
        "hurry": len(notes.hurry),
        "events": len(notes.events),
        "jobs": len(allocator.jobs),
        "leaving": len(allocator.leaving),
        "tasks": len(stand.runner.tasks()),
        "engine": len(stand.memory.jobs),
        "exits": len(stand.runner._exits),
    }


@pytest.mark.timeout(1200)
def test_nothing_is_left_of_a_day_of_jobs(tmp_path) -> None:
    random = Random(7)
    stand = PacedStand(tmp_path, None)
    stand.memory.stubborn = Forgetful()
    end = stand.now + HOURS * 3600.0
    arrivals = sorted(random.uniform(stand.now, end - 2 * 3600.0) for _ in range(JOBS))
    waiting: list[str] = []
    ids: list[str] = []
    objects: list[tuple[int, int]] = []
    """Of Python, and jobs that are not over."""
    stand.round()
    while stand.now < end or any(kept(stand)[name] for name in ("entries", "jobs", "leaving")):
        assert stand.now < end + 4 * 86400.0, kept(stand)
        while arrivals and arrivals[0] <= stand.now:
            arrivals.pop(0)
            work = Work(seconds=random.choice([60.0, 600.0, 3600.0]), exit=random.choice([0, 0, 0, 1]))
            asks = {"queue": random.choice("ab"), "gpus": random.choice([1, 1, 2]), "priority": random.choice([50, 60])}
            ids.append(stand.submit(work, **asks, held=random.random() < 0.1))
            waiting.append(ids[-1])
        for uid in random.sample(waiting, min(2, len(waiting))):
            waiting.remove(uid)
            if uid in stand.service.book.entries and random.random() < 0.3:
                stand.cancel(uid)
            elif uid in stand.service.book.entries:
                stand.release(uid)
        stand.round()
        stand.wait(STEP)
        if len(objects) < HOURS and stand.now >= end - (HOURS - len(objects)) * 3600.0:
            gc.collect()
            objects.append((len(gc.get_objects()), len(stand.service.book.entries)))
    stand.rounds(3)
    assert len(ids) == JOBS
    assert {name: count for name, count in kept(stand).items() if count} == {}
    results = Counter(stand.result(uid)[0] for uid in ids)
    assert set(results) == {"done", "failed", "cancelled"} and results.total() == JOBS
    early, late = (min(half) for half in halves([count for count, _ in objects]))
    allowed = 40 * JOBS  # notices, which are kept in a bounded number, 10,000
    assert late - early < allowed, f"Python's objects by the hour: {objects}"


def halves(counts: list[int]) -> tuple[list[int], list[int]]:
    """After the beginning of the day, and at its end."""
    begin = int(len(counts) * WARM)
    return counts[begin : begin + 4], counts[-4:]


class Forgetful(set[str]):
    """The stand notes what its jobs are to do; that is not the service's."""

    def add(self, _: str) -> None: ...
