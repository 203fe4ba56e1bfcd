"""What stands in the way of a claim: a word for programs and counters, a text for people, and what would help."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gpushare.quantity import format_bytes, format_duration
from gpushare.reasons import Words, joined, words
from gpushare.reclaim_steps import ReclaimStep
from gpushared.core import health, visibility
from gpushared.core.model import Ask, Gpu
from gpushared.core.state import State


class Blocker(NamedTuple):
    cause: str
    """Stable: a label in the metrics."""
    text: Words
    way_out: str


WAY_OUT = {
    "unkillable": (
        "its processes are frozen (`docker unpause`), or hang in the driver: see `dmesg`; the machine may have to be "
        "restarted"
    ),
    "returning": "the driver has to return it: see `dmesg` if that takes long",
    "capacity": "end a job on this GPU, or lower its request with `gpushare set`",
    "unmanaged": "`gpushare ps -o wide` names those programs: end them, or start them with `gpushare run`",
    "left_alone": "that user, or root, has to end it: `gpushare ps -o wide` has its number",
    "protected": "try again when that time is over",
    "policy": "the administrator of this node sets the rule; otherwise a job on this GPU must free memory or end",
    "late": "try again: they can be asked now",
}

CAUSES = (*WAY_OUT, "driver", "gpu_lost", "no_daemon")
"""Causes of guarantee violations, as they are counted: what stood in the way of a claim, and three without a claim: the
driver fails although there is room; the GPU is lost; no daemon answered the library in time."""


NO_FURTHER = {
    ReclaimStep.REVOKE: "borrowers are not asked to give back",
    ReclaimStep.TRIM: "borrowers are asked to trim their caches, and nothing more",
    ReclaimStep.HOOK: "borrowers are asked to trim their caches and by their hooks, and never stopped",
    ReclaimStep.SUSPEND: "borrowers are asked to trim their caches or suspended, and never stopped",
    ReclaimStep.TERM: "borrowers are asked with SIGTERM, and never killed",
}
"""What does not happen to borrowers, by the last reclaim step that the settings allow."""


NAMED = 8
"""The most holders of memory that a message names. The others are counted."""


def and_others(amounts: Sequence[int]) -> list[Words]:
    """How many holders a list of the first NAMED leaves out, and how much they hold. `amounts`: of all holders."""
    rest = amounts[NAMED:]
    others = "1 other job" if len(rest) == 1 else f"{len(rest)} other jobs"
    return [f"{others} {format_bytes(sum(rest))}"] if rest else []


def held_by_no_job(gpu: Gpu) -> list[Words]:
    """Memory that no job holds, for the end of a list of holders."""
    held: list[Words] = []
    if gpu.unmanaged:
        held.append(f"outside gpushare {format_bytes(gpu.unmanaged)}")
    if gpu.returning:
        held.append(f"on its way back {format_bytes(gpu.returning_total)}")
    return held


def of(state: State, gpu: Gpu, ask: Ask, now: float) -> Blocker:
    """The first blocker that is found. The worst are looked for first."""
    cause, text = _find(state, gpu, ask, now)
    return Blocker(cause, text, WAY_OUT[cause])


def _find(state: State, gpu: Gpu, ask: Ask, now: float) -> tuple[str, Words]:
    killed = [job for job in gpu.under_reclaim.values() if job.reclaims[gpu.id].killed_at is not None]
    if killed:
        usage = format_bytes(state.usage(killed[0], gpu.id))
        return "unkillable", words(visibility.name(killed[0].spec), f" was killed and is still there, with {usage}")
    if gpu.returning:
        text = f"{format_bytes(gpu.returning_total)} of exited programs that the driver has not returned"
        return "returning", text
    shrunk = health.obstacle(gpu)
    if shrunk is not None:
        return shrunk
    if gpu.unmanaged:
        return "unmanaged", f"{format_bytes(gpu.unmanaged)} used outside gpushare"
    borrowers = [job for job in state.owners(gpu.id) if job.id != ask.job and state.loan(job, gpu.id)]
    spared = [job for job in borrowers if job.is_left_alone]
    if spared:
        loan = format_bytes(sum(state.loan(job, gpu.id) for job in spared))
        names = joined(" and ", (visibility.name(job.spec) for job in spared))
        return "left_alone", words(f"{loan} on loan to ", names, ", whose program belongs to another user than the job")
    protected = [job for job in borrowers if now < state.protected_until(job)]
    if protected:
        loan = format_bytes(sum(state.loan(job, gpu.id) for job in protected))
        names = joined(" and ", (visibility.name(job.spec) for job in protected))
        by_time = any(now < job.since + job.spec.min_run_time for job in protected)
        why = "by its minimum run time" if by_time else "because it has just started or resumed"
        over = format_duration(round(max(map(state.protected_until, protected)) - now, 1))
        return "protected", words(f"{loan} on loan to ", names, f", protected {why} for another {over}")
    if state.policy.last_step != ReclaimStep.KILL:
        return "policy", f"this node's settings: {NO_FURTHER[state.policy.last_step]}"
    return "late", "borrowers that could not be asked any sooner"
