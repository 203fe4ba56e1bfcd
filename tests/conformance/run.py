"""Play scheduling situations that were recorded with another scheduler, and compare where both settle.

    python tests/conformance/run.py CASES.json CONVERGED.json [--exceptions FILE] [--case PART-OF-ITS-ID] [-v]

One line a level: the invariants hold; the GPUs that each queue holds are the other's; so is the set of running tasks;
evictions and moves are not more. Then each miss that the file of exceptions does not list. The exit status says
whether there is one. The situations are KAI-Scheduler's (schema kai-cases/1) and are not part of this project.
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpushare.cluster.allocator import Allocator
from gpushare.cluster.model import (
    Action,
    Event,
    Job,
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
    Selector,
    Start,
    Stop,
    Tasks,
    TimePassed,
)
from gpushare.cluster.quantity import MICRO, format_gpus, gpus
from gpushare.cluster.spec_parser import Seats

EXCEPTIONS = Path(__file__).with_name("exceptions.toml")
LEVELS = ("invariants", "queues", "running", "evictions")
MIB = 2**20
NOW = 100_000.0
HORIZON = 3600.0
"""Seconds after the last event within which it must have settled."""

HOLDING = frozenset({"running", "stuck_releasing", "allocated", "reserved"})
"""States of tasks that have their GPUs. Who is "evicted" at the start is gone and, if not deleted, waits again."""
NOT_THERE = frozenset({"gated", "succeeded", "failed"})

Case = Mapping[str, Any]


# ---- a case as events ---------------------------------------------------------------------------------


@dataclass(slots=True)
class Known:
    """Which of the case's tasks is which of ours."""

    events: list[Event] = field(default_factory=list)
    tasks: dict[tuple[str, int, int], str] = field(default_factory=dict)
    """(job, group, task) -> the task's id in the case."""
    stuck: set[str] = field(default_factory=set)


def translate(case: Case) -> Known:
    known, seats = Known(), Seats()
    for one in case["nodes"]:
        labels = tuple(sorted((key, str(value)) for key, value in (one.get("labels") or {}).items()))
        node = Node(one["name"], one["gpus"], max(1, one["gpu_memory_mib"]) * MIB, labels=labels)
        known.events.append(NodeAdded(node))
        seats.add(node)
    known.events += [QueueAdded(queue) for queue in _queues(case)]
    labelled: dict[tuple[str, str], int] = {}
    for job in sorted(case["jobs"], key=lambda job: -job["age_minutes"]):
        if not job.get("deleted_during_run"):
            known.events += _job(job, known, seats, labelled)
    return known


def _queues(case: Case) -> Iterator[Queue]:
    """Parents first, then in the order of their creation."""
    by_name = {one["name"]: one for one in case["queues"]}

    def depth(one: Mapping[str, Any]) -> int:
        return 0 if one["parent"] not in by_name else 1 + depth(by_name[one["parent"]])

    for one in sorted(case["queues"], key=lambda one: (depth(one), one["created"])):
        amount = one["gpu"]
        quota, limit = (None if amount[name] is None else gpus(amount[name]) for name in ("quota", "limit"))
        if limit is not None and (quota is None or quota > limit):
            quota = limit  # KAI's share is never above the limit either
        weight = None if amount["over_quota_weight"] < 0 else gpus(amount["over_quota_weight"])
        runtime = one.get("reclaim_min_runtime_s")
        parent = one["parent"] if one["parent"] in by_name else None
        yield Queue(one["name"], parent, quota, limit, weight, one["priority"], min_runtime=runtime)


def _job(job: Mapping[str, Any], known: Known, seats: Seats, labelled: dict[tuple[str, str], int]) -> Iterator[Event]:
    job = {**job, "tasks": [task for task in job["tasks"] if _can_be(task, seats)]}
    groups = _groups(job)
    if not groups or any(not minimum_met for minimum_met in _complete(job)):
        return  # a gang whose tasks are not all there waits for them
    stuck = any(task["state"] == "stuck_releasing" for task in job["tasks"])
    # Ours has one list of nodes for a job: where each task has its own, the job may use the nodes of all of them.
    wanted = [task.get("node_in", ()) for task in job["tasks"]]
    selector = Selector(nodes=tuple(sorted({node for one in wanted for node in one}))) if all(wanted) else Selector()
    ours = Job(
        job["name"],
        job["queue"],
        tuple(tasks for tasks, _ in groups),
        job["priority"],
        job["preemptible"] and not stuck,
        movable=True,
        selector=selector,
    )
    places = []
    for group, (tasks, members) in enumerate(groups):
        # Ours start at the lowest numbers and are stopped at the highest: running ones are numbered first.
        members.sort(key=lambda task: task["state"] not in HOLDING)
        for number, task in enumerate(members):
            known.tasks[job["name"], group, number] = task["id"]
            if task["state"] in HOLDING:
                known.stuck |= {task["id"]} if task["state"] == "stuck_releasing" else set()
                places.append(Place(group, number, task["node"], _seat(task, tasks, seats, labelled), 0, 0))
    if places:
        yield JobRestored(ours, tuple(places), NOW - 60 * job["age_minutes"])
    else:
        yield JobSubmitted(ours)


def _groups(job: Mapping[str, Any]) -> list[tuple[Tasks, list[Mapping[str, Any]]]]:
    """Tasks of one size and one sub-group are equal. A minimum that counts tasks of several sizes is met by the first
    of them, and `min_groups` by the groups that run already, then the first: ours says how many of which."""
    least = dict(_minimums(job))
    members: dict[tuple[str, str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for task in job["tasks"]:
        shape = json.dumps(task["request"].get("gpu"), sort_keys=True)
        members[task.get("group", ""), shape, json.dumps(task.get("node_in"))].append(task)
    found = []
    for (group, _, _), tasks in members.items():
        needed = min(len(tasks), least.get(group, 0))
        least[group] = least.get(group, 0) - needed
        found.append((_tasks(tasks[0]["request"].get("gpu"), needed, len(tasks)), tasks))
    return found


def _can_be(task: Mapping[str, Any], seats: Seats) -> bool:
    """A task whose nodes do not exist is no more there than one that is held back."""
    nodes = task.get("node_in")
    return task["state"] not in NOT_THERE and (not nodes or any(node in seats.free for node in nodes))


def _complete(job: Mapping[str, Any]) -> Iterator[bool]:
    there = Counter(task.get("group", "") for task in job["tasks"])
    yield from (there[group] >= minimum for group, minimum in _minimums(job))


def _minimums(job: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    if "groups" not in job:
        yield "", job.get("min_available", len(job["tasks"]))
        return
    running = Counter(task.get("group", "") for task in job["tasks"] if task["state"] == "running")

    def names(tree: Mapping[str, Any]) -> list[str]:
        return [pod["name"] for pod in tree["pods"]] + [name for one in tree["groups"] for name in names(one)]

    def walk(tree: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
        parts = [({"pods": [pod], "groups": []}, pod) for pod in tree["pods"]] + [(one, None) for one in tree["groups"]]
        parts.sort(key=lambda part: -sum(running[name] for name in names(part[0])))
        for part, pod in parts[: tree.get("min_groups", len(parts))]:
            if pod is None:
                yield from walk(part)
            else:
                yield pod["name"], pod["min"]

    yield from walk(job["groups"])


def _tasks(request: Mapping[str, Any] | None, least: int, most: int) -> Tasks:
    if request is None or not request.get("devices", 1):
        return Tasks(least, most, gpus=0)
    match request["kind"]:
        case "whole":
            return Tasks(least, most, request["count"])
        case "fraction":
            return Tasks(least, most, request["devices"], share=gpus(request["fraction"]))
        case _:
            return Tasks(least, most, request["devices"], memory=request["mib"] * MIB)


def _seat(task: Mapping[str, Any], tasks: Tasks, seats: Seats, labelled: dict[tuple[str, str], int]) -> tuple[int, ...]:
    """Tasks with the same label share a GPU; a new label is a GPU that none of the node's others has."""
    node = task["node"]
    labels = task.get("gpu_groups", []) if tasks.gpus else []
    known = [labelled[node, label] for label in labels if (node, label) in labelled]
    taken = {gpu for (name, _), gpu in labelled.items() if name == node}
    if len(known) == len(labels) and known:
        chosen = seats.take(node, tasks, 0, tuple(known))
    else:
        new = tuple(gpu for gpu in range(len(seats.free[node])) if gpu not in taken)
        chosen = seats.take(node, tasks, 0, new if labels else ()) or seats.take(node, tasks, 0)
    assert chosen is not None, f"{task['id']} does not fit on {node}"
    labelled |= {(node, label): gpu for label, gpu in zip(labels, chosen, strict=False)}
    return chosen


# ---- playing ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outcome:
    running: frozenset[str]
    held: Mapping[str, int]
    evictions: int
    moves: int
    broken: tuple[str, ...] = ()


def play(case: Case) -> Outcome:
    known = translate(case)
    allocator = Allocator(Policy(reserve_after=None))
    actions = allocator.handle(known.events, NOW)
    broken = list(_broken(case, allocator))
    now = NOW
    while (wake := allocator.next_wake) is not None and wake <= NOW + HORIZON:
        now = max(now, wake)
        actions += allocator.handle(TimePassed(), now)
        broken += _broken(case, allocator)
    evictions = sum(len(action.places) for action in actions if isinstance(action, Preempt | Stop))
    moves = sum(len(action.places) for action in actions if isinstance(action, Move))
    running = {
        known.tasks[name, place.group, place.task] for name, view in allocator.jobs.items() for place in view.places
    }
    held = {name: view.allocated for name, view in allocator.queues.items()}
    return Outcome(frozenset(running - known.stuck), held, evictions, moves, tuple(dict.fromkeys(broken)))


def _broken(case: Case, allocator: Allocator) -> Iterator[str]:
    """What must hold whatever the rules are, from the allocator's answers alone; then what it says of itself."""
    used: Counter[tuple[str, int]] = Counter()
    queues: Counter[str] = Counter()
    fixed: Counter[str] = Counter()
    parents = {name: view.queue.parent for name, view in allocator.queues.items()}
    for name, view in allocator.jobs.items():
        counts = Counter(place.group for place in view.places)
        for group, tasks in enumerate(view.job.tasks):
            if view.places and counts[group] < tasks.least:
                yield f"gang: {name} runs {counts[group]} of at least {tasks.least}"
        for place in view.places:
            used.update({(place.node, gpu): place.amount for gpu in place.gpus})
        queue: str | None = view.job.queue
        while queue is not None:
            queues[queue] += view.charge
            fixed[queue] += 0 if view.job.preemptible else view.charge
            queue = parents[queue]
    for (node, gpu), amount in used.items():
        if amount > allocator.nodes[node].node.memory:
            yield f"capacity: GPU {gpu} of {node}"
    for name, view in allocator.queues.items():
        if view.allocated != queues[name]:
            yield f"ledger: {name} has {view.allocated} in the books and {queues[name]} in its jobs"
        if view.queue.cap is not None and queues[name] > view.queue.cap:
            yield f"limit: {name} holds {format_gpus(queues[name])}"
    for share in allocator.shares().values():
        if share.share > share.cap or share.share > share.parent_share:
            yield f"share: {share.queue}: {share}"
    try:
        allocator.validate()
    except AssertionError as error:
        yield f"validate: {str(error).splitlines()[0] if str(error) else 'failed'}"


# ---- comparing ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Miss:
    case: str
    level: str
    text: str


@dataclass(slots=True)
class Score:
    cases: int = 0
    good: Counter[str] = field(default_factory=Counter)
    misses: list[Miss] = field(default_factory=list)
    ours: int = 0
    theirs: int = 0


def score(cases: Sequence[Case], converged: Mapping[str, Any]) -> Score:
    result = Score()
    for case in cases:
        theirs = converged[case["id"]]
        result.cases += 1
        try:
            ours = play(case)
        except Exception as error:  # a case that cannot be played is a miss at all levels, not the end of the run
            result.misses += [Miss(case["id"], level, f"{type(error).__name__}: {error}") for level in LEVELS]
            continue
        result.ours += ours.evictions + ours.moves
        result.theirs += theirs["evictions"] + theirs["moves"]
        texts = dict(_compare(case, ours, theirs))
        result.misses += [Miss(case["id"], level, text) for level, text in texts.items()]
        result.good.update(level for level in LEVELS if level not in texts)
    return result


def _compare(case: Case, ours: Outcome, theirs: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if ours.broken:
        yield "invariants", "; ".join(ours.broken)
    held = _held(case, theirs["tasks"])
    leaves = {job["queue"] for job in case["jobs"]}
    differing = [name for name in sorted(leaves) if ours.held[name] != held[name]]
    if differing:
        texts = (f"{name} holds {format_gpus(ours.held[name])}, theirs {format_gpus(held[name])}" for name in differing)
        yield "queues", "; ".join(texts)
    running = {task for task, state in theirs["tasks"].items() if state["state"] in HOLDING - {"stuck_releasing"}}
    if ours.running != running:
        more, less = sorted(ours.running - running), sorted(running - ours.running)
        yield "running", "; ".join([f"+{task}" for task in more] + [f"-{task}" for task in less])
    if ours.evictions + ours.moves > theirs["evictions"] + theirs["moves"]:
        counts = f"{ours.evictions} evictions and {ours.moves} moves"
        yield "evictions", f"{counts}, theirs {theirs['evictions']} and {theirs['moves']}"


def _held(case: Case, states: Mapping[str, Any]) -> Counter[str]:
    """Micro-GPUs per queue in the other's outcome."""
    memory = {node["name"]: node["gpu_memory_mib"] for node in case["nodes"]}
    held: Counter[str] = Counter()
    for job in case["jobs"]:
        for task in job["tasks"]:
            state = states.get(task["id"], {})
            if state.get("state") in HOLDING:
                held[job["queue"]] += _charge(task["request"].get("gpu"), memory[state["node"]])
    return held


def _charge(request: Mapping[str, Any] | None, memory: int) -> int:
    if request is None:
        return 0
    match request["kind"]:
        case "whole":
            return int(request["count"]) * MICRO
        case "fraction":
            return int(gpus(request["fraction"])) * int(request["devices"])
        case _:
            return int(request["mib"]) * MICRO // memory * int(request["devices"])


# ---- reporting ----------------------------------------------------------------------------------------


Exceptions = Mapping[str, tuple[frozenset[str], str]]
"""case -> (levels, reason)."""


def read_exceptions(path: Path, kind: str = "exception") -> dict[str, tuple[frozenset[str], str]]:
    """`exception`: ours is right by our rules. `open`: theirs is, and ours has yet to get there."""
    found = {}
    for one in tomllib.loads(path.read_text()).get(kind, []):
        levels = frozenset(one["levels"])
        assert levels <= set(LEVELS) - {"invariants"}, f"{one['case']}: no exception from {sorted(levels)}"
        assert one["reason"], one["case"]
        found[one["case"]] = (levels, one["reason"])
    return found


def report(result: Score, exceptions: Exceptions, still_open: Exceptions) -> tuple[list[str], bool]:
    """Lines to print, and whether every miss is listed and everything listed is still a miss."""
    lines = []
    for level in LEVELS:
        missed = [miss.case for miss in result.misses if miss.level == level]
        notes = [
            f"{number} {what}"
            for listed, what in ((exceptions, "differ on purpose"), (still_open, "open"))
            if (number := sum(level in listed.get(case, NOWHERE)[0] for case in missed))
        ]
        totals = f"  ours {result.ours}, theirs {result.theirs}" if level == "evictions" else ""
        listed_as = f"  ({', '.join(notes)})" if notes else ""
        lines.append(f"{level:<10} {result.good[level]}/{result.cases}{totals}{listed_as}")
    listed = {(case, level) for each in (exceptions, still_open) for case in each for level in each[case][0]}
    unlisted = [miss for miss in result.misses if (miss.case, miss.level) not in listed]
    lines += [f"\n{miss.level}: {miss.case}\n    {miss.text}" for miss in unlisted]
    stale = sorted(listed - {(miss.case, miss.level) for miss in result.misses})
    lines += [f"\n{case}: {level} is as theirs: it need not be listed" for case, level in stale]
    return lines, not unlisted and not stale


NOWHERE: tuple[frozenset[str], str] = (frozenset(), "")


def actions_of(case: Case) -> list[Action]:
    """For looking at one case."""
    return Allocator(Policy(reserve_after=None)).handle(translate(case).events, NOW)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", type=Path)
    parser.add_argument("converged", type=Path)
    parser.add_argument("--exceptions", type=Path, default=EXCEPTIONS)
    parser.add_argument("--case", default="", help="only cases with this in their id")
    parser.add_argument("-v", "--verbose", action="store_true", help="with the decisions of each case")
    options = parser.parse_args()
    cases = [case for case in json.loads(options.cases.read_text())["cases"] if options.case in case["id"]]
    chosen = {case["id"] for case in cases}
    exceptions, still_open = (
        {case: value for case, value in read_exceptions(options.exceptions, kind).items() if case in chosen}
        for kind in ("exception", "open")
    )
    if options.verbose:
        for case in cases:
            print(case["id"], "-", case["name"])
            for action in actions_of(case):
                places = (
                    ", ".join(f"{place.node}:{place.gpus}" for place in action.places)
                    if isinstance(action, Start | Preempt | Move | Stop)
                    else ""
                )
                print("   ", type(action).__name__.lower(), action.job, places, "|", action.reason.message)
    lines, good = report(score(cases, json.loads(options.converged.read_text())), exceptions, still_open)
    print("\n".join(lines))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
