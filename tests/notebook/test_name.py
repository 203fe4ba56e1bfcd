"""What a notebook is called, and which kernel came before it."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from gpushare.errors import DaemonUnreachable
from gpushare.notebook import previous_kernel
from gpushare.notebook.name import connection_file, notebook_name
from gpushare.notebook.previous_kernel import ending, predecessor

ID = "4c81d8fc-6c67-4fc2-9a4e-7e1e58b60a02"
LAUNCHED = ["python", "-m", "ipykernel_launcher", "-f", f"/run/user/1000/jupyter/kernel-{ID}.json"]
OF_VS_CODE = ["python", "-m", "ipykernel_launcher", f"--f=/home/a/.local/share/jupyter/runtime/kernel-v3{ID}.json"]


@pytest.mark.parametrize(
    ("environ", "argv", "name"),
    [
        ({"JPY_SESSION_NAME": "/home/alice/fit-2.ipynb"}, LAUNCHED, "fit-2"),
        ({"JPY_SESSION_NAME": "notes.v2.ipynb"}, [], "notes.v2"),
        ({"JPY_SESSION_NAME": ""}, LAUNCHED, "kernel-4c81d8fc"),
        ({}, LAUNCHED, "kernel-4c81d8fc"),
        ({}, OF_VS_CODE, "kernel-v34c81d8"),
        ({}, ["python", "-m", "ipykernel_launcher", "-f", "/tmp/k.json"], "k"),
        ({}, ["python", "-m", "ipykernel"], None),
        ({}, ["python", "train.py", "settings.json"], None),
    ],
)
def test_the_name(environ: dict[str, str], argv: list[str], name: str | None) -> None:
    assert notebook_name(environ, argv) == name


def test_vs_code_says_it_in_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    session = SimpleNamespace(user_ns={"__vsc_ipynb_file__": "/home/alice/cells.ipynb"})
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: session))
    assert notebook_name({}, OF_VS_CODE) == "cells"
    session.user_ns = {"__vsc_ipynb_file__": 3}
    assert notebook_name({}, LAUNCHED) == "kernel-4c81d8fc"
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    assert notebook_name({}, LAUNCHED) == "kernel-4c81d8fc"


def test_the_connection_file() -> None:
    assert connection_file(LAUNCHED) == f"kernel-{ID}.json"
    assert connection_file(["ipykernel", f"--f=/x/{ID}.json"]) == f"{ID}.json"


def killed(**more: Any) -> dict[str, Any]:
    facts = {"code": "reclaim", "asked": 512 * 2**20, "usage": 3 * 2**30, "time": time.time()}
    return {**facts, "owner": "hi", "owner_user": "bob", **more}


def job(since: float, *, name: str = "torch-8g", file: str = "x.json", uid: int = 7, **outcome: Any) -> Any:
    command = ["python", "-m", "ipykernel_launcher", "-f", f"/run/{file}"]
    found = outcome or None
    return {"id": f"{since:g}", "name": name, "uid": uid, "since": since, "command": command, "outcome": found}


def test_the_kernel_before() -> None:
    jobs = [
        job(1, file="mine.json", killed=killed()),
        job(3, file="mine.json", killed=None),
        job(2, file="mine.json", killed=killed()),
        job(4, file="other.json", killed=killed()),
        job(5, file="mine.json", uid=8, killed=killed()),
        job(6, file="mine.json"),
    ]
    found = predecessor(jobs, "mine.json", None, 7)
    assert found is not None and found["id"] == "3"
    assert ending(found) is None, "the latest was not stopped"
    assert predecessor(jobs, "none.json", "torch-9g", 7) is None
    named = predecessor([*jobs, job(7, name="fit", killed=killed())], "mine.json", "fit", 7)
    assert named is not None and named["id"] == "7"


def test_a_new_kernel_of_the_same_kernelspec_follows_the_last_one() -> None:
    """It has another connection file, and no notebook's name is known."""
    first, own = job(1, killed=killed()), job(4, file="mine.json")

    def before(*jobs: Any, own_id: str | None = "4") -> str | None:
        found = predecessor([*jobs, own], "mine.json", "mine", 7, own_id)
        return None if found is None else found["id"]

    assert before(first) == "1"
    assert before(first, job(2, killed=None)) == "2", "one that ended by itself comes in between"
    assert before(first, job(2)) is None, "another notebook's lives, which has told that"
    assert before(first, job(5)) == "1", "that one started later"
    assert before(first, job(2, name="torch-9g")) == "1", "another kernelspec's"
    assert before(first, {**job(2), "command": ["python", "train.py", "x.json"]}) == "1", "not a kernel's"
    assert before(job(1, uid=8, killed=killed())) is None
    assert before(first, own_id=None) is None, "this kernel is no job"


def test_how_it_ended() -> None:
    when = time.strftime("%H:%M")
    found = ending(job(1, killed=killed()))
    assert found is not None
    assert found.startswith(
        f"gpushare: the previous kernel was stopped at {when} to return borrowed memory: 512.0 MiB owed to hi (bob)\n"
    )
    assert "`gpushare explain 1`" in found
    assert "could not be brought back after a suspension" in str(ending(job(1, killed=killed(code="suspend_stuck"))))
    breach = ending(job(1, killed=killed(code="breach")))
    assert breach is not None and "it used more memory than its limit" in breach and "owed" not in breach
    noon = time.mktime((2026, 1, 2, 12, 30, 0, 0, 0, -1))
    assert "stopped at 12:30 on 2026-01-02 to return " in str(ending(job(1, killed=killed(time=noon))))
    assert ending(job(1)) is None


@pytest.mark.parametrize(
    ("jobs", "told"),
    [
        ([job(1, file="mine.json", killed=killed())], True),
        ([job(1, file="mine.json", killed=None)], False),
        ([job(1, file="other.json", killed=killed())], False),
        ([], False),
        (DaemonUnreachable("away"), False),
    ],
)
def test_it_is_told_of_this_kernels_own_predecessor(monkeypatch: pytest.MonkeyPatch, jobs: Any, told: bool) -> None:
    asked: list[bool] = []

    class Daemon:
        @staticmethod
        def jobs(*, ended: bool) -> Any:
            asked.append(ended)
            return jobs

    def ask(_settings: object, question: Any, _note: object) -> Any:
        if isinstance(jobs, Exception):
            raise jobs
        return question(Daemon)

    monkeypatch.setattr(previous_kernel.offline_history, "ask", ask)
    monkeypatch.setattr(previous_kernel.os, "getuid", lambda: 7)
    monkeypatch.setattr(previous_kernel, "connection_file", lambda: "mine.json")
    monkeypatch.setattr(previous_kernel, "notebook_name", lambda _environ: None)
    found = previous_kernel.previous_end()
    assert (found is not None and "the previous kernel was stopped" in found) is told
    assert asked == ([] if isinstance(jobs, Exception) else [True])
    monkeypatch.setattr(previous_kernel, "connection_file", lambda: None)
    asked.clear()
    assert previous_kernel.previous_end() is None and asked == [], "a program that is no kernel asks nobody"
