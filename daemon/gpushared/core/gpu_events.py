"""Events about a GPU: it is found, its health is examined, it reports an error."""

from __future__ import annotations

from gpushare.quantity import format_bytes
from gpushared.core import admission_queue, health, lending, measure
from gpushared.core.events import GpuExamined, GpuFound, XidSeen
from gpushared.core.instructions import Publish
from gpushared.core.model import UNIT, Gpu, whole_units
from gpushared.core.transaction import Transaction


def found(tx: Transaction, event: GpuFound) -> None:
    policy = tx.policy
    reserve = max(policy.reserve_least, int(event.total * policy.reserve_share), event.reserved)
    reserve = whole_units(reserve)
    known = tx.state.gpus.get(event.gpu)
    total = event.total // UNIT * UNIT
    if known is not None:
        known.index, known.name = event.index, event.name
        if health.resized(tx, known, total, min(reserve, total)):
            measure.work_off(tx, known)
            _answer_those_who_wait(tx, known)
        return
    tx.state.gpus[event.gpu] = Gpu(event.gpu, event.index, event.name, total, min(reserve, total))
    text = f"GPU {event.index} {event.name}: {format_bytes(total)}, reserve {format_bytes(reserve)}"
    tx.record("gpu", text, gpu=event.gpu, total=total, reserve=reserve)


def examined(tx: Transaction, event: GpuExamined) -> None:
    gpu = tx.state.gpus.get(event.gpu)
    if gpu is not None:
        health.examined(tx, gpu, event)
        _answer_those_who_wait(tx, gpu)


def xid_seen(tx: Transaction, event: XidSeen) -> None:
    gpu = tx.state.gpus.get(event.gpu)
    if gpu is not None:
        health.xid_seen(tx, gpu, event)
        _answer_those_who_wait(tx, gpu)


def _answer_those_who_wait(tx: Transaction, gpu: Gpu) -> None:
    """After a change of its health or size, asks and queued jobs may be granted or refused."""
    lending.answer_asks(tx, gpu)
    tx.emit(Publish(gpu.id))
    admission_queue.admit_waiting(tx)
