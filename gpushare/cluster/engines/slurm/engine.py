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
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpushare.cluster.engines.runner import Context
from gpushare.cluster.engines.seam import (
    Accepted,
    Answer,
    Deposed,
    Evict,
    Gone,
    Observed,
    QueueTold,
    Refused,
    Start,
    Token,
    Unanswered,
)
from gpushare.cluster.engines.slurm import mark as marks
from gpushare.cluster.engines.slurm.accounts import Accounts
from gpushare.cluster.engines.slurm.commands import Commands, NoJob, Refusal
from gpushare.cluster.engines.slurm.lease import Lease
from gpushare.cluster.engines.slurm.listing import COUNTER
from gpushare.cluster.engines.slurm.look import Known, Look
from gpushare.cluster.engines.slurm.seen import LEAVE, MIB, is_over, phase_of
from gpushare.cluster.engines.slurm.starting import Starting
from gpushare.cluster.model import Queue
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
MOST_NOTES = 20
"""Of annotate() in one round: each takes a command."""


def make(context: Context) -> Slurm:
    return Slurm(context)


class Slurm:
    """Raises UsageError for settings that make no sense."""

    hints: Mapping[str, str] = {
        "submit": "sbatch --gpushare=request=25%,limit=80% job.sh",
        "cancel": "scancel {job}",
        "wrong": "cancel it with scancel {job}, and submit it again",
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
        self._poll = settings["poll"]
        self._commands = Commands(settings["conf"] or None, settings["timeout"])
        self._accounts = Accounts(self._commands, settings["accounts"], time.monotonic)
        self._clock = context.clock
        self._term = 0
        """Of this process, since it leads."""
        self._look = Look(self._commands, self._accounts, self._clock)
        self._starting = Starting(self._commands, self._look, self._clock, settings["start_within"])
        self._notes = 0
        self._shown = ""
        """By squeue, when watch() looked last."""
        self._woken = threading.Event()

    def close(self) -> None:
        """Another service may lead at once."""
        self.wake()
        if self._term and self._look.lease.term == self._term:
            over = Lease(self._term, 0.0, self._look.lease.holder)
            with contextlib.suppress(Unanswered, Refusal):
                self._commands.run("scontrol", "update", f"NodeName={self._look.where}", f"Extra={over.text()}")

    # ---- the leader ----------------------------------------------------------------------------------

    def lead(self, holder: str, seconds: float) -> int | None:
        """One that holds the lease goes on with its term; a new process of it begins another one."""
        if not self._look.where:
            self._take()
        now = self._clock()
        lease, mine = self._look.lease, self._look.lease.holder == holder and self._look.lease.term == self._term
        if lease.holds(now) and lease.holder != holder:
            return None
        if not (mine and lease.holds(now) and now < lease.until - seconds / 2):
            term = lease.term if mine else 1 + max(lease.term, self._look.highest)
            self._claim(Lease(term, round(now + seconds, 3), holder))
        return self._term

    def _claim(self, lease: Lease) -> None:
        if not self._look.where:
            raise Unanswered(f"no node has counters {COUNTER}:g0 and so on, and a field Extra that is free")
        try:
            self._commands.run("scontrol", "update", f"NodeName={self._look.where}", f"Extra={lease.text()}")
        except Refusal as error:
            raise Unanswered(f"cannot note who leads: {error}") from None
        self._take()
        if self._look.lease != lease:
            raise Deposed(f"{self._look.lease.holder} has become the leader")
        self._term = lease.term

    # ---- looking -------------------------------------------------------------------------------------

    def snapshot(self) -> Observed:
        self._take()
        self._notes = 0
        seen = tuple(self._look.seen(known) for known in self._look.jobs.values())
        return Observed(tuple(self._look.nodes.values()), seen, dict(self._look.wrong))

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

    def _take(self) -> None:
        self._look.take()
        self._starting.prune()
        if self._term and max(self._look.highest, self._look.lease.term) == self._term:
            for known in list(self._look.jobs.values()):
                self._tend(known)

    # ---- queues --------------------------------------------------------------------------------------

    def queues(self) -> Mapping[str, Queue | str] | None:
        if self._accounts.followed and not self._look.nodes:
            self._take()
        return self._accounts.queues(max((one.node.memory // MIB for one in self._look.nodes.values()), default=0))

    def tell_queues(self, told: Mapping[str, QueueTold]) -> None:
        self._accounts.tell(told)

    # ---- what Slurm does by itself -------------------------------------------------------------------

    def _tend(self, known: Known) -> None:
        """Keep a job held that nobody decided to start, and have one start that was decided."""
        listed, mark = known.listed, known.mark
        if listed.state != "PENDING" or "COMPLETING" in listed.flags:
            self._starting.forget(known)
            return
        phase = phase_of(listed, mark)
        try:
            if phase is None and not listed.held:
                self._commands.run("scontrol", "hold", listed.id)  # Slurm has requeued it, or somebody has released it
                known.listed = replace(listed, priority=0)
            elif phase == "starting":
                self._starting.hasten(known)
        except (NoJob, Refusal) as error:
            log.warning("job %s: %s", listed.id, error)

    # ---- start ---------------------------------------------------------------------------------------

    def start(self, command: Start, token: Token) -> Answer:
        ((_, answer),) = self._starting.together([(command, token)])
        if answer is None:
            raise Unanswered(f"nobody knows whether job {command.uid} starts")
        return answer

    def start_all(self, commands: Iterable[tuple[Start, Token]]) -> Iterator[tuple[Start, Answer | None]]:
        return self._starting.all(commands)

    # ---- stop ----------------------------------------------------------------------------------------

    def evict(self, command: Evict, token: Token) -> Answer:
        self._look.check_term(token)
        known = self._look.jobs.get(command.uid)
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
            self._look.note(known.listed, stopped)
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
        self._look.check_term(token)
        known = self._look.jobs.get(uid)
        if known is None or is_over(known.listed) or known.listed.together or self._notes >= MOST_NOTES:
            return
        mark = replace(known.mark, why=text[: marks.LONGEST_WHY])
        if mark == known.mark:
            return  # a start has taken the words away
        self._notes += 1
        try:
            self._look.note(known.listed, mark)
        except (NoJob, Refusal) as error:
            log.warning("job %s: %s", uid, error)
        else:
            known.mark = mark


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
