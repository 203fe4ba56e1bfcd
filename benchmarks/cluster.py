"""What decisions of the cluster allocator cost, on the workloads of other schedulers' public benchmarks.

python benchmarks/cluster.py [--only W1,W5] [--runs N] [--curve] [--svg FILE] [--profile W5]

    bar     in yardsticks: a yardstick is what a million additions take in the same run, because machines differ
    cold    an empty allocator is given the nodes, the queues and all that runs (not counted), then all pending jobs in
            one event: the time of that one decision, with the reasons of every start, eviction and waiting job
    warm    one more job arrives in the cluster as it then is, and one ends: the median of single decisions
    peer    as measured on two cores, or published; KAI's figures include building its session, Kueue's an API server

Times are processor time: a decision is one thread that waits for nothing, so on a machine of one's own this is what the
clock shows, and elsewhere what it would show. W8 runs in simulated time, and the time that decisions took is counted.
In W10 cold is the time of 5,000 submissions one by one. WX is the slowest of seven explanations in W9.
The garbage collector is left as any program has it, and the collection that a decision put off is counted with it.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import heapq
import pstats
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

import cluster_mixed as mixed
import cluster_shapes as shapes
from cluster_shapes import GPUS, JobShape, QueueShape, Shape

from gpushare.cluster.allocator import Allocator
from gpushare.cluster.model import (
    Action,
    Event,
    Job,
    JobEnded,
    JobRestored,
    JobSubmitted,
    Move,
    Node,
    NodeAdded,
    Place,
    Policy,
    Preempt,
    Queue,
    QueueAdded,
    Start,
    Tasks,
    Wait,
)
from gpushare.cluster.quantity import MICRO

LONG_AGO = 0.0
NOW = 100_000.0
WARM_EVENTS = 1000


# ---- a shape as events --------------------------------------------------------------------------------


def job_of(shape: JobShape) -> Job:
    return Job(shape.name, shape.queue, (Tasks(shape.tasks, gpus=shape.gpus),), shape.priority, movable=True)


def queue_of(shape: QueueShape) -> Queue:
    limit, weight = (None if value is None else value * MICRO for value in (shape.limit, shape.weight))
    return Queue(shape.name, shape.parent, shape.quota * MICRO, limit, weight, shape.priority)


def prepare(shape: Shape, policy: Policy | None = None) -> tuple[Allocator, list[Event]]:
    """An allocator that knows the nodes, queues and running jobs; and the events that are still to come."""
    allocator = Allocator(policy)
    setup: list[Event] = [NodeAdded(Node(name, gpus)) for name, gpus in shape.nodes]
    setup += [QueueAdded(queue_of(queue)) for queue in shape.queues]
    taken = dict.fromkeys((name for name, _ in shape.nodes), 0)
    waiting: list[Event] = []
    for one in shape.jobs:
        if one.node is None:
            waiting.append(JobSubmitted(job_of(one)))
            continue
        first = taken[one.node]
        taken[one.node] = first + one.gpus
        place = Place(0, 0, one.node, tuple(range(first, first + one.gpus)), 0, 0)
        setup.append(JobRestored(job_of(one), (place,), LONG_AGO))
    allocator.handle(setup, NOW - 1)
    return allocator, waiting


# ---- measuring ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Measured:
    cold: float
    """Seconds of the one large decision."""
    warm: float
    """Seconds of a small one, median."""
    p99: float
    found: str
    """What was decided."""
    wrong: list[str] = field(default_factory=list)
    """What should have been decided, and was not."""


class Probe:
    """Making one lets the collector do what the allocator has put off: it runs when objects are made."""


def clocked(call: Callable[[], list[Action]]) -> tuple[float, list[Action]]:
    gc.collect()
    began = time.process_time()
    actions = call()
    Probe()
    return time.process_time() - began, actions


def one_decision(shape: Callable[[], Shape], runs: int, expect: Callable[[Counts], list[str]]) -> Measured:
    colds = []
    for _ in range(runs):
        allocator, waiting = prepare(shape())
        seconds, actions = clocked(lambda a=allocator, w=waiting: a.handle(w, NOW))  # type: ignore[misc]
        colds.append(seconds)
    counts = Counts.of(actions, allocator)
    events = list(single_events(allocator, shape()))
    return Measured(
        statistics.median(colds), statistics.median(events), percentile(events, 99), str(counts), expect(counts)
    )


def single_events(allocator: Allocator, shape: Shape) -> Iterator[float]:
    """Seconds of arrivals of one-GPU jobs and ends of running ones, in turn."""
    leaves = [queue.name for queue in shape.queues if all(other.parent != queue.name for other in shape.queues)]
    running = [name for name, view in allocator.jobs.items() if view.state == "running"]
    now = NOW
    for n in range(WARM_EVENTS // 2):
        now += 1
        arrival = JobSubmitted(Job(f"warm-{n}", leaves[n % len(leaves)]))
        yield clock(lambda e=arrival, t=now: allocator.handle(e, t))  # type: ignore[misc]
        name = running[n * 7919 % len(running)] if running else ""
        view = allocator.jobs.get(name)
        if view is not None and view.state == "running":
            ending = JobEnded(name)
            yield clock(lambda e=ending, t=now: allocator.handle(e, t))  # type: ignore[misc]


def clock(call: Callable[[], object]) -> float:
    began = time.process_time()
    call()
    Probe()
    return time.process_time() - began


def percentile(values: list[float], part: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * part // 100)]


@dataclass(frozen=True, slots=True)
class Counts:
    started: int
    evicted: int
    moved: int
    waiting: int
    held: float
    """GPUs."""
    reasons: tuple[str, ...]

    @classmethod
    def of(cls, actions: list[Action], allocator: Allocator) -> Counts:
        waits = [action for action in actions if isinstance(action, Wait)]
        return cls(
            sum(len(action.places) for action in actions if isinstance(action, Start)),
            sum(len(action.places) for action in actions if isinstance(action, Preempt)),
            sum(len(action.places) for action in actions if isinstance(action, Move)),
            sum(view.state == "pending" for view in allocator.jobs.values()),
            sum(view.charge for view in allocator.jobs.values()) / MICRO,
            tuple(dict.fromkeys(action.reason.message for action in waits[-3:])),
        )

    def __str__(self) -> str:
        parts = [(self.started, "started"), (self.evicted, "evicted"), (self.moved, "moved"), (self.waiting, "wait")]
        return ", ".join(f"{number} {word}" for number, word in parts if number) or "nothing"


def expect(started: int, evicted: int = 0, moved: int = 0) -> Callable[[Counts], list[str]]:
    """What the peer decides on the same workload; evictions and moves are never to be more."""

    def check(counts: Counts) -> list[str]:
        wrong = []
        if counts.started < started:
            wrong.append(f"{counts.started} started, not {started}")
        if counts.evicted > evicted or counts.moved > moved:
            wrong.append(f"{counts.evicted} evicted and {counts.moved} moved, at most {evicted} and {moved} are needed")
        return wrong

    return check


def full(gpus: int) -> Callable[[Counts], list[str]]:
    """No GPU is idle while jobs wait."""
    return lambda counts: [] if counts.held == gpus else [f"{counts.held:g} of {gpus} GPUs are held while jobs wait"]


def blocks(count: int) -> Callable[[Counts], list[str]]:
    """So many start, each in place of three jobs: no node has fewer, and there are enough of these."""
    return expect(count, 3 * count)


def unschedulable(counts: Counts) -> list[str]:
    wrong = [f"{counts.started} started, {counts.evicted} evicted"] if counts.started or counts.evicted else []
    return wrong if counts.reasons else [*wrong, "no reason was given"]


# ---- W8: in simulated time ----------------------------------------------------------------------------


class Timed(NamedTuple):
    jobs: int
    makespan: float
    ideal: float
    used: float
    """Of all GPUs until the makespan."""
    of_wanted: float
    """Of the GPUs that were wanted at each moment, by what ran and what waited, as far as they exist."""
    deciding: float
    median: float
    p99: float
    evicted: int


def kueue(cohorts: int = shapes.KUEUE_COHORTS, queues: int = shapes.KUEUE_QUEUES) -> Timed:
    """Arrivals and ends at their simulated times; a decision takes no simulated time, and its real time is counted.

    Kueue has no nodes there, only quotas. Ours are nodes of twenty GPUs, the size of the largest workload, so that
    a large one needs an empty node: it is the harder problem.
    """
    allocator = Allocator(Policy(reserve_after=None))
    setup: list[Event] = [NodeAdded(Node(f"node-{n}", shapes.KUEUE_QUOTA)) for n in range(cohorts * queues)]
    setup += [QueueAdded(queue_of(queue)) for queue in shapes.kueue_queues(cohorts, queues)]
    allocator.handle(setup, 0.0)
    capacity = cohorts * queues * shapes.KUEUE_QUOTA
    arrivals = list(shapes.kueue_arrivals(cohorts, queues))
    jobs = {arrival.job.name: arrival for arrival in arrivals}
    due: list[tuple[int, int, Event, int]] = []
    due += [(arrival.time, n, JobSubmitted(job_of(arrival.job)), 0) for n, arrival in enumerate(arrivals)]
    heapq.heapify(due)
    attempts: dict[str, int] = {}
    now = number = held = wanted = evicted = 0
    busy = wished = 0
    decisions: list[float] = []
    while due:
        busy += held * (due[0][0] - now)
        wished += min(wanted, capacity) * (due[0][0] - now)
        now = due[0][0]
        events: list[Event] = []
        while due and due[0][0] == now:
            _, _, event, attempt = heapq.heappop(due)
            if isinstance(event, JobSubmitted):
                wanted += jobs[event.job.id].job.gpus
            elif isinstance(event, JobEnded):
                if attempts.get(event.job) != attempt:
                    continue
                held -= jobs[event.job].job.gpus
                wanted -= jobs[event.job].job.gpus
                del attempts[event.job]
            events.append(event)
        if not events:
            continue
        began = time.process_time()
        actions = allocator.handle(events, now / MICRO)
        Probe()
        decisions.append(time.process_time() - began)
        for action in actions:
            if isinstance(action, Start):
                number += 1
                attempts[action.job] = action.attempt
                held += jobs[action.job].job.gpus
                end = now + jobs[action.job].runtime
                heapq.heappush(due, (end, len(arrivals) + number, JobEnded(action.job), action.attempt))
            elif isinstance(action, Preempt):
                evicted += 1
                attempts[action.job] = -1
                held -= jobs[action.job].job.gpus
    assert not wanted, f"{wanted} GPUs are wanted for ever"
    makespan = now / MICRO
    used, of_wanted = busy / (capacity * now), busy / wished
    times = sum(decisions), statistics.median(decisions), percentile(decisions, 99)
    return Timed(len(arrivals), makespan, shortest(), used, of_wanted, *times, evicted)


def shortest() -> float:
    """No scheduler needs less: work that has arrived flows through all GPUs at once, and no workload ends sooner than
    its runtime after its arrival. One queue stands for all, because all receive the same."""
    arrivals = sorted(shapes.kueue_arrivals(1, 1), key=lambda arrival: arrival.time)
    moment = backlog = last = 0.0
    for arrival in arrivals:
        backlog = max(0.0, backlog - (arrival.time - moment) * shapes.KUEUE_QUOTA) + arrival.job.gpus * arrival.runtime
        moment, last = arrival.time, max(last, arrival.time + arrival.runtime)
    return max(last, moment + backlog / shapes.KUEUE_QUOTA) / MICRO


# ---- W10, WL, WX: not uniform --------------------------------------------------------------------------

PATIENCE = 60.0
"""Seconds: a filling or a series of events that takes longer is cut short, and said to be."""


def filled(nodes: int = 625, count: int = 5000) -> tuple[Measured, Allocator]:
    """Mixed jobs come one by one, then others come and some end."""
    allocator = Allocator(Policy())
    allocator.handle(mixed.cluster(nodes), NOW)
    now, cold, came = NOW, 0.0, 0
    for event in mixed.jobs(count):
        now += 1
        cold += clock(lambda e=event, t=now: allocator.handle(e, t))  # type: ignore[misc]
        came += 1
        if cold > PATIENCE:
            break
    allocator.validate()
    wrong = [f"only {came} of {count} jobs came within {PATIENCE:g} s"] if came < count else []
    cold *= count / came
    events = list(mixed_events(allocator, now, count))
    if len(events) < WARM_EVENTS:
        wrong.append(f"only {len(events)} of {WARM_EVENTS} events came within {PATIENCE:g} s")
    counts = Counts.of([], allocator)
    found = f"{counts.held:g} of {nodes * GPUS} GPUs held, {counts.waiting} jobs wait"
    return Measured(cold, statistics.median(events), percentile(events, 99), found, wrong), allocator


def mixed_events(allocator: Allocator, now: float, count: int) -> Iterator[float]:
    """Seconds of arrivals and ends in turn."""
    spent = 0.0
    running = [name for name, view in allocator.jobs.items() if view.state == "running"]
    for n, arrival in enumerate(mixed.jobs(WARM_EVENTS // 2, seed=count)):
        start = n * 7919 % len(running)
        rest = (name for name in running[start:] + running[:start] if name in allocator.jobs)
        ends = [JobEnded(name) for name in rest if allocator.jobs[name].state == "running"][:1]
        job = JobSubmitted(replace(arrival.job, id=f"late-{n}"))
        for event in (job, *ends):
            now += 1
            took = clock(lambda e=event, t=now: allocator.handle(e, t))  # type: ignore[misc]
            yield took
            spent += took
        if spent > PATIENCE:
            return


def laddered(nodes: int = 1000, count: int = 16_000) -> Measured:
    """All that waits at once: what starts first shrinks for what comes after it."""
    allocator = Allocator(Policy(reserve_after=None))
    setup, waiting = mixed.ladders(nodes, count)
    allocator.handle(setup, NOW)
    cold, _ = clocked(lambda: allocator.handle(waiting, NOW + 1))
    allocator.validate()
    counts = Counts.of([], allocator)
    running = count - counts.waiting
    wrong = [] if counts.waiting == 0 else [f"{counts.waiting} jobs wait, although all fit on lower rungs"]
    shapes_used = sorted({view.rung for view in allocator.jobs.values() if view.places})
    return Measured(cold, 0.0, 0.0, f"{running} run, on rungs {shapes_used}", wrong)


def explained(gpus: int = 100_000, jobs: int = 100_000, queues: int = 1000) -> Measured:
    """Why seven of those wait that wait in W9: the slowest is cold."""
    allocator, waiting = prepare(shapes.huge(gpus, jobs, queues))
    allocator.handle(waiting, NOW)
    names = [name for name, view in allocator.jobs.items() if not view.places]
    asked = names[:: max(1, len(names) // 7)][:7]
    times = [clock(lambda name=name: allocator.explain(name)) for name in asked]  # type: ignore[misc]
    return Measured(max(times), statistics.median(times), max(times), f"{len(times)} of {len(names)} that wait")


# ---- the table ----------------------------------------------------------------------------------------


class Row(NamedTuple):
    id: str
    what: str
    peer: float | None
    """Seconds that the peer takes."""
    bar: float
    """Yardsticks, cold. W8: 2000 workloads a second on a machine with a yardstick of 26 ms."""
    measure: Callable[[int], Measured]
    """With so many runs of what is short."""
    warm_bar: float = float("inf")
    p99_bar: float = float("inf")
    """Yardsticks of a single event."""


def decided(shape: Callable[[], Shape], check: Callable[[Counts], list[str]], *, once: bool = False) -> Any:
    return lambda runs: one_decision(shape, 1 if once else runs, check)


EVENT_BAR = 0.19  # W9, W9b: p99
ROWS = (
    Row("W1", "500 jobs, 100 nodes", 0.0795, 0.31, decided(lambda: shapes.pending(100, 500), expect(500))),
    Row("W2", "4000 jobs, 500 nodes", 2.07, 2.3, decided(lambda: shapes.pending(500, 4000), expect(4000))),
    Row("W3", "10,000 jobs, 1250 nodes", 14.1, 7.7, decided(lambda: shapes.pending(1250, 10_000), expect(10_000))),
    Row("W4", "gang of 500 nodes reclaims", 25.5, 3.8, decided(lambda: shapes.large_reclaim(1000), expect(500, 4000))),
    Row("W5", "4000 jobs displace 4000", 154, 11.5, decided(lambda: shapes.many_single(500), expect(4000, 4000))),
    Row("W6", "gang that cannot be, and why", 123, 1.9, decided(lambda: shapes.unschedulable(500), unschedulable)),
    Row("W7", "100 jobs run, 100 wait, 50 nodes", 0.133, 0.38, decided(lambda: shapes.mixed(50, 200), expect(100))),
    Row(
        "W7b", "12 whole nodes, by moving others", None, 0.38, decided(lambda: shapes.fragmented(50), expect(12, 0, 24))
    ),
    Row("W8", "50,000 workloads as they come", 1179, 960, lambda _: kueue_row(kueue())),
    Row(
        "W9",
        "100,000 jobs, GPUs; 1000 queues",
        None,
        115,
        decided(lambda: shapes.huge(100_000, 100_000, 1000), full(100_000), once=True),
        p99_bar=EVENT_BAR,
    ),
    Row(
        "W9b",
        "10 nodes, 100,000 GPUs borrowed",
        None,
        115,
        decided(lambda: shapes.borrowed(100_000, 1000, 10), blocks(10), once=True),
        p99_bar=EVENT_BAR,
    ),
    Row("WX", "an explanation in W9", None, 3.8, lambda _: explained()),
    Row("W10", "5,000 mixed jobs, 625 nodes", None, 385, lambda _: filled()[0], 0.077, 0.77),
    Row("WL", "16,000 with ladders, 1,000 nodes", None, 38, lambda _: laddered()),
)

HEAD = (
    f"{'':4} {'workload':32} {'cold':>9} {'warm':>9} {'p99':>9} {'peer':>9} {'ratio':>8} {'yards':>7} {'bar':>6}"
    f" {'warm':>6} {'bar':>6} {'p99':>6} {'bar':>6}"
)


def shown(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} us"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def line(row: Row, measured: Measured, yard: float) -> str:
    """One row of the table; `yard` is the seconds of the yardstick."""
    ratio = f"{row.peer / measured.cold:,.0f}x" if row.peer else "-"
    mark = "" if good(row, measured, yard) else "  MISSED"
    times = " ".join(f"{shown(cell):>9}" for cell in (measured.cold, measured.warm, measured.p99, row.peer))
    yards = f"{measured.cold / yard:7.3g} {row.bar:6g}"
    for value, bar in ((measured.warm, row.warm_bar), (measured.p99, row.p99_bar)):
        yards += f" {value / yard:6.2g} {'-' if bar == float('inf') else f'{bar:g}':>6}"
    return f"{row.id:4} {row.what:32} {times} {ratio:>8} {yards}{mark}  {measured.found}"


def good(row: Row, measured: Measured, yard: float) -> bool:
    bars = (measured.cold, row.bar), (measured.warm, row.warm_bar), (measured.p99, row.p99_bar)
    return not measured.wrong and all(value <= bar * yard for value, bar in bars)


def table(chosen: set[str], runs: int) -> bool:
    all_good = True
    print(HEAD)
    for row in ROWS:
        if chosen and row.id not in chosen:
            continue
        before = yardstick()
        measured = row.measure(runs)
        yard = min(before, yardstick())  # the machine may have been slower for a moment
        all_good = all_good and good(row, measured, yard)
        print(line(row, measured, yard), flush=True)
        for wrong in measured.wrong:
            print(f"     {wrong}")
        gc.collect()
    print(f"\n{LEGEND}\nThe yardstick, a million additions in Python, takes {shown(yardstick())} here.")
    return all_good


LEGEND = """cold: all that waits, decided at once; warm, p99: a single event then; yards: cold in yardsticks, beside its
bar, and so on. Peers: KAI-Scheduler v0.17.0 as measured on two cores, with the building of its session; W8: Kueue's
published end-to-end run, with its API server (38.6% used)."""


def yardstick() -> float:
    """Seconds for a million additions: other programs on the machine slow down processor time too."""

    def additions() -> int:
        total = 0
        for n in range(1_000_000):
            total += n
        return total

    return min(clock(additions) for _ in range(5))


def kueue_row(timed: Timed) -> Measured:
    ratio, speed = timed.makespan / timed.ideal, timed.jobs / timed.deciding
    found = (
        f"{speed:,.0f}/s; makespan {timed.makespan:.2f} s, {ratio:.2f}x the shortest possible;"
        f" used {timed.used:.1%}, {timed.of_wanted:.1%} of what was wanted; {timed.evicted:,} evicted"
    )
    wrong = []
    if ratio > 1.3:
        wrong.append(f"the makespan is {ratio:.2f} times the shortest possible, the bar is 1.3")
    if timed.of_wanted < 0.95:
        wrong.append(f"{timed.of_wanted:.1%} used of what was wanted, the bar is 95%")
    return Measured(timed.deciding, timed.median, timed.p99, found, wrong)


CURVE = (1000, 3000, 10_000, 30_000, 100_000)


def curve(svg: Path | None) -> None:
    """How the cost grows with the cluster: as many pending jobs as GPUs, a queue for each hundred GPUs."""
    print(f"\n{'GPUs':>8} {'jobs':>8} {'queues':>7} {'cold':>9} {'per job':>9} {'event':>9} {'p99':>9}")
    cold, event, p99 = [], [], []
    for gpus in CURVE:
        measured = one_decision(lambda n=gpus: shapes.huge(n, n, max(10, n // 100)), 1, lambda _: [])  # type: ignore[misc]
        cold.append(measured.cold)
        event.append(measured.warm)
        p99.append(measured.p99)
        times = [measured.cold, measured.cold / gpus, measured.warm, measured.p99]
        cells = " ".join(f"{shown(each):>9}" for each in times)
        print(f"{gpus:>8} {gpus:>8} {max(10, gpus // 100):>7} {cells}", flush=True)
        gc.collect()
    if svg is not None:
        from gpushare.cluster import plot

        plot.check(svg)
        series = {"all pending jobs at once": cold, "one event, median": event, "one event, p99": p99}
        plot.curve(
            svg, "The cost of deciding", [float(n) for n in CURVE], series, ("GPUs (and pending jobs)", "seconds")
        )
        print(f"drawn to {svg}")


def profile(name: str) -> None:
    row = next((row for row in ROWS if row.id == name), None)
    if row is None:
        raise SystemExit(f"no workload {name}: there are {', '.join(row.id for row in ROWS)}")
    profiler = cProfile.Profile()
    profiler.enable()
    if name == "W8":
        kueue(cohorts=2)  # a fifth of it tells as much
    elif name == "W10":
        filled(nodes=125, count=1000)
    else:
        row.measure(1)
    profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="such as W1,W5")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--curve", action="store_true", help="also how the cost grows from 1000 to 100,000 GPUs")
    parser.add_argument("--svg", type=Path, help="draw the curve")
    parser.add_argument("--profile", help="where the time of one workload goes")
    options = parser.parse_args()
    if options.profile:
        profile(options.profile)
        return 0
    good = table({name for name in options.only.split(",") if name}, options.runs)
    if options.curve or options.svg:
        curve(options.svg)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
