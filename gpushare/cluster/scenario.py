"""Scenarios: a cluster, what happens to it, and what must follow. Files like those in examples/cluster.

    scenario: one line
    given:
      policy: {grow_hold: 30s}          what model.Policy takes
      nodes, queues:                    as reading.py has them
      jobs:                             run already: {name, queue, gpus, on: node-1}
    steps:
      - title: what this is about
        when:                           in this order; a single action needs no list
          - submit: {name: a-1, queue: a, gpus: 2, duration: 60s}       several in one list come together
          - end: [a-1]                  withdraw: ..., stopped: ...     names of jobs
          - wait: 30s                   at: 90s (since the beginning), wait: done (all that was planned has happened)
          - lose: node-1                node: {...} (new, back or changed), break: {node: n, gpu: 3}, mend: {...}
          - queue: {name: a, quota: 3}  new, or new numbers for a known one; remove: a (without jobs)
          - change: {job: a-1, priority: 90}
        then:                           CHECKS below; what is not said is not checked

A file with only `given` and `when` is a cluster and a course of events, to be looked at.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpushare.cluster import reading
from gpushare.cluster.amounts import capacity
from gpushare.cluster.document import FileError, Item, load
from gpushare.cluster.model import (
    Action,
    Code,
    Event,
    GpuHealth,
    JobChanged,
    JobEnded,
    JobSubmitted,
    JobWithdrawn,
    Node,
    NodeAdded,
    NodeLost,
    Policy,
    Queue,
    QueueAdded,
    QueueChanged,
    QueueRemoved,
    Refuse,
    Start,
)
from gpushare.cluster.quantity import MICRO, format_gpus, whole_gpus
from gpushare.cluster.simulation import VERBS, Run, Simulation
from gpushare.errors import GpushareError, NoSuchJob

__all__ = ["ACTIONS", "CHECKS", "Failure", "Given", "Scenario", "Step", "given", "read", "read_events", "run"]

DONE = "done"
UNKNOWN_JOB = "name a job that has been submitted before and has not ended"


@dataclass(frozen=True, slots=True)
class Given:
    policy: Policy
    nodes: tuple[Node, ...]
    queues: tuple[Queue, ...]
    jobs: Item | None = None


@dataclass(frozen=True, slots=True)
class Step:
    title: str
    when: tuple[Item, ...]
    then: Item | None


@dataclass(frozen=True, slots=True)
class Scenario:
    title: str
    about: str
    given: Given
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Failure:
    """Something that should have followed, and did not."""

    step: int
    title: str
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.where}: step {self.step}{f' ({self.title})' if self.title else ''}: {self.message}"


@dataclass(slots=True)
class _Course:
    """A scenario on its way."""

    simulation: Simulation
    step: int = 0
    since: int = 0
    """Actions before the step that is being checked."""
    refused_before: int = 0
    failures: list[Failure] = field(default_factory=list)

    @property
    def happened(self) -> list[Action]:
        return [action for _, action in self.simulation.actions[self.since :]]

    @property
    def in_all(self) -> list[Action]:
        return [action for _, action in self.simulation.actions]


# ---- reading ------------------------------------------------------------------------------------------


def read(path: str | Path) -> Scenario:
    """A scenario from a file. Everything that can be wrong in it is found here, before anything runs."""
    root = load(path)
    if "given" not in root and ("nodes" in root or "queues" in root):
        hint = "write `given:` above its nodes and queues, or run a trace on it: simulate TRACE --cluster FILE"
        raise FileError(f"{path} is a cluster, not a scenario: nothing happens in it", hint=hint)
    root.only("scenario", "about", "given", "steps", "when", "then")
    steps = [_step(item) for item in root["steps"].entries()] if "steps" in root else []
    if "when" in root or "then" in root:
        if steps:
            root.refuse("both `steps` and `when` at the top", hint="make the top's `when` and `then` a step")
        steps = [_step_of(root, "")]
    title = root["scenario"].text() if "scenario" in root else Path(path).stem
    about = root["about"].text() if "about" in root else ""
    return Scenario(title, about, given(root["given"]), tuple(steps))


def given(item: Item) -> Given:
    """Nodes, queues, policy and running jobs: what `given` says, or a cluster's file."""
    if not item.is_mapping():
        item.refuse("a cluster has `nodes:` and `queues:`", hint="write `nodes:` above the list of nodes")
    item.only("policy", "nodes", "queues", "jobs")
    nodes = tuple(reading.nodes(item["nodes"])) if "nodes" in item else ()
    queues = tuple(reading.queues(item["queues"])) if "queues" in item else ()
    for names, key in ((nodes, "nodes"), (queues, "queues")):
        twice = [name for name, count in Counter(one.name for one in names).items() if count > 1]
        if twice:
            item[key].refuse(f"{twice[0]} stands twice", hint="give them different names")
    return Given(reading.policy(item.get("policy")), nodes, queues, item.get("jobs"))


def _step(item: Item) -> Step:
    item.only("title", "when", "then")
    return _step_of(item, item["title"].text() if "title" in item else "")


def _step_of(item: Item, title: str) -> Step:
    when = tuple(item["when"].entries()) if "when" in item else ()
    for action in when:
        _check_action(action)
    then = item.get("then")
    if then is not None:
        then.only(*CHECKS)
    return Step(title, when, then)


def _check_action(item: Item) -> None:
    item.only(*ACTIONS)
    if len(item.keys()) != 1:
        item.refuse(f"{len(item.keys())} actions in one entry", hint="begin each action with a dash of its own")
    if "submit" in item:
        list(reading.jobs(item["submit"]))
    elif "wait" in item and item["wait"].value != DONE:
        item["wait"].seconds()
    elif "at" in item:
        item["at"].seconds()


# ---- actions ------------------------------------------------------------------------------------------


def _submit(course: _Course, item: Item) -> None:
    course.simulation.submit(list(reading.jobs(item)))


def _wait(course: _Course, item: Item) -> None:
    simulation = course.simulation
    if item.value == DONE:
        simulation.finish()
    else:
        simulation.advance(simulation.now + item.seconds())


def _at(course: _Course, item: Item) -> None:
    moment = item.seconds()
    if moment < course.simulation.now:
        item.refuse(f"it is {course.simulation.now:g} s already", hint="put the actions into their order")
    course.simulation.advance(moment)


def _stopped(course: _Course, item: Item) -> None:
    for one in item.entries():
        if one.name() not in course.simulation.runs:
            one.refuse(f"no job {one.name()!r}", hint=UNKNOWN_JOB)
    course.simulation.hand(*(course.simulation.stopped(one.name()) for one in item.entries()))


def _events(course: _Course, item: Item, verb: str) -> None:
    known = course.simulation.allocator.queues
    course.simulation.hand(*_as_events(verb, item, known))


def _as_events(verb: str, item: Item, queues: Mapping[str, Any]) -> Iterator[Event]:
    """Actions that are events by themselves."""
    match verb:
        case "end":
            yield from (JobEnded(one.name()) for one in item.entries())
        case "withdraw":
            yield from (JobWithdrawn(one.name()) for one in item.entries())
        case "submit":
            yield from (JobSubmitted(one.job) for one in reading.jobs(item))
        case "node":
            yield from (NodeAdded(node) for node in reading.nodes(item))
        case "lose":
            yield from (NodeLost(one.name()) for one in item.entries())
        case "break" | "mend":
            for one in item.entries():
                one.only("node", "gpu")
                yield GpuHealth(one["node"].name(), one["gpu"].integer(), verb == "mend")
        case "queue":
            for entry in item.entries():
                yield from _queue_events(entry, queues)
        case "remove":
            yield from (QueueRemoved(one.name()) for one in item.entries())
        case "change":
            for one in item.entries():
                one.only("job", "priority", "preemptible")
                priority = one["priority"].integer(-(2**31), 2**31) if "priority" in one else None
                yield JobChanged(
                    one["job"].name(), priority, one["preemptible"].flag() if "preemptible" in one else None
                )
        case _:
            item.refuse(f"`{verb}` cannot stand here", hint="it takes end, lose, node, queue, submit, withdraw")


def _queue_events(entry: Item, queues: Mapping[str, Any]) -> Iterator[Event]:
    """A new queue, or a known one with other numbers: what is not said of it stays."""
    for queue, said in reading.said_of_queues(entry):
        view = queues.get(queue.name)
        if view is None:
            yield QueueAdded(queue)
            continue
        if queue.parent not in (None, view.queue.parent):
            entry.refuse(
                f"queue {queue.name} is below {view.queue.parent or 'nothing'}, not below {queue.parent}",
                hint="a queue stays where it is: remove it, and add it elsewhere",
            )
        yield QueueChanged(replace(view.queue, **{name: getattr(queue, name) for name in said}))


def read_events(item: Item, queues: Mapping[str, Any]) -> list[Event]:
    """One action of a `when`, as events: the command line's --what-if and `apply` speak the same words."""
    item.only(*(verb for verb in ACTIONS if verb not in ("wait", "at", "stopped")))
    return [event for verb, value in item.pairs() for event in _as_events(verb, value, queues)]


ACTIONS: dict[str, Callable[[_Course, Item], None]] = {
    "submit": _submit,
    "wait": _wait,
    "at": _at,
    "stopped": _stopped,
    **{
        verb: lambda course, item, verb=verb: _events(course, item, verb)  # type: ignore[misc]
        for verb in ("end", "withdraw", "node", "lose", "break", "mend", "queue", "remove", "change")
    },
}


# ---- running ------------------------------------------------------------------------------------------


def begin(scenario: Scenario, *, check: bool = True, watch: Callable[[Simulation], None] | None = None) -> Simulation:
    """The simulation as `given` has it; `watch` as Simulation takes it."""
    cluster = scenario.given
    simulation = Simulation(cluster.policy, check=check, watch=watch)
    simulation.hand(*(NodeAdded(node) for node in cluster.nodes), *(QueueAdded(queue) for queue in cluster.queues))
    if cluster.jobs is not None:
        seats = reading.Seats()
        for node in cluster.nodes:
            seats.add(node)
        for event, duration in reading.restored(cluster.jobs, seats, simulation.now):
            simulation.runs[event.job.id] = Run(event.job.queue, duration)
            simulation.hand(event)
    return simulation


def run(
    scenario: Scenario,
    *,
    check: bool = True,
    on_step: Callable[[int, Step, Simulation], None] | None = None,
    watch: Callable[[Simulation], None] | None = None,
) -> tuple[Simulation, list[Failure]]:
    """Play it, and say what did not follow as it should."""
    course = _Course(begin(scenario, check=check, watch=watch))
    for number, step in enumerate(scenario.steps, 1):
        course.step, course.since = number, len(course.simulation.actions)
        course.refused_before = len(course.simulation.refused)
        for item in step.when:
            for verb, value in item.pairs():
                with _said_at(value):
                    ACTIONS[verb](course, value)
        if step.then is not None:
            _check(course, step, step.then)
        if on_step is not None:
            on_step(number, step, course.simulation)
    return course.simulation, course.failures


@contextlib.contextmanager
def _said_at(item: Item) -> Iterator[None]:
    """What the allocator refuses is said here."""
    try:
        yield
    except FileError:
        raise
    except NoSuchJob as error:
        item.refuse(error.message, hint=UNKNOWN_JOB)
    except GpushareError as error:
        item.refuse(error.message, hint=error.hint)


def _check(course: _Course, step: Step, then: Item) -> None:
    for name, item in then.pairs():
        with _said_at(item):
            messages = list(CHECKS[name](course, item))
        for message in messages:
            where = f"{item.file}:{item.line}" if item.line else item.file
            course.failures.append(Failure(course.step, step.title, where, f"{name}: {message}"))


# ---- checks -------------------------------------------------------------------------------------------


def _amounts(item: Item, found: Mapping[str, int]) -> Iterator[str]:
    for name, value in item.pairs():
        if name not in found:
            value.refuse(f"no {name} here", hint=f"there are: {', '.join(list(found)[:8]) or 'none'}")
        if found[name] != value.gpus():
            yield f"{name} is {format_gpus(found[name])}, not {format_gpus(value.gpus())}"


def _held(course: _Course, item: Item) -> Iterator[str]:
    """GPUs that queues hold."""
    yield from _amounts(item, {name: view.allocated for name, view in _queues(course).items()})


def _shares(course: _Course, item: Item) -> Iterator[str]:
    """Fair shares of queues, to the millionth."""
    yield from _amounts(item, {name: share.share for name, share in course.simulation.allocator.shares().items()})


def _whole_shares(course: _Course, item: Item) -> Iterator[str]:
    """Fair shares of the queues of one level in whole GPUs."""
    shares = course.simulation.allocator.shares()
    names = [name for name in shares if name in item]
    whole = whole_gpus([shares[name].share for name in names])
    yield from _amounts(item, {name: n * MICRO for name, n in zip(names, whole, strict=True)})


def _size(course: _Course, item: Item) -> Iterator[str]:
    """The part of a GPU that an elastic job has."""
    found = {}
    for name, view in course.simulation.allocator.jobs.items():
        if view.places:
            found[name] = view.job.tasks[view.places[0].group].rungs[view.rung]
    yield from _amounts(item, found)


def _idle(course: _Course, item: Item) -> Iterator[str]:
    """GPUs that nobody holds."""
    free = capacity(course.simulation.allocator) - sum(_node_use(course).values())
    if free != item.gpus():
        yield f"{format_gpus(free)} idle, not {format_gpus(item.gpus())}"


def _node_use_check(course: _Course, item: Item) -> Iterator[str]:
    """GPUs held on each node, the fullest first."""
    found = sorted(_node_use(course).values(), reverse=True)
    wanted = [one.gpus() for one in item.entries()]
    if found != wanted:
        yield f"{_list(found)}, not {_list(wanted)}"


def _jobs_per_gpu(course: _Course, item: Item) -> Iterator[str]:
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


def _in_state(*states: str) -> Callable[[_Course, Item], Iterator[str]]:
    def check(course: _Course, item: Item) -> Iterator[str]:
        jobs = course.simulation.allocator.jobs
        yield from _names(item, [(name, view.job.queue) for name, view in jobs.items() if view.state in states])

    return check


def _happened(kind: str, *, in_all: bool = False) -> Callable[[_Course, Item], Iterator[str]]:
    def check(course: _Course, item: Item) -> Iterator[str]:
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


def _reason(course: _Course, item: Item) -> Iterator[str]:
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


def _refused(course: _Course, item: Item) -> Iterator[str]:
    """Jobs that were turned away in this step, and a word of the answer."""
    answers = {action.job: action.reason.message for action in course.happened if isinstance(action, Refuse)}
    for _, job, error in course.simulation.refused[course.refused_before :]:
        answers[job] = f"{error.message}; {error.hint}"
    for job, value in item.pairs():
        if job not in answers:
            yield f"{job} was not refused"
        elif value.text() not in answers[job]:
            yield f"{job}: {answers[job]!r} does not say {value.text()!r}"


def _retry_after(course: _Course, item: Item) -> Iterator[str]:
    """When refused jobs should come again."""
    found = {action.job: action.retry_after for action in course.happened if isinstance(action, Refuse)}
    for job, value in item.pairs():
        if found.get(job) != value.seconds():
            yield f"{job}: {found.get(job)} s, not {value.seconds():g} s"


def _ran(course: _Course, item: Item) -> Iterator[str]:
    """Jobs that started at some time."""
    jobs = {action.job for action in course.in_all if isinstance(action, Start)}
    for one in item.entries():
        if one.name() not in jobs:
            yield f"{one.name()} never started"


CHECKS: dict[str, Callable[[_Course, Item], Iterable[str]]] = {
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


def _queues(course: _Course) -> Mapping[str, Any]:
    return course.simulation.allocator.queues


def _node_use(course: _Course) -> dict[str, int]:
    found = dict.fromkeys(course.simulation.allocator.nodes, 0)
    for view in course.simulation.allocator.jobs.values():
        for place in view.places:
            found[place.node] += place.charge
    return found


def _list(amounts: Iterable[int]) -> str:
    return f"[{', '.join(format_gpus(amount) for amount in amounts)}]"
