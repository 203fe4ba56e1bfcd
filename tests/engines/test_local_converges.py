"""What has begun has an end, whatever the node daemon says, the disk holds, and is killed."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest
from local_stage import GIB, Stage, alive, kill

from gpushare.cluster.engines.local.spool import Key
from gpushare.cluster.engines.seam import Accepted
from gpushare.errors import DaemonUnreachable, Refused, UsageError

UP = "echo up; while :; do sleep 0.05; done"
REFUSALS = [
    Refused("attempt 1 of local/1.0.0 is over, the last was 1", code="stale_attempt"),
    UsageError("there is no process 7383", code="no_such_process"),
    DaemonUnreachable("it is away"),
]


def pid_of(stage: Stage, id: str = "1") -> int:
    return json.loads((stage.own(id) / "running.json").read_text())["pid"]


def refusing(stage: Stage, error: Exception) -> None:
    def place_task(id, body):
        raise error

    stage.daemon.place_task = place_task


def kill_all(stage: Stage) -> None:
    stage.kill_keeper()
    program = pid_of(stage)
    os.kill(program, signal.SIGKILL)
    stage.until(lambda: not alive(program))


@pytest.mark.parametrize("error", REFUSALS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("requeue", [True, False])
def test_keeper_and_program_are_gone_and_the_daemon_takes_nothing(stage, error, requeue) -> None:
    stage.start(stage.record("1", UP, requeue=requeue))
    stage.said("up")
    refusing(stage, error)
    kill_all(stage)
    left = stage.over("1")
    if requeue:
        assert left is None
    else:
        assert (left.phase, left.exit, left.why) == ("done", -9, "it was killed together with its keeper")
    assert stage.daemon.placed == {}


@pytest.mark.parametrize("error", REFUSALS, ids=lambda error: type(error).__name__)
def test_a_program_whose_keeper_was_killed_ends_as_it_would_have_while_the_daemon_takes_nothing(stage, error) -> None:
    """As `gpushare run` reports it."""
    report = f"printf '%s' '{{\"child_exit_code\": 5}}' > '{stage.own()}/report'"
    stage.start(stage.record("1", f"echo up; while [ ! -e go ]; do sleep 0.05; done; echo more; sleep 1; {report}"))
    stage.said("up")
    refusing(stage, error)
    first = stage.keeper()
    stage.kill_keeper()
    stage.until(lambda: stage.task("1") and stage.keeper() != first)
    (stage.directory / "go").touch()
    stage.said("more")
    assert stage.over("1").exit == 5


@pytest.mark.parametrize("error", REFUSALS, ids=lambda error: type(error).__name__)
def test_a_task_that_may_not_start_is_taken_back_all_the_same(stage, error) -> None:
    def place_task(id, body):
        if body["holder"] is not None:
            raise error

    stage.daemon.place_task = place_task
    assert stage.start(stage.record("1", "touch ran")) == Accepted()
    stage.evict("1")
    assert stage.over("1") is None
    assert not (stage.directory / "ran").exists()


def test_a_task_that_the_daemon_takes_no_more_has_failed_to_start_and_says_why(stage) -> None:
    def place_task(id, body):
        stage.daemon.placed[id] = body
        if body["holder"] is not None:
            raise REFUSALS[0]

    stage.daemon.place_task = place_task
    stage.start(stage.record("1", "touch ran"))
    failed = stage.over("1")
    assert failed.phase == "failed"
    assert failed.why == "the node daemon does not take it: attempt 1 of local/1.0.0 is over, the last was 1"
    assert stage.daemon.placed == {} and not (stage.directory / "ran").exists()


@pytest.mark.parametrize("told", [False, True])
def test_keepers_that_cannot_run_leave_no_task_behind(stage, monkeypatch, told) -> None:
    """Its user, whose folder it is, has written nonsense. What runs is killed only if it was told to stop."""
    monkeypatch.setattr("gpushare.cluster.engines.local.keepers.LONGEST_PAUSE", 0.01)
    stage.start(stage.record("1", UP, run={"grace": 0.2}))
    stage.said("up")
    program = pid_of(stage)
    start = json.loads((stage.own().parent / "start.json").read_text())
    (stage.own().parent / "start.json").write_text(json.dumps({**start, "time": "never"}))
    stage.kill_keeper()
    if told:
        stage.evict("1", 0.2)
    else:
        for _ in range(8):
            stage.task("1")
            stage.runner.watch(0.1)
        assert alive(program) and stage.task("1").holds
        kill(program)
    assert stage.over("1") is None
    assert not alive(program)


def test_what_lives_is_held_again_by_each_round(stage) -> None:
    """The daemon was killed and has lost its notes; then it did not answer when the next keeper came."""
    stage.start(stage.record("1", UP))
    stage.said("up")
    ((id, _),) = stage.daemon.placed.items()
    stage.daemon.placed.clear(), stage.daemon.holders.clear()
    stage.runner.nodes()
    assert stage.daemon.holders == {id: [stage.keeper(), pid_of(stage)]}
    stage.runner.nodes()
    assert stage.daemon.holders == {id: [stage.keeper(), pid_of(stage)]}, "it is said once"


def test_one_task_that_the_daemon_refuses_keeps_no_other_from_being_placed(stage) -> None:
    stage.start(stage.record("1", UP)), stage.start(stage.record("2", UP), places=[stage.place(gpus=(1,))])
    stage.said("up"), stage.said("up", "2")
    of_1, of_2 = sorted(stage.daemon.placed)
    stage.daemon.placed.clear(), stage.daemon.holders.clear()
    usual = stage.daemon.place_task

    def place_task(id, body):
        if id == of_1:
            raise REFUSALS[0]
        usual(id, body)

    stage.daemon.place_task = place_task
    stage.runner.nodes()
    assert list(stage.daemon.placed) == [of_2]


def test_the_room_for_an_end_is_taken_before_anything_runs(stage) -> None:
    stage.start(stage.record("1", "exit 3"))
    assert stage.over("1").exit == 3
    end = stage.own() / "end.json"
    assert end.stat().st_size == 4096 and not (stage.own() / "end.room").exists()
    assert json.loads(end.read_text())["exit"] == 3


def test_a_keeper_that_cannot_be_started_disturbs_no_other_task(stage, monkeypatch) -> None:
    stage.start(stage.record("1", UP)), stage.start(stage.record("2", UP), places=[stage.place(gpus=(1,), amount=GIB)])
    stage.said("up"), stage.said("up", "2")
    with monkeypatch.context() as patch:
        patch.setattr("gpushare.cluster.engines.local.keepers.KEEPER", "")
        patch.setattr("gpushare.cluster.engines.local.keepers.sys.executable", "/nowhere/python")
        stage.kill_keeper()
        time.sleep(0.6)
        assert stage.task("1").holds and stage.task("2").holds
    stage.evict("1", 0.0)
    assert stage.over("1") is None
    assert stage.runner._tasks.keys() == {Key("2", 1, 0, 0)}
