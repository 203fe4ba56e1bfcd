"""A pid that is used again: no signal reaches the process that has it now, and it is no part of its job."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_harness import GIB, GPU, until

from gpushared.jobs.registry import stop
from gpushared.system.processes import Process, Sent

LAST_PID = Path("/proc/sys/kernel/ns_last_pid")
A_TICK = 0.02
"""Seconds; start times count hundredths."""


@contextlib.contextmanager
def another_with(pid: int) -> Iterator[int]:
    """A process with this pid, which is free. The kernel gives the one after the last; others may be quicker."""
    time.sleep(A_TICK)
    for _ in range(200):
        try:
            LAST_PID.write_text(str(pid - 1))
        except OSError:
            pytest.skip("the next pid cannot be chosen here")
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        if child == pid:
            break
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    else:
        pytest.skip("others were always quicker")
    try:
        yield child
        assert os.waitpid(child, os.WNOHANG) == (0, 0), "it lives"
    finally:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def a_process() -> int:
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    return child


def end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_signals_reach_the_process_that_was_met_or_none():
    pid = a_process()
    met = Process.open(pid)
    assert met is not None
    end(pid)
    with another_with(pid):
        assert met.send(signal.SIGKILL) is Sent.GONE and met.send(signal.SIGTERM, 61001) is Sent.GONE
        assert not met.alive()
        assert Process.open(pid, met.start_time) is None
        now = Process.open(pid)
        assert now is not None and not now.same(met)
        now.close()
    met.close()


def test_a_job_whose_process_has_ended_does_not_get_its_successor(daemon, program):
    """Its main process and its process on the GPU; while the daemon looks, and only then."""
    one = program(daemon.shim)
    assert one.call("hello", request=GIB, limit=GIB, name="a")["status"] == 0
    main = a_process()
    job = daemon.client.register({"name": "b", "command": ["b"], "request": "1Gi", "limit": "1Gi", "gpus": 1})["id"]
    daemon.client.set_main(job, main)
    (entry,) = (entry for entry in daemon.shell.registry.live() if entry.id == job)
    end(main)
    with another_with(main):
        assert set(daemon.call(lambda: stop(entry, [], signal.SIGKILL)).values()) <= {Sent.GONE}
        daemon.client.stop("b", now=True)
        time.sleep(0.2)


def test_what_was_written_down_is_not_about_the_next_process_of_the_pid(node, program):
    """The daemon is away while the process ends and its pid is used again."""
    node.start()
    one = program(node.shim)
    assert one.call("hello", request=GIB, limit=GIB, name="a")["status"] == 0
    assert one.call("attach", GPU)["status"] == 0
    pid = one.pid
    node.kill()
    one.process.kill()
    one.process.wait()
    with another_with(pid):
        node.start()
        until(lambda: node.client.jobs() == [])
        assert list((node.directory / "pages").iterdir()) == []
        time.sleep(0.2)
