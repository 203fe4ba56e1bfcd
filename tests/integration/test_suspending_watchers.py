"""Programs that ask all the time how far the GPU is. A driver ends one that does so while its memory is away."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.node import GIB, MIB, Node, wait_for

PROGRAM = Path(__file__).parents[1] / "gpuday" / "programs" / "driver.py"
STEPS = ("--request", "none", "--limit", "3840Mi", "--on-reclaim", "suspend,term,kill")
GPU = "memory=4Gi,context=75Mi"


@pytest.fixture
def node(tmp_path: Path, puppets: Path) -> Iterator[Node]:
    with Node(tmp_path, puppets, sim=GPU) as one:
        yield one


class Watcher:
    """The program, as a job that may be suspended."""

    def __init__(self, node: Node, *options: object, **env: str) -> None:
        self.node = node
        line = [sys.executable, str(PROGRAM), "watch", json.dumps([2 * GIB])]
        self.process = node.run("--name", "W", *STEPS, *options, *line, **env)
        self.read()
        id = node.job("W")["id"]
        wait_for(lambda: f"a suspender is ready job={id}" in node.log(), "its suspender")

    def read(self) -> tuple[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            assert self.process.stderr is not None
            raise AssertionError(f"ended with {self.process.wait(10)}: {self.process.stderr.read()}")
        name, value = json.loads(line)
        return str(name), value

    def calls(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.write("calls\n")
        return int(self.read()[1])

    def end(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write("end\n")
        found = dict(self.read() for _ in range(3))
        assert self.process.wait(10) == 0
        return found

    def is_unharmed(self) -> None:
        assert self.end() == {
            "calls that were never made": [],
            "its calls that failed, with their codes": [],
            "its memory is as it was": True,
        }

    def state(self) -> object:
        return self.node.job("W").get("state")


def test_one_that_watches_the_gpu_is_suspended_unharmed(node: Node) -> None:
    watcher = Watcher(node)
    for _ in range(4):
        before = watcher.calls()
        wait_for(lambda before=before: watcher.calls() > before, "calls")
        assert node.gpushare("suspend", "W").returncode == 0
        wait_for(lambda: watcher.state() == "suspended", "it to be suspended")
        stands = watcher.calls()
        time.sleep(0.05)
        assert watcher.calls() == stands, "no call goes through meanwhile"
        assert node.gpushare("resume", "W").returncode == 0
        wait_for(lambda: watcher.state() == "borrowing", "it to go on")
    watcher.is_unharmed()


def test_one_that_asks_for_a_handle_of_its_memory_gets_it_when_the_memory_is_back(node: Node) -> None:
    watcher = Watcher(node)
    assert node.gpushare("suspend", "W").returncode == 0
    wait_for(lambda: watcher.state() == "suspended", "it to be suspended")
    assert watcher.process.stdin is not None
    watcher.process.stdin.write("share\n")
    time.sleep(0.2)
    assert node.gpushare("resume", "W").returncode == 0
    assert watcher.read() == ("code of sharing its memory", 0)
    watcher.is_unharmed()


def test_without_the_library_it_would_die(node: Node) -> None:
    """The driver is as it is: what follows stands for nothing otherwise."""
    driver = "import sys; from gpushare.checkpoint import *; suspend(DriverCheckpoints(), [int(sys.argv[1])], 5)"
    node.puppet("keeper").end()  # so that there is a driver to be found
    env = node.env | {"LD_LIBRARY_PATH": str(node.drivers), "CUDA_VISIBLE_DEVICES": "0"}
    line = [sys.executable, str(PROGRAM), "watch", json.dumps([MIB])]
    bare = subprocess.Popen(line, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert bare.stdout is not None
    assert json.loads(bare.stdout.readline())[0] == "watches"
    done = subprocess.run(
        [sys.executable, "-c", driver, str(bare.pid)], env=env, capture_output=True, text=True, check=False
    )
    bare.wait(10)
    bare.communicate()
    assert bare.returncode == -11, done


def test_the_memory_leaves_only_when_no_call_is_inside(tmp_path: Path, puppets: Path) -> None:
    """A call of half a second is waited for."""
    with Node(tmp_path, puppets, sim=f"{GPU},latency=cuCtxSynchronize:500ms") as node:
        watcher = Watcher(node)
        for _ in range(3):
            assert node.gpushare("suspend", "W").returncode == 0
            wait_for(lambda: watcher.state() == "suspended", "it to be suspended")
            assert node.gpushare("resume", "W").returncode == 0
            wait_for(lambda: watcher.state() == "borrowing", "it to go on")
        watcher.is_unharmed()


def test_one_whose_call_does_not_end_is_not_suspended(tmp_path: Path, puppets: Path) -> None:
    with Node(tmp_path, puppets, sim=f"{GPU},latency=cuCtxSynchronize:20s") as node:
        watcher = Watcher(node)
        assert node.gpushare("suspend", "W").returncode == 0
        wait_for(lambda: "not_suspended" in node.gpushare("events", "--output", "json").stdout, "it to be given up")
        assert watcher.state() == "borrowing"
        told = node.gpushare("explain", "W").stdout
        assert "could not be suspended, and runs on: a call of its program waits for the GPU" in told
        before = watcher.calls()
        wait_for(lambda: watcher.calls() > before, "its other calls to go on")
        watcher.process.kill()


def test_it_waits_also_when_no_daemon_keeps_the_gate(node: Node) -> None:
    """Its wrapper is gone, too, so that nobody starts another daemon: the driver is asked whether it is suspended."""
    watcher = Watcher(node)
    assert node.gpushare("suspend", "W").returncode == 0
    wait_for(lambda: watcher.state() == "suspended", "it to be suspended")
    watcher.process.kill()
    node.kill_daemon()
    stands = watcher.calls()
    time.sleep(11.0)  # GS_GATE_MS, and some
    assert watcher.calls() == stands
    b = node.puppet("B", "--request", "none", "--limit", "256Mi")  # starts the next daemon
    wait_for(lambda: node.gpushare("resume", "W").returncode == 0, "the next daemon to know it")
    wait_for(lambda: watcher.calls() > stands, "its calls to go on")
    b.end()
    assert watcher.process.stdin is not None
    watcher.process.stdin.write("end\n")
    assert dict(watcher.read() for _ in range(3))["its calls that failed, with their codes"] == []
