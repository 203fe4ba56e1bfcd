"""Events about suspending: a suspender answers or goes, a user wants a job suspended or resumed, a deadline is over."""

from __future__ import annotations

from gpushare.reasons import Code, Reason
from gpushared.core import lending, resume, suspend, suspend_steps
from gpushared.core.events import ResumeWanted, SuspenderAnswered, SuspenderGone, SuspendWanted
from gpushared.core.instructions import Denied, Persist, SuspendNoted, SuspendRefused
from gpushared.core.model import Job
from gpushared.core.suspension import SuspendState, Suspension
from gpushared.core.transaction import Transaction

LOST = "the driver says that some of its processes have failed, or does not say where they are"

WAITS = "this job is suspended: a context opens when it runs again"


def answered(tx: Transaction, event: SuspenderAnswered) -> None:
    job = tx.state.jobs.get(event.job)
    if job is None:
        return
    if event.number == 0:
        job.suspender.connected, job.suspender.problem = True, event.problem
    suspension = job.suspension
    if suspension is None:
        _found(tx, job, event)
    elif event.number in (0, suspension.number):
        _moved(tx, job, suspension, event)
    for gpu in tx.state.gpus.values():
        lending.answer_asks(tx, gpu)


def _moved(tx: Transaction, job: Job, suspension: Suspension, event: SuspenderAnswered) -> None:
    problem = event.problem or "its suspender was ended in the middle"
    leaving = suspension.state in (SuspendState.SUSPENDING, SuspendState.STUCK)
    match event.where, suspension.state:
        case _ if job.killed is not None:
            return
        case "suspended", SuspendState.SUSPENDED:
            return
        case "suspended", SuspendState.RESUMING:
            suspend_steps.not_resumed(tx, job, problem)
        case "suspended", _:
            suspend_steps.suspended(tx, job, event.seconds if event.number else 0.0)  # 0: what its look has taken
        case "running", SuspendState.SUSPENDING if event.number == 0 and suspend_steps.ask_again(tx, job):
            return
        case "running", _ if leaving:
            suspend_steps.not_suspended(tx, job, problem)
        case "running", _:
            suspend_steps.resumed(tx, job, event.seconds)
        case "failed", SuspendState.STUCK:
            return
        case "failed", _:
            suspend_steps.stuck(tx, job, event.problem or LOST)
        case _:
            return


def _found(tx: Transaction, job: Job, event: SuspenderAnswered) -> None:
    """A job that is suspended though nothing says so: somebody has done it by hand, or the notes were lost."""
    gpu = suspend.gpu_of(tx.state, job)
    if event.where == "suspended" and gpu is not None:
        usage = tx.state.usage(job, gpu)
        tx.state.set_suspension(job, Suspension(gpu, SuspendState.SUSPENDING, tx.now, event.number, usage))
        suspend_steps.suspended(tx, job, 0.0)


def gone(tx: Transaction, event: SuspenderGone) -> None:
    """A step that is under way has time until its deadline: the wrapper starts another suspender."""
    job = tx.state.jobs.get(event.job)
    if job is not None:
        job.suspender.goes(tx.now)


def suspend_wanted(tx: Transaction, event: SuspendWanted) -> None:
    job = tx.state.jobs.get(event.job)
    if job is None:
        _refuse(tx, event.job, Reason(Code.NO_SUCH_JOB, f"no job {event.job}", hint="see `gpushare ps`"))
        return
    if job.suspension is not None and job.suspension.state in (SuspendState.SUSPENDING, SuspendState.SUSPENDED):
        job.suspension.held = True
        tx.emit(Persist())
        tx.emit(SuspendNoted(job.id, f"it is {job.suspension.state} already, and stays so until it is told to resume"))
        return
    why = suspend.obstacle(tx.state, job, tx.now)
    id = suspend.gpu_of(tx.state, job)
    if why or id is None or job.reclaims:
        why = why or "memory of it is just being asked back"
        reason = Reason(Code.NOT_SUSPENDED, f"this job cannot be suspended: {why}", hint=suspend.WAYS_OUT.get(why))
        _refuse(tx, job.id, reason)
        return
    gpu = tx.state.gpus[id]
    reason = suspend_steps.why_by_user(tx, gpu, job)
    within = suspend.allowed(tx.state, gpu, tx.state.usage(job, id))
    suspend_steps.begin(tx, gpu, job, within, reason, held=True)
    tx.emit(SuspendNoted(job.id, "its memory goes to host memory"))


def resume_wanted(tx: Transaction, event: ResumeWanted) -> None:
    job = tx.state.jobs.get(event.job)
    if job is None or job.suspension is None:
        _refuse(tx, event.job, Reason(Code.NOT_SUSPENDED, "this job is not suspended", hint="see `gpushare ps`"))
        return
    job.suspension.held = False
    job.suspension.not_before = tx.now
    tx.emit(Persist())
    tx.emit(SuspendNoted(job.id, resume.prospect(tx.state, job, tx.now)))


def _refuse(tx: Transaction, job: str, reason: Reason) -> None:
    tx.emit(SuspendRefused(job, reason))


def deadlines_over(tx: Transaction) -> None:
    _have_contexts_asked_for_again(tx)
    for job, suspension in list(tx.state.suspensions()):
        given_up_at = suspend.given_up_at(tx.state, job, suspension)
        if given_up_at is None or tx.now < given_up_at:
            continue
        if suspension.state is SuspendState.STUCK:
            suspend_steps.kill_stuck(tx, job)
        else:
            suspend_steps.stuck(tx, job, "its suspender has not answered in time")


def _have_contexts_asked_for_again(tx: Transaction) -> None:
    """A program waits for an answer as long as for a claim, and its job may be suspended for longer."""
    for gpu in tx.state.gpus.values():
        for ask in suspend.asks_for_contexts(tx.state, gpu):
            if tx.now >= ask.deadline:
                lending.drop_ask(tx, ask)
                tx.emit(Denied(ask.id, ask.process, ask.gpu, Reason(Code.SUSPENDED, WAITS)))
