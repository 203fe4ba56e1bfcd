"""Which job that is suspended, or asleep by its hook, gets its memory back next, and when.

First the one of the highest priority; of these the one that was suspended first. No other overtakes it: small jobs
would keep a large one waiting. Claims come before all of them, and take nothing back from a job that has just resumed
(Policy.resume_runs). A job resumes when all that it had fits, and what it asked for when it was suspended
(waiters.wanted), and none of its programs is stopped: the memory that it had is reserved before its suspender is asked,
and NVML has just shown it free. A restore that finds no room may fail, and cannot be tried again. The same holds for a
job with hooks (hooks.py), whose resume hook is called then.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpushare.quantity import format_bytes, format_duration
from gpushare.reasons import Words, words
from gpushared.core import hook_steps, hooks, lending, suspend, suspend_steps, visibility
from gpushared.core.model import Gpu, Job
from gpushared.core.sleep import Sleep, SleepState
from gpushared.core.state import State
from gpushared.core.suspension import SuspendState, Suspension
from gpushared.core.transaction import Transaction
from gpushared.core.waiters import footprint, gpus_of, in_order, stands_still, wanted

STANDS_STILL = (
    "it stands still (Ctrl-Z, SIGSTOP, a debugger or `docker pause`): it goes on when it is continued, by `fg`, "
    "`kill -CONT` or `docker unpause`"
)
LOOK_AGAIN = 0.1
"""Seconds for which the words count as they were read, before idle credit is taken for a job that resumes."""


def room_for(state: State, gpu: Gpu, job: Job) -> int:
    """Bytes that are free for the job: claims come first."""
    claimed = sum(ask.need for ask in gpu.asks.values() if ask.claim)
    return gpu.free - claimed - state.unlent(gpu.id, job)


def _within_reach(state: State, gpu: Gpu, job: Job) -> int:
    """Bytes that are free for the job, or can be taken from others that do not use them."""
    return room_for(state, gpu, job) + sum(amount for _, amount in lending.idle_of_others(state, gpu, job))


def resume_those_that_fit(tx: Transaction) -> None:
    """Look at the first in each GPU's order. Idle credit is revoked for it."""
    for gpu in tx.state.gpus.values():
        waiting = in_order(tx.state, gpu)
        if waiting and waiting[0].suspension is not None:
            _resume(tx, gpu, waiting[0], waiting[0].suspension)
        elif waiting and waiting[0].sleep is not None:
            _wake(tx, waiting[0], waiting[0].sleep)


def _resume(tx: Transaction, gpu: Gpu, job: Job, suspension: Suspension) -> None:
    ready = job.suspender.connected and tx.now >= suspension.not_before and not stands_still(tx.state, job)
    if ready and _has_room(tx, gpu, job, wanted(tx.state, gpu, job)):
        suspend_steps.resume(tx, job, suspend.allowed(tx.state, gpu, footprint(tx.state, job)))


def _wake(tx: Transaction, job: Job, sleep: Sleep) -> None:
    """On all its GPUs at once: it has to be the first on each."""
    if not job.hook_runner.connected or not job.hook_runner.wakes or tx.now < sleep.not_before:
        return
    if stands_still(tx.state, job):
        return
    gpus = [tx.state.gpus[id] for id in gpus_of(tx.state, sleep)]
    if any(in_order(tx.state, gpu)[0] is not job for gpu in gpus):
        return
    if all([_has_room(tx, gpu, job, hooks.lacking(job, gpu.id)) for gpu in gpus]):
        hook_steps.wake(tx, job)


def _has_room(tx: Transaction, gpu: Gpu, job: Job, size: int) -> bool:
    """Whether so many bytes are free for the job now, by NVML, too. If not, it takes a step towards that."""
    if gpu.revoking or gpu.health.lost or _blocked(gpu):
        return False
    missing = size - room_for(tx.state, gpu, job)
    if missing <= 0:
        if gpu.sampled_at >= tx.now - tx.policy.poll / 2:
            return True
        tx.sample(gpu)  # a restore without room may fail for good: ask NVML first
    elif missing <= tx.state.lendable(gpu):
        if gpu.seen_at < tx.now - LOOK_AGAIN:
            tx.look(gpu)  # what is idle, and nobody is about to use
        else:
            lending.take_idle(tx, gpu, job, missing)
    return False


def _blocked(gpu: Gpu) -> bool:
    """A claim waits for memory: it would have to be given back at once."""
    return any(ask.claim and ask.short for ask in gpu.asks.values())


def prospect(state: State, job: Job, now: float) -> Words:
    """When a suspended job goes on, for people."""
    suspension = job.suspension
    assert suspension is not None
    gpu = state.gpus[suspension.gpu]
    if suspension.state is not SuspendState.SUSPENDED:
        return f"it is {suspension.state}"
    if suspension.held:
        return words("it stays so until its user says `gpushare resume ", visibility.name(job.spec), "`")
    if not job.suspender.connected:
        return "its suspender has gone, and nobody else can bring it back: `gpushare resume` starts another"
    if stands_still(state, job):
        return STANDS_STILL
    if now < suspension.not_before:
        return f"to resume has failed, and is tried again in {format_duration(round(suspension.not_before - now, 1))}"
    if in_order(state, gpu)[0] is not job:
        return "others that are suspended come first"
    missing = wanted(state, gpu, job) - _within_reach(state, gpu, job)
    if missing > 0:
        return f"it goes on when {format_bytes(missing)} more of GPU {gpu.index} are free"
    return "it goes on now"


def prospect_of_sleeper(state: State, job: Job, now: float) -> Words:
    """When the resume hook of a job is called, for people."""
    sleep = job.sleep
    assert sleep is not None
    if job.suspension is not None:
        return "it is suspended, too: its resume hook is called when it runs again"
    if sleep.state is SleepState.WAKING:
        return "its resume hook runs, and that memory is kept free for it"
    if not job.hook_runner.connected:
        return "the process that calls its hooks has gone: `gpushare run` starts another"
    if stands_still(state, job):
        return STANDS_STILL
    if now < sleep.not_before:
        return f"its resume hook has failed, and is called again in {format_duration(round(sleep.not_before - now, 1))}"
    for gpu in (state.gpus[id] for id in gpus_of(state, sleep)):
        if in_order(state, gpu)[0] is not job:
            return "others that wait for their memory come first"
        missing = hooks.lacking(job, gpu.id) - _within_reach(state, gpu, job)
        if missing > 0:
            return f"its resume hook is called when {format_bytes(missing)} more of GPU {gpu.index} are free"
    return "its resume hook is called now"


def wakes(state: State) -> Iterator[float]:
    """When something about a suspended job has to be looked at."""
    for job, suspension in state.suspensions():
        given_up_at = suspend.given_up_at(state, job, suspension)
        if given_up_at is not None:
            yield given_up_at
        elif suspension.not_before > state.polled_at and not suspension.held:
            yield suspension.not_before
