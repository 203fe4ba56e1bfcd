"""How each kind of value in a daemon's notes is read: what is right is taken as it is, and the rest is named."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from gpushare.job_spec import JobSpec
from gpushare.quantity import Quantity
from gpushare.reclaim_steps import ReclaimStep
from gpushared.core import persistence as notes
from gpushared.core.persistence import OddNote

LARGE = 2**60
READS: dict[Callable[..., object], tuple[list[object], dict[object, str]]] = {
    notes.number: (
        [0, -3, 2.5, 2**59],
        {
            True: "True is not a number",
            "x" * 60: f"{'x' * 40} is not a number",
            None: "None is not a number",
            math.nan: "nan is not a number",
            math.inf: "inf is not a number",
            2.0**60: f"{2.0**60} is not a number",
            -(2.0**60): f"{-(2.0**60)} is not a number",
        },
    ),
    notes.seconds: ([0, 2.5], {-0.5: "-0.5 is below zero", "1": "1 is not a number"}),
    notes.share: ([1, 0.25], {0: "0.0 is no part of a whole", 1.1: "1.1 is no part of a whole"}),
    notes.count: (
        [0, 7, LARGE],
        {
            -1: f"-1 is not a whole number from 0 to {LARGE}",
            LARGE + 1: f"{LARGE + 1} is not a whole number from 0 to {LARGE}",
            1.5: f"1.5 is not a whole number from 0 to {LARGE}",
            True: f"True is not a whole number from 0 to {LARGE}",
            "9" * 60: f"{'9' * 40} is not a whole number from 0 to {LARGE}",
        },
    ),
    notes.flag: ([True, False], {0: "0 is neither true nor false", "y" * 60: f"{'y' * 40} is neither true nor false"}),
    notes.text: (["", "a"], {7: "7 is not a text", ("z" * 60,): f"('{'z' * 38} is not a text"}),
    notes.mapping: ([{}, {"a": 1}], {7: "7 is not an object", "m" * 60: f"{'m' * 40} is not an object"}),
    notes.job_id: (
        ["00000000000000a1", "f" * 16],
        {
            "0" * 16: f"'{'0' * 16}' is not a job's id",
            "a" * 15: f"'{'a' * 15}' is not a job's id",
            "a" * 17: f"'{'a' * 17}' is not a job's id",
            "A" * 16: f"'{'A' * 16}' is not a job's id",
            "g" * 60: f"'{'g' * 40}' is not a job's id",
            7: "7 is not a text",
        },
    ),
}


@pytest.mark.parametrize(("read", "value"), [(read, one) for read, (right, _) in READS.items() for one in right])
def test_what_is_right_is_taken(read: Callable[[object], object], value: object) -> None:
    assert read(value) == value


@pytest.mark.parametrize(
    ("read", "value", "why"), [(read, one, why) for read, (_, wrong) in READS.items() for one, why in wrong.items()]
)
def test_what_is_wrong_is_named_and_shown_in_short(read: Callable[[object], object], value: object, why: str) -> None:
    with pytest.raises(OddNote) as caught:
        read(value)
    assert str(caught.value) == why


def test_lists_of_texts_and_of_steps() -> None:
    assert notes.texts(["a", "b"]) == notes.texts(("a", "b")) == ("a", "b")
    for wrong, why in (("ab", "ab is not a list"), (["a", 1], "1 is not a text")):
        with pytest.raises(OddNote, match=why):
            notes.texts(wrong)
    assert notes._steps(["term", "kill"]) == (ReclaimStep.TERM, ReclaimStep.KILL)
    for wrong in (["term", "nap"], ["revoke"]):
        with pytest.raises(OddNote, match="are no reclaim steps"):
            notes._steps(wrong)


SPEC = JobSpec(
    "train",
    1000,
    "alice",
    ("python", "x.py"),
    Quantity.parse("1Gi"),
    Quantity.parse("50%"),
    on_reclaim=(ReclaimStep.TERM, ReclaimStep.KILL),
)


def noted(**changes: object) -> dict[str, object]:
    return {**notes.spec_to_note(SPEC), **changes}


def test_a_specification_is_read_as_it_was_written() -> None:
    assert notes.spec_from_note(noted()) == SPEC


def test_what_a_newer_daemon_added_is_left_out_and_what_an_older_one_lacked_has_its_default() -> None:
    note = noted(colour="red")
    for name, default in JobSpec._field_defaults.items():
        value = note.pop(name)
        assert notes.spec_from_note(note) == SPEC._replace(**{name: default})
        note[name] = value


@pytest.mark.parametrize("name", [name for name in JobSpec._fields if name not in JobSpec._field_defaults])
def test_what_every_daemon_has_written_is_needed(name: str) -> None:
    note = noted()
    del note[name]
    with pytest.raises(OddNote, match=f"^no {name}$"):
        notes.spec_from_note(note)
    with pytest.raises(OddNote):
        notes.spec_from_note(noted(**{name: None}))


@pytest.mark.parametrize("name", JobSpec._fields)
def test_no_field_takes_a_value_of_another_kind(name: str) -> None:
    wrong: object = {"an": "object"}
    with pytest.raises(OddNote):
        notes.spec_from_note(noted(**{name: wrong}))
    if JobSpec._field_defaults.get(name, "") is None:
        assert getattr(notes.spec_from_note(noted(**{name: None})), name) is None


@pytest.mark.parametrize(
    ("note", "why"),
    [
        ({"kind": "heap", "value": 1, "text": "1"}, "heap is no kind of amount"),
        ({"kind": "k" * 60, "value": 1, "text": "1"}, f"{'k' * 40} is no kind of amount"),
        ({"kind": "bytes", "value": -1, "text": "1"}, "-1 is not a whole number"),
        ({"kind": "bytes", "value": 1}, "None is not a text"),
        ("1Gi", "1Gi is not an object"),
    ],
)
def test_an_amount_that_makes_no_sense(note: object, why: str) -> None:
    with pytest.raises(OddNote, match=why):
        notes.spec_from_note(noted(request=note))


# ---- whole notes -------------------------------------------------------------------------------------


def a_job(**changes: object) -> dict[str, object]:
    said = {"job": "00000000000000a1", "spec": noted(), "gpus": ["GPU-0"], "since": 40.0, "open": True}
    return {**said, **changes}


def read(job: dict[str, object], since: float = 5.0):
    (found,) = notes.restore({"now": 100.0, "jobs": [job]}, since)
    return found


def test_a_job_that_an_older_daemon_noted() -> None:
    found = read(a_job())
    assert (found.job, found.spec, found.gpus, found.age, found.open) == (
        "00000000000000a1",
        SPEC,
        ("GPU-0",),
        65.0,
        True,
    )
    assert (found.saved, found.suspended, found.asleep) == (None, None, None)
    assert read(a_job(open=False, saved=90.0)).saved == 15.0
    assert read(a_job(open=False)).open is False


def test_times_that_have_not_come_yet_have_just_passed() -> None:
    found = read(a_job(since=200.0, saved=300.0, suspended={"since": 400.0, "gpu": "GPU-0", "held": True}))
    assert (found.age, found.saved, found.suspended.age) == (0.0, 0.0, 0.0)


def test_what_was_suspended() -> None:
    found = read(a_job(suspended={"since": 95.0, "gpu": "GPU-0", "held": True})).suspended
    assert (found.gpu, found.age, found.held, found.command, found.leaving) == ("GPU-0", 10.0, True, 0, False)
    said = {"since": 95.0, "gpu": "GPU-0", "held": False, "command": 7, "leaving": True}
    found = read(a_job(suspended=said)).suspended
    assert (found.held, found.command, found.leaving) == (False, 7, True)


def test_what_had_given_its_memory_back() -> None:
    found = read(a_job(asleep={"since": 95.0})).asleep
    assert (found.age, found.had, found.allocated, found.gave) == (10.0, {}, {}, None)
    assert (found.command, found.relief) == (0, False)
    said = {"since": 95.0, "had": {"a": 1}, "allocated": {"a": 2}, "gave": {"a": 3}, "command": 4, "relief": True}
    found = read(a_job(asleep=said)).asleep
    assert (found.had, found.allocated, found.gave, found.command, found.relief) == (
        {"a": 1},
        {"a": 2},
        {"a": 3},
        4,
        True,
    )


@pytest.mark.parametrize(
    ("told", "now"),
    [
        ({"now": 7.0, "jobs": [{"since": 90.0}]}, 7.0),
        ({"jobs": [{"since": 3.0}, 7, {"since": "x"}], "reservations": [{"since": 9.0}]}, 9.0),
        ({"now": "soon", "jobs": "none"}, 0.0),
        ({}, 0.0),
    ],
)
def test_the_time_at_which_they_were_written(told: dict[str, object], now: float) -> None:
    assert notes.now_of(told) == now


@pytest.mark.parametrize(
    ("jobs", "named"),
    [
        ([a_job(), 7, a_job(gpus="GPU-0")], ["job", "job 00000000000000a1"]),
        ([{**a_job(), "job": "x" * 60}], [f"job {'x' * 40}"]),
        ("all", ["job"]),
        ([{**a_job(), "open": 1}, {**a_job(), "since": None}], ["job 00000000000000a1"] * 2),
    ],
)
def test_an_entry_that_makes_no_sense_is_left_out_and_named(jobs: object, named: list[str]) -> None:
    told: list[str] = []
    found = notes.restore({"now": 100.0, "jobs": jobs}, 0.0, lambda what, why: told.append(what))
    assert told == named
    assert len(found) == (len(jobs) - len(named) if isinstance(jobs, list) else 0)


def test_costs_of_contexts_that_are_no_table_are_none() -> None:
    for odd in ([1], "x", None, 7):
        assert notes.restore_overheads({"overheads": odd}) == {}
    assert notes.restore_overheads({}) == {}
    with pytest.raises(OddNote, match="overhead of B: much is not a whole number"):
        notes.restore_overheads({"overheads": {"A": 5, "B": "much"}})
