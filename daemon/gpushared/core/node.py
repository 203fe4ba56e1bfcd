"""The node core: `NodeState.handle(event, now)` returns instructions. No clock, socket, NVML or sleep in here.

This file says what each event means; the decisions are in the modules that it calls:

    admission.py   has a job's request a place, and where
    lending.py     who gets credit, who waits, who is refused
    reclaim.py     how a claim's shortfall comes back from borrowers
    planner.py     whose loan it is that must come back
    blockers.py    what stands in the way of a claim
    wait_report.py       who waits for what, and what would end it
    measure.py     what NVML corrects
    budget_change.py    how a running job's budget changes
    health.py      what follows from a GPU's health

`validate()` checks every invariant and runs after every event of every test; `story(job)` is what happened to a
job, which `gpushare explain` prints.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from gpushare.quantity import format_bytes, format_duration
from gpushare.reasons import Code, Mention, Reason, words
from gpushared.core import (
    admission,
    budget_change,
    health,
    invariants,
    lending,
    measure,
    persistence,
    reclaim,
    reclaim_steps,
    reservations,
    unconfirmed,
    visibility,
    wait_report,
)
from gpushared.core.events import (
    AskCancelled,
    AttachAsked,
    BudgetChanged,
    Checkpointed,
    CreditAsked,
    Detached,
    Event,
    GpuExamined,
    GpuFound,
    JobEnded,
    JobRestored,
    JobSubmitted,
    JobWithdrawn,
    LeftAlone,
    MemorySampled,
    ProcessGone,
    ProcessJoined,
    ProcessRestored,
    ReservationAsked,
    ReservationEnded,
    ReservationRestored,
    Revoked,
    TimePassed,
    Unmet,
    UsedSeen,
    XidSeen,
)
from gpushared.core.instructions import (
    Attached,
    BudgetRefused,
    Denied,
    Instruction,
    JobAdmitted,
    JobClosed,
    JobQueued,
    JobRefused,
    Kill,
    Persist,
    Publish,
    Published,
    Record,
    WakeAt,
)
from gpushared.core.model import (
    A_YEAR,
    UNIT,
    Ask,
    Bounds,
    Counters,
    Gpu,
    Job,
    Process,
    Reservation,
    Returning,
    Share,
    Submission,
    whole_units,
)
from gpushared.core.policy import Policy
from gpushared.core.state import State
from gpushared.core.transaction import Transaction

__all__ = ["NodeState"]

Seen = TypeVar("Seen")


class NodeState:
    """The node daemon's mind."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.state = State(policy or Policy())
        self._now = 0.0
        self._wake: float | None = None
        self._handlers: dict[type[Event], Callable[[Transaction, Any], None]] = {
            GpuFound: _gpu_found,
            GpuExamined: _gpu_examined,
            XidSeen: _xid_seen,
            JobSubmitted: _job_submitted,
            JobRestored: _job_restored,
            JobWithdrawn: _job_withdrawn,
            JobEnded: _job_ended,
            ProcessJoined: _process_joined,
            ProcessRestored: _process_restored,
            ProcessGone: _process_gone,
            AttachAsked: _attach_asked,
            CreditAsked: _credit_asked,
            AskCancelled: _ask_cancelled,
            Detached: _detached,
            UsedSeen: _used_seen,
            Revoked: _revoked,
            Unmet: _unmet,
            MemorySampled: _memory_sampled,
            BudgetChanged: _budget_changed,
            Checkpointed: _checkpointed,
            LeftAlone: _left_alone,
            ReservationAsked: reservations.ask,
            ReservationRestored: reservations.restore,
            ReservationEnded: _reservation_ended,
            TimePassed: _time_passed,
        }

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """What follows from the event. `now` never goes back; a smaller one counts as the last."""
        self._now = now = max(self._now, now)
        if type(event) is CreditAsked:
            granted = lending.grant_plainly(self.state, event, now)
            if granted is not None:
                return granted  # it changes no excess, nobody's wait, and not when to look at the clock again
        tx = Transaction(self.state, now)
        self._handlers[type(event)](tx, event)
        self.state.work_off_excess()
        for gpu in self.state.gpus.values():
            if gpu.asks or gpu.some.running:
                _note_stall(gpu, self._now)
        wake = _next_wake(self.state)
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
        return lending.published(self.state, found, found.shares if processes is None else processes)

    def watched(self, gpu: str) -> set[int]:
        """Processes of which the next UsedSeen is to say whether they end."""
        return unconfirmed.watched(self.state.gpus[gpu])

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
        return sum(self.state.revocable(share) for share in gpu.shares.values())

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

    def new_budget(self, event: BudgetChanged) -> budget_change.Found | Reason:
        """What a job's budget would become, or why the change is refused. Changes nothing."""
        return budget_change.find(self.state, event)

    def try_budget(self, job: str, found: budget_change.Found, look: Callable[[], Seen]) -> tuple[Seen, str]:
        """What `look` sees with that budget, and the note that the change would be answered with."""
        return budget_change.would(self.state, job, found, look)

    # ---- for the next core ---------------------------------------------------------------------

    def node_note(self, now: float, without: str = "") -> dict[str, Any]:
        """What a later daemon should know beside the jobs; `without` one reservation."""
        return persistence.take_node(self.state, now, without)

    def jobs_to_restore(self, now: float) -> list[JobRestored]:
        """The jobs as another core should know them."""
        return [
            JobRestored(
                job.id,
                job.spec,
                tuple(job.bounds),
                now - job.since,
                job.open,
                now - job.saved_at if job.saved_at >= job.since else None,
            )
            for job in self.state.jobs.values()
        ]

    def reservations_to_restore(self, now: float) -> list[ReservationRestored]:
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
        """The same when jobs and processes are known: stories, and memory on its way back."""
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
    def counters(self) -> Counters:
        return self.state.counters

    @property
    def records(self) -> list[Record]:
        return self.state.records


# ---- GPUs ------------------------------------------------------------------------------------------


def _gpu_found(tx: Transaction, event: GpuFound) -> None:
    policy = tx.policy
    reserve = max(policy.reserve_least, int(event.total * policy.reserve_share), event.reserved)
    reserve = whole_units(reserve)
    known = tx.state.gpus.get(event.gpu)
    total = event.total // UNIT * UNIT
    if known is not None:
        known.index, known.name = event.index, event.name
        if health.resized(tx, known, total, min(reserve, total)):
            measure.work_off(tx, known)
            _after_change_of(tx, known)
        return
    tx.state.gpus[event.gpu] = Gpu(event.gpu, event.index, event.name, total, min(reserve, total))
    text = f"GPU {event.index} {event.name}: {format_bytes(total)}, reserve {format_bytes(reserve)}"
    tx.record("gpu", text, gpu=event.gpu, total=total, reserve=reserve)


def _gpu_examined(tx: Transaction, event: GpuExamined) -> None:
    gpu = tx.state.gpus.get(event.gpu)
    if gpu is not None:
        health.examined(tx, gpu, event)
        _after_change_of(tx, gpu)


def _xid_seen(tx: Transaction, event: XidSeen) -> None:
    gpu = tx.state.gpus.get(event.gpu)
    if gpu is not None:
        health.xid_seen(tx, gpu, event)
        _after_change_of(tx, gpu)


def _after_change_of(tx: Transaction, gpu: Gpu) -> None:
    """Its health or its size: those who wait for it may have nothing to wait for any more, or may have it now."""
    lending.answer_asks(tx, gpu)
    tx.emit(Publish(gpu.id))
    _admit_waiting(tx)


# ---- jobs ------------------------------------------------------------------------------------------


def _job_submitted(tx: Transaction, event: JobSubmitted) -> None:
    state = tx.state
    if event.job in state.jobs:
        # The wrapper has come back after a restart of the daemon: it has its place already.
        state.jobs[event.job].open = True
        tx.emit(JobAdmitted(event.job, tuple(state.jobs[event.job].bounds)))
        return
    inside = reservations.of_job(tx, event.spec)
    if isinstance(inside, Reason):
        tx.emit(JobRefused(event.job, inside))
        tx.record_of_submission("refused", inside, event.job, event.spec)
        return
    ahead = [waiting for waiting in state.queue.values() if waiting.spec.priority >= event.spec.priority]
    found = admission.place(state, event.spec, (), inside) if event.spec.gpus else {}
    if isinstance(found, Reason):
        _queue_or_refuse(tx, event, found)
    elif ahead and inside is None and _overtakes(tx, ahead, found):
        # What is free belongs to those who wait: large requests would never get in otherwise.
        facts = tuple((words(visibility.name(one.spec)), f"waits for {one.spec.request}") for one in ahead[:4])
        message = f"{len(ahead)} jobs queue for room already" if len(ahead) > 1 else "a job queues for room already"
        reason = Reason(Code.NOT_ADMITTED, message, facts, "queue behind them with --wait")
        _queue_or_refuse(tx, event, reason)
    else:
        _admit(tx, event.job, event.spec, found, tx.now)


def _queue_or_refuse(tx: Transaction, event: JobSubmitted, reason: Reason) -> None:
    if event.wait is None or reason.code is not Code.NOT_ADMITTED:
        tx.emit(JobRefused(event.job, reason))
        tx.record_of_submission("refused", reason, event.job, event.spec)
        return
    patience = f", or is refused in {format_duration(event.wait)}" if event.wait < A_YEAR else ""
    reason = replace(reason, hint=f"it starts when there is room for it{patience}")
    until = tx.now + event.wait
    tx.state.queue[event.job] = Submission(event.job, event.spec, tx.now - event.age, until)
    tx.emit(JobQueued(event.job, reason))
    tx.record_of_submission("queued", reason, event.job, event.spec)
    tx.emit(Persist())


def _admit(tx: Transaction, id: str, spec: Any, bounds: dict[str, Bounds], since: float) -> Job:
    job = Job(id, spec, since, dict(bounds))
    tx.state.add_job(job)
    tx.emit(JobAdmitted(id, tuple(bounds)))
    tx.record("admitted", f"admitted on {_places(tx.state, bounds) or 'each GPU that it opens'}", job=job)
    tx.emit(Persist())
    for gpu in bounds:
        tx.emit(Publish(gpu))
    return job


def _places(state: State, bounds: Mapping[str, Bounds]) -> str:
    return ", ".join(
        f"GPU {state.gpus[gpu].index} ({format_bytes(one.request)} requested, limit {format_bytes(one.limit)})"
        for gpu, one in bounds.items()
    )


def _overtakes(tx: Transaction, ahead: Iterable[Submission], found: Mapping[str, Bounds]) -> bool:
    """It would take room on a GPU that somebody waits for."""
    waited_for = _waited_for(tx, ahead)
    return any(bounds.request and gpu in waited_for for gpu, bounds in found.items())


def _waited_for(tx: Transaction, ahead: Iterable[Submission]) -> set[str]:
    waited_for: set[str] = set()
    for waiting in ahead:
        gpus = admission.candidates(tx.state, waiting.spec)
        if not isinstance(gpus, Reason):
            waited_for.update(gpu.id for gpu in gpus)
        if len(waited_for) == len(tx.state.gpus):
            break  # a thousand may queue
    return waited_for


def _admit_waiting(tx: Transaction) -> None:
    """Those that now fit: by priority, then by arrival. Nobody overtakes another on a GPU that both could have."""
    state = tx.state
    waited_for: set[str] = set()
    for waiting in sorted(state.queue.values(), key=lambda one: one.order):
        if tx.now < waiting.until and admission.is_blocked(state, waiting.spec, waited_for):
            continue
        inside = reservations.of_job(tx, waiting.spec)
        if isinstance(inside, Reason):  # it has been released meanwhile
            found: dict[str, Bounds] | Reason = inside
        else:
            found = admission.place(state, waiting.spec, waited_for, inside)
        if not isinstance(found, Reason):
            del state.queue[waiting.job]
            _admit(tx, waiting.job, waiting.spec, found, tx.now)
        elif found.code is not Code.NOT_ADMITTED:
            # No GPU is left that it could wait for: they are lost, or have become too small.
            del state.queue[waiting.job]
            tx.emit(JobRefused(waiting.job, found))
            tx.record_of_submission("refused", found, waiting.job, waiting.spec)
            tx.emit(Persist())
        elif tx.now >= waiting.until:
            del state.queue[waiting.job]
            message = words("the time given with --wait is over: ", found.message)
            hint = "request less, or wait longer with --wait"
            reason = replace(found, code=Code.WAIT_OVER, message=message, hint=hint)
            tx.emit(JobRefused(waiting.job, reason))
            tx.record_of_submission("refused", reason, waiting.job, waiting.spec)
            tx.emit(Persist())
        else:
            waited_for |= _waited_for(tx, (waiting,))


def _job_restored(tx: Transaction, event: JobRestored) -> None:
    bounds = {}
    for id in event.gpus:
        gpu = tx.state.gpus.get(id)
        if gpu is None:
            continue
        found = admission.bounds_on(gpu, event.spec.request, event.spec.limit)
        taken = gpu.requested + tx.state.reserved(gpu.id)
        inside = tx.state.reservations.get(event.spec.reservation)
        kept = tx.state.remainder(inside, gpu.id) if inside is not None else 0
        if isinstance(found, Reason) or found.request > gpu.capacity - taken + kept:
            # The GPU, the reserve or the notes have changed: the job keeps its limit and loses its guarantee.
            ceiling = min(event.spec.limit.resolve(gpu.total), gpu.capacity)
            found = Bounds(0, ceiling)
        bounds[id] = found
    job = Job(event.job, event.spec, tx.now - event.age, bounds, open=event.open)
    job.active_at = tx.now  # nobody has looked meanwhile: not idle, as far as anybody knows
    if event.saved is not None:
        job.saved_at = tx.now - event.saved
    tx.state.add_job(job)
    tx.record("restored", "found again by a daemon that has begun anew", job=job)
    for id in bounds:
        tx.emit(Publish(id))


def _job_withdrawn(tx: Transaction, event: JobWithdrawn) -> None:
    if tx.state.queue.pop(event.job, None) is not None:
        tx.emit(Persist())
        _admit_waiting(tx)


def _job_ended(tx: Transaction, event: JobEnded) -> None:
    job = tx.state.jobs.get(event.job)
    if job is None:
        _job_withdrawn(tx, JobWithdrawn(event.job))
        return
    job.open = False
    _close_if_over(tx, job)


def _close_if_over(tx: Transaction, job: Job) -> None:
    if job.open or job.processes:
        return
    tx.record("ended", "the job is over", job=job)
    tx.emit(JobClosed(job.id))
    tx.state.drop_job(job)
    tx.emit(Persist())
    _admit_waiting(tx)
    for gpu in job.bounds:
        lending.answer_asks(tx, tx.state.gpus[gpu])
        tx.emit(Publish(gpu))


# ---- processes -------------------------------------------------------------------------------------


def _program(job: Job, process: Process | ProcessJoined) -> Mention:
    return visibility.program(job.spec.uid, process.command, process.pid)


def _process_joined(tx: Transaction, event: ProcessJoined) -> None:
    job = tx.state.jobs.get(event.job)
    if job is None or event.process in tx.state.processes:
        return
    tx.state.processes[event.process] = Process(event.process, job.id, event.pid, event.command, tx.now)
    job.processes.add(event.process)
    tx.record("joined", words(_program(job, event), " joins"), job=job, pid=event.pid)
    if job.killed is not None:
        tx.emit(Kill(job.id, (event.process,), job.killed))  # the job is over, and nobody starts in it any more


def _process_restored(tx: Transaction, event: ProcessRestored) -> None:
    _process_joined(tx, ProcessJoined(event.process, event.job, event.pid, event.command))
    state = tx.state
    if event.process not in state.processes:
        return
    job = state.jobs[event.job]
    for seen in event.shares:
        gpu = state.gpus.get(seen.gpu)
        if gpu is None or seen.gpu in state.processes[event.process].shares:
            continue
        if seen.gpu not in job.bounds:
            state.bind(job, gpu.id, Bounds(0, min(job.spec.limit.resolve(gpu.total), gpu.capacity)))
            tx.emit(Persist())
        credit = max(seen.credit, seen.used)
        attached = seen.overhead > 0  # a closed context is not charged; a new one will be
        share = Share(event.process, job.id, gpu.id, tx.now, credit, seen.used, seen.overhead, attached)
        state.add_share(share)
        state.note_excess(job, gpu.id)
        tx.emit(Publish(gpu.id))


def _process_gone(tx: Transaction, event: ProcessGone) -> None:
    """Its credit is free again at once where it was idle; what it used, when NVML says so."""
    state = tx.state
    process = state.processes.get(event.process)
    if process is None:
        return
    job = state.jobs[process.job]
    for ask in [ask for ask in state.asks.values() if ask.process == process.id]:
        lending.drop_ask(tx, ask)
    touched = []
    for share in list(process.shares.values()):
        gpu = state.gpus[share.gpu]
        used = min(event.used.get(gpu.id, share.used), share.credit)
        _return(tx, gpu, share, process.pid, used + share.overhead)
        state.drop_share(share)
        touched.append(gpu)
    job.processes.discard(process.id)
    del state.processes[process.id]
    for gpu in touched:
        if not state.has_share(job, gpu.id):
            reclaim_steps.gone(tx, gpu, job)
    tx.record("left", words(_program(job, process), " has gone"), job=job, pid=process.pid)
    for gpu in touched:
        if gpu.asks and gpu.returning:
            tx.sample(gpu)  # somebody waits for just this memory, and it may be back already
        lending.answer_asks(tx, gpu)
        tx.emit(Publish(gpu.id))
    _close_if_over(tx, job)


def _return(tx: Transaction, gpu: Gpu, share: Share, pid: int, amount: int) -> None:
    if amount <= 0:
        return
    earlier = gpu.returning.get(share.process)
    amount += earlier.amount if earlier else 0
    gpu.returning[share.process] = Returning(pid, share.job, amount, tx.now)


# ---- asks ------------------------------------------------------------------------------------------


def _attach_asked(tx: Transaction, event: AttachAsked) -> None:
    state = tx.state
    process, gpu = state.processes.get(event.process), state.gpus.get(event.gpu)
    if process is None or gpu is None:
        tx.emit(Denied(event.ask, event.process, event.gpu, _no_such_gpu(event.gpu)))
        return
    job = state.jobs[process.job]
    share = process.shares.get(gpu.id)
    if share is not None and share.attached:
        tx.emit(Attached(event.ask, process.id, gpu.id, 0, 0))
        return
    refusal = _bounds_for(tx, job, gpu)
    if refusal is not None:
        tx.emit(Denied(event.ask, process.id, gpu.id, refusal))
        tx.record_reason("denied", refusal, job=job, gpu=gpu.id)
        return
    cost = lending.cost_of_a_context(tx, gpu, job)
    _wait_for(tx, Ask(event.ask, process.id, job.id, gpu.id, cost, tx.now - event.waited, attach=True))


def _bounds_for(tx: Transaction, job: Job, gpu: Gpu) -> Reason | None:
    """Admit a job that comes with the environment alone on the GPU that it opens; others stay on their own."""
    if gpu.id in job.bounds:
        return None
    if job.spec.gpus:
        mine = tuple((f"GPU {tx.state.gpus[id].index}", id) for id in job.bounds)
        message = f"this job was not admitted on GPU {gpu.index}"
        return Reason(Code.NOT_ADMITTED, message, mine, "keep CUDA_VISIBLE_DEVICES as `gpushare run` sets it")
    found = admission.place(tx.state, job.spec._replace(gpus=1, devices=(gpu.id,)))
    if isinstance(found, Reason):
        return found
    for id, bounds in found.items():
        tx.state.bind(job, id, bounds)
    tx.record("admitted", f"admitted on {_places(tx.state, found)}", job=job, gpu=gpu.id)
    tx.emit(Persist())
    return None


def _no_such_gpu(gpu: str) -> Reason:
    return Reason(Code.NO_SUCH_GPU, f"the daemon knows no GPU {gpu}", hint="see `gpushare status`")


def _credit_asked(tx: Transaction, event: CreditAsked) -> None:
    state = tx.state
    process = state.processes.get(event.process)
    share = process.shares.get(event.gpu) if process else None
    if process is None or share is None:
        tx.emit(Denied(event.ask, event.process, event.gpu, _no_such_gpu(event.gpu)))
        return
    job = state.jobs[process.job]
    job.active_at = tx.now
    if event.again:
        lending.count_failed_driver(tx, event, job)
        return
    size = whole_units(event.size)
    ask = Ask(event.ask, process.id, process.job, event.gpu, size, tx.now - event.waited)
    ask.driver_failed, ask.allocation = event.driver_failed, event.allocation if event.allocation >= size else 0
    _wait_for(tx, ask)


def _wait_for(tx: Transaction, ask: Ask) -> None:
    ask.priority, ask.made = tx.state.jobs[ask.job].spec.priority, tx.now
    ask.deadline = ask.since + tx.policy.claim_timeout
    lending.add_ask(tx, ask)


def _ask_cancelled(tx: Transaction, event: AskCancelled) -> None:
    ask = tx.state.asks.get(event.ask)
    if ask is not None:
        lending.drop_ask(tx, ask)
        lending.answer_asks(tx, tx.state.gpus[ask.gpu])


def _detached(tx: Transaction, event: Detached) -> None:
    process = tx.state.processes.get(event.process)
    share = process.shares.get(event.gpu) if process else None
    if process is None or share is None or not share.attached:
        return
    gpu = tx.state.gpus[event.gpu]
    share.attached = False
    gpu.guessed.discard(share.process)
    state = tx.state
    state.see(share, event.used)
    overhead = share.overhead
    state.change(share, overhead=-overhead)
    _return(tx, gpu, share, process.pid, overhead)
    measure.work_off(tx, gpu)
    lending.answer_asks(tx, gpu)
    tx.emit(Publish(gpu.id))


# ---- what the shell answers ------------------------------------------------------------------------


def _used_seen(tx: Transaction, event: UsedSeen) -> None:
    gpu = tx.state.gpus[event.gpu]
    gpu.looking = False
    gpu.seen_at = tx.now
    unanswered = Counter(ask.process for ask in gpu.asks.values())
    for process, used in event.used.items():
        share = gpu.shares.get(process)
        if share is None:
            continue
        share.trim = event.trims.get(process)
        share.ending, share.moving = process in event.ending, process in event.moving
        if process in gpu.holds:
            answered = event.asking.get(process, 0) - unanswered[process]
            if answered <= 0 or tx.now >= gpu.holds[process] + tx.policy.hold:
                tx.state.end_hold(share)
            while len(share.granted) > answered > 0:
                share.granted.popleft()  # calls take their credit in the order of the answers, more or less
        if tx.state.see(share, used):
            tx.state.jobs[share.job].active_at = tx.now
    lending.measure_asks(tx, gpu)
    for ask in gpu.asks.values():
        ask.looked, ask.verified = True, ask.closely
    measure.work_off(tx, gpu)
    lending.answer_asks(tx, gpu)


def _revoked(tx: Transaction, event: Revoked) -> None:
    gpu = tx.state.gpus[event.gpu]
    gpu.revoking = max(0, gpu.revoking - 1)
    share = gpu.shares.get(event.process)
    if share is not None:
        tx.state.change(share, credit=-event.taken)
        tx.state.see(share, event.used)
        tx.state.counters.revoked_bytes += event.taken
    if not gpu.revoking:
        lending.answer_asks(tx, gpu)
        tx.emit(Publish(gpu.id))


def _unmet(tx: Transaction, event: Unmet) -> None:
    process = tx.state.processes.get(event.process)
    gpu = tx.state.gpus.get(event.gpu)
    if process is None or gpu is None:
        return
    tx.state.counters.violations["no_daemon"] += event.count
    times = "an allocation" if event.count == 1 else f"{event.count} allocations"
    text = f"{times} on GPU {gpu.index} failed within the request: no daemon answered in time"
    tx.record("unmet", text, job=tx.state.jobs[process.job], gpu=gpu.id, count=event.count)


def _memory_sampled(tx: Transaction, event: MemorySampled) -> None:
    gpu = tx.state.gpus.get(event.gpu)
    if gpu is None:
        return
    measure.take_sample(tx, gpu, event)
    for job in tx.state.owners(gpu.id):
        _close_if_over(tx, job)  # its last program was a static one, which only the sample shows to have gone
    for ask in gpu.asks.values():
        ask.sampled = ask.sampled or event.begun is None or event.begun >= ask.made
    lending.answer_asks(tx, gpu)
    _admit_waiting(tx)


def _note_stall(gpu: Gpu, now: float) -> None:
    blocked = {ask.job for ask in gpu.asks.values() if ask.short}
    gpu.some.note(now, bool(blocked))
    gpu.full.note(now, bool(blocked) and all(share.job in blocked for share in gpu.shares.values()))


def _next_wake(state: State) -> float | None:
    """When the core wants to look at the clock again, whatever happens until then: derived, never stored.

    A job on a rung is there for a claim that waits, so that graces end at one of its polls.
    """
    times = [waiting.until for waiting in state.queue.values()]
    times += [one.until for one in state.reservations.values() if one.until is not None]
    for gpu in state.gpus.values():
        if gpu.health.lost:
            continue  # nothing comes back from it, and nobody waits for it
        if gpu.asks:
            times.append(state.polled_at + state.policy.poll)
        if _is_to_shrink(state, gpu):
            times.append(max(state.polled_at, gpu.seen_at) + state.policy.shrink)
        if gpu.returning:
            times.append(gpu.sampled_at + (_impatience(state, gpu) if gpu.asks else _patience(state, gpu)))
        if gpu.guessed:
            times.append(gpu.sampled_at + state.policy.provisional_apart)
    return min(times) if times else None


def _is_to_shrink(state: State, gpu: Gpu) -> bool:
    """A job there has more than its limit: what it frees is not for it to use again."""
    return any(gpu.id in state.jobs[job].excess for job in state.over_limit)


def _patience(state: State, gpu: Gpu) -> float:
    """How long after a sample to look again for memory of the dead, while nobody asks for it: an ask has NVML asked at
    once. A sample costs in proportion to the processes, and they may come and go by the hundred."""
    return state.policy.poll * max(1.0, len(gpu.shares) / 16)


def _impatience(state: State, gpu: Gpu) -> float:
    """The same while somebody waits for it: a quarter of the time that it has taken so far, so that a wait is never
    longer by much than what the driver needs."""
    waited = gpu.sampled_at - min(entry.since for entry in gpu.returning.values())
    return min(state.policy.poll, max(state.policy.poll / 20, waited / 4))


def _time_passed(tx: Transaction, _event: TimePassed) -> None:
    tx.state.polled_at = tx.now
    for gpu in tx.state.gpus.values():
        if gpu.health.lost:
            continue
        if gpu.asks or gpu.under_reclaim or _is_to_shrink(tx.state, gpu):
            tx.look(gpu)
        # The same sums as in _next_wake: a clock that says exactly the time that was asked for must be enough.
        overdue = tx.now >= gpu.sampled_at + _patience(tx.state, gpu) or gpu.asks
        if (gpu.returning and overdue) or (gpu.guessed and tx.now >= gpu.sampled_at + tx.policy.provisional_apart):
            tx.sample(gpu)
    reservations.end_those_over(tx)
    _admit_waiting(tx)


def _reservation_ended(tx: Transaction, event: ReservationEnded) -> None:
    reservations.end(tx, event)
    _admit_waiting(tx)


def _left_alone(tx: Transaction, event: LeftAlone) -> None:
    reclaim.left_alone(tx, event)
    for gpu in tx.state.gpus.values():
        lending.answer_asks(tx, gpu)


def _checkpointed(tx: Transaction, event: Checkpointed) -> None:
    job = tx.state.jobs.get(event.job)
    if job is not None:
        job.saved_at = tx.now
        tx.emit(Persist())
        tx.record("checkpointed", "says that its work is saved", job=job)


# ---- a running job's budget ------------------------------------------------------------------------


def _budget_changed(tx: Transaction, event: BudgetChanged) -> None:
    found = budget_change.find(tx.state, event)
    if isinstance(found, Reason):
        tx.emit(BudgetRefused(event.job, found))
        return
    budget_change.apply(tx, event.job, found)
    _admit_waiting(tx)
