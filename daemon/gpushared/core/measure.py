"""What NVML says, and what follows: overheads, unmanaged memory, memory that has come back.

The ledger knows what was allocated; only NVML knows what contexts and modules cost, what programs outside gpushare
hold, and when the memory of a dead process is really free. A sample corrects the ledger and never the other way
round. Where it shows more than the ledger had, `excess` says by how much the promises now exceed the GPU: nothing
is granted until that is worked off, and idle credit is taken back first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpushare.quantity import format_bytes, format_duration
from gpushared.core import breach, health
from gpushared.core.events import MemorySampled
from gpushared.core.instructions import Persist, Publish, Revoke
from gpushared.core.state import MIB, Gpu, Returning, Share, whole_units
from gpushared.core.turn import Turn

NOTICEABLE = 64 * MIB
"""Changes of unmanaged memory from this size on are worth a line in the log."""


def take_sample(turn: Turn, gpu: Gpu, sample: MemorySampled) -> None:
    """Correct the ledger of this GPU."""
    gpu.sampling = False
    gpu.sampled_at = turn.now
    by_pid = sample.by_pid
    _note_activity(turn, gpu, sample)
    if by_pid is None:
        _settle_by_totals(turn, gpu, sample)
    else:
        _settle_overheads(turn, gpu, sample, by_pid)
        breach.settle_strays(turn, gpu, sample, by_pid)
        _settle_returning(turn, gpu, by_pid)
        _settle_unmanaged(turn, gpu, sample, by_pid)
    for id in {share.job for share in gpu.shares.values()}:
        turn.state.note_excess(turn.state.jobs[id], gpu.id)
    gpu.excess = max(0, -gpu.free)
    breach.check(turn, gpu)
    work_off(turn, gpu)
    if sample.used is not None:
        gpu.health.attributed = by_pid is not None
    health.note_guarantees(turn, gpu)
    turn.emit(Publish(gpu.id))


def _note_activity(turn: Turn, gpu: Gpu, sample: MemorySampled) -> None:
    gpu.shows_busy = sample.busy is not None
    for process, share in gpu.shares.items():
        busy = sample.busy is not None and turn.state.processes[process].pid in sample.busy
        if busy or sample.steady.get(process, share.used) != share.used:
            turn.state.jobs[share.job].active_at = turn.now


def _live_by_pid(turn: Turn, gpu: Gpu) -> dict[int, Share]:
    return {turn.state.processes[process].pid: share for process, share in gpu.shares.items()}


def _settle_overheads(turn: Turn, gpu: Gpu, sample: MemorySampled, by_pid: Mapping[int, int]) -> None:
    coming_back = {entry.pid for entry in gpu.returning.values()}
    for share in gpu.shares.values():
        used = sample.steady.get(share.process)
        if used is None:
            continue
        turn.state.see(share, used)
        pid = turn.state.processes[share.process].pid
        measured = by_pid.get(pid)
        if pid in coming_back:
            # Before exec, or before it closed a context, it was larger, and that shows under the same pid for a while.
            target = share.overhead
        elif measured is None:
            # Not a context yet, or none any more. The charge stays while one may be opening.
            young = share.attached and _young(turn, share)
            target = share.overhead if young else 0
            if not young:
                gpu.guessed.discard(share.process)
        else:
            target = _settled(turn, gpu, share, whole_units(max(0, measured - used)))
        if target != share.overhead:
            turn.state.change(share, overhead=target - share.overhead)


def _young(turn: Turn, share: Share) -> bool:
    return turn.now - share.since < turn.policy.settling


def _settled(turn: Turn, gpu: Gpu, share: Share, found: int) -> int:
    """What to charge for a context that NVML shows to cost `found`.

    More counts at once. Less counts when NVML has shown no more for a while: what a call is about to allocate, or has
    just freed, is in the word already, or still, and hides as much of the overhead.
    """
    if share.glimpse < 0 or found > share.overhead:
        share.glimpse, share.glimpsed_at = found, turn.now
        if share.measured and found > share.overhead and _young(turn, share):
            _learn(turn, gpu, share, found)  # it had only paused
        return max(found, share.overhead)
    share.glimpse = max(share.glimpse, found)
    if turn.now - share.glimpsed_at < turn.policy.glimpses_apart:
        return share.overhead
    most, share.glimpse, share.glimpsed_at = share.glimpse, found, turn.now
    if share.attached and not share.measured:
        if not most and _young(turn, share):
            return share.overhead
        take_for_measured(gpu, [share])
        _learn(turn, gpu, share, most)
    return most


def _learn(turn: Turn, gpu: Gpu, share: Share, measured: int) -> None:
    """What the next context on this type of GPU is charged before it opens."""
    if 0 < measured <= turn.policy.overhead_most and turn.state.overheads.get(gpu.name) != measured:
        turn.state.overheads[gpu.name] = measured
        job = turn.state.jobs[share.job]
        text = f"a context costs {format_bytes(measured)} on {gpu.name}"
        turn.record("overhead", text, job=job, gpu=gpu.id, overhead=measured)
        turn.emit(Persist())


def take_for_measured(gpu: Gpu, shares: Iterable[Share]) -> None:
    """NVML has had its time: what these contexts are charged stands."""
    for share in shares:
        share.measured = True
        gpu.guessed.discard(share.process)


def _settle_returning(turn: Turn, gpu: Gpu, by_pid: Mapping[int, int]) -> None:
    if not gpu.returning:
        return
    live = _live_by_pid(turn, gpu)
    for process, entry in list(gpu.returning.items()):
        left = by_pid.get(entry.pid, 0)
        if entry.pid in live:
            late = turn.now - entry.since > turn.policy.unkillable_after  # then it is the living one's, after all
            left = 0 if late else max(0, left - live[entry.pid].usage)
        if left <= 0:
            del gpu.returning[process]
            _record_returned(turn, gpu, entry)
        else:
            entry.amount = min(entry.amount, left)


def _record_returned(turn: Turn, gpu: Gpu, entry: Returning) -> None:
    seconds = turn.now - entry.since
    job = turn.state.jobs.get(entry.job)
    text = f"{format_bytes(entry.amount)} of GPU {gpu.index} returned by the driver after {format_duration(seconds)}"
    turn.record("returned", text, job=job, gpu=gpu.id, amount=entry.amount, seconds=seconds)


def _settle_unmanaged(turn: Turn, gpu: Gpu, sample: MemorySampled, by_pid: Mapping[int, int]) -> None:
    """Memory of other processes, and what the device has in use beyond all processes that NVML lists."""
    ours = set(_live_by_pid(turn, gpu)) | {entry.pid for entry in gpu.returning.values()}
    foreign = sum(amount for pid, amount in by_pid.items() if pid not in ours)
    quiet = not gpu.returning and all(
        process in sample.steady and turn.now - share.since >= turn.policy.settling
        for process, share in gpu.shares.items()
        if process > 0
    )
    unlisted = max(0, (sample.used or 0) - sum(by_pid.values())) if quiet else 0
    set_unmanaged(turn, gpu, foreign + unlisted)


def set_unmanaged(turn: Turn, gpu: Gpu, amount: int) -> None:
    amount = whole_units(amount)
    if abs(amount - gpu.unmanaged) >= NOTICEABLE:
        text = f"{format_bytes(amount)} of GPU {gpu.index} used outside gpushare"
        if not amount:
            text = f"nothing of GPU {gpu.index} is used outside gpushare any more"
        turn.record("unmanaged", text, gpu=gpu.id, amount=amount)
    gpu.unmanaged = amount


def _settle_by_totals(turn: Turn, gpu: Gpu, sample: MemorySampled) -> None:
    """Without attribution the device's total is all there is; guesses of overheads stay as they are.

    Memory counts as returned when the device shows no more in use than the living account for, or after a while, though
    the driver does not answer or the living allocate without a pause; what is in use beyond that is unmanaged.
    """
    gpu.guessed.clear()  # a guess is all that there will be
    for process, entry in list(gpu.returning.items()):
        if turn.now - entry.since > turn.policy.unattributed_after:
            del gpu.returning[process]
            _record_returned(turn, gpu, entry)
    if sample.used is None or any(process not in sample.steady for process in gpu.shares):
        return
    for process, used in sample.steady.items():
        if process in gpu.shares:
            turn.state.see(gpu.shares[process], used)
    living = gpu.usage
    for process, entry in list(gpu.returning.items()):
        if sample.used <= living + gpu.unmanaged:
            del gpu.returning[process]
            _record_returned(turn, gpu, entry)
    if not gpu.returning:
        set_unmanaged(turn, gpu, max(0, sample.used - living))


def work_off(turn: Turn, gpu: Gpu) -> None:
    """Take idle credit back where a job is over its limit, or the GPU over its capacity, as far as it goes."""
    if gpu.revoking:
        return
    taken: dict[int, int] = {}
    for id in sorted(turn.state.over):
        job = turn.state.jobs[id]
        if gpu.id in job.excess:
            _take(taken, turn.state.shares_of(job, gpu.id), job.excess[gpu.id])
    _take(taken, list(gpu.shares.values()), gpu.excess - sum(taken.values()))
    for process, size in taken.items():
        gpu.revoking += 1
        turn.emit(Revoke(process, gpu.id, size))


def _take(taken: dict[int, int], shares: list[Share], missing: int) -> None:
    if missing <= 0:
        return
    for share in sorted(shares, key=lambda share: (-share.idle, share.process)):
        size = min(missing, share.idle - taken.get(share.process, 0))
        if size > 0:
            taken[share.process] = taken.get(share.process, 0) + size
            missing -= size
