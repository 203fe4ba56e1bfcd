"""What always holds of the state: checked after each event of each test, and now and then in a running daemon."""

from __future__ import annotations

from collections import Counter

from gpushare.reclaim_steps import ReclaimStep
from gpushared.core.model import Gpu, Job
from gpushared.core.sleep import SleepState
from gpushared.core.state import State
from gpushared.core.suspension import SuspendState


class InvariantError(AssertionError):
    """validate() found the state in contradiction with itself."""


def validate(state: State) -> None:
    """Raise InvariantError where the state contradicts itself."""
    for gpu in state.gpus.values():
        _validate_gpu(state, gpu)
    for job in state.jobs.values():
        _validate_job(state, job)
    for one in state.reservations.values():
        inside = {gpu: amount for gpu, amount in one.inside.items() if amount}
        expected = {gpu: amount for gpu, amount in state._requests_inside(one).items() if amount}
        _hold(inside == expected, f"reservation {one.id}: the requests inside are out of step")
    for process in state.processes.values():
        _hold(process.job in state.jobs, f"process {process.id:x} belongs to a job that is not there")
        _hold(
            process.id in state.jobs[process.job].processes,
            f"job {process.job} does not know {process.id:x}",
        )
    waiting = {ask for gpu in state.gpus.values() for ask in gpu.asks}
    _hold(waiting == set(state.asks), "an ask is known to a GPU or to the node, but not to both")
    for ask in state.asks.values():
        _hold(ask.process in state.processes, f"ask {ask.id} of a process that is gone")
    non_lending = {job.id for job in state.jobs.values() if job.lends_nothing}
    _hold(non_lending == set(state.non_lending), "the list of those who lend nothing is out of step")
    suspended = {job.id for job in state.jobs.values() if job.suspension is not None}
    _hold(suspended == set(state.suspended), "the list of suspended jobs is out of step")
    asleep = {job.id for job in state.jobs.values() if job.sleep is not None}
    _hold(asleep == set(state.asleep), "the list of jobs with a hook that was called is out of step")
    over_limit = {job.id for job in state.jobs.values() if job.excess}
    _hold(state.over_limit == over_limit, "the list of excesses is out of step")


def _validate_gpu(state: State, gpu: Gpu) -> None:
    shares = gpu.shares.values()
    _hold(gpu.committed == sum(share.committed for share in shares), f"{gpu.id}: committed is out of step")
    _hold(gpu.usage == sum(share.usage for share in shares), f"{gpu.id}: usage is out of step")
    owners = state.owners(gpu.id)
    requests = sum(job.bounds[gpu.id].request for job in owners)
    _hold(gpu.requested == requests, f"{gpu.id}: requested is out of step")
    remainders = sum(state.remainder(one, gpu.id) for one in state.reservations.values())
    _hold(gpu.reserved == remainders, f"{gpu.id}: reserved is out of step")
    under_reclaim = {job.id for job in owners if gpu.id in job.reclaims}
    _hold(set(gpu.under_reclaim) == under_reclaim, f"{gpu.id}: the list of jobs under reclaim is wrong")
    _hold(
        gpu.committed + gpu.unmanaged + gpu.returning_total <= gpu.capacity + gpu.excess,
        f"{gpu.id}: more is given away than there is",
    )
    # Invariant 1: admission.
    promised = gpu.requested + state.reserved(gpu.id)
    _hold(promised <= gpu.capacity + gpu.overpromised, f"{gpu.id}: requests exceed the capacity")
    worst = max((one.condition for one in gpu.health.issues), default=0)
    _hold(gpu.health.condition == worst, f"{gpu.id}: its condition is not that of its issues")
    _hold(not (gpu.health.lost and gpu.asks), f"{gpu.id}: somebody waits for a GPU that is lost")
    for process in gpu.holds:
        _hold(process in gpu.shares, f"{gpu.id}: credit is held for a process that is gone")
    # Two claims cannot starve each other: credit that is held against a claim is part of its holder's guarantee.
    held: Counter[str] = Counter()
    for process, amount in state.held(gpu, against_claims=True).items():
        held[gpu.shares[process].job] += amount
    for job in owners:
        room = max(0, job.bounds[gpu.id].request - state.usage(job, gpu.id))
        _hold(held[job.id] <= room, f"{gpu.id}: more is held for job {job.id} than its request has room for")
    for share in shares:
        _hold(share.credit >= 0 and share.overhead >= 0 and share.used >= 0, f"{gpu.id}: a share below zero")
        _hold(share.used <= share.credit, f"{gpu.id}: process {share.process:x} uses more than its credit")
        _hold(state.processes[share.process].shares.get(gpu.id) is share, f"{gpu.id}: a share of nobody")


def _validate_job(state: State, job: Job) -> None:
    for process in job.processes:
        _hold(process in state.processes, f"job {job.id} has a process that is gone")
    for gpu, committed in job.committed.items():
        shares = state.shares_of(job, gpu)
        _hold(
            committed == sum(share.committed for share in shares),
            f"job {job.id}: committed is out of step",
        )
        usage = sum(share.usage for share in shares)
        _hold(job.usage[gpu] == usage, f"job {job.id}: usage is out of step")
        if gpu not in job.bounds:
            _hold(committed == 0, f"job {job.id} holds memory on a GPU where it was not admitted")
            continue
        # Invariant 2: the cap.
        limit = job.bounds[gpu].limit + job.excess.get(gpu, 0)
        _hold(committed <= limit, f"job {job.id} has more than its limit")
    _hold(job.aside is None or job.spec.idle_release is not None, f"job {job.id} steps aside without a policy")
    for bounds in job.bounds.values():
        _hold(0 <= bounds.request <= bounds.limit, f"job {job.id}: request above limit")
    _validate_suspension(state, job)
    _validate_sleep(job)
    for reclaim in job.reclaims.values():
        # Invariant 5: a job within its request is never a victim.
        bounds = job.bounds[reclaim.gpu]
        _hold(reclaim.loan > 0, f"job {job.id} is a victim without a loan")
        _hold(reclaim.owner != job.id, f"job {job.id} is the victim of its own claim")


def _validate_suspension(state: State, job: Job) -> None:
    """All processes of a job are suspended, or none. None of them has credit then."""
    one = job.suspension
    parked = [share for process in job.processes for share in state.processes[process].shares.values() if share.parked]
    _hold(one is not None or not parked, f"job {job.id} runs with memory that is not there")
    if one is None:
        return
    for share in state.suspendable_shares(job, one.gpu):
        if one.state is SuspendState.SUSPENDED:
            _hold(share.parked is not None, f"job {job.id} is suspended in part")
            _hold(share.credit == share.used == 0, f"job {job.id} is suspended with credit")
        elif one.state is SuspendState.RESUMING:
            _hold(share.parked is None, f"job {job.id} resumes without its memory")
    step = {reclaim.step for reclaim in job.reclaims.values()}
    _hold(not step or step == {ReclaimStep.SUSPEND}, f"job {job.id} is suspended and told to stop for its loan")


def _validate_sleep(job: Job) -> None:
    """A job whose hook runs is asked by nothing else."""
    for reclaim in job.reclaims.values():
        if reclaim.step is ReclaimStep.HOOK and not reclaim.answered:
            asked = job.sleep is not None and job.sleep.state is SleepState.ASKED
            _hold(asked, f"job {job.id} is asked by a hook that nobody runs")
    if job.sleep is not None:
        runs = job.sleep.deadline is not None
        _hold(runs is (job.sleep.state is not SleepState.ASLEEP), f"job {job.id}: a hook without a deadline")


def _hold(condition: bool, message: str) -> None:
    if not condition:
        raise InvariantError(message)
