"""What the check of a driver's suspending says is wrong, step by step: with a program and a driver of the test's."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace

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
    monkeypatch.setattr(suspend_check.checkpoint, "suspend", lambda driver, pids, within: out)
    monkeypatch.setattr(suspend_check.checkpoint, "resume", lambda driver, pids: back)
    result = {"out": -1.0, "back": -1.0}
    with subprocess.Popen(
        ["sh", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        said = suspend_check._suspend_and_resume(None, process, result)
        process.kill()
    assert said == problem
    started = "did not start" not in problem
    assert (result["out"] >= 0) == started, "how long it took is told, too"
    assert (result["back"] >= 0) == (started and out.where == "suspended" and "while it was" not in problem)


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
