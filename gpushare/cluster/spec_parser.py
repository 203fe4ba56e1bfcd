"""What files and command lines say about nodes, queues and jobs, as the nouns of model.py.

    nodes:  - {name: "dgx-{}", count: 2, gpus: 8, memory: 80Gi, type: H100, pool: train, labels: {rack: r1}}
    queues: - {name: research, quota: 8, queues: [{name: vision, quota: 5}, {name: speech, quota: 3}]}
    jobs:   - {name: train, queue: vision, gpus: 2}                       two whole GPUs
            - {name: notebook, queue: vision, gpus: 0.25, limit: 0.8}     a quarter, up to 0.8 when others are idle
            - {name: tuner, queue: speech, memory: 40Gi, gpus: 2}         40 GiB on each of two GPUs of one node
            - {name: gang, queue: speech, gpus: 8, tasks: 4, min: 2}      two to four tasks of eight
            - {name: sweep, queue: speech, ladder: [1.0, 0.7, 0.4]}       the most that there is room for

`count` makes a series: `{}` in the name is its number, from `first` (1) on. Whether a job makes sense is decided by
the allocator, so that a file, a command line and a scheduler's own objects are refused in the same words.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from gpushare.cluster.model import Job, JobRestored, Node, Place, Policy, Queue, Selector, Tasks
from gpushare.cluster.nouns import MOST_GPUS_OF_NODE
from gpushare.cluster.quantity import MICRO, bytes_of_share
from gpushare.cluster.yaml_source import FileError, Item, parse_line, read_text

__all__ = [
    "JOB_KEYS",
    "Seats",
    "Submission",
    "job",
    "jobs",
    "nodes",
    "policy",
    "queues",
    "restored",
    "said_of_queues",
    "series",
    "trace",
]

MOST_OF_A_SERIES = 1_000_000
UNLIMITED = "unlimited"
NODE_KEYS = ("name", "count", "first", "gpus", "memory", "type", "pool", "labels", "broken")
QUEUE_KEYS = (
    "name",
    "parent",
    "quota",
    "limit",
    "weight",
    "priority",
    "static",
    "min_runtime",
    "placement",
    "default_limit",
    "max_limit",
    "queues",
)
TASK_KEYS = ("gpus", "share", "memory", "limit", "ladder", "tasks", "min")
JOB_KEYS = (
    "name",
    "queue",
    *TASK_KEYS,
    "groups",
    "priority",
    "preemptible",
    "min_runtime",
    "wait",
    "backfill",
    "movable",
    "checkpoint_every",
    "pool",
    "type",
    "node",
    "labels",
)
SERIES_KEYS = ("count", "first", "every", "duration", "at")
RESTORED_KEYS = ("on", "gpu", "ran", "rung", "duration")


@dataclass(frozen=True, slots=True)
class Submission:
    """A job, and what only a simulation knows of it: when it comes and how long it runs (seconds)."""

    job: Job
    at: float = 0.0
    duration: float | None = None


def series(item: Item) -> Iterator[tuple[int, str]]:
    """(number, name) of each job of an entry, which has a name and perhaps a count."""
    name = item["name"].name()
    if "count" not in item:
        yield 0, name.replace("{}", "1")
        return
    count = item["count"].integer(0, MOST_OF_A_SERIES)
    first = item["first"].integer() if "first" in item else 1
    if "{}" not in name and count > 1:
        item["name"].refuse(f"{count} of one name", hint=f"write {name}-{{}}: {{}} becomes the number")
    yield from ((n, name.replace("{}", str(first + n))) for n in range(count))


def nodes(item: Item) -> Iterator[Node]:
    for entry in item.entries():
        entry.only(*NODE_KEYS)
        given: dict[str, Any] = {name: entry[name].name() for name in ("type", "pool") if name in entry}
        if "memory" in entry:
            given["memory"] = entry["memory"].bytes()
        broken = frozenset(one.integer() for one in entry["broken"].entries()) if "broken" in entry else frozenset()
        gpus = entry["gpus"].integer(1, MOST_GPUS_OF_NODE)
        for _, name in series(entry):
            yield Node(name, gpus, labels=_labels(entry), broken=broken, **given)


def queues(item: Item) -> Iterator[Queue]:
    """Parents before their children."""
    yield from (queue for queue, _ in said_of_queues(item))


def said_of_queues(item: Item, parent: str | None = None) -> Iterator[tuple[Queue, list[str]]]:
    """Each queue, with the names of the numbers that its entry gives. The other numbers of a known queue stay."""
    for entry in item.entries():
        entry.only(*QUEUE_KEYS)
        given: dict[str, Any] = {}
        for name in ("quota", "limit"):
            if name in entry and entry[name].value != UNLIMITED:
                given[name] = _whole_amount(entry[name])
            elif name in entry:
                given[name] = None
        for name in ("default_limit", "max_limit"):
            if name in entry:
                given[name] = entry[name].gpus()
        if "weight" in entry:
            given["weight"] = _weight(entry["weight"])
        if "priority" in entry:
            given["priority"] = entry["priority"].integer(-(2**31), 2**31)
        if "static" in entry:
            given["static"] = entry["static"].flag()
        if "min_runtime" in entry:
            given["min_runtime"] = entry["min_runtime"].seconds()
        if "placement" in entry:
            given["placement"] = entry["placement"].choice("pack", "spread")
        above = entry["parent"].name() if "parent" in entry else parent
        name = entry["name"].name()
        said = [key for key in entry.keys() if key not in ("name", "parent", "queues")]  # noqa: SIM118  null is said, too
        yield Queue(name, above, **given), said
        if "queues" in entry:
            yield from said_of_queues(entry["queues"], name)


def policy(item: Item | None) -> Policy:
    if item is None:
        return Policy()
    item.only(*(one.name for one in fields(Policy)))
    given: dict[str, Any] = {}
    for name in ("grow_hold", "reserve_after", "retry_after", "back_off", "protect", "patience"):
        if name in item.keys():  # noqa: SIM118  `in item` is false for null, which means never
            given[name] = item[name].seconds() if name in item else None
    for name, seconds in given.items():
        if seconds is None and name != "reserve_after":
            item.refuse(f"{name} cannot be null", hint="write a duration, as in 30s")
    if "endings" in item:
        given["endings"] = item["endings"].choice("instant", "reported")
    if "consolidate" in item:
        given["consolidate"] = item["consolidate"].flag()
    if "search_width" in item:
        given["search_width"] = item["search_width"].integer(1, 100_000)
    if "start_tries" in item:
        given["start_tries"] = item["start_tries"].integer(1, 1000)
    return Policy(**given)


def jobs(item: Item) -> Iterator[Submission]:
    """Jobs to submit, in their order."""
    for entry in item.entries():
        entry.only(*JOB_KEYS, *SERIES_KEYS)
        pattern = job(entry)
        every = entry["every"].seconds() if "every" in entry else 0.0
        at = entry["at"].seconds() if "at" in entry else 0.0
        duration = entry["duration"].seconds() if "duration" in entry else None
        for n, name in series(entry):
            yield Submission(replace(pattern, id=name), at + n * every, duration)


def trace(path: str | Path) -> list[Submission]:
    """Jobs of a recorded or made-up workload, one a line, in JSON (.jsonl) or as a table (.csv) with the same names:
    at (seconds or a duration), duration, name, queue, gpus, ..."""
    file = str(path)
    lines = read_text(path).splitlines()
    if file.endswith(".csv"):
        header = next(csv.reader(lines[:1]), [])
        entries = [_csv_entry(file, n, header, row) for n, row in enumerate(csv.reader(lines[1:]), 2) if row]
    else:
        entries = [parse_line(line, file, n) for n, line in enumerate(lines, 1) if line.strip()]
    if not entries:
        raise FileError(
            f"{file} has no jobs", hint='write one job a line: {"at": "0s", "name": "j", "queue": "q", "gpus": 1}'
        )
    return [submission for entry in entries for submission in jobs(entry)]


def _csv_entry(file: str, line: int, header: list[str], row: list[str]) -> Item:
    place = Item(None, file, "", line)
    if len(row) != len(header):
        place.refuse(f"{len(row)} values for {len(header)} columns", hint="quote what has a comma in it")
    words = {"true": True, "false": False}
    cells = {key.strip(): value.strip() for key, value in zip(header, row, strict=True)}
    return Item({k: Item(words.get(v, v), file, k, line) for k, v in cells.items() if v}, file, "", line)


def job(entry: Item) -> Job:
    given: dict[str, Any] = {}
    if "priority" in entry:
        given["priority"] = entry["priority"].integer(-(2**31), 2**31)
    if "min_runtime" in entry:
        given["min_runtime"] = entry["min_runtime"].seconds()
    if "checkpoint_every" in entry:
        given["checkpoint_every"] = entry["checkpoint_every"].seconds()
    for name in ("preemptible", "wait", "backfill", "movable"):
        if name in entry:
            given[name] = entry[name].flag()
    selector = Selector(
        pools=_names(entry, "pool"), types=_names(entry, "type"), labels=_labels(entry), nodes=_names(entry, "node")
    )
    return Job(entry["name"].name(), entry["queue"].name(), _groups(entry), selector=selector, **given)


def restored(item: Item, seats: Seats, now: float) -> Iterator[tuple[JobRestored, float | None]]:
    """Jobs that run already: `on` names the node of each task, or one node for all of them."""
    for entry in item.entries():
        entry.only(*JOB_KEYS, *SERIES_KEYS, *RESTORED_KEYS)
        pattern = job(entry)
        since = now - (entry["ran"].seconds() if "ran" in entry else 0.0)
        rung = entry["rung"].integer(0, 100) if "rung" in entry else 0
        duration = entry["duration"].seconds() if "duration" in entry else None
        wanted = [one.integer() for one in entry["gpu"].entries()] if "gpu" in entry else []
        for _, name in series(entry):
            places = tuple(_seated(entry, pattern, seats, rung, wanted))
            yield JobRestored(replace(pattern, id=name), places, since, rung=rung), duration


def _seated(entry: Item, pattern: Job, seats: Seats, rung: int, wanted: list[int]) -> Iterator[Place]:
    where = [one.name() for one in entry["on"].entries()]
    numbers = [(group, task) for group, tasks in enumerate(pattern.tasks) for task in range(tasks.top)]
    if len(where) == 1:
        where *= len(numbers)
    if len(where) > len(numbers):
        entry["on"].refuse(f"{len(where)} nodes for {len(numbers)} tasks", hint="name one node, or one for each task")
    for (group, task), node in zip(numbers, where, strict=False):
        gpus = seats.take(node, pattern.tasks[group], rung, tuple(wanted))
        if node not in seats.free:
            entry["on"].refuse(f"no node {node}", hint=f"there are: {', '.join(list(seats.free)[:8]) or 'none'}")
        if gpus is None:
            entry["on"].refuse(f"there is no room on {node}", hint="name another node; jobs are seated in their order")
        yield Place(group, task, node, gpus, 0, 0)


@dataclass(slots=True)
class Seats:
    """Free bytes of each GPU while jobs that run already are put where a file says."""

    memory: dict[str, int] = field(default_factory=dict)
    free: dict[str, list[int]] = field(default_factory=dict)

    def add(self, node: Node) -> None:
        self.memory[node.name] = node.memory
        self.free[node.name] = [0 if n in node.broken else node.memory for n in range(node.gpus)]

    def take(self, node: str, tasks: Tasks, rung: int, wanted: tuple[int, ...] = ()) -> tuple[int, ...] | None:
        """The GPUs for one task: those wanted, else the fullest ones on which it fits, of equal ones the first."""
        free = self.free.get(node)
        if free is None or rung >= len(tasks.rungs):
            return None
        request = tasks.rungs[rung]
        amount = request if tasks.memory is not None else bytes_of_share(request, self.memory[node])
        fitting = [n for n, left in enumerate(free) if left >= amount and (not wanted or n in wanted)]
        chosen = sorted(sorted(fitting, key=lambda n: (free[n], n))[: tasks.gpus])
        if len(chosen) < tasks.gpus:
            return None
        for n in chosen:
            free[n] -= amount
        return tuple(chosen)


def _groups(entry: Item) -> tuple[Tasks, ...]:
    if "groups" not in entry:
        return (_tasks(entry),)
    for name in TASK_KEYS:
        if name in entry:
            entry[name].refuse("beside `groups`", hint="say it in each of the groups")
    return tuple(_tasks(group.only("name", *TASK_KEYS), _optional_name(group)) for group in entry["groups"].entries())


def _optional_name(group: Item) -> str:
    return group["name"].name() if "name" in group else ""


def _tasks(entry: Item, name: str = "") -> Tasks:
    gpus, share = _gpus(entry)
    if "share" in entry:
        share = entry["share"].gpus()
        if not 0 < share <= MICRO:
            entry["share"].refuse(f"{entry['share'].value!r} is no part of a GPU", hint="write 0.5 or 50%")
    memory = entry["memory"].bytes() if "memory" in entry else None
    ladder: tuple[int, ...] = ()
    if "ladder" in entry:
        in_bytes = memory is not None
        ladder = tuple(one.bytes() if in_bytes else one.gpus() for one in entry["ladder"].entries())
        if share is None and memory is None and ladder:
            share, ladder = ladder[0], ladder[1:]
    limit = None
    if "limit" in entry:
        limit = entry["limit"].bytes() if memory is not None else entry["limit"].gpus()
    most = entry["tasks"].integer(1, 10**6) if "tasks" in entry else 1
    least = entry["min"].integer(0, most) if "min" in entry else most
    return Tasks(least, most if most != least else None, gpus, share, memory, limit, ladder, name)


def _gpus(entry: Item) -> tuple[int, int | None]:
    """`gpus` is a number of whole GPUs, or a part of one."""
    if "gpus" not in entry:
        return 1, None
    amount = entry["gpus"].gpus()
    if amount == 0:
        entry["gpus"].refuse("a job without a GPU needs no place here", hint="write 1 or more, or a part: 0.25")
    if amount % MICRO == 0:
        return amount // MICRO, None
    if amount > MICRO:
        entry["gpus"].refuse(
            f"{entry['gpus'].value} GPUs are neither whole nor a part of one",
            hint="for three quarters of each of two GPUs ask for 2 GPUs and a share of 0.75",
        )
    if "share" in entry or "memory" in entry:
        entry["gpus"].refuse("a part of a GPU is said twice", hint="write the number of GPUs here: gpus: 1")
    return 1, amount


def _whole_amount(item: Item) -> int:
    """GPUs of the whole cluster: a percentage would be one of a GPU."""
    if isinstance(item.value, str) and item.value.strip().endswith("%"):
        item.refuse(f"{item.value!r}: a queue is promised GPUs, not a percentage", hint="write a number of GPUs: 4")
    return item.gpus()


def _weight(item: Item) -> int:
    if isinstance(item.value, str) and item.value.startswith("-"):
        item.refuse(
            f"{item.value!r} is below 0",
            hint="write a weight from 0 on: of 1 and 3 the second gets three times as much",
        )
    return item.gpus()


def _names(entry: Item, key: str) -> tuple[str, ...]:
    return tuple(one.name() for one in entry[key].entries()) if key in entry else ()


def _labels(entry: Item) -> tuple[tuple[str, str], ...]:
    if "labels" not in entry:
        return ()
    return tuple(sorted((key, value.text()) for key, value in entry["labels"].pairs()))
