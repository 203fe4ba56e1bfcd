"""What the allocator refuses: a clear error with the place and the remedy, and nothing has changed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from allocator_stage import GIB, Stage, gpus

from gpushare.cluster.allocator import Allocator
from gpushare.cluster.model import (
    GpuHealth,
    Job,
    JobEnded,
    JobRestored,
    JobSubmitted,
    JobWithdrawn,
    Node,
    NodeAdded,
    NodeLost,
    Place,
    Policy,
    Queue,
    QueueAdded,
    QueueChanged,
    QueueRemoved,
    Refuse,
    Selector,
    Tasks,
    TimePassed,
    Wait,
)
from gpushare.errors import GpushareError, NoSuchJob, UsageError

ONE = (Place(0, 0, "n", (0,), 0, 0),)

BAD = [
    (QueueAdded(Queue("x", "x")), "queue x: parent", "cannot be its own parent"),
    (QueueAdded(Queue("x", "nobody")), "queue x: parent", "no queue 'nobody'"),
    ([QueueAdded(Queue("x", "y")), QueueAdded(Queue("y", "x"))], "queue x: parent", "no queue 'y'"),
    (QueueAdded(Queue("q")), "queue q", "there is one"),
    (QueueAdded(Queue("x", "q")), "queue x: parent", "q has jobs"),
    (QueueAdded(Queue("x", quota=-1)), "queue x: quota", "not between"),
    (QueueAdded(Queue("x", quota=10**20)), "queue x: quota", "not between"),
    (QueueAdded(Queue("x", quota=1.5)), "queue x: quota", "not a whole number"),
    (QueueAdded(Queue("x", quota=gpus(2), limit=gpus(1))), "queue x: limit", "below the quota"),
    (QueueAdded(Queue("x", quota=None, static=True)), "queue x: static", "needs a quota"),
    (QueueAdded(Queue("x", placement="random")), "queue x: placement", "unknown"),
    (QueueAdded(Queue("x", min_runtime=-1.0)), "queue x: min_runtime", "not a number of seconds"),
    (QueueAdded(Queue("x", default_limit=gpus(1), max_limit=gpus(0.5))), "queue x: default_limit", "above max_limit"),
    (QueueAdded(Queue("")), "queue", "not a name"),
    (QueueChanged(Queue("nobody")), "queue nobody", "no queue"),
    (QueueChanged(Queue("q", "d")), "queue q: parent", "cannot change"),
    (QueueRemoved("q"), "queue q", "has jobs"),
    (QueueRemoved("d"), "queue d", "has children"),
    (NodeAdded(Node("x", -1)), "node x: gpus", "not between"),
    (NodeAdded(Node("x", 10**6)), "node x: gpus", "not between"),
    (NodeAdded(Node("x", 1, 0)), "node x: memory", "not between"),
    (NodeAdded(Node("x", 1, broken=frozenset({1}))), "node x: broken", "not between"),
    (NodeLost("x"), "node x", "no node 'x'"),
    (GpuHealth("n", 9, False), "node n: gpu", "is not one of"),
    (JobSubmitted(Job("x", "nobody")), "job x: queue", "no queue 'nobody'"),
    (JobSubmitted(Job("x", "d")), "job x: queue", "has children"),
    (JobSubmitted(Job("j", "q")), "job j", "there is one"),
    (JobSubmitted(Job("", "q")), "job", "not a name"),
    (JobSubmitted(Job("x", "q", ())), "job x: tasks", "there are none"),
    (JobSubmitted(Job("x", "q", (Tasks(0),))), "job x: tasks", "all groups are empty"),
    (JobSubmitted(Job("x", "q", (Tasks(-1),))), "job x: tasks[0].least", "not between"),
    (JobSubmitted(Job("x", "q", (Tasks(3, 2),))), "job x: tasks[0].most", "below least"),
    (JobSubmitted(Job("x", "q", (Tasks(), Tasks(gpus=-1)))), "job x: tasks[1].gpus", "not between"),
    (JobSubmitted(Job("x", "q", (Tasks(share=0),))), "job x: tasks[0].share", "not between"),
    (JobSubmitted(Job("x", "q", (Tasks(share=gpus(1.5)),))), "job x: tasks[0].share", "not between"),
    (JobSubmitted(Job("x", "q", (Tasks(share=1, memory=GIB),))), "job x: tasks[0]", "both a share and bytes"),
    (JobSubmitted(Job("x", "q", (Tasks(memory=-1),))), "job x: tasks[0].memory", "not between"),
    (JobSubmitted(Job("x", "q", (Tasks(share=500_000, limit=400_000),))), "job x: tasks[0].limit", "below the request"),
    (JobSubmitted(Job("x", "q", (Tasks(share=500_000, ladder=(600_000,)),))), "job x: tasks[0].ladder", "come after"),
    (JobSubmitted(Job("x", "q", (Tasks(gpus=1025),))), "job x: tasks[0].gpus", "not between"),
    (JobSubmitted(Job("x", "q", (Tasks(memory=2**50 + 1),))), "job x: tasks[0].memory", "not between"),
    (JobSubmitted(Job("x", "small", (Tasks(share=gpus(0.9)),))), "job x: tasks[0].limit", "above what queue small"),
    (JobSubmitted(Job("x", "q", min_runtime=float("nan"))), "job x: min_runtime", "not a number of seconds"),
    (JobRestored(Job("x", "q"), (), 0.0), "job x: places", "there are none"),
    (JobRestored(Job("x", "q"), (Place(0, 0, "m", (0,), 0, 0),), 0.0), "job x: places[0].node", "no node 'm'"),
    (JobRestored(Job("x", "q"), (Place(0, 0, "n", (9,), 0, 0),), 0.0), "job x: places[0].gpus", "not 1 GPUs"),
    (JobRestored(Job("x", "q"), (Place(1, 0, "n", (0,), 0, 0),), 0.0), "job x: places[0]", "no task"),
    (JobRestored(Job("x", "q"), ONE, 0.0), "job x: places[0].gpus", "taken by others"),
    (JobRestored(Job("x", "q"), ONE, 0.0, rung=3), "job x: rung", "not one of"),
    ("nonsense", "event", "unknown"),
]


@pytest.fixture
def stage():
    stage = Stage({"n": 8})
    stage.queue("q", 4)
    stage.queue("d", 4)
    stage.queue("small", 2, parent="d", max_limit=gpus(0.5))
    stage.job("q", 1, name="j")
    return stage


@pytest.mark.parametrize(("event", "place", "what"), BAD, ids=[f"{place}: {what}" for _, place, what in BAD])
def test_a_bad_event_names_its_place_and_the_remedy_and_changes_nothing(stage, event, place, what) -> None:
    before = stage.allocator.dump()
    events = event if isinstance(event, list) else [event]
    good = JobSubmitted(Job("good", "q"))
    with pytest.raises(GpushareError) as caught:
        stage.allocator.handle([good, *events] if not isinstance(event, str) else [good, event], 5.0)
    assert caught.value.message.startswith(f"{place}: "), caught.value.message
    assert what in caught.value.message
    assert caught.value.hint
    assert stage.allocator.dump() == before
    stage.allocator.validate()
    assert stage.job("q", 1) in stage.running()


@pytest.mark.parametrize("event", [JobEnded("nobody"), JobWithdrawn("nobody")])
def test_an_unknown_job(stage, event) -> None:
    with pytest.raises(NoSuchJob):
        stage.send(event)
    with pytest.raises(NoSuchJob):
        stage.allocator.explain("nobody")


TOO_LARGE = {
    "GPUs": (Tasks(gpus=16), Selector(), "can hold it: 16 GPUs needed, the largest that matches: n with 8 GPUs"),
    "memory": (
        Tasks(memory=96 * GIB),
        Selector(),
        "can hold it: 1 GPU of 96.0 GiB needed, the largest that matches: n with 8 GPUs of 80.0 GiB",
    ),
    "no match": (Tasks(), Selector(pools=("moon",)), "matches pool moon: 1 GPU needed"),
}


@pytest.mark.parametrize("what", TOO_LARGE)
def test_a_job_that_no_node_could_hold_waits_for_one_and_says_so(stage, what) -> None:
    tasks, selector, message = TOO_LARGE[what]
    before = stage.allocator.queues["q"].demand
    job = Job("x", "q", (tasks,), selector=selector)
    assert stage.send(JobSubmitted(job)) == [Wait("x", stage.why("x"))]
    assert stage.why("x").code == "no_node"
    assert stage.why("x").message == f"no node that is there {message}"
    assert stage.allocator.explain("x").reason == stage.why("x")
    # It takes nothing from anybody: what cannot be had is no demand.
    assert stage.allocator.queues["q"].demand == before
    (refused,) = stage.send(JobSubmitted(replace(job, id="now", wait=False)))
    assert isinstance(refused, Refuse)
    assert refused.reason.code == "no_node"
    stage.send(NodeAdded(Node("m", 16, 96 * GIB, pool="moon")))
    assert "x" in stage.running()
    assert stage.allocator.queues["q"].demand > before


def test_explain_names_the_node_that_would_hold_it(stage) -> None:
    stage.send(JobSubmitted(Job("x", "q", (Tasks(gpus=16),))))
    assert stage.allocator.explain("x").change == "add a node with 16 GPUs"


def test_a_job_waits_when_the_only_node_that_could_hold_it_goes(stage) -> None:
    before = stage.allocator.queues["q"].demand
    stage.send(NodeAdded(Node("m", 16)))
    name = stage.job("q", 16)
    assert name in stage.running()
    stage.send(NodeLost("m"))
    assert stage.allocator.explain(name).reason.code == "no_node"
    assert stage.allocator.queues["q"].demand == before
    stage.send(NodeAdded(Node("m", 16)))
    assert name in stage.running()


def test_a_rebuild_takes_jobs_in_whatever_order_the_nodes_come_back() -> None:
    """A new leader hears of small nodes, of the jobs, and then of the rest."""
    stage = Stage({"small": 1})
    stage.queue("q", 64)
    large = Job("large", "q", (Tasks(gpus=8),))
    stage.send([JobSubmitted(large), JobSubmitted(Job("other", "q"))])
    assert stage.waiting() == ["large"]
    stage.send(NodeAdded(Node("n", 8)))
    assert stage.running() == ["large", "other"]


def test_before_there_are_nodes_everything_may_be_submitted() -> None:
    stage = Stage([])
    stage.queue("q", 64)
    name = stage.job("q", 16)
    assert stage.why(name).code == "no_node"
    stage.send(NodeAdded(Node("n", 16)))
    assert stage.running() == [name]


def two_halves() -> Stage:
    """A GPU free on each of two nodes, beside jobs that began at 0 and must not be disturbed before 10."""
    stage = Stage({"n1": 2, "n2": 2})
    stage.queue("q", 4, placement="spread")
    for name in ("a", "b"):
        stage.job("q", 1, name=name, min_runtime=10.0)
    assert stage.place("a").node != stage.place("b").node
    return stage


def test_who_could_not_be_moved_yet_is_moved_when_his_time_is_over() -> None:
    stage = two_halves()
    stage.now = 1.0
    stage.job("q", 2, name="wide")
    assert (stage.waiting(), stage.allocator.next_wake) == (["wide"], 10.0)
    stage.wait(9)
    assert (stage.waiting(), stage.moves, stage.allocator.next_wake) == ([], 1, None)


def test_a_question_asks_nobody_to_wake() -> None:
    stage = two_halves()
    stage.allocator.what_if([JobSubmitted(Job("wide", "q", (Tasks(gpus=2),)))])
    with pytest.raises(NoSuchJob):
        stage.allocator.handle([JobSubmitted(Job("wide", "q", (Tasks(gpus=2),))), JobEnded("nobody")], 0.0)
    assert stage.allocator.next_wake is None


def test_time_does_not_go_back(stage) -> None:
    stage.now = 100.0
    stage.job("q", 1, name="late")
    stage.now = 50.0
    stage.job("q", 1, name="early")
    assert stage.allocator.jobs["early"].since == 100.0


@pytest.mark.parametrize("now", ["noon", None, True, float("nan"), float("inf")])
def test_a_moment_that_is_none(stage, now) -> None:
    before = stage.allocator.dump()
    with pytest.raises(UsageError, match=r"now: .* is not a moment"):
        stage.allocator.handle(TimePassed(), now)
    assert stage.allocator.dump() == before


@pytest.mark.parametrize(
    "wrong",
    [{"endings": "never"}, {"grow_hold": -1.0}, {"retry_after": None}, {"reserve_after": "1m"}, {"search_width": 0}],
)
def test_a_policy_that_makes_no_sense(wrong) -> None:
    with pytest.raises(UsageError, match=f"policy: {next(iter(wrong))}"):
        Allocator(Policy(**wrong))
