"""What the local engine promises about tasks: starts, evictions, ends, and what a crash of any part leaves."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from local_stage import GIB, NODE, Stage, alive, kill

from gpushare.cluster.engines.local import force
from gpushare.cluster.engines.local.keepers import Keepers
from gpushare.cluster.engines.local.runner import Local
from gpushare.cluster.engines.local.spool import Folder, Key, boot_id
from gpushare.cluster.engines.runner import Context
from gpushare.cluster.engines.seam import Accepted, Busy, Deposed, Evict, Gone, Refused, Start, Unanswered
from gpushare.cluster.model import Place, Tasks
from gpushare.errors import DaemonUnreachable, NotPermitted, UsageError
from gpushare.errors import Refused as DaemonRefused

UP = "echo up; while :; do sleep 0.05; done"
STUBBORN = f"trap '' TERM; {UP}"


def pid_of(stage: Stage, id: str = "1") -> int:
    """Of the task's first process."""
    return json.loads((stage.own(id) / "running.json").read_text())["pid"]


# ---- start and end -----------------------------------------------------------------------------------


def test_a_task_starts_as_it_was_submitted_and_its_exit_status_is_known(stage) -> None:
    where = stage.directory / "work"
    where.mkdir()
    run = {"cwd": str(where), "umask": 0o027, "rlimits": {"RLIMIT_NOFILE": [200, 300]}}
    run["env"] = {**stage.environ, "COLOUR": "blue", "ODD": "\udcff\n"}
    script = 'echo "$COLOUR"; pwd; umask; ulimit -Sn; ulimit -Hn; printf %s "$ODD"; echo err >&2; exit 7'
    assert stage.start(stage.record("1", script, run=run)) == Accepted()
    done = stage.over("1")
    assert (done.phase, done.exit, done.why) == ("done", 7, "")
    assert (done.attempt, done.node, done.gpus, done.amount) == (1, "here", (0,), GIB)
    lines = stage.log().read_bytes().split(b"\n")
    assert lines == [b"blue", str(where).encode(), b"0027", b"200", b"300", b"\xff", b"err", b""]
    assert stat.S_IMODE(stage.log().stat().st_mode) == 0o600
    stage.runner.collect("1")
    assert stage.task("1") is None
    assert list((stage.queue / "tasks").iterdir()) == []


def test_it_runs_apart_from_the_service(stage) -> None:
    stage.start(stage.record("1", "cat; ps -o sid= -p $$ >&2 || true; echo up; sleep 60"))
    stage.said("up")  # `cat` has ended: there is nothing to read
    pid = pid_of(stage)
    assert os.getsid(pid) == pid
    assert os.getsid(stage.keeper()) == stage.keeper()
    open_ones = {str(one.readlink()) for one in Path(f"/proc/{pid}/fd").iterdir()}
    assert not any(name.endswith(("/lock", "start.json", "keeper.log")) for name in open_ones)


def test_an_end_by_a_signal_is_told_as_such(stage) -> None:
    stage.start(stage.record("1", "kill -9 $PPID; exit 0"))
    done = stage.over("1")
    assert (done.phase, done.exit, done.why) == ("done", -9, "signal 9")


def test_phases_are_starting_then_running_once_its_program_was_seen(stage) -> None:
    stage.start(stage.record("1", UP))
    assert stage.task("1").phase == "starting"
    stage.said("up")
    assert stage.task("1").phase == "starting", "nothing has said that the program runs"
    (stage.own() / "running").write_text("{}")
    assert stage.task("1").phase == "running"


def test_a_directory_that_is_gone_is_a_start_that_failed_and_says_which(stage) -> None:
    stage.start(stage.record("1", "true", run={"cwd": "/nowhere/at all"}))
    failed = stage.over("1")
    assert failed.phase == "failed"
    assert failed.why == "cannot enter /nowhere/at all: No such file or directory"
    assert not failed.node_to_blame


def test_a_log_that_cannot_be_written_is_a_start_that_failed_and_says_which(stage) -> None:
    path = stage.directory / "file"
    path.write_text("")
    stage.start(stage.record("1", "touch ran", run={"output": f"{path}/1.log"}))
    failed = stage.over("1")
    assert failed.phase == "failed"
    assert failed.why.startswith(f"cannot write the log {path}/1.log: ")
    assert not (stage.directory / "ran").exists()


def test_a_log_is_never_written_through_a_link(stage) -> None:
    target, link = stage.directory / "precious", stage.directory / "out.log"
    target.write_text("precious")
    link.symlink_to(target)
    stage.start(stage.record("1", "echo spoilt", run={"output": str(link)}))
    assert stage.over("1").phase == "failed"
    assert target.read_text() == "precious"


def test_the_names_of_logs(stage) -> None:
    output = str(stage.directory / "sub" / "%j-%a.log")
    record = stage.record("9_3", "echo one", run={"output": output}, array="9", index=3)
    stage.start(record)
    stage.over("9_3")
    assert (stage.directory / "sub" / "9_3-3.log").read_text() == "one\n"
    two = stage.record("5", "echo two", run={"output": output}, tasks=(Tasks(least=2),))
    stage.start(two, places=[stage.place(0), stage.place(1, (1,))])
    stage.until(lambda: all(not one.holds for one in stage.runner.tasks()["5"]))
    assert sorted(path.name for path in (stage.directory / "sub").iterdir())[:2] == ["5-0.log.0-0", "5-0.log.0-1"]


def test_a_second_attempt_writes_on_into_the_same_log(stage) -> None:
    stage.start(stage.record("1", "echo first; sleep 60"))
    stage.said("first")
    stage.evict("1", 0.0)
    assert stage.over("1") is None
    stage.start(stage.record("1", "echo second"), attempt=2)
    assert stage.over("1").attempt == 2
    lines = stage.output().splitlines()
    assert lines[0] == "first" and lines[-2:] == ["--- attempt 2 ---", "second"]


def test_the_time_limit_stops_it_and_says_so(stage) -> None:
    stage.start(stage.record("1", f"trap 'echo asked; exit 0' TERM; {UP}", run={"time": 1.0}))
    done = stage.over("1")
    assert (done.phase, done.exit, done.why) == ("done", -signal.SIGTERM, "stopped after its time limit of 1 s")
    assert "asked" in stage.output()


@pytest.mark.parametrize(
    ("killed", "requeue", "why"),
    [
        ("breach", True, "stopped: it used more memory than its limit"),
        ("reclaim", False, "stopped to return borrowed memory"),
        ("reclaim", True, None),
        ("suspend_stuck", False, "stopped: it could not be brought back after a suspension"),
        ("suspend_stuck", True, None),
        (None, False, "stopped to return borrowed memory"),
    ],
)
def test_what_the_node_daemon_kills_is_told_why_or_waits_again(stage, killed, requeue, why) -> None:
    """As the report of `gpushare run` has it. What broke its limit does not run again."""
    report = json.dumps({"reclaimed": True, "child_signal": 9, "outcome": {"killed": {"code": killed}}})
    script = f"printf '%s' '{report}' > '{stage.own()}/report'; kill -9 $$"
    stage.start(stage.record("1", script, requeue=requeue))
    done = stage.over("1")
    assert (done and (done.phase, done.exit, done.why)) == (why and ("done", -9, why))


def test_what_it_leaves_behind_is_stopped_when_it_ends(stage) -> None:
    stage.start(stage.record("1", "setsid sleep 60 & echo $!; setsid sh -c 'sleep 61 &' ; exit 0", run={"grace": 0.2}))
    done = stage.over("1")
    assert (done.phase, done.exit) == ("done", 0)
    assert not alive(int(stage.output().split()[0]))
    assert not _runs("sleep\x0061", stage)


def _runs(words: str, stage: Stage) -> list[int]:
    """Processes with these words whose directory is the stage's."""
    found = []
    for one in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            mine = one.name.isdigit() and (one / "cwd").readlink() == stage.directory
            if mine and words in (one / "cmdline").read_text():
                found.append(int(one.name))
    return found


# ---- eviction ----------------------------------------------------------------------------------------


def test_an_evicted_task_is_asked_once_and_has_its_grace(stage) -> None:
    script = "trap 'echo asked; sleep 0.5; echo saved; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    stage.start(stage.record("1", script))
    stage.said("up")
    assert stage.evict("1") == Accepted()
    assert stage.task("1").phase == "stopping"
    assert stage.over("1") is None, "evicted is never done"
    lines = stage.output().splitlines()
    assert lines[0] == "up" and lines.count("asked") == 1 and lines[-1] == "saved"


def test_its_own_grace_counts_and_then_everything_is_killed(stage) -> None:
    stage.start(
        stage.record(
            "1", f"trap '' TERM; (setsid sh -c \"trap '' TERM; echo $$; sleep 62\" &); {UP}", run={"grace": 0.5}
        )
    )
    stage.said("up")
    stage.until(lambda: len(_runs("sleep\x0062", stage)) >= 1)
    began = time.monotonic()
    stage.evict("1", 1000.0)
    assert stage.over("1") is None
    assert time.monotonic() - began >= 0.5
    assert not _runs("sleep\x0062", stage)


def test_grace_0_kills_at_once_also_what_has_more_grace(stage) -> None:
    stage.start(stage.record("1", STUBBORN))
    stage.said("up")
    stage.evict("1")
    stage.evict("1", 0.0)
    stage.evict("1", 1000.0)  # a longer one changes nothing
    assert stage.over("1") is None


def test_an_eviction_before_it_runs_leaves_nothing(stage) -> None:
    stage.start(stage.record("1", "sleep 0.2; touch ran; sleep 60"))
    stage.evict("1", 0.0)
    assert stage.over("1") is None
    time.sleep(0.4)
    assert not (stage.directory / "ran").exists()


def test_an_eviction_of_nothing_is_gone_and_of_a_record_removes_it(stage) -> None:
    assert stage.evict("1") == Gone()
    stage.start(stage.record("2", "exit 4"))
    stage.over("2")
    assert stage.evict("2") == Accepted()
    assert stage.task("2") is None


# ---- order of commands -------------------------------------------------------------------------------


def test_two_starts_are_one_run(stage) -> None:
    record = stage.record("1", "echo run; sleep 60")
    token = stage.token()
    for _ in range(2):
        assert stage.start(record, token=token) == Accepted()
    assert stage.start(record) == Accepted()
    stage.said("run")
    time.sleep(0.3)
    assert stage.output() == "run\n"


def test_a_late_start_is_void_after_an_eviction(stage) -> None:
    late = stage.token()
    record = stage.record("1", UP)
    stage.start(record)
    stage.evict("1", 0.0)
    stage.over("1")
    assert stage.start(record, token=late) == Accepted()
    assert stage.task("1") is None


def test_a_late_eviction_is_void_after_a_start(stage) -> None:
    late = stage.token()
    stage.start(stage.record("1", UP))
    assert stage.evict("1", token=late) == Gone()
    assert stage.task("1").phase == "starting"


def test_what_an_earlier_leader_says_is_not_heard(stage) -> None:
    old = stage.token()
    stage.crash()
    stage.start(stage.record("1", UP))
    with pytest.raises(Deposed):
        stage.start(stage.record("2", UP), token=old)
    with pytest.raises(Deposed):
        stage.evict("1", token=old)
    assert stage.task("2") is None


def test_an_attempt_waits_for_the_one_before_and_never_goes_back(stage) -> None:
    record = stage.record("1", STUBBORN)
    stage.start(record, attempt=2)
    assert stage.start(record, attempt=3) == Busy()
    assert stage.start(record, attempt=1) == Refused("a later attempt is known")
    stage.evict("1", 0.0, attempt=2)
    stage.over("1")
    assert stage.start(record, attempt=3) == Accepted()


def test_what_runs_is_not_started_elsewhere_and_takes_another_amount(stage) -> None:
    record = stage.record("1", UP)
    stage.start(record)
    assert stage.start(record, places=[stage.place(gpus=(1,))]) == Refused("it runs elsewhere")
    ((id, first),) = stage.daemon.placed.items()
    assert (first["gpus"], first["request"]) == (["GPU-a"], str(GIB))
    assert stage.start(record, places=[stage.place(amount=3 * GIB)]) == Accepted()
    changed = stage.daemon.placed[id]
    assert (changed["request"], changed["limit"]) == (str(3 * GIB), str(3 * GIB))
    assert changed["attempt"] == first["attempt"], "it is the same placement"
    stage.runner.nodes()
    assert stage.daemon.ours == {first["job"]}
    stage.crash()
    assert stage.task("1").amount == 3 * GIB


def test_what_does_not_fit_or_is_nowhere_is_refused_and_the_node_is_to_blame(stage) -> None:
    stage.start(stage.record("1", UP), places=[stage.place(amount=5 * GIB)])
    words = "it does not fit beside the tasks that run there"
    assert stage.start(stage.record("2", UP), places=[stage.place(amount=4 * GIB)]) == Refused(words, "here")
    assert stage.start(stage.record("2", UP), places=[stage.place(amount=9 * GIB, gpus=(1,))]) == Refused(words, "here")
    assert isinstance(stage.start(stage.record("2", UP), places=[stage.place(gpus=(2,))]), Refused)
    assert isinstance(stage.start(stage.record("2", UP), places=[stage.place(node="there")]), Refused)
    assert stage.start(stage.record("2", UP), places=[stage.place(amount=3 * GIB)]) == Accepted()


# ---- the node daemon is told ---------------------------------------------------------------------------


def test_a_task_is_placed_as_long_as_it_lasts(stage) -> None:
    stage.start(stage.record("1", UP, tasks=(Tasks(limit=500_000),)), places=[stage.place(gpus=(1,))])
    ((id, said),) = stage.daemon.placed.items()
    assert id.startswith("local-") and id.endswith("/1.0.0")
    assert (said["uid"], said["gpus"], said["request"]) == (os.getuid(), ["GPU-b"], str(GIB))
    assert (said["limit"], said["session"]) == (str(4 * GIB), stage.keeper())
    stage.evict("1", 0.0)
    stage.over("1")
    assert stage.daemon.placed == {}
    stage.start(stage.record("1", UP), attempt=2)
    assert list(stage.daemon.placed) == [id] and stage.daemon.placed[id]["attempt"] > said["attempt"]


def test_a_task_that_was_stopped_starts_again_in_the_same_attempt_of_its_job(stage) -> None:
    """It is a task of an elastic job that was shrunk and grows again; the service may have started again meanwhile."""
    record = stage.record("1", UP)
    for times in range(3):
        assert stage.start(record) == Accepted()
        stage.until(lambda before=times: stage.output().count("up") > before)
        stage.evict("1", 0.0)
        assert stage.over("1") is None
        if times == 1:
            stage.crash()


def test_a_task_that_an_earlier_version_has_started_keeps_its_placement(stage) -> None:
    stage.start(stage.record("1", UP))
    stage.said("up")
    path = stage.own().parent / "start.json"
    path.write_text(
        json.dumps({name: value for name, value in json.loads(path.read_text()).items() if name != "placing"})
    )
    ((id, said),) = stage.daemon.placed.items()
    stage.daemon.placed[id] = {**said, "attempt": 1}
    stage.crash()
    stage.runner.nodes()
    assert [(name, one["attempt"]) for name, one in stage.daemon.placed.items()] == [(id, 1)]
    stage.evict("1", 0.0)
    assert stage.over("1") is None and stage.daemon.placed == {}
    assert stage.start(stage.record("1", UP), attempt=2) == Accepted()


@pytest.mark.parametrize("code", ["stale_attempt", "attempt_runs", "placed", "bad_request"])
def test_a_refusal_of_this_task_alone_does_not_blame_the_node(stage, monkeypatch, code) -> None:
    monkeypatch.setattr("gpushare.cluster.engines.local.placing.WAIT_FOR_ROOM", 0.0)
    refusing(stage, DaemonRefused("not this one", code=code))
    assert stage.start(stage.record("1", UP)) == Refused("not this one", None)


def refusing(stage, error) -> None:
    def place_task(id, body):
        raise error

    stage.daemon.place_task = place_task


def test_memory_that_is_just_being_given_back_is_waited_for(stage, monkeypatch) -> None:
    refusing(stage, DaemonRefused("no room", code="not_admitted"))
    assert stage.start(stage.record("1", UP)) == Busy()
    monkeypatch.setattr("gpushare.cluster.engines.local.placing.WAIT_FOR_ROOM", 0.0)
    assert stage.start(stage.record("1", UP)) == Refused("no room", "here")
    assert stage.task("1") is None and not (stage.queue / "tasks" / "1.1.0.0").exists()


def test_a_daemon_that_does_not_answer_starts_nothing(stage) -> None:
    refusing(stage, DaemonUnreachable("it is away"))
    with pytest.raises(Unanswered, match="it is away"):
        stage.start(stage.record("1", UP))
    assert stage.task("1") is None


def test_a_daemon_of_others_takes_no_placements_and_the_wrapper_registers(stage) -> None:
    refusing(stage, NotPermitted("only engines", code="no_engine"))
    assert stage.start(stage.record("1", UP)) == Accepted()
    stage.said("up")
    assert not stage.runner.placing.able


def test_after_a_crash_what_lives_is_placed_and_nothing_else(stage) -> None:
    stage.start(stage.record("1", UP))
    stage.start(stage.record("2", UP), places=[stage.place(gpus=(1,))])
    stage.said("up"), stage.said("up", "2")
    of_1, of_2 = sorted(stage.daemon.placed)
    stage.daemon.placed |= {f"{of_1.split('/')[0]}/9.0.0": {"attempt": 4}, "local-other/9.0.0": {"attempt": 4}}
    del stage.daemon.placed[of_1]
    stage.crash()
    stage.runner.nodes()
    assert set(stage.daemon.placed) == {of_1, of_2, "local-other/9.0.0"}


def test_the_program_of_a_keeper_that_was_killed_stays_in_its_placement(stage) -> None:
    stage.start(stage.record("1", UP))
    stage.said("up")
    said = []
    stage.daemon.place_task = lambda id, body: said.append(body["session"])
    first = stage.keeper()
    stage.kill_keeper()
    stage.until(lambda: stage.task("1") and stage.keeper() != first)
    assert said == [stage.keeper(), pid_of(stage)]


# ---- what runs outlives the service and its keeper ---------------------------------------------------


def test_the_service_finds_what_runs_again(stage) -> None:
    stage.start(stage.record("1", "echo up; while [ ! -e go ]; do sleep 0.05; done; exit 5"))
    stage.said("up")
    pid = pid_of(stage)
    stage.crash()
    assert stage.task("1").holds
    assert pid_of(stage) == pid and alive(pid)
    (stage.directory / "go").touch()
    assert stage.over("1").exit == 5
    assert stage.output() == "up\n"


def test_it_ends_while_no_service_runs_and_the_next_one_knows_how(stage) -> None:
    stage.start(stage.record("1", "exit 6"))
    keeper = stage.keeper()
    stage.runner.close()
    os.waitpid(keeper, 0)
    stage.open()
    assert (stage.task("1").phase, stage.task("1").exit) == ("done", 6)


def test_the_service_was_killed_before_it_started_the_keeper(stage, monkeypatch) -> None:
    class Killed(Exception): ...

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Keepers, "_start", killed)
        with pytest.raises(Killed):
            stage.start(stage.record("1", "echo ran"))
    stage.crash()
    assert stage.over("1").exit == 0
    assert stage.output() == "ran\n"


def test_the_service_was_killed_between_keeper_and_permission(stage, monkeypatch) -> None:
    """A keeper that is not told that its limits are set does nothing; the next service starts another one."""
    with monkeypatch.context() as patch:
        patch.setattr("gpushare.cluster.engines.local.keepers.os.write", lambda *_: 0)
        stage.start(stage.record("1", "echo ran"))
    assert stage.over("1").exit == 0
    assert stage.output() == "ran\n"


def test_told_to_stop_before_a_crash_is_stopped_after_it(stage) -> None:
    stage.start(stage.record("1", STUBBORN, run={"grace": 1.0}))
    stage.said("up")
    stage.evict("1")
    stage.kill_keeper()
    stage.crash()
    assert stage.task("1").phase == "stopping"
    assert stage.over("1") is None


@pytest.mark.parametrize("how", ["not noted", "noted and never run"])
def test_the_keeper_was_killed_before_the_program_ran_so_it_runs_once(stage, how) -> None:
    folder = _by_hand(stage, "echo ran")
    if how == "noted and never run":
        (folder.own / "running.json").write_text(json.dumps({"pid": 2**22 - 1, "start": 1, "since": 0.0}))
    stage.crash()
    assert stage.over("1").exit == 0
    assert stage.output() == "ran\n"


def _by_hand(stage: Stage, script: str) -> Folder:
    """The folder of a task whose keeper never came."""
    record, key = stage.record("1", script), Key("1", 1, 0, 0)
    start = stage.runner._start_of(record, key, stage.place(), ("GPU-a",), (stage.term, 1))
    return stage.runner._spool.make(key, start, None)


def test_the_keeper_is_killed_and_another_one_goes_on(stage) -> None:
    stage.start(stage.record("1", "echo up; while [ ! -e go ]; do sleep 0.05; done; echo more; sleep 60"))
    stage.said("up")
    pid = pid_of(stage)
    stage.kill_keeper()
    (stage.directory / "go").touch()
    stage.said("more")
    assert pid_of(stage) == pid and alive(pid)
    stage.evict("1")
    assert stage.over("1") is None
    assert not alive(pid)


@pytest.mark.parametrize("requeue", [True, False])
def test_keeper_and_program_are_killed_so_it_is_lost_with_all_that_it_left(stage, requeue) -> None:
    script = "setsid sh -c \"trap '' TERM; sleep 63\" & echo up; sleep 60"
    stage.start(stage.record("1", script, requeue=requeue, run={"grace": 0.2}))
    stage.until(lambda: _runs("sleep\x0063", stage))
    stage.kill_keeper()
    os.kill(pid_of(stage), signal.SIGKILL)
    left = stage.over("1")
    assert not _runs("sleep\x0063", stage)
    if requeue:
        assert left is None
    else:
        assert (left.phase, left.exit, left.why) == ("done", -9, "it was killed together with its keeper")


def test_a_keeper_that_is_told_to_stop_stops_its_job(stage) -> None:
    """The machine shuts down."""
    stage.start(stage.record("1", f"trap 'echo asked; exit 0' TERM; {UP}"))
    stage.said("up")
    os.kill(stage.keeper(), signal.SIGTERM)
    assert stage.over("1") is None
    assert "asked" in stage.output()


@pytest.mark.parametrize("again", [False, True])
def test_a_program_that_stops_its_keeper_is_killed_all_the_same(stage, monkeypatch, again) -> None:
    """Its keeper runs as the same user. `again`: another service was started meanwhile."""
    monkeypatch.setattr("gpushare.cluster.engines.local.force.LATE", 0.5)
    escape = "setsid sh -c \"trap '' TERM; sleep 64\" &"
    stage.start(stage.record("1", f"{escape} {STUBBORN}", run={"grace": 0.2}))
    stage.said("up")
    stage.until(lambda: _runs("sleep\x0064", stage))
    keeper, program = stage.keeper(), pid_of(stage)
    os.kill(keeper, signal.SIGSTOP)
    assert stage.evict("1", grace=5.0) == Accepted()
    if again:
        stage.crash()
    assert stage.over("1") is None
    assert not alive(keeper) and not alive(program) and not _runs("sleep\x0064", stage)


def test_a_time_limit_holds_although_the_keeper_was_stopped(stage, monkeypatch) -> None:
    monkeypatch.setattr("gpushare.cluster.engines.local.force.LATE", 0.5)
    stage.start(stage.record("1", STUBBORN, run={"time": 1.0, "grace": 0.2}))
    stage.said("up")
    (stage.own() / "running").write_text("{}")
    assert stage.task("1").phase == "running"
    os.kill(stage.keeper(), signal.SIGSTOP)
    done = stage.over("1")
    assert (done.phase, done.why) == ("done", "stopped after its time limit of 1 s")


def test_what_ended_just_when_it_was_told_to_stop_goes_with_its_eviction(stage) -> None:
    stage.start(stage.record("1", UP))
    stage.said("up")
    os.kill(stage.keeper(), signal.SIGSTOP)
    stage.evict("1", grace=20.0)
    program = pid_of(stage)
    os.kill(program, signal.SIGKILL)
    stage.until(lambda: not alive(program))
    os.kill(stage.keeper(), signal.SIGCONT)
    assert stage.over("1").exit == -9
    assert stage.evict("1") == Accepted() and stage.task("1") is None


def test_a_keeper_that_cannot_run_is_a_start_that_failed(stage, monkeypatch) -> None:
    monkeypatch.setattr("gpushare.cluster.engines.local.keepers.LONGEST_PAUSE", 0.01)
    folder = _by_hand(stage, "echo ran")
    (folder.path / "start.json").write_text(json.dumps({k: v for k, v in folder.start().items() if k != "log"}))
    stage.crash()
    failed = stage.over("1")
    assert failed.phase == "failed"
    assert failed.why == "its keeper cannot run: KeyError: 'log'"
    assert stage.evict("1") == Accepted() and stage.task("1") is None


def test_after_a_start_of_the_machine_nothing_of_it_runs(stage) -> None:
    folder = _by_hand(stage, "touch ran")
    folder.rewrite_start({**folder.start(), "boot": "another"})
    stage.crash()
    assert stage.task("1") is None and not folder.path.exists()
    assert boot_id() != "another"


def test_what_ended_before_the_machine_was_started_again_is_known(stage) -> None:
    folder = _by_hand(stage, "true")
    folder.rewrite_start({**folder.start(), "boot": "another"})
    (folder.own / "end.json").write_text(json.dumps({"kind": "done", "exit": 3, "why": ""}))
    stage.crash()
    assert stage.task("1").exit == 3


def test_a_folder_that_never_became_whole_is_removed(stage) -> None:
    (stage.queue / "tasks" / ".1.1.0.0").mkdir()
    stage.crash()
    assert list((stage.queue / "tasks").iterdir()) == []


def test_two_services_never_run_one_directory(stage) -> None:
    with pytest.raises(UsageError, match="another service runs the tasks"):
        type(stage.runner)(Context({}, time.time, stage.queue, (), False))


def test_a_driver_that_there_is_not_is_refused_before_anything_starts(tmp_path) -> None:
    with pytest.raises(UsageError, match=r"\[local\]: there is no driver 'amd'") as refused:
        Local(Context({"driver": "amd"}, time.time, tmp_path, (), False))
    assert refused.value.hint == "known are auto, nvidia, sim"


def test_a_keeper_sleeps_while_its_program_runs(stage) -> None:
    """Also after it was woken: each keeper is one more process on the node."""
    stage.start(stage.record("1", f"(sleep 0.01 &); {UP}"))
    stage.said("up")
    os.kill(stage.keeper(), signal.SIGUSR1)
    time.sleep(0.3)
    before = _processor_seconds(stage.keeper())
    time.sleep(1.5)
    assert _processor_seconds(stage.keeper()) - before < 0.1


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# ---- waiting -----------------------------------------------------------------------------------------


def test_watch_ends_when_a_task_does_and_when_it_is_woken(stage) -> None:
    stage.start(stage.record("1", "while [ ! -e go ]; do sleep 0.05; done"))
    stage.until(lambda: stage.own().joinpath("begun").exists())
    (stage.own() / "running").write_text("{}")
    assert stage.task("1").phase == "running"
    (stage.directory / "go").touch()
    began = time.monotonic()
    stage.runner.watch(60.0)
    assert time.monotonic() - began < 30.0
    assert stage.over("1").exit == 0
    stage.runner.wake()
    stage.runner.watch(60.0)
    assert time.monotonic() - began < 45.0


def test_a_service_that_ends_leaves_its_task_to_the_next_and_holds_it_no_longer(stage) -> None:
    stage.start(stage.record("1", UP))
    stage.said("up")
    (stage.own() / "running").write_text("{}")
    assert stage.task("1").phase == "running"
    held, keeper = _held_processes(), stage.keeper()
    assert keeper in held
    stage.runner.close()
    left = _held_processes()
    stage.open()
    assert alive(keeper)
    assert left == [one for one in held if one != keeper]


def _held_processes() -> list[int]:
    """Of which this process has a descriptor (pidfd_open)."""
    found = []
    for path in Path("/proc/self/fdinfo").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of the listing
            found += [int(line.split()[1]) for line in path.read_text().splitlines() if line.startswith("Pid:")]
    return sorted(found)


def test_a_grace_has_a_bound_for_all_but_root(stage) -> None:
    stage.runner.close()
    stage.runner = type(stage.runner)(Context({}, time.time, stage.queue, (), True, 600.0), stage.environ)
    stage.runner.check(stage.record("1", UP, uid=65534, run={"grace": 600.0}))
    stage.runner.check(stage.record("1", UP, uid=0, run={"grace": 601.0}))
    with pytest.raises(UsageError, match="a grace of 10m1s is more than 10m, the most here"):
        stage.runner.check(stage.record("1", UP, uid=65534, run={"grace": 601.0}))


def test_a_service_that_took_a_task_over_ends_and_leaves_it_to_the_next(stage) -> None:
    stage.start(stage.record("1", "echo up; sleep 60"))
    stage.said("up")
    for _ in range(2):
        stage.runner.close()
        stage.open()
        assert stage.task("1").holds


def test_nobody_else_reads_what_is_kept_of_a_task_whatever_the_umask_of_the_service(stage) -> None:
    before = os.umask(0)
    try:
        stage.start(stage.record("1", "echo up; sleep 60"))
        stage.said("up")
    finally:
        os.umask(before)
    kept = {path.name: path.stat().st_mode & 0o077 for path in stage.own().parent.iterdir() if path.is_file()}
    assert {"start.json", "keeper.log", "lock"} <= set(kept)
    assert not any(kept.values()), kept
    assert stage.own().stat().st_mode & 0o077 == 0


# ---- as other users ----------------------------------------------------------------------------------

NOBODY = 65534


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start programs as another user")
def test_the_service_itself_kills_what_is_of_the_tasks_user_and_leaves_processes_of_others_alone() -> None:
    """Below a keeper that does not act may be a program that runs as somebody else."""
    text = f"""
import subprocess, sys
below = [subprocess.Popen(["sleep", "1000"], user=user) for user in ({os.getuid()}, {NOBODY})]
print(*(one.pid for one in below), flush=True)
sys.stdin.read()
"""
    pipe = subprocess.PIPE
    keeper = subprocess.Popen([sys.executable, "-c", text], stdin=pipe, stdout=pipe, text=True)
    assert keeper.stdout is not None
    ours, others = map(int, keeper.stdout.readline().split())
    try:
        said = force.noted(keeper.pid)
        assert said is not None and not force.kill({**said, "start": said["start"] + 1}, os.getuid())
        assert keeper.poll() is None, "that is another process, which has its number"
        assert force.kill(said, os.getuid())
        assert keeper.wait(30) == -signal.SIGKILL
        deadline = time.monotonic() + 30.0
        while alive(ours):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert alive(others)
    finally:
        for pid in (ours, others):
            kill(pid)
        keeper.communicate()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start programs as another user")
def test_a_system_service_starts_it_as_its_user_and_never_writes_as_root(monkeypatch) -> None:
    python = Path("/usr/bin/python3")
    if not python.exists():
        pytest.skip(f"other users need a Python that they may run: there is no {python}")
    monkeypatch.setattr("gpushare.cluster.engines.local.keepers.sys.executable", str(python))
    with tempfile.TemporaryDirectory(prefix="gpushare-local-") as directory:
        where = Path(directory)
        where.chmod(0o755)
        home = where / "home"
        home.mkdir()
        os.chown(home, NOBODY, NOBODY)
        environ = {"PATH": os.environ["PATH"], "HOME": str(home), "XDG_STATE_HOME": str(home)}
        stage = Stage(where, system=True, environ=environ)
        try:
            _as_nobody(stage, home)
        finally:
            stage.clear()


def _as_nobody(stage: Stage, home: Path) -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    run = {"cwd": str(home), "umask": 0o077, "rlimits": {"RLIMIT_NOFILE": [64, most]}}
    script = 'id -u; id -g; id -G; ulimit -Hn; echo "$HOME $LOGNAME"; touch made; echo up; sleep 60'
    record = stage.record("1", script, run=run, uid=NOBODY, gid=NOBODY)
    stage.runner.check(record)
    assert stage.start(record) == Accepted()
    lines = stage.said("up").splitlines()
    assert lines[:2] == [str(NOBODY)] * 2 and "0" not in lines[2].split()
    assert lines[3] == str(most)
    assert lines[4].startswith(f"{home} ") and not lines[4].endswith(" root")
    assert Path(f"/proc/{stage.keeper()}").stat().st_uid == NOBODY
    for path in (home / "made", stage.log(), stage.own()):
        assert (path.stat().st_uid, path.stat().st_mode & 0o077) == (NOBODY, 0), path
    assert (stage.own().parent / "start.json").stat().st_mode & 0o077 == 0
    stage.evict("1")
    assert stage.over("1") is None
    with pytest.raises(UsageError, match="knows no user 4000000001"):
        stage.runner.check(stage.record("2", "true", uid=4000000001))


# ---- what users put into their folder ----------------------------------------------------------------


@pytest.mark.parametrize("trap", ["link", "pipe", "huge", "list", "no kind", "directory"])
def test_what_a_user_puts_in_place_of_the_end_is_not_believed(stage, trap) -> None:
    """And never followed, never waited for, never read without a bound."""
    folder = _by_hand(stage, "exit 2")
    end = folder.own / "end.json"
    outside = stage.directory / "outside"
    outside.write_text(json.dumps({"kind": "done", "exit": 0, "why": ""}))
    match trap:
        case "link":
            end.symlink_to(outside)
        case "pipe":
            os.mkfifo(end)
        case "huge":
            end.write_text(json.dumps({"kind": "done", "exit": 0, "why": "x" * 300_000}))
        case "list":
            end.write_text("[1]")
        case "no kind":
            end.write_text('{"kind": 3}')
        case "directory":
            end.mkdir()
    assert folder.end() is None
    folder.remove()


def test_keys_and_the_names_of_their_folders() -> None:
    for key in (Key("17", 1, 0, 0), Key("17_3", 12, 2, 40), Key("a.b", 1, 2, 3)):
        assert Key.of(key.name) == key
    for name in ("lock", "1.2.3", ".1.1.0", "1.1.0.x", "1.-1.0.0"):
        assert Key.of(name) is None, name


def test_nothing_here_is_about_a_job_that_is_not_there(stage) -> None:
    stage.runner.collect("nothing")
    assert stage.runner.evict(Evict("nothing", 1, ((0, 0),), 0.0, True), stage.token()) == Gone()
    assert stage.runner.tasks() == {}
    assert isinstance(stage.start(stage.record("1", UP), places=[Place(0, 0, "there", (0,), 1, 0)]), Refused)
    assert Start("1", 1, (), 0).places == () and NODE.gpus == 2
