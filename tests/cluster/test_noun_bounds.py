"""The bounds of each number of a noun: the last good one, the first bad one, and the words for that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpushare.cluster.checks import (
    MOST_BYTES,
    check_job,
    check_moment,
    check_node,
    check_number,
    check_policy,
    check_queue,
    check_seconds,
)
from gpushare.cluster.model import Job, Node, Policy, Queue, Tasks
from gpushare.errors import UsageError

GIB = 2**30
MICRO = 1_000_000
MOST = 10**7 * MICRO
FAR = float(2**40)
NODE, QUEUE, JOB, POLICY = Node("n", 4), Queue("q"), Job("j", "q"), Policy()


def refused(check: Any, *values: Any) -> UsageError:
    with pytest.raises(UsageError) as caught:
        check(*values)
    assert caught.value.hint and not caught.value.hint.endswith(".")
    return caught.value


@pytest.mark.parametrize(
    ("noun", "check", "field", "good", "bad", "words"),
    [
        (NODE, check_node, "gpus", (0, 1024), (-1, 1025), "node n: gpus: {} is not between 0 and 1024"),
        (
            NODE,
            check_node,
            "memory",
            (MICRO, MOST_BYTES),
            (MICRO - 1, MOST_BYTES + 1),
            "node n: memory: ",
        ),
        (QUEUE, check_queue, "priority", (-(2**31), 2**31), (-(2**31) - 1, 2**31 + 1), "queue q: priority: {} is not"),
        (
            JOB,
            check_job,
            "priority",
            (-(2**31), 2**31),
            (-(2**31) - 1, 2**31 + 1),
            "job j: priority: {} is not between",
        ),
        (POLICY, check_policy, "search_width", (1, 100_000), (0, 100_001), "policy: search_width: {} is not between"),
        (
            POLICY,
            check_policy,
            "start_tries",
            (1, 1000),
            (0, 1001),
            "policy: start_tries: {} is not between 1 and 1000",
        ),
        *((QUEUE, check_queue, name, (0, MOST), (-1, MOST + 1), f"queue q: {name}: ") for name in ("quota", "weight")),
        (replace(QUEUE, quota=0), check_queue, "limit", (0, MOST), (-1, MOST + 1), "queue q: limit: "),
        *(
            (QUEUE, check_queue, name, (1, MICRO), (0, MICRO + 1), f"queue q: {name}: ")
            for name in ("default_limit", "max_limit")
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_numbers(noun, check, field, good, bad, words):
    for value in good:
        check(replace(noun, **{field: value, **({"broken": frozenset()} if field == "gpus" else {})}))
    for value in bad:
        error = refused(check, replace(noun, **{field: value}))
        assert error.message.startswith(words.format(value)) and error.hint == "correct the number"


@pytest.mark.parametrize(
    ("noun", "check", "field", "none"),
    [
        *(
            (POLICY, check_policy, name, name == "reserve_after")
            for name in ("grow_hold", "reserve_after", "retry_after", "back_off", "protect", "patience")
        ),
        (QUEUE, check_queue, "min_runtime", True),
        (JOB, check_job, "min_runtime", False),
        (JOB, check_job, "checkpoint_every", True),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_seconds(noun, check, field, none):
    for value in (0, 0.0, 0.5, 2**40 - 1):
        check(replace(noun, **{field: value}))
    for value in (-0.5, FAR, float("nan"), float("inf"), True, "5"):
        error = refused(check, replace(noun, **{field: value}))
        assert error.message.endswith(f"{field}: {value!r} is not a number of seconds")
    if none:
        check(replace(noun, **{field: None}))
    else:
        assert f"{field}: None is not" in refused(check, replace(noun, **{field: None})).message


@pytest.mark.parametrize("kind", ["node", "queue", "job"])
def test_names(kind):
    def check(name: Any) -> None:
        if kind == "node":
            check_node(replace(NODE, name=name))
        elif kind == "queue":
            check_queue(replace(QUEUE, name=name))
        else:
            check_job(replace(JOB, id=name))

    for good in ("a", "x" * 253, "with blanks", "ü"):
        check(good)
    for bad in ("", "x" * 254, "a\n", "\x1b", 7, None):
        assert refused(check, bad).message == f"{kind}: {bad!r} is not a name"


@pytest.mark.parametrize("value", [True, 1.0, "1", None])
def test_a_number_is_an_int(value):
    assert refused(check_number, "x", value, 0, 9).message == f"x: {value!r} is not a whole number"


@pytest.mark.parametrize(
    ("value", "good"),
    [
        (0, True),
        (-1e300, True),
        (float("inf"), False),
        (float("-inf"), False),
        (float("nan"), False),
        (True, False),
        ("x", False),
    ],
)
def test_moments(value, good):
    if good:
        check_moment("x", value)
        check_seconds("x", 0)
    else:
        assert refused(check_moment, "now", value).message == f"now: {value!r} is not a moment"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"broken": frozenset({0, 3})}, None),
        ({"broken": frozenset({4})}, "node n: broken: 4 is not between 0 and 3"),
        ({"broken": frozenset({-1})}, "node n: broken: -1 is not between 0 and 3"),
        ({"uuids": ("a", "b", "c", "d")}, None),
        ({"uuids": ()}, None),
        ({"uuids": ("a",)}, "node n: uuids: they do not name each GPU once"),
        ({"uuids": ("a", "b", "c", "c")}, "node n: uuids: they do not name each GPU once"),
    ],
)
def test_nodes(changes, words):
    if words is None:
        check_node(replace(NODE, **changes))
    else:
        assert refused(check_node, replace(NODE, **changes)).message == words


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"quota": MICRO, "limit": MICRO}, None),
        ({"quota": None, "limit": 0}, None),
        ({"quota": MICRO, "limit": None}, None),
        ({"quota": MICRO, "limit": MICRO - 1}, "limit: 0.999999 is below the quota of 1"),
        ({"placement": "pack"}, None),
        ({"placement": "spread"}, None),
        ({"placement": "odd"}, "placement: 'odd' is unknown"),
        ({"static": True, "quota": 0}, None),
        ({"static": True, "quota": None}, "static: a static queue needs a quota"),
        ({"default_limit": 5, "max_limit": 5}, None),
        ({"default_limit": 6}, None),
        ({"max_limit": 6}, None),
        ({"default_limit": 6, "max_limit": 5}, "default_limit: it is above max_limit"),
    ],
)
def test_queues(changes, words):
    if words is None:
        check_queue(replace(QUEUE, **changes))
    else:
        assert refused(check_queue, replace(QUEUE, **changes)).message == f"queue q: {words}"


@pytest.mark.parametrize("endings", ["instant", "reported", "later"])
def test_endings(endings):
    policy = replace(POLICY, endings=endings)
    if endings != "later":
        check_policy(policy)
    else:
        error = refused(check_policy, policy)
        assert (error.message, error.hint) == ("policy: endings: 'later' is unknown", "write instant or reported")


EMPTY = Tasks(0)
MANY = 10**6


@pytest.mark.parametrize(
    ("tasks", "words"),
    [
        ((Tasks(MANY),), None),
        ((Tasks(MANY + 1),), "[0].least: 1000001 is not between 0 and 1000000"),
        ((Tasks(1, MANY),), None),
        ((Tasks(1, MANY + 1),), "[0].most: 1000001 is not between 0 and 1000000"),
        ((Tasks(2, 2),), None),
        ((Tasks(2, 1),), "[0].most: 1 is below least, 2"),
        ((Tasks(gpus=1024),), None),
        ((Tasks(gpus=1025),), "[0].gpus: 1025 is not between 0 and 1024"),
        ((Tasks(gpus=0),), None),
        ((Tasks(share=1),), None),
        ((Tasks(share=0),), "[0].share: 0 is not between 0.000001 and 1"),
        ((Tasks(share=MICRO),), None),
        ((Tasks(share=MICRO + 1),), "[0].share: 1.000001 is not between 0.000001 and 1"),
        ((Tasks(memory=1),), None),
        ((Tasks(memory=0),), "[0].memory: 0 B is not between 1 B and "),
        ((Tasks(memory=MOST_BYTES),), None),
        ((Tasks(memory=MOST_BYTES + 1),), "[0].memory: "),
        ((Tasks(share=1, memory=1),), "[0]: both a share and bytes are asked for"),
        ((Tasks(ladder=(500_000, 1)),), None),
        ((Tasks(ladder=(500_000, 500_000)),), "[0].ladder: 0.5 does not come after 0.5"),
        ((Tasks(ladder=(MICRO,)),), "[0].ladder: 1 does not come after 1"),
        ((Tasks(ladder=(500_000, 0)),), "[0].ladder: 0 is not between 0.000001 and 1"),
        ((Tasks(memory=GIB, ladder=(GIB - 1,)),), None),
        ((Tasks(memory=GIB, ladder=(GIB,)),), "[0].ladder: 1.0 GiB does not come after 1.0 GiB"),
        ((Tasks(share=5, limit=5),), None),
        ((Tasks(share=5, limit=4),), "[0].limit: 0.000004 is below the request of 0.000005"),
        ((Tasks(share=5, limit=MICRO + 1),), "[0].limit: 1.000001 is not between"),
        ((Tasks(share=5, limit=0),), "[0].limit: 0 is not between"),
        ((Tasks(), Tasks(-1)), "[1].least: -1 is not between"),
        ((), ": there are none"),
        ((EMPTY, EMPTY), ": all groups are empty"),
        ((Tasks(0, 1),), ": none of its tasks has to run"),
        ((Tasks(0, 1), Tasks(1)), None),
        ((EMPTY, Tasks(1)), None),
        ((Tasks(ladder=(5,)), Tasks(ladder=(6,)), Tasks()), None),
        ((Tasks(ladder=(5,)), Tasks(ladder=(6, 5))), ": the ladders have different lengths"),
    ],
)
def test_tasks(tasks, words):
    job = replace(JOB, tasks=tasks)
    if words is None:
        check_job(job)
    else:
        assert refused(check_job, job).message.startswith(f"job j: tasks{words}")


@pytest.mark.parametrize(
    ("tasks", "code"),
    [
        (Tasks(share=1, memory=1), "mixed_request"),
        (Tasks(share=5, limit=4), "request_over_limit"),
        (Tasks(ladder=(MICRO,)), "bad_input"),
    ],
)
def test_a_program_knows_mistakes_by_their_codes(tasks, code):
    assert refused(check_job, replace(JOB, tasks=(tasks,))).code == code
