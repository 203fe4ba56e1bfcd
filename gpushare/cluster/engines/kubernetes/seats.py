"""Which task of which job a pod is. Pure.

A pod is a job of its own, or with others of its pod group one job. A pod that was evicted is gone for good: its owner
(a Job, a ReplicaSet) makes another, which takes its seat. So the job keeps its id, its place in the queue, and what was
counted of it. A seat whose pod is gone is kept free for a while.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpushare.cluster.engines.kubernetes.mark import Mark
from gpushare.cluster.engines.kubernetes.names import GROUP, LEAST, SIZE, Thing, of_pod
from gpushare.errors import UsageError

__all__ = ["Line", "Seat", "Seats", "Sitter", "group_least", "group_size", "lineage"]

KEPT_FREE = 60.0
"""Seconds."""
MOST_OF_A_GROUP = 10_000

Line = tuple[str, ...]
"""Whose pods take each other's seats."""


@dataclass(frozen=True, slots=True)
class Seat:
    job: str
    task: int
    size: int
    """Tasks of the job."""
    attempt: int = 0
    evictions: int = 0
    since: float = 0.0
    """When the job was submitted (seconds since 1970)."""
    token: tuple[int, int] = (0, 0)
    """The newest command that was obeyed about it."""
    stopped: bool = False
    """That was to stop, of a task whose job goes on: it may start again in the same attempt."""


@dataclass(frozen=True, slots=True)
class Sitter:
    """A pod that looks for its seat, or has one."""

    uid: str
    line: Line | None
    size: int
    created: float
    name: str
    mark: Mark
    leaves: bool
    """It is being deleted, or its node is lost."""
    over: bool
    """Its programs have ended by themselves."""

    @property
    def order(self) -> tuple[float, str]:
        return self.created, self.name


@dataclass(frozen=True, slots=True)
class _Free:
    seat: Seat
    until: float


def lineage(pod: Thing) -> Line | None:
    """None: nobody takes its seat."""
    namespace, group = pod["metadata"]["namespace"], of_pod(pod, "labels", GROUP)
    if group:
        return "group", namespace, group
    owners: Iterable[Mapping[str, Any]] = pod["metadata"].get("ownerReferences") or ()
    return next((("owner", str(one["uid"])) for one in owners if one.get("controller")), None)


def group_size(pod: Thing) -> int:
    """Tasks of the job that it belongs to. Raises UsageError."""
    if not of_pod(pod, "labels", GROUP):
        return 1
    text = of_pod(pod, "annotations", SIZE)
    if not text.isdecimal() or not 1 <= int(text) <= MOST_OF_A_GROUP:
        raise UsageError(
            f"it is in a pod group, and its annotation {SIZE} is {text[:20]!r}",
            hint="write how many pods start together",
        )
    return int(text)


def group_least(pod: Thing) -> int:
    """So many of these tasks start together; the others when there is room. Raises UsageError."""
    size, text = group_size(pod), of_pod(pod, "annotations", LEAST)
    if not text or not of_pod(pod, "labels", GROUP):
        return size
    if not text.isdecimal() or not 1 <= int(text) <= size:
        raise UsageError(f"its annotation {LEAST} is {text[:20]!r}", hint=f"write a number from 1 to {SIZE}, {size}")
    return int(text)


class Seats:
    """Kept from look to look."""

    def __init__(self) -> None:
        self.taken: dict[str, Seat] = {}
        """By the pod's uid."""
        self.short: dict[str, tuple[int, int]] = {}
        """Pods whose group is not complete: how many it has, and how many it needs."""
        self._lines: dict[str, Line] = {}
        self._free: dict[Line, list[_Free]] = {}

    @property
    def free(self) -> list[Seat]:
        return [one.seat for seats in self._free.values() for one in seats]

    def look(self, sitters: Iterable[Sitter], now: float) -> None:
        """All pods that there are. `now`: seconds that only go forward."""
        there = {one.uid: one for one in sitters}
        self.short = {}
        for uid in [uid for uid in self.taken if uid not in there]:
            self._leave(uid, self.taken.pop(uid), now)
        for one in there.values():
            self._known(one, now)
        self._clear(now)
        new: dict[Line, list[Sitter]] = {}
        for one in sorted(there.values(), key=lambda one: one.order):
            if one.uid in self.taken or one.leaves or one.over:
                continue
            if not self._inherit(one):
                if one.line is not None and one.line[0] == "group":
                    new.setdefault(one.line, []).append(one)
                else:
                    self._sit(one, Seat(one.uid, 0, 1, since=one.created))
        for group in new.values():
            self._seat_group(group)

    def _clear(self, now: float) -> None:
        """Off those that are free: what somebody has by now, whose mark may be read after the one who left; the old."""
        taken = {(seat.job, seat.task) for uid, seat in self.taken.items() if uid in self._lines}

        def is_kept(one: _Free) -> bool:
            return now < one.until and (one.seat.job, one.seat.task) not in taken

        self._free = {line: kept for line, seats in self._free.items() if (kept := [*filter(is_kept, seats)])}

    def _known(self, one: Sitter, now: float) -> None:
        """What its mark says counts: it outlives this process."""
        mark, seat = one.mark, self.taken.get(one.uid)
        if mark.job:
            since = mark.since or one.created
            told = Seat(mark.job, mark.task, one.size, mark.attempt, mark.evictions, since, mark.token, mark.stop)
            if seat != told:
                self._sit(one, told)
        if one.leaves and not one.over and one.uid in self.taken:
            self._leave(one.uid, self.taken[one.uid], now)

    def _sit(self, one: Sitter, seat: Seat) -> None:
        self.taken[one.uid] = seat
        if one.line is not None:
            self._lines[one.uid] = one.line

    def _leave(self, uid: str, seat: Seat, now: float) -> None:
        """Its seat is free for the next of its line, if it is not so already."""
        line = self._lines.pop(uid, None)
        if line is not None:
            free = self._free.setdefault(line, [])
            if all((other.seat.job, other.seat.task) != (seat.job, seat.task) for other in free):
                free.append(_Free(seat, now + KEPT_FREE))

    def _inherit(self, one: Sitter) -> bool:
        seats = self._free.get(one.line) if one.line is not None else None
        if not seats:
            return False
        self._sit(one, seats.pop(0).seat)
        return True

    def _seat_group(self, group: list[Sitter]) -> None:
        """So many as it needs become a job; those that are left over wait for others."""
        size = group[0].size
        while len(group) >= size:
            first, group = group[:size], group[size:]
            for task, one in enumerate(first):
                self._sit(one, Seat(first[0].uid, task, size, since=first[0].created))
        self.short |= {one.uid: (len(group), size) for one in group}

    def evicted(self, uid: str, token: tuple[int, int]) -> None:
        """It counts, whether or not the pod is still there to be marked."""
        seat = self.taken[uid]
        self.taken[uid] = replace(seat, evictions=seat.evictions + 1, token=token, stopped=True)
