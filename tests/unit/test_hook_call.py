"""A hook is bounded: it and all that it starts in its process group end with its time, with it, and with its caller."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpushare import hook_call
from gpushare.hook_settings import Hook

CALLS = "import sys; from gpushare import hook_call; from gpushare.hook_settings import Hook\n"


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def await_end(pid: int) -> None:
    until = time.monotonic() + 10
    while lives(pid):
        assert time.monotonic() < until, "it lives on"
        time.sleep(0.01)


def pid_in(file: Path) -> int:
    until = time.monotonic() + 10
    while not (file.exists() and file.read_text().endswith("\n")):
        assert time.monotonic() < until
        time.sleep(0.01)
    return int(file.read_text())


def behind(file: Path) -> str:
    return f"sleep 60 & echo $! > {file}; "


def call(cmd: str, within: float = 10.0) -> str:
    return hook_call.call(Hook(cmd=cmd), dict(os.environ), within)


@pytest.mark.parametrize(
    ("cmd", "within", "why"),
    [
        ("true", 10.0, ""),
        ("echo no model; exit 3", 10.0, "exit status 3: no model"),
        ("kill -KILL $$", 10.0, "it was ended by signal 9"),
        ("sleep 60; true", 0.3, "it had not ended after 300 ms, and was killed"),
    ],
)
def test_it_is_said_how_it_has_ended_and_what_it_started_has_ended(
    tmp_path: Path, cmd: str, within: float, why: str
) -> None:
    file = tmp_path / "pid"
    assert call(behind(file) + cmd, within) == why
    await_end(pid_in(file))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_of_it_outlives_the_process_that_calls_it(tmp_path: Path, number: int) -> None:
    """The job has ended, and its runner with it."""
    file = tmp_path / "pid"
    code = f"{CALLS}hook_call.call(Hook(cmd={behind(file) + 'sleep 60; true'!r}), {dict(os.environ)!r}, 60.0)"
    with subprocess.Popen([sys.executable, "-c", code]) as caller:
        pid = pid_in(file)
        caller.send_signal(number)
    await_end(pid)


def test_no_process_and_no_descriptor_is_left_here(tmp_path: Path) -> None:
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    before, others = len(list(Path("/proc/self/fd").iterdir())), set(children.read_text().split())
    for _ in range(3):
        call(behind(tmp_path / "pid"))
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert set(children.read_text().split()) <= others


def test_what_a_terminal_sends_to_its_callers_session_does_not_reach_it():
    """Neither the hook nor the process that waits for it is in our session."""
    why = call("cat /proc/$PPID/stat /proc/$$/stat | sed 's/.*) //' | cut -d' ' -f4 | tr '\\n' ' '; exit 3")
    waits, hook = why.removeprefix("exit status 3: ").split()
    assert str(os.getsid(0)) not in (waits, hook) and waits != hook


def test_it_ends_with_the_process_that_waits_for_it(tmp_path: Path):
    file = tmp_path / "pid"
    why = call(f"echo $$ > {file}; kill -KILL $PPID; exec sleep 60")
    assert why == "the process that waits for it was ended"
    await_end(pid_in(file))
