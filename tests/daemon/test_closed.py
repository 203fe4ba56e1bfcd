"""What the daemon opens for a while is closed: it lives for months, and has a bound of descriptors."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import socket
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from daemon_harness import GIB, GPU, InProcess, until

from gpushared.clients.ledger import Ledger
from gpushared.clients.pages import Pages
from gpushared.gpus import nvml
from gpushared.history.file import File
from gpushared.history.usage import UsageHistory
from gpushared.jobs import placements as placements_
from gpushared.jobs.placements import Placement, Placements
from gpushared.system.processes import Process, start_time

JOB = {"name": "train", "command": ["x"], "request": "1Gi", "limit": "2Gi", "devices": ["0"]}


def open_now() -> list[str]:
    """What this process has open, without the numbers of sockets and the like."""
    gc.collect()
    found = []
    for one in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that of the list itself
            found.append(str(one.readlink()).partition(":[")[0])
    return sorted(found)


def idle(daemon: InProcess) -> list[str]:
    """What is open when no call is under way."""
    until(lambda: not daemon.daemon.api.guard.listener._connections)
    return open_now()


@pytest.fixture
def sleeper() -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    made: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        made.append(subprocess.Popen(["sleep", "60"]))
        return made[-1]

    yield start
    for one in made:
        one.kill()
        one.wait()


def test_pages_whose_processes_have_become_other_programs(directory: Path) -> None:
    """Found at a start. The process lives, and nobody holds its page any more."""
    before, owner = open_now(), Process.open(os.getpid())
    pages = Pages(directory / "pages")
    page = pages.create(owner, 1000, job="00000000000000ff", priority=0, grace_ms=0, name="x")
    path = page.path
    page.close(remove=False)
    pages.make_spares()
    pages.close()
    later = Pages(directory / "pages")
    assert list(later.reopen()) == [] and not path.exists() and later.ledger.found == {}
    later.close()
    owner.close()
    assert open_now() == before


def test_a_ledger_and_a_history(tmp_path: Path) -> None:
    before = open_now()
    ledger = Ledger(tmp_path / "ledger")
    ledger.close()
    with pytest.raises(ValueError, match="closed"):
        ledger.map[0]
    for version in (2, 99):  # the second is put aside, and another begun
        path = tmp_path / f"{version}" / "usage.db"
        File(path, 10**12).close()
        with sqlite3.connect(path) as db:
            db.execute(f"pragma user_version = {version}")
        db.close()
        File(path, 10**12).close()
    usage = UsageHistory(tmp_path / "usage")
    usage.start()
    assert usage._thread is not None and usage._thread.daemon
    usage.look({}, lambda _: None, 10.0**9)  # type: ignore[arg-type, return-value]
    until((tmp_path / "usage" / "usage.db").exists)
    usage.close()
    assert not usage._thread.is_alive() and open_now() == before


def test_holders_of_placements_that_are_looked_at(sleeper) -> None:
    table, holder = Placements(), sleeper()
    table.put(Placement("p", 1, "j", (), (), ((2**22, 1), (holder.pid, start_time(holder.pid) or 0))))
    before = open_now()
    assert table.deserted(5.0) == [] and table.deserted(5000.0) == []
    assert placements_._lives([(holder.pid, 1)]) is False, "another process that had its number"
    assert placements_._lives([(2**40, 1)]) is False, "no process ever had it"
    assert open_now() == before


def test_what_the_software_driver_says(capfd: pytest.CaptureFixture[str]) -> None:
    before, lines = open_now(), list[str]()
    with nvml._heard(lines):
        os.write(2, b"one\ntwo\nthe rest")
    assert lines == ["one", "two"] and capfd.readouterr().err == "one\ntwo\nthe rest" and open_now() == before


def test_programs_of_a_job_one_after_the_other(daemon: InProcess, sleeper) -> None:
    job = daemon.client.register(JOB)["id"]
    programs = [sleeper() for _ in range(3)]
    daemon.client.set_main(job, programs[0].pid)
    before = idle(daemon)
    for one in programs:
        daemon.client.set_main(job, one.pid)
    with subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE) as shell:
        grandchild = int(shell.stdout.readline())  # type: ignore[union-attr]
        status, said = daemon.http("PUT", f"/v1/jobs/{job}/main", json.dumps({"pid": grandchild}).encode())
        os.kill(grandchild, signal.SIGKILL)
    assert (status, json.loads(said)["error"]["code"]) == (403, "not_a_child")
    until(lambda: idle(daemon) == before)
    assert daemon.client.stop(job, now=True)["processes"] == 1
    assert programs[2].wait(10) == -signal.SIGKILL and programs[1].poll() is None
    daemon.client.end(job, None, 9)
    until(lambda: len(idle(daemon)) < len(before))


def test_a_day_of_connections(daemon: InProcess) -> None:
    """With pages and without, of jobs with wrappers and without, and of followers."""
    before = idle(daemon)
    for _ in range(3):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
            silent.connect(str(daemon.shim))
            until(lambda: len(daemon.daemon.shims._connections) == 1)
        until(lambda: not daemon.daemon.shims._connections)
        job = daemon.client.register(JOB)["id"]
        streams = [socket.socket(socket.AF_UNIX) for _ in range(2)]
        for stream, what in zip(streams, ("suspender", "hooks"), strict=True):
            stream.connect(str(daemon.directory / "api.sock"))
            stream.sendall(f"GET /v1/jobs/{job}/{what} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert stream.recv(4096).startswith(b"HTTP/1.1 200")
        with daemon.connect() as shim:
            shim.hello(job)
            shim.attach(GPU)
            with daemon.connect() as again:  # the same program connects once more, with its page
                again.page_fd, again.page_id = shim.page_fd, shim.page_id
                assert again.hello(job, present=True).page_id == shim.page_id
                again.page_fd = -1
            shim.unmap()
        daemon.client.end(job, 0, None)
        for stream in streams:
            stream.close()
        with daemon.connect() as shim:
            shim.hello(request=GIB, limit=GIB)
            shim.unmap()
    until(lambda: not len(daemon.shell.clients) and not list(daemon.shell.registry.live()))
    until(lambda: len(idle(daemon)) <= len(before))
