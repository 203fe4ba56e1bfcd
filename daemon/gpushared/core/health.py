"""What follows from a GPU's health. Pure; the shell reports what it finds as GpuExamined and XidSeen.

    ok         nothing
    degraded   shown in status; a new job goes to another GPU if it fits there as well
    sick       no new job and no new loan. Claims are met as before: what was promised to a running job holds
    lost       every ask is refused at once; within a request this counts as a broken guarantee ("gpu_lost"). When it is
               back, nothing is granted before NVML has said what is in use: memory of dead processes may still be there

Jobs on a GPU are told once when its state changes. No job is stopped for it: a program notices by itself that its GPU
is lost, and on a sick GPU it may have hours of work to save.

A GPU is also degraded for two reasons that are no issues of the hardware, computed when they are needed: not all
guarantees can be kept, because memory is used outside gpushare or the GPU has shrunk; or the driver does not say which
process uses how much memory.
"""

from __future__ import annotations

from gpushare.quantity import format_bytes
from gpushare.reasons import Code, Reason
from gpushared.core.events import GpuExamined, XidSeen
from gpushared.core.health_issues import Condition, HealthIssue
from gpushared.core.instructions import Notify
from gpushared.core.model import Ask, Gpu
from gpushared.core.transaction import Transaction
from gpushared.core.xid_catalog import RESTART_PROGRAM, of_xid

RECOVERED_AFTER = 30.0
"""Seconds after an Xid from which on the driver is believed when it says that nothing needs to be done."""

MEANING = {
    Condition.DEGRADED: "it goes on",
    Condition.SICK: "it goes on, and should save its work; nothing new is started on this GPU, and nothing lent",
    Condition.LOST: "what it had there is gone, and its calls fail; started again it gets another GPU, if there is one",
}
"""What a GPU's condition means for a job on it."""


def examined(tx: Transaction, gpu: Gpu, event: GpuExamined) -> None:
    """The driver was asked how the GPU is: these issues take the place of those found before."""
    health = gpu.health
    back = health.lost and not any(one.condition is Condition.LOST for one in event.issues)
    recovered = event.recovered and tx.now - health.xid_at >= RECOVERED_AFTER
    health.found = event.issues
    if back or recovered:
        health.xids.clear()
    if back:
        gpu.back_since = tx.now
        tx.sample(gpu)
    _conclude(tx, gpu)


def xid_seen(tx: Transaction, gpu: Gpu, event: XidSeen) -> None:
    health = gpu.health
    issue = of_xid(event.xid)
    count = health.counts[event.xid] = health.counts.get(event.xid, 0) + 1
    if issue.condition is Condition.OK:
        if count & (count - 1) == 0:  # the first, the second, the fourth: a flood must not hide other records
            _note_error_of_program(tx, gpu, issue, event.xid, count)
        return
    health.xids[event.xid] = issue
    health.xid_at = tx.now
    _conclude(tx, gpu)


def _note_error_of_program(tx: Transaction, gpu: Gpu, issue: HealthIssue, number: int, count: int) -> None:
    """NVML does not say which program it was. If one job is alone on the GPU, its story has the error."""
    jobs = {share.job for share in gpu.shares.values()}
    job = tx.state.jobs[jobs.pop()] if len(jobs) == 1 else None
    what = ": an error of a program, not of the GPU" if issue.hint == RESTART_PROGRAM else ""
    text = f"{issue.text}, on GPU {gpu.index}{what}" + (f" ({count} so far)" if count > 1 else "")
    tx.record("xid", text, job=job, gpu=gpu.id, xid=number, count=count)


def _conclude(tx: Transaction, gpu: Gpu) -> None:
    """Compute the state from all issues. Tell jobs when it changes, and log every new issue."""
    health = gpu.health
    issues, before = health.issues, health.condition
    health.condition = max((one.condition for one in issues), default=Condition.OK)
    news = tuple(one for one in issues if one.cause not in health.noted)
    health.noted = frozenset(one.cause for one in issues)
    if health.condition > before:
        _tell(tx, gpu, reason(gpu, issues))
    elif health.condition < before:
        _tell(tx, gpu, _better(gpu))
    elif news:
        tx.record_reason(f"gpu_{health.condition}", reason(gpu, news), gpu=gpu.id)


def _tell(tx: Transaction, gpu: Gpu, why: Reason) -> None:
    event = f"gpu_{gpu.health.condition}"
    tx.record_reason(event, why, gpu=gpu.id)
    for job in tx.state.owners(gpu.id):
        tx.record_reason(event, why, job=job, gpu=gpu.id)
        tx.emit(Notify(job.id, event, why))


# ---- refusals --------------------------------------------------------------------------------------


def refusal(tx: Transaction, gpu: Gpu, ask: Ask) -> Reason | None:
    """Why this ask is refused on a GPU that admits nothing; None: it is within a request, and may be granted."""
    if gpu.health.lost:
        if ask.claim:
            tx.state.counters.violations["gpu_lost"] += 1
    elif ask.claim:
        return None
    what = "cannot open a context" if ask.attach else f"cannot allocate {format_bytes(ask.wanted)}"
    why = reason(gpu, gpu.health.issues)
    text = why.message if gpu.health.lost else f"{why.message}; nothing is lent on it"
    data = {**why.data, "asked": ask.wanted, "job": ask.job}
    return Reason(Code.GPU_UNHEALTHY, f"{what}: {text}", why.facts, why.hint, data)


def none_left(gpus: list[Gpu], wanted: int) -> Reason:
    """The refusal of a job that fits only on GPUs that admit nothing."""
    out = [gpu for gpu in gpus if not gpu.health.admits]
    facts = tuple((f"GPU {gpu.index}", f"{gpu.health.condition}: {_texts(gpu.health.issues)}") for gpu in out)
    data = {"asked": wanted, "gpus": len(gpus) - len(out), **{gpu.id: str(gpu.health.condition) for gpu in out}}
    if len(gpus) == 1:
        (gpu,) = gpus
        worst = gpu.health.issues[0]
        message = f"GPU {gpu.index} is {gpu.health.condition}: {worst.text}; nothing new is admitted on it"
        return Reason(Code.GPU_UNHEALTHY, message, (), worst.hint, data)
    usable = len(gpus) - len(out)
    message = f"asked for {wanted} GPU{'' if wanted == 1 else 's'}, and {usable or 'none'} of these can be used"
    return Reason(Code.GPU_UNHEALTHY, message, facts, "`gpushare status` shows when they are back", data)


# ---- in words --------------------------------------------------------------------------------------


def reason(gpu: Gpu, issues: tuple[HealthIssue, ...]) -> Reason:
    """What a job on the GPU is told. The issues come worst first."""
    worst = issues[0]
    condition = gpu.health.condition
    also = [("also", one.text) for one in issues[1:]]
    facts = ((f"GPU {gpu.index}", f"{gpu.name}, {gpu.id}"), *also, ("the job", MEANING[condition]))
    data: dict[str, object] = {"gpu": gpu.id, "condition": str(condition), "causes": [one.cause for one in issues]}
    for one in issues:
        data.update(one.data)
    return Reason(Code.GPU_UNHEALTHY, f"GPU {gpu.index} is {condition}: {worst.text}", facts, worst.hint, data)


def _better(gpu: Gpu) -> Reason:
    condition = gpu.health.condition
    state = "well again" if condition is Condition.OK else f"still {condition}: {_texts(gpu.health.issues)}"
    facts = ((f"GPU {gpu.index}", f"{gpu.name}, {gpu.id}"),)
    data = {"gpu": gpu.id, "condition": str(condition), "causes": [one.cause for one in gpu.health.issues]}
    hint = "a program that had it open must be started again" if condition <= Condition.DEGRADED else None
    return Reason(Code.GPU_UNHEALTHY, f"GPU {gpu.index} is {state}", facts, hint, data)


def _texts(issues: tuple[HealthIssue, ...]) -> str:
    return "; ".join(one.text for one in issues)


# ---- guarantees that cannot all be kept --------------------------------------------------------------


def shortfall(gpu: Gpu) -> int:
    """By how many bytes the requests exceed the GPU's usable memory."""
    return max(0, gpu.requested - max(0, gpu.capacity - gpu.unmanaged))


def all_of(gpu: Gpu) -> tuple[HealthIssue, ...]:
    """The issues of the hardware and the two computed ones, the worst first."""
    found = list(gpu.health.issues)
    if shortfall(gpu):
        found.append(_overpromised(gpu))
    if not gpu.health.attributed:
        text = "the driver does not say which program uses how much of its memory"
        hint = "run the daemon in the machine's own PID namespace; `gpushare doctor` looks closer"
        found.append(HealthIssue(Condition.DEGRADED, "unattributed", text, hint))
    return tuple(found)


def condition_of(gpu: Gpu) -> Condition:
    """The GPU's condition by all issues, the computed ones, too."""
    return max((one.condition for one in all_of(gpu)), default=Condition.OK)


def note_guarantees(tx: Transaction, gpu: Gpu) -> None:
    """Record when a GPU begins, or ceases, to have less memory than is guaranteed on it."""
    short = shortfall(gpu) > 0
    if short == gpu.health.short:
        return
    gpu.health.short = short
    text = _overpromised(gpu).text if short else "all guarantees can be kept again"
    tx.record("guarantees", f"GPU {gpu.index}: {text}", gpu=gpu.id, missing=shortfall(gpu))


def _overpromised(gpu: Gpu) -> HealthIssue:
    missing = shortfall(gpu)
    outside = f" less {format_bytes(gpu.unmanaged)} used outside gpushare" if gpu.unmanaged else ""
    text = (
        f"{format_bytes(missing)} short of its guarantees: {format_bytes(gpu.requested)} requested, "
        f"{format_bytes(gpu.capacity)} there{outside}"
    )
    hint = "end what runs outside gpushare, or a job" if gpu.unmanaged else "end a job, or lower a request"
    data = {"missing": missing, "requested": gpu.requested, "capacity": gpu.capacity, "unmanaged": gpu.unmanaged}
    return HealthIssue(Condition.DEGRADED, "guarantees", text, hint, data)


def resized(tx: Transaction, gpu: Gpu, total: int, reserve: int) -> bool:
    """Take over the GPU's size. Returns whether it has changed. A job that is now over its limit keeps its memory, and
    cannot grow."""
    if (total, reserve) == (gpu.total, gpu.reserve):
        return False
    before = gpu.capacity
    gpu.total, gpu.reserve = total, reserve
    gpu.overpromised = max(0, gpu.requested + tx.state.reserved(gpu.id) - gpu.capacity)
    gpu.excess = max(0, -gpu.free)
    text = f"GPU {gpu.index}: its capacity changes from {format_bytes(before)} to {format_bytes(gpu.capacity)}"
    tx.record("capacity", text, gpu=gpu.id, total=total, reserve=reserve, before=before, capacity=gpu.capacity)
    note_guarantees(tx, gpu)
    return True


def obstacle(gpu: Gpu) -> tuple[str, str] | None:
    """Why the GPU itself could not meet a claim: cause and text; None: it was not the GPU."""
    if gpu.overpromised:
        return "capacity", f"GPU {gpu.index} has {format_bytes(gpu.overpromised)} less than is guaranteed on it"
    return None
