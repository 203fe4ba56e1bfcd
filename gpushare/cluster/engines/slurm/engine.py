"""An Engine (seam.py) over Slurm's own commands. Jobs wait in Slurm, held; a start names node and GPU, and releases.

What was decided about a job is in its Comment (mark.py), and what it runs with in Slurm's counters of each GPU, so that
Slurm refuses what would not fit. Nothing is kept here that is not there, but for the term of the leader.

Slurm's grace between SIGTERM and SIGKILL is KillWait of slurm.conf, whatever the job says.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from gpushare.cluster.engines.runner import Context
from gpushare.cluster.engines.seam import (
    Accepted,
    Answer,
    Busy,
    Deposed,
    Evict,
    Gone,
    Observed,
    QueueTold,
    Refused,
    SeenJob,
    SeenNode,
    Start,
    Token,
    Unanswered,
)
from gpushare.cluster.engines.slurm import mark as marks
from gpushare.cluster.engines.slurm import request
from gpushare.cluster.engines.slurm.accounts import Accounts
from gpushare.cluster.engines.slurm.commands import Commands, NoJob, Refusal
from gpushare.cluster.engines.slurm.lease import Lease, found
from gpushare.cluster.engines.slurm.listing import COUNTER, Listed, ListedNode, jobs, nodes
from gpushare.cluster.engines.slurm.mark import Mark, Spot
from gpushare.cluster.engines.slurm.request import Asked
from gpushare.cluster.engines.slurm.seen import (
    LEAVE,
    MIB,
    RUNS,
    is_over,
    node_of,
    phase_of,
    selector_of,
    tasks_of,
    used_by_others,
    waits,
)
from gpushare.cluster.model import Job, Queue
from gpushare.cluster.quantity import MICRO
from gpushare.errors import UsageError
from gpushare.quantity import parse_duration

__all__ = ["CANNOT", "Slurm", "make"]

CANNOT = {
    "resize": "Slurm cannot change the counters of a job that runs",
    "parts": "a job of Slurm starts and stops as a whole",
}

log = logging.getLogger(__name__)

DEFAULTS = {"conf": "", "timeout": 15.0, "poll": 1.0, "start_within": 60.0, "accounts": 0.0}
"""Settings in the table [slurm]: slurm.conf's path; seconds for a command, between two looks, until a job that was
released and has not started counts as failed, and between two readings of the accounts' shares (0: never)."""
ROOM = ("None", "Resources", "Priority", "ReqNodeNotAvail", "BeginTime", "Nodes_required_for_job_are_DOWN")
"""Reasons of Slurm that are about nodes. All others are about the job: a licence, a limit of its account."""
MOST_TOGETHER = 32
"""Jobs that are released by one command."""
MOST_NOTES = 20
"""Of annotate() in one round: each takes a command."""
USUAL_PRIORITY = 50
"""Of a cluster job; that of a node's job is 0."""
AGAIN_AFTER = 2
"""Seconds from a requeue to the next start, in place of Slurm's two minutes. Not less: slurmd ends a job whose
credential is of the second in which it revoked that of the attempt before (Job credential revoked), and it is over."""
AGAIN = f"now+{AGAIN_AFTER}"


@dataclass(slots=True)
class Known:
    """A job of ours, as the last look showed it and as commands have changed it since."""

    listed: Listed
    asked: Asked
    mark: Mark
    job: Job


def make(context: Context) -> Slurm:
    return Slurm(context)


class Slurm:
    """Raises UsageError for settings that make no sense."""

    hints: Mapping[str, str] = {
        "submit": "sbatch --gpushare=request=25%,limit=80% job.sh",
        "cancel": "scancel {job}",
        "hold": "scontrol hold {job}",
        "release": "scontrol release {job}",
        "cordon": "scontrol update NodeName={node} State=DRAIN Reason=closed",
        "drain": f"scontrol update NodeName={{node}} State=DRAIN Reason={LEAVE}",
        "uncordon": "scontrol update NodeName={node} State=RESUME",
    }

    def __init__(self, context: Context) -> None:
        unknown = sorted(set(context.settings) - set(DEFAULTS))
        if unknown:
            raise UsageError(f"[slurm]: there is no {unknown[0]!r}", hint=f"known are {', '.join(DEFAULTS)}")
        said = {name: _setting(name, value) for name, value in context.settings.items()}
        settings: Mapping[str, Any] = {**DEFAULTS, **said}
        self._poll, self._start_within = settings["poll"], settings["start_within"]
        self._commands = Commands(settings["conf"] or None, settings["timeout"])
        self._accounts = Accounts(self._commands, settings["accounts"], time.monotonic)
        self._clock = context.clock
        self._term = 0
        """Of this process, since it leads."""
        self._lease, self._where = Lease(), ""
        """As the last look showed it, and the node that it is at."""
        self._highest = 0
        """Of the terms in the marks."""
        self._jobs: dict[str, Known] = {}
        self._nodes: dict[str, SeenNode] = {}
        self._used: Counter[tuple[str, int]] = Counter()
        """Bytes of each GPU that jobs of ours hold."""
        self._wrong: dict[str, str] = {}
        """Why a job's words make no sense."""
        self._read: dict[str, tuple[object, Job]] = {}
        """What was made of a job's words, and of what."""
        self._released: dict[str, float] = {}
        """When a job that is to start was first seen to wait in Slurm."""
        self._notes = 0
        self._shown = ""
        """By squeue, when watch() looked last."""
        self._woken = threading.Event()

    def close(self) -> None:
        """Another service may lead at once."""
        self.wake()
        if self._term and self._lease.term == self._term:
            over = Lease(self._term, 0.0, self._lease.holder)
            with contextlib.suppress(Unanswered, Refusal):
                self._commands.run("scontrol", "update", f"NodeName={self._where}", f"Extra={over.text()}")

    # ---- the leader ----------------------------------------------------------------------------------

    def lead(self, holder: str, seconds: float) -> int | None:
        """One that holds the lease goes on with its term; a new process of it begins another one."""
        if not self._where:
            self._look()
        now = self._clock()
        lease, mine = self._lease, self._lease.holder == holder and self._lease.term == self._term
        if lease.holds(now) and lease.holder != holder:
            return None
        if not (mine and lease.holds(now) and now < lease.until - seconds / 2):
            term = lease.term if mine else 1 + max(lease.term, self._highest)
            self._claim(Lease(term, round(now + seconds, 3), holder))
        return self._term

    def _claim(self, lease: Lease) -> None:
        if not self._where:
            raise Unanswered(f"no node has counters {COUNTER}:g0 and so on, and a field Extra that is free")
        try:
            self._commands.run("scontrol", "update", f"NodeName={self._where}", f"Extra={lease.text()}")
        except Refusal as error:
            raise Unanswered(f"cannot note who leads: {error}") from None
        self._look()
        if self._lease != lease:
            raise Deposed(f"{self._lease.holder} has become the leader")
        self._term = lease.term

    def _check_term(self, token: Token) -> None:
        newest = max(self._lease.term, self._highest)
        if newest > token[0]:
            raise Deposed(f"term {token[0]} is over: another service began term {newest}")

    # ---- looking -------------------------------------------------------------------------------------

    def snapshot(self) -> Observed:
        self._look()
        self._notes = 0
        seen = tuple(self._seen(known) for known in self._jobs.values())
        return Observed(tuple(self._nodes.values()), seen, dict(self._wrong))

    def glance(self, uids: Collection[str]) -> Observed:  # noqa: ARG002  one list shows all
        return self.snapshot()

    def watch(self, seconds: float) -> None:
        """Until squeue shows something else than at the end of the last call."""
        end = time.monotonic() + seconds
        while not self._woken.wait(max(0.0, min(self._poll, end - time.monotonic()))):
            try:
                now = self._commands.fingerprint()
            except Unanswered:
                now = self._shown
            changed, self._shown = now != self._shown, now
            if changed or time.monotonic() >= end:
                break
        self._woken.clear()

    def wake(self) -> None:
        self._woken.set()

    def _look(self) -> None:
        listed = list(jobs(self._commands.jobs()))
        there = list(nodes(self._commands.nodes()))
        known: dict[str, Known] = {}
        self._wrong.clear()
        for one in listed:
            asked = request.read(one.admin_comment)
            if asked is None:
                continue
            mark = marks.read(one.comment)
            self._highest = max(self._highest, mark.token[0])
            job = self._job_of(one, asked, mark, there)
            if job is not None:
                known[one.id] = Known(one, asked, mark, job)
        for table in (self._read, self._released):
            for id in [id for id in table if id not in known]:
                del table[id]
        self._lease, self._where = found([node for node in there if node.counters])
        others = used_by_others(listed, known.keys(), there)
        shown = (node_of(node, others) for node in there)
        self._nodes = {one.node.name: one for one in shown if one is not None}
        self._jobs = known
        self._used = Counter()
        for held in known.values():
            if phase_of(held.listed, held.mark) in ("starting", "running", "stopping"):
                self._count(held.mark)
        if self._term and max(self._highest, self._lease.term) == self._term:
            for one_known in list(known.values()):
                self._tend(one_known)

    def _job_of(self, listed: Listed, asked: Asked, mark: Mark, there: list[ListedNode]) -> Job | None:
        """None: its words make no sense, which it is told."""
        key = (listed.admin_comment, listed.partition, listed.excluded, listed.name, len(there), listed.account)
        found = self._read.get(listed.id)
        if found is not None and found[0] == key:
            return found[1]
        try:
            job = request.job_of(listed.id, asked, listed.name, selector_of(listed, asked, there))
            self._accounts.check(job.queue, listed.account, listed.user)
        except UsageError as error:
            words = f"{error.message} ({error.hint})" if error.hint else error.message
            if not is_over(listed):
                self._wrong[listed.id] = words
                if mark.why != words:
                    with contextlib.suppress(NoJob, Refusal):
                        self._note(listed, replace(mark, why=words))
            return None
        self._read[listed.id] = key, job
        return job

    def _seen(self, known: Known) -> SeenJob:
        listed, mark = known.listed, known.mark
        by_hand = listed.state in RUNS and phase_of(listed, mark) is None  # an operator has started it
        return SeenJob(
            job=known.job,
            submitted=listed.submitted,
            attempt=mark.attempt,
            evictions=mark.evictions,
            rung=mark.rung,
            held=mark.held or waits(listed, self._clock()),
            tasks=tuple(tasks_of(listed, mark)) if not is_over(listed) else (),
            ended=is_over(listed) or by_hand,
            note=mark.why or mark.stopped,
            user=listed.user,
            account=listed.account,
            started=listed.started if listed.state in RUNS else None,
        )

    # ---- queues --------------------------------------------------------------------------------------

    def queues(self) -> Mapping[str, Queue | str] | None:
        if self._accounts.followed and not self._nodes:
            self._look()
        return self._accounts.queues(max((one.node.memory // MIB for one in self._nodes.values()), default=0))

    def tell_queues(self, told: Mapping[str, QueueTold]) -> None:
        self._accounts.tell(told)

    # ---- what Slurm does by itself -------------------------------------------------------------------

    def _tend(self, known: Known) -> None:
        """Keep a job held that nobody decided to start, and have one start that was decided."""
        listed, mark = known.listed, known.mark
        if listed.state != "PENDING" or "COMPLETING" in listed.flags:
            self._released.pop(listed.id, None)
            return
        phase = phase_of(listed, mark)
        try:
            if phase is None and not listed.held:
                self._commands.run("scontrol", "hold", listed.id)  # Slurm has requeued it, or somebody has released it
                known.listed = replace(listed, priority=0)
            elif phase == "starting":
                self._hasten(known)
        except (NoJob, Refusal) as error:
            log.warning("job %s: %s", listed.id, error)

    def _hasten(self, known: Known) -> None:
        """After a requeue Slurm lets a job wait for two minutes. And it may not be able to start it at all."""
        listed, now = known.listed, time.monotonic()
        if listed.reason == "BeginTime" and listed.restarts and listed.started > self._clock() + AGAIN_AFTER:
            self._commands.update(listed.id, [("StartTime", AGAIN)])
        since = self._released.setdefault(listed.id, now)
        closed = next((spot.node for spot in known.mark.place if self._is_closed(spot.node)), "")
        if not closed and now - since <= self._start_within:
            return
        self._commands.run("scontrol", "hold", listed.id)
        why = f"{closed} is closed" if closed else f"Slurm did not start it within {self._start_within:g} s"
        blame = closed or (known.mark.place[0].node if listed.reason in ROOM else "")
        mark = replace(known.mark, failed=f"{why}: {listed.reason}", blame=blame)
        self._note(listed, mark)
        known.listed, known.mark = replace(listed, priority=0), mark

    def _is_closed(self, name: str) -> bool:
        """Slurm starts nothing there now."""
        node = self._nodes.get(name)
        return node is None or node.cordoned or node.state == "lost"

    # ---- start ---------------------------------------------------------------------------------------

    def start(self, command: Start, token: Token) -> Answer:
        ((_, answer),) = self._start_together([(command, token)])
        if answer is None:
            raise Unanswered(f"nobody knows whether job {command.uid} starts")
        return answer

    def start_all(self, commands: Iterable[tuple[Start, Token]]) -> Iterator[tuple[Start, Answer | None]]:
        left = iter(commands)
        while some := list(islice(left, MOST_TOGETHER)):
            yield from self._start_together(some)

    def _start_together(self, commands: Sequence[tuple[Start, Token]]) -> list[tuple[Start, Answer | None]]:
        """Each is placed by a command of its own, while it is held; all are released by one."""
        answers: list[tuple[Start, Answer | None]] = []
        due: list[tuple[Start, Known]] = []
        for command, token in commands:
            answer: Answer | None = None
            try:
                found = self._due(command, token)
                if isinstance(found, Mark):
                    known = self._jobs[command.uid]
                    answer = self._place(known, found)
                    if answer is None:
                        due.append((command, known))
                        continue
                else:
                    answer = found
            except Unanswered as error:
                log.warning("no answer to the start of %s: %s", command.uid, error)
            answers.append((command, answer))
        return [*answers, *self._release_all(due)]

    def _release_all(self, due: Sequence[tuple[Start, Known]]) -> Iterator[tuple[Start, Answer | None]]:
        if not due:
            return
        try:
            self._commands.run("scontrol", "release", *(known.listed.id for _, known in due))
            failed = False
        except (Unanswered, NoJob, Refusal):
            failed = True  # perhaps of one of them alone
        for command, known in due:
            answer: Answer | None = Accepted()
            if failed:
                answer = self._release(known)
            if isinstance(answer, Accepted):
                known.listed = replace(known.listed, priority=1, reason="")
                self._released.pop(known.listed.id, None)
            yield command, answer

    def _release(self, known: Known) -> Answer | None:
        """None: nobody knows. It may have begun already."""
        try:
            self._commands.run("scontrol", "release", known.listed.id)
        except Unanswered:
            return None
        except NoJob:
            return Gone()
        except Refusal as error:
            return Refused(f"Slurm: {error}")
        return Accepted()

    def _due(self, command: Start, token: Token) -> Answer | Mark:
        """What is to be noted in the job, if it is to start."""
        self._check_term(token)
        known = self._jobs.get(command.uid)
        if known is None or is_over(known.listed):
            return Gone()
        mark = known.mark
        if token <= mark.token:
            return Accepted()
        if command.attempt < mark.attempt:
            return Refused("a later attempt is known")
        places = sorted(command.places, key=lambda place: place.task)
        where = [(place.node, place.gpus) for place in places]
        phase = phase_of(known.listed, mark)
        if phase in ("starting", "running", "stopping"):
            if command.attempt != mark.attempt or phase == "stopping":
                return Busy()
            if [(spot.node, spot.gpus) for spot in mark.place] != where:
                return Refused("it runs elsewhere")
            if [spot.request for spot in mark.place] != [place.amount for place in places]:
                return Refused("Slurm cannot change the memory of a job that runs")
            return Accepted()
        if known.listed.state != "PENDING" or "COMPLETING" in known.listed.flags:
            return Busy()
        group = known.job.tasks[0]
        if len(places) != group.least:
            return Refused(f"Slurm starts all {group.least} tasks of a job at once")
        refusal = self._unfit(command)
        if refusal is not None:
            return refusal
        spots = tuple(
            Spot(place.node, place.gpus, place.amount, self._limit(known.job, place.node, place.amount))
            for place in places
        )
        return replace(
            mark,
            attempt=command.attempt,
            place=spots,
            priority=known.job.priority - USUAL_PRIORITY,
            rung=command.rung,
            restarts=known.listed.restarts,
            stop=False,
            stopped="",
            failed="",
            blame="",
            token=token,
            why="",
        )

    def _place(self, known: Known, mark: Mark) -> Answer | None:
        """Of a job that is held, and stays so: it has a place then, so a later start() goes on from there. None: it
        can be released."""
        id = known.listed.id
        hosts = list(dict.fromkeys(spot.node for spot in mark.place))
        counters = gres_of(mark.place)
        changes = [
            ("ReqNodeList", ",".join(hosts)),
            ("NumNodes", str(len(hosts))),
            ("Gres", counters) if counters else ("TresPerNode", ""),  # an empty Gres is refused for a job that has none
            ("Comment", mark.text()),
        ]
        if known.listed.restarts:
            changes.append(("StartTime", AGAIN))
        try:
            if gres_of(known.mark.place) not in ("", counters):
                self._commands.update(id, [("TresPerNode", "")])  # else Slurm keeps the counters of both for it
            self._commands.update(id, changes)
        except NoJob:
            return Gone()
        except Refusal as error:
            return Refused(f"Slurm: {error}")
        known.mark = mark
        self._count(mark)
        return None

    def _count(self, mark: Mark) -> None:
        for spot in mark.place:
            self._used.update({(spot.node, gpu): spot.request for gpu in spot.gpus})

    def _unfit(self, command: Start) -> Refused | None:
        for place in command.places:
            node = self._nodes.get(place.node)
            if node is None or node.state == "lost" or any(gpu >= node.node.gpus for gpu in place.gpus):
                return Refused(f"there is no GPU {place.gpus} on {place.node}", place.node)
            others = dict(node.foreign)
            if any(
                self._used[place.node, gpu] + others.get(gpu, 0) + place.amount > node.node.memory for gpu in place.gpus
            ):
                return Refused("it does not fit beside what runs there", place.node)
        return None

    def _limit(self, job: Job, node: str, amount: int) -> int:
        """Bytes that it may use of each GPU at most."""
        group, memory = job.tasks[0], self._nodes[node].node.memory
        if group.limit is None:
            return amount
        limit = group.limit if group.memory is not None else memory * group.limit // MICRO
        return max(amount, min(limit, memory))

    # ---- stop ----------------------------------------------------------------------------------------

    def evict(self, command: Evict, token: Token) -> Answer:
        self._check_term(token)
        known = self._jobs.get(command.uid)
        if known is None or is_over(known.listed) or known.mark.attempt != command.attempt:
            return Gone()
        mark = known.mark
        phase = phase_of(known.listed, mark)
        if phase is None:
            return Gone()
        if token <= mark.token:
            return Accepted()
        held = phase in ("starting", "running") and not mark.stop
        stopped = replace(mark, stop=True, failed="", blame="", token=token, evictions=mark.evictions + held)
        try:
            self._note(known.listed, stopped)
            known.mark = stopped
            self._stop(known, phase, command)
        except NoJob:
            return Gone()
        except Refusal as error:
            return Refused(f"Slurm: {error}")
        return Accepted()

    def _stop(self, known: Known, phase: str, command: Evict) -> None:
        id = known.listed.id
        if phase == "failed":
            return  # it is held, and its mark says that this start is over
        if phase == "starting" and known.listed.state == "PENDING":
            self._commands.run("scontrol", "hold", id)
            if self._commands.state(id) == "PENDING":
                known.listed = replace(known.listed, priority=0)
                return  # else it has begun since the last look
        completing = known.listed.state == "COMPLETING" or "COMPLETING" in known.listed.flags
        if not completing:
            again = command.again and known.listed.batch and known.listed.requeue
            self._commands.run(*(("scontrol", "requeuehold", id) if again else ("scancel", id)))
            known.listed = replace(known.listed, state="COMPLETING")

    # ---- words ---------------------------------------------------------------------------------------

    def annotate(self, uid: str, text: str, token: Token) -> None:
        """Nothing for jobs of an array that wait together: Slurm would make a job of its own of each."""
        self._check_term(token)
        known = self._jobs.get(uid)
        if known is None or is_over(known.listed) or known.listed.together or self._notes >= MOST_NOTES:
            return
        mark = replace(known.mark, why=text[: marks.LONGEST_WHY])
        if mark == known.mark:
            return  # a start has taken the words away
        self._notes += 1
        try:
            self._note(known.listed, mark)
        except (NoJob, Refusal) as error:
            log.warning("job %s: %s", uid, error)
        else:
            known.mark = mark

    def _note(self, listed: Listed, mark: Mark) -> None:
        self._commands.update(listed.id, [("Comment", mark.text())])


def gres_of(place: tuple[Spot, ...]) -> str:
    """The counters that Slurm is to keep for it on each of its nodes. A job has the same on all of them, so one with
    other GPUs on another node has none: it is counted here alone, and by the node.

    Each is one less than the request in MiB, so that none is ever used up: Slurm 22.05 starts no job on a node where a
    counter is used up that the job had in an earlier start, whatever it asks for now."""
    hosts: dict[str, dict[int, int]] = {}
    for spot in place:
        hosts.setdefault(spot.node, {}).update({gpu: max(1, spot.request // MIB - 1) for gpu in spot.gpus})
    first, *others = hosts.values() or ({},)
    if any(other != first for other in others):
        return ""
    return ",".join(f"{COUNTER}:g{gpu}:{count}" for gpu, count in sorted(first.items()))


def _setting(name: str, value: object) -> Any:
    if name == "conf":
        if not isinstance(value, str) or not Path(value).is_absolute():
            raise UsageError("[slurm]: conf must be the absolute path of slurm.conf")
        return value
    if isinstance(value, str):
        return parse_duration(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e6:
        raise UsageError(f'[slurm]: {name} must be a duration, such as "10s"')
    return float(value)
