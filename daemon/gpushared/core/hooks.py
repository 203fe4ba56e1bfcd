"""Which jobs are asked by their hooks for memory, and when their memory is to come back.

A hook is a command or URL of the job's user. The process that calls it belongs to that user, too: the daemon runs
nothing. What a hook has done is read from the job's account; what it says of itself only explains why it gave nothing.

Each call of a relief hook is followed by one of the resume hook, if the job has one: also after a relief hook that
failed or hung, because the program may have done half of it, or may do it later. Until then what is free of the job's
request is kept for it. While its resume hook runs, all that it had is kept for it: an engine that wakes into memory
that is not there may be lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpushare.reclaim_steps import ReclaimStep
from gpushared.core.model import Gpu, Job
from gpushared.core.sleep import SleepState
from gpushared.core.state import State
from gpushared.core.suspend import helper_until, time_before
from gpushared.core.transaction import Transaction

LEAST = 1.0
"""Seconds: with less time a hook is not called."""


def is_busy(job: Job) -> bool:
    """One of its hooks runs: it is neither suspended nor stopped meanwhile."""
    return job.sleep is not None and job.sleep.state is not SleepState.ASLEEP


def asked(state: State, gpu: Gpu) -> list[Job]:
    """Jobs whose relief hooks run, and that have memory on this GPU."""
    return [job for job, sleep in state.sleeps() if gpu.id in job.bounds and sleep.state is SleepState.ASKED]


def time_for(state: State, needed_by: float, now: float) -> float:
    """Seconds that a relief hook has, so that there is still a grace before `needed_by` if it gives nothing."""
    return min(state.policy.hook, time_before(state, needed_by, now))


def candidates(tx: Transaction, jobs: Sequence[Job], newest: float) -> Iterator[Job]:
    """Of these jobs, those whose relief hooks can be called when they are free for it. `newest`: when the last claim
    began, in seconds; a hook is called once for a claim."""
    for job in jobs if tx.policy.last_step >= ReclaimStep.HOOK else ():
        failed = job.hook_runner.failed_within(tx.policy.hook_again, tx.now)
        there = job.hook_runner.connected or tx.now < helper_until(tx.state, job)
        awake = (job.sleep is None or job.wakes_now) and job.suspension is None
        can = ReclaimStep.HOOK in job.spec.on_reclaim and there and awake
        if can and not failed and job.hook_runner.called_at < newest:
            yield job


def allocated(state: State, job: Job, gpu: str) -> int:
    return sum(share.used for share in state.shares_of(job, gpu))


def given(state: State, job: Job) -> dict[str, int]:
    """By GPU: bytes that it had allocated and has not now; without GPUs where that is nothing."""
    assert job.sleep is not None
    had = {gpu: amount for gpu, amount in job.sleep.allocated.items() if gpu in state.gpus}
    amounts = {gpu: amount - allocated(state, job, gpu) for gpu, amount in had.items()}
    return {gpu: amount for gpu, amount in amounts.items() if amount > 0}


def given_by_hook(state: State, job: Job) -> dict[str, int]:
    """The same as far as its relief hook has given it: what the job has freed by itself since does not count."""
    assert job.sleep is not None
    gave = job.sleep.gave
    amounts = given(state, job).items()
    found = {gpu: amount if gave is None else min(amount, gave.get(gpu, 0)) for gpu, amount in amounts}
    return {gpu: amount for gpu, amount in found.items() if amount}


def had(job: Job, gpu: str) -> int:
    """Bytes that it used on this GPU when its relief hook was called."""
    assert job.sleep is not None
    return job.sleep.had.get(gpu, 0)


def lacking(job: Job, gpu: str) -> int:
    """Bytes that it needs on this GPU to have what it had: its unused credit is its own when its resume hook runs."""
    return max(0, had(job, gpu) - job.committed.get(gpu, 0))


def wakes(state: State) -> Iterator[float]:
    """When something about a job with a hook has to be looked at."""
    for _, sleep in state.sleeps():
        if sleep.deadline is not None:
            yield sleep.deadline
        elif sleep.not_before > state.polled_at:
            yield sleep.not_before
