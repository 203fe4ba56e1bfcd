"""What NVML says, and what follows: overheads, unmanaged memory, memory that has come back.

The ledger knows what was allocated. Only NVML knows what contexts and modules cost, what programs outside gpushare
hold, and when the memory of an ended process is free. A sample corrects the ledger, never the other way round. If it
shows more than the ledger had, promises may exceed the GPU: `excess` is by how much. Grants wait until it is 0; idle
credit is taken back first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from gpushare.quantity import format_bytes, format_duration
from gpushared.core import health, overuse
from gpushared.core.events import MemorySampled
from gpushared.core.instructions import Persist, Publish, Revoke
from gpushared.core.model import Gpu, Returning, Share, whole_units
from gpushared.core.policy import MIB
from gpushared.core.transaction import Transaction

NOTICEABLE = 64 * MIB
"""Changes of unmanaged memory from this size on are worth a line in the log."""


def take_sample(tx: Transaction, gpu: Gpu, sample: MemorySampled) -> None:
    """Correct the ledger of this GPU."""
    gpu.sampling = False
    gpu.sampled_at = tx.now
    if gpu.back_since is not None and sample.begun is not None and sample.begun < gpu.back_since:
        tx.sample(gpu)  # this one was taken while the GPU was lost
    else:
        gpu.back_since = None
    by_pid = sample.by_pid
    _note_activity(tx, gpu, sample)
    if by_pid is None:
        _correct_by_total(tx, gpu, sample)
    else:
        _correct_overheads(tx, gpu, sample, by_pid)
        overuse.correct_unhooked(tx, gpu, sample, by_pid)
        _correct_returning(tx, gpu, sample, by_pid)
        _correct_unmanaged(tx, gpu, sample, by_pid)
    for id in {share.job for share in gpu.shares.values()}:
        tx.state.note_excess(tx.state.jobs[id], gpu.id)
    gpu.excess = max(0, -gpu.free)
    overuse.check(tx, gpu)
    work_off(tx, gpu)
    if sample.used is not None:
        gpu.health.attributed = by_pid is not None
    health.note_guarantees(tx, gpu)
    tx.emit(Publish(gpu.id))


def _note_activity(tx: Transaction, gpu: Gpu, sample: MemorySampled) -> None:
    gpu.shows_busy = sample.busy is not None
    for process, share in gpu.shares.items():
        busy = sample.busy is not None and tx.state.processes[process].pid in sample.busy
        freed = has_freed(share, sample.releases)
        if busy or freed or sample.steady.get(process, share.used) != share.used:
            tx.state.jobs[share.job].active_at = tx.now


def has_freed(share: Share, releases: Mapping[int, int]) -> bool:
    """Whether it has freed memory since its page was last read, also if it has taken as much again."""
    before, share.releases = share.releases, releases.get(share.process, share.releases)
    return before is not None and share.releases != before


def _live_by_pid(tx: Transaction, gpu: Gpu) -> dict[int, Share]:
    return {tx.state.processes[process].pid: share for process, share in gpu.shares.items()}


def _correct_overheads(tx: Transaction, gpu: Gpu, sample: MemorySampled, by_pid: Mapping[int, int]) -> None:
    coming_back = {entry.pid for entry in gpu.returning.values()}
    refused = Counter[int]()  # bytes that are charged although the driver refused them: NVML does not show them
    for ask in gpu.asks.values():
        if ask.driver_failed:
            refused[ask.process] += ask.wanted
    newest = sample.begun is None or sample.begun >= gpu.seen_at  # pages may have been read since NVML was asked
    for share in gpu.shares.values():
        if newest and share.process in sample.contexts:
            count_contexts(tx, share, sample.contexts[share.process])
        used = sample.steady.get(share.process)
        if used is None:
            continue
        tx.state.see(share, used)
        if share.parked is None and tx.state.jobs[share.job].suspension is not None:
            continue  # its memory leaves or returns just now
        pid = tx.state.processes[share.process].pid
        measured = by_pid.get(pid)
        if pid in coming_back:
            # Before exec, or before it closed a context, it was larger, and that shows under the same pid for a while.
            target = share.overhead
        elif share.parked is not None:
            # All that there is of it: it returns, and the daemon that knew so has ended. It says nothing of a context.
            target = whole_units(measured or 0)
        elif measured is None:
            # Not a context yet, or none any more. The charge stays while one may be opening.
            young = share.attached and not share.measured and _young(tx, share)
            target = share.overhead if young else 0
            if not young:
                gpu.guessed.discard(share.process)
        else:
            target = _corrected(tx, gpu, share, whole_units(max(0, measured - (used - refused[share.process]))))
        if target != share.overhead:
            tx.state.change(share, overhead=target - share.overhead)


def _young(tx: Transaction, share: Share) -> bool:
    return tx.now - share.since < (tx.policy.opening if share.opening else tx.policy.settling)


def _corrected(tx: Transaction, gpu: Gpu, share: Share, found: int) -> int:
    """What to charge for a context that costs `found` bytes by NVML.

    A higher cost counts at once. A lower one counts after NVML has shown no more for a while: memory that a call is
    about to allocate, or has just freed, is still in the `used` word, and hides as much of the overhead.
    """
    if share.opening and _young(tx, share):
        share.provisional, share.provisional_at = -1, tx.now  # a part of it may be there
        return max(found, share.overhead)
    if share.provisional < 0 or found > share.overhead:
        share.provisional, share.provisional_at = found, tx.now
        if share.measured and found > share.overhead and _young(tx, share):
            _learn(tx, gpu, share, found)  # it had only paused
        return max(found, share.overhead)
    share.provisional = max(share.provisional, found)
    if tx.now - share.provisional_at < tx.policy.provisional_apart:
        return share.overhead
    most, share.provisional, share.provisional_at = share.provisional, found, tx.now
    if share.attached and not share.measured:
        if not most and _young(tx, share):
            return share.overhead  # each context costs something: NVML does not show it yet
        take_for_measured(gpu, [share])
        _learn(tx, gpu, share, most)
    return most


def count_contexts(tx: Transaction, share: Share, open_now: int) -> None:
    """`open_now`: the contexts that its page says are open; -1: it says nothing. Where some are closed, what the others
    cost is measured again."""
    share.open_contexts = open_now
    if open_now >= share.contexts:
        share.contexts, share.all_open = open_now, True  # more: one has opened while the daemon was away
    elif share.some_closed and not (share.opening and _young(tx, share)):
        share.contexts, share.all_open, share.measured = open_now, True, False
        share.provisional, share.provisional_at = -1, tx.now


def _learn(tx: Transaction, gpu: Gpu, share: Share, measured: int) -> None:
    """What the next context on this type of GPU is charged before it opens. A process with several does not tell: the
    first may cost more than those after it."""
    if share.contexts > 1:
        return
    if 0 < measured <= tx.policy.overhead_most and tx.state.overheads.get(gpu.name) != measured:
        tx.state.overheads[gpu.name] = measured
        job = tx.state.jobs[share.job]
        text = f"a context costs {format_bytes(measured)} on {gpu.name}"
        tx.record("overhead", text, job=job, gpu=gpu.id, overhead=measured)
        tx.emit(Persist())


def take_for_measured(gpu: Gpu, shares: Iterable[Share]) -> None:
    """Treat the charges of these contexts as measured: NVML had enough time to show more or less."""
    for share in shares:
        share.measured = True
        gpu.guessed.discard(share.process)


def _correct_returning(tx: Transaction, gpu: Gpu, sample: MemorySampled, by_pid: Mapping[int, int]) -> None:
    """Memory of ended processes that NVML no longer shows is free. A sample that began before a process ended may be
    older than the process's last allocation, so it does not count."""
    if not gpu.returning:
        return
    live = _live_by_pid(tx, gpu)
    for process, entry in list(gpu.returning.items()):
        if sample.begun is not None and sample.begun < entry.since:
            continue
        left = by_pid.get(entry.pid, 0)
        if entry.pid in live:
            late = tx.now - entry.since > tx.policy.unkillable_after  # then the living process with this pid has it
            left = 0 if late else max(0, left - live[entry.pid].usage)
        if left <= 0:
            del gpu.returning[process]
            _record_returned(tx, gpu, entry)
        else:
            entry.amount = min(entry.amount, left)


def _record_returned(tx: Transaction, gpu: Gpu, entry: Returning) -> None:
    seconds = tx.now - entry.since
    job = tx.state.jobs.get(entry.job)
    text = f"{format_bytes(entry.amount)} of GPU {gpu.index} returned by the driver after {format_duration(seconds)}"
    tx.record("returned", text, job=job, gpu=gpu.id, amount=entry.amount, seconds=seconds)


def _correct_unmanaged(tx: Transaction, gpu: Gpu, sample: MemorySampled, by_pid: Mapping[int, int]) -> None:
    """Unmanaged memory: other processes', and what the device has in use beyond all processes that NVML lists."""
    ours = set(_live_by_pid(tx, gpu)) | {entry.pid for entry in gpu.returning.values()}
    foreign = sum(amount for pid, amount in by_pid.items() if pid not in ours)
    quiet = not gpu.returning and all(
        process in sample.steady and tx.now - share.since >= tx.policy.settling
        for process, share in gpu.shares.items()
        if process > 0
    )
    unlisted = max(0, (sample.used or 0) - sum(by_pid.values())) if quiet else 0
    set_unmanaged(tx, gpu, foreign + unlisted)


def set_unmanaged(tx: Transaction, gpu: Gpu, amount: int) -> None:
    amount = whole_units(amount)
    if abs(amount - gpu.unmanaged) >= NOTICEABLE:
        text = f"{format_bytes(amount)} of GPU {gpu.index} used outside gpushare"
        if not amount:
            text = f"nothing of GPU {gpu.index} is used outside gpushare any more"
        tx.record("unmanaged", text, gpu=gpu.id, amount=amount)
    gpu.unmanaged = amount


def _correct_by_total(tx: Transaction, gpu: Gpu, sample: MemorySampled) -> None:
    """If NVML attributes no memory to processes, there is only the device's total, and guessed overheads stay.

    Memory of ended processes counts as free when the device has no more in use than the living processes account for.
    It also does after a while if the driver does not answer or the living allocate without a pause. Use beyond that is
    unmanaged.
    """
    gpu.guessed.clear()  # nothing will be measured
    for process, entry in list(gpu.returning.items()):
        if tx.now - entry.since > tx.policy.unattributed_after:
            del gpu.returning[process]
            _record_returned(tx, gpu, entry)
    if sample.used is None or any(process not in sample.steady for process in gpu.shares):
        return
    for process, used in sample.steady.items():
        if process in gpu.shares:
            tx.state.see(gpu.shares[process], used)
    living = gpu.usage
    for process, entry in list(gpu.returning.items()):
        if sample.used <= living + gpu.unmanaged:
            del gpu.returning[process]
            _record_returned(tx, gpu, entry)
    if not gpu.returning:
        set_unmanaged(tx, gpu, max(0, sample.used - living))


def work_off(tx: Transaction, gpu: Gpu) -> None:
    """Take idle credit back from jobs over their limit, and from all if the GPU is over its capacity."""
    if gpu.revoking:
        return
    tx.state.work_off_excess()  # what was given back in this turn is not taken once more
    taken: dict[int, int] = {}
    for id in sorted(tx.state.over_limit):
        job = tx.state.jobs[id]
        if gpu.id in job.excess:
            _take(taken, tx.state.shares_of(job, gpu.id), job.excess[gpu.id])
    _take(taken, list(gpu.shares.values()), gpu.excess - sum(taken.values()))
    for process, size in taken.items():
        gpu.revoking += 1
        tx.emit(Revoke(process, gpu.id, size))


def _take(taken: dict[int, int], shares: list[Share], missing: int) -> None:
    if missing <= 0:
        return
    for share in sorted(shares, key=lambda share: (-share.idle, share.process)):
        size = min(missing, share.idle - taken.get(share.process, 0))
        if size > 0:
            taken[share.process] = taken.get(share.process, 0) + size
            missing -= size
