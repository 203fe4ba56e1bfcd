"""What a daemon writes down for its successor, and how it is read again: admitted jobs and learned overheads.

Credit and use need no notes: they are in the credit pages. Times are those of the core's clock, which means nothing to
another process, so the time of writing is beside them. A job's note changes only with the job, and its text is made
once: a node may have a thousand jobs, and is not to write them all down anew whenever one comes.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from gpushare.quantity import Kind, Quantity
from gpushared.core.events import JobRestored, JobSpec, ReservationRestored
from gpushared.core.state import Job, Reservation, State

VERSION = 2


def take(state: State, now: float) -> dict[str, Any]:
    """All that is worth keeping, as JSON-able data."""
    return {**take_node(state, now), "jobs": [take_job(job) for job in state.jobs.values()]}


def take_node(state: State, now: float, without: str = "") -> dict[str, Any]:
    """The same without the jobs, and without the reservation of this id."""
    reservations = [_take_reservation(one) for one in state.reservations.values() if one.id != without]
    return {"version": VERSION, "now": now, "overheads": dict(state.overheads), "reservations": reservations}


def _take_reservation(one: Reservation) -> dict[str, Any]:
    if one.note is None:
        one.note = {
            "reservation": one.id,
            "spec": spec_to_note(one.spec),
            "amounts": dict(one.amounts),
            "since": one.since,
            "until": one.until,
        }
    return one.note


def restore_reservations(notes: dict[str, Any], since: float) -> list[ReservationRestored]:
    """`since`: seconds that have passed since they were written down."""
    now = float(notes["now"])
    return [
        ReservationRestored(
            str(one["reservation"]),
            spec_from_note(one["spec"]),
            {str(gpu): int(amount) for gpu, amount in one["amounts"].items()},
            now - float(one["since"]) + since,
            None if one["until"] is None else max(0.0, float(one["until"]) - now - since),
        )
        for one in notes.get("reservations", [])
    ]


def take_job(job: Job) -> dict[str, Any]:
    return {
        "job": job.id,
        "spec": spec_to_note(job.spec),
        "gpus": list(job.bounds),
        "since": job.since,
        "open": job.open,
        "saved": job.saved_at if job.saved_at >= job.since else None,
    }


def restore(notes: dict[str, Any]) -> list[JobRestored]:
    """The jobs of an earlier daemon. Raises ValueError, KeyError or TypeError for what are no notes of ours."""
    if notes["version"] != VERSION:
        raise ValueError(f"notes of version {notes['version']}")
    now = float(notes["now"])
    return [
        JobRestored(
            str(one["job"]),
            spec_from_note(one["spec"]),
            tuple(one["gpus"]),
            now - float(one["since"]),
            bool(one["open"]),
            None if one.get("saved") is None else now - float(one["saved"]),
        )
        for one in notes["jobs"]
    ]


def restore_overheads(notes: dict[str, Any]) -> dict[str, int]:
    return {str(name): int(amount) for name, amount in notes.get("overheads", {}).items()}


def spec_to_note(spec: JobSpec) -> dict[str, Any]:
    note = {field.name: getattr(spec, field.name) for field in fields(spec)}
    note["request"], note["limit"] = _quantity_to_note(spec.request), _quantity_to_note(spec.limit)
    return note


def spec_from_note(note: dict[str, Any]) -> JobSpec:
    """What a newer daemon has written beside what is known here is left out; what an older one has not, is as ever."""
    known = {field.name for field in fields(JobSpec)}
    values = {name: value for name, value in note.items() if name in known}
    values["request"], values["limit"] = (
        _quantity_from_note(note["request"]),
        _quantity_from_note(note["limit"]),
    )
    for name in ("command", "devices", "on_reclaim"):
        if values.get(name) is not None:
            values[name] = tuple(values[name])
    return JobSpec(**values)


def _quantity_to_note(quantity: Quantity) -> dict[str, Any]:
    return {"kind": quantity.kind.value, "value": quantity.value, "text": quantity.text}


def _quantity_from_note(note: dict[str, Any]) -> Quantity:
    return Quantity(Kind(note["kind"]), int(note["value"]), str(note["text"]))
