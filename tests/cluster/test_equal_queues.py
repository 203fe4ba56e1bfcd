"""Queues that have the same take turns: the queue that came first is not always served first."""

from __future__ import annotations

from gpushare.cluster.allocator import Allocator
from gpushare.cluster.model import Job, JobEnded, JobSubmitted, Node, NodeAdded, Policy, Queue, QueueAdded, Start, Tasks
from gpushare.cluster.snapshot import restore, take


def cluster(*queues: Queue) -> Allocator:
    one = Allocator(Policy(reserve_after=None))
    one.handle([NodeAdded(Node("n", 1)), *map(QueueAdded, queues)], 0.0)
    return one


def served(one: Allocator, count: int, *, again: bool = False) -> str:
    """The queues of the jobs that start one after another: each ends before the next. `again`: restored each time."""
    order = ""
    for number in range(count):
        (running,) = (view for view in one.jobs.values() if view.places)
        order += running.job.queue
        actions = one.handle(JobEnded(running.job.id), 10.0 * (number + 1))
        assert len([action for action in actions if isinstance(action, Start)]) <= 1
        one = restore(one._state.policy, take(one)) if again else one
    return order


def test_two_users_with_whole_gpu_jobs_take_turns_on_one_gpu() -> None:
    for again in (False, True):
        one = cluster(Queue("a", quota=0), Queue("b", quota=0))
        one.handle([JobSubmitted(Job(f"a{n}", "a")) for n in range(6)], 1.0)
        one.handle([JobSubmitted(Job(f"b{n}", "b")) for n in range(3)], 2.0)
        assert served(one, 9, again=again) == "abababaaa"


def test_three_queues_go_round() -> None:
    one = cluster(*(Queue(name, quota=0) for name in "abc"))
    one.handle([JobSubmitted(Job(f"{name}{n}", name)) for name in "abc" for n in range(2)], 1.0)
    assert served(one, 6) == "abcabc"


def test_departments_take_turns_and_so_do_their_teams() -> None:
    queues = [
        Queue("x", quota=0),
        Queue("y", quota=0),
        *(Queue(name, "x", quota=0) for name in "ab"),
        Queue("c", "y", quota=0),
    ]
    one = cluster(*queues)
    one.handle([JobSubmitted(Job(f"{name}{n}", name)) for name in "abc" for n in range(2)], 1.0)
    assert served(one, 6) == "acbcab"


def test_a_larger_share_still_counts_first() -> None:
    """b has a quota: what is within it goes before a job above one."""
    one = cluster(Queue("a", quota=0), Queue("b", quota=1_000_000))
    one.handle([JobSubmitted(Job(f"b{n}", "b")) for n in range(3)], 1.0)
    one.handle([JobSubmitted(Job(f"a{n}", "a")) for n in range(2)], 2.0)
    assert served(one, 5) == "bbbaa"


def test_a_queue_that_says_no_quota_is_guaranteed_nothing() -> None:
    """A job that cannot be stopped starts within the quota only; others may have what is idle."""
    one, least = cluster(Queue("q")), (Tasks(share=1),)
    kept = one.handle(JobSubmitted(Job("kept", "q", least, preemptible=False)), 1.0)
    assert not any(isinstance(action, Start) for action in kept)
    lent = one.handle(JobSubmitted(Job("lent", "q", least)), 2.0)
    assert [action.job for action in lent if isinstance(action, Start)] == ["lent"]
