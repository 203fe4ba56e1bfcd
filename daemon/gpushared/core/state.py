"""The state of a node, and the sums over it. It makes no decisions.

Amounts are bytes:

    credit     what a process may use without asking; only the daemon changes it
    used       its `used` word as last read; the process changes it at any moment
    overhead   what it is charged beside its allocations (contexts, modules), guessed first, then measured
    committed  credit + overhead: what the daemon has given away, used or not
    usage      used + overhead
    idle       credit - used: can be taken back without asking the process

Sums and lists that every event needs are kept, not computed: a node can have a thousand jobs, a GPU hundreds of
processes. So only methods of State change what they are made of. invariants.py computes them again and compares.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from gpushare.reclaim_steps import ReclaimStep
from gpushared.core.instructions import Record
from gpushared.core.model import Ask, Bounds, Counters, Gpu, Job, Process, Reclaim, Reservation, Share, Submission
from gpushared.core.policy import Policy
from gpushared.core.sleep import Sleep
from gpushared.core.suspension import Parked, Suspension


@dataclass(slots=True)
class State:
    """Everything that the core knows."""

    policy: Policy
    gpus: dict[str, Gpu] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    non_lending: dict[str, Job] = field(default_factory=dict)
    """The jobs that lend nothing now (Job.lends_nothing)."""
    suspended: dict[str, Job] = field(default_factory=dict)
    """Jobs with a suspension, of whatever state."""
    asleep: dict[str, Job] = field(default_factory=dict)
    """Jobs with a sleep, of whatever state."""
    suspend_rate: dict[str, float] = field(default_factory=dict)
    """Bytes a second that leave a GPU for host memory, by name of the GPU, as last seen."""
    host_available: int | None = None
    """Bytes of host memory that could be used without swapping, as last read."""
    commands: int = 0
    """How many commands suspenders and runners of hooks were given so far."""
    over_limit: set[str] = field(default_factory=set)
    """Jobs with an excess."""
    processes: dict[int, Process] = field(default_factory=dict)
    queue: dict[str, Submission] = field(default_factory=dict)
    reservations: dict[str, Reservation] = field(default_factory=dict)
    asks: dict[int, Ask] = field(default_factory=dict)
    overheads: dict[str, int] = field(default_factory=dict)
    """Learned cost of a context, by name of the GPU."""
    polled_at: float = 0.0
    """When time last passed."""
    counters: Counters = field(default_factory=Counters)
    records: list[Record] = field(default_factory=list)

    # ---- jobs ----------------------------------------------------------------------------------

    def add_job(self, job: Job) -> None:
        self.jobs[job.id] = job
        self._note_lending(job)
        for gpu, bounds in job.bounds.items():
            self._request(job, gpu, bounds.request)

    def drop_job(self, job: Job) -> None:
        del self.jobs[job.id]
        self.non_lending.pop(job.id, None)
        self.suspended.pop(job.id, None)
        self.asleep.pop(job.id, None)
        self.over_limit.discard(job.id)
        for gpu, bounds in job.bounds.items():
            self._request(job, gpu, -bounds.request)

    def bind(self, job: Job, gpu: str, bounds: Bounds) -> None:
        """Admit the job on the GPU, or change its bounds there."""
        earlier = job.bounds.get(gpu)
        self._request(job, gpu, bounds.request - (earlier.request if earlier else 0))
        job.bounds[gpu] = bounds

    def _request(self, job: Job, gpu: str, more: int) -> None:
        """The request of a job in a reservation is taken from that first."""
        self.gpus[gpu].requested += more
        inside = self.reservations.get(job.spec.reservation)
        if inside is not None:
            before = self.remainder(inside, gpu)
            inside.inside[gpu] = inside.inside.get(gpu, 0) + more
            self.gpus[gpu].reserved += self.remainder(inside, gpu) - before

    def add_reservation(self, one: Reservation) -> None:
        """Jobs may be inside already, if an earlier daemon had made it."""
        one.inside = self._requests_inside(one)
        self.reservations[one.id] = one
        for gpu in one.amounts:
            self.gpus[gpu].reserved += self.remainder(one, gpu)

    def drop_reservation(self, one: Reservation) -> None:
        del self.reservations[one.id]
        for gpu in one.amounts:
            self.gpus[gpu].reserved -= self.remainder(one, gpu)

    def _requests_inside(self, one: Reservation) -> dict[str, int]:
        requests: dict[str, int] = {}
        for job in self.jobs.values():
            if job.spec.reservation == one.id:
                for gpu, bounds in job.bounds.items():
                    requests[gpu] = requests.get(gpu, 0) + bounds.request
        return requests

    def begin_reclaim(self, job: Job, reclaim: Reclaim) -> None:
        job.reclaims[reclaim.gpu] = reclaim
        self.gpus[reclaim.gpu].under_reclaim[job.id] = job

    def end_reclaim(self, job: Job, gpu: str) -> Reclaim | None:
        """Returns the reclaim, if there was one."""
        self.gpus[gpu].under_reclaim.pop(job.id, None)
        return job.reclaims.pop(gpu, None)

    # ---- suspended jobs --------------------------------------------------------------------------

    def set_suspension(self, job: Job, suspension: Suspension | None) -> None:
        job.suspension = suspension
        self.suspended.pop(job.id, None)
        if suspension is not None:
            self.suspended[job.id] = job
        self._note_lending(job)

    def suspensions(self, gpu: str | None = None) -> Iterator[tuple[Job, Suspension]]:
        """The suspensions of all jobs, or of jobs with their memory on this GPU."""
        for job in self.suspended.values():
            if job.suspension is not None and gpu in (None, job.suspension.gpu):
                yield job, job.suspension

    def sleeps(self) -> Iterator[tuple[Job, Sleep]]:
        """The sleeps of jobs whose relief hook was called."""
        for job in self.asleep.values():
            if job.sleep is not None:
                yield job, job.sleep

    def set_sleep(self, job: Job, sleep: Sleep | None) -> None:
        job.sleep = sleep
        self.asleep.pop(job.id, None)
        if sleep is not None:
            self.asleep[job.id] = job
        self._note_lending(job)

    def _note_lending(self, job: Job) -> None:
        """Keep the list up to date. A suspended job, for example, lends nothing: so it only waits for its loan to
        resume."""
        if job.lends_nothing:
            self.non_lending[job.id] = job
        else:
            self.non_lending.pop(job.id, None)

    def park(self, share: Share) -> None:
        """Note that its memory has left the GPU."""
        share.parked = Parked(share.credit, share.used, share.overhead)
        self._sum(share, -share.committed, -share.usage)
        share.credit = share.used = share.overhead = 0
        self.end_hold(share)

    def unpark(self, share: Share) -> None:
        """Its memory is about to return. What it was charged meanwhile is a part of that memory."""
        parked, share.parked = share.parked, None
        assert parked is not None
        self._sum(share, -share.committed, -share.usage)
        share.credit, share.used, share.overhead = parked.credit, parked.used, parked.overhead
        self._sum(share, share.committed, share.usage)

    # ---- sums ----------------------------------------------------------------------------------

    def add_share(self, share: Share) -> None:
        self.processes[share.process].shares[share.gpu] = share
        self.gpus[share.gpu].shares[share.process] = share
        job = self.jobs[share.job]
        job.committed.setdefault(share.gpu, 0)
        job.usage.setdefault(share.gpu, 0)
        self._sum(share, share.committed, share.usage)

    def drop_share(self, share: Share) -> None:
        del self.processes[share.process].shares[share.gpu]
        del self.gpus[share.gpu].shares[share.process]
        self.gpus[share.gpu].guessed.discard(share.process)
        self.gpus[share.gpu].holds.pop(share.process, None)
        self._sum(share, -share.committed, -share.usage)

    def change(self, share: Share, *, credit: int = 0, overhead: int = 0) -> None:
        """Add to a share's credit and overhead (either may be negative)."""
        share.credit += credit
        share.overhead += overhead
        self._sum(share, credit + overhead, overhead)

    def see(self, share: Share, used: int) -> bool:
        """Note what its word says. Returns whether that has changed."""
        if share.parked is not None:
            return False
        used = min(used, share.credit)
        if used == share.used:
            return False
        self._sum(share, 0, used - share.used)
        share.used = used
        return True

    def _sum(self, share: Share, committed: int, usage: int) -> None:
        id, job = share.gpu, self.jobs[share.job]
        gpu = self.gpus[id]
        gpu.committed += committed
        gpu.usage += usage
        job.committed[id] += committed
        job.usage[id] += usage

    def in_limit(self, job: Job, gpu: Gpu) -> int:
        """Bytes until the job's limit. The limit is for memory that the driver shows, so memory of its ended processes
        counts until it is free."""
        return job.bounds[gpu.id].limit - job.committed.get(gpu.id, 0) - gpu.returning_of(job.id)

    def note_excess(self, job: Job, gpu: str) -> None:
        """After a change that takes nothing away (a lower limit, a measurement), more may be held than is allowed."""
        over = job.committed.get(gpu, 0) - job.bounds[gpu].limit
        if over > 0:
            job.excess[gpu] = over
            self.over_limit.add(job.id)
        self.gpus[gpu].excess = max(0, -self.gpus[gpu].free)

    def work_off_excess(self) -> None:
        """An excess never grows here: memory that was given back since is not taken again."""
        for gpu in self.gpus.values():
            if gpu.excess:
                gpu.excess = min(gpu.excess, max(0, -gpu.free))
            if gpu.overpromised:
                promised = gpu.requested + self.reserved(gpu.id)
                gpu.overpromised = min(gpu.overpromised, max(0, promised - gpu.capacity))
        for job in [self.jobs[id] for id in self.over_limit]:
            for id in list(job.excess):
                over = job.committed.get(id, 0) - job.bounds[id].limit
                job.excess[id] = min(job.excess[id], over)
                if over <= 0:
                    del job.excess[id]
            if not job.excess:
                self.over_limit.discard(job.id)

    # ---- views ---------------------------------------------------------------------------------

    def shares_of(self, job: Job, gpu: str) -> list[Share]:
        """The job's shares of one GPU."""
        found = (self.processes[process].shares.get(gpu) for process in job.processes)
        return [share for share in found if share is not None]

    def suspendable_shares(self, job: Job, gpu: str) -> list[Share]:
        """The same for its processes with a page, because only these are suspended."""
        return [share for share in self.shares_of(job, gpu) if share.process > 0]

    def protected_until(self, job: Job) -> float:
        """Until this time it is neither suspended nor stopped for others: it has just started or resumed, or the
        process that suspends it or calls its hooks is still on its way."""
        until = max(job.since + job.spec.min_run_time, job.resumed_at + self.policy.resume_runs)
        lacks_suspender = ReclaimStep.SUSPEND in job.spec.on_reclaim and not job.suspender.connected
        if lacks_suspender or (ReclaimStep.HOOK in job.spec.on_reclaim and not job.hook_runner.connected):
            until = max(until, self.policy.helper_due(job))
        return until

    def has_share(self, job: Job, gpu: str) -> bool:
        return any(gpu in self.processes[process].shares for process in job.processes)

    def usage(self, job: Job, gpu: str) -> int:
        return job.usage.get(gpu, 0)

    def loan(self, job: Job, gpu: str) -> int:
        bounds = job.bounds.get(gpu)
        return max(0, self.usage(job, gpu) - (bounds.request if bounds else 0))

    def owners(self, gpu: str) -> list[Job]:
        """The jobs that are admitted on a GPU."""
        return [job for job in self.jobs.values() if gpu in job.bounds]

    def unlent(self, gpu: str, but: Job) -> int:
        """Bytes that owners have not used and do not lend: free for them only."""
        if not self.non_lending:
            return 0
        return sum(job.kept(gpu) for job in self.non_lending.values() if job is not but and gpu in job.bounds)

    def lendable(self, gpu: Gpu) -> int:
        """Idle credit of all shares that others may have."""
        if not self.non_lending:
            return gpu.idle
        kept = 0
        for job in self.non_lending.values():
            idle = sum(share.idle for share in self.shares_of(job, gpu.id))
            kept += max(0, idle - job.above_own(gpu.id)) if idle else 0
        return gpu.idle - kept

    def end_hold(self, share: Share) -> None:
        """Its calls have taken what they were granted, or have had enough time for it."""
        self.gpus[share.gpu].holds.pop(share.process, None)
        share.granted.clear()

    def held(self, gpu: Gpu, *, against_claims: bool) -> dict[int, int]:
        """Process -> idle credit that its calls were granted and are about to take.

        It is not revoked meanwhile: otherwise two programs could take the same memory from each other without end.
        Against a claim only credit within the holder's own request is held. That is part of its guarantee, so the
        loans of others are still enough for all waiting claims.
        """
        found = {process: gpu.shares[process].pending for process in gpu.holds}
        if not against_claims:
            return found
        headroom: dict[str, int] = {}
        for process, pending in found.items():
            job = self.jobs[gpu.shares[process].job]
            left = headroom.get(job.id, max(0, job.bounds[gpu.id].request - self.usage(job, gpu.id)))
            found[process] = min(pending, left)
            headroom[job.id] = left - found[process]
        return found

    def revocable(self, share: Share) -> int:
        """Idle credit of a share that others may have. If its job lends nothing, do not add this up over its shares."""
        own = self.non_lending.get(share.job)
        return share.idle if own is None else min(share.idle, own.above_own(share.gpu))

    def remainder(self, reservation: Reservation, gpu: str) -> int:
        """Bytes of it on the GPU that no job in it has requested."""
        return max(0, reservation.amounts.get(gpu, 0) - reservation.inside.get(gpu, 0))

    def reserved(self, gpu: str) -> int:
        """Sum of the remainders of all reservations."""
        return self.gpus[gpu].reserved
