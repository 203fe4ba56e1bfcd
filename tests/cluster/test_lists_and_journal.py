"""The lists of jobs against a sorted list, and the journal against copies: whatever is done, in whatever order."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from gpushare.cluster.journal import Journal
from gpushare.cluster.lists import SeqList
from gpushare.cluster.quantity import MICRO, format_gpus, gpus, whole_gpus
from gpushare.errors import QuantityError


def filled(*numbers: int) -> SeqList[int]:
    one: SeqList[int] = SeqList()
    for number in numbers:
        one.add(number)
    return one


def same(one: SeqList[int], model: list[int]) -> None:
    assert list(one) == model and len(one) == len(model) and bool(one) == bool(model)
    assert list(one.newest_first()) == list(one.falling()) == model[::-1]
    if model:
        assert one.first == model[0]
    around = {number + by for number in model for by in (-1, 0, 1)}
    assert {number for number in around if number in one} == set(model)


@pytest.mark.parametrize("seed", range(12))
def test_a_list_is_as_a_sorted_list(seed):
    chance = random.Random(seed)
    one, model = filled(), list[int]()
    most = (5, 80, 300)[seed % 3]
    for step in range(600):
        if len(model) < most and (not model or chance.random() < 0.55):
            end = chance.random()
            if model and end < 0.4:
                number = model[-1] + chance.randrange(1, 5)
            elif model and end < 0.6 and model[0] > 1:
                number = model[0] - 1
            else:
                number = chance.randrange(1000)
            if number not in model:
                one.add(number)
                model = sorted([*model, number])
        else:
            where = chance.random()
            number = model[0] if where < 0.5 else model[-1] if where < 0.7 else chance.choice(model)
            one.remove(number)
            model.remove(number)
        if step % 7 == 0:
            same(one, model)
    same(one, model)


def test_a_queue_that_is_emptied_from_its_front_does_not_grow():
    one = filled(*range(200))
    for number in range(150):
        one.remove(number)
    assert one.head < 70 and len(one.items) < 150, "what has left its front is not kept"
    one = filled(*range(60))
    for number in range(59):
        one.remove(number)
    assert one.head == 59 and list(one) == [59], "a short one is left alone"
    one.remove(59)
    one.add(3)
    assert one.head == 0 and list(one) == [3]


def test_what_comes_back_to_the_front_takes_the_place_that_is_there():
    one = filled(1, 5, 9)
    one.remove(1)
    one.add(3)
    assert (one.head, list(one)) == (0, [3, 5, 9])
    one.remove(3)
    one.remove(5)
    one.add(7)
    one.add(8)
    assert list(one) == [7, 8, 9]


@pytest.mark.parametrize("number", [10, 63, 64, 200])
def test_who_goes_through_a_list_sees_it_as_it_was_or_as_it_becomes(number):
    one = filled(*range(number))
    seen = []
    for seq in one.falling():
        seen.append(seq)
        one.remove(seq)
        if seq % 2 and seq - 1 in one:
            one.remove(seq - 1)
    assert seen == sorted(seen, reverse=True)
    assert list(one) == [] and seen[0] == number - 1 and len(set(seen)) == len(seen)
    one = filled(*range(number))
    one.remove(0)
    going = one.newest_first()
    assert [next(going) for _ in range(3)] == [number - 1, number - 2, number - 3]
    assert list(going)[-1] == 1


def test_an_element_in_the_middle_is_the_one_that_goes():
    one = filled(1, 3, 5, 7)
    one.remove(5)
    assert list(one) == [1, 3, 7]
    with pytest.raises(AssertionError):
        one.remove(4)


# ---- the journal ------------------------------------------------------------------------------------------


def test_each_change_is_taken_back_newest_first():
    journal = Journal()
    thing: Any = SimpleNamespace(number=1)
    table: dict[str, Any] = {"there": 1, "none": None}
    called: list[Any] = []
    start = journal.mark()
    journal.set(thing, "number", 2)
    journal.set(thing, "number", 3)
    journal.put(table, "there", 2)
    journal.put(table, "none", 4)
    journal.put(table, "new", 5)
    middle = journal.mark()
    journal.drop(table, "there")
    journal.drop(table, "not there")
    journal.note(called.append, "undone")
    assert journal.mark() == middle + 2, "nothing is noted of what changes nothing"
    assert (thing.number, table) == (3, {"none": 4, "new": 5})
    journal.undo(middle)
    assert table == {"there": 2, "none": 4, "new": 5} and called == ["undone"] and journal.mark() == middle
    journal.undo(start)
    assert (thing.number, table) == (1, {"there": 1, "none": None}) and journal.mark() == start
    journal.undo(start)
    journal.put(table, "new", 1)
    journal.clear()
    journal.undo(0)
    assert table["new"] == 1, "what was cleared stays"


@pytest.mark.parametrize("seed", range(8))
def test_any_changes_are_taken_back(seed):
    chance = random.Random(seed)
    journal, table, marks = Journal(), dict[int, int](), list[tuple[int, dict[int, int]]]()
    for _ in range(300):
        what = chance.random()
        if what < 0.2:
            marks.append((journal.mark(), dict(table)))
        elif what < 0.3 and marks:
            mark, before = marks.pop(chance.randrange(len(marks)))
            marks = [one for one in marks if one[0] <= mark]
            journal.undo(mark)
            assert table == before
        elif what < 0.6:
            journal.drop(table, chance.randrange(10))
        else:
            journal.put(table, chance.randrange(10), chance.randrange(100))


# ---- amounts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shares", "whole"),
    [
        ([], []),
        ([MICRO], [1]),
        ([1_500_000, 500_000], [2, 0]),
        ([500_000, 1_500_000], [1, 1]),
        ([333_333, 333_333, 333_333], [1, 0, 0]),
        ([666_666, 666_666, 666_666], [1, 1, 0]),
        ([999_999], [1]),
        ([999_998], [0]),
        ([400_000, 400_000], [0, 0]),
        ([2_300_000, 2_400_000, 2_300_000], [2, 3, 2]),
        ([0, 0], [0, 0]),
    ],
)
def test_shares_as_whole_gpus(shares, whole):
    assert whole_gpus(shares) == whole


@pytest.mark.parametrize(
    ("micro", "text"),
    [
        (0, "0"),
        (1, "0.000001"),
        (MICRO, "1"),
        (1_500_000, "1.5"),
        (-250_000, "-0.25"),
        (10 * MICRO, "10"),
        (-MICRO, "-1"),
    ],
)
def test_as_few_digits_as_say_it(micro, text):
    assert format_gpus(micro) == text


@pytest.mark.parametrize(
    ("amount", "micro"),
    [
        (0.3, 300_000),
        ("0.3", 300_000),
        (2, 2 * MICRO),
        (0, 0),
        (10**7, 10**7 * MICRO),
        ("0.0000005", 0),
        (0.0000015, 2),
    ],
)
def test_gpus_from_a_number(amount, micro):
    assert gpus(amount) == micro


@pytest.mark.parametrize("amount", [-1, 10**7 + 1, "x", None, float("nan"), float("inf"), "1e99"])
def test_what_is_no_number_of_gpus(amount):
    with pytest.raises(QuantityError) as caught:
        gpus(amount)
    assert caught.value.hint in ("write 2, 0.5 or 0.25", "write a number from 0 to 10000000")
