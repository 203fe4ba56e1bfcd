"""What follows from a GPU's health. Pure; the shell reports what it finds as GpuExamined and XidSeen.

    ok         nothing
    degraded   shown to whoever asks; a new job goes elsewhere if it fits there as well
    sick       no new job and no new loan. Claims are met as before: what was promised to a running job holds
    lost       every ask is answered at once with no; one within a request counts as a broken guarantee ("gpu_lost")

Jobs on a GPU are told once when its state changes. Nobody is stopped for it: a program whose GPU is lost finds out by
itself, and one whose GPU is sick may have hours of work to save.

Two more reasons to be degraded are no ailments of the hardware and are derived when somebody asks: guarantees that
cannot all be kept, because memory is used outside gpushare or the GPU has shrunk; and a driver that does not say which
process uses how much memory.
"""

from __future__ import annotations

from gpushare.quantity import format_bytes
from gpushare.reasons import Code, Reason
from gpushared.core.ailments import Ailment, Condition
from gpushared.core.events import GpuExamined, XidSeen
from gpushared.core.instructions import Notify
from gpushared.core.state import Ask, Gpu
from gpushared.core.turn import Turn
from gpushared.core.xids import RESTART_PROGRAM, of_xid

RECOVERED_AFTER = 30.0
"""So long after an Xid the driver's word that nothing needs to be done is believed."""

MEANING = {
    Condition.DEGRADED: "it goes on",
    Condition.SICK: "it goes on, and should save its work; nothing new is started on this GPU, and nothing lent",
    Condition.LOST: "what it had there is gone, and its calls fail; started again it gets another GPU, if there is one",
}
"""For a job on it."""


def examined(turn: Turn, gpu: Gpu, event: GpuExamined) -> None:
    """The driver was asked how the GPU is: these ailments take the place of those found before."""
    health = gpu.health
    back = health.lost and not any(one.condition is Condition.LOST for one in event.ailments)
    recovered = event.recovered and turn.now - health.xid_at >= RECOVERED_AFTER
    health.found = event.ailments
    if back or recovered:
        health.xids.clear()
    _conclude(turn, gpu)


def xid_seen(turn: Turn, gpu: Gpu, event: XidSeen) -> None:
    health = gpu.health
    ailment = of_xid(event.xid)
    count = health.counts[event.xid] = health.counts.get(event.xid, 0) + 1
    if ailment.condition is Condition.OK:
        if count & (count - 1) == 0:  # the first, the second, the fourth: a flood must not drown everything else
            _note_error_of_program(turn, gpu, ailment, event.xid, count)
        return
    health.xids[event.xid] = ailment
    health.xid_at = turn.now
    _conclude(turn, gpu)


def _note_error_of_program(turn: Turn, gpu: Gpu, ailment: Ailment, number: int, count: int) -> None:
    """NVML does not say whose it was: of a job that is alone on the GPU it is part of its story."""
    jobs = {share.job for share in gpu.shares.values()}
    job = turn.state.jobs[jobs.pop()] if len(jobs) == 1 else None
    what = ": an error of a program, not of the GPU" if ailment.hint == RESTART_PROGRAM else ""
    text = f"{ailment.text}, on GPU {gpu.index}{what}" + (f" ({count} so far)" if count > 1 else "")
    turn.record("xid", text, job=job, gpu=gpu.id, xid=number, count=count)


def _conclude(turn: Turn, gpu: Gpu) -> None:
    """The state that all ailments make together. Jobs hear of it when it changes; the log has every ailment."""
    health = gpu.health
    ailments, before = health.ailments, health.condition
    health.condition = max((one.condition for one in ailments), default=Condition.OK)
    news = tuple(one for one in ailments if one.cause not in health.noted)
    health.noted = frozenset(one.cause for one in ailments)
    if health.condition > before:
        _tell(turn, gpu, reason(gpu, ailments))
    elif health.condition < before:
        _tell(turn, gpu, _better(gpu))
    elif news:
        turn.record_reason(f"gpu_{health.condition}", reason(gpu, news), gpu=gpu.id)


def _tell(turn: Turn, gpu: Gpu, why: Reason) -> None:
    event = f"gpu_{gpu.health.condition}"
    turn.record_reason(event, why, gpu=gpu.id)
    for job in turn.state.owners(gpu.id):
        turn.record_reason(event, why, job=job, gpu=gpu.id)
        turn.emit(Notify(job.id, event, why))


# ---- what is refused -------------------------------------------------------------------------------


def refusal(turn: Turn, gpu: Gpu, ask: Ask) -> Reason | None:
    """Why this ask is not to be met on a GPU that admits nothing; None: it is within a request, and may be tried."""
    if gpu.health.lost:
        if ask.claim:
            turn.state.counters.violations["gpu_lost"] += 1
    elif ask.claim:
        return None
    what = "cannot open a context" if ask.attach else f"cannot allocate {format_bytes(ask.wanted)}"
    why = reason(gpu, gpu.health.ailments)
    text = why.message if gpu.health.lost else f"{why.message}; nothing is lent on it"
    data = {**why.data, "asked": ask.wanted, "job": ask.job}
    return Reason(Code.GPU_UNHEALTHY, f"{what}: {text}", why.facts, why.hint, data)


def none_left(gpus: list[Gpu], wanted: int) -> Reason:
    """A job that would have to go where nothing is admitted."""
    out = [gpu for gpu in gpus if not gpu.health.admits]
    facts = tuple((f"GPU {gpu.index}", f"{gpu.health.condition}: {_texts(gpu.health.ailments)}") for gpu in out)
    data = {"asked": wanted, "gpus": len(gpus) - len(out), **{gpu.id: str(gpu.health.condition) for gpu in out}}
    if len(gpus) == 1:
        (gpu,) = gpus
        worst = gpu.health.ailments[0]
        message = f"GPU {gpu.index} is {gpu.health.condition}: {worst.text}; nothing new is admitted on it"
        return Reason(Code.GPU_UNHEALTHY, message, (), worst.hint, data)
    usable = len(gpus) - len(out)
    message = f"asked for {wanted} GPU{'' if wanted == 1 else 's'}, and {usable or 'none'} of these can be used"
    return Reason(Code.GPU_UNHEALTHY, message, facts, "`gpushare status` shows when they are back", data)


# ---- in words --------------------------------------------------------------------------------------


def reason(gpu: Gpu, ailments: tuple[Ailment, ...]) -> Reason:
    """For a job on the GPU. The ailments are the worst first."""
    worst = ailments[0]
    condition = gpu.health.condition
    also = [("also", one.text) for one in ailments[1:]]
    facts = ((f"GPU {gpu.index}", f"{gpu.name}, {gpu.id}"), *also, ("the job", MEANING[condition]))
    data: dict[str, object] = {"gpu": gpu.id, "condition": str(condition), "causes": [one.cause for one in ailments]}
    for one in ailments:
        data.update(one.data)
    return Reason(Code.GPU_UNHEALTHY, f"GPU {gpu.index} is {condition}: {worst.text}", facts, worst.hint, data)


def _better(gpu: Gpu) -> Reason:
    condition = gpu.health.condition
    state = "well again" if condition is Condition.OK else f"still {condition}: {_texts(gpu.health.ailments)}"
    facts = ((f"GPU {gpu.index}", f"{gpu.name}, {gpu.id}"),)
    data = {"gpu": gpu.id, "condition": str(condition), "causes": [one.cause for one in gpu.health.ailments]}
    hint = "a program that had it open must be started again" if condition <= Condition.DEGRADED else None
    return Reason(Code.GPU_UNHEALTHY, f"GPU {gpu.index} is {state}", facts, hint, data)


def _texts(ailments: tuple[Ailment, ...]) -> str:
    return "; ".join(one.text for one in ailments)


# ---- guarantees that cannot all be kept --------------------------------------------------------------


def shortfall(gpu: Gpu) -> int:
    """By how much the requests exceed what can be had of the GPU."""
    return max(0, gpu.requested - max(0, gpu.capacity - gpu.unmanaged))


def all_of(gpu: Gpu) -> tuple[Ailment, ...]:
    """The ailments of the hardware, and what else makes it worse than it should be. The worst first."""
    found = list(gpu.health.ailments)
    if shortfall(gpu):
        found.append(_overpromised(gpu))
    if not gpu.health.attributed:
        text = "the driver does not say which program uses how much of its memory"
        hint = "run the daemon in the machine's own PID namespace; `gpushare doctor` looks closer"
        found.append(Ailment(Condition.DEGRADED, "unattributed", text, hint))
    return tuple(found)


def condition_of(gpu: Gpu) -> Condition:
    """With all of it."""
    return max((one.condition for one in all_of(gpu)), default=Condition.OK)


def note_guarantees(turn: Turn, gpu: Gpu) -> None:
    """Write it down when a GPU begins, or ceases, to have less than is guaranteed on it."""
    short = shortfall(gpu) > 0
    if short == gpu.health.short:
        return
    gpu.health.short = short
    text = _overpromised(gpu).text if short else "all guarantees can be kept again"
    turn.record("guarantees", f"GPU {gpu.index}: {text}", gpu=gpu.id, missing=shortfall(gpu))


def _overpromised(gpu: Gpu) -> Ailment:
    missing = shortfall(gpu)
    outside = f" less {format_bytes(gpu.unmanaged)} used outside gpushare" if gpu.unmanaged else ""
    text = (
        f"{format_bytes(missing)} short of its guarantees: {format_bytes(gpu.requested)} requested, "
        f"{format_bytes(gpu.capacity)} there{outside}"
    )
    hint = "end what runs outside gpushare, or a job" if gpu.unmanaged else "end a job, or lower a request"
    data = {"missing": missing, "requested": gpu.requested, "capacity": gpu.capacity, "unmanaged": gpu.unmanaged}
    return Ailment(Condition.DEGRADED, "guarantees", text, hint, data)


def resized(turn: Turn, gpu: Gpu, total: int, reserve: int) -> bool:
    """The GPU has more or less memory than before. True if so; who is over is left in peace, and cannot grow."""
    if (total, reserve) == (gpu.total, gpu.reserve):
        return False
    before = gpu.capacity
    gpu.total, gpu.reserve = total, reserve
    gpu.overpromised = max(0, gpu.requested + turn.state.reserved(gpu.id) - gpu.capacity)
    gpu.excess = max(0, -gpu.free)
    text = f"GPU {gpu.index}: its capacity changes from {format_bytes(before)} to {format_bytes(gpu.capacity)}"
    turn.record("capacity", text, gpu=gpu.id, total=total, reserve=reserve, before=before, capacity=gpu.capacity)
    note_guarantees(turn, gpu)
    return True


def obstacle(gpu: Gpu) -> tuple[str, str] | None:
    """Of a claim that could not be met: whether the GPU itself stood in its way."""
    if gpu.overpromised:
        return "capacity", f"GPU {gpu.index} has {format_bytes(gpu.overpromised)} less than is guaranteed on it"
    return None
