"""Cases in which a job was once forgotten, or given something that was taken again in the same turn."""

from __future__ import annotations

from allocator_facts import facts, left_undone
from allocator_stage import GIB, Stage, gpus

from gpushare.cluster import room, transaction
from gpushare.cluster.allocator import Allocator
from gpushare.cluster.model import (
    Job,
    JobRestored,
    JobSubmitted,
    Node,
    NodeAdded,
    NodeLost,
    Place,
    Policy,
    Queue,
    QueueChanged,
    Selector,
    Shrink,
    Start,
    Tasks,
)
from gpushare.cluster.turn import Turn
from gpushare.cluster.victims import preempt


def test_jobs_that_waited_for_any_node_take_from_others_when_one_comes_and_others_fill_it() -> None:
    """Each of two queues gets more than its quota, by one further task; two owners wait for a GPU each."""
    node = Node("n", 5)
    stage = Stage([node])
    for name, quota, priority in (("lent-1", 1.5, 1), ("lent-2", 1.5, 1), ("mine-1", 1, 0), ("mine-2", 1, 0)):
        stage.queue(name, quota, priority=priority)
    stage.send(NodeLost("n"))
    tasks = (Tasks(share=gpus(0.1)), Tasks(0, 2, gpus=1))
    stage.send([JobSubmitted(Job(f"elastic-{n}", f"lent-{n}", tasks)) for n in (1, 2)])
    stage.send([JobSubmitted(Job(f"job-{n}", f"mine-{n}")) for n in (1, 2)])
    assert len(stage.waiting()) == 4
    stage.send(NodeAdded(node))
    assert stage.held("lent-1", "lent-2") == (1.1, 1.1)
    assert stage.held("mine-1", "mine-2") == (1, 1)
    assert not left_undone(stage.allocator, {})


def test_when_a_job_in_quota_may_be_moved_again_others_are_stopped_beside_its_move() -> None:
    """The block is got by stopping one of `a` and moving the one of `c`, which has a minimum run time."""
    stage = Stage({"n1": 8, "n2": 8})
    for name, quota in (("a", 0), ("b", 8), ("c", 8)):
        stage.queue(name, quota)

    def restored(name: str, queue: str, node: str, **more: object) -> None:
        gpus_of = tuple(range(4)) if name in ("moves", "fixed") else tuple(range(4, 8))
        job = Job(name, queue, (Tasks(gpus=4),), movable=True, **more)
        stage.send(JobRestored(job, (Place(0, 0, node, gpus_of, 0, 0),), since=0.0))

    restored("moves", "c", "n1", min_runtime=60.0)
    restored("loan", "a", "n1", min_runtime=0.0)
    restored("fixed", "c", "n2", preemptible=False)
    restored("loan-2", "a", "n2")
    stage.job("b", 8, name="block")
    assert stage.waiting() == ["block"]
    stage.wait(60)
    assert "block" in stage.running()
    assert sorted(stage.evicted) == ["loan", "loan-2"]
    assert stage.place("moves").node == "n2"


def demand(stage: Stage, queue: str) -> float:
    return stage.allocator.queues[queue].demand / 1_000_000


def test_a_job_asks_for_the_dearer_gpu_only_while_it_is_there() -> None:
    """40 GiB are a whole small GPU and half of a large one."""
    stage = Stage([Node("large", 1, 80 * GIB), Node("small", 1, 40 * GIB)])
    stage.queue("lent", 0)
    stage.queue("owner", 2)
    stage.job("owner", name="on-large")
    stage.job("lent", memory=40 * GIB, name="bytes")
    assert (stage.place("bytes").node, demand(stage, "lent")) == ("small", 1.0)
    stage.job("owner", name="on-small")
    assert stage.waiting() == ["bytes"]
    assert demand(stage, "lent") == 0.5


def test_a_job_that_gets_a_task_and_shrinks_twice_in_a_turn_is_told_one_thing() -> None:
    stage = Stage({"n": 2}, Policy(reserve_after=None, consolidate=False))
    stage.queue("q", 2)
    stage.job("q", name="block", priority=70)
    stage.job("q", name="elastic", most=2, ladder=(0.7, 0.4), priority=60)
    stage.job("q", 0.3, name="small", most=2, devices=2)
    assert stage.running() == ["block", "elastic"]
    told: dict[tuple[str, int], Place] = {}
    for action in stage.end("block"):
        assert isinstance(action, (Start, Shrink))
        for place in action.places:
            assert told.setdefault((action.job, place.task), place) == place, action
    assert len(told) == 4
    assert stage.allocator.jobs["elastic"].rung == 2


def test_shrinking_what_has_just_started_reads_each_action_once(monkeypatch) -> None:
    read = 0

    class Counted(list):
        def __getitem__(self, index):
            nonlocal read
            read += 1
            return super().__getitem__(index)

    class Counting(Turn):
        __slots__ = ()

        def __init__(self, *args: object, **more: object) -> None:
            super().__init__(*args, **more)
            self.out = Counted()

    monkeypatch.setattr(transaction, "Turn", Counting)
    stage = Stage({f"n{n}": 8 for n in range(10)})
    stage.queue("q", 80)
    tasks = (Tasks(share=gpus(1), ladder=(gpus(0.4),)),)
    stage.send([JobSubmitted(Job(f"j{n}", "q", tasks)) for n in range(160)])
    assert len(stage.running()) == 160
    assert read < 160 * 8


def test_the_facts_of_an_allocator_make_an_equal_one() -> None:
    """The oracle itself: queues ask for the same in both."""
    stage = Stage([Node("small", 2, 40 * GIB), Node("large", 2, 80 * GIB)])
    stage.queue("q", 2)
    for memory in (10, 40, 60):
        stage.job("q", memory=memory * GIB)
    other = Allocator(stage.allocator.policy)
    for events in facts(stage.allocator, {}):
        other.handle(events, stage.now)
    assert other.queues["q"].demand == stage.allocator.queues["q"].demand


def test_when_a_queue_gives_up_its_minimum_run_time_its_jobs_move_for_others() -> None:
    stage = Stage({"n1": 4, "n2": 2})
    stage.queue("q", 8, min_runtime=600.0)
    job = Job("small", "q", movable=True)
    stage.send(JobRestored(job, (Place(0, 0, "n1", (3,), 0, 0),), since=0.0))
    stage.job("q", 4, name="block")
    stage.wait(1.0)
    assert stage.waiting() == ["block"]
    stage.send(QueueChanged(Queue("q", quota=gpus(8))))
    assert "block" in stage.running()


def two_sizes() -> Stage:
    """One node of two GPUs of 40 GiB, one of two GPUs of 80 GiB."""
    return Stage([Node("small", 2, 40 * GIB), Node("large", 2, 80 * GIB)])


def test_a_gang_whose_bytes_are_too_dear_on_small_gpus_gets_some_tasks_on_large_ones() -> None:
    """40 GiB cost one GPU there and half a GPU here: the limit allows 1.5. The large node has one GPU left."""
    stage = two_sizes()
    stage.queue("other", 1)
    stage.job("other", 1, name="there", preemptible=False, selector=Selector(nodes=("large",)))
    stage.queue("q", 1.5, limit=1.5)
    tasks = (Tasks(1, memory=10 * GIB), Tasks(2, memory=40 * GIB))
    stage.send(JobSubmitted(Job("gang", "q", tasks)))
    assert "gang" in stage.running()
    assert stage.held("q") == (1.25,)


def test_tasks_that_only_large_gpus_can_hold_are_placed_before_others_take_these() -> None:
    """Two whole GPUs fit on either node, 60 GiB on one of them alone."""
    stage = two_sizes()
    stage.send(NodeAdded(Node("third", 3, 40 * GIB)))
    stage.queue("q", 8)
    stage.send(JobSubmitted(Job("gang", "q", (Tasks(2, gpus=2), Tasks(2, memory=60 * GIB)))))
    assert "gang" in stage.running()


def test_room_beside_jobs_of_its_queue_wakes_a_job_only_where_their_places_would_be_enough(monkeypatch) -> None:
    """Of 20 nodes two have jobs of the queue that may be stopped; on one of them they and what is freed are enough."""
    looks: list[str] = []
    monkeypatch.setattr(room, "preempt", lambda turn, gang: looks.append(gang.job.job.id) or preempt(turn, gang))
    stage = Stage({f"n{index}": 8 for index in range(20)})
    stage.queue("mine", 0, weight=0)
    stage.queue("theirs", 160)

    def restored(name: str, queue: str, node: str, first: int, count: int) -> None:
        job = Job(name, queue, (Tasks(gpus=count),), preemptible=queue == "mine", movable=False)
        stage.send(JobRestored(job, (Place(0, 0, node, tuple(range(first, first + count)), 0, 0),), since=0.0))

    for index in range(2, 20):
        restored(f"full-{index}", "theirs", f"n{index}", 0, 8)
    restored("low-0", "mine", "n0", 0, 2)
    restored("large-0", "theirs", "n0", 2, 4)
    restored("small-0", "theirs", "n0", 6, 2)
    restored("low-1", "mine", "n1", 0, 2)
    restored("large-1", "theirs", "n1", 2, 6)
    stage.job("mine", 6, name="high", priority=60)
    assert stage.waiting() == ["high"]
    looks.clear()
    stage.end("small-0")
    assert (stage.waiting(), looks) == (["high"], [])
    stage.end("large-0")
    assert (stage.waiting(), stage.evicted) == ([], [])
    stage.end("high")
    restored("large-2", "theirs", "n0", 2, 6)
    stage.job("mine", 8, name="higher", priority=70)
    assert stage.waiting() == ["higher"]
    stage.end("large-1")
    assert "higher" in stage.running()
    assert stage.evicted == ["low-1"]
