"""Which jobs can be suspended, and what that takes.

A job is suspended as a whole: its suspender asks the driver to take the memory of all its processes from the GPU, or
of none. It has to want this (`--on-reclaim`), and its suspender must be there. All its memory must be on one GPU, and
be of kinds that can leave it. There must be room in host memory, and time: a claim does not wait for an amount that
cannot leave within its time.

A suspended job gives back all that it used. What is free of its request is kept for it meanwhile (State.non_lending),
so that it only waits until its loan fits again (resume.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpushare.quantity import format_bytes
from gpushare.reclaim_steps import ReclaimStep
from gpushared.core.model import Ask, Gpu, Job
from gpushared.core.state import State
from gpushared.core.suspension import SuspendState, Suspension
from gpushared.core.transaction import Transaction

MARGIN = 3
"""So many times the time that is expected."""
ANSWER_MARGIN = 2.0
"""Seconds beyond the time of a step until its suspender counts as silent."""
NOT_WANTED = "it was started without the step suspend"
RESUMES = "it resumes just now"
NO_SUSPENDER = "its suspender is not there"
UNDER_WAY = {SuspendState.RESUMING: RESUMES, SuspendState.STUCK: "it is told to end"}
WAYS_OUT = {NOT_WANTED: "start it with --on-reclaim trim,suspend,term,kill", RESUMES: "try again when it runs"}
"""By what is in the way."""


def obstacle(state: State, job: Job, now: float) -> str:
    """Why the job cannot be suspended at this moment, for people; empty if it can."""
    if ReclaimStep.SUSPEND not in job.spec.on_reclaim:
        return NOT_WANTED
    if job.suspension is not None:
        return UNDER_WAY.get(job.suspension.state, f"it is {job.suspension.state} already")
    if job.suspender.problem:
        return job.suspender.problem
    failure = job.suspender.failure
    if failure is not None and job.suspender.failed_within(state.policy.suspend_again, now):
        return f"that failed a moment ago: {failure[1]}"
    if job.sleep is not None and job.sleep.deadline is not None:
        return "a hook of it runs"
    on = [id for id in job.bounds if state.has_share(job, id)]
    if not on:
        return "it has no memory on a GPU"
    if len(on) > 1:
        return "it has memory on several GPUs"
    return _of_its_memory(state, job, on[0]) or ("" if job.suspender.connected else NO_SUSPENDER)


def _of_its_memory(state: State, job: Job, gpu: str) -> str:
    shares = state.shares_of(job, gpu)
    if any(share.process < 0 for share in shares):
        return "a program of it runs without the library"
    pinned = next((share.pinned for share in shares if share.pinned), "")
    if pinned:
        return pinned
    if state.gpus[gpu].health.lost:
        return "its GPU is lost"
    room = host_room(state)
    if state.usage(job, gpu) > room:
        return f"host memory has room for {format_bytes(max(0, room))} more"
    return ""


def gpu_of(state: State, job: Job) -> str | None:
    """The one that its memory is on."""
    return next((id for id in job.bounds if state.has_share(job, id)), None)


def host_room(state: State) -> int:
    """Bytes of host memory that suspending may still take."""
    taken = [suspension for _, suspension in state.suspensions()]
    room = state.policy.suspend_memory - sum(one.host for one in taken)
    if state.host_available is None:
        return room
    coming = sum(one.host for one in taken if one.state is SuspendState.SUSPENDING)
    return min(room, state.host_available - coming)


def expected(state: State, gpu: Gpu, amount: int) -> float:
    """Seconds that so many bytes take to leave the GPU, or to return."""
    return amount / state.suspend_rate.get(gpu.name, state.policy.suspend_rate)


def allowed(state: State, gpu: Gpu, amount: int) -> float:
    """Seconds that a suspender has for so many bytes."""
    return max(state.policy.suspend_least, MARGIN * expected(state, gpu, amount))


def time_before(state: State, needed_by: float, now: float) -> float:
    """Seconds that are left so that there is still a grace if it fails, also if nobody says so."""
    return needed_by - now - state.policy.grace - state.policy.teardown - ANSWER_MARGIN


def given_up_at(state: State, job: Job, suspension: Suspension) -> float | None:
    """When the step under way has failed if nobody answers; None: no step is. A suspender that is only slow is waited
    for, because the job would lose its work: as long as each claim can still be met after the job's grace."""
    if suspension.deadline is None or suspension.state is SuspendState.STUCK:
        return suspension.deadline
    gpu = state.gpus[suspension.gpu]
    latest = [needed - state.policy.grace_of(job.spec) for needed in _needed(state, gpu)]
    return max(suspension.deadline, min([suspension.deadline + state.policy.suspend_patience, *latest]))


def grace_left(state: State, job: Job, gpu: Gpu, now: float) -> float:
    """Seconds: the job's grace, cut so that its memory is back in time for each claim."""
    return min([state.policy.grace_of(job.spec), *(max(0.0, needed - now) for needed in _needed(state, gpu))])


def _needed(state: State, gpu: Gpu) -> list[float]:
    """When a job must have ended, so that its memory is back in time: for each claim that waits here."""
    return [ask.deadline - state.policy.teardown for ask in gpu.asks.values() if ask.claim and ask.short]


def suspending(state: State, gpu: Gpu) -> list[Job]:
    """Jobs whose memory is leaving the GPU."""
    return [job for job, suspension in state.suspensions(gpu.id) if suspension.state is SuspendState.SUSPENDING]


def free_at(state: State, job: Job, now: float) -> float:
    """From then on it may be asked by its hook, suspended or stopped for others. One that resumes has its while to run
    before it, also one whose resume hook runs."""
    if job.suspension is not None:
        return now + state.policy.resume_runs
    if job.sleep is not None and job.sleep.deadline is not None and job.wakes_now:
        return max(now, job.sleep.deadline) + state.policy.resume_runs
    return max(now, state.protected_until(job), _missed_until(state, job))


def helper_until(state: State, job: Job) -> float:
    """Until then the process that suspends it, or calls its hooks, may come."""
    return max(state.policy.helper_due(job), _missed_until(state, job))


def _missed_until(state: State, job: Job) -> float:
    """The same of one that has gone, as long as each claim can still be met after the job's grace."""
    helpers = ((ReclaimStep.SUSPEND, job.suspender), (ReclaimStep.HOOK, job.hook_runner))
    gone = [link.missed_at for step, link in helpers if step in job.spec.on_reclaim and not link.connected]
    until = max(gone, default=float("-inf")) + state.policy.suspender_comes
    needed = [needed for id in job.bounds for needed in _needed(state, state.gpus[id])]
    return min([until, *(one - state.policy.grace_of(job.spec) for one in needed)])


def candidates(tx: Transaction, gpu: Gpu, jobs: Sequence[Job], needed_by: float) -> Iterator[Job]:
    """Of these jobs, those that can be suspended when they are free for it, so that a grace is left before `needed_by`
    (seconds) if it fails."""
    state = tx.state
    for job in jobs if tx.policy.last_step >= ReclaimStep.SUSPEND else ():
        left = time_before(state, needed_by, free_at(state, job, tx.now))
        if expected(state, gpu, state.usage(job, gpu.id)) <= left and _will_be_possible(state, job, tx.now):
            yield job


def _will_be_possible(state: State, job: Job, now: float) -> bool:
    """Nothing is in the way but what is over when the job is free for it."""
    why = obstacle(state, job, now)
    return not why or why == RESUMES or job.wakes_now or (why == NO_SUSPENDER and now < helper_until(state, job))


def is_near(state: State, gpu: Gpu, ask: Ask, now: float) -> bool:
    """Whether the ask's job may be suspended soon, for a claim that waits for what it has borrowed. It is to notice
    nothing of that, so a loan that it asks for meanwhile waits, as it does when the job is suspended already."""
    job = state.jobs[ask.job]
    reclaim = job.reclaims.get(gpu.id)
    spared = reclaim is None or reclaim.step < ReclaimStep.TERM
    gives = spared and state.policy.last_step >= ReclaimStep.SUSPEND and state.loan(job, gpu.id) > 0
    waits = any(one.claim and one.short and one.job != job.id for one in gpu.asks.values())
    return gives and waits and now < ask.deadline and _will_be_possible(state, job, now)


def asks_for_contexts(state: State, gpu: Gpu) -> list[Ask]:
    """Of programs whose jobs are suspended. They have no gate yet at which they would wait."""
    return [ask for ask in gpu.asks.values() if ask.attach and is_held_back(state, ask)] if state.suspended else []


def is_held_back(state: State, ask: Ask) -> bool:
    """Whether the ask waits until its job has resumed. On a lost GPU nobody waits."""
    job = state.jobs[ask.job]
    return job.suspension is not None and not state.gpus[ask.gpu].health.lost
