"""The core of a node: `NodeState.handle(event, now)` returns instructions. No clock, socket, NVML or sleep in here.

What an event changes is in a module for each noun (the table in `NodeState`). They call the modules that decide:

    admission.py       whether a new job's request fits, and where
    admission_queue.py which jobs wait for room, and when they start
    lending.py         who gets credit, who waits, who is refused
    claims.py          which asks are within their job's request
    reclaim.py         how a claim's shortfall comes back from borrowers
    planner.py         which borrowers give back
    blockers.py        what stands in the way of a claim
    wait_report.py     who waits for what, and what would end it
    suspend.py         which jobs can be suspended
    hooks.py           which jobs are asked for memory by their hooks
    idle.py            which jobs are idle for so long that they give memory back
    resume.py          which job that is suspended or asleep gets its memory back next, and when
    measure.py         what NVML corrects
    budget_change.py   how a running job's budget changes
    health.py          what follows from a GPU's health

Beside it, not part of its state: turns.py, which job of a GPU may compute now.

`validate()` checks every invariant and runs after every event of every test; `story(job)` is what happened to a
job, which `gpushare explain` prints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from gpushare.reasons import Reason
from gpushared.core import (
    admission_queue,
    ask_events,
    budget_change,
    clock,
    gpu_events,
    hook_events,
    invariants,
    job_events,
    lending,
    observations,
    persistence,
    process_events,
    reservations,
    resume,
    suspend_events,
    unconfirmed,
    wait_report,
    waiters,
)
from gpushared.core import events as on
from gpushared.core.events import CreditAsked, Event
from gpushared.core.instructions import Instruction, Published, Record, WakeAt
from gpushared.core.model import Counters, Gpu, Job, Process, Reservation, Share, Submission
from gpushared.core.policy import Policy
from gpushared.core.published import published
from gpushared.core.state import State
from gpushared.core.transaction import Transaction

__all__ = ["NodeState"]

Seen = TypeVar("Seen")


def _reservation_ended(tx: Transaction, event: on.ReservationEnded) -> None:
    reservations.end(tx, event)
    admission_queue.admit_waiting(tx)


class NodeState:
    """The decisions of a node daemon, and all that they are made from."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.state = State(policy or Policy())
        self._now = 0.0
        self._wake: float | None = None
        self._handlers: dict[type[Event], Callable[[Transaction, Any], None]] = {
            on.GpuFound: gpu_events.found,
            on.GpuExamined: gpu_events.examined,
            on.XidSeen: gpu_events.xid_seen,
            on.JobSubmitted: admission_queue.submitted,
            on.JobWithdrawn: admission_queue.withdrawn,
            on.JobRestored: job_events.restored,
            on.JobEnded: job_events.ended,
            on.BudgetChanged: job_events.budget_changed,
            on.Checkpointed: job_events.checkpointed,
            on.LeftAlone: job_events.left_alone,
            on.ProcessJoined: process_events.joined,
            on.ProcessRestored: process_events.restored,
            on.ProcessGone: process_events.gone,
            on.Detached: process_events.detached,
            on.Unmet: process_events.unmet,
            on.AttachAsked: ask_events.attach,
            CreditAsked: ask_events.credit,
            on.AskCancelled: ask_events.cancelled,
            on.UsedSeen: observations.used_seen,
            on.Revoked: observations.revoked,
            on.MemorySampled: observations.memory_sampled,
            on.ReservationAsked: reservations.ask,
            on.ReservationRestored: reservations.restore,
            on.ReservationEnded: _reservation_ended,
            on.SuspenderAnswered: suspend_events.answered,
            on.SuspenderGone: suspend_events.gone,
            on.HookAnswered: hook_events.answered,
            on.HookRunnerGone: hook_events.gone,
            on.SuspendWanted: suspend_events.suspend_wanted,
            on.ResumeWanted: suspend_events.resume_wanted,
            on.TimePassed: clock.time_passed,
        }

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Apply the event. `now` (seconds) never goes back; a smaller one counts as the last."""
        self._now = now = max(self._now, now)
        if type(event) is CreditAsked:
            granted = lending.grant_plainly(self.state, event, now)
            if granted is not None:
                return granted  # it changes no excess, no wait and no wake time
        tx = Transaction(self.state, now)
        self._handlers[type(event)](tx, event)
        self.state.work_off_excess()
        if self.state.suspended or self.state.asleep:
            resume.resume_those_that_fit(tx)
        for gpu in self.state.gpus.values():
            if gpu.asks or gpu.some.running:
                observations.note_pressure(gpu, self._now)
        wake = clock.next_wake(self.state)
        if wake is not None and wake != self._wake:
            tx.emit(WakeAt(wake))
        self._wake = wake
        return tx.out

    def validate(self) -> None:
        """Raise InvariantError if the state contradicts itself or an invariant."""
        invariants.validate(self.state)

    def story(self, job: str) -> list[Record]:
        """What happened to a job, oldest first."""
        found = self.state.jobs.get(job)
        return list(found.story) if found else []

    def published(self, gpu: str, processes: Iterable[int] | None = None) -> Mapping[int, Published]:
        """What the pages of these processes (all of the GPU's, if not said) should say, in bytes."""
        found = self.state.gpus[gpu]
        return published(self.state, found, found.shares if processes is None else processes)

    def watched(self, gpu: str) -> set[int]:
        """The processes whose end the next UsedSeen must report."""
        return unconfirmed.watched(self.state.gpus[gpu])

    def away(self, gpu: str) -> set[int]:
        """The processes of which the next UsedSeen must report whether they are stopped."""
        return waiters.processes(self.state, self.state.gpus[gpu])

    def guessed(self, share: Share) -> int:
        """Bytes that it is charged by a guess. Nobody has seen them in use."""
        return unconfirmed.guessed(self.state.gpus[share.gpu], share)

    def pressure(self, gpu: str, now: float) -> dict[str, dict[str, float]]:
        """How long claims have waited on the GPU (pressure.py)."""
        found = self.state.gpus[gpu]
        return {"some": found.some.read(now), "full": found.full.read(now)}

    def notes(self) -> dict[str, Any]:
        """What a later daemon should know, as JSON-able data; persistence.restore reads it."""
        return persistence.take(self.state, self._now)

    # ---- queries -------------------------------------------------------------------------------

    @property
    def policy(self) -> Policy:
        return self.state.policy

    @policy.setter
    def policy(self, policy: Policy) -> None:
        self.state.policy = policy

    @property
    def queue_length(self) -> int:
        """Jobs that wait for admission."""
        return len(self.state.queue)

    @property
    def lent(self) -> int:
        """Bytes on loan, on all GPUs."""
        gpus = self.state.gpus
        return sum(self.state.loan(job, gpu) for gpu in gpus for job in self.state.owners(gpu))

    def shares_of(self, job: Job, gpu: str) -> list[Share]:
        return self.state.shares_of(job, gpu)

    def revocable_on(self, gpu: Gpu) -> int:
        """Bytes of idle credit that others may have."""
        return self.state.lendable(gpu)

    def context_cost(self, gpu: Gpu, usual: int) -> int:
        """Bytes of a context as far as they are known; at most `usual` where they are guessed."""
        return self.state.overheads.get(gpu.name, min(self.policy.guess(gpu.total), usual))

    def has_claim(self, job: str) -> bool:
        """Whether an ask of the job waits within its request."""
        return any(ask.claim for ask in self.state.asks.values() if ask.job == job)

    def requested(self, gpu: Gpu) -> int:
        """Bytes that are promised: to jobs and to reservations."""
        return gpu.requested + self.state.reserved(gpu.id)

    def remainder(self, one: Reservation, gpu: str) -> int:
        """Bytes of the reservation that no job in it has requested."""
        return self.state.remainder(one, gpu)

    def waits(self, now: float, wanted: Callable[[Job | Submission], bool]) -> Iterator[wait_report.Wait]:
        """What waits, and for what."""
        return wait_report.each_of(self.state, now, wanted)

    def new_budget(self, event: on.BudgetChanged) -> budget_change.Found | Reason:
        """What a job's budget would become, or why the change is refused. Changes nothing."""
        return budget_change.find(self.state, event)

    def try_budget(self, job: str, found: budget_change.Found, look: Callable[[], Seen]) -> tuple[Seen, str]:
        """What `look` sees with that budget, and the note that the change would be answered with."""
        return budget_change.would(self.state, job, found, look)

    # ---- for the next core ---------------------------------------------------------------------

    def node_note(self, now: float, without: str = "") -> dict[str, Any]:
        """What a later daemon should know beside the jobs; `without` one reservation."""
        return persistence.take_node(self.state, now, without)

    def jobs_to_restore(self, now: float) -> list[on.JobRestored]:
        """The jobs as another core should know them."""
        return [
            on.JobRestored(
                job.id,
                job.spec,
                tuple(job.bounds),
                now - job.since,
                job.open,
                now - job.saved_at if job.saved_at >= job.since else None,
                persistence.suspended_before(job, now),
                persistence.asleep_before(job, now),
            )
            for job in self.state.jobs.values()
        ]

    def reservations_to_restore(self, now: float) -> list[on.ReservationRestored]:
        return persistence.restore_reservations(self.node_note(now), 0.0)

    def learn(self, overheads: Mapping[str, int]) -> None:
        """What contexts cost, by type of GPU, as an earlier core measured it."""
        self.state.overheads.update(overheads)

    def inherit(self, earlier: NodeState) -> None:
        """Take from a core that failed what cannot be half changed in a way that matters. The GPUs are known."""
        old = earlier.state
        self.learn(old.overheads)
        self.state.counters, self.state.records = old.counters, old.records
        for id, gpu in self.state.gpus.items():
            known = old.gpus.get(id)
            if known is not None:
                gpu.health, gpu.unmanaged = known.health, known.unmanaged
                gpu.some, gpu.full = known.some, known.full
                worst = max((one.condition for one in gpu.health.issues), default=gpu.health.condition)
                gpu.health.condition = worst

    def inherit_jobs(self, earlier: NodeState) -> None:
        """Take the rest when jobs and processes are known: stories, and memory that the driver has not freed yet."""
        old = earlier.state
        for job in self.state.jobs.values():
            if job.id in old.jobs:
                job.story[:0] = old.jobs[job.id].story
        for id, gpu in self.state.gpus.items():
            if id in old.gpus:
                returning = old.gpus[id].returning
                gpu.returning = {process: one for process, one in returning.items() if one.job in self.state.jobs}
            gpu.excess = max(0, -gpu.free)

    def forget_reservation(self, id: str) -> None:
        """One whose making failed halfway."""
        self.state.reservations.pop(id, None)

    @property
    def jobs(self) -> Mapping[str, Job]:
        return self.state.jobs

    @property
    def gpus(self) -> Mapping[str, Gpu]:
        return self.state.gpus

    @property
    def processes(self) -> Mapping[int, Process]:
        return self.state.processes

    @property
    def reservations(self) -> Mapping[str, Reservation]:
        return self.state.reservations

    @property
    def suspended_jobs(self) -> Mapping[str, Job]:
        """Jobs with a suspension, in any state."""
        return self.state.suspended

    @property
    def counters(self) -> Counters:
        return self.state.counters

    @property
    def records(self) -> list[Record]:
        return self.state.records
