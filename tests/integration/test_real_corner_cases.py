"""Corner cases that only real processes have; tests/core/test_corner_cases.py has the list."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from integration.node import GIB, MIB, Node, Puppet, gone, wait_for

CONTEXT = 300 * MIB


def test_a_stopped_program_is_continued_to_take_sigterm_and_is_told_why_it_ended(node: Node) -> None:
    """While it is stopped it cannot trim its cache. When it goes on its cache may come back a moment before it dies."""
    a = node.puppet("A", "--request", "none", "--limit", "14Gi", "--grace", "300ms")
    a.alloc(6 * GIB)
    a.do(f"cache {512 * MIB} 12")
    pid = a.pid()
    a.send("stop")
    wait_for(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T", "A to stand still")
    b = node.puppet("B", "--request", "8Gi")
    waited = b.alloc(6 * GIB)
    assert 300 <= waited < 10_000, f"half of the time for trims\n{node.log()}"
    assert a.wait() == 137
    assert "was stopped to return borrowed memory" in a.errors()
    assert b.end() == 0


def test_a_stopped_claimant_gets_its_memory_when_it_goes_on(node: Node) -> None:
    a = node.puppet("A", "--request", "none", "--limit", "14Gi", "--grace", "1s")
    a.do("term ignore")
    for _ in range(6):
        a.alloc(2 * GIB)
    b = node.puppet("B", "--request", "8Gi")
    pid = b.pid()
    b.send(f"alloc {6 * GIB}")
    wait_for(lambda: node.job("A")["state"] == "asked_back", "A to be asked")
    os.kill(pid, signal.SIGSTOP)
    assert a.wait() == 137
    wait_for(lambda: node.job("B")["gpus"][0]["credit"] >= 6 * GIB, "the claim to be met")
    os.kill(pid, signal.SIGCONT)
    assert b.answer()[0] == "ok"
    assert b.end() == 0


def test_a_child_holds_nothing_of_its_dead_parent(node: Node) -> None:
    """It inherits the connection, the page and the driver's files, and they mean nothing."""
    a = node.puppet("A", "--limit", "4Gi")
    a.alloc(2 * GIB)
    child = int(a.do("fork 5000")[0])
    os.kill(a.pid(), signal.SIGKILL)
    assert a.wait() == 137
    assert not gone(child)
    wait_for(lambda: node.gpu()["usage"] == 0 and node.gpu()["returning"] == 0, "the memory to come back")
    wait_for(lambda: not list((node.runtime / "pages").iterdir()), "the page to be gone")
    assert not gone(child)
    os.kill(child, signal.SIGKILL)


def test_exec_gives_everything_back(node: Node) -> None:
    """One process id, two programs: what the first had is free, and the second has a page of its own."""
    a = node.puppet("A", "--limit", "4Gi")
    a.alloc(3 * GIB)
    pid = a.pid()
    a.do("exec")
    wait_for(lambda: node.gpu()["usage"] == 0, "the first program's memory to come back")
    a.do("open 0")
    a.alloc(3 * GIB)
    (process,) = node.job("A")["processes"]
    assert process["pid"] == pid
    assert node.job("A")["gpus"][0]["accounted"] == 3 * GIB
    assert a.end() == 0


def test_a_program_that_execs_again_and_again(node: Node) -> None:
    a: Puppet = node.puppet("A", "--limit", "4Gi")
    for _ in range(10):
        a.alloc(3 * GIB)
        a.do("exec")
        a.do("open 0")
    (process,) = node.job("A")["processes"]
    assert process["pid"] == a.pid()
    wait_for(lambda: node.job("A")["gpus"][0]["accounted"] == 0, "nothing of the earlier ones to be left")
    assert len(list((node.runtime / "pages").iterdir())) == 1
    assert a.end() == 0


def test_pool_memory_that_the_driver_got_back_is_there_for_the_next_process_of_the_job(node: Node) -> None:
    """The first process frees it, synchronises its stream, and does nothing more."""
    env = node.job_env("J", "--request", "3Gi", "--limit", "3Gi")
    a, b = (Puppet("J", node.spawn([str(node.puppets / "puppet-dlopen")], **env)) for _ in range(2))
    a.do("open 0")
    b.do("open 0")
    a.do(f"pass {2 * GIB}")
    b.alloc(2304 * MIB)
    assert node.gpu()["usage"] == 2304 * MIB + 2 * CONTEXT
    assert a.end() == b.end() == 0
