"""Events about hooks: the process that runs them says how a call has ended, or goes; a deadline is over."""

from __future__ import annotations

from gpushared.core import hook_steps, hooks, lending
from gpushared.core.events import THERE, HookAnswered, HookRunnerGone
from gpushared.core.model import Job
from gpushared.core.sleep import SleepState
from gpushared.core.transaction import Transaction


def answered(tx: Transaction, event: HookAnswered) -> None:
    job = tx.state.jobs.get(event.job)
    if job is None:
        return
    if event.number in (0, THERE):
        _came(tx, job, event)
    elif job.sleep is not None and job.sleep.number == event.number:
        _over(tx, job, event.problem, event.seconds)
    for gpu in tx.state.gpus.values():
        lending.answer_asks(tx, gpu)


def _came(tx: Transaction, job: Job, event: HookAnswered) -> None:
    """What an earlier one ran has ended with that; one that was THERE before runs what it ran. One that comes to
    another daemon has ended what it ran for the last."""
    job.hook_runner.connected, job.hook_runner.wakes = True, event.wakes
    sleep = job.sleep
    if sleep is None or event.number == THERE:
        pass
    elif sleep.taken_over and sleep.state is SleepState.ASKED:
        if hooks.given(tx.state, job):
            hook_steps.relieved(tx, job, "", tx.now - sleep.since)
        else:
            hook_steps.not_called(tx, job)
    else:
        _over(tx, job, hook_steps.ENDED, tx.now - sleep.since)
    if job.sleep is not None and not job.hook_runner.wakes:
        tx.state.set_sleep(job, None)


def _over(tx: Transaction, job: Job, problem: str, seconds: float) -> None:
    assert job.sleep is not None
    if job.sleep.state is SleepState.ASKED:
        hook_steps.relieved(tx, job, problem, seconds)
    elif job.sleep.state is SleepState.WAKING:
        hook_steps.woken(tx, job, problem)


def gone(tx: Transaction, event: HookRunnerGone) -> None:
    """A call that is under way has time until its deadline: the wrapper starts another runner."""
    job = tx.state.jobs.get(event.job)
    if job is not None:
        job.hook_runner.goes(tx.now)


def deadlines_over(tx: Transaction) -> None:
    for job, sleep in list(tx.state.sleeps()):
        if sleep.deadline is not None and tx.now >= sleep.deadline:
            _over(tx, job, hook_steps.LATE, tx.now - sleep.since)
