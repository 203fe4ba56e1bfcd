"""One thing at a time: what the loop tells the engine, and what it tells the allocator."""

from __future__ import annotations

import itertools

import pytest
from engine_stage import SETTINGS, Stage

from gpushare.cluster.engines.memory import Faults, Overlap
from gpushare.cluster.engines.seam import Accepted, Busy, Deposed, Evict, Gone, Refused, Start, Unanswered
from gpushare.cluster.model import Job, Node, Place, Tasks
from gpushare.cluster.quantity import gpus

GIB = 2**30
WHOLE = 80 * GIB


def one(nodes=None, quota=4, **more) -> Stage:
    return Stage(nodes or {"n1": 2}, [("a", quota), ("b", 0)], **more)


def heard(stage: Stage, name: str) -> list:
    """Commands of a kind, as they reach the engine."""
    found: list = []
    real = getattr(stage.engine, name)

    def call(*arguments):
        found.append(arguments[:-1] if name == "annotate" else arguments[0])
        return real(*arguments)

    setattr(stage.engine, name, call)
    return found


# ---- jobs --------------------------------------------------------------------------------------------


def test_a_job_starts_exactly_where_it_was_placed_and_ends() -> None:
    stage = one()
    starts = heard(stage, "start")
    stage.submit("j", "a", 5.0, least=2)
    stage.go(1)
    places = stage.allocator.jobs["j"].places
    assert starts == [Start("j", 1, places, 0)]
    assert stage.running() == {"j": [(place.node, place.gpus) for place in places]}
    stage.go(3)
    assert stage.allocator.jobs["j"].seen == ((0, 0), (0, 1))
    stage.finish()
    assert len(starts) == 1


def test_a_job_that_waits_is_told_why_and_no_longer_when_it_runs() -> None:
    stage = one({"n1": 1})
    stage.submit("first", "a", 20.0)
    stage.go(1)
    stage.submit("second", "a", 5.0)
    stage.go(1)
    assert stage.engine.jobs["second"].note == "no GPU is free, 1 is needed"
    stage.finish()
    assert stage.engine.jobs["second"].note == ""


def test_notes_do_not_come_more_often_than_every_some_seconds() -> None:
    stage = one({"n1": 1})
    notes = heard(stage, "annotate")
    stage.submit("first", "a", 50.0)
    stage.submit("second", "a", 5.0)
    stage.round()
    assert len(notes) == 1
    stage.engine.jobs["second"].note = "somebody has overwritten it"
    stage.round()
    assert len(notes) == 1
    stage.engine.tick()
    stage.round()
    assert len(notes) == 2


def test_a_job_of_an_unknown_queue_is_told_so_and_is_in_nobodys_way() -> None:
    stage = one()
    stage.submit("wrong", "nowhere", 5.0)
    stage.submit("right", "a", 5.0)
    stage.go(3)
    assert "no queue 'nowhere'" in stage.engine.jobs["wrong"].note
    assert set(stage.running()) == {"right"}
    stage.engine.jobs["wrong"].job = Job("wrong", "a", (Tasks(),))
    stage.go(int(SETTINGS.last_retry) + 1)
    assert "wrong" in stage.running()


def test_a_held_job_starts_when_its_user_releases_it() -> None:
    stage = one()
    stage.submit("j", "a", 5.0)
    stage.engine.jobs["j"].held = True
    stage.go(3)
    assert stage.running() == {}
    assert stage.engine.jobs["j"].note == "it is held: by its user"
    stage.engine.jobs["j"].held = False
    stage.go(2)
    assert "j" in stage.running()


def test_a_waiting_job_that_its_user_holds_is_held() -> None:
    stage = one({"n1": 1})
    stage.submit("first", "a", 5.0)
    stage.go(1)
    stage.submit("second", "a", 5.0)
    stage.go(1)
    stage.engine.jobs["second"].held = True
    stage.go(20)
    assert stage.engine.jobs["first"].ended
    assert stage.allocator.jobs["second"].held


def test_a_cancelled_job_frees_its_gpus_when_it_is_gone() -> None:
    stage = one({"n1": 1})
    stage.submit("j", "a", 50.0)
    stage.submit("next", "a", 5.0)
    stage.go(4)
    stage.engine.cancel("j")
    stage.round()
    assert stage.allocator.jobs["next"].state == "pending", "it still holds its GPU"
    stage.finish()
    assert stage.engine.jobs["next"].runs == 1


def test_a_job_that_the_engine_no_longer_knows_is_withdrawn() -> None:
    stage = one({"n1": 1})
    stage.submit("j", "a", 50.0)
    stage.submit("next", "a", 5.0)
    stage.go(4)
    del stage.engine.jobs["j"]
    stage.go(2)
    assert set(stage.running()) == {"next"}
    assert stage.allocator.leaving == {}


# ---- evictions ---------------------------------------------------------------------------------------


def evicting(**faults) -> Stage:
    stage = one({"n1": 1}, quota=1)
    stage.submit("borrower", "b", 30.0)
    stage.go(4)
    stage.engine.faults = Faults(**faults)
    stage.submit("owner", "a", 5.0)
    return stage


def test_an_owner_starts_when_the_borrower_is_gone_and_the_borrower_after_it() -> None:
    stage = evicting()
    evictions = heard(stage, "evict")
    stage.round()
    assert evictions[0] == Evict("borrower", 1, ((0, 0),), SETTINGS.grace, True)
    assert stage.allocator.jobs["owner"].state == "starting"
    stage.finish()
    assert {uid: job.runs for uid, job in stage.engine.jobs.items()} == {"borrower": 2, "owner": 1}
    assert stage.engine.jobs["borrower"].attempt == 2


def test_a_refused_eviction_is_asked_for_again_later() -> None:
    stage = evicting(stop_refused=1.0)
    stage.go(2)
    assert stage.allocator.jobs["borrower"].state == "running"
    assert stage.allocator.jobs["owner"].state == "pending"
    stage.engine.faults = Faults()
    evictions = heard(stage, "evict")
    stage.go(15)
    assert evictions == []
    stage.go(10)
    assert evictions
    stage.finish()


def test_who_ignores_everything_but_a_kill_is_killed() -> None:
    stage = one({"n1": 1}, quota=1, engine=None)
    stage.engine.faults = Faults(stubborn=1.0)
    stage.submit("borrower", "b", 500.0)
    stage.go(4)
    stage.submit("owner", "a", 50.0)
    evictions = heard(stage, "evict")
    stage.go(int(SETTINGS.grace + SETTINGS.stop_within) - 1)
    assert {one.grace for one in evictions} == {SETTINGS.grace}
    stage.go(10)
    assert evictions[-1].grace == 0.0
    stage.go(3)
    assert "owner" in stage.running()


def test_what_cannot_even_be_killed_keeps_its_place_for_a_while() -> None:
    stage = one({"n1": 1}, quota=1)
    stage.submit("borrower", "b", 500.0)
    stage.go(4)
    stage.submit("owner", "a", 5.0)
    stage.engine.evict = lambda command, token: Accepted()
    stage.go(int(SETTINGS.grace + 2 * SETTINGS.stop_within))
    assert stage.allocator.jobs["borrower"].state == "pending"
    stage.go(int(SETTINGS.last_retry) + 2)
    assert stage.allocator.jobs["borrower"].state == "running"


def test_what_is_gone_counts_as_stopped_only_once_the_engine_has_answered() -> None:
    """A start that was sent before could still arrive."""
    stage = evicting()
    real = stage.engine.evict

    def silent(command, token):
        raise Unanswered("nothing")

    stage.engine.evict = silent
    stage.round()
    stage.engine.jobs["borrower"].tasks.clear()
    stage.go(10)
    assert stage.running() == {}
    assert set(stage.allocator.leaving) == {("borrower", 1)}
    stage.engine.evict = real
    stage.go(int(SETTINGS.last_retry) + 2)
    assert set(stage.running()) == {"owner"}
    stage.finish()


# ---- starts ------------------------------------------------------------------------------------------


def test_starts_without_an_answer_are_repeated_less_and_less_often() -> None:
    stage = one()
    times = []

    def silent(command, token):
        times.append(stage.engine.now)
        raise Unanswered("nothing")

    real, stage.engine.start = stage.engine.start, silent
    stage.submit("j", "a", 5.0)
    stage.go(40)
    waits = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert waits[:5] == [1, 2, 4, 8, 8]
    stage.engine.start = real
    stage.finish()


def test_a_start_that_is_accepted_and_never_seen_has_failed() -> None:
    stage = one({"n1": 1, "n2": 1})
    real, stage.engine.start = stage.engine.start, lambda command, token: Accepted()
    stage.submit("j", "a", 5.0)
    stage.go(int(SETTINGS.start_within) - 2)
    assert stage.allocator.jobs["j"].attempt == 1
    stage.go(int(SETTINGS.last_retry) + 4)
    assert stage.allocator.jobs["j"].attempt == 2
    stage.engine.start = real
    stage.finish()


def test_a_refused_start_is_tried_on_another_node_with_a_new_attempt() -> None:
    stage = one({"n1": 1, "n2": 1})
    real = stage.engine.start
    stage.engine.start = lambda command, token: (
        Refused("no driver", "n1") if command.places[0].node == "n1" else real(command, token)
    )
    stage.submit("j", "a", 5.0)
    stage.go(3)
    assert stage.running() == {"j": [("n2", (0,))]}
    assert stage.allocator.jobs["j"].attempt == 2
    stage.finish()


def test_a_start_of_which_the_job_is_to_blame_rests() -> None:
    stage = one()
    stage.engine.start = lambda command, token: Refused("no such program")
    stage.submit("j", "a", 5.0)
    stage.go(2)
    view = stage.allocator.jobs["j"]
    assert (view.state, view.failures) == ("pending", 1)
    assert stage.engine.jobs["j"].note == "it did not start (no such program) and is tried again later, 1 time so far"


def test_a_task_that_fails_after_its_start_was_accepted_is_cleared_and_tried_again() -> None:
    stage = one()
    stage.engine.faults = Faults(failed=1.0)
    stage.submit("j", "a", 5.0)
    stage.go(5)
    assert stage.allocator.jobs["j"].failures == 1
    assert (1, 0, 0) not in stage.engine.jobs["j"].tasks
    stage.engine.faults = Faults()
    stage.finish()
    assert stage.engine.jobs["j"].attempt == 2


def test_room_that_is_only_promised_is_not_used() -> None:
    """What was told to shrink may not have: the newcomer waits until the engine shows it."""
    stage = one({"n1": 1}, quota=1)
    stage.submit("soft", "b", 60.0, ladder=(gpus(0.5),))
    stage.go(4)
    real = stage.engine.start

    def no_shrinking(command, token):
        if command.uid == "soft":
            raise Unanswered("nothing")
        return real(command, token)

    stage.engine.start = no_shrinking
    stage.submit("half", "a", 5.0, share=gpus(0.5))
    stage.go(5)
    assert set(stage.running()) == {"soft"}
    stage.engine.start = real
    stage.go(12)
    assert stage.engine.guarded == 0
    assert stage.engine.jobs["half"].runs == 1


# ---- nodes -------------------------------------------------------------------------------------------


def test_nodes_come_close_and_go_as_the_engine_shows_them() -> None:
    stage = one({"n1": 1, "n2": 1})
    stage.go(1)
    stage.engine.nodes["n1"].cordoned = True
    stage.submit("j", "a", 100.0)
    stage.go(2)
    assert stage.running() == {"j": [("n2", (0,))]}
    stage.engine.nodes["n1"].cordoned = False
    stage.engine.nodes["n2"].draining = True
    stage.go(12)
    assert stage.running() == {"j": [("n1", (0,))]}
    assert stage.allocator.nodes["n2"].cordoned
    stage.engine.nodes["n2"].draining = False
    stage.go(1)
    assert not stage.allocator.nodes["n2"].cordoned
    del stage.engine.nodes["n2"]
    stage.go(1)
    assert not stage.allocator.nodes["n2"].alive


def test_a_job_on_a_node_that_does_not_answer_is_not_started_elsewhere() -> None:
    stage = one({"n1": 1, "n2": 1})
    stage.submit("j", "a", 30.0)
    stage.go(4)
    assert stage.running() == {"j": [("n1", (0,))]}
    stage.engine.faults = Faults(vanish=0.0, node_trouble=1e-9)
    stage.engine.nodes["n1"].state = "unknown"
    hidden = dict(stage.engine.jobs["j"].tasks)
    stage.engine.jobs["j"].tasks.clear()  # the engine does not see it, and it runs
    stage.go(5)
    assert stage.running() == {}
    assert stage.allocator.nodes["n1"].unknown
    stage.engine.nodes["n1"].node = Node("n1", 1, labels=(("rack", "r1"),))
    stage.go(2)
    view = stage.allocator.nodes["n1"]
    assert (view.unknown, view.node.labels) == (True, (("rack", "r1"),))
    stage.engine.jobs["j"].tasks.update(hidden)
    stage.engine.nodes["n1"].state = "ready"
    stage.go(1)
    assert stage.allocator.jobs["j"].attempt == 1
    assert not stage.allocator.nodes["n1"].unknown
    stage.engine.nodes["n1"].state = "lost"
    stage.engine.jobs["j"].tasks.clear()
    stage.go(2)
    assert stage.running() == {"j": [("n2", (0,))]}


def test_programs_of_others_are_left_alone_and_their_gpu_is_not_used() -> None:
    stage = one([Node("n1", 2, WHOLE)])
    stage.engine.faults = Faults(foreign=1e-9)
    stage.engine.nodes["n1"].foreign = {0: GIB}
    stage.submit("j", "a", 5.0, least=2)
    stage.go(3)
    assert stage.running() == {}
    assert stage.allocator.nodes["n1"].foreign == ((0, GIB),)
    stage.engine.nodes["n1"].foreign = {}
    stage.finish()


def test_a_task_that_nobody_decided_on_holds_its_gpu_until_it_is_gone() -> None:
    stage = one([Node("n1", 1, WHOLE)], quota=1)
    stage.submit("j", "a", 5.0)
    stage.engine.jobs["j"].attempt = 3
    stage.engine.start(Start("j", 3, (Place(0, 0, "n1", (0,), WHOLE, 0),), 0), (0, 1))
    stage.submit("other", "a", 5.0)
    stage.engine.jobs["j"].job = Job("j", "nowhere", (Tasks(),))
    stage.go(4)
    assert set(stage.running()) == {"j"}, "of an unknown queue: it is left alone"
    assert stage.allocator.nodes["n1"].foreign == ((0, WHOLE),)
    stage.engine.cancel("j")
    stage.finish()


# ---- leaders and the engine itself -------------------------------------------------------------------


def test_of_two_loops_one_acts() -> None:
    stage = one()
    other = stage.new_loop("two")
    stage.submit("j", "a", 50.0)
    assert stage.loop.step()
    assert not other.step()
    stage.engine.tick(20.0)
    assert other.step()
    with pytest.raises(Deposed):
        stage.engine.start(Start("j", 1, (), 0), (1, 99))
    stage.engine.tick(1.0)
    assert not stage.loop.step()


def test_a_loop_gives_no_command_when_its_term_is_over() -> None:
    stage = one()
    stage.submit("j", "a", 50.0)
    real = stage.engine.snapshot

    def slow():
        stage.engine.tick(20.0)
        return real()

    stage.engine.snapshot = slow
    stage.loop.step()
    assert stage.running() == {}
    stage.engine.snapshot = real
    stage.loop.step()
    assert set(stage.running()) == {"j"}


def place(gpu: int = 0, amount: int = WHOLE) -> Place:
    return Place(0, 0, "n1", (gpu,), amount, 0)


def test_the_engine_keeps_what_the_seam_promises() -> None:
    stage = one([Node("n1", 2, WHOLE)])
    engine = stage.engine
    engine.submit(Job("j", "a"), 50.0)
    engine.submit(Job("k", "a"), 50.0)
    assert engine.start(Start("x", 1, (place(),), 0), (1, 1)) == Gone()
    assert engine.start(Start("j", 2, (place(),), 0), (1, 5)) == Accepted()
    assert engine.start(Start("j", 2, (place(),), 0), (1, 6)) == Accepted()
    assert isinstance(engine.start(Start("j", 2, (place(1),), 0), (1, 7)), Refused)
    assert isinstance(engine.start(Start("j", 1, (place(),), 0), (1, 8)), Refused)
    assert engine.start(Start("j", 3, (place(1),), 0), (1, 9)) == Busy()
    assert isinstance(engine.start(Start("k", 1, (place(amount=GIB),), 0), (1, 10)), Refused)
    assert engine.guarded == 2
    assert engine.evict(Evict("j", 2, ((0, 0),), 0.0, True), (1, 20)) == Accepted()
    engine.tick()
    assert engine.evict(Evict("j", 2, ((0, 0),), 0.0, True), (1, 21)) == Gone()
    assert engine.start(Start("j", 2, (place(),), 0), (1, 19)) == Accepted()
    assert engine.jobs["j"].tasks == {}, "a start from before the eviction is void"
    engine.cancel("j")
    assert engine.start(Start("j", 3, (place(),), 0), (1, 22)) == Gone()


def test_the_engine_judges_who_drives_it() -> None:
    stage = one([Node("n1", 2, WHOLE)])
    engine = stage.engine
    engine.submit(Job("j", "a"), 50.0)
    engine.start(Start("j", 1, (place(),), 0), (1, 1))
    (task,) = engine.jobs["j"].tasks.values()
    engine.jobs["j"].tasks[2, 0, 0] = type(task)(type(task.seen)(2, 0, 0, "n1", (1,), WHOLE, "running"), (1, 2), 0.0)
    with pytest.raises(Overlap, match="attempts"):
        engine.judge()
    engine.jobs["j"].tasks.clear()
    engine.jobs["j"].tasks[1, 0, 0] = task
    task.seen = type(task.seen)(1, 0, 0, "n1", (1,), WHOLE + 1, "running")
    with pytest.raises(Overlap, match="GPU 1 of n1"):
        engine.judge()
