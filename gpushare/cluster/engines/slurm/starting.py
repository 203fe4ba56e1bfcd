"""How a job starts: while it is held, its place goes into its Comment and its counters into its record. Then it is
released, and Slurm has it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from gpushare.cluster.engines.seam import Accepted, Answer, Busy, Gone, Refused, Start, Token, Unanswered
from gpushare.cluster.engines.slurm.commands import Commands, NoJob, Refusal
from gpushare.cluster.engines.slurm.listing import COUNTER
from gpushare.cluster.engines.slurm.look import Known, Look
from gpushare.cluster.engines.slurm.mark import Mark, Spot
from gpushare.cluster.engines.slurm.seen import MIB, is_over, phase_of
from gpushare.cluster.model import Job
from gpushare.cluster.quantity import MICRO

__all__ = ["Starting", "gres_of"]

log = logging.getLogger(__name__)

ROOM = ("None", "Resources", "Priority", "ReqNodeNotAvail", "BeginTime", "Nodes_required_for_job_are_DOWN")
"""Reasons of Slurm that are about nodes. All others are about the job: a licence, a limit of its account."""
MOST_TOGETHER = 32
"""Jobs that are released by one command."""
USUAL_PRIORITY = 50
"""Of a cluster job; that of a node's job is 0."""
AGAIN_AFTER = 2
"""Seconds from a requeue to the next start, in place of Slurm's two minutes. Not less: slurmd ends a job whose
credential is of the second in which it revoked that of the attempt before (Job credential revoked), and it is over."""
AGAIN = f"now+{AGAIN_AFTER}"


class Starting:
    def __init__(self, commands: Commands, look: Look, clock: Callable[[], float], within: float) -> None:
        """`within`: seconds until a job that was released and has not started counts as failed."""
        self._commands = commands
        self._look = look
        self._clock = clock
        self._start_within = within
        self._released: dict[str, float] = {}
        """When a job that is to start was first seen to wait in Slurm."""

    def forget(self, known: Known) -> None:
        """It does not wait in Slurm."""
        self._released.pop(known.listed.id, None)

    def prune(self) -> None:
        """Jobs that are gone."""
        self._released = {id: since for id, since in self._released.items() if id in self._look.jobs}

    def all(self, commands: Iterable[tuple[Start, Token]]) -> Iterator[tuple[Start, Answer | None]]:
        left = iter(commands)
        while some := list(islice(left, MOST_TOGETHER)):
            yield from self.together(some)

    def together(self, commands: Sequence[tuple[Start, Token]]) -> list[tuple[Start, Answer | None]]:
        """Each is placed by a command of its own, while it is held; all are released by one."""
        answers: list[tuple[Start, Answer | None]] = []
        due: list[tuple[Start, Known]] = []
        for command, token in commands:
            answer: Answer | None = None
            try:
                found = self._due(command, token)
                if isinstance(found, Mark):
                    known = self._look.jobs[command.uid]
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
        self._look.check_term(token)
        known = self._look.jobs.get(command.uid)
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
        self._look.count(mark)
        return None

    def _unfit(self, command: Start) -> Refused | None:
        for place in command.places:
            node = self._look.nodes.get(place.node)
            if node is None or node.state == "lost" or any(gpu >= node.node.gpus for gpu in place.gpus):
                return Refused(f"there is no GPU {place.gpus} on {place.node}", place.node)
            others = dict(node.foreign)
            if any(
                self._look.used[place.node, gpu] + others.get(gpu, 0) + place.amount > node.node.memory
                for gpu in place.gpus
            ):
                return Refused("it does not fit beside what runs there", place.node)
        return None

    def _limit(self, job: Job, node: str, amount: int) -> int:
        """Bytes that it may use of each GPU at most."""
        group, memory = job.tasks[0], self._look.nodes[node].node.memory
        if group.limit is None:
            return amount
        limit = group.limit if group.memory is not None else memory * group.limit // MICRO
        return max(amount, min(limit, memory))

    def hasten(self, known: Known) -> None:
        """After a requeue Slurm lets a job wait for two minutes. And it may not be able to start it at all."""
        listed, now = known.listed, time.monotonic()
        if listed.reason == "BeginTime" and listed.restarts and listed.started > self._clock() + AGAIN_AFTER:
            self._commands.update(listed.id, [("StartTime", AGAIN)])
        since = self._released.setdefault(listed.id, now)
        closed = next((spot.node for spot in known.mark.place if self._look.is_closed(spot.node)), "")
        if not closed and now - since <= self._start_within:
            return
        self._commands.run("scontrol", "hold", listed.id)
        why = f"{closed} is closed" if closed else f"Slurm did not start it within {self._start_within:g} s"
        blame = closed or (known.mark.place[0].node if listed.reason in ROOM else "")
        mark = replace(known.mark, failed=f"{why}: {listed.reason}", blame=blame)
        self._look.note(listed, mark)
        known.listed, known.mark = replace(listed, priority=0), mark


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
