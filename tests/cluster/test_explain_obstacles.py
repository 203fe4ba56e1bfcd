"""What `explain` names beside the jobs of queues: closed nodes, programs of others, a minimum run time that ends."""

from __future__ import annotations

import pytest
from allocator_stage import GIB, Stage

from gpushare.cluster.model import ForeignUse, Node, NodeCordoned, NodeDrained, NodeUncordoned, NodeUnknown, Selector


@pytest.fixture
def stage() -> Stage:
    stage = Stage([Node("a", 2, 16 * GIB), Node("b", 2, 16 * GIB, pool="other")])
    stage.queue("q", None)
    return stage


@pytest.mark.parametrize("closed", [NodeCordoned, NodeDrained])
def test_a_node_that_is_cordoned_is_named_and_to_uncordon_it_starts_the_job(stage, closed) -> None:
    stage.send([closed("a"), closed("b")])
    stage.job("q", 2, name="j", selector=Selector(pools=("default",)))
    why = stage.allocator.explain("j")
    assert why.reason.message == "no GPU is free, 2 are needed; nothing may start on 1 node now"
    assert why.who[0] == "a is cordoned: nothing starts there", "b is none of its pool"
    assert (why.change, why.changes) == ("uncordon a", (NodeUncordoned("a"),))
    stage.send(list(why.changes))
    assert stage.running() == ["j"]


def test_as_many_nodes_are_uncordoned_as_it_takes(stage) -> None:
    stage.send([NodeCordoned("a"), NodeCordoned("b")])
    stage.job("q", 2, name="j", count=2)
    why = stage.allocator.explain("j")
    assert why.who[0] == "a, b are cordoned: nothing starts there"
    assert why.change == "uncordon a, and uncordon b"
    stage.send(list(why.changes))
    assert stage.running() == ["j"]


def test_a_node_that_does_not_answer_is_named(stage) -> None:
    stage.send([NodeUnknown("a"), NodeUnknown("b")])
    stage.job("q", 1, name="j")
    why = stage.allocator.explain("j")
    assert why.who[0] == "a, b are silent: nothing starts there before it answers"
    assert "uncordon" not in why.change


def test_programs_beside_the_queues_are_named_and_their_end_starts_the_job(stage) -> None:
    stage.send([NodeCordoned("b"), ForeignUse("a", 0, 12 * GIB), ForeignUse("a", 1, 3 * GIB)])
    stage.job("q", 1, name="j")
    why = stage.allocator.explain("j")
    assert (
        "programs beside the queues use 12.0 GiB of GPU 0, 3.0 GiB of GPU 1 of a: `gpushare ps` there lists them"
        in (why.who)
    )
    offered = dict([(why.change, why.changes), *why.others])
    words = "end the programs beside the queues on GPU 1 of a"
    assert why.change == "uncordon b" and words in offered
    stage.send(list(offered[words]))
    assert stage.running() == ["j"]


def test_a_minimum_run_time_that_ends_is_named_and_waiting_is_all_that_is_needed(stage) -> None:
    stage.send(NodeCordoned("b"))
    stage.job("q", 2, name="low", priority=1, min_runtime=8.0)
    stage.now = 3.0
    stage.job("q", 2, name="high", priority=99)
    why = stage.allocator.explain("high")
    assert (
        "1 preemptible job of lower priority runs in q, 1 is within its minimum run time, for 5 s more" in why.who[-1]
    )
    assert why.by_itself == 5.0
    assert stage.evicted == [] and stage.running() == ["low"], "nothing was done"
    stage.now = 8.0
    stage.send(ForeignUse("b", 0, 1))
    assert stage.evicted == ["low"]


def test_nobody_is_told_to_wait_for_what_does_not_help(stage) -> None:
    stage.job("q", 2, name="low", priority=99, min_runtime=8.0)
    stage.job("q", 2, name="same", priority=99, min_runtime=8.0)
    stage.job("q", 2, name="high", priority=50)
    assert stage.allocator.explain("high").by_itself is None
