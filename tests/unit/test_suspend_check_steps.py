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
