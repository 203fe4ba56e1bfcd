"""When the core wants the next TimePassed, and what it does then. Times are seconds.

The next wake is computed from the state after each event and is stored nowhere else.
"""

from __future__ import annotations

from gpushared.core import admission_queue, hook_events, hooks, reservations, resume, suspend, suspend_events, waiters
from gpushared.core.events import TimePassed
from gpushared.core.model import Gpu
from gpushared.core.state import State
from gpushared.core.transaction import Transaction


def next_wake(state: State) -> float | None:
    """None: nothing depends on the time.

    A job is under reclaim only while a claim waits, so the polls for the claim also end its grace.
    """
    times = [waiting.until for waiting in state.queue.values()]
    times += [one.until for one in state.reservations.values() if one.until is not None]
    times += [*resume.wakes(state), *hooks.wakes(state)]
    for gpu in state.gpus.values():
        if gpu.health.lost:
            continue  # no memory of it comes back, and no ask waits for it
        if any(not suspend.is_held_back(state, ask) for ask in gpu.asks.values()):
            times.append(state.polled_at + state.policy.poll)
        times += [ask.deadline for ask in suspend.asks_for_contexts(state, gpu)]
        if (pause := _pause(state, gpu)) is not None:
            times.append(max(state.polled_at, gpu.seen_at) + pause)
        if gpu.returning:
            times.append(_sample_at(state, gpu))
        if gpu.guessed:
            times.append(gpu.sampled_at + state.policy.provisional_apart)
    return min(times) if times else None


def time_passed(tx: Transaction, _event: TimePassed) -> None:
    tx.state.polled_at = tx.now
    for gpu in tx.state.gpus.values():
        if gpu.health.lost:
            continue
        if gpu.asks or gpu.under_reclaim or _pause(tx.state, gpu) is not None:
            tx.look(gpu)
        # The same sums as in next_wake: an event at exactly the time that it named must be enough.
        overdue = gpu.asks or tx.now >= _sample_at(tx.state, gpu)
        if (gpu.returning and overdue) or (gpu.guessed and tx.now >= gpu.sampled_at + tx.policy.provisional_apart):
            tx.sample(gpu)
    suspend_events.deadlines_over(tx)
    hook_events.deadlines_over(tx)
    reservations.end_those_over(tx)
    admission_queue.admit_waiting(tx)


def _pause(state: State, gpu: Gpu) -> float | None:
    """Seconds between two looks at its words although nobody asks. A job that waits to go on gets what others free, and
    what a job over its limit frees is taken from its credit. None: nobody needs that."""
    if waiters.first(state, gpu) is not None:
        return state.policy.resume_poll
    if any(gpu.id in state.jobs[job].excess for job in state.over_limit):
        return state.policy.shrink
    if any(waiters.stands_still(state, job) for job in waiters.in_order(state, gpu)):
        return state.policy.resume_retry  # nobody says when it is continued
    return None


def _sample_at(state: State, gpu: Gpu) -> float:
    """When to ask NVML for memory of ended processes again.

    While an ask waits: after a quarter of the time that the memory has taken so far, so that no wait is much longer
    than the driver needs. Otherwise less often the more processes there are: a sample costs in proportion to them, and
    they may come and go by the hundred.
    """
    poll = state.policy.poll
    if not gpu.asks:
        return gpu.sampled_at + poll * max(1.0, len(gpu.shares) / 16)
    waited = gpu.sampled_at - min(entry.since for entry in gpu.returning.values())
    return gpu.sampled_at + min(poll, max(poll / 20, waited / 4))
