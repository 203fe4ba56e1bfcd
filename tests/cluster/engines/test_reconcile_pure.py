"""The decisions themselves, without a loop: both sides are given, events and commands are looked at."""

from __future__ import annotations

import pytest

from gpushare.cluster.allocator import Allocator
from gpushare.cluster.engines.reconcile import (
    Note,
    Notes,
    Patience,
    Round,
    Settings,
    adoptable,
    adoption,
    commands,
    job_facts,
    learn,
    node_facts,
)
from gpushare.cluster.engines.seam import (
    Accepted,
    Busy,
    Evict,
    Gone,
    Observed,
    Refused,
    SeenJob,
    SeenNode,
    SeenTask,
    Start,
)
from gpushare.cluster.model import (
    ForeignUse,
    Job,
    JobEnded,
    JobHeld,
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
    Queue,
    QueueAdded,
    Started,
    StartFailed,
    Stopped,
    StopRefused,
    TasksLost,
)
from gpushare.cluster.quantity import gpus

GIB = 2**30
WHOLE = 80 * GIB
N1 = Node("n1", 2, WHOLE)
JOB = Job("j", "a")
SETTINGS = Settings(grace=5.0, start_within=30.0, stop_within=15.0, last_retry=8.0)


def allocator(*events) -> Allocator:
    one = Allocator(Policy(endings="reported", reserve_after=None))
    one.handle([NodeAdded(N1), QueueAdded(Queue("a", quota=gpus(1))), QueueAdded(Queue("b", quota=0)), *events], 0.0)
    return one


def task(attempt=1, number=0, gpu=0, phase="running", amount=WHOLE, **more) -> SeenTask:
    return SeenTask(attempt, 0, number, "n1", (gpu,), amount, phase, **more)


ALL_READY = (SeenNode(N1),)


def both(ours: Allocator, *jobs: SeenJob, nodes=ALL_READY, notes: Notes | None = None, now=0.0) -> Round:
    return Round(ours, Observed(tuple(nodes), jobs), notes or Notes(), now, SETTINGS)


def seen(*tasks: SeenTask, job: Job = JOB, **more) -> SeenJob:
    return SeenJob(job, 0.0, max((one.attempt for one in tasks), default=0), tasks=tasks, **more)


# ---- nodes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "before", "events"),
    [
        (SeenNode(N1), [], []),
        (SeenNode(N1, "lost"), [], [NodeLost("n1")]),
        (SeenNode(N1, "lost"), [NodeLost("n1")], []),
        (SeenNode(N1, "unknown"), [], [NodeUnknown("n1")]),
        (SeenNode(N1, "unknown"), [NodeUnknown("n1")], []),
        (SeenNode(N1, "unknown"), [NodeLost("n1")], []),
        (SeenNode(N1), [NodeUnknown("n1")], [NodeAdded(N1)]),
        (SeenNode(N1), [NodeLost("n1")], [NodeAdded(N1)]),
        (SeenNode(N1, cordoned=True), [], [NodeCordoned("n1")]),
        (SeenNode(N1, cordoned=True), [NodeCordoned("n1")], []),
        (SeenNode(N1), [NodeCordoned("n1")], [NodeUncordoned("n1")]),
        (SeenNode(N1, cordoned=True, draining=True), [], [NodeDrained("n1")]),
        (SeenNode(N1, draining=True), [NodeDrained("n1")], []),
        (SeenNode(N1, draining=True), [NodeCordoned("n1"), JobSubmitted(JOB)], []),
        (SeenNode(N1, draining=True), [JobSubmitted(JOB), NodeCordoned("n1")], []),
        (SeenNode(N1, foreign=((1, GIB),)), [], [ForeignUse("n1", 1, GIB)]),
        (SeenNode(N1, foreign=((1, GIB),)), [ForeignUse("n1", 1, GIB)], []),
        (SeenNode(N1), [ForeignUse("n1", 1, GIB)], [ForeignUse("n1", 1, 0)]),
        (SeenNode(N1, "lost", foreign=((1, GIB),)), [], [NodeLost("n1")]),
        (SeenNode(N1, "unknown", foreign=((1, GIB),)), [NodeLost("n1")], []),
        (SeenNode(N1, foreign=((1, 2 * WHOLE),)), [ForeignUse("n1", 1, WHOLE)], []),
    ],
)
def test_what_a_node_shows_becomes_events_once(node, before, events) -> None:
    ours = allocator(*before)
    assert [event for batch in node_facts(both(ours, nodes=[node])) for event in batch] == events
    if events:
        ours.handle(events, 0.0)
    assert not list(node_facts(both(ours, nodes=[node])))


def test_a_cordoned_node_that_is_drained_is_drained_while_something_runs_there() -> None:
    ours = allocator()
    ours.handle(JobSubmitted(JOB), 0.0)
    ours.handle(NodeCordoned("n1"), 0.0)
    assert list(node_facts(both(ours, nodes=[SeenNode(N1, draining=True)]))) == [[NodeDrained("n1")]]


def test_a_new_node_that_does_not_answer_is_known_as_such() -> None:
    new = Node("n2", 1, WHOLE)
    ours = allocator()
    (batch,) = node_facts(both(ours, nodes=[SeenNode(N1), SeenNode(new, "unknown", cordoned=True)]))
    assert batch == [NodeAdded(new), NodeUnknown("n2"), NodeCordoned("n2")]
    ours.handle(batch, 0.0)
    changed = Node("n2", 1, WHOLE, type="h100")
    assert list(node_facts(both(ours, nodes=[SeenNode(N1), SeenNode(changed, "unknown", cordoned=True)]))) == [
        [NodeAdded(changed), NodeUnknown("n2")]
    ]


def test_a_node_that_the_engine_no_longer_has_is_lost() -> None:
    assert list(node_facts(both(allocator(), nodes=[]))) == [[NodeLost("n1")]]
    assert not list(node_facts(both(allocator(NodeLost("n1")), nodes=[])))


def test_an_exchanged_gpu_has_no_programs_of_others_before_they_are_seen_again() -> None:
    old, new = Node("n1", 2, WHOLE, uuids=("a", "b")), Node("n1", 2, WHOLE, uuids=("a", "c"))
    ours = allocator(NodeAdded(old), ForeignUse("n1", 1, GIB), ForeignUse("n1", 0, GIB))
    node = SeenNode(new, foreign=((0, GIB), (1, GIB)))
    assert list(node_facts(both(ours, nodes=[node]))) == [[NodeAdded(new), ForeignUse("n1", 1, GIB)]]


# ---- adoption ----------------------------------------------------------------------------------------


def test_only_the_latest_attempt_is_adopted_and_the_earlier_one_is_evicted() -> None:
    ours = allocator()
    job = seen(task(1, gpu=1, amount=GIB), task(2), evictions=4, rung=0)
    now = both(ours, job)
    assert adoptable(now) == ["j"]
    batch = adoption(now, ["j"])
    place = Place(0, 0, "n1", (0,), 0, 0)
    assert batch == [ForeignUse("n1", 1, GIB), JobRestored(JOB, (place,), 0.0, 2, 0, 4)]
    ours.handle(batch, 0.0)
    assert adoptable(both(ours, job)) == []
    assert list(commands(both(ours, job))) == [Evict("j", 1, ((0, 0),), 5.0, True)]


@pytest.mark.parametrize(
    "job", [seen(), seen(task(), ended=True), seen(task(phase="done")), seen(task(phase="failed"))]
)
def test_what_does_not_run_is_not_adopted(job) -> None:
    assert adoptable(both(allocator(), job)) == []


def test_what_could_not_be_adopted_is_not_tried_again_but_submitted() -> None:
    now = both(allocator(), seen(task(3)), notes=Notes(unfit={"j"}))
    assert adoptable(now) == []
    assert list(job_facts(now)) == [[JobSubmitted(JOB, 0.0, 3, 0)]]


def test_an_attempt_that_is_behind_gives_way_to_the_one_that_runs() -> None:
    ours = allocator()
    ours.handle(JobSubmitted(JOB), 0.0)
    batch = adoption(both(ours, seen(task(5))), ["j"])
    assert [type(event) for event in batch] == [JobEnded, JobRestored]


# ---- jobs --------------------------------------------------------------------------------------------


def running(*more) -> Allocator:
    ours = allocator()
    ours.handle([JobSubmitted(JOB), *more], 0.0)
    return ours


@pytest.mark.parametrize(
    ("job", "before", "events"),
    [
        (seen(), [], []),
        (seen(task()), [], [Started("j", 1, ((0, 0),))]),
        (seen(task(phase="done")), [], [Started("j", 1, ((0, 0),))]),
        (seen(task(phase="starting")), [], []),
        (seen(task(phase="stopping")), [], []),
        (seen(task()), [Started("j", 1)], []),
        (seen(), [Started("j", 1)], [TasksLost("j", 1, ((0, 0),))]),
        (seen(held=True), [Started("j", 1)], [TasksLost("j", 1, ((0, 0),)), JobHeld("j", "by its user")]),
        (seen(task(phase="failed", why="x")), [], [StartFailed("j", 1, ((0, 0),), None, "x")]),
        (seen(task(phase="failed", node_to_blame=True)), [], [StartFailed("j", 1, ((0, 0),), "n1", "")]),
        (seen(task(phase="failed")), [Started("j", 1)], [TasksLost("j", 1, ((0, 0),))]),
        (seen(ended=True), [], [JobEnded("j")]),
        (seen(task(phase="done"), ended=True), [], [JobEnded("j")]),
        (seen(task(phase="stopping"), ended=True), [], []),
        (seen(task(), held=True), [Started("j", 1)], []),
    ],
)
def test_what_a_job_shows_becomes_events(job, before, events) -> None:
    ours = running()
    for event in before:
        ours.handle(event, 0.0)
    assert [event for batch in job_facts(both(ours, job)) for event in batch] == events


def test_nothing_is_said_about_tasks_of_a_node_that_does_not_answer() -> None:
    ours = running()
    ours.handle(Started("j", 1), 0.0)
    assert not list(job_facts(both(ours, seen(), nodes=[SeenNode(N1, "unknown")])))


def test_new_jobs_are_submitted_and_those_that_are_gone_withdrawn() -> None:
    new = SeenJob(Job("new", "a"), 5.0, 2, 1, held=True)
    assert list(job_facts(both(running(), new))) == [
        [JobWithdrawn("j")],
        [JobSubmitted(new.job, 5.0, 2, 1), JobHeld("new", "by its user")],
    ]
    wrong = Notes(wrong={"new": ("no such queue", 10.0)})
    assert list(job_facts(both(allocator(), new, notes=wrong, now=9.0))) == []
    assert len(list(job_facts(both(allocator(), new, notes=wrong, now=10.0)))) == 1
    assert list(job_facts(both(allocator(), seen(ended=True)))) == []


def evicted() -> Allocator:
    """A borrower of both GPUs is told to leave one of them."""
    ours = allocator()
    ours.handle(JobSubmitted(Job("low", "b")), 0.0)
    ours.handle(JobSubmitted(Job("other", "b")), 0.0)
    ours.handle(JobSubmitted(JOB), 0.0)
    assert len(ours.leaving) == 1
    return ours


@pytest.mark.parametrize(
    ("answered", "phase", "ready", "ended", "stopped"),
    [
        (True, None, True, False, True),
        (False, None, True, False, False),
        (True, "stopping", True, False, False),
        (True, "done", True, False, False),
        (True, None, False, False, False),
        (False, None, True, True, True),
        (True, "stopping", True, True, False),
        (True, "done", True, True, True),  # it ended by itself just when it was told to stop
        (False, "done", True, True, True),
        (False, "failed", True, True, True),
    ],
)
def test_a_task_has_stopped_when_it_is_gone_and_cannot_come_back(answered, phase, ready, ended, stopped) -> None:
    ours = evicted()
    ((uid, attempt), (place,)) = next(iter(ours.leaving.items()))
    there = (SeenTask(attempt, 0, 0, "n1", place.gpus, WHOLE, phase),) if phase is not None else ()
    job = SeenJob(ours.jobs[uid].job, 0.0, 1, tasks=there, ended=ended)
    notes = Notes(stops={(uid, attempt, 0, 0): Patience(0.0, 0.0, accepted=answered)})
    node = SeenNode(N1, "ready" if ready else "unknown")
    batches = list(job_facts(both(ours, job, nodes=[node], notes=notes)))
    assert ([Stopped(uid, attempt, ((0, 0),))] in batches) == stopped


# ---- commands ----------------------------------------------------------------------------------------


def test_what_is_to_run_and_does_not_is_started_once_there_is_room() -> None:
    ours = running()
    places = ours.jobs["j"].places
    start = Start("j", 1, places, 0)
    assert list(commands(both(ours, seen()))) == [start]
    assert list(commands(both(ours, seen(task(phase="starting"))))) == []
    assert list(commands(both(ours, seen(), nodes=[SeenNode(N1, "unknown")]))) == []
    assert list(commands(both(ours, seen(ended=True)))) == []
    stranger = SeenJob(Job("x", "nowhere"), 0.0, 1, tasks=(task(amount=1),))
    assert start not in list(commands(both(ours, seen(), stranger)))
    assert start not in list(commands(both(ours, seen(), nodes=[SeenNode(N1, foreign=((0, 1),))])))
    done = SeenJob(Job("x", "nowhere"), 0.0, 1, tasks=(task(phase="done"),), note="")
    assert start in list(commands(both(ours, seen(), done)))
    ours.handle(Started("j", 1), 0.0)
    assert list(commands(both(ours, seen()))) == [], "it was seen running: it is lost, not late"


def test_another_amount_is_told_and_more_only_where_it_fits() -> None:
    ours = running()
    start = Start("j", 1, ours.jobs["j"].places, 0)
    assert list(commands(both(ours, seen(task(amount=GIB))))) == [start]
    full = [SeenNode(N1, foreign=((0, WHOLE - GIB),))]
    assert list(commands(both(ours, seen(task(amount=GIB)), nodes=full))) == []
    assert list(commands(both(ours, seen(task(amount=2 * WHOLE))))) == [start]
    assert list(commands(both(ours, seen(task(phase="stopping", amount=GIB))))) == []


def test_commands_wait_for_their_time() -> None:
    ours, notes = running(), Notes()
    (start,) = commands(both(ours, seen(), notes=notes, now=10.0))
    learn(notes, start, None, 10.0, SETTINGS)
    assert list(commands(both(ours, seen(), notes=notes, now=10.9))) == []
    assert list(commands(both(ours, seen(), notes=notes, now=11.0))) == [start]
    learn(notes, start, Busy(), 11.0, SETTINGS)
    assert list(commands(both(ours, seen(), notes=notes, now=12.9))) == []
    assert list(commands(both(ours, seen(), notes=notes, now=13.0))) == [start]
    assert notes.events == []
    learn(notes, start, Refused("x", "n1"), 13.0, SETTINGS)
    assert notes.events == [StartFailed("j", 1, ((0, 0),), "n1", "x")]


def test_a_start_that_was_accepted_is_given_time_to_be_seen() -> None:
    ours, notes = running(), Notes()
    start = Start("j", 1, ours.jobs["j"].places, 0)
    learn(notes, start, None, 0.0, SETTINGS)
    learn(notes, start, Accepted(), 10.0, SETTINGS)
    learn(notes, start, Accepted(), 39.0, SETTINGS)
    assert notes.events == []
    learn(notes, start, Accepted(), 40.0, SETTINGS)
    assert notes.events == [StartFailed("j", 1, ((0, 0),), "n1", "nothing was seen of it 30 s after its start")]


def test_an_eviction_becomes_a_kill_and_then_a_refusal() -> None:
    notes = Notes()
    evict = Evict("j", 1, ((0, 0),), 5.0, True)
    learn(notes, evict, Busy(), 0.0, SETTINGS)
    assert not notes.stops["j", 1, 0, 0].accepted
    learn(notes, evict, Accepted(), 10.0, SETTINGS)
    assert notes.stops["j", 1, 0, 0].accepted
    learn(notes, evict, Gone(), 44.0, SETTINGS)
    assert notes.events == []
    learn(notes, evict, Accepted(), 45.0, SETTINGS)
    assert notes.events == [StopRefused("j", 1, SETTINGS.last_retry)]
    notes = Notes()
    learn(notes, evict, Refused("x", retry_after=20.0), 1.0, SETTINGS)
    assert (notes.events, notes.stops["j", 1, 0, 0].next) == ([StopRefused("j", 1, 20.0)], 21.0)


def test_tries_become_rarer_up_to_a_bound() -> None:
    assert (Settings().first_retry, Settings().last_retry) == (1.0, 64.0)
    notes, ours = Notes(), running()
    start = Start("j", 1, ours.jobs["j"].places, 0)
    waits = []
    for _ in range(6):
        learn(notes, start, None, 0.0, SETTINGS)
        waits.append(notes.starts["j", 1, 0, 0].next)
    assert waits == [1, 2, 4, 8, 8, 8]


def test_what_ignores_an_eviction_is_killed_after_its_grace_and_some_time() -> None:
    ours = evicted()
    ((uid, attempt), (place,)) = next(iter(ours.leaving.items()))
    job = SeenJob(ours.jobs[uid].job, 0.0, 1, tasks=(SeenTask(attempt, 0, 0, "n1", place.gpus, WHOLE, "running"),))
    graces = {}
    for now in (29.9, 30.0):
        notes = Notes(stops={(uid, attempt, 0, 0): Patience(10.0, now, accepted=True)})
        graces[now] = [one.grace for one in commands(both(ours, job, notes=notes, now=now)) if isinstance(one, Evict)]
    assert graces == {29.9: [5.0], 30.0: [0.0]}


def test_notes_about_what_is_over_are_dropped() -> None:
    ours = running()
    notes = Notes(
        starts={("j", 1, 0, 0): Patience(0, 99), ("x", 1, 0, 0): Patience(0, 99), ("j", 9, 0, 0): Patience(0, 99)},
        stops={("j", 1, 0, 0): Patience(0, 99), ("j", 9, 0, 0): Patience(0, 99), ("x", 1, 0, 0): Patience(0, 99)},
        annotated={"j": 1.0, "x": 1.0},
        unfit={"j", "x"},
        wrong={"j": ("w", 1.0), "x": ("w", 1.0)},
    )
    list(commands(both(ours, seen(), notes=notes)))
    assert (set(notes.starts), set(notes.stops)) == ({("j", 1, 0, 0)}, {("j", 9, 0, 0)})
    assert (set(notes.annotated), notes.unfit, notes.wrong) == ({"j"}, {"j"}, {})


def test_a_job_is_told_what_is_wrong_with_it() -> None:
    job = SeenJob(Job("x", "nowhere"), 0.0)
    notes = Notes(wrong={"x": ("no queue", 5.0)})
    assert list(commands(both(allocator(), job, notes=notes))) == [Note("x", "no queue")]
