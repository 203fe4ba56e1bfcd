"""What waits at this moment, who holds the memory, and what would end the wait: the answers of `gpushare explain`.

Two things wait: claims (calls of programs within their job's request) and queued jobs. Reads the state and changes
nothing; reclaim.py acts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gpushare.quantity import format_bytes, format_duration
from gpushare.reasons import Code, Reason, Words, joined, words
from gpushare.reclaim_steps import ReclaimStep
from gpushared.core import admission, blockers, hooks, resume, visibility, waiters
from gpushared.core.model import A_YEAR, Ask, Gpu, Job, Reclaim, Submission
from gpushared.core.policy import Policy
from gpushared.core.sleep import SleepState
from gpushared.core.state import State


@dataclass(frozen=True, slots=True)
class Wait:
    """A claim or job that waits. Times are by the core's clock."""

    job: str
    name: str
    uid: int
    gpu: str | None
    """None: a job that queues for any GPU."""
    since: float
    until: float
    """It is refused at this time."""
    reason: Reason


def all_of(state: State, now: float) -> list[Wait]:
    """The claims that wait, in the order in which they are met, GPU by GPU; then the queue in its order."""
    return list(each_of(state, now, lambda _: True))


def each_of(state: State, now: float, wanted: Callable[[Job | Submission], bool]) -> Iterator[Wait]:
    """The same for the wanted jobs. Each is computed when it is taken: a thousand jobs may be queued, and the state may
    change between two of them."""
    claims = [
        (gpu, ask)
        for gpu in sorted(state.gpus.values(), key=lambda gpu: gpu.index)
        for ask in sorted(gpu.asks.values(), key=lambda ask: ask.order)
        if ask.short and wanted(state.jobs[ask.job])
    ]
    yield from _suspended(state, now, wanted)
    yield from _asleep(state, now, wanted)
    ahead: list[Submission] = []
    queue = sorted(state.queue.values(), key=lambda one: one.order)
    for gpu, ask in claims:
        if ask.id in gpu.asks:
            job = state.jobs[ask.job]
            reason = _of_claim(state, gpu, ask, now)
            yield _wait_of(job, gpu, ask.since, ask.deadline, reason)
    for one in queue:
        if one.job in state.queue and wanted(one):
            reason = _of_submission(state, one, ahead, now)
            yield Wait(one.job, one.spec.name, one.spec.uid, None, one.since, one.until, reason)
        ahead.append(one)


def _wait_of(job: Job, gpu: Gpu, since: float, until: float, reason: Reason) -> Wait:
    return Wait(job.id, job.spec.name, job.spec.uid, gpu.id, since, until, reason)


# ---- claims ----------------------------------------------------------------------------------------


def _of_claim(state: State, gpu: Gpu, ask: Ask, now: float) -> Reason:
    job = state.jobs[ask.job]
    what = "a context" if ask.attach else format_bytes(ask.wanted)
    asked = [other for other in gpu.under_reclaim.values() if other is not job]
    facts: list[tuple[Words, Words]] = [
        ("free", format_bytes(max(0, gpu.free))),
        ("held", joined(" · ", _holders(state, gpu, but=job)) or "nothing by others"),
        *(("asked", _asked(state.policy, other, other.reclaims[gpu.id], now)) for other in asked),
        ("at most", f"{_span(ask.deadline - now)} more; then the call fails"),
    ]
    waited = f" has waited {_span(now - ask.since)} for {what} of GPU {gpu.index}, which is within its request"
    cause, hint = _end_of(state, gpu, ask, asked, now)
    data = {"asked": ask.wanted, "waited": now - ask.since, "cause": cause, "borrowers": [one.id for one in asked]}
    return Reason(Code.CLAIM_WAITS, words(visibility.who(job.spec), waited), tuple(facts), hint, data)


def _holders(state: State, gpu: Gpu, but: Job) -> list[Words]:
    """Borrowers first: their memory can come back."""
    others = [job for job in state.owners(gpu.id) if job is not but and state.usage(job, gpu.id)]
    held: list[Words] = []
    others.sort(key=lambda job: (-state.loan(job, gpu.id), -state.usage(job, gpu.id)))
    for job in others[: blockers.NAMED]:
        loan = state.loan(job, gpu.id)
        lent = f", {format_bytes(loan)} of it on loan" if loan else ""
        held.append(words(visibility.who(job.spec), f" {format_bytes(state.usage(job, gpu.id))}{lent}"))
    return held + blockers.and_others([state.usage(job, gpu.id) for job in others]) + blockers.held_by_no_job(gpu)


def _asked(policy: Policy, job: Job, one: Reclaim, now: float) -> Words:
    """What a borrower has been told, and what comes next."""
    who, ago = visibility.name(job.spec), f"{_span(now - one.since)} ago"
    if one.killed_at is not None:
        what = "is still there" if one.given_up else "its memory is on its way back"
        return words(who, f" was killed {_span(now - one.killed_at)} ago, and {what}")
    if one.step is ReclaimStep.TRIM:
        if one.answered:
            return words(who, f" was asked to trim its caches {ago}, and has given what it could")
        left = _span(one.deadline - now)
        return words(who, f" was asked to trim its caches {ago}, and has {left} to answer")
    if one.step is ReclaimStep.HOOK:
        if one.answered:
            return words("the hook of ", who, f" was called {ago}, and has given what it could")
        return words("the hook of ", who, f" was called {ago}, and has {_span(one.deadline - now)} more")
    if one.step is ReclaimStep.SUSPEND:
        return words(who, f" was asked to suspend {ago}: its memory is on its way to host memory")
    told = words(who, f" was asked with SIGTERM {ago}")
    if policy.last_step != ReclaimStep.KILL:
        return words(told, "; nobody is killed on this node")
    return words(told, f", and is killed in {_span(one.deadline - now)} unless it gives back")


def _end_of(state: State, gpu: Gpu, ask: Ask, asked: list[Job], now: float) -> tuple[str, Words]:
    """What the claim waits for, as a word for programs, and what would end the wait."""
    gone = [job for job in asked if job.reclaims[gpu.id].killed_at is not None]
    told = [job for job in asked if job not in gone and job.reclaims[gpu.id].step >= ReclaimStep.TERM]
    trims = [job for job in asked if job.reclaims[gpu.id].step is ReclaimStep.TRIM]
    if gone and all(not job.reclaims[gpu.id].given_up for job in gone):
        return "killed", words("it goes on as soon as the memory of ", _names(gone), " is free")
    if told:
        missing = max(0, ask.need - max(0, gpu.free))
        last = max(job.reclaims[gpu.id].deadline for job in told)
        kill = state.policy.last_step == ReclaimStep.KILL
        when = f", or has been stopped, in {_span(last - now)} at the latest" if kill else ""
        back = f" gives {format_bytes(missing)} back{when}"
        return "grace", words("it goes on when ", _names(told), back)
    leaving = [job for job in asked if job.reclaims[gpu.id].step is ReclaimStep.SUSPEND]
    if leaving:
        return "suspend", words("it goes on when the memory of ", _names(leaving), " is in host memory")
    hooked = [job for job in asked if job.reclaims[gpu.id].step is ReclaimStep.HOOK]
    if any(not job.reclaims[gpu.id].answered for job in hooked):
        return "hook", words("it goes on when the hook of ", _names(hooked), " has given its memory back")
    if trims and any(not job.reclaims[gpu.id].answered for job in trims):
        back = " have come back; nobody is stopped before that"
        return "trim", words("it goes on when the caches of ", _names(trims), back)
    found = blockers.of(state, gpu, ask, now)
    return found.cause, words("in the way: ", found.text, f"; {found.way_out}")


# ---- suspended jobs --------------------------------------------------------------------------------


def _suspended(state: State, now: float, wanted: Callable[[Job | Submission], bool]) -> Iterator[Wait]:
    for job, one in [found for gpu in state.gpus.values() for found in waiters.all_on(state, gpu)]:
        if job.suspension is not one or not wanted(job):
            continue
        gpu = state.gpus[one.gpu]
        amount, ago = waiters.footprint(state, job), _span(now - one.since)
        text = f" has been suspended for {ago}: {format_bytes(amount)} of GPU {gpu.index} are in host memory"
        facts = _on_the_gpu(state, gpu, job)
        data = {"waited": now - one.since, "bytes": amount, "held": one.held}
        reason = Reason(
            Code.SUSPENDED, words(visibility.who(job.spec), text), facts, resume.prospect(state, job, now), data
        )
        yield _wait_of(job, gpu, one.since, now + 2 * A_YEAR, reason)


def _asleep(state: State, now: float, wanted: Callable[[Job | Submission], bool]) -> Iterator[Wait]:
    for job, sleep in state.sleeps():
        given = hooks.given(state, job)
        if not wanted(job) or sleep.state is SleepState.ASKED or not given:
            continue
        gpu = state.gpus[next(iter(given))]
        ago = _span(now - sleep.since)
        by_hook = hooks.given_by_hook(state, job)
        amounts = " and ".join(
            f"{format_bytes(size)} of GPU {state.gpus[id].index}" for id, size in (by_hook or given).items()
        )
        facts = _on_the_gpu(state, gpu, job)
        what = f"has given {amounts} back" if by_hook else f"gave nothing back; since then the job has freed {amounts}"
        message = words("the hook of ", visibility.who(job.spec), f" was called {ago} ago, and {what}")
        data = {"waited": now - sleep.since, "bytes": sum(given.values())}
        reason = Reason(Code.HOOK, message, facts, resume.prospect_of_sleeper(state, job, now), data)
        yield _wait_of(job, gpu, sleep.since, now + 2 * A_YEAR, reason)


def _on_the_gpu(state: State, gpu: Gpu, but: Job) -> tuple[tuple[Words, Words], ...]:
    """Credit that nobody uses is free: it is taken back for the job that goes on."""
    held = joined(" · ", _holders(state, gpu, but=but)) or "nothing by others"
    return (("free", format_bytes(max(0, gpu.free + gpu.idle))), ("held", held))


# ---- the queue -------------------------------------------------------------------------------------


def _of_submission(state: State, one: Submission, ahead: list[Submission], now: float) -> Reason:
    inside = state.reservations.get(one.spec.reservation)
    found = admission.place(state, one.spec, (), inside)
    facts: list[tuple[Words, Words]] = list(found.facts) if isinstance(found, Reason) else []
    if ahead:
        named = [words(visibility.name(other.spec)) for other in ahead[: blockers.NAMED]]
        if len(ahead) > len(named):
            named.append(f"{len(ahead) - len(named)} more")
        facts.append(("ahead", joined(", ", named)))
    forever = one.until - now > A_YEAR
    patience = "as long as it takes" if forever else f"{_span(one.until - now)} more; then it is refused"
    facts.append(("at most", patience))
    where = f" on {one.spec.gpus} GPUs" if one.spec.gpus > 1 else ""
    queued = f" has queued {_span(now - one.since)} for a request of {_said(state, one)}{where}"
    if isinstance(found, Reason):
        hint = "it starts when jobs that hold requests end, or lower them with `gpushare set JOB --request`"
    else:
        hint = "there is room for it, and those ahead of it come first"
    data = {"waited": now - one.since, "ahead": len(ahead)}
    return Reason(Code.NOT_ADMITTED, words(visibility.who(one.spec), queued), tuple(facts), hint, data)


def _said(state: State, one: Submission) -> str:
    gpus = admission.candidates(state, one.spec)
    return str(one.spec.request) if isinstance(gpus, Reason) else admission.said(one.spec.request, gpus)


# ---- in words --------------------------------------------------------------------------------------


def _names(jobs: list[Job]) -> Words:
    return joined(" and ", (visibility.name(job.spec) for job in jobs))


def _span(seconds: float) -> str:
    """A duration, to a tenth of a second."""
    return format_duration(max(0.0, round(seconds, 1)))
