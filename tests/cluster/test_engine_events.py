"""What engines report, one event at a time: what changes, and what does not."""

from __future__ import annotations

import pytest
from allocator_stage import GIB, Stage, gpus

from gpushare.cluster.model import (
    Code,
    ForeignUse,
    Grow,
    Job,
    JobChanged,
    JobHeld,
    JobReleased,
    JobRestored,
    JobSubmitted,
    JobWithdrawn,
    Node,
    NodeAdded,
    NodeCordoned,
    NodeDrained,
    NodeLost,
    NodeUncordoned,
    NodeUnknown,
    Place,
    Policy,
    Preempt,
    QueueRemoved,
    Start,
    Started,
    StartFailed,
    Stop,
    Stopped,
    StopRefused,
    Tasks,
    TasksLost,
    TimePassed,
    started,
)
from gpushare.errors import NoSuchJob, UsageError

REPORTED = Policy(endings="reported", reserve_after=None)


def one_queue(nodes, policy: Policy | None = None) -> Stage:
    stage = Stage(nodes, policy)
    stage.queue("a", 1)
    return stage


# ---- closed nodes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("closing", "opening"), [(NodeCordoned, NodeUncordoned), (NodeUnknown, NodeAdded)])
def test_nothing_starts_on_a_closed_node_and_what_runs_there_stays(closing, opening) -> None:
    stage = one_queue({"n1": 2})
    first = stage.job("a")
    assert stage.send(closing("n1")) == []
    assert stage.running() == [first]
    later = stage.job("a")
    assert stage.waiting() == [later]
    assert stage.why(later).code is Code.NO_SPACE, "the node is there, only closed"
    actions = stage.send(opening(Node("n1", 2) if opening is NodeAdded else "n1"))
    assert list(started(actions)) == [later]


def test_a_node_that_is_unknown_and_cordoned_opens_when_neither_holds() -> None:
    stage = one_queue({"n1": 1})
    stage.send([NodeCordoned("n1"), NodeUnknown("n1")])
    later = stage.job("a")
    view = stage.allocator.nodes["n1"]
    assert (view.cordoned, view.unknown, view.alive) == (True, True, True)
    assert stage.send(NodeAdded(Node("n1", 1))) == []
    assert list(started(stage.send(NodeUncordoned("n1")))) == [later]


def test_a_cordon_outlives_the_loss_of_the_node() -> None:
    stage = one_queue({"n1": 1})
    stage.send([NodeCordoned("n1"), NodeLost("n1"), NodeAdded(Node("n1", 1))])
    assert stage.allocator.nodes["n1"].cordoned
    stage.job("a")
    assert stage.running() == []


def test_what_runs_on_an_unknown_node_runs_nowhere_else_until_the_node_is_lost() -> None:
    stage = one_queue({"n1": 1, "n2": 1})
    job = stage.job("a")
    stage.send(NodeUnknown("n1"))
    assert stage.place(job).node == "n1"
    stage.send(NodeLost("n1"))
    assert stage.place(job).node == "n2"
    assert stage.allocator.jobs[job].attempt == 2


def test_a_drained_node_is_empty_and_its_jobs_start_elsewhere() -> None:
    stage = Stage({"n1": 2, "n2": 1})
    stage.queue("a", 3)
    first, second = stage.job("a", 2), stage.job("a")
    assert stage.place(first).node == "n1"
    actions = stage.send(NodeDrained("n1"))
    (stop,) = [action for action in actions if isinstance(action, Stop)]
    assert (stop.job, stop.again, stop.reason.code) == (first, True, Code.DRAINED)
    assert stage.running() == [second]
    assert stage.waiting() == [first]


def test_draining_takes_only_the_further_tasks_of_an_elastic_job() -> None:
    stage = one_queue({"n1": 1, "n2": 1})
    job = stage.job("a", count=1, most=2)
    assert len(stage.allocator.jobs[job].places) == 2
    (action,) = stage.send(NodeDrained("n2"))
    assert isinstance(action, Preempt)
    assert ([place.node for place in action.places], action.whole, action.for_job) == (["n2"], False, job)
    assert stage.place(job).node == "n1"
    assert stage.allocator.jobs[job].evictions == 0


def test_what_is_to_start_on_a_node_that_closes_is_placed_elsewhere() -> None:
    stage = one_queue({"n1": 1}, REPORTED)
    stage.queue("b", 0)
    stage.job("b", name="borrower")
    stage.job("a", name="owner")
    assert stage.allocator.jobs["owner"].state == "starting"
    stage.send(NodeCordoned("n1"))
    assert stage.allocator.jobs["owner"].state == "pending"
    stage.send(NodeAdded(Node("n2", 1)))
    assert stage.place("owner").node == "n2"


def test_shares_divide_what_can_be_had() -> None:
    """Two queues share what is open; of what is closed only what is in use there counts."""
    stage = Stage({"n1": 4, "n2": 4})
    stage.queue("a", 0, weight=1)
    stage.queue("b", 0, weight=1)
    for _ in range(4):
        stage.job("a")
    stage.send(NodeCordoned("n2"))
    stage.job("b")
    assert stage.held("a", "b") == (3, 1), "b takes from a, whose share is half of the four GPUs that are open"
    assert sum(share.share for share in stage.allocator.shares().values()) == gpus(4)
    stage.send(NodeUncordoned("n2"))
    assert stage.held("a", "b") == (4, 1)


# ---- programs of others ------------------------------------------------------------------------------


def test_gpus_that_others_use_are_not_given_away() -> None:
    stage = one_queue([Node("n1", 2, 80 * GIB)])
    stage.send(ForeignUse("n1", 0, 30 * GIB))
    whole, part = stage.job("a"), stage.job("a", memory=50 * GIB)
    assert (stage.place(whole).gpus, stage.place(part).gpus) == ((1,), (0,))
    another = stage.job("a", memory=GIB)
    assert stage.waiting() == [another]
    assert stage.allocator.nodes["n1"].foreign == ((0, 30 * GIB),)
    assert sum(share.share for share in stage.allocator.shares().values()) == gpus(1) + gpus(0.625)
    stage.send(ForeignUse("n1", 0, 29 * GIB))
    assert stage.place(another).gpus == (0,)


def test_others_on_a_gpu_of_ours_stop_nobody_and_keep_their_part_afterwards() -> None:
    stage = one_queue([Node("n1", 1, 80 * GIB)])
    job = stage.job("a")
    assert stage.send(ForeignUse("n1", 0, 30 * GIB)) == []
    assert stage.running() == [job]
    assert stage.allocator.nodes["n1"].free == (0,)
    stage.end(job)
    assert stage.allocator.nodes["n1"].free == (50 * GIB,)
    later = stage.job("a")
    assert stage.waiting() == [later]
    assert list(started(stage.send(ForeignUse("n1", 0, 0)))) == [later]


def test_what_was_to_start_where_others_are_now_waits() -> None:
    stage = one_queue([Node("n1", 1, 80 * GIB)], REPORTED)
    stage.queue("b", 0)
    stage.job("b", name="borrower")
    stage.job("a", name="owner")
    (action, *_) = stage.send(ForeignUse("n1", 0, GIB))
    assert (action.job, action.places, action.again) == ("owner", (), True)
    assert action.reason.message == "programs outside of gpushare are on GPU 0 of n1"
    assert stage.allocator.jobs["owner"].state == "pending"
    stage.stopped("borrower")
    assert stage.running() == []
    assert list(started(stage.send(ForeignUse("n1", 0, 0)))) == ["owner"]


def test_a_lost_node_forgets_who_used_it() -> None:
    stage = one_queue([Node("n1", 1, 80 * GIB)])
    stage.send([ForeignUse("n1", 0, GIB), NodeLost("n1"), NodeAdded(Node("n1", 1, 80 * GIB))])
    assert stage.allocator.nodes["n1"].foreign == ()
    stage.job("a")
    assert len(stage.running()) == 1


def test_more_than_a_gpu_has_counts_as_all_of_it() -> None:
    stage = one_queue([Node("n1", 1, 80 * GIB)])
    stage.send(ForeignUse("n1", 0, 100 * GIB))
    assert stage.allocator.nodes["n1"].foreign == ((0, 80 * GIB),)


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (ForeignUse("n1", 1, 0), "node n1: gpu: GPU 1 is not one of 1"),
        (ForeignUse("n1", 0, -1), "node n1: foreign memory"),
        (ForeignUse("n9", 0, 0), "node n9: no node 'n9'"),
        (NodeCordoned("n9"), "node n9: no node"),
        (NodeDrained("n9"), "node n9: no node"),
        (NodeUncordoned("n9"), "node n9: no node"),
        (NodeUnknown("n9"), "node n9: no node"),
        (NodeAdded(Node("n1", 1, uuids=("a", "b"))), "node n1: uuids"),
        (NodeAdded(Node("n2", 2, uuids=("a", "a"))), "node n2: uuids"),
        (JobSubmitted(Job("x", "a"), attempt=-1), "job x: attempt"),
        (JobSubmitted(Job("x", "a"), evictions=-1), "job x: evictions"),
        (JobSubmitted(Job("x", "a"), since=float("nan")), "job x: since"),
    ],
)
def test_what_makes_no_sense_is_refused(event, words) -> None:
    stage = one_queue({"n1": 1})
    before = stage.allocator.dump()
    with pytest.raises(UsageError, match=words):
        stage.send(event)
    assert stage.allocator.dump() == before


# ---- identity ----------------------------------------------------------------------------------------


def test_an_exchanged_gpu_is_another_one_and_its_job_is_gone() -> None:
    stage = one_queue([Node("n1", 2, uuids=("GPU-a", "GPU-b"))])
    first, second = stage.job("a"), stage.job("a")
    stage.send(ForeignUse("n1", 1, 0))
    actions = stage.send(NodeAdded(Node("n1", 2, uuids=("GPU-a", "GPU-c"))))
    assert [(action.job, type(action)) for action in actions] == [(second, Stop), (second, Start)]
    views = stage.allocator.jobs
    assert (views[first].attempt, views[second].attempt) == (1, 2)
    assert stage.allocator.nodes["n1"].node.uuids == ("GPU-a", "GPU-c")


def test_identities_that_become_known_or_are_left_out_change_nothing() -> None:
    stage = one_queue({"n1": 1})
    job = stage.job("a")
    stage.send(NodeAdded(Node("n1", 1, uuids=("GPU-a",))))
    stage.send(NodeAdded(Node("n1", 1)))
    assert stage.allocator.nodes["n1"].node.uuids == ("GPU-a",)
    assert stage.allocator.jobs[job].attempt == 1


def test_an_exchanged_gpu_is_used_by_nobody() -> None:
    stage = one_queue([Node("n1", 1, 80 * GIB, uuids=("GPU-a",))])
    stage.send(ForeignUse("n1", 0, GIB))
    stage.send(NodeAdded(Node("n1", 1, 80 * GIB, uuids=("GPU-b",))))
    assert stage.allocator.nodes["n1"].foreign == ()
    assert stage.allocator.nodes["n1"].free == (80 * GIB,)


# ---- starts ------------------------------------------------------------------------------------------


def test_a_job_whose_start_fails_rests_longer_each_time_and_is_held_in_the_end() -> None:
    stage = one_queue({"n1": 1}, Policy(reserve_after=None, back_off=10.0, start_tries=3))
    job = stage.job("a")
    rests = []
    for attempt in (1, 2):
        stage.send(StartFailed(job, attempt, why="no such image"))
        view = stage.allocator.jobs[job]
        rests.append(view.until - stage.now)
        assert (view.failures, view.held, view.reason.code, view.charge) == (attempt, False, Code.RESTS, 0)
        assert stage.allocator.next_wake == view.until
        stage.wait(view.until - stage.now - 1)
        assert stage.waiting() == [job]
        stage.wait(1)
        assert stage.allocator.jobs[job].attempt == attempt + 1
    assert rests == [10.0, 20.0]
    stage.send(StartFailed(job, 3, why="no such image"))
    view = stage.allocator.jobs[job]
    assert (view.held, view.until, view.reason.message) == (
        True,
        None,
        "it is held: it did not start 3 times in a row: no such image",
    )
    assert stage.wait(10**6) == []
    explained = stage.allocator.explain(job)
    assert (explained.reason, explained.changes) == (view.reason, (JobReleased(job),))
    assert list(started(stage.send(JobReleased(job)))) == [job]
    assert (stage.allocator.jobs[job].attempt, stage.allocator.jobs[job].failures) == (4, 0)


def test_a_rest_ends_growing_after_six_doublings() -> None:
    stage = one_queue({"n1": 1}, Policy(reserve_after=None, back_off=1.0, start_tries=1000))
    job = stage.job("a")
    rests = []
    for _ in range(9):
        stage.send(StartFailed(job, stage.allocator.jobs[job].attempt))
        rests.append(stage.allocator.jobs[job].until - stage.now)
        stage.wait(rests[-1])
    assert rests == [1, 2, 4, 8, 16, 32, 64, 64, 64]


def test_a_start_that_worked_ends_the_count_of_failures() -> None:
    stage = one_queue({"n1": 2})
    job = stage.job("a", count=2)
    stage.send(StartFailed(job, 1))
    stage.wait(10)
    stage.send(Started(job, 2, ((0, 1),)))
    assert (stage.allocator.jobs[job].seen, stage.allocator.jobs[job].failures) == (((0, 1),), 1)
    stage.send(Started(job, 2))
    assert (stage.allocator.jobs[job].seen, stage.allocator.jobs[job].failures) == (((0, 0), (0, 1)), 0)


def test_without_a_rest_the_next_start_is_at_once() -> None:
    stage = one_queue({"n1": 1}, Policy(reserve_after=None, back_off=0.0))
    job = stage.job("a")
    assert list(started(stage.send(StartFailed(job, 1)))) == [job]
    assert list(started(stage.send(StartFailed(job, 2, node="n1")))) == [job]


def test_a_node_that_is_to_blame_rests_and_its_job_starts_elsewhere() -> None:
    stage = one_queue({"n1": 1, "n2": 1})
    job = stage.job("a")
    (stop, start) = stage.send(StartFailed(job, 1, node="n1", why="no driver"))
    assert stop.reason.message == "attempt 1 did not start on n1: no driver"
    assert (start.attempt, stage.place(job).node, stage.allocator.jobs[job].failures) == (2, "n2", 0)
    second = stage.job("a")
    assert stage.waiting() == [second]
    assert stage.allocator.nodes["n1"].until == stage.allocator.next_wake == 10.0
    assert list(started(stage.wait(10))) == [second]
    stage.send(StartFailed(second, 1, node="n1"))
    assert stage.allocator.nodes["n1"].until == 30.0, "twice as long"
    stage.wait(20)
    stage.send(Started(second, 2))
    stage.end(second)
    third = stage.job("a")
    stage.send(StartFailed(third, 1, node="n1"))
    assert stage.allocator.nodes["n1"].until == 40.0, "it had worked in between"


def test_a_further_task_that_does_not_start_is_given_up_alone() -> None:
    stage = one_queue({"n1": 1, "n2": 1})
    job = stage.job("a", count=1, most=2)
    first, second = stage.allocator.jobs[job].places
    stage.send(Started(job, 1, ((first.group, first.task),)))
    (action,) = stage.send(StartFailed(job, 1))
    assert (action.places, action.whole, action.reason.code) == ((second,), False, Code.START_FAILED)
    assert stage.allocator.jobs[job].places == (first,)
    assert stage.allocator.jobs[job].failures == 0
    stage.wait(10)
    assert len(stage.allocator.jobs[job].places) == 2


def test_a_further_task_that_fails_by_itself_rests_alone_longer_each_time_and_keeps_nobody_out() -> None:
    stage = one_queue({"n1": 4}, Policy(reserve_after=None, back_off=10.0))
    job = stage.job("a", count=1, most=2)
    stage.send(Started(job, 1, ((0, 0),)))
    rests = []
    for _ in range(3):
        stage.send(StartFailed(job, 1, ((0, 1),), why="no such file"))
        view = stage.allocator.jobs[job]
        assert (len(view.places), view.state, view.failures) == (1, "running", 0)
        assert stage.allocator.nodes["n1"].until is None
        other = stage.job("a")
        assert other in stage.running(), "others start"
        rests.append(stage.allocator.next_wake - stage.now)
        (said,) = stage.allocator.explain(job).who
        assert said == (
            "1 of its 2 tasks has places: further ones did not start (no such file) "
            f"and are tried again in {rests[-1]:g} s"
        )
        stage.wait(rests[-1] - 1)
        assert len(stage.allocator.jobs[job].places) == 1
        stage.end(other)
        assert len(stage.allocator.jobs[job].places) == 1, "room that others leave does not end its rest"
        assert len(list(started(stage.wait(1)))) == 1
    assert rests == [10.0, 20.0, 40.0]
    stage.send(Started(job, 1, ((0, 1),)))
    assert stage.allocator.explain(job).who == ()
    stage.send(TasksLost(job, 1, ((0, 1),)))
    stage.send(StartFailed(job, 1, ((0, 1),)))
    assert stage.allocator.next_wake - stage.now == 10.0, "one had started in between"
    assert list(started(stage.send(JobReleased(job)))) == [job]


def test_a_stalled_job_is_as_any_other_once_it_waits_again() -> None:
    stage = one_queue({"n1": 2})
    job = stage.job("a", count=1, most=2)
    stage.send(Started(job, 1, ((0, 0),)))
    stage.send(StartFailed(job, 1, ((0, 1),)))
    assert len(stage.allocator.jobs[job].places) == 1
    stage.send(TasksLost(job, 1, ((0, 0),)))
    view = stage.allocator.jobs[job]
    assert (view.attempt, len(view.places)) == (2, 2)


def test_a_gang_of_which_one_task_does_not_start_is_stopped_and_waits_for_that() -> None:
    stage = Stage({"n1": 1, "n2": 1}, REPORTED)
    stage.queue("a", 2)
    job = stage.job("a", count=2)
    (stop,) = stage.send(StartFailed(job, 1, ((0, 1),), node="n2"))
    assert (len(stop.places), stop.again) == (2, True)
    assert set(stage.allocator.leaving) == {(job, 1)}
    stage.wait(10)
    assert stage.allocator.jobs[job].state == "starting", "its last attempt may still run"
    (start,) = stage.stopped(job)
    assert start.attempt == 2


@pytest.mark.parametrize(
    "event",
    [
        Started("x", 2),
        Started("y", 1),
        StartFailed("x", 2),
        StartFailed("y", 1),
        TasksLost("x", 2),
        StopRefused("x", 1),
    ],
)
def test_what_is_said_of_another_attempt_changes_nothing(event) -> None:
    stage = one_queue({"n1": 1})
    stage.job("a", name="x")
    before = stage.allocator.dump()
    assert stage.send(event) == []
    assert stage.allocator.dump() == before


def test_a_task_that_is_known_to_run_does_not_fail_to_start() -> None:
    stage = one_queue({"n1": 1})
    job = stage.job("a")
    stage.send(Started(job, 1))
    assert stage.send(StartFailed(job, 1)) == []
    assert stage.running() == [job]


def test_a_lost_task_ends_a_gang_but_not_an_elastic_job() -> None:
    stage = one_queue({"n1": 2})
    job = stage.job("a", count=1, most=2)
    stage.send(Started(job, 1))
    (action,) = stage.send(TasksLost(job, 1, ((0, 1),)))
    assert isinstance(action, Start), "another one is started, as there is room"
    assert (action.attempt, stage.allocator.jobs[job].seen) == (1, ((0, 0),))
    stop, start = stage.send(TasksLost(job, 1))[:2]
    assert (stop.reason.message, start.attempt) == ("2 tasks of attempt 1 ended without being told to", 2)
    assert stage.allocator.jobs[job].seen == ()


# ---- stops -------------------------------------------------------------------------------------------


def borrower_and_owner(policy: Policy = REPORTED, **more) -> Stage:
    stage = Stage({"n1": 1, "n2": 1}, policy)
    stage.queue("a", 2)
    stage.queue("b", 0)
    stage.job("b", name="borrower", **{"count": 2, **more})
    stage.job("a", name="owner", count=2)
    return stage


def test_tasks_stop_one_by_one() -> None:
    stage = borrower_and_owner()
    (place,) = [place for place in stage.allocator.leaving["borrower", 1] if place.task == 1]
    assert stage.send(Stopped("borrower", 1, ((0, 0),))) == []
    assert stage.allocator.leaving == {("borrower", 1): (place,)}
    assert list(started(stage.send(Stopped("borrower", 1, ((0, 1),))))) == ["owner"]
    assert stage.allocator.leaving == {}


def test_a_refused_stop_gives_the_places_back_for_a_while() -> None:
    stage = borrower_and_owner()
    assert stage.allocator.jobs["borrower"].evictions == 1
    stage.send(StopRefused("borrower", 1, 50.0))
    borrower, owner = stage.allocator.jobs["borrower"], stage.allocator.jobs["owner"]
    assert (borrower.state, borrower.attempt, len(borrower.places)) == ("running", 1, 2)
    assert (owner.state, stage.allocator.leaving) == ("pending", {})
    assert stage.allocator.next_wake == 50.0
    assert stage.wait(49) == []
    (action,) = stage.wait(1)
    assert isinstance(action, Preempt)
    assert (action.job, action.attempt) == ("borrower", 1)
    (start,) = stage.stopped("borrower")
    assert (start.job, start.attempt) == ("owner", 2)


def test_a_refused_stop_of_a_further_task_gives_that_back() -> None:
    stage = borrower_and_owner(count=1, most=2)
    stage.end("owner")
    stage.stopped("borrower")
    stage.job("a", name="small")
    assert len(stage.allocator.leaving["borrower", stage.allocator.jobs["borrower"].attempt]) == 1
    stage.send(StopRefused("borrower", stage.allocator.jobs["borrower"].attempt))
    assert len(stage.allocator.jobs["borrower"].places) == 2
    assert stage.waiting() == ["small"]


def test_a_refused_move_of_some_tasks_leaves_the_others_alone() -> None:
    """Two tasks were on the move, the third was to stay: it is not told to stop, though two are its least."""
    stage = Stage({"n1": 4, "n2": 4}, REPORTED)
    stage.queue("a", 8)
    stage.job("a", name="wide", count=2, most=3, movable=True)
    stage.job("a", name="fixed", amount=2)
    before = stage.allocator.jobs["wide"].places
    stage.job("a", name="large", amount=3)
    assert len(stage.allocator.leaving["wide", 1]) == 2
    actions = stage.send(StopRefused("wide", 1))
    assert not [one for one in actions if isinstance(one, (Stop, Preempt)) and one.job == "wide"]
    assert stage.allocator.jobs["wide"].places == before and stage.allocator.leaving == {}
    assert stage.waiting() == ["large"]


def test_a_held_job_whose_stop_is_refused_runs() -> None:
    stage = borrower_and_owner()
    stage.send(JobHeld("borrower"))
    stage.send(StopRefused("borrower", 1))
    assert stage.allocator.jobs["borrower"].state == "running"
    assert not stage.allocator.jobs["borrower"].held


def test_a_withdrawn_job_stays_told_to_stop() -> None:
    stage = borrower_and_owner()
    stage.send([JobWithdrawn("borrower"), StopRefused("borrower", 1)])
    assert set(stage.allocator.leaving) == {("borrower", 1)}
    assert stage.allocator.jobs["owner"].state == "starting"


# ---- held --------------------------------------------------------------------------------------------


def test_a_held_job_asks_for_nothing_and_keeps_its_place_in_the_line() -> None:
    stage = one_queue({"n1": 1})
    running = stage.job("a")
    first, second = stage.job("a"), stage.job("a")
    stage.send(JobHeld(first, "by its user"))
    assert stage.allocator.queues["a"].demand == gpus(2)
    assert stage.why(first).message == "it is held: by its user"
    stage.send(JobReleased(first))
    assert stage.allocator.queues["a"].demand == gpus(3)
    assert list(started(stage.end(running))) == [first]
    stage.send(JobHeld(second))
    assert stage.why(second).message == "it is held"
    assert stage.end(first) == []
    with pytest.raises(UsageError, match="queue a: it has jobs"):
        stage.send(QueueRemoved("a"))
    stage.send([JobWithdrawn(second), QueueRemoved("a")])


def test_a_job_that_is_submitted_and_held_does_not_start() -> None:
    stage = one_queue({"n1": 1})
    (wait,) = stage.send([JobSubmitted(Job("x", "a")), JobHeld("x")])
    assert (wait.job, wait.reason.code) == ("x", Code.HELD)
    stage.send(JobChanged("x", priority=90))
    assert stage.waiting() == ["x"]
    assert list(started(stage.send(JobReleased("x")))) == ["x"]
    assert stage.send(JobReleased("x")) == []


def test_only_what_waits_and_is_known_can_be_held() -> None:
    stage = one_queue({"n1": 1})
    job = stage.job("a")
    with pytest.raises(UsageError, match=f"job {job}: it runs"):
        stage.send(JobHeld(job))
    for event in (JobHeld("nobody"), JobReleased("nobody")):
        with pytest.raises(NoSuchJob):
            stage.send(event)


# ---- what an engine remembers ------------------------------------------------------------------------


def test_age_attempts_and_evictions_are_restored() -> None:
    stage = one_queue({"n1": 1}, Policy(reserve_after=100.0))
    stage.now = 1000.0
    running = Place(0, 0, "n1", (0,), 0, 0)
    stage.send(JobRestored(Job("r", "a"), (running,), since=900.0, attempt=7, evictions=3))
    stage.send(JobSubmitted(Job("w", "a"), since=950.0, attempt=4, evictions=2))
    views = stage.allocator.jobs
    assert [(views[one].since, views[one].attempt, views[one].evictions) for one in "rw"] == [(900, 7, 3), (950, 4, 2)]
    assert stage.allocator.next_wake == 1050.0, "it has waited for 50 of the 100 seconds already"
    (start,) = stage.end("r")
    assert (start.job, start.attempt) == ("w", 5)
    stage.send(JobSubmitted(Job("f", "a"), since=10**6))
    assert stage.allocator.jobs["f"].since == 1000.0, "nobody has waited from later on"


def test_an_elastic_job_with_a_ladder_runs_on_as_it_was_after_a_refusal() -> None:
    stage = Stage({"n1": 1}, REPORTED)
    stage.queue("a", 1)
    stage.queue("b", 0)
    stage.send(JobSubmitted(Job("low", "b", (Tasks(ladder=(gpus(0.5),)),))))
    stage.job("a", name="half", amount=0.5)
    assert stage.rung_share("low") == 0.5
    stage.job("a", name="other", amount=0.5)
    stage.send(StopRefused("low", 1))
    view = stage.allocator.jobs["low"]
    assert (view.state, view.rung, stage.rung_share("low")) == ("running", 1, 0.5)
    stage.end("half", "other")
    actions = stage.wait(60)
    assert any(isinstance(action, Grow) for action in actions)
    assert stage.send(TimePassed()) == []
