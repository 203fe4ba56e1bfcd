"""A cluster that judges: its own clock, its own books of GPUs and of useful work. Any scheduler decides.

A scheduler is told what has come and what has ended, and answers with commands. The world refuses a command that breaks
its books. Work is useful if it has not been lost in the end: a job that is stopped or moved begins again, or after its
last checkpoint, and then needs RESTORE seconds that are not work.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from over_time_judge import Picture, plan
from over_time_traces import DAY, NODE, Job, Trace

RESTORE = 60.0
"""Seconds in which a job reads its last checkpoint."""
SOON = 60.0
"""Seconds: a start that is undone sooner was of no use."""
OFTEN = 3
"""Nobody should be evicted more often within a day."""
EDGE = 1e-6


class Start(NamedTuple):
    job: str
    nodes: tuple[int, ...]
    """Of each task."""
    gpus: tuple[tuple[int, ...], ...] | None = None
    """Of each task; None: any that are free."""


class Stop(NamedTuple):
    job: str
    taker: str = ""
    """For whom."""


class Move(NamedTuple):
    job: str
    nodes: tuple[int, ...]
    gpus: tuple[tuple[int, ...], ...] | None = None


Command = Start | Stop | Move


class Scheduler(Protocol):
    """Decides. It sees what the books show, and must not change them."""

    def decide(self, now: float, ended: Sequence[str], came: Sequence[Job]) -> list[Command]: ...

    def wake(self) -> float | None:
        """When it wants to be asked although nothing has happened, seconds."""


@dataclass
class Running:
    job: Job
    since: float
    restore: float
    done: float
    """Seconds of work that were safe when it started."""
    places: list[tuple[int, int]]
    """Node and GPU of all its tasks."""

    @property
    def end(self) -> float:
        return self.since + self.restore + self.job.work - self.done

    def worked(self, now: float) -> float:
        """Seconds of work since the start."""
        return max(0.0, min(now - self.since - self.restore, self.job.work - self.done))

    def safe(self, now: float) -> float:
        """Of it what a stop now would not lose."""
        every = self.job.checkpoint
        if every is None:
            return 0.0
        done = self.done + self.worked(now)
        return max(0.0, (done + EDGE) // every * every - self.done)


@dataclass
class Book:
    """What became of one job."""

    job: Job
    done: float = 0.0
    ended: float | None = None
    started: float | None = None
    owed: float = 0.0
    """Seconds that it waited while its queue held less than its quota, enough for it."""
    neglected: float = 0.0
    """Of it those in which stops that the guarantee allows would have made room (over_time_judge.py)."""
    evictions: list[float] = field(default_factory=list)
    forced: list[float] = field(default_factory=list)
    """Of these those beyond OFTEN in a day that every plan for the taker needs."""
    moves: int = 0
    lost: float = 0.0
    """GPU seconds of work lost by stops."""
    lost_by_moves: float = 0.0
    """GPU seconds lost by moves, restores included."""
    undone: int = 0
    """Starts that were undone within SOON."""
    useful: list[tuple[float, float]] = field(default_factory=list)
    """When it did work that was not lost."""


class World:
    def __init__(self, trace: Trace, *, judged: bool = False) -> None:
        self.trace = trace
        self.judged = judged
        """Is it asked for each owed wait and each eviction beyond OFTEN whether there was something better?"""
        self.now = 0.0
        self.free: list[set[int]] = [set(range(NODE)) for _ in range(trace.nodes)]
        self.books = {job.name: Book(job) for job in trace.jobs}
        self.running: dict[str, Running] = {}
        self.waiting: dict[str, Job] = {}
        """By arrival."""
        self.held = dict.fromkeys(trace.quotas, 0)
        self.needless = 0
        """Evictions although the job that took would have fitted on GPUs that were idle before and after."""
        self.decisions = 0
        self._owed: list[str] = []

    # ---- the course of events ---------------------------------------------------------------------------

    def play(self, scheduler: Scheduler) -> None:
        arrivals = list(reversed(self.trace.jobs))
        ends: list[tuple[float, float, str]] = []
        last_wake, same = -1.0, 0
        while arrivals or self.running or self.waiting:
            times = [arrivals[-1].arrival] if arrivals else []
            times += [ends[0][0]] if ends else []
            wake = scheduler.wake()
            times += [max(wake, self.now)] if wake is not None else []
            if not times:
                raise AssertionError(f"{len(self.waiting)} jobs wait for ever: {list(self.waiting)[:5]}")
            now = min(times)
            same = same + 1 if now == last_wake else 0
            assert same < 1000, f"it asks to be woken at {now} again and again"
            last_wake = now
            self._pass(now)
            ended = []
            while ends and ends[0][0] <= now + EDGE:
                end, since, name = heapq.heappop(ends)
                running = self.running.get(name)
                if running is not None and running.since == since and running.end == end:
                    self._end(name)
                    ended.append(name)
            came = []
            while arrivals and arrivals[-1].arrival <= now + EDGE:
                came.append(arrivals.pop())
                self.waiting[came[-1].name] = came[-1]
            commands = scheduler.decide(now, ended, came)
            self.decisions += 1
            for name in self._obey(commands):
                running = self.running[name]
                heapq.heappush(ends, (running.end, running.since, name))
            self._owed = self._claims()

    def _pass(self, now: float) -> None:
        for name in self._owed:
            book = self.books[name]
            book.owed += now - self.now
            if self.judged and now - self.now > EDGE and plan(self._picture(now), book.job) is not None:
                book.neglected += now - self.now
        self.now = now

    def _claims(self) -> list[str]:
        """Who waits although its queue's quota has room for it and for all before it."""
        left = {queue: quota - self.held[queue] for queue, quota in self.trace.quotas.items()}
        found = []
        for job in self.waiting.values():
            if job.size <= self.trace.quotas[job.queue]:
                left[job.queue] -= job.size
                if left[job.queue] >= 0:
                    found.append(job.name)
        return found

    # ---- what could have been done instead --------------------------------------------------------------

    def _picture(self, now: float) -> Picture:
        picture = Picture(self.trace.quotas, [len(one) for one in self.free])
        for name, one in self.running.items():
            picture.running[name] = one.job, Counter(node for node, _ in one.places)
        picture.fresh = {name for name, one in self.running.items() if one.since == now}
        return picture

    def _often(self, name: str) -> bool:
        return sum(at // DAY == self.now // DAY for at in self.books[name].evictions) >= OFTEN

    def _judge(self, commands: list[Command]) -> None:
        """Note the evictions beyond OFTEN that no plan for their taker could do without. What was commanded before is
        done by then; the victims of one taker are one plan."""
        often = [one for one in commands if isinstance(one, Stop) and self._often(one.job)]
        if not often:
            return
        picture = self._picture(self.now)
        forced: dict[str, bool] = {}
        for command in commands:
            if isinstance(command, Start):
                picture.start(self.books[command.job].job, command.nodes)
                continue
            if isinstance(command, Stop) and command.taker not in forced:
                wanted = any(one.taker == command.taker for one in often)
                forced[command.taker] = wanted and self._needs_often(command.taker, picture)
            picture.stop(command.job)
            if isinstance(command, Move):
                picture.start(self.books[command.job].job, command.nodes)
        for stop in often:
            if forced[stop.taker]:
                self.books[stop.job].forced.append(self.now)

    def _needs_often(self, taker: str, picture: Picture) -> bool:
        if taker not in self.books:
            return False
        job = self.books[taker].job
        if picture.held(job.queue) + job.size > self.trace.quotas[job.queue]:
            return False
        return plan(picture, job, {name for name in picture.running if self._often(name)}) is None

    # ---- commands ---------------------------------------------------------------------------------------

    def _obey(self, commands: list[Command]) -> list[str]:
        """Carry them out; the jobs that run now and did not before, or not there."""
        if self.judged:
            self._judge(commands)
        idle = [set(free) for free in self.free]
        fresh: dict[str, None] = {}
        takers = []
        restores: dict[str, float] = {}
        for command in commands:  # stops and moves first: the commands of one moment are one change
            if isinstance(command, Stop):
                takers.append(command.taker)
                self._stop(command.job)
            elif isinstance(command, Move):
                restores[command.job] = self._uproot(command.job)
        for command in commands:
            if isinstance(command, Start):
                self._start(command)
                fresh[command.job] = None
            elif isinstance(command, Move):
                self._occupy(self.books[command.job].job, command, restores[command.job])
                fresh[command.job] = None
        if takers:
            spare = [before & after for before, after in zip(idle, self.free, strict=True)]
            for taker in takers:
                self.needless += taker in self.books and fits(self.books[taker].job, [len(one) for one in spare])
        return list(fresh)

    def _start(self, command: Start) -> None:
        job, book = self.waiting.pop(command.job), self.books[command.job]
        book.started = self.now if book.started is None else book.started
        self._occupy(job, command, RESTORE if book.done else 0.0)

    def _occupy(self, job: Job, at: Start | Move, restore: float) -> None:
        nodes, gpus = at.nodes, at.gpus
        assert len(nodes) == job.tasks, f"{job.name}: {len(nodes)} of {job.tasks} tasks"
        places = []
        for index, node in enumerate(nodes):
            chosen = tuple(sorted(self.free[node])[: job.gpus]) if gpus is None else gpus[index]
            assert len(set(chosen)) == job.gpus, f"{job.name}: {chosen} are not {job.gpus} GPUs"
            assert set(chosen) <= self.free[node], f"{job.name}: {chosen} of node {node} are taken"
            self.free[node] -= set(chosen)
            places += [(node, gpu) for gpu in chosen]
        self.held[job.queue] += job.size
        self.running[job.name] = Running(job, self.now, restore, self.books[job.name].done, places)

    def _leave(self, name: str) -> tuple[Running, float]:
        """Stop it where it is; what of its work since the start is safe."""
        running = self.running.pop(name)
        book, job = self.books[name], running.job
        for node, gpu in running.places:
            self.free[node].add(gpu)
        self.held[job.queue] -= job.size
        safe = running.safe(self.now)
        book.done += safe
        begun = running.since + running.restore
        book.useful.append((begun, begun + safe))
        return running, safe

    def _stop(self, name: str) -> None:
        running, safe = self._leave(name)
        book, job = self.books[name], running.job
        book.lost += job.size * (self.now - running.since - safe)
        book.evictions.append(self.now)
        book.undone += self.now - running.since < SOON
        self.waiting[name] = job
        self.waiting = dict(sorted(self.waiting.items(), key=lambda item: item[1].arrival))

    def _uproot(self, name: str) -> float:
        """Stop it because it moves; the seconds that it needs to restore where it goes."""
        running, safe = self._leave(name)
        book = self.books[name]
        restore = RESTORE if book.done else 0.0
        book.lost_by_moves += running.job.size * (self.now - running.since - safe + restore)
        book.moves += 1
        return restore

    def _end(self, name: str) -> None:
        running = self.running.pop(name)
        for node, gpu in running.places:
            self.free[node].add(gpu)
        self.held[running.job.queue] -= running.job.size
        book = self.books[name]
        book.ended, book.done = self.now, running.job.work
        book.useful.append((running.since + running.restore, self.now))


def place(job: Job, free: Sequence[int]) -> tuple[int, ...] | None:
    """A node for each task, the fullest that has room; None if there is none."""
    left = list(free)
    nodes = []
    for _ in range(job.tasks):
        best = min((node for node, one in enumerate(left) if one >= job.gpus), key=left.__getitem__, default=None)
        if best is None:
            return None
        left[best] -= job.gpus
        nodes.append(best)
    return tuple(nodes)


def fits(job: Job, free: Sequence[int]) -> bool:
    return place(job, free) is not None


# ---- what came of it ----------------------------------------------------------------------------------


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def high(values: Sequence[float], part: float = 0.95) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))] if ordered else 0.0


def delays(books: Sequence[Book]) -> dict[str, float]:
    """Seconds between arrival and end beyond the work itself."""
    found = [(book.ended or 0.0) - book.job.arrival - book.job.work for book in books]
    return {"jobs": len(found), "mean": mean(found), "p95": high(found)}


def most_in_a_day(times: Iterable[float]) -> int:
    return max(Counter(time // DAY for time in times).values(), default=0)


def figures(world: World) -> dict[str, object]:
    """The books in numbers; times in seconds, GPU time in GPU hours."""
    trace, books = world.trace, list(world.books.values())
    window = trace.capacity * trace.until
    useful = sum(
        book.job.size * max(0.0, min(end, trace.until) - begin) for book in books for begin, end in book.useful
    )
    by_size: dict[str, list[Book]] = defaultdict(list)
    by_queue: dict[str, list[Book]] = defaultdict(list)
    for book in books:
        by_size[str(book.job.size)].append(book)
        by_queue[book.job.queue].append(book)
    claims = [book for book in books if book.job.size <= trace.quotas[book.job.queue]]
    return {
        "useful": useful / window,
        "gpu_hours": window / 3600,
        "all_done": max(book.ended or 0.0 for book in books) / trace.until,
        "delay": delays(books),
        "delay_by_size": {size: delays(by_size[size]) for size in sorted(by_size, key=int)},
        "delay_by_queue": {queue: delays(by_queue[queue]) for queue in sorted(by_queue)},
        "owed": {
            "mean": mean([book.owed for book in claims]),
            "p95": high([book.owed for book in claims]),
            "max": max(book.owed for book in claims),
            "max_of_one_node": max(book.owed for book in claims if book.job.tasks == 1),
            "over_a_minute": sum(book.owed > SOON for book in claims) / len(claims),
            "neglected": max(book.neglected for book in claims),
        },
        "evictions": sum(len(book.evictions) for book in books),
        "evictions_per_job": sum(len(book.evictions) for book in books) / len(books),
        "evictions_of_one": max(len(book.evictions) for book in books),
        "evictions_of_one_in_a_day": max(most_in_a_day(book.evictions) for book in books),
        "unforced_of_one_in_a_day": max(most_in_a_day(set(book.evictions) - set(book.forced)) for book in books),
        "forced": sum(len(book.forced) for book in books),
        "needless": world.needless,
        "undone": sum(book.undone for book in books),
        "moves": sum(book.moves for book in books),
        "lost": sum(book.lost for book in books) / 3600,
        "lost_by_moves": sum(book.lost_by_moves for book in books) / 3600,
    }
