"""What the check of a driver's suspending says is wrong, step by step: with a program and a driver of the test's."""

from __future__ import annotations

import signal
import subprocess
import time
from types import SimpleNamespace
from typing import ClassVar

import pytest

from gpushare import suspend_check

GOOD = "echo filled; read words; sleep 0.5; test $words = compare && echo same; read end"
"""It is held for half a second."""


def step(where, problem=""):
    return SimpleNamespace(where=where, problem=problem)


@pytest.mark.parametrize(
    ("program", "out", "back", "problem"),
    [
        (GOOD, step("suspended"), step("running"), ""),
        ("true", step("suspended"), step("running"), "the program of the check did not start"),
        ("echo what; cat", step("suspended"), step("running"), "the program of the check did not start"),
        (GOOD, step("running", "it refuses"), step("running"), "it refuses"),
        (GOOD, step("running"), step("running"), "the program is running"),
        (GOOD, step("suspended"), step("suspended", "it fails"), "it fails"),
        (GOOD, step("suspended"), step("gone"), "the program is gone"),
        (
            "echo filled; read words",
            step("suspended"),
            step("running"),
            "the program died when it made a call while it was suspended",
        ),
        (
            "echo filled; read words; sleep 0.5; echo other; cat",
            step("suspended"),
            step("running"),
            "the program's memory has changed",
        ),
        (
            "echo filled; read words; echo same; cat",
            step("suspended"),
            step("running"),
            "a call of the program was not held while it was suspended",
        ),
    ],
)
def test_what_is_wrong_is_said(program, out, back, problem, monkeypatch):
    withins = []
    monkeypatch.setattr(suspend_check.checkpoint, "suspend", lambda driver, pids, within: withins.append(within) or out)
    monkeypatch.setattr(suspend_check.checkpoint, "resume", lambda driver, pids: back)
    clock = iter([10.0, 12.5, 20.0, 24.0])
    monkeypatch.setattr(suspend_check, "time", SimpleNamespace(monotonic=lambda: next(clock), sleep=time.sleep))
    result = {"out": -1.0, "back": -1.0}
    with subprocess.Popen(
        ["sh", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        said = suspend_check._suspend_and_resume(None, process, result)
        process.kill()
    assert said == problem
    started = "did not start" not in problem
    assert result["out"] == (2.5 if started else -1.0), "how long it took is told, too"
    resumed = started and out.where == "suspended" and "while it was" not in problem
    assert result["back"] == (4.0 if resumed else -1.0)
    assert withins == [30.0] * started, "half of the minute that a check has"


class Watchdog:
    """In place of a timer."""

    made: ClassVar[list[Watchdog]] = []

    def __init__(self, seconds, kill) -> None:
        self.seconds, self.kill, self.did = seconds, kill, []
        self.made.append(self)

    def start(self) -> None:
        self.did.append("start")

    def cancel(self) -> None:
        self.did.append("cancel")


@pytest.fixture
def tried(monkeypatch):
    """A check with a program of the shell in place of the real one; the programs that it has started."""
    one, real = SimpleNamespace(script=GOOD, started=[]), subprocess.Popen

    def popen(line, **how):
        assert line[1:] == ["-P", "-m", "gpushare.suspend_check", "program"]
        one.started.append(real(["sh", "-c", one.script], **how))
        return one.started[-1]

    monkeypatch.setattr(suspend_check.subprocess, "Popen", popen)
    monkeypatch.setattr(suspend_check.threading, "Timer", Watchdog)
    monkeypatch.setattr(Watchdog, "made", [])
    monkeypatch.setattr(suspend_check.checkpoint, "suspend", lambda driver, pids, within: step("suspended"))
    monkeypatch.setattr(suspend_check.checkpoint, "resume", lambda driver, pids: step("running"))
    return one


DRIVER = SimpleNamespace(version=lambda: 13000)


@pytest.mark.parametrize(
    ("raises", "problem"),
    [
        (None, ""),
        (suspend_check.checkpoint.DriverError("it refuses"), "it refuses"),
        (BrokenPipeError(32, "Broken pipe"), "[Errno 32] Broken pipe"),
    ],
)
def test_a_check_ends_its_program_whatever_comes_out(tried, monkeypatch, raises, problem):
    def resume(_driver, _pids):
        if raises is not None:
            raise raises
        return step("running")

    monkeypatch.setattr(suspend_check.checkpoint, "resume", resume)
    result = suspend_check._try(DRIVER)
    assert (result["driver"], result["good"], result["problem"]) == (13000, not problem, problem)
    assert result["bytes"] == suspend_check.AMOUNT and 0 <= result["out"] < 60 and 0 <= result["back"] < 60
    ((program,), (watchdog,)) = tried.started, Watchdog.made
    assert program.returncode is not None and program.stdout.closed
    assert (watchdog.seconds, watchdog.kill, watchdog.did) == (60.0, program.kill, ["start", "cancel"])


def test_a_program_that_would_go_on_is_killed(tried, monkeypatch):
    monkeypatch.setattr(suspend_check, "_suspend_and_resume", lambda *_: "it did not start")
    tried.script = "exec sleep 30"
    suspend_check._try(DRIVER)
    assert tried.started[0].returncode == -signal.SIGKILL


def test_a_check_that_found_nothing_took_no_time(tried, monkeypatch):
    monkeypatch.setattr(suspend_check, "_suspend_and_resume", lambda *_: "it did not start")
    result = suspend_check._try(DRIVER)
    assert (result["good"], result["out"], result["back"]) == (False, 0.0, 0.0)


def test_the_program_of_the_check_makes_no_check(monkeypatch):
    did = []
    monkeypatch.setattr(suspend_check, "_program", lambda: did.append("program"))
    monkeypatch.setattr(suspend_check.checkpoint, "DriverCheckpoints", lambda: pytest.fail("it checks"))
    monkeypatch.setattr(suspend_check.sys, "argv", ["suspend_check", "program"])
    suspend_check.main()
    assert did == ["program"]


class Memory:
    """A driver with one block of memory; `lost`: a place whose bytes change while the program waits."""

    def __init__(self, *, fails: str = "", lost: int | None = None) -> None:
        self.fails, self.lost, self.kept, self.did = fails, lost, {}, []

    def __getattr__(self, name: str):
        def call(*arguments) -> int:
            self.did.append(name)
            if name == "cuMemAlloc_v2":
                arguments[0]._obj.value = 1 << 40
            elif name == "cuMemcpyHtoD_v2":
                self.kept[arguments[0].value] = arguments[1]
            elif name == "cuMemcpyDtoH_v2":
                place = arguments[1].value
                arguments[0].raw = self.kept[place] if place != self.lost else bytes(arguments[2].value)
            return int(name == self.fails)

        return call


@pytest.mark.parametrize("lost", [None, 1 << 40, (1 << 40) + suspend_check.AMOUNT // 64 * 63])
def test_the_program_fills_its_memory_waits_and_compares_all_of_it(monkeypatch, capsys, lost):
    driver = Memory(lost=lost)
    said = []

    def readline() -> str:
        said.append(capsys.readouterr().out)
        driver.did.append("waits")
        return "compare\n"

    monkeypatch.setattr(suspend_check.ctypes, "CDLL", lambda _: driver)
    monkeypatch.setattr(suspend_check.sys, "stdin", SimpleNamespace(readline=readline))
    suspend_check._program()
    assert said == ["filled\n"] and capsys.readouterr().out == ("same\n" if lost is None else "changed\n")
    starts = ["cuInit", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuMemAlloc_v2"]
    assert driver.did[:69] == [*starts, *["cuMemcpyHtoD_v2"] * 64, "waits"]
    assert len(driver.kept) == 64 and max(driver.kept) - min(driver.kept) == suspend_check.AMOUNT // 64 * 63


@pytest.mark.parametrize("fails", ["cuInit", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuMemAlloc_v2"])
def test_where_it_cannot_start_it_says_nothing(monkeypatch, capsys, fails):
    driver = Memory(fails=fails)
    monkeypatch.setattr(suspend_check.ctypes, "CDLL", lambda _: driver)
    suspend_check._program()
    assert capsys.readouterr().out == "" and driver.did[-1] == fails


def test_memory_that_cannot_be_read_again_has_changed(monkeypatch, capsys):
    monkeypatch.setattr(suspend_check.ctypes, "CDLL", lambda _: Memory(fails="cuMemcpyDtoH_v2"))
    monkeypatch.setattr(suspend_check.sys, "stdin", SimpleNamespace(readline=lambda: ""))
    suspend_check._program()
    assert capsys.readouterr().out == "filled\nchanged\n"
