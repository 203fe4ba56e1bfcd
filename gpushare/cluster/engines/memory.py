"""An engine in one process, where time passes when it is told to: jobs are entries that run for their duration.

It goes wrong on purpose, by a seed: commands are lost, late, doubled or overtake each other, starts are refused, half
done or fail later, evictions are refused, tasks vanish, nodes do not answer and are lost, programs of others come. And
it judges its caller: two runs of a job at once, or more on a GPU than it has, raise Overlap.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random
from typing import Literal

from gpushare.cluster.engines.obeyed import Obeyed
from gpushare.cluster.engines.seam import (
    Accepted,
    Answer,
    Busy,
    Deposed,
    Evict,
    Gone,
    Observed,
    Refused,
    SeenJob,
    SeenNode,
    SeenTask,
    Start,
    Token,
    Unanswered,
)
from gpushare.cluster.model import Job, Node

__all__ = ["CANNOT", "Faults", "Memory", "Overlap"]

CANNOT = {
    "programs": "a task is an entry of the process",
    "exit": "an entry only ends",
    "budget": "no program runs",
    "restart": "all ends with the process",
}
"""Of ABILITIES (abilities.py)."""

START_SECONDS = 2.0
"""From a start to running."""


class Overlap(AssertionError):
    """A job runs twice, or a GPU holds more than it has."""


@dataclass(frozen=True, slots=True)
class Faults:
    """How often each goes wrong, from 0 to 1: of commands, and for each second that passes."""

    lost: float = 0.0
    late: float = 0.0
    doubled: float = 0.0
    refused: float = 0.0
    half_done: float = 0.0
    failed: float = 0.0
    """Starts that are accepted and fail."""
    stop_refused: float = 0.0
    stubborn: float = 0.0
    """Evictions of tasks that ignore all but a kill."""
    blind: float = 0.0
    """Snapshots that cannot be had."""
    vanish: float = 0.0
    """A task is gone, by the second."""
    node_trouble: float = 0.0
    foreign: float = 0.0


@dataclass(slots=True)
class _Task:
    seen: SeenTask
    token: Token
    since: float
    kill_at: float | None = None
    stubborn: bool = False


@dataclass(slots=True)
class _Job:
    job: Job
    duration: float
    submitted: float
    attempt: int = 0
    evictions: int = 0
    evicted: int = 0
    """The last attempt that was stopped whole and is to wait again."""
    rung: int = 0
    held: bool = False
    ended: bool = False
    note: str = ""
    tasks: dict[tuple[int, int, int], _Task] = field(default_factory=dict)
    """By attempt, group and number."""
    runs: int = 0
    """How often it began to run."""


@dataclass(slots=True)
class _Node:
    node: Node
    state: Literal["ready", "unknown", "lost"] = "ready"
    cordoned: bool = False
    draining: bool = False
    foreign: dict[int, int] = field(default_factory=dict)


class Memory:
    """Submit jobs, let time pass, look. The methods of the protocol Engine are for the loop."""

    def __init__(self, seed: int = 0, faults: Faults | None = None) -> None:
        self.now = 0.0
        self.random = Random(seed)
        self.faults = faults or Faults()
        self.nodes: dict[str, _Node] = {}
        self.jobs: dict[str, _Job] = {}
        self.stubborn: set[str] = set()
        """Jobs whose tasks ignore all but a kill."""
        self.broken: set[str] = set()
        """Jobs that cannot start."""
        self.stays: dict[str, Literal["unknown", "lost"]] = {}
        """Nodes that stay so."""
        self.others: dict[str, dict[int, int]] = {}
        """Bytes that programs of others hold and keep, by node and GPU."""
        self.evicted = 0
        """Tasks that ended because they were evicted."""
        self.guarded = 0
        """Commands that would have broken something, of those that were not late."""
        self._late: list[tuple[float, Start | Evict, Token]] = []
        self._leader: tuple[str, float] | None = None
        self._obeyed = Obeyed()

    # ---- jobs and nodes ----------------------------------------------------------------------------

    def add(self, *nodes: Node) -> None:
        self.nodes |= {node.name: _Node(node) for node in nodes}

    def submit(self, job: Job, duration: float) -> None:
        self.jobs[job.id] = _Job(job, duration, self.now)
        self._obeyed.forget(job.id)

    def cancel(self, uid: str) -> None:
        """It is ended, and what runs of it is stopped."""
        job = self.jobs[uid]
        job.ended = True
        for task in job.tasks.values():
            self._stop(task, 0.0)

    # ---- time ----------------------------------------------------------------------------------------

    def tick(self, seconds: float = 1.0) -> None:
        """Let time pass: what was late arrives, tasks begin, end and go wrong."""
        self.now += seconds
        due = [one for one in self._late if one[0] <= self.now]
        self._late = [one for one in self._late if one[0] > self.now]
        self.random.shuffle(due)
        for _, command, token in due:
            with suppress(Deposed, Unanswered):  # nobody waits for the answer
                before = self.guarded
                self._obey(command, token)
                self.guarded = before
        for node in self.nodes.values():
            self._trouble(node)
        for job in self.jobs.values():
            self._advance(job)
        self.judge()

    def _advance(self, job: _Job) -> None:
        for key, task in list(job.tasks.items()):
            seen = task.seen
            if seen.phase == "stopping" and task.kill_at is not None and self.now >= task.kill_at:
                del job.tasks[key]
                self.evicted += 1
            elif seen.phase == "starting" and self.now >= task.since + START_SECONDS:
                broken = job.job.id in self.broken
                fails = broken or self._fate(self.faults.failed)
                why = "it cannot start" if broken else "by fate" if fails else ""
                task.seen = replace(seen, phase="failed" if fails else "running", why=why)
                task.since = self.now
                job.runs += not fails
            elif seen.phase == "running" and self._fate(self.faults.vanish):
                del job.tasks[key]
        current = [task for key, task in job.tasks.items() if key[0] == job.attempt]
        least = sum(group.least for group in job.job.tasks)
        running = [task for task in current if task.seen.phase == "running"]
        if len(running) >= least and all(self.now >= task.since + job.duration for task in running):
            for task in running:
                task.seen = replace(task.seen, phase="done")
            job.ended = True
            for task in job.tasks.values():
                self._stop(task, 0.0)

    def _stop(self, task: _Task, grace: float) -> None:
        if task.seen.holds:
            task.seen = replace(task.seen, phase="stopping")
            end = self.now + grace
            task.kill_at = end if task.kill_at is None else min(task.kill_at, end)

    def _trouble(self, node: _Node) -> None:
        faults = self.faults
        stays = self.stays.get(node.node.name)
        if stays is not None:
            node.state = stays
            if stays == "lost":
                self._clear(node)
        elif self._fate(faults.node_trouble):
            if node.state == "ready":
                node.state = "unknown"
            elif self._fate(0.3):
                node.state = "lost"
                self._clear(node)
            else:
                node.state = "ready"
        elif node.state != "ready" and not faults.node_trouble:
            node.state = "ready"
        if node.node.name in self.others:
            node.foreign = {gpu: used for gpu, used in self.others[node.node.name].items() if used}
        elif self._fate(faults.foreign):
            gpu = self.random.randrange(node.node.gpus)
            free = node.node.memory - used_on(node.node.name, self.jobs.values()).get(gpu, 0)
            node.foreign[gpu] = self.random.choice([0, 0, free, free // 2])
        elif node.foreign and not faults.foreign:
            node.foreign.clear()

    def _clear(self, node: _Node) -> None:
        """Nothing runs there any more."""
        for job in self.jobs.values():
            for key in [key for key, task in job.tasks.items() if task.seen.node == node.node.name]:
                del job.tasks[key]

    def _fate(self, often: float) -> bool:
        return often > 0 and self.random.random() < often

    # ---- the protocol --------------------------------------------------------------------------------

    def lead(self, holder: str, seconds: float) -> int | None:
        if self._leader is not None and self._leader[0] != holder and self.now < self._leader[1]:
            return None
        if self._leader is None or self._leader[0] != holder or self.now >= self._leader[1]:
            self._obeyed.term += 1
        self._leader = holder, self.now + seconds
        return self._obeyed.term

    def snapshot(self) -> Observed:
        if self._fate(self.faults.blind):
            raise Unanswered("the snapshot was lost")
        nodes = tuple(
            SeenNode(one.node, one.state, one.cordoned, one.draining, tuple(sorted(one.foreign.items())))
            for one in self.nodes.values()
        )
        return Observed(nodes, tuple(self._seen(job) for job in self.jobs.values()))

    def glance(self, uids: Collection[str]) -> Observed:  # noqa: ARG002  what has changed is not noted
        return self.snapshot()

    def _seen(self, job: _Job) -> SeenJob:
        return SeenJob(
            job=job.job,
            submitted=job.submitted,
            attempt=job.attempt,
            evictions=job.evictions,
            rung=job.rung,
            held=job.held,
            tasks=tuple(task.seen for _, task in sorted(job.tasks.items())),
            ended=job.ended,
            note=job.note,
        )

    def watch(self, seconds: float) -> None:
        self.tick(max(1.0, seconds))

    def start(self, command: Start, token: Token) -> Answer:
        return self._hear(command, token)

    def evict(self, command: Evict, token: Token) -> Answer:
        return self._hear(command, token)

    def annotate(self, uid: str, text: str, token: Token) -> None:
        self._obeyed.check_term(token)
        if uid in self.jobs:
            self.jobs[uid].note = text

    # ---- commands ------------------------------------------------------------------------------------

    def _hear(self, command: Start | Evict, token: Token) -> Answer:
        """What goes wrong on the way."""
        faults = self.faults
        if self._fate(faults.lost):
            if self._fate(0.5):
                raise Unanswered("the command was lost")
            self._obey(command, token)
            raise Unanswered("the answer was lost")
        if self._fate(faults.late):
            self._send_late(command, token)
            raise Unanswered("the command is late")
        if self._fate(faults.doubled):
            self._send_late(command, token)
        return self._obey(command, token)

    def _send_late(self, command: Start | Evict, token: Token) -> None:
        self._late.append((self.now + self.random.uniform(0.0, 40.0), command, token))

    def _obey(self, command: Start | Evict, token: Token) -> Answer:
        self._obeyed.check_term(token)
        job = self.jobs.get(command.uid)
        if job is None:
            return Gone()
        if isinstance(command, Start):
            return self._start(job, command, token)
        return self._evict(job, command, token)

    def _start(self, job: _Job, command: Start, token: Token) -> Answer:
        if job.ended:
            return Gone()
        for place in command.places:
            there = self.nodes.get(place.node)
            if there is None or not all(0 <= gpu < there.node.gpus for gpu in place.gpus):
                return Refused(f"there is no GPU {place.gpus} on {place.node}", place.node)
        nodes = [self.nodes[place.node] for place in command.places]
        if any(node.state == "unknown" for node in nodes):
            raise Unanswered("a node does not answer")
        for node in nodes:
            if node.state == "lost":
                return Refused("it is lost", node.node.name)
        if command.attempt < job.attempt:
            return Refused("a later attempt is known")
        if self._fate(self.faults.refused):
            return Refused("by fate", self.random.choice([None, command.places[0].node]))
        if any(task.seen.holds and task.seen.attempt != command.attempt for task in job.tasks.values()):
            self.guarded += 1
            return Busy()
        half = self._fate(self.faults.half_done)
        for index, place in enumerate(command.places):
            if half and index == len(command.places) // 2:
                return Refused("half of it was started", self.random.choice([None, place.node]))
            key = (command.attempt, place.group, place.task)
            old = job.tasks.get(key)
            if not self._obeyed.is_news(job.job.id, *key[1:], token):
                continue
            if old is not None and (old.seen.node, old.seen.gpus) != (place.node, place.gpus):
                return Refused("it runs elsewhere")
            node, used = self.nodes[place.node], used_on(place.node, self.jobs.values())
            more = place.amount - (old.seen.amount if old is not None else 0)
            for gpu in place.gpus:
                others = node.foreign.get(gpu, 0)
                if more > 0 and used.get(gpu, 0) + others + more > node.node.memory:
                    self.guarded += not others
                    return Refused("it does not fit", place.node)
            self._obeyed.note(job.job.id, *key[1:], token)
            if old is not None:
                old.seen = replace(old.seen, amount=place.amount)
                continue
            job.attempt, job.rung = command.attempt, command.rung
            seen = SeenTask(*key, place.node, place.gpus, place.amount, "starting")
            stubborn = command.uid in self.stubborn or self._fate(self.faults.stubborn)
            job.tasks[key] = _Task(seen, token, self.now, stubborn=stubborn)
            self.judge()
        return Accepted()

    def _evict(self, job: _Job, command: Evict, token: Token) -> Answer:
        tasks = [(command.attempt, group, task) for group, task in command.tasks]
        if any(key in job.tasks and self.nodes[job.tasks[key].seen.node].state == "unknown" for key in tasks):
            raise Unanswered("a node does not answer")
        if self._fate(self.faults.stop_refused):
            return Refused("by fate", retry_after=20.0)
        found = False
        for key in tasks:
            if not self._obeyed.is_news(job.job.id, *key[1:], token):
                continue
            self._obeyed.note(job.job.id, *key[1:], token)
            task = job.tasks.get(key)
            if task is None:
                continue
            found = True
            if not task.seen.holds:
                del job.tasks[key]
            elif not task.stubborn or not command.grace:
                self._stop(task, self.random.uniform(0.0, command.grace))
        left = any(task.seen.phase in ("starting", "running") for task in job.tasks.values())
        if found and command.again and not left and job.evicted < command.attempt:
            job.evicted = command.attempt
            job.evictions += 1
        return Accepted() if found else Gone()

    # ---- judging -------------------------------------------------------------------------------------

    def judge(self) -> None:
        judge(self.jobs.values(), self.nodes.values())


def judge(jobs: Collection[_Job], nodes: Collection[_Node]) -> None:
    """Raise Overlap if a job runs twice at once, or a GPU holds more than it has."""
    for job in jobs:
        attempts = {task.seen.attempt for task in job.tasks.values() if task.seen.holds}
        if len(attempts) > 1:
            raise Overlap(f"attempts {sorted(attempts)} of {job.job.id} run at once")
    for node in nodes:
        for gpu, used in used_on(node.node.name, jobs).items():
            if used > node.node.memory:
                raise Overlap(f"GPU {gpu} of {node.node.name} holds {used} bytes")


def used_on(node: str, jobs: Collection[_Job]) -> dict[int, int]:
    """Bytes of each GPU that jobs hold."""
    used: dict[int, int] = {}
    for job in jobs:
        for task in job.tasks.values():
            if task.seen.holds and task.seen.node == node:
                for gpu in task.seen.gpus:
                    used[gpu] = used.get(gpu, 0) + task.seen.amount
    return used
