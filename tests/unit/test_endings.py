"""How a program ended, and the report of that: a file, or a pipe that somebody reads."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from pathlib import Path

import pytest

from gpushare import exit_message, killed, launch
from gpushare.cluster.engines.local.spool import Folder
from gpushare.cluster.engines.local.task_state import Task, may_start_again
from gpushare.exit_message import Ending, write_report


def killed_of(code: str = "reclaim"):
    return {
        "code": code,
        "owner": "train",
        "owner_user": "ada",
        "time": 0.0,
        "grace": 0.0,
        "asked": 2**30,
        "got": 0,
        "usage": 2**31,
        "request": 2**30,
        "loan": 2**30,
        "reason": "no room",
    }


def outcome(killed=None):
    return {"killed": killed, "peak": {"GPU-a": 5}}


def test_the_status_of_a_program_and_of_one_that_was_stopped():
    plain, exited, by_signal = Ending(0, "p"), Ending(3 << 8, "p"), Ending(signal.SIGTERM, "p")
    assert [(one.exit_code, one.child_exit_code, one.signal) for one in (plain, exited, by_signal)] == [
        (0, 0, None),
        (3, 3, None),
        (128 + signal.SIGTERM, None, signal.SIGTERM),
    ]
    assert not Ending(0, "p", outcome()).reclaimed
    for stopped in (Ending(0, "p", outcome(killed_of())), Ending(signal.SIGKILL, "p", killed_notice="x")):
        assert stopped.reclaimed and stopped.exit_code == 137, "as a shell tells SIGKILL"


@pytest.mark.parametrize(
    ("ending", "says"),
    [
        (Ending(0, "p", outcome()), None),
        (Ending(signal.SIGTERM, "p"), None),
        (Ending(signal.SIGKILL, "p", stopped=True), None),
        (Ending(signal.SIGKILL, "p"), "p was killed with SIGKILL, not by the daemon"),
        (Ending(signal.SIGKILL, "p", outcome()), "p was killed with SIGKILL, not by the daemon"),
        (Ending(signal.SIGKILL, "p", by_kernel=True), "p was killed by the kernel: host memory ran out"),
        (Ending(0, "p", killed_notice="gave it back\nhint: x"), "gave it back"),
        (Ending(0, "p", killed_notice=""), "no reason was given"),
        (Ending(0, "p", outcome(killed_of())), "p was stopped to return borrowed memory"),
        (Ending(0, "p", outcome(killed_of("breach"))), "it used more memory than its limit"),
        (Ending(0, "p", outcome(killed_of("suspend_stuck"))), "it could not be brought back after a suspension"),
    ],
)
def test_what_is_said_of_an_ending(ending, says):
    said = exit_message.exit_message(ending)
    assert said is None if says is None else says in said


@pytest.mark.parametrize("reason", ["no room", ""])
@pytest.mark.parametrize("grace", [0.0, 2.0])
def test_all_that_is_known_of_a_reclaim_is_said(reason, grace):
    said = exit_message.exit_message(Ending(0, "p", outcome({**killed_of(), "reason": reason, "grace": grace})))
    when = time.strftime("%H:%M:%S", time.localtime(0))
    told = dict(re.split(r":? +", line.strip(), maxsplit=1) for line in said.splitlines()[1:])
    assert told.pop("owed") == f"1.0 GiB to train (ada) at {when}" + (", grace 2 s" if grace else "")
    assert told.pop("hint").startswith("ask for more with --request, or " + ("free" if grace else "have notice"))
    assert told.pop("returned").split() == ["0", "B"]
    assert told.pop("used") == "2.0 GiB, guaranteed 1.0 GiB, borrowed 1.0 GiB"
    assert told == ({"reason": reason} if reason else {})


@pytest.mark.parametrize("why", ["reclaim", "suspend_stuck", "of a later version", None])
def test_the_service_starts_again_what_was_stopped_for_others(tmp_path, why):
    task = Task(Folder(tmp_path), {"requeue": True})
    assert may_start_again(task, {"kind": "killed", "why": why})
    assert not may_start_again(task, {"kind": "killed", "why": "breach"}), "it would use too much again"
    assert not may_start_again(Task(Folder(tmp_path), {"requeue": False}), {"kind": "killed", "why": why})


@pytest.mark.parametrize(
    ("name", "user", "told"), [("a", "b", "a (b)"), ("a", None, "a"), (None, "b", "b"), (None, None, "its owner")]
)
def test_the_owner_as_far_as_it_is_known(name, user, told):
    assert killed.owner({**killed_of(), "owner": name, "owner_user": user}) == told


# ---- did the kernel kill? ------------------------------------------------------------------------------

EVENTS = "low 0\nhigh 0\nmax 8\noom 5\noom_kill 3\noom_group_kill 2\n"


@pytest.mark.parametrize(
    ("cgroup", "events", "kills"),
    [
        ("0::/a/b\n", EVENTS, 3),
        ("12:memory:/x\n1:name=systemd:/y\n0::/a/b\n", EVENTS, 3),
        ("0::/a/b\n", EVENTS.replace("oom_kill 3", "oom_kill 0"), 0),
        ("0::/a/b\n", "low 0\noom 5\n", 0),
        ("0::/a/b\n", "oom_kill\n", 0),
        ("0::/a/b\n", "oom_kill many\n", 0),
        ("0::/another\n", EVENTS, 0),
        ("12:memory:/a/b\n", EVENTS, 0),
        ("", EVENTS, 0),
        (None, EVENTS, 0),
    ],
)
def test_what_the_kernel_has_killed_is_counted_where_it_says_so(tmp_path, monkeypatch, cgroup, events, kills):
    group = tmp_path / "sys" / "fs" / "cgroup" / "a" / "b"
    group.mkdir(parents=True)
    (group / "memory.events").write_text(events)
    (tmp_path / "proc" / "self").mkdir(parents=True)
    if cgroup is not None:
        (tmp_path / "proc" / "self" / "cgroup").write_text(cgroup)
    monkeypatch.setattr(exit_message, "Path", lambda first, *more: Path(tmp_path, first.lstrip("/"), *more))
    assert exit_message.memory_kills() == kills


@pytest.mark.parametrize(("counts", "by_kernel"), [((3, 3), False), ((3, 4), True), ((0, 1), True), ((1, 0), False)])
def test_only_a_kill_during_the_run_is_the_programs(monkeypatch, counts, by_kernel):
    told, left = [], list(counts)
    monkeypatch.setattr(launch, "memory_kills", lambda: left.pop(0))
    monkeypatch.setattr(launch.spawn, "spawn_program", lambda *_: 17)
    monkeypatch.setattr(launch, "wait_for", lambda child, link: signal.SIGKILL)
    monkeypatch.setattr(launch.signal, "signal", lambda *_: None)
    monkeypatch.setattr(launch, "write_stderr", told.append)
    options = launch.Options(command=["/x/train"], flags={})
    assert launch.Launch(options, {})._supervise("/x/train", {}) == 137
    assert [("host memory ran out" in one, one.startswith("gpushare: train[17] was killed")) for one in told] == [
        (by_kernel, True)
    ]


def report(path, ending=None, job=None):
    write_report(
        path, ending=ending or Ending(3 << 8, "p"), command=["p"], job=job, duration=1.23456, recommended="2Gi"
    )


def test_a_report_replaces_the_file_and_leaves_nothing_beside_it(tmp_path):
    path = tmp_path / "report.json"
    path.write_text("old" * 1000)
    report(path)
    told = json.loads(path.read_text())
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.json"]
    assert (told["mode"], told["job"], told["gpus"], told["exit_code"]) == ("standalone", None, [], 3)
    assert (told["duration"], told["recommended_limit"], told["child_signal"]) == (1.235, "2Gi", None)


def test_a_report_tells_the_peak_on_each_gpu(tmp_path):
    gpu = dict.fromkeys(exit_message.REPORTED, 1) | {"uuid": "GPU-a", "secret": 1}
    job = {"id": "1", "name": "n", "gpus": [gpu], "request_source": "r", "limit_source": "l"}
    report(tmp_path / "a", Ending(0, "p", outcome()), job)
    told = json.loads((tmp_path / "a").read_text())
    assert told["mode"] == "daemon" and told["job"] == {"id": "1", "name": "n"}
    assert [one["peak"] for one in told["gpus"]] == [5] and "secret" not in told["gpus"][0]
    report(tmp_path / "b", Ending(0, "p"), job)
    assert [one["peak"] for one in json.loads((tmp_path / "b").read_text())["gpus"]] == [None]


def test_a_report_that_cannot_be_written_leaves_nothing(tmp_path, monkeypatch):
    (tmp_path / "report.json").mkdir()

    def is_there(_path):
        return False

    monkeypatch.setattr(exit_message.Path, "exists", is_there)
    with pytest.raises(OSError):
        report(tmp_path / "report.json")
    monkeypatch.undo()
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.json"]


def test_a_disk_that_is_full_is_what_is_told_of_a_report(tmp_path, monkeypatch):
    def full(*_arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(exit_message.Path, "write_text", full)
    with pytest.raises(OSError, match="No space left on device"):
        report(tmp_path / "report.json")


@pytest.fixture
def signals():
    """The writing sets what signals do."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.usefixtures("signals")
class TestPipe:
    def test_a_reader_that_comes_late_gets_the_whole_report(self, tmp_path):
        pipe, got = tmp_path / "pipe", []
        os.mkfifo(pipe)

        def read():
            time.sleep(0.1)
            got.append(pipe.read_bytes())

        reader = threading.Thread(target=read, daemon=True)  # else it holds a run that has failed
        reader.start()
        exit_message._write_to_reader(pipe, b"x" * 200_000)
        reader.join(10)
        assert got == [b"x" * 200_000], "more than a pipe holds"

    def test_a_report_for_a_reader_leaves_the_pipe_where_it_is(self, tmp_path):
        pipe, got = tmp_path / "pipe", []
        os.mkfifo(pipe)
        reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
        reader.start()
        report(pipe)
        reader.join(10)
        assert json.loads(got[0])["exit_code"] == 3
        assert [(entry.name, entry.is_fifo()) for entry in tmp_path.iterdir()] == [("pipe", True)]

    def test_a_signal_ends_the_wait_for_a_reader(self, tmp_path, monkeypatch):
        """The wrapper ignores signals by then: they were for its program."""
        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        monkeypatch.setattr(exit_message, "_open_for_reader", lambda path, deadline: os.open(os.devnull, os.O_WRONLY))
        exit_message._write_to_reader(tmp_path / "pipe", b"x")
        assert {signal.getsignal(number) for number in numbers} == {signal.SIG_DFL}

    def test_a_reader_has_five_seconds_from_the_end_of_the_program(self, tmp_path, monkeypatch):
        os.mkfifo(tmp_path / "pipe")
        now = [100.0]
        monkeypatch.setattr(exit_message.time, "monotonic", lambda: now[0])
        monkeypatch.setattr(exit_message.time, "sleep", lambda seconds: now.append(now.pop() + seconds))
        with pytest.raises(TimeoutError, match="within 5 s"):
            exit_message._write_to_reader(tmp_path / "pipe", b"x")
        assert 5.0 <= now[0] - 100.0 < 5.1

    def test_one_that_reads_in_the_last_second_gets_it(self, tmp_path, monkeypatch):
        times = [100.0, 100.0, 104.5]
        monkeypatch.setattr(exit_message.time, "monotonic", lambda: times.pop(0) if len(times) > 1 else times[0])
        os.mkfifo(tmp_path / "pipe")
        reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
        try:
            exit_message._write_to_reader(tmp_path / "pipe", b"x")
            assert os.read(reader, 9) == b"x"
        finally:
            os.close(reader)

    def test_without_a_reader_it_gives_up(self, tmp_path, monkeypatch):
        os.mkfifo(tmp_path / "pipe")
        monkeypatch.setattr(exit_message, "READ_WITHIN", 0.15)
        with pytest.raises(TimeoutError, match="not opened for reading within"):
            report(tmp_path / "pipe")

    def test_with_a_reader_that_does_not_read_too(self, tmp_path, monkeypatch):
        os.mkfifo(tmp_path / "pipe")
        monkeypatch.setattr(exit_message, "READ_WITHIN", 0.3)
        writes, write = [], os.write

        def counted(descriptor, data):
            writes.append(len(data) > 500_000)
            return write(descriptor, data)

        monkeypatch.setattr(exit_message.os, "write", counted)
        reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
        try:
            with pytest.raises(TimeoutError, match="not read within"):
                exit_message._write_to_reader(tmp_path / "pipe", b"x" * 1_000_000)
            assert sum(writes) < 10, "it waits, and does not try again and again"
        finally:
            os.close(reader)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["python", "-u", "train.py", "x.py"], "train"),
        (["/usr/bin/python3.12", "/a/b/eval.py"], "eval"),
        (["python", "-m", "pkg"], "python"),
        (["/opt/server", "conf.py"], "server"),
        (["train.py"], "train.py"),
    ],
)
def test_the_name_of_a_job_that_was_given_none(command, name):
    assert launch.default_name(command) == name
