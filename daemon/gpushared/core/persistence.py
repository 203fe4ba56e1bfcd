"""What a daemon writes down for its successor, and how it is read again: admitted jobs and learned overheads.

Credit and use are not written: they are in the credit pages. Times are by the core's clock, which means nothing to
another process, so the time of writing is written, too. The text of a job's note is made once and kept until the job
changes: otherwise each new job would write the text of all others again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from gpushare.job_spec import OPTIONS, JobSpec, Option
from gpushare.quantity import Kind, Quantity
from gpushare.reclaim_steps import JOB_STEPS, ReclaimStep
from gpushared.core.events import AsleepBefore, JobRestored, ReservationRestored, SuspendedBefore
from gpushared.core.model import Job, Reservation
from gpushared.core.sleep import SleepState
from gpushared.core.state import State
from gpushared.core.suspension import SuspendState


def take(state: State, now: float) -> dict[str, Any]:
    """All that is worth keeping, as JSON-able data."""
    return {**take_node(state, now), "jobs": [take_job(job) for job in state.jobs.values()]}


def take_node(state: State, now: float, without: str = "") -> dict[str, Any]:
    """The same without the jobs, and without the reservation of this id."""
    reservations = [_take_reservation(one) for one in state.reservations.values() if one.id != without]
    return {"now": now, "overheads": dict(state.overheads), "reservations": reservations}


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


def take_job(job: Job) -> dict[str, Any]:
    return {
        "job": job.id,
        "spec": spec_to_note(job.spec),
        "gpus": list(job.bounds),
        "since": job.since,
        "open": job.open,
        "saved": job.saved_at if job.saved_at >= job.since else None,
        "suspended": _take_suspension(job),
        "asleep": _take_sleep(job),
    }


def key_of(job: Job) -> tuple[object, ...]:
    """A value that differs if the job's note would. It takes less time to make than the note."""
    return (
        *(job.spec, job.open, job.saved_at, tuple(job.bounds)),
        *(suspended_before(job, 0.0), asleep_before(job, 0.0)),
    )


def suspended_before(job: Job, now: float) -> SuspendedBefore | None:
    one = job.suspension
    if one is None:
        return None
    command = 0 if one.state is SuspendState.SUSPENDED else one.number
    return SuspendedBefore(one.gpu, now - one.since, one.held, command, one.state is SuspendState.SUSPENDING)


def _take_suspension(job: Job) -> dict[str, Any] | None:
    one = suspended_before(job, 0.0)
    return None if one is None else _with_since(one)


def _with_since(one: SuspendedBefore | AsleepBefore) -> dict[str, Any]:
    """What was made for the time 0: so its age is a time of the core's clock."""
    return {"since": -one.age, **{name: value for name, value in one._asdict().items() if name != "age"}}


def asleep_before(job: Job, now: float) -> AsleepBefore | None:
    one = job.sleep
    if one is None:
        return None
    gave = None if one.gave is None else dict(one.gave)
    command = 0 if one.state is SleepState.ASLEEP else one.number
    relief = one.state is SleepState.ASKED
    return AsleepBefore(now - one.since, dict(one.had), dict(one.allocated), gave, command, relief)


def _take_sleep(job: Job) -> dict[str, Any] | None:
    one = asleep_before(job, 0.0)
    return None if one is None else _with_since(one)


def spec_to_note(spec: JobSpec) -> dict[str, Any]:
    note = spec._asdict()
    note["request"], note["limit"] = _quantity_to_note(spec.request), _quantity_to_note(spec.limit)
    return note


def _quantity_to_note(quantity: Quantity) -> dict[str, Any]:
    return {"kind": quantity.kind.value, "value": quantity.value, "text": quantity.text}


# ---- reading ---------------------------------------------------------------------------------------


class OddNote(ValueError):
    """Something in the notes that no version of this daemon has written."""


Odd = Callable[[str, OddNote], None]
"""Called with the name of an entry that is left out, and with its error."""


def refuse(what: str, why: OddNote) -> None:
    """Raise. Notes that this process wrote cannot be odd."""
    raise OddNote(f"{what}: {why}")


def now_of(notes: Mapping[str, Any]) -> float:
    """The core's clock when they were written; if they do not say it, the latest time in them."""
    try:
        return number(notes.get("now"))
    except OddNote:
        named = [_since(one) for one in (*_list(notes, "jobs"), *_list(notes, "reservations"))]
        return max(named, default=0.0)


def _since(one: object) -> float:
    try:
        return number(mapping(one).get("since"))
    except OddNote:
        return 0.0


def _list(notes: Mapping[str, Any], name: str) -> list[object]:
    found = notes.get(name, [])
    return found if isinstance(found, list) else [found]  # anything but a list is one odd entry


def restore(notes: Mapping[str, Any], since: float, odd: Odd = refuse) -> list[JobRestored]:
    """The jobs of an earlier daemon, or of a later one: fields are only ever added. `since`: seconds that have passed
    since they were written down."""
    now = now_of(notes) + since

    def read(one: dict[str, Any]) -> JobRestored:
        saved = one.get("saved")
        return JobRestored(
            job_id(one.get("job")),
            spec_from_note(one.get("spec")),
            texts(one.get("gpus")),
            max(0.0, now - number(one.get("since"))),
            flag(one.get("open")),
            None if saved is None else max(0.0, now - number(saved)),
            _suspended_before(one.get("suspended"), now),
            _asleep_before(one.get("asleep"), now),
        )

    return _each(_list(notes, "jobs"), "job", read, odd)


def _suspended_before(note: object, now: float) -> SuspendedBefore | None:
    if note is None:
        return None
    found = mapping(note)
    age = max(0.0, now - number(found.get("since")))
    command, leaving = count(found.get("command", 0)), flag(found.get("leaving", False))
    return SuspendedBefore(text(found.get("gpu")), age, flag(found.get("held")), command, leaving)


def _asleep_before(note: object, now: float) -> AsleepBefore | None:
    if note is None:
        return None
    found = mapping(note)
    had, allocated, gave = (
        {gpu: count(amount) for gpu, amount in mapping(found.get(name) or {}).items()}
        for name in ("had", "allocated", "gave")
    )
    known = found.get("gave") is not None  # older daemons have not noted it
    age, command = max(0.0, now - number(found.get("since"))), count(found.get("command", 0))
    return AsleepBefore(age, had, allocated, gave if known else None, command, flag(found.get("relief", False)))


def restore_reservations(notes: Mapping[str, Any], since: float, odd: Odd = refuse) -> list[ReservationRestored]:
    """`since`: seconds that have passed since they were written down."""
    now = now_of(notes)

    def read(one: dict[str, Any]) -> ReservationRestored:
        until = one.get("until")
        return ReservationRestored(
            text(one.get("reservation")),
            spec_from_note(one.get("spec")),
            {gpu: count(amount) for gpu, amount in mapping(one.get("amounts")).items()},
            max(0.0, now - number(one.get("since")) + since),
            None if until is None else max(0.0, number(until) - now - since),
        )

    return _each(_list(notes, "reservations"), "reservation", read, odd)


def restore_overheads(notes: Mapping[str, Any], odd: Odd = refuse) -> dict[str, int]:
    found = {}
    for name, amount in notes["overheads"].items() if isinstance(notes.get("overheads"), dict) else ():
        try:
            found[name] = count(amount)
        except OddNote as why:
            odd(f"overhead of {name}", why)
    return found


Read = TypeVar("Read")


def _each(found: Iterable[object], what: str, read: Callable[[dict[str, Any]], Read], odd: Odd) -> list[Read]:
    sound = []
    for one in found:
        try:
            sound.append(read(mapping(one)))
        except OddNote as why:
            name = str(one.get(what))[:40] if isinstance(one, dict) else ""
            odd(f"{what} {name}".rstrip(), why)
    return sound


def spec_from_note(note: object) -> JobSpec:
    """A field that a newer daemon wrote and that is not known here is left out; one that an older daemon did not write
    has its default. Raises OddNote for anything else."""
    found = mapping(note)
    values = {name: _value(name, option, found[name]) for name, option in OPTIONS.items() if name in found}
    missing = [name for name in JobSpec._fields if name not in values and name not in JobSpec._field_defaults]
    if missing:
        raise OddNote(f"no {missing[0]}")
    return JobSpec(**values)


def _value(name: str, option: Option, value: object) -> Any:
    """A field of a specification, by the type that job_spec.py declares."""
    if value is None and JobSpec._field_defaults.get(name, "") is None:
        return None
    match option.kind:
        case "integer":
            return integer(value, option.least, int(option.most))
        case "text":
            return text(value)
        case "texts":
            return texts(value)
        case "seconds":
            return seconds(value)
        case "share":
            return share(value)
        case "flag":
            return flag(value)
        case "amount":
            return _quantity(value)
        case "steps":
            return _steps(value)


# ---- values ----------------------------------------------------------------------------------------

MOST = 2.0**60
"""No number of ours is larger: bytes, seconds."""


def number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not -MOST < value < MOST:  # NaN is neither
        raise OddNote(f"{str(value)[:40]} is not a number")
    return float(value)


def seconds(value: object) -> float:
    found = number(value)
    if found < 0:
        raise OddNote(f"{found} is below zero")
    return found


def share(value: object) -> float:
    found = number(value)
    if not 0 < found <= 1:
        raise OddNote(f"{found} is no part of a whole")
    return found


def integer(value: object, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise OddNote(f"{str(value)[:40]} is not a whole number from {least} to {most}")
    return value


def count(value: object) -> int:
    return integer(value, 0, int(MOST))


def flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise OddNote(f"{str(value)[:40]} is neither true nor false")
    return value


def text(value: object) -> str:
    if not isinstance(value, str):
        raise OddNote(f"{str(value)[:40]} is not a text")
    return value


def texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise OddNote(f"{str(value)[:40]} is not a list")
    return tuple(map(text, value))


def mapping(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise OddNote(f"{str(value)[:40]} is not an object")
    return value


def job_id(value: object) -> str:
    found = text(value)
    if len(found) != 16 or found.strip("0123456789abcdef") or not found.strip("0"):
        raise OddNote(f"{found[:40]!r} is not a job's id")
    return found


def _quantity(value: object) -> Quantity:
    note = mapping(value)
    try:
        kind = Kind(note.get("kind"))
    except ValueError:
        raise OddNote(f"{str(note.get('kind'))[:40]} is no kind of amount") from None
    return Quantity(kind, count(note.get("value")), text(note.get("text")))


def _steps(value: object) -> tuple[ReclaimStep, ...]:
    found = texts(value)
    if not set(found) <= set(JOB_STEPS):
        raise OddNote(f"{str(value)[:40]} are no reclaim steps")
    return tuple(map(ReclaimStep, found))
