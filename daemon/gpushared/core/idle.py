"""Jobs that step aside: idle for longer than the policy lets them (`idle_release`), they give back what lies unused.

A job is idle while NVML shows that none of its processes computes, and none allocates, frees or asks for memory. Where
NVML does not tell who computes, nobody is known to be idle. The steps, one after the other, each as far as the job has
chosen it (`--on-reclaim`) and the settings allow it:

    trim   programs give back what their allocators only keep, also those of a job that borrows nothing
    hook   for a job without a resume hook: its program takes the memory again by itself. A program that has to be woken
           is left alone, because nobody tells the daemon that it is wanted again

No job is stopped for being idle. Memory that it frees within its request stays guaranteed; others may borrow it. It is
idle no longer as soon as it computes, allocates or frees.

Nothing here waits for a claim. A claim prefers what idle jobs have borrowed: see spare_the_active().
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gpushare.job_spec import JobSpec
from gpushare.quantity import format_bytes, format_duration
from gpushare.reasons import Code, Reason
from gpushare.reclaim_steps import ReclaimStep
from gpushared.core import hook_steps, planner
from gpushared.core.aside import Aside
from gpushared.core.events import TrimSeen
from gpushared.core.instructions import Notify, Trim
from gpushared.core.model import Gpu, Job
from gpushared.core.planner import Borrower
from gpushared.core.state import State
from gpushared.core.transaction import Transaction

NOTEBOOKS = ("ipykernel", "ipykernel_launcher", "jupyter-console", "ipython", "ipython3")
"""Words of a command that make it a notebook's."""


def is_notebook(spec: JobSpec) -> bool:
    return any(word.rsplit("/", 1)[-1] in NOTEBOOKS for word in spec.command)


def look(tx: Transaction, gpu: Gpu) -> None:
    """The GPU was just sampled, or its words were read: take the next step of each job there that is idle for long.
    Notebooks come first."""
    here = map(tx.state.jobs.__getitem__, {share.job: None for share in gpu.shares.values()})
    may = [job for job in here if job.spec.idle_release is not None]
    for job in sorted(may, key=lambda one: not is_notebook(one.spec)):
        if job.aside is not None:
            _go_on(tx, job, job.aside)
        elif _may_begin(tx.state, job, tx.now) and _is_seen(tx, job):
            _begin(tx, job)


def idle_since(job: Job) -> float:
    return max(job.since, job.active_at)


def spare_the_active(tx: Transaction, missing: int, borrowers: Sequence[Borrower]) -> Sequence[Borrower]:
    """Of these borrowers the ones to ask for `missing` bytes: notebooks that have stepped aside, if their loans are
    enough, else all that have, else as the planner says; if all together are not enough, all of them."""
    aside = [one for one in borrowers if tx.state.jobs[one.job].aside is not None]
    notebooks = [one for one in aside if is_notebook(tx.state.jobs[one.job].spec)]
    plans = (planner.plan(missing, some) for some in (notebooks, aside, borrowers))
    return next(filter(None, plans), borrowers)


# ---- one job ---------------------------------------------------------------------------------------


def _may_begin(state: State, job: Job, now: float) -> bool:
    longest = job.spec.idle_release
    if longest is None or now - idle_since(job) < longest:
        return False
    on = _where(state, job)
    lends = job.spec.lend or any(state.loan(job, gpu.id) for gpu in on)
    known = all(gpu.shows_busy and not gpu.health.lost for gpu in on)
    return bool(on) and lends and known and not _is_busy_otherwise(state, job)


def _where(state: State, job: Job) -> list[Gpu]:
    return [state.gpus[id] for id in job.bounds if state.usage(job, id)]


def _is_seen(tx: Transaction, job: Job) -> bool:
    """Its words were read just now. If not, that is asked for."""
    stale = [gpu for gpu in _where(tx.state, job) if gpu.seen_at < tx.now - tx.policy.poll / 2]
    for gpu in stale:
        tx.look(gpu)
    return not stale


def _is_busy_otherwise(state: State, job: Job) -> bool:
    """It is asked by somebody else just now, or is not there to be asked."""
    asks = any(ask.job == job.id for ask in state.asks.values())
    gone = job.killed is not None or job.is_left_alone or not job.open
    return bool(job.reclaims or job.suspension or job.sleep or asks or gone)


def _begin(tx: Transaction, job: Job) -> None:
    job.aside = Aside(tx.now, job.total_usage, tx.now)
    taken = _next_step(tx, job, job.aside)
    then = "it gives back what it does not use" if taken else "it can be asked for nothing"
    tx.record("idle", f"has not computed for {_span(tx, job)}: {then}", job=job, seconds=tx.now - idle_since(job))


def _go_on(tx: Transaction, job: Job, aside: Aside) -> None:
    if aside.under_way:
        if _is_under_way(tx, job, aside):
            return
        _step_over(tx, job, aside)
    if aside.asked or job.active_at > aside.quiet_after:
        job.aside = None
        span = format_duration(round(tx.now - aside.since, 1))
        tx.record("active", f"is no longer idle, {span} later", job=job, seconds=tx.now - aside.since)
    elif not _is_busy_otherwise(tx.state, job):
        _next_step(tx, job, aside)


def _is_under_way(tx: Transaction, job: Job, aside: Aside) -> bool:
    if aside.deadline is None:
        return job.sleep is not None
    asked = [share.trim for id in job.bounds for share in tx.state.shares_of(job, id) if share.trim is not None]
    return not _is_seen(tx, job) or (tx.now < aside.deadline and not all(trim.done for trim in asked))


def _step_over(tx: Transaction, job: Job, aside: Aside) -> None:
    """What came back is what the account says. A hook has said so itself."""
    got = max(0, aside.had - job.total_usage)
    tx.state.counters.idle_bytes += got
    if got and aside.step is ReclaimStep.TRIM:
        what = f"{format_bytes(got)} that its programs only kept"
        tx.record("idle_gave", f"gave back {what}, because it is idle", job=job, got=got)
        message = f"this job has not computed for {_span(tx, job, aside.since)}: {what} are lent to others now"
        hint = "nothing is lost: it has them again when it needs them; the administrator of this node sets idle_release"
        tx.emit(Notify(job.id, "idle", Reason(Code.IDLE, message, hint=hint, data={"got": got})))
    aside.under_way, aside.deadline = False, None
    aside.had, aside.quiet_after = job.total_usage, tx.now


def _span(tx: Transaction, job: Job, until: float | None = None) -> str:
    """For how long it has been idle, or had been at `until`. A step's own work is not seen as the job's."""
    longest = job.spec.idle_release or 0.0
    seconds = tx.now - idle_since(job) if until is None else longest
    return format_duration(round(max(longest, seconds)))


# ---- the steps -------------------------------------------------------------------------------------


def _next_step(tx: Transaction, job: Job, aside: Aside) -> bool:
    """The next that can be taken, if there is one."""
    for step, take in _STEPS.items():
        chosen = step in job.spec.on_reclaim and step <= tx.policy.last_step
        if step > aside.step and chosen and take(tx, job, aside):
            aside.step, aside.under_way = step, True
            return True
    return False


def _trim(tx: Transaction, job: Job, aside: Aside) -> bool:
    reason = Reason(Code.IDLE, f"this job has not computed for {_span(tx, job)}: its caches are lent to others")
    asked = False
    for id in job.bounds:
        shares = [share for share in tx.state.shares_of(job, id) if share.trim is not None]
        size = sum(share.used for share in shares)
        if size:
            for share in shares:
                share.trim = TrimSeen(begun=False, done=False)
            processes = tuple(sorted(share.process for share in shares))
            tx.emit(Trim(job.id, processes, id, size, tx.policy.trim, reason))
            asked = True
    if asked:
        tx.state.counters.trims += 1
        aside.deadline = tx.now + tx.policy.trim
    return asked


def _hook(tx: Transaction, job: Job, _aside: Aside) -> bool:
    failed = job.hook_runner.failed_within(tx.policy.hook_again, tx.now)
    early = tx.now < tx.state.protected_until(job)
    on = [gpu.id for gpu in _where(tx.state, job)]
    if not job.hook_runner.connected or job.hook_runner.wakes or failed or early or not on:
        return False
    hook_steps.relieve(tx, job, on[0], hook_steps.Wish(tx.state.usage(job, on[0]), tx.policy.hook))
    return True


_STEPS: Mapping[ReclaimStep, Callable[[Transaction, Job, Aside], bool]] = {
    ReclaimStep.TRIM: _trim,
    ReclaimStep.HOOK: _hook,
}
