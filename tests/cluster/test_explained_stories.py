"""Why jobs wait, story by story: each word of explained.txt is what `explain` says there.

When it is meant to change, GPUSHARE_TEST_UPDATE=1 writes the file again; read it aloud.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from allocator_stage import GIB, Stage

from gpushare.cluster.model import (
    ForeignUse,
    JobHeld,
    Node,
    NodeCordoned,
    NodeUnknown,
    Policy,
    Selector,
    Started,
    StartFailed,
    StopRefused,
)

GOLDEN = Path(__file__).with_name("explained.txt")
Story = Callable[[], Iterator[tuple[Stage, str]]]
STORIES: list[Story] = []


def story(tell: Story) -> Story:
    STORIES.append(tell)
    return tell


def told(stage: Stage, name: str) -> str:
    found = stage.allocator.explain(name)
    lines = [f"{name} is {found.state}: {found.reason.message}"]
    lines += [f"  fact: {label}: {text}" for label, text in found.reason.facts]
    lines += [f"  who: {line}" for line in found.who]
    if found.change:
        lines.append(f"  change: {found.change} {[type(event).__name__ for event in found.changes]}")
    lines += [f"  or: {words} {[type(event).__name__ for event in events]}" for words, events in found.others]
    if found.by_itself is not None:
        lines.append(f"  by itself after {found.by_itself:g} s")
    return "\n".join(lines)


def all_told() -> str:
    parts = []
    for tell in STORIES:
        parts.append(f"# {(tell.__doc__ or '').strip()}\n")
        parts += [f"{told(stage, name)}\n" for stage, name in tell()]
    return "\n".join(parts)


def test_explanations_are_as_before() -> None:
    text = all_told()
    if os.environ.get("GPUSHARE_TEST_UPDATE"):
        GOLDEN.write_text(text)
    changes = difflib.unified_diff(GOLDEN.read_text().splitlines(), text.splitlines(), "explained.txt", "now", n=1)
    assert not (difference := "\n".join(changes)), f"{difference}\nif so it should be: GPUSHARE_TEST_UPDATE=1"


@pytest.mark.parametrize("tell", STORIES, ids=[tell.__name__ for tell in STORIES])
def test_each_change_that_is_offered_starts_the_job(tell: Story) -> None:
    for stage, name in tell():
        found = stage.allocator.explain(name)
        before = stage.allocator.jobs[name].state
        for events in filter(None, (found.changes, *(events for _, events in found.others))):
            assert before == "pending" and name in stage.allocator.what_if(list(events)).started


# ---- the stories ----------------------------------------------------------------------------------------


@story
def no_room_in_ones_right() -> Iterator[tuple[Stage, str]]:
    """Its queue is in its right, and nobody is above theirs. Equal jobs are ahead of it."""
    stage = Stage({"n": 4})
    stage.queue("a", 2)
    stage.queue("b", 2)
    stage.job("a", 2, name="a1", preemptible=False)
    stage.job("b", 2, name="b1")
    for number in range(3):
        stage.job("a", 1, name=f"wait{number}")
    for number in range(3):
        yield stage, f"wait{number}"


@story
def owners_and_borrowers() -> Iterator[tuple[Stage, str]]:
    """A queue in its right may take from those above theirs, as far as rules let it."""
    stage = Stage({"n": 6}, Policy(endings="reported", reserve_after=None))
    for name, quota in (("owner", 4), ("fixed", 0), ("young", 0), ("new", 0)):
        stage.queue(name, quota, min_runtime=100.0 if name == "young" else 0.0)
    stage.job("fixed", 2, name="f1", preemptible=True)
    stage.job("young", 2, name="y1")
    stage.job("young", 1, name="y2")
    stage.job("new", 1, name="n1")
    for name in ("f1", "y1", "y2"):
        stage.send(Started(name, 1))
    stage.now = 30.0
    stage.job("owner", 4, name="wide")
    yield stage, "wide"
    yield stage, "f1"


@story
def what_could_not_be_stopped() -> Iterator[tuple[Stage, str]]:
    """The engine could not stop the one that was to go; then programs of others come."""
    stage = Stage({"n": 2}, Policy(endings="reported", reserve_after=None))
    stage.queue("a", 2)
    stage.queue("b", 0)
    stage.job("b", 2, name="b1")
    stage.send(Started("b1", 1))
    stage.job("a", 2, name="j")
    stage.send(StopRefused("b1", 1, 50.0))
    yield stage, "j"
    stage.send([ForeignUse("n", gpu, GIB) for gpu in (0, 1)])
    yield stage, "j"


@story
def a_share_that_is_waited_for() -> Iterator[tuple[Stage, str]]:
    """Within its share but above its quota, jobs with much work are not stopped for it at once."""
    stage = Stage({"n": 4})
    stage.queue("a", 0)
    stage.queue("b", 0)
    stage.job("b", 4, name="long", movable=False)
    stage.wait(8000.0)
    stage.job("a", 2, name="j")
    yield stage, "j"


@story
def limits_and_quotas() -> Iterator[tuple[Stage, str]]:
    """Limits along the path, quotas for jobs that are not preemptible, an unlimited quota."""
    stage = Stage({"n": 8})
    stage.queue("top", None, limit=3)
    stage.queue("leaf", 1, parent="top", limit=2)
    stage.job("leaf", 1, name="runs")
    stage.job("leaf", 4, name="wide")
    yield stage, "wide"
    stage.job("leaf", 2, name="fixed", preemptible=False)
    yield stage, "fixed"
    stage.queue("free", None)
    stage.job("free", 9, name="never")
    yield stage, "never"
    stage.queue("static", 2, static=True)
    stage.job("static", 3, name="more")
    yield stage, "more"
    yield stage, "runs"


@story
def priorities_in_ones_queue() -> Iterator[tuple[Stage, str]]:
    """Jobs of lower priority in its own queue, which it may stop or not."""
    stage = Stage({"n": 4})
    stage.queue("a", 1)
    stage.queue("b", 3)
    for number, priority in enumerate((5, 50, 50)):
        stage.job("a", 1, name=f"a{number}", priority=priority, min_runtime=60.0 if number == 0 else 0.0)
    stage.job("a", 1, name="last", priority=60, preemptible=False)
    stage.now = 10.0
    stage.job("a", 1, name="equal", priority=50)
    yield stage, "equal"
    stage.job("a", 1, name="high", priority=55, movable=False)
    stage.job("a", 2, name="low", priority=1)
    yield stage, "low"


@story
def nodes_that_are_missing() -> Iterator[tuple[Stage, str]]:
    """Nodes as the job wants them: of a type, a pool, with labels, in bytes, for a gang."""
    stage = Stage([Node("n1", 2, 16 * GIB, "A10"), Node("n2", 4, 80 * GIB, "H100", "big", (("rack", "r1"),))])
    stage.queue("q", None)
    stage.job("q", 2, name="r1", selector=Selector(nodes=("n1",)))
    stage.job("q", 4, name="r2", selector=Selector(nodes=("n2",)))
    for name, amount, more in (
        ("any", 1, {}),
        ("typed", 2, {"selector": Selector(types=("H100",))}),
        ("pooled", 2, {"selector": Selector(pools=("big",), labels=(("rack", "r1"),))}),
        ("named", 1, {"selector": Selector(nodes=("n1",))}),
        ("bytes", 1, {"memory": 20 * GIB}),
        ("gang", 2, {"count": 5}),
        ("large", 4, {"count": 3}),
        ("part", 0.25, {}),
        ("huge", 4, {"count": 2000}),
    ):
        stage.job("q", amount, name=name, **more)
        yield stage, name
        stage.end(name)


@story
def closed_nodes_and_others() -> Iterator[tuple[Stage, str]]:
    """Nodes that are cordoned, silent or rest, and programs of others."""
    stage = Stage({"a": 2, "b": 2, "c": 2, "d": 2, "e": 2})
    stage.queue("q", None)
    stage.send([NodeCordoned("a"), NodeUnknown("b")])
    for number, node in enumerate(("c", "d", "e")):
        stage.send([ForeignUse(node, gpu, (number + 1) * GIB) for gpu in (0, 1)])
    stage.job("q", 2, name="j")
    yield stage, "j"
    stage.job("q", 2, name="only", selector=Selector(nodes=("b",)))
    yield stage, "only"


@story
def a_node_that_rests() -> Iterator[tuple[Stage, str]]:
    """Starts have failed there."""
    stage = Stage({"a": 1}, Policy(back_off=10.0, start_tries=1000, reserve_after=None))
    stage.queue("q", None)
    for number in range(3):
        stage.job("q", 1, name=f"j{number}")
        if f"j{number}" in stage.running():
            stage.send(StartFailed(f"j{number}", 1, (), "a", "broken"))
    stage.now = 3.0
    for name in stage.waiting():
        yield stage, name


@story
def held_and_about_to_start() -> Iterator[tuple[Stage, str]]:
    """What its user holds, and what has its place already."""
    stage = Stage({"n": 2}, Policy(endings="reported", reserve_after=None))
    stage.queue("a", 2)
    stage.queue("b", 0)
    stage.job("b", 1, name="b1")
    stage.job("b", 1, name="b2")
    stage.send([Started("b1", 1), Started("b2", 1)])
    stage.job("a", 2, name="next")
    yield stage, "next"
    stage.job("a", 1, name="held")
    stage.send(JobHeld("held", "by its user"))
    yield stage, "held"
    free = Stage({"n": 1})
    free.queue("q", None)
    free.job("q", 1, name="first")
    free.job("q", 1, name="held")
    free.send(JobHeld("held", "by its user"))
    free.end("first")
    yield free, "held"


@story
def waiting_is_enough() -> Iterator[tuple[Stage, str]]:
    """Only minimum run times are in the way: of the queue's own, and of another queue."""
    stage = Stage({"n": 2})
    stage.queue("a", 2)
    stage.queue("b", 0, min_runtime=40.0)
    stage.job("b", 1, name="b1")
    stage.wait(10.0)
    stage.job("b", 1, name="b2")
    stage.wait(5.0)
    stage.job("a", 1, name="one")
    yield stage, "one"
    stage.job("a", 2, name="two")
    yield stage, "two"
