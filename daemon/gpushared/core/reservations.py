"""Reservations: memory that is promised to a user without a job, so that it is there when the next one starts.

A reservation is admitted as a request is, and outlives the jobs that start in it. The requests of these jobs are taken
from it first. The rest, its *remainder*, stays promised:

    reserved on the GPU   max(0, its amount there - the requests of the jobs in it)

and counts with the requests in admission. It is idle, so it is lent; a claim of a job in the reservation gets it back.
"""

from __future__ import annotations

from dataclasses import replace

from gpushare.job_spec import JobSpec
from gpushare.quantity import Kind, Quantity, format_bytes, format_duration
from gpushare.reasons import Code, Reason, words
from gpushared.core import admission, visibility
from gpushared.core.events import ReservationAsked, ReservationEnded, ReservationRestored
from gpushared.core.instructions import Persist, ReservationMade, ReservationRefused
from gpushared.core.model import Reservation
from gpushared.core.transaction import Transaction


def ask(tx: Transaction, event: ReservationAsked) -> None:
    """Make it now or refuse it: a reservation does not queue."""
    state, spec = tx.state, event.spec
    reason = _objection(tx, event)
    found = reason or admission.place(state, spec._replace(limit=Quantity(Kind.MAX, 0, "max")))
    if isinstance(found, Reason):
        if found.code is Code.NOT_ADMITTED:
            found = replace(found, hint="reserve less, or when one of these ends")
        tx.emit(ReservationRefused(event.reservation, found))
        text = words("no reservation ", visibility.name(spec), " for ", visibility.user(spec), ": ", found.message)
        tx.record_of_user(spec.uid, "refused", text)
        return
    until = None if event.lasting is None else tx.now + event.lasting
    amounts = {gpu: bounds.request for gpu, bounds in found.items()}
    state.add_reservation(Reservation(event.reservation, spec, amounts, tx.now, until))
    tx.emit(ReservationMade(event.reservation, tuple(amounts)))
    where = _places(tx, state.reservations[event.reservation])
    lasting = "until it is released" if event.lasting is None else f"for {format_duration(event.lasting)}"
    text = words(visibility.user(spec), f" reserves {where} as ", visibility.name(spec), f", {lasting}")
    tx.record_of_user(spec.uid, "reserved", text)
    tx.emit(Persist())


def _places(tx: Transaction, one: Reservation) -> str:
    found = ((tx.state.gpus[gpu], amount) for gpu, amount in one.amounts.items())
    return ", ".join(f"{format_bytes(amount)} of GPU {gpu.index}" for gpu, amount in found)


def _objection(tx: Transaction, event: ReservationAsked) -> Reason | None:
    spec = event.spec
    if spec.request.kind is Kind.NONE or (spec.request.kind is Kind.BYTES and spec.request.value == 0):
        return Reason(Code.BAD_BUDGET, "a reservation of nothing", hint="say how much: `gpushare reserve 4Gi`")
    same = [one for one in tx.state.reservations.values() if one.spec.uid == spec.uid and one.spec.name == spec.name]
    if same:
        return Reason(
            Code.BAD_BUDGET,
            words("there is a reservation ", visibility.name(spec), " already"),
            hint=words("`gpushare release ", visibility.name(spec), "` ends it; or give another --name"),
        )
    return None


def restore(tx: Transaction, event: ReservationRestored) -> None:
    """Make again what still fits of an earlier daemon's reservation."""
    state = tx.state
    amounts = {}
    for gpu, amount in event.amounts.items():
        known = state.gpus.get(gpu)
        if known is not None:
            amounts[gpu] = max(0, min(amount, admission.unrequested(state, known) + known.unmanaged))
    until = None if event.left is None else tx.now + event.left
    state.add_reservation(Reservation(event.reservation, event.spec, amounts, tx.now - event.age, until))


def end(tx: Transaction, event: ReservationEnded) -> None:
    """It was released. Jobs in it keep their requests; its remainder is free again."""
    gone = tx.state.reservations.get(event.reservation)
    if gone is not None:
        tx.state.drop_reservation(gone)
        _over(tx, gone, "released")


def end_those_over(tx: Transaction) -> bool:
    """Whether there were any."""
    over = [one for one in tx.state.reservations.values() if one.until is not None and tx.now >= one.until]
    for gone in over:
        tx.state.drop_reservation(gone)
        _over(tx, gone, "over")
    return bool(over)


def _over(tx: Transaction, gone: Reservation, how: str) -> None:
    mine = visibility.name(gone.spec), " of ", visibility.user(gone.spec)
    text = words("the reservation ", *mine, f" is {how}: {_places(tx, gone)}")
    tx.record_of_user(gone.spec.uid, "released", text)
    tx.emit(Persist())


def of_job(tx: Transaction, spec: JobSpec) -> Reservation | Reason | None:
    """The reservation that a job wants to start in."""
    if not spec.reservation:
        return None
    found = tx.state.reservations.get(spec.reservation)
    if found is None or found.spec.uid != spec.uid:
        return Reason(
            Code.NO_SUCH_JOB,
            f"no reservation {spec.reservation}: it is over, or has been released",
            hint="see `gpushare reserve --list`",
        )
    return found
