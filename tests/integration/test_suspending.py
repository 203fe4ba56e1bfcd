"""Jobs that are suspended for an owner, and go on: real programs, daemon, library, wrapper and suspender."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.node import MIB, Node, Puppet, gone, wait_for

PART = 256 * MIB
STEPS = ("--on-reclaim", "suspend,term,kill")
GPU = "memory=4Gi,context=75Mi"
"""A small one: what is suspended counts for this machine's memory."""


@pytest.fixture
def node(tmp_path: Path, puppets: Path) -> Iterator[Node]:
    with Node(tmp_path, puppets, sim=GPU) as one:
        yield one


def borrower(node: Node, name: str = "A", parts: int = 12, *options: object, **env: str) -> Puppet:
    """On loan: nearly all."""
    one = node.puppet(name, "--request", "256Mi", "--limit", "3840Mi", *STEPS, *options, **env)
    for _ in range(parts):
        one.alloc(PART)
    one.do("fill 7")
    wait_for(lambda: suspender_of(one) is not None, "its suspender")
    wait_for(lambda: suspendable(node, name), "the daemon to know it")
    return one


def suspendable(node: Node, name: str) -> bool:
    ready = [line for line in node.log().splitlines() if "suspender is ready" in line]
    return any(node.job(name)["id"] in line for line in ready)


def suspender_of(one: Puppet) -> int | None:
    children = Path(f"/proc/{one.wrapper.pid}/task/{one.wrapper.pid}/children").read_text().split()
    for child in children:
        if b"gpushare.suspender" in Path(f"/proc/{child}/cmdline").read_bytes():
            return int(child)
    return None


def state(node: Node, name: str) -> str:
    return str(node.job(name).get("state"))


def test_a_borrower_is_suspended_and_goes_on_by_itself(node: Node) -> None:
    a = borrower(node)
    b = node.puppet("B", "--request", "2Gi")
    b.alloc(5 * PART)
    assert state(node, "A") == "suspended"
    assert node.job("A")["gpus"][0]["usage"] == 0
    told = node.gpushare("explain", "A").stdout
    assert re.search(r"suspended for .*GiB of GPU 0 are in host memory", told), told
    assert "more of GPU 0 are free" in told
    a.send("filled 7")
    time.sleep(0.2)
    assert b.end() == 0
    assert a.answer() == ["ok"], "its memory is as it was"
    wait_for(lambda: state(node, "A") == "borrowing", "A to go on")
    assert a.end() == 0
    said = a.errors()
    assert "this job is suspended: " in said and "this job runs again, " in said


def test_the_owner_waits_little_longer_than_the_driver_takes(tmp_path: Path, puppets: Path) -> None:
    """The software driver takes two seconds for what A has."""
    with Node(tmp_path, puppets, sim=f"{GPU},checkpoint_rate=1536Mi") as node:
        a = borrower(node)
        b = node.puppet("B", "--request", "2Gi")
        b.send(f"alloc {5 * PART}")
        answer = b.answer()
        assert answer[0] == "ok"
        records = node.api("GET", f"/v1/jobs/{node.job('A')['id']}/story")["story"]
        driver = next(one["facts"]["driver"] for one in records if one["event"] == "suspended")
        assert driver > 1.9
        assert float(answer[2]) / 1000 <= 1.1 * driver + 0.3, "beside the driver's own time nearly nothing"
        assert b.end() == 0
        assert a.do("filled 7") == []
        assert a.end() == 0


def test_a_user_suspends_and_resumes(node: Node) -> None:
    a = borrower(node, parts=2)
    done = node.gpushare("suspend", "A")
    assert done.returncode == 0, done.stderr
    wait_for(lambda: state(node, "A") == "suspended", "A to be suspended")
    time.sleep(0.5)
    assert state(node, "A") == "suspended", "it stays so though there is room"
    assert "gpushare resume A" in node.gpushare("explain", "A").stdout
    assert "suspended" in node.gpushare("ps").stdout
    done = node.gpushare("resume", "A")
    assert done.returncode == 0, done.stderr
    assert "it goes on now" in done.stdout
    assert a.do("filled 7") == []
    done = node.gpushare("resume", "A")
    assert done.returncode == 1 and "this job is not suspended" in done.stderr
    assert a.end() == 0


def test_a_job_that_has_not_chosen_it_is_not_suspended(node: Node) -> None:
    a = node.puppet("A", "--request", "256Mi", "--limit", "3840Mi")
    done = node.gpushare("suspend", "A")
    assert done.returncode == 1
    assert "it was started without the step suspend" in done.stderr
    assert "--on-reclaim trim,suspend,term,kill" in done.stderr
    assert a.end() == 0


def test_memory_that_cannot_leave_leads_to_the_next_step(node: Node) -> None:
    a = borrower(node, "A", 11, "--grace", "300ms")
    a.do(f"managed {PART}")
    done = node.gpushare("suspend", "A")
    assert done.returncode == 1 and "managed memory" in done.stderr
    b = node.puppet("B", "--request", "2Gi")
    b.alloc(5 * PART)
    assert a.wait() in {137, 143}
    told = node.gpushare("explain", "A").stdout
    assert "is not suspended: it has managed memory, which cannot leave the GPU alone" in told
    assert b.end() == 0


def test_one_that_the_driver_refuses_runs_on_or_is_stopped(tmp_path: Path, puppets: Path) -> None:
    with Node(tmp_path, puppets, sim=f"{GPU},fail=cuCheckpointProcessCheckpoint:1+:801") as node:
        a = borrower(node, "A", 12, "--grace", "300ms")
        done = node.gpushare("suspend", "A")
        assert done.returncode == 0
        wait_for(lambda: state(node, "A") == "borrowing", "A to run on")
        assert a.do("filled 7") == []
        b = node.puppet("B", "--request", "2Gi")
        b.alloc(5 * PART)
        assert a.wait() in {137, 143}
        said = a.errors()
        assert "could not be suspended, and runs on: cuCheckpointProcessCheckpoint: CUDA_ERROR_NOT_SUPPORTED" in said
        assert b.end() == 0


def test_a_suspended_job_outlives_its_daemon(node: Node) -> None:
    a = borrower(node)
    b = node.puppet("B", "--request", "2Gi")
    b.alloc(5 * PART)
    assert state(node, "A") == "suspended"
    first = node.daemon_pid()
    node.kill_daemon()  # the wrappers start another
    wait_for(lambda: node.api("GET", "/v1/version").get("pid", first) != first, "the next daemon to answer")
    wait_for(lambda: state(node, "A") == "suspended", "the next daemon to know it")
    assert b.alloc(2 * PART) < 5000, "what is free of B's request is B's"
    assert b.end() == 0
    assert a.do("filled 7") == []
    assert a.end() == 0


def test_what_a_user_has_suspended_stays_so_with_the_next_daemon(node: Node) -> None:
    a = borrower(node, parts=2)
    assert node.gpushare("suspend", "A").returncode == 0
    wait_for(lambda: state(node, "A") == "suspended", "A to be suspended")
    first = node.daemon_pid()
    node.kill_daemon()  # the wrapper starts another
    wait_for(lambda: node.api("GET", "/v1/version").get("pid", first) != first, "the next daemon to answer")
    wait_for(lambda: state(node, "A") == "suspended", "the next daemon to know it")
    time.sleep(2.5)
    assert state(node, "A") == "suspended", "there is room, but its user holds it"
    assert node.gpushare("resume", "A").returncode == 0
    assert a.do("filled 7") == []
    assert a.end() == 0


def test_a_suspended_job_outlives_its_suspender(node: Node) -> None:
    a = borrower(node)
    b = node.puppet("B", "--request", "2Gi")
    b.alloc(5 * PART)
    first = suspender_of(a)
    assert first is not None
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: suspender_of(a) not in (None, first), "another suspender")
    assert b.end() == 0
    assert a.do("filled 7") == []
    assert a.end() == 0
    wait_for(lambda: gone(first), "no suspender to be left")


def test_a_suspended_job_outlives_its_wrapper(node: Node) -> None:
    """Its suspender lives on, and the daemon knows it."""
    a = borrower(node)
    b = node.puppet("B", "--request", "2Gi")
    b.alloc(5 * PART)
    program, suspender = a.pid(), suspender_of(a)
    assert suspender is not None
    a.wrapper.kill()
    a.wrapper.wait(10)
    assert b.end() == 0
    wait_for(lambda: state(node, "A") == "borrowing", "A to go on")
    os.kill(program, signal.SIGKILL)
    wait_for(lambda: gone(suspender), "the suspender to end with the job")


def test_a_killed_program_leaves_nothing(node: Node) -> None:
    a = borrower(node)
    b = node.puppet("B", "--request", "2Gi")
    b.alloc(5 * PART)
    os.kill(a.pid(), signal.SIGKILL)
    assert a.wait() == 137
    assert b.alloc(2 * PART) < 5000
    wait_for(lambda: node.gpu()["unmanaged"] == 0, "nothing to be unmanaged")
    assert b.end() == 0


def test_an_allocation_waits_until_its_job_goes_on(node: Node) -> None:
    a = borrower(node)
    b = node.puppet("B", "--request", "2Gi")
    b.alloc(5 * PART)
    a.send(f"alloc {PART}")
    time.sleep(0.5)
    assert b.end() == 0
    assert a.answer()[0] == "ok"
    assert a.end() == 0


def test_a_program_that_is_started_in_a_suspended_job_waits_until_it_goes_on(node: Node) -> None:
    node.start_daemon('[reclaim]\nclaim_timeout = "1s"\n')
    env = node.job_env("A", "--request", "256Mi", "--limit", "3840Mi", *STEPS)
    first = Puppet("A", node.spawn([str(node.puppets / "puppet-dlopen")], **env))
    first.do("open 0")
    first.alloc(PART)
    wait_for(lambda: suspendable(node, "A"), "its suspender")
    assert node.gpushare("suspend", "A").returncode == 0
    wait_for(lambda: state(node, "A") == "suspended", "A to be suspended")
    second = Puppet("A", node.spawn([str(node.puppets / "puppet-dlopen")], **env))
    second.send("open 0")
    time.sleep(10)  # longer than a process waits for the answer to a claim
    assert node.gpushare("resume", "A").returncode == 0
    assert second.answer() == ["ok"]
    assert second.end() == first.end() == 0


def test_without_room_in_host_memory_it_is_stopped_and_told_why(node: Node) -> None:
    node.start_daemon('[suspend]\nmemory = "1Gi"\n')
    a = borrower(node, "A", 12, "--grace", "300ms")
    b = node.puppet("B", "--request", "2Gi")
    b.alloc(5 * PART)
    assert a.wait() in {137, 143}
    assert "is not suspended: host memory has room for 1.0 GiB more" in node.gpushare("explain", "A").stdout
    assert b.end() == 0


@pytest.mark.parametrize("moment", ["suspending", "resuming"])
@pytest.mark.parametrize("victim", ["daemon", "wrapper", "suspender", "program"])
def test_whoever_is_killed_in_the_middle_nothing_is_lost(
    tmp_path: Path, puppets: Path, victim: str, moment: str
) -> None:
    """The software driver takes a second for each way. A suspender that is killed leaves the driver in the middle."""
    with Node(tmp_path, puppets, sim=f"{GPU},checkpoint_rate=3Gi") as node:
        a = borrower(node)
        b = node.puppet("B", "--request", "2Gi", "--limit", "2Gi")
        b.send(f"alloc {5 * PART}")
        if moment == "resuming":
            assert b.answer()[0] == "ok"
            b.send("free all")
            assert b.answer()[0] == "ok"
        wait_for(lambda: state(node, "A") == moment, f"A to be {moment}")
        program, suspender = a.pid(), suspender_of(a)
        pids = {"daemon": node.daemon_pid(), "wrapper": a.wrapper.pid, "suspender": suspender, "program": program}
        os.kill(pids[victim] or 0, signal.SIGKILL)
        if moment == "suspending":
            assert b.answer()[0] == "ok", "the owner gets its memory"
        assert b.end() == 0
        if victim == "program":
            assert a.wait() == 137
            wait_for(lambda: not node.api("GET", "/v1/jobs")["jobs"], "no job to be left")
            return
        wait_for(lambda: state(node, "A") == "borrowing", "A to go on")
        if victim == "daemon":
            time.sleep(1.5)  # it is sampled once more
            assert node.job("A")["gpus"][0]["peak"] <= 13 * PART, "its memory is counted once"
            assert "event=breach" not in node.log()
        if victim == "wrapper":
            os.kill(program, signal.SIGKILL)
            wait_for(lambda: gone(suspender or 0), "the suspender to end with the job")
        else:
            assert a.do("filled 7") == []
            assert a.end() == 0


def test_one_whose_suspender_is_killed_before_it_asks_the_driver_is_suspended_by_the_next(node: Node) -> None:
    a = borrower(node)
    suspender = suspender_of(a)
    assert suspender is not None
    os.kill(suspender, signal.SIGSTOP)
    b = node.puppet("B", "--request", "2Gi", "--limit", "2Gi")
    b.send(f"alloc {5 * PART}")
    wait_for(lambda: state(node, "A") == "suspending", "A to be suspending")
    os.kill(suspender, signal.SIGKILL)
    assert b.answer()[0] == "ok", "the owner gets its memory"
    assert state(node, "A") == "suspended"
    assert b.end() == 0
    assert a.do("filled 7") == []
    assert a.end() == 0


def test_one_that_is_stopped_by_its_terminal_is_not_said_to_be_suspended(node: Node) -> None:
    a = borrower(node)
    program = a.pid()
    os.kill(program, signal.SIGSTOP)
    wait_for(lambda: state(node, "A") == "stopped", "it to stand still")
    done = node.gpushare("suspend", "A")
    assert done.returncode == 1
    assert f"its process {program} stands still (Ctrl-Z" in done.stderr
    os.kill(program, signal.SIGCONT)
    assert node.gpushare("suspend", "A").returncode == 0
    wait_for(lambda: state(node, "A") == "suspended", "A to be suspended")
    os.kill(program, signal.SIGSTOP)
    assert node.gpushare("suspend", "A").returncode == 0, "it is, and stays so"
    os.kill(program, signal.SIGCONT)
    assert node.gpushare("resume", "A").returncode == 0
    assert a.do("filled 7") == []
    assert a.end() == 0


def test_nothing_is_kept_free_for_one_that_stands_still(node: Node) -> None:
    a = borrower(node)
    program = a.pid()
    b = node.puppet("B", "--request", "2Gi", "--limit", "2Gi")
    for _ in range(5):
        b.alloc(PART)
    assert state(node, "A") == "suspended"
    c = node.puppet("C", "--request", "none", "--limit", "2Gi")
    c.alloc(PART)
    for _ in range(3):
        b.do("free last")
    wait_for(lambda: c.try_(f"alloc {PART}")[0] == "error", "what A lacks to be kept for it")
    os.kill(program, signal.SIGSTOP)
    wait_for(lambda: c.try_(f"alloc {PART}")[0] == "ok", "it to be lent while A cannot go on")
    assert "it stands still (Ctrl-Z" in node.gpushare("explain", "A").stdout
    os.kill(program, signal.SIGCONT)
    assert c.end() == 0
    assert a.do("filled 7") == [], "it goes on when it fits"
    assert a.end() == 0
