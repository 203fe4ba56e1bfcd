"""Useful GPU time, waits and evictions over days and weeks: the allocator beside simple schedulers.

python benchmarks/over_time.py [--quick] [--json FILE] [--only bursty,philly] [--schedulers fifo,gpushare]
                               [--seeds N] [--loads 0.8,1.0,1.2] [--seconds S] [--svg FOLDER]

All schedulers play the same jobs in the same world (over_time_world.py), which keeps its own books. The jobs come from
over_time_traces.py, the simple schedulers are in over_time_schedulers.py, the bounds in over_time_bounds.py.

Results are kept in the JSON file as they come, and what is there already is not played again, so a long run can be
done in pieces: --seconds ends it after the game in which so much time has passed. The table and the pictures are made
from all that the file has.

    useful     work that was not lost in the end, by all GPU time until the last job has come
    delay      minutes from arrival to end beyond the work itself: all jobs, mean and 95th percentile; jobs of 32 GPUs
    owed       minutes that a job waits while its queue's quota has room for it and for all before it: the longest;
               and of these those in which stops that the guarantee allows would have made room (over_time_judge.py)
    evicted    evictions per job; the most of one job within a day, and how often a job was evicted for the fourth time
               or more in a day because no plan could do without
    needless   evictions although the job that took fits on GPUs that were idle before and after
    undone     starts that were undone within a minute
    lost       work that stops have cost, and moves, by all GPU time until the last job has come
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

from over_time_bounds import ceiling, foreseen, kept
from over_time_picture import bars
from over_time_schedulers import Backfill, Durations, Gpushare, Reclaim
from over_time_traces import GENERATORS, MINUTE, Trace, bursty, with_checkpoints
from over_time_world import Scheduler, World, figures, mean

from gpushare.cluster.model import Policy

SCHEDULERS: dict[str, Callable[[World], Scheduler]] = {
    "fifo": Backfill,
    "quota_first": lambda world: Backfill(world, quota_first=True),
    "reclaim": Reclaim,
    "kai": lambda world: Reclaim(world, fair=True),
    "durations": Durations,
    "gpushare": Gpushare,
    "at_once": lambda world: Gpushare(world, Policy(patience=0.0)),
    "no_reservations": lambda world: Gpushare(world, Policy(reserve_after=None)),
    "no_moves": lambda world: Gpushare(world, Policy(reserve_after=None, consolidate=False)),
}
"""`at_once` is the allocator that stops anybody for fair shares at once. The last two are the allocator
without reservations, and with neither these nor moves."""
SIMPLE = ("fifo", "quota_first", "reclaim", "kai", "durations")
"""Of these it is not asked what they could have done instead."""
BOUNDS = ("foreseen",)
CHECKPOINTS = {"none": None, "30m": 30 * MINUTE}
LOADS = (0.8, 1.0, 1.2)
SEEDS = 10
PROMISE = 15 * MINUTE
"""Seconds. Who keeps the guarantee lets no claim within quota that fits on a node wait longer (mean of the seeds)."""

Figures = dict[str, Any]


class Game(NamedTuple):
    generator: str
    seed: int
    load: float
    checkpoints: str
    scheduler: str

    @property
    def key(self) -> str:
        return f"{self.generator}/{self.seed}/{self.load}/{self.checkpoints}/{self.scheduler}"

    @property
    def trace(self) -> Trace:
        return with_checkpoints(GENERATORS[self.generator](self.seed, self.load), CHECKPOINTS[self.checkpoints])


def games(generators: list[str], seeds: int, loads: list[float], schedulers: list[str]) -> Iterator[Game]:
    """One of each kind before the second of any, so that a part of a run says something about all."""
    for seed in range(1, seeds + 1):
        for generator in generators:
            for load in loads:
                for checkpoints in CHECKPOINTS:
                    for scheduler in schedulers:
                        yield Game(generator, seed, load, checkpoints, scheduler)


def play(trace: Trace, scheduler: str) -> Figures:
    if scheduler == "foreseen":
        return {**foreseen(trace), "ceiling": ceiling(trace), "kept": kept(trace)}
    world = World(trace, judged=scheduler not in SIMPLE)
    began = time.process_time()
    world.play(SCHEDULERS[scheduler](world))
    deciding = time.process_time() - began
    return {**figures(world), "events": world.decisions, "seconds": deciding}


def run(wanted: list[Game], known: dict[str, Figures], file: Path | None, seconds: float) -> None:
    began = time.monotonic()
    for game in wanted:
        if game.key in known:
            continue
        if time.monotonic() - began > seconds:
            print(f"{sum(one.key not in known for one in wanted)} games are left", file=sys.stderr)
            break
        known[game.key] = play(game.trace, game.scheduler)
        if file is not None:
            unfinished = file.with_name(f".{file.name}")
            unfinished.write_text(json.dumps(known, indent=0, sort_keys=True))
            unfinished.replace(file)


# ---- the table ----------------------------------------------------------------------------------------

HEAD = (
    f"{'':13} {'useful':>7} {'delay':>7} {'p95':>7} {'of 32':>7} {'owed':>7} {'could':>6} {'evicted':>8} {'a day':>6}"
    f" {'forced':>6} {'needless':>8} {'undone':>7} {'moves':>7} {'lost':>6} {'by moves':>8}"
)


def of(known: dict[str, Figures], generator: str, load: float, checkpoints: str, scheduler: str) -> list[Figures]:
    """Of all seeds that the allocator has played, too, if it has played any: the same jobs are compared."""
    found: dict[str, dict[str, Figures]] = {}
    for key, value in known.items():
        kind, seed, at, how, who = key.split("/")
        if (kind, float(at), how) == (generator, load, checkpoints):
            found.setdefault(who, {})[seed] = value
    asked, ours = found.get(scheduler, {}), found.get("gpushare")
    return [value for seed, value in asked.items() if not ours or seed in ours]


def average(found: list[Figures], *path: str) -> float:
    values = []
    for one in found:
        value: Any = one
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None:
            values.append(float(value))
    return mean(values) if values else float("nan")


def worst(found: list[Figures], *path: str) -> float:
    values = []
    for one in found:
        value: Any = one
        for name in path:
            value = value[name]
        values.append(float(value))
    return max(values)


def line(scheduler: str, found: list[Figures]) -> str:
    delay, p95 = average(found, "delay", "mean") / MINUTE, average(found, "delay", "p95") / MINUTE
    gangs = average(found, "delay_by_size", "32", "mean") / MINUTE
    if scheduler in BOUNDS:
        return (
            f"{scheduler:13} {average(found, 'useful'):7.1%} {delay:7.0f} {p95:7.0f} {gangs:7.0f}"
            f"   no schedule has more than {average(found, 'ceiling'):.1%}; without checkpoints, if owners start as on"
            f" GPUs of their own, {average(found, 'kept'):.1%}"
        )
    cost = average(found, "lost"), average(found, "lost_by_moves")
    hours = average(found, "gpu_hours")
    judged = "", ""
    if scheduler not in SIMPLE:
        judged = f"{worst(found, 'owed', 'neglected') / MINUTE:.0f}", f"{sum(one['forced'] for one in found)}"
    return (
        f"{scheduler:13} {average(found, 'useful'):7.1%} {delay:7.0f} {p95:7.0f} {gangs:7.0f}"
        f" {worst(found, 'owed', 'max') / MINUTE:7.0f} {judged[0]:>6} {average(found, 'evictions_per_job'):8.2f}"
        f" {worst(found, 'evictions_of_one_in_a_day'):6.0f} {judged[1]:>6} {average(found, 'needless'):8.1f}"
        f" {average(found, 'undone'):7.1f} {average(found, 'moves'):7.1f}"
        f" {cost[0] / hours:6.1%} {cost[1] / hours:8.1%}"
    )


def kinds(known: dict[str, Figures]) -> list[tuple[str, str, float]]:
    found = {(kind, how, float(at)) for kind, _, at, how, _ in (key.split("/") for key in known)}
    return sorted(found, key=lambda one: (list(GENERATORS).index(one[0]), one[1] != "none", one[2]))


def table(known: dict[str, Figures]) -> Iterator[str]:
    for generator, checkpoints, load in kinds(known):
        rows = {name: of(known, generator, load, checkpoints, name) for name in (*SCHEDULERS, *BOUNDS)}
        seeds = max(map(len, rows.values()))
        saved = "no checkpoints" if checkpoints == "none" else f"checkpoints every {checkpoints}"
        yield f"\n{generator}, load {load}, {saved}, {seeds} seeds"
        yield HEAD
        yield from (line(name, found) for name, found in rows.items() if found)


# ---- the bars -----------------------------------------------------------------------------------------


class Bar(NamedTuple):
    what: str
    value: float
    bar: float
    least: bool
    """Whether the bar is the least that is wanted; otherwise the most."""

    @property
    def holds(self) -> bool:
        return self.value >= self.bar if self.least else self.value <= self.bar

    def __str__(self) -> str:
        return f"{'holds' if self.holds else 'MISSED':6} {self.what}: {self.value:.3g}, bar {self.bar:.3g}"


def wanted_bars(known: dict[str, Figures]) -> Iterator[Bar]:
    """What the allocator should reach in each kind of game; averages of the seeds, or the worst of them."""
    for generator, checkpoints, load in kinds(known):
        ours = of(known, generator, load, checkpoints, "gpushare")
        fifo = of(known, generator, load, checkpoints, "fifo")
        others = {name: of(known, generator, load, checkpoints, name) for name in ("quota_first", "reclaim", "kai")}
        if not ours or not fifo:
            continue
        at = f"{generator}, load {load}, checkpoints {checkpoints}: "
        useful = average(ours, "useful")
        keep = [one for one in others.values() if one and average(one, "owed", "max_of_one_node") <= PROMISE]
        if keep:
            best = max(average(one, "useful") for one in keep)
            yield Bar(at + "useful time by the best that keeps the guarantee", useful / best, 0.97, True)
        least = 0.93 if checkpoints == "none" else 1.0
        yield Bar(at + "useful time by FIFO's", useful / average(fifo, "useful"), least, True)
        gangs = average(ours, "delay_by_size", "32", "mean"), average(fifo, "delay_by_size", "32", "mean")
        if gangs[0] == gangs[0] and gangs[1] > 0:
            yield Bar(at + "delay of jobs of 32 GPUs by FIFO's", gangs[0] / gangs[1], 1.0, False)
        yield Bar(at + "most evictions of a job within a day", worst(ours, "evictions_of_one_in_a_day"), 3, False)
        if all("neglected" in one["owed"] for one in ours):
            chosen = worst(ours, "unforced_of_one_in_a_day")
            yield Bar(at + "the same, without those that no plan could do without", chosen, 3, False)
            neglected = worst(ours, "owed", "neglected") / MINUTE
            yield Bar(at + "longest owed wait while a plan existed, minutes", neglected, PROMISE / MINUTE, False)
        yield Bar(at + "needless evictions", worst(ours, "needless"), 0, False)
        owed = worst(ours, "owed", "max_of_one_node") / MINUTE
        yield Bar(at + "longest owed wait of a job on one node, minutes", owed, PROMISE / MINUTE, False)


# ---- pictures -----------------------------------------------------------------------------------------


def pictures(known: dict[str, Figures], folder: Path) -> None:
    names = [name for name in (*SIMPLE, "gpushare", "foreseen") if any_of(known, name)]
    for checkpoints in CHECKPOINTS:
        groups = [(kind, load) for kind, how, load in kinds(known) if how == checkpoints]
        if not groups:
            continue
        labels = [f"{kind} {load}" for kind, load in groups]
        for what, scale, path in (
            ("useful GPU time, %", 100, ("useful",)),
            ("delay, hours", 1 / 3600, ("delay", "mean")),
        ):
            series = {
                name: [scale * average(of(known, kind, load, checkpoints, name), *path) for kind, load in groups]
                for name in names
            }
            folder.mkdir(parents=True, exist_ok=True)
            file = folder / f"over-time-{path[0]}-{checkpoints}.svg"
            title = f"{what}, {'no checkpoints' if checkpoints == 'none' else f'checkpoints every {checkpoints}'}"
            file.write_text(bars(title, labels, series))


def any_of(known: dict[str, Figures], scheduler: str) -> bool:
    return any(key.endswith(f"/{scheduler}") for key in known)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short game of each scheduler")
    parser.add_argument("--json", type=Path, help="results are kept there")
    parser.add_argument("--only", default=",".join(GENERATORS), help="generators")
    parser.add_argument("--schedulers", default=",".join((*SCHEDULERS, *BOUNDS)))
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--loads", default=",".join(map(str, LOADS)))
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--svg", type=Path, help="a folder for the pictures")
    options = parser.parse_args()
    known: dict[str, Figures] = {}
    if options.json is not None and options.json.exists():
        known = json.loads(options.json.read_text())
    if options.quick:
        trace = bursty(1, 1.0, jobs=120)
        for name in (*SCHEDULERS, *BOUNDS):
            known[f"bursty/1/1.0/none/{name}"] = play(trace, name)
    else:
        loads = [float(load) for load in options.loads.split(",")]
        wanted = games(options.only.split(","), options.seeds, loads, options.schedulers.split(","))
        run(list(wanted), known, options.json, options.seconds)
    print("\n".join(table(known)))
    found = list(wanted_bars(known))
    print(f"\n{sum(bar.holds for bar in found)} of {len(found)} bars hold")
    print("\n".join(str(bar) for bar in found if not bar.holds))
    if options.svg is not None:
        pictures(known, options.svg)
    return 0


if __name__ == "__main__":
    sys.exit(main())
