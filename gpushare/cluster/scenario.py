"""Scenarios: a cluster, what happens to it, and what must follow. Files like those in examples/cluster.

    scenario: one line
    given:
      policy: {grow_hold: 30s}          what model.Policy takes
      nodes, queues:                    as spec_parser.py has them
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
        then:                           scenario_checks.py; what is not said is not checked

A file with only `given` and `when` is a cluster and a course of events, to be looked at.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpushare.cluster import spec_parser
from gpushare.cluster.model import (
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
)
from gpushare.cluster.scenario_checks import CHECKS, Course
from gpushare.cluster.simulation import Run, Simulation
from gpushare.cluster.yaml_source import FileError, Item, load
from gpushare.errors import GpushareError, NoSuchJob

__all__ = ["ACTIONS", "Failure", "Given", "Scenario", "Step", "given", "read", "read_events", "run"]

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
    nodes = tuple(spec_parser.nodes(item["nodes"])) if "nodes" in item else ()
    queues = tuple(spec_parser.queues(item["queues"])) if "queues" in item else ()
    for names, key in ((nodes, "nodes"), (queues, "queues")):
        twice = [name for name, count in Counter(one.name for one in names).items() if count > 1]
        if twice:
            item[key].refuse(f"{twice[0]} stands twice", hint="give them different names")
    return Given(spec_parser.policy(item.get("policy")), nodes, queues, item.get("jobs"))


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
        list(spec_parser.jobs(item["submit"]))
    elif "wait" in item and item["wait"].value != DONE:
        item["wait"].seconds()
    elif "at" in item:
        item["at"].seconds()


# ---- actions ------------------------------------------------------------------------------------------


def _submit(course: Course, item: Item) -> None:
    course.simulation.submit(list(spec_parser.jobs(item)))


def _wait(course: Course, item: Item) -> None:
    simulation = course.simulation
    if item.value == DONE:
        simulation.finish()
    else:
        simulation.advance(simulation.now + item.seconds())


def _at(course: Course, item: Item) -> None:
    moment = item.seconds()
    if moment < course.simulation.now:
        item.refuse(f"it is {course.simulation.now:g} s already", hint="put the actions into their order")
    course.simulation.advance(moment)


def _stopped(course: Course, item: Item) -> None:
    for one in item.entries():
        if one.name() not in course.simulation.runs:
            one.refuse(f"no job {one.name()!r}", hint=UNKNOWN_JOB)
    course.simulation.hand(*(course.simulation.stopped(one.name()) for one in item.entries()))


def _events(course: Course, item: Item, verb: str) -> None:
    known = course.simulation.allocator.queues
    course.simulation.hand(*_as_events(verb, item, known))


def _as_events(verb: str, item: Item, queues: Mapping[str, Any]) -> Iterator[Event]:
    """Actions that are events by themselves: those of ACTIONS without `wait`, `at` and `stopped`."""
    match verb:
        case "end":
            yield from (JobEnded(one.name()) for one in item.entries())
        case "withdraw":
            yield from (JobWithdrawn(one.name()) for one in item.entries())
        case "submit":
            yield from (JobSubmitted(one.job) for one in spec_parser.jobs(item))
        case "node":
            yield from (NodeAdded(node) for node in spec_parser.nodes(item))
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


def _queue_events(entry: Item, queues: Mapping[str, Any]) -> Iterator[Event]:
    """A new queue, or a known one with other numbers; numbers that are not given stay."""
    for queue, said in spec_parser.said_of_queues(entry):
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


ACTIONS: dict[str, Callable[[Course, Item], None]] = {
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
        seats = spec_parser.Seats()
        for node in cluster.nodes:
            seats.add(node)
        for event, duration in spec_parser.restored(cluster.jobs, seats, simulation.now):
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
    """Play it; the expectations that did not come true."""
    course = Course(begin(scenario, check=check, watch=watch))
    failures: list[Failure] = []
    for number, step in enumerate(scenario.steps, 1):
        course.since, course.refused_before = len(course.simulation.actions), len(course.simulation.refused)
        for item in step.when:
            for verb, value in item.pairs():
                with _said_at(value):
                    ACTIONS[verb](course, value)
        if step.then is not None:
            failures += [Failure(number, step.title, where, message) for where, message in _check(course, step.then)]
        if on_step is not None:
            on_step(number, step, course.simulation)
    return course.simulation, failures


@contextlib.contextmanager
def _said_at(item: Item) -> Iterator[None]:
    """Name this place of the file in what the allocator refuses."""
    try:
        yield
    except FileError:
        raise
    except NoSuchJob as error:
        item.refuse(error.message, hint=UNKNOWN_JOB)
    except GpushareError as error:
        item.refuse(error.message, hint=error.hint)


def _check(course: Course, then: Item) -> Iterator[tuple[str, str]]:
    """Each check that fails: the place in the file, and a message."""
    for name, item in then.pairs():
        with _said_at(item):
            messages = list(CHECKS[name](course, item))
        for message in messages:
            yield f"{item.file}:{item.line}" if item.line else item.file, f"{name}: {message}"
