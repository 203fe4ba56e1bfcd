"""A whole node without a kernel: words, processes, a driver and NVML as plain data, around the real node core.

The world carries out the core's instructions the way the daemon's shell does, keeps its own account of who really
uses what, and checks every instruction against it before it obeys: the invariants here are stated on the world's
own numbers, not on the core's.
"""

from __future__ import annotations

import copy
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from unittest import mock

from gpushare.job_spec import JobSpec
from gpushare.quantity import Quantity
from gpushare.reasons import Code
from gpushare.reclaim_steps import ReclaimStep
from gpushared.core import lending, persistence
from gpushared.core.events import (
    AttachAsked,
    CreditAsked,
    Detached,
    Event,
    GpuExamined,
    GpuFound,
    JobEnded,
    JobRestored,
    JobSubmitted,
    LeftAlone,
    MemorySampled,
    ProcessGone,
    ProcessJoined,
    ProcessRestored,
    ReservationAsked,
    ReservationRestored,
    Revoked,
    ShareSeen,
    SuspenderAnswered,
    SuspenderGone,
    TimePassed,
    TrimSeen,
    Unhooked,
    UsedSeen,
    XidSeen,
)
from gpushared.core.health_issues import Condition, HealthIssue
from gpushared.core.instructions import (
    Attached,
    CallHook,
    Denied,
    Granted,
    Instruction,
    JobAdmitted,
    JobClosed,
    JobQueued,
    JobRefused,
    Kill,
    Log,
    LookUsed,
    Notify,
    OpenGate,
    Persist,
    Publish,
    Published,
    Resume,
    Revoke,
    SampleMemory,
    Suspend,
    Terminate,
    Trim,
    WakeAt,
)
from gpushared.core.model import Bounds, Job
from gpushared.core.node import NodeState
from gpushared.core.policy import MIB, Policy
from gpushared.core.sleep import SleepState
from gpushared.core.suspend import ANSWER_MARGIN
from gpushared.core.suspension import SuspendState
from gpushared.core.xid_catalog import of_xid
from property.hook_calls import HookCalls

UNIT = 512


@dataclass
class Word:
    """The 64-bit word of one process on one GPU, and its count of releases."""

    used: int = 0
    credit: int = 0
    releases: int = 0

    def free(self, size: int) -> None:
        self.used -= size
        self.releases += size > 0


@dataclass
class Program:
    """A process of a job: what it holds on each GPU, and what its contexts really cost there."""

    id: int
    job: str
    pid: int
    words: dict[str, Word] = field(default_factory=dict)
    contexts: dict[str, int] = field(default_factory=dict)
    caches: dict[str, int] = field(default_factory=dict)
    """Of what it uses, what its allocators only keep: a trim gives it back."""
    listens: bool = False
    """Somebody in it acts on trims."""
    dawdle: float = 0.0
    """Seconds until it has acted."""
    trim: TrimSeen = field(default_factory=lambda: TrimSeen(begun=True, done=True))
    stopped: bool = False
    """By SIGSTOP: it does nothing until it goes on; SIGKILL ends it all the same."""
    stubborn: bool = False
    """Does not die when killed (state D), until the world lets it."""
    doomed: bool = False
    trims_missed: list[str] = field(default_factory=list)
    """GPUs for which a trim came due while it was stopped."""
    ends_at: float | None = None
    """It is in its exit until then: it does nothing more, and the core has not been told yet."""
    away: bool = False
    """Its memory is in host memory."""
    pinned: str = ""
    """It holds memory that cannot leave the GPU."""
    computes: bool = False
    """NVML shows it compute, where it tells such things,"""
    computed_at: float = float("-inf")
    """and when the core has last heard that."""
    slow: bool = False
    """Its calls take what they were granted some time after the answer: the kernel runs others first."""


@dataclass
class Waiting:
    """An unanswered ask."""

    program: int
    gpu: str
    size: int
    since: float
    attach: bool
    another: bool = False


@dataclass
class Take:
    """A call that was granted credit and has not taken it yet."""

    program: int
    gpu: str
    size: int
    since: float
    """When the call began to wait,"""
    granted: float
    """and when it was answered."""
    known: bool = True
    """To the core of now: not of an answer that an earlier one gave."""


@dataclass
class Work:
    """What a suspender is just doing."""

    job: str
    number: int
    suspends: bool
    """Or resumes."""
    done_at: float
    how: str
    """ok; refused: all is as before; failed: the driver has lost the job; silent: there is no answer."""
    heard: bool = True
    """By the daemon of now."""


class World:
    """One node. Random callers use the verbs at the end; all checking is in `_obey`."""

    def __init__(self, totals: list[int], costs: list[int], policy: Policy | None = None) -> None:
        self.policy = policy or Policy()
        self.now = 1000.0
        self.cost = {f"GPU-{index}": cost for index, cost in enumerate(costs)}
        self.total = {f"GPU-{index}": total for index, total in enumerate(totals)}
        self.programs: dict[int, Program] = {}
        self.jobs: dict[str, JobSpec] = {}
        self.waiting: dict[int, Waiting] = {}
        self.takes: list[Take] = []
        self.late_takes = self.repeated = 0
        self.moving: set[int] = set()
        """Processes that take or free memory while the words are read the next time."""
        self.teardown: list[tuple[float, int, str, int]] = []
        """(when, pid, gpu, bytes): memory of the dead that the driver still holds."""
        self.trims: list[tuple[float, int, str]] = []
        """(when, process, gpu): trims that will be acted on."""
        self.trimmed: dict[tuple[str, str], float] = {}
        """When a job was last asked to trim on a GPU."""
        self.foreign: dict[str, int] = dict.fromkeys(self.total, 0)
        self.unhooked: dict[int, tuple[str, str, int]] = {}
        """By process id: (job, gpu, bytes) of programs of a job that the shim is not in."""
        self.issues: dict[str, tuple[HealthIssue, ...]] = dict.fromkeys(self.total, ())
        self.xids: dict[str, tuple[HealthIssue, ...]] = dict.fromkeys(self.total, ())
        self.setuid: set[int] = set()
        """Programs that belong to another user than their job by now: no signal of ours is for them."""
        self.told: list[Notify] = []
        self.pages: dict[str, dict[int, Published]] = {}
        """What the processes' pages say, by GPU and process."""
        self.wake: float | None = None
        self.refusals: list[Denied] = []
        self.terminated: list[Terminate] = []
        self.told_to_stop: set[tuple[str, str]] = set()
        """(job, gpu) of those asked with SIGTERM for their loan there, and neither killed nor relieved since."""
        self.killed: list[Kill] = []
        self.suspenders: dict[str, list[str]] = {}
        """Job -> how its suspender's next pieces of work go; all further ones go as the last."""
        self.suspender_takes = 0.5
        """Seconds."""
        self.work: list[Work] = []
        self.troubled: set[str] = set()
        """Jobs whose suspender was silent, or whom the driver has lost."""
        self.suspends = self.resumes = 0
        self.hooks = HookCalls(self)
        self.shows_busy = False
        """NVML tells which processes compute."""
        self.idle_trims = 0
        self.plain_grants = 0
        self.serial = self.events = self.claims = self.relieved = self.trim_count = 0
        self.ever_foreign = self.ever_stubborn = self.ever_lagging = self.ever_protected = False
        self.ever_tight = any(cost > self.policy.guess(total) for cost, total in zip(costs, totals, strict=True))
        self.node = NodeState(self.policy)
        self._find_gpus()

    def _find_gpus(self) -> None:
        for index, (gpu, total) in enumerate(self.total.items()):
            self.send(GpuFound(gpu, index, "software GPU", total))
            if self.issues[gpu]:
                self.send(GpuExamined(gpu, self.issues[gpu]))

    def next_id(self) -> int:
        self.serial += 1
        return self.serial

    # ---- the shell's part ----------------------------------------------------------------------

    def send(self, event: Event) -> None:
        """Hand the event to the core and do what it says, questions first to last, as the shell does."""
        queue: deque[Event] = deque([event])
        steps = 0
        while queue:
            steps += 1
            self.events += 1
            assert steps < 10_000, "the core and the shell talk without end"
            current = queue.popleft()
            if isinstance(current, MemorySampled):
                self._note_computing(current)
            before = self._worth_keeping()
            instructions = self._handle(current)
            if not isinstance(current, JobRestored | ReservationRestored) and self._worth_keeping() != before:
                assert Persist() in instructions, "what a later daemon should know has changed, and is not written"
            self._check_priorities(instructions)
            for instruction in instructions:
                answer = self._obey(instruction)
                if answer is not None:
                    queue.append(answer)
            if isinstance(current, MemorySampled):
                assert self.pages[current.gpu] == self.node.published(current.gpu), "a sample leaves old pages"
            self.node.validate()
            self._check_job_caps()

    def _worth_keeping(self) -> object:
        """What the notes for a later daemon have of jobs, of the queue and of reservations."""
        state = self.node.state
        jobs = {
            job.id: (
                job.spec,
                tuple(job.bounds),
                job.saved_at,
                job.suspension and (job.suspension.held, job.suspension.state is SuspendState.RESUMING),
                job.sleep and (dict(job.sleep.had), job.sleep.state is SleepState.WAKING),
            )
            for job in state.jobs.values()
        }
        return jobs, set(state.queue), set(state.reservations), dict(state.overheads)

    def _handle(self, event: Event) -> list[Instruction]:
        """The short way of a plain grant must lead where the long one does, to the same state by the same words."""
        if not isinstance(event, CreditAsked):
            return self.node.handle(event, self.now)
        for gpu in self.node.gpus:
            self.node.pressure(gpu, self.now)  # brings its clocks up to now, which the long way does by itself
        twin = copy.deepcopy(self.node)
        instructions = self.node.handle(event, self.now)
        with mock.patch.object(lending, "grant_plainly", return_value=None):
            assert NodeState.handle(twin, event, self.now) == instructions  # a test may have wrapped its own node's
        assert twin.state == self.node.state and twin._wake == self.node._wake
        self.plain_grants += bool(instructions) and isinstance(instructions[0], Granted)
        return instructions

    def _obey(self, instruction: Instruction) -> Event | None:
        match instruction:
            case LookUsed(gpu):
                return self._used_seen(gpu)
            case SampleMemory(gpu):
                return self._sample(gpu)
            case Revoke(process, gpu, size):
                return self._revoke(process, gpu, size)
            case Attached() | Granted() | Denied():
                return self._answer(instruction)
            case Trim():
                self._trim(instruction)
            case Suspend() | Resume():
                self._begin_work(instruction)
            case CallHook():
                self.hooks.begin(instruction)
            case OpenGate(job):
                assert not any(one.away for one in self._of(job)), "a gate opens before the memory"
            case Terminate() if instruction.reason.code is Code.SUSPEND_STUCK:
                assert instruction.job in self.troubled, "ended without need"
                self.terminated.append(instruction)
                return self._left_alone(instruction)
            case Terminate():
                self._check_suspends_first(instruction.job, str(instruction.reason.data["gpu"]))
                self.hooks.check_first(instruction.job, str(instruction.reason.data["gpu"]))
                self._check_stop(instruction.job, instruction.processes, instruction.reason.data)
                self.terminated.append(instruction)
                return self._left_alone(instruction)
            case Kill():
                if instruction.job in {earlier.job for earlier in self.killed}:
                    pass  # to one that has joined since: the job is over
                elif instruction.reason.code is Code.SUSPEND_STUCK:
                    assert instruction.job in self.troubled, "killed without need"
                elif instruction.reason.code is Code.BREACH:
                    self._check_breach(instruction.job, str(instruction.reason.data["gpu"]))
                else:
                    self._check_stop(instruction.job, instruction.processes, instruction.reason.data)
                self.killed.append(instruction)
                for process in instruction.processes:
                    if process < 0:
                        del self.unhooked[-process]
                    elif process not in self.setuid:
                        self.programs[process].doomed = True
                return self._left_alone(instruction)
            case JobRefused(job):
                self.jobs.pop(job, None)
            case JobClosed(job):
                del self.jobs[job]
                self.unhooked = {pid: one for pid, one in self.unhooked.items() if one[0] != job}
                assert not [one for one in self.programs.values() if one.job == job]
            case WakeAt(time):
                self.wake = time
            case JobAdmitted(_, gpus):
                assert all(self.condition(gpu) < Condition.SICK for gpu in gpus), "admitted on a GPU that is not well"
            case Notify():
                self.told.append(instruction)
            case Publish(gpu):
                self.pages[gpu] = dict(self.node.published(gpu))
            case JobQueued() | _:
                pass
        return None

    def _left_alone(self, instruction: Terminate | Kill) -> Event | None:
        spared = self.setuid.intersection(instruction.processes)
        return LeftAlone(instruction.job, {self.programs[one].pid: one for one in spared}) if spared else None

    def _of(self, job: str) -> list[Program]:
        return [one for one in self.programs.values() if one.job == job]

    def _on(self, gpu: str) -> list[Program]:
        return [one for one in self.programs.values() if gpu in one.words]

    def _used_seen(self, gpu: str) -> UsedSeen:
        on = self._on(gpu)
        trims = {one.id: one.trim for one in on if one.listens}
        calls = [one for one in self.waiting.values() if not one.attach] + self.takes
        asking = Counter(one.program for one in calls if one.gpu == gpu)
        ending = frozenset(one.id for one in on if one.ends_at is not None) & self.node.watched(gpu)
        moving = frozenset(self.moving & self.node.watched(gpu))
        self.moving -= moving
        used, pinned = {one.id: one.words[gpu].used for one in on}, {one.id: one.pinned for one in on if one.pinned}
        contexts = {one.id: self.open_contexts(one.id, gpu) for one in on}
        stopped = frozenset(one.id for one in on if one.stopped) & self.node.away(gpu)
        return UsedSeen(
            gpu,
            used,
            trims,
            asking,
            ending,
            pinned=pinned,
            moving=moving,
            contexts=contexts,
            stopped=stopped,
            releases=self._releases(gpu),
        )

    def _releases(self, gpu: str) -> dict[int, int]:
        return {one.id: one.words[gpu].releases for one in self._on(gpu)}

    def _trim(self, wish: Trim) -> None:
        is_idle = wish.reason.code is Code.IDLE
        if is_idle:
            self._check_idle(self.node.jobs[wish.job])
            self.idle_trims += 1
        else:
            self._check_rung(wish.job, wish.reason.data)
            self.trimmed[wish.job, wish.gpu] = self.now
            assert wish.size <= self.loan(wish.job, wish.gpu), "more asked than the loan"
        listeners = {one.id for one in self._on(wish.gpu) if one.job == wish.job and one.listens}
        assert set(wish.processes) == listeners != set(), "a trim that nobody hears, or not everybody"
        assert wish.size > 0, "nothing is asked for"
        assert "trim" in self.node.jobs[wish.job].spec.on_reclaim
        self.trim_count += 1
        for process in wish.processes:
            one = self.programs[process]
            one.trim = TrimSeen(begun=False, done=False)
            self.trims.append((self.now + one.dawdle, process, wish.gpu))

    def _check_idle(self, job: Job) -> None:
        """It is asked for memory without a claim: its policy says so, and it neither computes nor asks."""
        longest, mine = job.spec.idle_release, self._of(job.id)
        seen = max([job.since, job.restored_at, *(one.computed_at for one in mine)])
        assert longest is not None and self.now - seen >= longest, "it is not idle for long"
        assert not any(self.programs[asked.program].job == job.id for asked in self.waiting.values()), "it waits"
        assert job.suspension is None and not job.reclaims, "it is asked by others"

    def _note_computing(self, sample: MemorySampled) -> None:
        """As it reaches the core: words that were asked for before the sample are handled before it."""
        for one in self._on(sample.gpu):
            if one.pid in (sample.busy or ()):
                one.computed_at = self.now

    def _act_on_trims(self) -> None:
        """Programs give their caches back, and say so."""
        due = [entry for entry in self.trims if entry[0] <= self.now]
        self.trims = [entry for entry in self.trims if entry[0] > self.now]
        for _, process, gpu in due:
            one = self.programs.get(process)
            if one is None or gpu not in one.words:
                continue
            if self.is_stopped(process):
                self.trims.append((self.now + 0.5, process, gpu))
                continue
            if one.stopped:
                one.trims_missed.append(gpu)
                continue
            given = min(one.caches.pop(gpu, 0), one.words[gpu].used)
            one.words[gpu].free(given)
            one.trim = TrimSeen(begun=True, done=True)
            self.send(self._used_seen(gpu))

    def _sample(self, gpu: str) -> MemorySampled:
        if self.condition(gpu) is Condition.LOST:
            return MemorySampled(gpu, None, None, {})
        by_pid: dict[int, int] = {}
        for one in self._on(gpu):
            amount = 0 if one.away else one.words[gpu].used + one.contexts.get(gpu, 0)
            if amount:
                by_pid[one.pid] = by_pid.get(one.pid, 0) + amount
        for _, pid, where, amount in self.teardown:
            if where == gpu:
                by_pid[pid] = by_pid.get(pid, 0) + amount
        if self.foreign[gpu]:
            by_pid[1] = self.foreign[gpu]
        steady = {one.id: one.words[gpu].used for one in self._on(gpu)}
        unhooked = {pid: Unhooked(job, "static") for pid, (job, where, _) in self.unhooked.items() if where == gpu}
        for pid, (_, where, amount) in self.unhooked.items():
            if where == gpu:
                by_pid[pid] = by_pid.get(pid, 0) + amount
        computing = [one for one in self._on(gpu) if one.computes and not self.is_stopped(one.id)]
        busy = frozenset(one.pid for one in computing)
        contexts = {one.id: self.open_contexts(one.id, gpu) for one in self._on(gpu)}
        shown = busy if self.shows_busy else None
        total, releases = sum(by_pid.values()), self._releases(gpu)
        return MemorySampled(gpu, total, by_pid, steady, unhooked, shown, contexts=contexts, releases=releases)

    def _revoke(self, process: int, gpu: str, size: int) -> Revoked:
        one = self.programs.get(process)
        if one is None or gpu not in one.words:
            return Revoked(process, gpu, 0, 0)
        word = one.words[gpu]
        taken = min(size, word.credit - word.used)
        word.credit -= taken
        self._check_kept(one.job, gpu)
        self._check_held(one, gpu)
        return Revoked(process, gpu, taken, word.used)

    def _check_held(self, one: Program, gpu: str) -> None:
        """What calls were granted within the request stays theirs until they have taken it, or have had the time to."""
        job, now = self.node.jobs[one.job], self.now
        if job.suspension is not None:
            return  # its calls wait at the gate, and ask again
        mine = [take for take in self.takes if take.gpu == gpu and self.programs[take.program].job == one.job]
        if self.usage(one.job, gpu) + sum(take.size for take in mine) > job.bounds[gpu].request:
            return
        if job.excess or self.node.gpus[gpu].excess:
            return  # more was measured than there is: that is worked off at everybody's cost
        siblings = [asked for asked in self.waiting.values() if self.programs[asked.program].job == one.job]
        if any(now - asked.since >= self.policy.hold for asked in siblings):
            return  # a call of the same job, at its limit, has waited for these long enough
        fresh = [
            take for take in mine if take.program == one.id and take.known and now - take.granted < self.policy.hold
        ]
        word = one.words[gpu]
        assert word.credit - word.used >= sum(take.size for take in fresh), "taken from a call that was just granted it"

    def _take_up(self) -> None:
        """Calls that were answered take their memory, or ask again for what others have taken meanwhile.

        The others are still under way when one asks again, and the daemon sees that.
        """
        for take in list(self.takes):
            if take not in self.takes or self.programs[take.program].stopped or self.is_stopped(take.program):
                continue  # it went with its program while another asked again; or it cannot go on yet
            self.takes.remove(take)
            one = self.programs[take.program]
            word = one.words[take.gpu]
            if word.used + take.size <= word.credit:
                word.used += take.size
                self.late_takes += 1
            else:
                self.repeated += 1
                missing = take.size - (word.credit - word.used)
                ask, waited = self.next_id(), take.granted - take.since
                self.waiting[ask] = Waiting(take.program, take.gpu, missing, self.now - waited, attach=False)
                word.used = word.credit
                self.send(CreditAsked(ask, take.program, take.gpu, missing, allocation=missing, waited=waited))

    def _answer(self, answer: Attached | Granted | Denied) -> Event | None:
        asked = self.waiting.pop(answer.ask)
        one = self.programs[asked.program]
        if isinstance(answer, Denied) and answer.reason.code is Code.SUSPENDED:
            assert asked.attach and self.node.jobs[one.job].suspension is not None, "told to ask again without need"
            assert self.now >= asked.since + self.policy.claim_timeout, "told to ask again before its time"
            ask = self.next_id()
            self.waiting[ask] = Waiting(asked.program, asked.gpu, 0, self.now, attach=True, another=asked.another)
            return AttachAsked(ask, asked.program, asked.gpu, another=asked.another)
        if isinstance(answer, Denied):
            self._check_denial(answer, asked)
            self.refusals.append(answer)
            return None
        assert answer.gpu == asked.gpu
        assert answer.process == asked.program
        if isinstance(answer, Granted) or answer.overhead:
            assert self.condition(asked.gpu) < Condition.LOST, "granted on a GPU that is lost"
            after = self._after(asked)
            if asked.attach:  # the core's ledger has it already
                after -= self._cost(asked)
            within = after <= self._bounds_of(asked)[asked.gpu].request
            guessed = asked.attach and "software GPU" not in self.node.state.overheads
            assert within or guessed or self.condition(asked.gpu) < Condition.SICK, "lent on a GPU that is sick"
        # Invariants 2 and 11, at the moment of the grant and in the core's own ledger.
        gpu = self.node.gpus[answer.gpu]
        job = self.node.jobs[one.job]
        if answer.overhead + answer.credit if isinstance(answer, Attached) else answer.size:
            assert gpu.free >= 0, "granted what is not free"
            dead = sum(one.amount for one in gpu.returning.values() if one.job == job.id)
            waited = self.now - asked.since >= self.policy.claim_timeout
            used = job.committed[answer.gpu] + (0 if waited else dead)
            assert used <= job.bounds[answer.gpu].limit, "granted above the limit"
        if isinstance(answer, Attached):
            word = one.words.setdefault(answer.gpu, Word())
            word.credit += answer.credit
            earlier = one.contexts.get(answer.gpu, 0) if asked.another else 0
            one.contexts[answer.gpu] = earlier + self.cost[answer.gpu]
        else:
            one.words[answer.gpu].credit += answer.size
            idle = one.words[answer.gpu].credit - one.words[answer.gpu].used
            assert idle >= asked.size, "granted less than the call lacks"
            if one.slow and asked.size:
                self.takes.append(Take(one.id, asked.gpu, asked.size, asked.since, self.now))
            else:
                one.words[answer.gpu].used += asked.size
        self._check_physical(answer.gpu)
        return None

    # ---- the invariants on the world's own numbers ----------------------------------------------

    def usage(self, job: str, gpu: str) -> int:
        """Of all the job's processes: words, and the overhead that the core charges."""
        mine = [one for one in self.programs.values() if one.job == job and gpu in one.words]
        overheads = {
            one.id: self.node.processes[one.id].shares[gpu].overhead
            for one in mine
            if gpu in self.node.processes[one.id].shares
        }
        # Also of one that has become another program since: the core learns that by the next sample.
        charged = self.node.gpus[gpu].shares.values()
        unhooked = sum(share.overhead for share in charged if share.process < 0 and share.job == job)
        return unhooked + sum((0 if one.away else one.words[gpu].used) + overheads.get(one.id, 0) for one in mine)

    def loan(self, job: str, gpu: str) -> int:
        return max(0, self.usage(job, gpu) - self.node.jobs[job].bounds[gpu].request)

    def _check_job_caps(self) -> None:
        for gpu in self.total:
            for one in self._on(gpu):
                assert one.words[gpu].used <= one.words[gpu].credit

    def _check_kept(self, job: str, gpu: str) -> None:
        """Of a job that lends nothing, what lies within its request is taken for nobody else."""
        found, own = self.node.jobs[job], self.node.gpus[gpu]
        asks = any(asked.gpu == gpu and self.programs[asked.program].job == job for asked in self.waiting.values())
        if not found.lends_nothing or found.suspension is not None or asks or own.excess or gpu in found.excess:
            return
        idle = sum(one.words[gpu].credit - one.words[gpu].used for one in self._on(gpu) if one.job == job)
        assert self.usage(job, gpu) + idle >= found.bounds[gpu].request, "taken from a job that lends nothing"

    def _check_physical(self, gpu: str) -> None:
        """What is really in use fits into the capacity, as long as nothing outside gpushare is in the way."""
        if self.ever_foreign or self.ever_tight:
            return
        living = sum(one.words[gpu].credit + one.contexts.get(gpu, 0) for one in self._on(gpu) if not one.away)
        living += sum(
            one.words[gpu].credit + one.contexts.get(gpu, 0)
            for work in self.work
            if not work.suspends and work.how != "failed"
            for one in self._of(work.job)
            if one.away and gpu in one.words
        )
        dead = sum(amount for _, _, where, amount in self.teardown if where == gpu)
        assert living + dead <= self.node.gpus[gpu].capacity, "more in use than there is"

    def _after(self, asked: Waiting) -> int:
        """The job's usage if this were granted and used."""
        one = self.programs[asked.program]
        growth = self._cost(asked) if asked.attach else asked.size
        return self.usage(one.job, asked.gpu) + growth

    def _truly_after(self, asked: Waiting) -> int:
        """The same by what the living really have: words, and what their contexts do cost."""
        job, gpu = self.programs[asked.program].job, asked.gpu
        living = [one for one in self._on(gpu) if one.job == job and one.ends_at is None]
        unhooked = sum(amount for _, (owner, where, amount) in self.unhooked.items() if (owner, where) == (job, gpu))
        real = unhooked + sum(one.words[gpu].used + one.contexts.get(gpu, 0) for one in living)
        return self._after(asked) - self.usage(job, gpu) + real

    def _is_measurable(self, gpu: str) -> bool:
        """What contexts really cost can be told from what the driver shows."""
        return self.condition(gpu) is not Condition.LOST and not any(where == gpu for _, _, where, _ in self.teardown)

    def _cost(self, asked: Waiting) -> int:
        """What a context is charged before it opens."""
        limit = self._bounds_of(asked)[asked.gpu].limit
        guess = self.policy.guess(self.total[asked.gpu])
        return self.node.state.overheads.get("software GPU", min(guess, limit))

    def _check_denial(self, answer: Denied, asked: Waiting) -> None:
        """Invariant 3: within the request nothing is refused but after the claim's whole patience."""
        job = self.node.jobs[self.programs[asked.program].job]
        if answer.gpu not in job.bounds:
            assert answer.reason.code in {Code.NOT_ADMITTED, Code.TOO_LARGE, Code.BAD_BUDGET, Code.GPU_UNHEALTHY}
            return
        bounds = job.bounds[answer.gpu]
        after = self._after(asked) + self._promised(answer, asked, job.id, bounds.request)
        after += sum(
            take.size
            for take in self.takes
            if take.gpu == answer.gpu and take.program != asked.program and self.programs[take.program].job == job.id
        )
        if answer.reason.code is Code.GPU_UNHEALTHY:
            assert self.condition(answer.gpu) >= Condition.SICK, "refused for the sake of a GPU that is well"
            assert self.condition(answer.gpu) is Condition.LOST or after > bounds.request
            return
        if answer.reason.code is Code.CLAIM_TIMED_OUT:
            assert self.now - asked.since >= self.policy.claim_timeout
            excused = self.ever_foreign or self.ever_stubborn or self.ever_lagging or self.ever_tight
            assert excused or self.ever_protected, "a claim timed out though nothing stood in its way"
        elif self.now - asked.since < self.policy.claim_timeout:
            assert after > bounds.request, f"{answer.reason.code} although within the request"
            within = self._truly_after(asked) + after - self._after(asked) <= bounds.request
            assert not within or not self._is_measurable(answer.gpu), f"{answer.reason.code} for what is not there"
        if answer.reason.code is Code.OVER_LIMIT:
            assert self._after(asked) > bounds.limit, "refused for a limit that is not reached"

    @staticmethod
    def _place(ask: int, one: Waiting) -> tuple[float, int]:
        return one.since, ask

    def _promised(self, answer: Denied, asked: Waiting, job: str, request: int) -> int:
        """What processes of the same job wait for since before, within the request: it is theirs first."""
        promised = 0
        place = self._place(answer.ask, asked)
        for ask, one in sorted(self.waiting.items(), key=lambda item: self._place(*item)):
            if self._place(ask, one) < place and one.gpu == answer.gpu and self.programs[one.program].job == job:
                growth = self._after(one) - self.usage(job, answer.gpu)
                room = request - self.usage(job, answer.gpu) - promised
                if growth <= room:
                    promised += growth
                elif one.attach and room > 0:
                    promised += UNIT  # a guess is no refusal, but a context costs something
        return promised

    def _check_stop(self, job: str, processes: tuple[int, ...], data: Mapping[str, object]) -> None:
        """Invariants 4 to 8, at the moment when a job is told to go."""
        self._check_rung(job, data)
        found = self.node.jobs[job]
        whole = {one.id for one in self.programs.values() if one.job == job}
        whole |= {-pid for pid, one in self.unhooked.items() if one[0] == job and -pid in self.node.processes}
        assert set(processes) == whole, "not the whole job"
        assert self.now >= self._protected_until(found), "a protected victim"
        assert found.suspension is None, "a victim that is suspended"
        self._check_trims_first(str(data["gpu"]))

    def _check_breach(self, job: str, gpu: str) -> None:
        assert self.policy.on_breach == "kill"
        assert self.usage(job, gpu) > self.node.jobs[job].bounds[gpu].limit, "killed within its limit"

    def _check_trims_first(self, gpu: str) -> None:
        """Nobody is stopped while there are caches that nobody has been asked for."""
        claims = self._claims_on(gpu)
        oldest = min(self.waiting[ask].since for ask in claims)
        if self.now >= oldest + self.policy.trim:
            return
        claimants = {self.programs[self.waiting[ask].program].job for ask in claims}
        for one in self._on(gpu):
            job = self.node.jobs[one.job]
            bounds = job.bounds.get(gpu)
            asked = self.trimmed.get((one.job, gpu), 0.0) >= oldest or not one.listens
            if job.suspension is not None:
                continue  # it hears nothing now
            if job.sleep is not None and job.sleep.state is SleepState.ASKED:
                continue  # its hook is asked for the same memory just now
            if gpu in job.reclaims and job.reclaims[gpu].step is ReclaimStep.KILL:
                continue  # it was made to go; that some of it does not is another story
            if asked or one.job in claimants or "trim" not in job.spec.on_reclaim or bounds is None:
                continue
            assert self._certain_loan(one.job, gpu) == 0, "stopped before all were asked"

    def _check_rung(self, job: str, data: Mapping[str, object]) -> None:
        """Invariants 4 to 6, at the moment of any action."""
        gpu, owner = str(data["gpu"]), str(data["owner"])
        assert self.loan(job, gpu) > 0, "a victim without a loan"
        assert owner != job, "the claimant's own job"
        assert self._claims_on(gpu), "a rung without a claim"
        assert self._shortfall(gpu) > 0, "a rung without a shortfall"

    def _shortfall(self, gpu: str) -> int:
        """What all claims need beyond what is free: nothing that is on its way is counted."""
        asks = self.node.gpus[gpu].asks
        wanted: dict[str, int] = {}
        for ask in self._claims_on(gpu):
            claimant = self.programs[self.waiting[ask].program].job
            wanted[claimant] = wanted.get(claimant, 0) + (asks[ask].need if ask in asks else 0)
        kept = sum(
            max(0, other.bounds[gpu].request - other.committed.get(gpu, 0) - wanted.get(other.id, 0))
            for other in self.node.jobs.values()
            if gpu in other.bounds and (not other.spec.lend or other.suspension or other.sleep)
        )
        return sum(wanted.values()) + kept - self.node.gpus[gpu].free

    def _lowered(self, job: str, gpu: str) -> bool:
        limit = self.node.jobs[job].bounds[gpu].limit
        return sum(one.words[gpu].used for one in self._on(gpu) if one.job == job) > limit

    def _check_priorities(self, instructions: list[Instruction]) -> None:
        """Invariant 7: nobody is stopped where all loans of lower classes together would have been enough."""
        told_before = set(self.told_to_stop)
        stopped: dict[str, set[str]] = {}
        for record in [one.record for one in instructions if isinstance(one, Log) and one.record.gpu is not None]:
            key = (record.job, str(record.gpu))
            if record.event == "term":
                self.told_to_stop.add(key)
            elif record.event in {"kill", "relieved", "reclaimed"}:
                self.told_to_stop.discard(key)
            own = {Code.BREACH.value, Code.SUSPEND_STUCK.value}  # for no claim
            if record.event in {"term", "kill"} and record.facts.get("code") not in own:
                stopped.setdefault(key[1], set()).add(key[0])
        for gpu, jobs in stopped.items():
            told = {job for job, where in told_before if where == gpu and self._counted_on(job, gpu)}
            leaving = [job for job in self.node.jobs if self._is_leaving(job, gpu)]
            shortfall = self._shortfall(gpu) - sum(self.loan(job, gpu) for job in leaving)
            if jobs & told:
                self._check_class(gpu, jobs & told, told, shortfall)
            if jobs - told:
                missing = shortfall - sum(self.loan(job, gpu) for job in told)
                self._check_class(gpu, jobs - told, self._stoppable(gpu, jobs) - told, missing)

    def _is_leaving(self, job: str, gpu: str) -> bool:
        one, sleep = self.node.jobs[job].suspension, self.node.jobs[job].sleep
        if sleep is not None and sleep.state is SleepState.ASKED and gpu in self.node.jobs[job].bounds:
            return True
        return one is not None and one.gpu == gpu and one.state is SuspendState.SUSPENDING

    def _counted_on(self, job: str, gpu: str) -> bool:
        """It has been told, and was not killed before this moment: who does not die is counted on no longer."""
        reclaim = self.node.jobs[job].reclaims.get(gpu) if job in self.node.jobs else None
        return reclaim is not None and reclaim.killed_at in {None, self.now}

    def _check_class(self, gpu: str, victims: set[str], among: set[str], missing: int) -> None:
        def level(job: str) -> tuple[int, int]:
            bounds = self.node.jobs[job].bounds[gpu]
            chose_no_loan = bounds.limit == bounds.request
            return (0 if self._lowered(job, gpu) else 2 if chose_no_loan else 1, self.node.jobs[job].spec.priority)

        highest = max(level(job) for job in victims)
        lower = sum(self._certain_loan(job, gpu) for job in among if level(job) < highest)
        assert lower < missing, "a victim of higher priority than needed"

    def _certain_loan(self, job: str, gpu: str) -> int:
        """None where only contexts that opened a moment ago make it: what they cost has not been seen yet."""
        young = self.now - self.policy.settling - self.policy.provisional_apart
        shares = [one for one in self.node.gpus[gpu].shares.values() if one.job == job and one.attached]
        fresh = sum(one.overhead for one in shares if not one.measured and one.since > young)
        loan = self.loan(job, gpu)
        return loan if loan > fresh else 0

    def _stoppable(self, gpu: str, victims: set[str]) -> set[str]:
        """Those who could be stopped for the claims that wait, `victims` and all that are on no such rung."""
        claimants = {self.programs[self.waiting[ask].program].job for ask in self._claims_on(gpu)}
        found = set()
        for job in self.node.jobs.values():
            if gpu not in job.bounds or job.id in claimants or self.now < self._protected_until(job):
                continue
            if job.suspension is not None or (job.sleep is not None and job.sleep.deadline is not None):
                continue
            if any(one.id in self.setuid for one in self.programs.values() if one.job == job.id):
                continue  # it has been told, and cannot be stopped
            under_reclaim = gpu in job.reclaims and job.reclaims[gpu].step > ReclaimStep.HOOK
            if job.id in victims or not under_reclaim:
                found.add(job.id)
        return found

    def _protected_until(self, job: Job) -> float:
        until = max(job.since + job.spec.min_run_time, job.resumed_at + self.policy.resume_runs)
        lacks = "suspend" in job.spec.on_reclaim and not job.suspender.connected
        if lacks or ("hook" in job.spec.on_reclaim and not job.hook_runner.connected):
            until = max(until, max(job.since, job.restored_at) + self.policy.suspender_comes)
        return until

    def _claims_on(self, gpu: str) -> list[int]:
        return [
            ask
            for ask, asked in self.waiting.items()
            if asked.gpu == gpu
            and self.node.jobs[self.programs[asked.program].job].suspension is None
            and gpu in self._bounds_of(asked)
            and (self._after(asked) <= self._bounds_of(asked)[gpu].request or self._only_guessed(asked))
        ]

    def _only_guessed(self, asked: Waiting) -> bool:
        """A context may fit into the request although the guess of its cost does not."""
        job = self.programs[asked.program].job
        within = self.usage(job, asked.gpu) < self._bounds_of(asked)[asked.gpu].request
        return asked.attach and within and "software GPU" not in self.node.state.overheads

    def _bounds_of(self, asked: Waiting) -> Mapping[str, Bounds]:
        return self.node.jobs[self.programs[asked.program].job].bounds

    # ---- suspending ------------------------------------------------------------------------------

    def _begin_work(self, wish: Suspend | Resume) -> None:
        job, suspends = self.node.jobs[wish.job], isinstance(wish, Suspend)
        mine = self._of(wish.job)
        assert {one.id for one in mine if one.words} == set(wish.processes), "not all processes of the job"
        assert all(one.away is not suspends for one in mine if one.words), "asked for what is so already"
        assert wish.job in self.suspenders and job.suspension is not None
        gpu = job.suspension.gpu
        assert all(set(one.words) <= {gpu} for one in mine), "suspended with memory on several GPUs"
        if suspends:
            self._check_suspend(job, gpu)
        else:
            self._check_physical(gpu)
            room = self.node.gpus[gpu].free
            assert room >= 0 or self.node.gpus[gpu].excess, "resumes into memory that is not there"
        modes = self.suspenders[wish.job]
        how = modes.pop(0) if len(modes) > 1 else modes[0]
        if any(one.stopped for one in mine):
            how = "refused"  # the driver would wait for it
        takes = self.suspender_takes if how != "silent" else 1e9
        if how in ("silent", "failed"):
            self.troubled.add(wish.job)
        self.work.append(Work(wish.job, wish.number, suspends, self.now + takes, how))

    def _check_suspend(self, job: Job, gpu: str) -> None:
        assert "suspend" in job.spec.on_reclaim, "it does not want to be suspended"
        assert not any(one.pinned for one in self._of(job.id) if gpu in one.words), "its memory cannot leave the GPU"
        hosted = sum(one.suspension.host for one in self.node.state.suspended.values() if one.suspension is not None)
        assert hosted <= self.policy.suspend_memory, "more in host memory than the limit"
        reason = job.suspension.reason if job.suspension is not None else None
        # A user's wish needs no claim, also one that was taken back while its suspender was away: that has no owner.
        if reason is not None and "owner" in reason.data and not job.suspension.held:  # type: ignore[union-attr]
            self._check_rung(job.id, reason.data)
            assert self.now >= self._protected_until(job), "a protected job is suspended"
            self._check_trims_first(gpu)
            self.hooks.check_first(job.id, gpu)

    def _check_suspends_first(self, victim: str, gpu: str) -> None:
        """Nobody is stopped who could be suspended within the claims' time, nor for what those could give who are left
        alone for a while yet."""
        assert not self._could_be_suspended(victim, gpu), "it could be suspended"
        claimants = {self.programs[self.waiting[ask].program].job for ask in self._claims_on(gpu)}
        here = [job for job in self.node.jobs.values() if gpu in job.bounds and job.id not in claimants]
        spared = [job.id for job in here if self.now < self._protected_until(job)]
        borrows = [one for one in spared if self._bounds_on(one, gpu).limit > self._bounds_on(one, gpu).request]
        later = [one for one in borrows if self._could_be_suspended(one, gpu)]
        given = sum(self._certain_loan(one, gpu) for one in later if gpu not in self.node.jobs[one].reclaims)
        assert not given or given < self._shortfall(gpu), "those who are left alone for a while could give enough"

    def _bounds_on(self, job: str, gpu: str) -> Bounds:
        return self.node.jobs[job].bounds[gpu]

    def _could_be_suspended(self, victim: str, gpu: str) -> bool:
        job, mine = self.node.jobs[victim], self._of(victim)
        failed = job.suspender.failure is not None and self.now - job.suspender.failure[0] < self.policy.suspend_again
        deadline = min((one.deadline for one in self.node.gpus[gpu].asks.values() if one.claim), default=0.0)
        can = "suspend" in job.spec.on_reclaim and job.suspender.connected and not failed and job.suspension is None
        can = can and not (job.sleep is not None and job.sleep.deadline is not None)
        can = can and not any(one.pinned for one in mine) and all(set(one.words) <= {gpu} for one in mine)
        can = can and not any(where == victim for where, _, _ in self.unhooked.values())
        can = can and not any(one.id in self.setuid for one in mine)
        rate = self.node.state.suspend_rate.get("software GPU", self.policy.suspend_rate)
        takes = self.usage(victim, gpu) / rate + ANSWER_MARGIN + self.policy.grace + self.policy.teardown
        in_time = max(self.now, self._protected_until(job)) + takes <= deadline
        return bool(can) and in_time and self.policy.suspend_memory >= 2**59

    def suspender_comes(self, job: str, *modes: str) -> None:
        """`modes`: how its pieces of work will go."""
        self.suspenders[job] = list(modes)
        if not any(work.job == job for work in self.work):
            self.send(SuspenderAnswered(job, 0, self.whereabouts(job)))

    def suspender_goes(self, job: str) -> None:
        """With it goes what it is just doing; the driver takes its way back, or completes it."""
        del self.suspenders[job]
        for work in [work for work in self.work if work.job == job]:
            self.work.remove(work)
            self._do(work, "ok" if work.how == "ok" else "refused")
            self.troubled.add(job)  # unless another comes in time, nobody says where the job is
        self.send(SuspenderGone(job))

    def whereabouts(self, job: str) -> str:
        mine = [one for one in self._of(job) if one.words]
        return "suspended" if mine and all(one.away for one in mine) else "running"

    def _do(self, work: Work, how: str) -> None:
        if how == "ok":
            for one in self._of(work.job):
                one.away = work.suspends and bool(one.words)
            for gpu in self.total:
                self._check_physical(gpu)

    def _end_work(self) -> None:
        for work in [work for work in self.work if work.done_at <= self.now]:
            if work not in self.work:
                continue
            self.work.remove(work)
            self._do(work, work.how)
            if work.job not in self.node.jobs:
                continue
            where = "failed" if work.how == "failed" else self.whereabouts(work.job)
            self.suspends += where == "suspended" and work.suspends
            self.resumes += where == "running" and not work.suspends
            for gpu in self.total:
                self.send(self._used_seen(gpu))
            self.send(
                SuspenderAnswered(
                    work.job, work.number if work.heard else 0, where, "" if work.how == "ok" else work.how
                )
            )

    def is_stopped(self, process: int) -> bool:
        """Its calls wait at the gate, or in the driver."""
        job = self.node.jobs.get(self.programs[process].job)
        away = any(one.away for one in self._of(self.programs[process].job))
        busy = any(work.job == self.programs[process].job for work in self.work)
        return away or busy or (job is not None and job.suspension is not None)

    # ---- verbs for random callers ---------------------------------------------------------------

    def submit(self, spec: JobSpec, wait: float | None = None) -> str:
        job = f"{self.next_id():016x}"
        self.ever_protected = self.ever_protected or spec.min_run_time > 0
        self.note_limit(spec.limit)
        self.jobs[job] = spec
        self.send(JobSubmitted(job, spec, wait))
        return job

    @property
    def reservations(self) -> list[str]:
        return list(self.node.state.reservations)

    def reserve(self, spec: JobSpec, lasting: float | None = None) -> str | None:
        """Its id, or None if it is refused."""
        id = f"{self.next_id():016x}"
        self.send(ReservationAsked(id, spec, lasting))
        return id if id in self.reservations else None

    def note_limit(self, limit: Quantity) -> None:
        """A context that is only guessed at is charged at most the limit: it may cost more."""
        small = any(limit.resolve(total) < self.policy.guess(total) for total in self.total.values())
        self.ever_tight = self.ever_tight or small

    def join(self, job: str) -> int:
        process = self.next_id()
        self.programs[process] = Program(process, job, 10_000 + process)
        self.send(ProcessJoined(process, job, 10_000 + process, "python"))
        return process

    def attach(self, process: int, gpu: str, *, another: bool = False) -> int:
        ask = self.next_id()
        self.waiting[ask] = Waiting(process, gpu, 0, self.now, attach=True, another=another)
        self.send(AttachAsked(ask, process, gpu, another=another))
        return ask

    def allocate(self, process: int, gpu: str, size: int) -> int | None:
        """As the shim does: from the credit if it fits, else ask for what is missing. The ask, if one was made."""
        word = self.programs[process].words[gpu]
        if word.used + size <= word.credit:
            word.used += size
            return None
        missing = size - (word.credit - word.used)
        word.used = word.credit  # what it has, it uses: the answer covers the rest
        ask = self.next_id()
        self.waiting[ask] = Waiting(process, gpu, missing, self.now, attach=False)
        self.send(CreditAsked(ask, process, gpu, missing, allocation=missing))
        return ask

    def free(self, process: int, gpu: str, size: int) -> None:
        word = self.programs[process].words[gpu]
        word.free(min(size, word.used))

    def open_contexts(self, process: int, gpu: str) -> int:
        """Each costs the same."""
        cost = self.programs[process].contexts.get(gpu, 0)
        return max(1, cost // self.cost[gpu]) if cost else 0

    def close_one(self, process: int, gpu: str) -> None:
        """One of its contexts, not the last: nobody tells the daemon."""
        if self.open_contexts(process, gpu) > 1:
            self.programs[process].contexts[gpu] -= self.cost[gpu]

    def detach(self, process: int, gpu: str) -> None:
        one = self.programs[process]
        if one.contexts.pop(gpu, None) is None:
            return
        one.words[gpu].free(one.words[gpu].used)
        self.takes = [take for take in self.takes if (take.program, take.gpu) != (process, gpu)]
        self.send(Detached(process, gpu, 0))

    def exit(self, process: int, lag: float = 0.0) -> None:
        one = self.programs.pop(process)
        self.waiting = {ask: asked for ask, asked in self.waiting.items() if asked.program != process}
        self.takes = [take for take in self.takes if take.program != process]
        for gpu, word in one.words.items():
            amount = 0 if one.away else word.used + one.contexts.get(gpu, 0)
            if amount and lag:
                self.teardown.append((self.now + lag, one.pid, gpu, amount))
        if lag >= self.policy.claim_timeout / 2:
            self.ever_lagging = True
        self.send(ProcessGone(process, {gpu: word.used for gpu, word in one.words.items()}))

    def die(self, process: int, lasting: float) -> None:
        """It is killed. Its exit takes a while, and the core hears of it after that."""
        one = self.programs[process]
        one.ends_at = self.now + lasting
        self.takes = [take for take in self.takes if take.program != process]

    def exec(self, process: int, lag: float = 0.0) -> int | None:
        """It becomes another program under the same process id. None: its job was over with it."""
        before = self.programs[process]
        self.exit(process, lag)
        if before.job not in self.node.jobs:
            return None
        for gpu in before.words:  # until it has said HELLO it is one of the job's processes without a page
            self.unhooked[before.pid] = (before.job, gpu, 0)
            self.send(self._sample(gpu))
            del self.unhooked[before.pid]
        after = self.next_id()
        self.programs[after] = Program(after, before.job, before.pid, listens=before.listens, dawdle=before.dawdle)
        self.programs[after].slow = before.slow
        self.send(ProcessJoined(after, before.job, before.pid, "python"))
        return after

    def pause(self, process: int, stopped: bool) -> None:
        one = self.programs[process]
        one.stopped = stopped
        if not stopped:
            self.trims += [(self.now, process, gpu) for gpu in one.trims_missed]
            one.trims_missed.clear()

    def end(self, job: str) -> None:
        self.send(JobEnded(job))

    def wait(self, seconds: float) -> None:
        """Let time pass, with all the wake-ups that the core has asked for, and the sampler's every second."""
        until = self.now + seconds
        while True:
            self._reap()
            self._end_work()
            self.hooks.end_those_done()
            self._act_on_trims()
            self._take_up()
            second = int(self.now) + 1.0
            tick = second if self.wake is None else max(self.now, min(self.wake, second))
            due = [work.done_at for work in self.work]
            tick = min([tick, *due, *self.hooks.next_times(), *(when for when, _, _ in self.trims), *self._ends()])
            if tick > until:
                break
            self.now = tick
            if self.wake is not None and self.wake <= self.now:
                self.wake = None
                self.send(TimePassed())
            if tick == second:
                for gpu in self.total:
                    self.send(self._sample(gpu))
        self.now = until
        self._reap()
        self._end_work()
        self.hooks.end_those_done()
        self._act_on_trims()

    def _reap(self) -> None:
        self.teardown = [entry for entry in self.teardown if entry[0] > self.now]
        for process in [one.id for one in self.programs.values() if one.doomed and not one.stubborn]:
            if process in self.programs:
                self.exit(process, lag=0.05)
        for process in [
            one.id for one in self.programs.values() if one.ends_at is not None and one.ends_at <= self.now
        ]:
            if process in self.programs:
                self.exit(process)

    def _ends(self) -> list[float]:
        return [one.ends_at for one in self.programs.values() if one.ends_at is not None]

    def occupy(self, gpu: str, amount: int) -> None:
        """A program outside gpushare takes memory (of what nobody uses physically)."""
        living = sum(one.words[gpu].used + one.contexts.get(gpu, 0) for one in self._on(gpu))  # also of those away
        dead = sum(size for _, _, where, size in self.teardown if where == gpu)
        self.foreign[gpu] = max(0, min(amount, self.node.gpus[gpu].capacity - living - dead))
        self.ever_foreign = self.ever_foreign or self.foreign[gpu] > 0
        self.send(self._sample(gpu))

    def escape(self, job: str, gpu: str, amount: int) -> int:
        """A program of the job that the shim is not in takes memory; its process id."""
        pid = 50_000 + self.next_id()
        self.unhooked[pid] = (job, gpu, amount)
        self.ever_foreign = True
        self.send(self._sample(gpu))
        return pid

    def condition(self, gpu: str) -> Condition:
        return max((one.condition for one in (*self.issues[gpu], *self.xids[gpu])), default=Condition.OK)

    def xid(self, gpu: str, number: int) -> None:
        """The driver reports an error."""
        self.xids[gpu] = (*self.xids[gpu], of_xid(number))
        self.send(XidSeen(gpu, number))

    def befall(self, gpu: str, *ailments: HealthIssue) -> None:
        """The GPU is examined, and this is what is wrong with it. Nobody goes on waiting for a GPU that is not well."""
        before, self.issues[gpu] = self.condition(gpu), ailments
        if before is Condition.LOST and not any(one.condition is Condition.LOST for one in ailments):
            self.xids[gpu] = ()
        self.send(GpuExamined(gpu, ailments))
        usable = [one for one in self.total if self.condition(one) < Condition.SICK]
        for waiting in self.node.state.queue.values():
            devices = waiting.spec.devices or tuple(self.total)
            assert len([one for one in devices if one in usable]) >= waiting.spec.gpus, "queues for a GPU that is out"
        if self.condition(gpu) is Condition.LOST:
            assert not [asked for asked in self.waiting.values() if asked.gpu == gpu], "waits for a GPU that is lost"

    def resize(self, gpu: str, total: int) -> None:
        """Pages were retired, or the driver keeps more for itself than before."""
        self.total[gpu] = total
        self.ever_foreign = True  # memory is missing that nobody in here has taken
        index = list(self.total).index(gpu)
        self.send(GpuFound(gpu, index, "software GPU", total))

    def restart(self) -> None:
        """The daemon is killed; another one finds its notes and the pages. Whoever waited asks again."""
        written = self.node.notes()
        self.claims += self.node.counters.claims
        self.relieved += self.node.counters.relieved
        self.node = NodeState(self.policy)
        self.told_to_stop.clear()
        self.pages.clear()
        self.xids = dict.fromkeys(self.total, ())  # the driver reports none twice
        asks, self.waiting = self.waiting, {}
        for take in self.takes:
            take.known = False
        for work in self.work:
            work.heard = False
        self.wake = None
        self._find_gpus()
        self.node.state.overheads.update(persistence.restore_overheads(written))
        for event in [*persistence.restore_reservations(written, 0.0), *persistence.restore(written, 0.0)]:
            self.send(event)
        queued = set(self.jobs) - set(self.node.jobs)
        for one in self.programs.values():
            seen = tuple(
                ShareSeen(gpu, word.used, word.credit, one.contexts.get(gpu, 0)) for gpu, word in one.words.items()
            )
            self.send(ProcessRestored(one.id, one.job, one.pid, seen, "python"))
        for job in [job for job in self.suspenders if job in self.node.jobs]:
            if not any(work.job == job for work in self.work):  # else it comes when it has done that
                self.send(SuspenderAnswered(job, 0, self.whereabouts(job)))
        self.hooks.restart()
        for gpu in self.total:
            self.send(self._sample(gpu))  # before anything is granted: the dead may still hold memory
        for job in queued:
            self.send(JobSubmitted(job, self.jobs[job], 60.0))
        for asked in asks.values():
            ask = self.next_id()
            self.waiting[ask] = Waiting(asked.program, asked.gpu, asked.size, self.now, asked.attach)
            again = AttachAsked if asked.attach else CreditAsked
            arguments = (ask, asked.program, asked.gpu) if asked.attach else (ask, asked.program, asked.gpu, asked.size)
            self.send(again(*arguments))


def mib(amount: float) -> int:
    return int(amount * MIB) // UNIT * UNIT
