"""The checks of a scenario: what `then` may name.

A check compares what the file expects with what is so, and gives a message for each difference.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from gpushare.cluster.amounts import capacity
from gpushare.cluster.model import Action, Code, Refuse, Start
from gpushare.cluster.quantity import MICRO, format_gpus, whole_gpus
from gpushare.cluster.simulation import VERBS, Simulation
from gpushare.cluster.yaml_source import Item

__all__ = ["CHECKS", "Course"]


@dataclass(slots=True)
class Course:
    """A scenario that is being played."""

    simulation: Simulation
    since: int = 0
    """Actions before the step that is being checked."""
    refused_before: int = 0

    @property
    def happened(self) -> list[Action]:
        """Actions of this step."""
        return [action for _, action in self.simulation.actions[self.since :]]

    @property
    def in_all(self) -> list[Action]:
        return [action for _, action in self.simulation.actions]


def _amounts(item: Item, found: Mapping[str, int]) -> Iterator[str]:
    for name, value in item.pairs():
        if name not in found:
            value.refuse(f"no {name} here", hint=f"there are: {', '.join(list(found)[:8]) or 'none'}")
        if found[name] != value.gpus():
            yield f"{name} is {format_gpus(found[name])}, not {format_gpus(value.gpus())}"


def _held(course: Course, item: Item) -> Iterator[str]:
    """GPUs that queues hold."""
    yield from _amounts(item, {name: view.allocated for name, view in course.simulation.allocator.queues.items()})


def _shares(course: Course, item: Item) -> Iterator[str]:
    """Fair shares of queues, to the millionth."""
    yield from _amounts(item, {name: share.share for name, share in course.simulation.allocator.shares().items()})


def _whole_shares(course: Course, item: Item) -> Iterator[str]:
    """Fair shares of the queues of one level in whole GPUs."""
    shares = course.simulation.allocator.shares()
    names = [name for name in shares if name in item]
    whole = whole_gpus([shares[name].share for name in names])
    yield from _amounts(item, {name: n * MICRO for name, n in zip(names, whole, strict=True)})


def _size(course: Course, item: Item) -> Iterator[str]:
    """The part of a GPU that an elastic job has."""
    found = {}
    for name, view in course.simulation.allocator.jobs.items():
        if view.places:
            found[name] = view.job.tasks[view.places[0].group].rungs[view.rung]
    yield from _amounts(item, found)


def _idle(course: Course, item: Item) -> Iterator[str]:
    """GPUs that nobody holds."""
    free = capacity(course.simulation.allocator) - sum(_node_use(course).values())
    if free != item.gpus():
        yield f"{format_gpus(free)} idle, not {format_gpus(item.gpus())}"


def _node_use_check(course: Course, item: Item) -> Iterator[str]:
    """GPUs held on each node, the fullest first."""
    found = sorted(_node_use(course).values(), reverse=True)
    wanted = [one.gpus() for one in item.entries()]
    if found != wanted:
        yield f"{_list(found)}, not {_list(wanted)}"


def _jobs_per_gpu(course: Course, item: Item) -> Iterator[str]:
    """How many tasks each GPU has, the most first."""
    tasks = Counter(
        (place.node, gpu)
        for view in course.simulation.allocator.jobs.values()
        for place in view.places
        for gpu in place.gpus
    )
    gpus = [(name, n) for name, view in course.simulation.allocator.nodes.items() for n in range(view.node.gpus)]
    found = sorted((tasks[gpu] for gpu in gpus), reverse=True)
    wanted = [one.integer() for one in item.entries()]
    if found != wanted:
        yield f"{found}, not {wanted}"


def _in_state(*states: str) -> Callable[[Course, Item], Iterator[str]]:
    def check(course: Course, item: Item) -> Iterator[str]:
        jobs = course.simulation.allocator.jobs
        yield from _names(item, [(name, view.job.queue) for name, view in jobs.items() if view.state in states])

    return check


def _happened(kind: str, *, in_all: bool = False) -> Callable[[Course, Item], Iterator[str]]:
    def check(course: Course, item: Item) -> Iterator[str]:
        actions = course.in_all if in_all else course.happened
        jobs = [action.job for action in actions if VERBS[type(action)] == kind]
        yield from _names(item, [(job, course.simulation.runs[job].queue) for job in jobs])

    return check


def _names(item: Item, found: list[tuple[str, str]]) -> Iterator[str]:
    """A list names them all; a number counts them; a mapping counts them by queue."""
    names = sorted(name for name, _ in found)
    if isinstance(item.value, list):
        wanted = sorted(one.name() for one in item.entries())
        if names != wanted:
            more, less = _difference(names, wanted), _difference(wanted, names)
            parts = [f"{', '.join(more)} too" if more else "", f"not {', '.join(less)}" if less else ""]
            yield f"{', '.join(names) or 'none'} ({'; '.join(part for part in parts if part)})"
    elif item.is_mapping():
        counts = Counter(queue for _, queue in found)
        for queue, value in item.pairs():
            if counts[queue] != value.integer():
                yield f"{counts[queue]} of {queue}, not {value.integer()}"
    elif len(names) != item.integer():
        yield f"{len(names)}, not {item.integer()}: {', '.join(names[:12]) or 'none'}"


def _difference(left: list[str], right: list[str]) -> list[str]:
    return sorted((Counter(left) - Counter(right)).elements())


def _reason(course: Course, item: Item) -> Iterator[str]:
    """Why a job waits: the code, or words and numbers that the sentence has."""
    for job, value in item.pairs():
        reason = course.simulation.allocator.explain(job).reason
        if not isinstance(value.value, list):
            if reason.code.value != value.choice(*Code):
                yield f"{job}: {reason.code.value} ({reason.message}), not {value.text()}"
            continue
        for word in value.entries():
            if not re.search(rf"(?<![\w.]){re.escape(word.text())}(?![\w]|\.\d)", reason.message):
                yield f"{job}: {reason.message!r} does not say {word.text()}"


def _refused(course: Course, item: Item) -> Iterator[str]:
    """Jobs that were turned away in this step, and a word of the answer."""
    answers = {action.job: action.reason.message for action in course.happened if isinstance(action, Refuse)}
    for _, job, error in course.simulation.refused[course.refused_before :]:
        answers[job] = f"{error.message}; {error.hint}"
    for job, value in item.pairs():
        if job not in answers:
            yield f"{job} was not refused"
        elif value.text() not in answers[job]:
            yield f"{job}: {answers[job]!r} does not say {value.text()!r}"


def _retry_after(course: Course, item: Item) -> Iterator[str]:
    """When refused jobs should come again."""
    found = {action.job: action.retry_after for action in course.happened if isinstance(action, Refuse)}
    for job, value in item.pairs():
        if found.get(job) != value.seconds():
            yield f"{job}: {found.get(job)} s, not {value.seconds():g} s"


def _ran(course: Course, item: Item) -> Iterator[str]:
    """Jobs that started at some time."""
    jobs = {action.job for action in course.in_all if isinstance(action, Start)}
    for one in item.entries():
        if one.name() not in jobs:
            yield f"{one.name()} never started"


CHECKS: dict[str, Callable[[Course, Item], Iterable[str]]] = {
    "held": _held,
    "shares": _shares,
    "whole_shares": _whole_shares,
    "size": _size,
    "idle": _idle,
    "node_use": _node_use_check,
    "jobs_per_gpu": _jobs_per_gpu,
    "running": _in_state("running"),
    "starting": _in_state("starting"),
    "queued": _in_state("pending", "starting"),
    "started": _happened("start"),
    "evicted": _happened("evict"),
    "moved": _happened("move"),
    "shrunk": _happened("shrink"),
    "grown": _happened("grow"),
    "evicted_in_all": _happened("evict", in_all=True),
    "moved_in_all": _happened("move", in_all=True),
    "reason": _reason,
    "refused": _refused,
    "retry_after": _retry_after,
    "ran": _ran,
}


def _node_use(course: Course) -> dict[str, int]:
    found = dict.fromkeys(course.simulation.allocator.nodes, 0)
    for view in course.simulation.allocator.jobs.values():
        for place in view.places:
            found[place.node] += place.charge
    return found


def _list(amounts: Iterable[int]) -> str:
    return f"[{', '.join(format_gpus(amount) for amount in amounts)}]"
