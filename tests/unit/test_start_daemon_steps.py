"""Starting this user's daemon: what it is given, what it is not, what its log keeps, and why it did not start."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpushare import start_daemon
from gpushare.paths import Runtime
from gpushare.start_daemon import SHOWN, Starter, did_not_start, last_error

PROGRAM = """#!/bin/sh
cd "$(dirname "$0")"
env > env
printf '%s\\n' "$@" > arguments
ls -l /proc/$$/fd > descriptors
cut -d' ' -f6 /proc/$$/stat > session
echo out
echo err >&2
read -r line && echo "$line" > read
exit $STATUS
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """In place of a daemon: a program that notes how it was started, and ends with $STATUS."""
    program = tmp_path / "program"
    program.write_text(PROGRAM)
    program.chmod(0o700)
    monkeypatch.setattr(start_daemon, "sys", SimpleNamespace(executable=str(program)))
    return tmp_path


def starter(place: Path, status=0, **environ) -> Starter:
    given = {"PATH": os.environ["PATH"], "STATUS": str(status), "XDG_STATE_HOME": str(place / "state"), **environ}
    return Starter(Runtime(place / "run"), "sim", given)


def ended(one: Starter) -> None:
    deadline = time.monotonic() + 20
    while one.coming_up:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_it_is_a_process_of_its_own_with_nothing_of_the_job(place):
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    told = {name: "x" for name in start_daemon.NEVER_TOLD} | {"GPUSHARE_SIM": "gpus=2", "LD_LIBRARY_PATH": "/l"}
    one = starter(place, **told)
    ours = os.dup(0)
    os.dup2(reader, 0)
    try:
        one.start()
    finally:
        os.dup2(ours, 0)
        os.close(ours)
    ended(one)
    os.close(writer)
    os.close(reader)
    environ = dict(line.split("=", 1) for line in (place / "env").read_text().splitlines() if "=" in line)
    assert not set(environ) & {
        "LD_PRELOAD",
        "CUDA_VISIBLE_DEVICES",
        "GPUSHARE_JOB",
        "GPUSHARE_NAME",
        "GPUSHARE_REQUEST",
        "GPUSHARE_LIMIT",
    }
    assert (environ["GPUSHARE_SIM"], environ["LD_LIBRARY_PATH"]) == ("gpus=2", "/l")
    arguments = (place / "arguments").read_text().splitlines()
    assert arguments[:7] == ["-P", "-m", "gpushared", "--user", "--driver", "sim", "--dir"]
    assert arguments[7] == str(place / "run") and arguments[8] == "--history"
    links = (place / "descriptors").read_text()
    assert " 0 -> /dev/null" in links and "pipe:" not in links, "it must not keep open what somebody waits for"
    assert links.count(f" -> {one.runtime.log}") == 2, "its output and its errors"
    assert int((place / "session").read_text()) != os.getsid(0)
    assert not (place / "read").exists()
    assert one.failures == 0


def test_the_log_is_the_users_own_and_keeps_what_others_wrote(place):
    one = starter(place)
    one.runtime.make()
    one.runtime.log.write_text("of an earlier daemon\n")
    one.runtime.log.chmod(0o644)
    for times in (1, 2):
        one.start()
        ended(one)
        assert one.runtime.log.read_text() == "of an earlier daemon\n" + "out\nerr\n" * times
    assert one.runtime.log.stat().st_mode & 0o777 == 0o600
    assert one.last_error() == ["err"], "of the daemons that this command started"


def test_a_daemon_that_said_nothing_is_not_told_in_the_words_of_an_earlier_one(place):
    (place / "program").write_text("#!/bin/sh\nexit 3\n")
    one = starter(place)
    one.runtime.make()
    one.runtime.log.write_text("gpushared: no room\n")
    for _ in range(2):
        one.start()
        ended(one)
        assert one.last_error() == []
    (place / "program").write_text("#!/bin/sh\necho gpushared: too old\n")
    one.start()
    ended(one)
    assert one.last_error() == ["too old"]


def test_who_starts_a_daemon_keeps_its_log_no_longer_open(place):
    one = starter(place)
    one.start()
    ended(one)
    log = one.runtime.log.stat()
    assert not [fd for fd in range(3, 256) if is_file(fd, log)]


def is_file(fd: int, status: os.stat_result) -> bool:
    try:
        found = os.fstat(fd)
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == (status.st_dev, status.st_ino)


def test_a_log_that_is_a_link_is_not_followed(place):
    one = starter(place)
    one.runtime.make()
    (place / "elsewhere").write_text("keep")
    one.runtime.log.symlink_to(place / "elsewhere")
    with pytest.raises(OSError, match="symbolic link"):
        one.start()
    assert (place / "elsewhere").read_text() == "keep"


def test_one_is_started_at_a_time_and_failures_are_counted(place):
    one = starter(place, status=3)
    started = []
    real = one._spawn

    def spawn() -> int:
        started.append(real())
        return started[-1]

    one._spawn = spawn
    assert not one.coming_up
    one.start()
    first = one._pid
    os.kill(first, signal.SIGSTOP)
    one.start()
    assert started == [first] and one.coming_up
    os.kill(first, signal.SIGCONT)
    ended(one)
    assert one.failures == 1
    one.start()
    ended(one)
    assert len(started) == 2 and one.failures == 2


def test_one_that_has_ended_is_followed_by_the_next_though_nobody_has_looked(place):
    one = starter(place)
    one.start()
    first = one._pid
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    one.start()
    assert one._pid not in (None, first)
    ended(one)


def test_signals_that_are_ignored_here_are_not_there(place):
    # The shell reads its own status and starts nothing: while it forks, it blocks every signal for a moment.
    (place / "program").write_text(
        '#!/bin/sh\nwhile read -r line; do case $line in SigIgn:*|SigBlk:*) echo "$line";; esac; done'
        ' < /proc/$$/status > "${0%/*}/signals"\n'
    )
    numbers = (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        one = starter(place)
        one.start()
        ended(one)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in before.items():
            signal.signal(number, handler)
    said = dict(line.split() for line in (place / "signals").read_text().splitlines())
    assert int(said["SigBlk:"], 16) == 0
    assert not any(int(said["SigIgn:"], 16) >> (number - 1) & 1 for number in numbers)


def test_a_home_without_a_place_for_a_history_has_none(place, monkeypatch):
    monkeypatch.setattr(start_daemon, "history_dir", lambda driver, environ: None)
    one = starter(place)
    one.start()
    ended(one)
    assert "--history" not in (place / "arguments").read_text()


# ---- why it did not start -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("", []),
        ("\n  \n", []),
        ("one\ntwo\n", ["two"]),
        ("two  \n\n", ["two"]),
        ("gpushared: no room\n", ["no room"]),
        ("x\ngpushared: no room\n  disk  full\nhint: free some\n", ["no room", "disk  full", "hint: free some"]),
        ("gpushared: old\ngpushared: new\n  fact\n", ["new", "fact"]),
        ("gpushared: old\nTraceback\n  File\n", ["Traceback"]),
        ("  alone\n", ["  alone"]),
        ("gpushared: a\n" + "  b\n" * 9, ["a", *["b"] * 5]),
    ],
)
def test_the_last_message_of_a_log(log, said):
    assert last_error(log) == said
    assert SHOWN == 6, "a message has no more lines than fit on a screen"


@pytest.mark.parametrize(("coming_up", "why"), [(True, "no answer within 5 s"), (False, "it ended at once")])
def test_why_it_did_not_start_is_told_with_its_log(coming_up, why):
    one = SimpleNamespace(
        coming_up=coming_up, last_error=lambda: ["no room", "hint: x"], runtime=SimpleNamespace(log="/l")
    )
    error = did_not_start(one, 5.0)
    assert error.message == f"the daemon did not start: {why}" and error.code == "did_not_start"
    assert list(error.facts) == [("it says", "no room\nhint: x"), ("log", "/l")]
    assert error.hint == "`gpushare doctor` looks for the cause"
    one.last_error = list
    assert list(did_not_start(one, 5.0).facts) == [("log", "/l")]


def test_of_a_long_log_the_beginning_is_read_and_a_lost_one_is_empty(place, monkeypatch):
    one = starter(place)
    assert one.last_error() == []
    one.runtime.make()
    one.runtime.log.write_bytes(b"gpushared: first\n" + b"x" * 100 + b"\nlast\n")
    assert one.last_error() == ["last"]
    monkeypatch.setattr(start_daemon, "MOST_LOG", 17)
    assert one.last_error() == ["first"]
