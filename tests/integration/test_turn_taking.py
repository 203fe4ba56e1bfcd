"""Jobs that take turns in computing: real programs, daemon, library, on a GPU that runs one kernel after the other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.node import Node, gone, wait_for

KERNELS, CAPTURES = (str(Path(__file__).with_name(name)) for name in ("kernels.py", "captures.py"))
ON = "[compute]\nturns = true\n[daemon]\nidle_exit = 3600\n"
ACCURACY = 0.06
"""Of the time for which the GPU computes, on a machine with other work. docs/turns.md says what a quiet one shows."""


class Worker:
    """A program that computes in kernels of so many milliseconds, and what it has done so far."""

    def __init__(self, child: subprocess.Popen[str], file: Path, kernel: float) -> None:
        self.child, self._file, self._kernel = child, file, kernel

    @property
    def done(self) -> float:
        """Seconds for which the GPU has worked for it."""
        return self._last()[0] * self._kernel / 1000

    @property
    def longest_launch(self) -> float:
        """Seconds."""
        return self._last()[1] / 1000

    def pid(self) -> int:
        children = Path(f"/proc/{self.child.pid}/task/{self.child.pid}/children").read_text().split()
        return next(int(one) for one in children if "kernels.py" in Path(f"/proc/{one}/cmdline").read_text())

    def moves(self, within: float) -> None:
        before = self.done
        wait_for(lambda: self.done > before, "a kernel to end", within)

    def _last(self) -> tuple[float, float]:
        lines = self._file.read_text().splitlines()[:-1] or ["0 0"]
        done, longest = lines[-1].split()
        return float(done), float(longest)


class Place:
    def __init__(self, node: Node) -> None:
        self.node = node

    def worker(self, name: str, *options: object, kernel: float = 5, queued: int = 1, pause: int = 0) -> Worker:
        file = self.node.directory / f"{name}.out"
        numbers = f"{kernel} {queued} {pause}"
        line = f"exec {sys.executable} {KERNELS} {numbers} > {file}"
        words = ("--name", name, "--request", "1Gi", *options, "sh", "-c", line)
        socket = str(self.node.runtime / "api.sock")  # named, so that no wrapper starts a daemon with other settings
        one = Worker(self.node.run(*words, GPUSHARE_SOCKET=socket), file, kernel)
        wait_for(lambda: file.exists() and one.done > 0, f"{name} to compute")
        return one

    def turn(self, name: str) -> str | None:
        return str(self.node.job(name)["gpus"][0]["turn"])


@pytest.fixture
def place(tmp_path: Path, puppets: Path) -> Iterator[Place]:
    with Node(tmp_path, puppets, sim="gpus=1,memory=16Gi,kernels=clocked") as node:
        node.start_daemon(ON)
        yield Place(node)


def share(one: Worker, other: Worker, seconds: float) -> float:
    """Of the time for which the GPU worked for both, in the next seconds."""
    before = one.done, other.done
    time.sleep(seconds)
    mine, others = one.done - before[0], other.done - before[1]
    return mine / (mine + others)


def test_shares_are_as_asked_for(place: Place) -> None:
    a, b = place.worker("A", "--compute", "0.75"), place.worker("B", "--compute", "25%")
    time.sleep(1)
    assert share(a, b, 8) == pytest.approx(0.75, abs=ACCURACY)
    states = {place.turn(name) for _ in range(20) for name in "AB"}
    assert states <= {"holds", "leaving", "waits", "free"} and {"holds", "waits"} <= states
    wide = place.node.gpushare("ps", "-o", "wide").stdout
    assert "TURN" in wide
    said = place.node.gpushare("explain", "A").stdout
    assert "jobs take turns in computing (compute 0.75): " in said
    metrics = place.node.metrics()
    assert "gpushare_job_turn_seconds_total{" in metrics and "gpushare_gpu_turns_total{" in metrics


def test_a_job_that_asks_for_nothing_has_the_rest(place: Place) -> None:
    a, b = place.worker("A", "--compute", "0.75", kernel=20), place.worker("B", kernel=60)
    time.sleep(1)
    assert share(a, b, 10) == pytest.approx(0.75, abs=ACCURACY)


def test_where_nobody_asks_nobody_waits(place: Place) -> None:
    a, b = place.worker("A"), place.worker("B")
    time.sleep(1)
    assert place.turn("A") == place.turn("B") == "None"
    assert share(a, b, 2) == pytest.approx(0.5, abs=0.1), "as the driver divides it"
    assert a.longest_launch < 0.05 and b.longest_launch < 0.05


def test_an_exclusive_job_is_alone(place: Place) -> None:
    b = place.worker("B")
    place.worker("A", "--exclusive", "6s")
    wait_for(lambda: place.turn("A") == "holds" and place.turn("B") == "waits", "the turn of A", 10)
    time.sleep(0.2)
    done = b.done
    time.sleep(1)
    assert b.done == done
    b.moves(9)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_holder_that_is_gone_or_stopped_holds_nobody_back(place: Place, number: signal.Signals) -> None:
    b, a = place.worker("B"), place.worker("A", "--exclusive", "30s")
    wait_for(lambda: place.turn("A") == "holds", "the turn of A")
    pid = a.pid()
    os.kill(pid, number)
    try:
        b.moves(2)
        done = b.done
        time.sleep(1)
        assert b.done - done > 0.6
    finally:
        if number is signal.SIGSTOP:
            os.kill(pid, signal.SIGKILL)


def test_a_launch_into_a_capture_does_not_wait_and_that_of_the_graph_does(place: Place) -> None:
    place.worker("C")
    a = place.worker("A", "--exclusive", "30s")
    line = ("--name", "B", "--request", "1Gi", sys.executable, CAPTURES, "3")
    b = place.node.run(*line, GPUSHARE_SOCKET=str(place.node.runtime / "api.sock"))
    assert b.stdout is not None and b.stdout.readline() == "ready\n"
    wait_for(lambda: place.turn("A") == "holds", "the turn of A")
    captures = [float(b.stdout.readline()) for _ in range(30)]
    assert max(captures) < 1000
    wait_for(lambda: place.turn("B") == "waits", "the graph's launch to wait")
    os.kill(a.pid(), signal.SIGKILL)
    lines = iter(b.stdout.readline, "")
    assert float(next(line for line in lines if line.startswith("launched")).split()[1]) > 1


def test_an_idle_holder_loses_its_turn(place: Place) -> None:
    a, b = place.worker("A", "--exclusive", "30s", pause=300), place.worker("B")
    time.sleep(1)
    before, began = b.done, time.monotonic()
    time.sleep(4)
    assert (b.done - before) / (time.monotonic() - began) > 0.6
    a.moves(2)


def test_a_daemon_that_dies_holds_nobody_back(place: Place) -> None:
    b, a = place.worker("B"), place.worker("A", "--exclusive", "30s")
    wait_for(lambda: place.turn("B") == "waits", "B to wait")
    pid = place.node.daemon_pid()
    os.kill(pid, signal.SIGSTOP)
    b.moves(4)
    done = b.done
    time.sleep(1)
    assert b.done - done > 0.2, "and it waits no second time"
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: gone(pid), "the daemon to be gone")
    place.node.start_daemon(ON)
    wait_for(lambda: {place.turn("A"), place.turn("B")} == {"holds", "waits"}, "turns to begin again")
    a.moves(5)


def test_a_daemon_without_turns_opens_what_another_has_closed(place: Place) -> None:
    b = place.worker("B")
    place.worker("A", "--exclusive", "30s")
    wait_for(lambda: place.turn("B") == "waits", "B to wait")
    place.node.kill_daemon()
    place.node.start_daemon("[daemon]\nidle_exit = 3600\n")
    b.moves(1.5)


def test_turns_that_cannot_be_had_are_refused(place: Place, tmp_path: Path, puppets: Path) -> None:
    done = place.node.gpushare("run", "--exclusive", "5m", "true")
    assert done.returncode != 0 and "a turn is at most 30 s here" in done.stderr
    done = place.node.gpushare("run", "--compute", "1.5", "true")
    assert done.returncode != 0 and "'1.5' is no part of the time" in done.stderr
    place.node.kill_daemon()
    place.node.start_daemon()
    done = place.node.gpushare("run", "--compute", "0.5", "true")
    assert done.returncode != 0
    assert "--compute: jobs take no turns in computing on this node" in done.stderr
    assert "[compute] turns = true" in done.stderr


def test_only_where_jobs_take_turns_launches_have_hooks(place: Place) -> None:
    show = ("sh", "-c", "echo $LD_PRELOAD")
    assert place.node.gpushare("run", *show).stdout.strip().endswith("/lib/turns/libgpushare.so")
    place.node.kill_daemon()
    place.node.start_daemon()
    assert place.node.gpushare("run", *show).stdout.strip().endswith("/lib/libgpushare.so")
    plain = Path(__file__).resolve().parents[2] / "gpushare" / "lib"
    for library, hooked in ((plain / "libgpushare.so", False), (plain / "turns" / "libgpushare.so", True)):
        assert (b"\0cuLaunchKernelEx_ptsz\0" in library.read_bytes()) == hooked
