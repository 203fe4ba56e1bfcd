"""Which task of which job a pod is. Pure.

A pod is a job of its own, or with others of its pod group one job. A pod that was evicted is gone for good: its owner
(a Job, a ReplicaSet) makes another, which takes its seat. So the job keeps its id, its place in the queue, and what was
counted of it. A seat whose pod is gone is kept free for a while.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from gpushare.cluster.engines.kubernetes.groups import Group, Line
from gpushare.cluster.engines.kubernetes.mark import Mark

__all__ = ["Seat", "Seats", "Sitter"]

KEPT_FREE = 60.0
"""Seconds."""


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
    group: Group
    created: float
    name: str
    mark: Mark
    leaves: bool
    """It is being deleted, or its node is lost."""
    over: bool
    """Its programs have ended by themselves."""

    @property
    def line(self) -> Line | None:
        return self.group.line

    @property
    def order(self) -> tuple[float, str]:
        return self.created, self.name


@dataclass(frozen=True, slots=True)
class _Free:
    seat: Seat
    until: float


class Seats:
    """Kept from look to look."""

    def __init__(self) -> None:
        self.taken: dict[str, Seat] = {}
        """By the pod's uid."""
        self.short: dict[str, tuple[int, int]] = {}
        """Pods whose group is not complete: how many it has, and how many it needs. If it has as many, these start
        first."""
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
            self._seat_group(group, there)

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
            since, size = mark.since or one.created, mark.size or one.group.size
            told = Seat(mark.job, mark.task, size, mark.attempt, mark.evictions, since, mark.token, mark.stop)
            if seat != told:
                self._sit(one, told)
            if seat is None and one.line is not None:
                self._free_others(one.line, told, now)
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

    def _free_others(self, line: Line, seat: Seat, now: float) -> None:
        """Of a job that an earlier process began. What no pod of it says by its mark is for the next of the line: the
        start of the group was cut off, or a pod was evicted. _clear() takes out what is taken."""
        known = {(one.seat.job, one.seat.task) for one in self._free.get(line, ())}
        for task in range(seat.size):
            if (seat.job, task) not in known:
                other = Seat(seat.job, task, seat.size, since=seat.since)
                self._free.setdefault(line, []).append(_Free(other, now + KEPT_FREE))

    def _inherit(self, one: Sitter) -> bool:
        seats = self._free.get(one.line) if one.line is not None else None
        if not seats:
            return False
        self._sit(one, seats.pop(0).seat)
        return True

    def _seat_group(self, group: list[Sitter], there: Mapping[str, Sitter]) -> None:
        """So many as it needs become a job; those that are left over wait for others. Of a group to which further pods
        may belong they wait until that job has started."""
        size, is_open = group[0].group.size, group[0].group.open
        begun = self._begun(group[0].line, there) if is_open else None
        while begun is None and len(group) >= size:
            first, group = group[:size], group[size:]
            for task, one in enumerate(first):
                self._sit(one, Seat(first[0].uid, task, size, since=first[0].created))
            begun = False if is_open else None
        if begun:
            for one in group:
                self._sit(one, Seat(one.uid, 0, 1, since=one.created))
        else:
            self.short |= {one.uid: (len(group) if begun is None else size, size) for one in group}

    def _begun(self, line: Line | None, there: Mapping[str, Sitter]) -> bool | None:
        """Whether the pods of the line that start together have started. None: they are not complete yet."""
        first = [there[uid] for uid, seat in self.taken.items() if seat.size > 1 and self._lines.get(uid) == line]
        return any(one.mark.node for one in first) if first else None

    def evicted(self, uid: str, token: tuple[int, int]) -> None:
        """It counts, whether or not the pod is still there to be marked."""
        seat = self.taken[uid]
        self.taken[uid] = replace(seat, evictions=seat.evictions + 1, token=token, stopped=True)
