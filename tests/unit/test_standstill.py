"""Whether a process stands still: real ones, and control groups as the kernel writes them."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpushare import standstill

SEIZE, INTERRUPT, DETACH = 0x4206, 0x4207, 17
"""Of ptrace, as debuggers use it."""


@pytest.fixture
def child() -> Iterator[int]:
    one = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield one.pid
    one.kill()
    one.wait()


def becomes(pid: int, still: bool) -> bool:
    end = time.monotonic() + 10
    while standstill.stands_still(pid) is not still and time.monotonic() < end:
        time.sleep(0.01)
    return standstill.stands_still(pid) is still


def test_one_that_a_signal_has_stopped(child: int) -> None:
    assert not standstill.stands_still(child)
    os.kill(child, signal.SIGSTOP)
    assert becomes(child, True)
    os.kill(child, signal.SIGCONT)
    assert becomes(child, False)


def test_one_in_a_debugger(child: int) -> None:
    trace = ctypes.CDLL(None, use_errno=True).ptrace
    trace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
    assert trace(SEIZE, child, None, None) == 0, os.strerror(ctypes.get_errno())
    assert becomes(child, False), "it is watched, and runs"
    assert trace(INTERRUPT, child, None, None) == 0
    assert becomes(child, True)
    assert standstill.stays_still(child)
    assert trace(DETACH, child, None, None) == 0
    assert becomes(child, False)


def test_one_that_is_stopped_for_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    """As strace does at each system call."""
    looks = iter([True, True, True, False])
    monkeypatch.setattr(standstill, "stands_still", lambda pid: next(looks))
    began = time.monotonic()
    assert not standstill.stays_still(1)
    assert time.monotonic() - began < standstill.LOOKED_AT
    assert next(looks, None) is None


def test_one_that_stands_still_is_looked_at_for_a_fifth_of_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now, pauses = [100.0], []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(standstill, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    monkeypatch.setattr(standstill, "stands_still", lambda pid: True)
    assert standstill.stays_still(1)
    assert 0.2 - 1e-9 < now[0] - 100.0 < 0.22 and set(pauses) == {0.01}


def test_one_that_has_gone() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert not standstill.stands_still(gone.pid)


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Process 7 runs in no group."""
    monkeypatch.setattr(standstill, "PROCESSES", tmp_path)
    monkeypatch.setattr(standstill, "GROUPS", tmp_path / "groups")
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text("7 (a) T) S 1")
    return tmp_path


@pytest.mark.parametrize(
    ("line", "file", "thawed", "frozen"),
    [
        ("0::/job/a", "job/a/cgroup.events", "populated 1\nfrozen 0\n", "populated 1\nfrozen 1\n"),
        ("0::/job/a", "unified/job/a/cgroup.events", "populated 1\nfrozen 0\n", "populated 1\nfrozen 1\n"),
        ("0::/cri:x/a:b", "cri:x/a:b/cgroup.events", "populated 1\nfrozen 0\n", "populated 1\nfrozen 1\n"),
        ("6:freezer:/job/a", "freezer/job/a/freezer.state", "THAWED\n", "FROZEN\n"),
        ("6:freezer:/job/a", "freezer/job/a/freezer.state", "THAWED\n", "FREEZING\n"),
    ],
)
def test_one_in_a_frozen_group(kernel: Path, line: str, file: str, thawed: str, frozen: str) -> None:
    (kernel / "7" / "cgroup").write_text(f"8:pids:/\n{line}\n")
    assert not standstill.stands_still(7), "no such group is seen from here"
    state = kernel / "groups" / file
    state.parent.mkdir(parents=True)
    state.write_text(thawed)
    assert not standstill.stands_still(7)
    state.write_text(frozen)
    assert standstill.stands_still(7)


def test_a_group_outside_of_this_namespace_is_not_looked_at(kernel: Path) -> None:
    (kernel / "7" / "cgroup").write_text("0::/../x\nnothing\n")
    (kernel / "groups").mkdir()
    (kernel / "x").mkdir()
    (kernel / "x" / "cgroup.events").write_text("frozen 1\n")
    assert not standstill.stands_still(7)
