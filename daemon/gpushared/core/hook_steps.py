"""Carries out what hooks.py and resume.py decide about jobs with hooks, with notices and records."""

from __future__ import annotations

from typing import NamedTuple

from gpushare.quantity import format_bytes, format_duration
from gpushare.reasons import Code, Reason
from gpushare.reclaim_steps import ReclaimStep
from gpushared.core import hooks
from gpushared.core.events import AsleepBefore
from gpushared.core.instructions import CallHook, Notify, Persist, Publish
from gpushared.core.model import Job
from gpushared.core.sleep import Sleep, SleepState
from gpushared.core.suspend import ANSWER_MARGIN
from gpushared.core.suspend_steps import LONGEST_PAUSE
from gpushared.core.transaction import Transaction

LATE = "it has not ended in time"
ENDED = "the process that runs it was ended in the middle"


class Wish(NamedTuple):
    """What a relief hook is called for."""

    size: int
    """Bytes."""
    within: float
    """Seconds that it has."""


def relieve(tx: Transaction, job: Job, gpu: str, wish: Wish) -> None:
    """Have its relief hook called for memory of this GPU."""
    had = {id: tx.state.usage(job, id) for id in job.bounds if tx.state.usage(job, id)}
    allocated = {id: hooks.allocated(tx.state, job, id) for id in had}
    sleep = Sleep(SleepState.ASKED, tx.now, tx.next_command(), had, allocated)
    sleep.deadline = _answer_due(tx, wish.within)
    tx.state.set_sleep(job, sleep)
    job.hook_runner.called_at = tx.now
    tx.state.counters.hooks += 1
    tx.emit(CallHook(job.id, sleep.number, "relief", gpu, wish.size, wish.within))
    tx.emit(Persist())


def _answer_due(tx: Transaction, within: float) -> float:
    """When a runner counts as silent whose hook has so many seconds."""
    return tx.now + within + ANSWER_MARGIN


def restore(tx: Transaction, job: Job, before: AsleepBefore) -> None:
    """As an earlier daemon has noted it. A hook that was called then may still run: its runner comes when it has ended.
    What is kept for a resume hook stays kept."""
    had, allocated, gave = (
        {gpu: amount for gpu, amount in (noted or {}).items() if gpu in job.bounds}
        for noted in (before.had, before.allocated, before.gave)
    )
    sleep = Sleep(SleepState.ASLEEP, tx.now - before.age, 0, had, allocated, None if before.gave is None else gave)
    if before.command:
        sleep.state, sleep.number = SleepState.ASKED if before.relief else SleepState.WAKING, before.command
        within = tx.policy.hook if before.relief else tx.policy.hook_resume
        sleep.deadline, sleep.taken_over = _answer_due(tx, within), True
        tx.note_command(before.command)
    tx.state.set_sleep(job, sleep)


def relieved(tx: Transaction, job: Job, problem: str, seconds: float) -> None:
    """The call is over. What it has given is what the account says."""
    sleep, given = job.sleep, hooks.given(tx.state, job)
    assert sleep is not None
    got = sum(given.values())
    sleep.gave = given
    for reclaim in job.reclaims.values():
        reclaim.answered = reclaim.answered or reclaim.step is ReclaimStep.HOOK
    sleep.state, sleep.deadline = SleepState.ASLEEP, None
    if got:
        _gave(tx, job, given, problem, seconds)
    else:
        _gave_nothing(tx, job, problem or "it has ended well, and the job uses as much as before")
    if not job.hook_runner.wakes:
        tx.state.set_sleep(job, None)
    for id in job.bounds:
        tx.emit(Publish(id))
    tx.emit(Persist())


def not_called(tx: Transaction, job: Job) -> None:
    """An earlier daemon has ended before its runner heard the call, or the runner with it, and nothing was given.
    Nothing has failed, so it may be called again at once."""
    tx.state.set_sleep(job, None)
    for id in job.bounds:
        tx.emit(Publish(id))
    tx.emit(Persist())


def _gave(tx: Transaction, job: Job, given: dict[str, int], problem: str, seconds: float) -> None:
    got = sum(given.values())
    tx.state.counters.hook_bytes += got
    amounts = " and ".join(f"{format_bytes(size)} of GPU {tx.state.gpus[id].index}" for id, size in given.items())
    after = f" in {format_duration(round(seconds, 1))}" + (f", although it failed: {problem}" if problem else "")
    facts = {"got": got, "seconds": seconds}
    tx.record("hook_gave", f"its hook has given {amounts} back{after}", job=job, gpu=next(iter(given)), **facts)
    hint = "it takes memory again when it needs some"
    if job.hook_runner.wakes:
        hint = "its resume hook is called when there is room again; that memory is kept free for it then"
    reason = Reason(Code.HOOK, f"{_the_hook(job)} has given {amounts} back", hint=hint, data={"got": got})
    tx.emit(Notify(job.id, "hook", reason))


def _gave_nothing(tx: Transaction, job: Job, problem: str) -> None:
    job.hook_runner.failure = (tx.now, problem)
    tx.state.counters.hook_failures["relief"] += 1
    tx.record("hook_failed", f"its hook has given nothing back: {problem}", job=job)
    reason = Reason(
        Code.HOOK_FAILED,
        f"{_the_hook(job)} has given nothing back: {problem}",
        hint=f"{'the next reclaim step follows; ' if job.reclaims else ''}try the hook by hand while the program runs",
        data={"hook": "relief"},
    )
    tx.emit(Notify(job.id, "hook_failed", reason))


def _the_hook(job: Job) -> str:
    """Says why it was called if no owner wanted memory."""
    if job.aside is None or not job.aside.under_way or job.aside.step is not ReclaimStep.HOOK or job.reclaims:
        return "this job's hook"
    return "this job's hook, called because the job is idle,"


def wake(tx: Transaction, job: Job) -> None:
    """Keep free what it had, and have its resume hook called."""
    sleep = job.sleep
    assert sleep is not None
    given = hooks.given(tx.state, job)
    sleep.state, sleep.number, sleep.taken_over = SleepState.WAKING, tx.next_command(), False
    sleep.deadline = _answer_due(tx, tx.policy.hook_resume)
    gpu = next(iter(given), next(iter(sleep.had), next(iter(job.bounds), "")))
    tx.emit(CallHook(job.id, sleep.number, "resume", gpu, sum(given.values()), tx.policy.hook_resume))
    tx.emit(Persist())
    for id in sleep.had:
        tx.emit(Publish(id))


def woken(tx: Transaction, job: Job, problem: str) -> None:
    """That call is over. One that failed is repeated, unless the account says that the memory is in use again."""
    sleep = job.sleep
    assert sleep is not None
    if problem and hooks.given(tx.state, job):
        _not_woken(tx, job, sleep, problem)
    else:
        tx.state.set_sleep(job, None)
        job.resumed_at = job.active_at = tx.now
        tx.state.counters.wakes += 1
        span = format_duration(round(tx.now - sleep.since, 1))
        tx.record("awake", f"is awake, {span} after its hook was called", job=job, seconds=tx.now - sleep.since)
        message = f"this job may use its memory again, {span} after its hook was called"
        tx.emit(Notify(job.id, "awake", Reason(Code.AWAKE, message)))
        tx.emit(Persist())
    for id in sleep.had:
        tx.emit(Publish(id))


def _not_woken(tx: Transaction, job: Job, sleep: Sleep, problem: str) -> None:
    pause = min(LONGEST_PAUSE, tx.policy.resume_retry * 2**sleep.failures)
    sleep.state, sleep.deadline, sleep.not_before = SleepState.ASLEEP, None, tx.now + pause
    sleep.failures += 1
    tx.state.counters.hook_failures["resume"] += 1
    what = f"its resume hook has failed, and is called again in {format_duration(pause)}: {problem}"
    tx.record("not_awake", what, job=job)
    tx.emit(Persist())
    if sleep.failures == 1:
        reason = Reason(Code.HOOK_FAILED, f"this job's {what[4:]}", data={"hook": "resume"})
        tx.emit(Notify(job.id, "hook_failed", reason))
