"""Processes on a GPU without a page: which are told, in which order, under which job, and why they have none."""

from __future__ import annotations

import os
import shutil
import stat
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from daemon_harness import GIB, GPU, until
from fixed_gpus import FixedGpus
from other_user import ALICE, needs_root

from gpushared.gpus.foreign_processes import (
    UnhookedFinder,
    foreign_processes,
    has_interpreter,
    job_of,
    open_unhooked,
    reason_of,
)
from gpushared.gpus.inventory import GpuInfo, Sample
from gpushared.system.processes import start_time

# Numbers, not the daemon's own names for them: that they stay is a part of what is tested.
PT_INTERP = 3

LOADABLE, DYNAMIC = 1, 2
"""Other entries of a program's table: PT_LOAD and PT_DYNAMIC."""
NOBODY = 2**22
"""No process has this id: the kernel's largest is one less."""


def elf(kinds: list[int], *, table: int = 64, size: int = 56, bits: int = 2) -> bytes:
    """A program's file as far as its table of segments, which may begin anywhere."""
    head = bytearray(64)
    head[:5] = b"\x7fELF" + bytes([bits])
    struct.pack_into("<Q", head, 32, table)
    struct.pack_into("<HH", head, 54, size, len(kinds))
    entries = b"".join(struct.pack("<I", kind).ljust(size, b"\xff") for kind in kinds)
    return bytes(head).ljust(table, b"\0") + entries


@pytest.mark.parametrize(
    ("content", "has"),
    [
        (elf([LOADABLE, PT_INTERP]), True),
        (elf([PT_INTERP]), True),
        (elf([LOADABLE, DYNAMIC, PT_INTERP, LOADABLE], table=4096), True),
        (elf([LOADABLE, LOADABLE, PT_INTERP], size=64), True),
        (elf([LOADABLE, DYNAMIC]), False),
        (elf([LOADABLE, DYNAMIC], table=4096), False),
        (elf([LOADABLE, DYNAMIC], table=65536 + 300), False),
        (elf([]) + struct.pack("<I", PT_INTERP), False),
    ],
)
def test_a_program_with_a_loader_says_so_in_its_table(tmp_path, content, has):
    (tmp_path / "program").write_bytes(content)
    assert has_interpreter(tmp_path / "program") is has


@pytest.mark.parametrize("content", [b"", b"#!/bin/sh\n", b"#!/bin/sh" * 9, elf([PT_INTERP], bits=1), elf([1, 1])[:90]])
def test_a_file_that_is_no_program_of_64_bits(tmp_path, content):
    (tmp_path / "program").write_bytes(content)
    with pytest.raises((ValueError, struct.error, IndexError)):
        has_interpreter(tmp_path / "program")


@pytest.fixture
def start() -> Iterator[Callable[..., int]]:
    """Starts a program and waits until it is that program."""
    made = []

    def run(path: str | Path, *arguments: str, **environment: str) -> int:
        made.append(subprocess.Popen([str(path), *arguments], env={"PATH": os.environ["PATH"], **environment}))
        pid = made[-1].pid
        until(lambda: Path(f"/proc/{pid}/exe").resolve() == Path(path).resolve())
        until(lambda: Path(f"/proc/{pid}/environ").read_bytes())  # there a moment after its file
        return pid

    yield run
    for one in made:
        one.kill()
        one.wait()


SLEEP = shutil.which("sleep") or ""


def test_why_a_process_has_no_page(start, tmp_path):
    own = shutil.copy(SLEEP, tmp_path / "own")
    with_our_name = shutil.copy(SLEEP, tmp_path / "libgpushare.so")  # it is mapped under this name
    setuid = shutil.copy(SLEEP, tmp_path / "setuid")
    Path(setuid).chmod(0o755 | stat.S_ISUID)
    assert reason_of(start(own, "60")) == "not_preloaded"
    assert reason_of(start(with_our_name, "60")) == "past_the_shim"
    assert reason_of(start(setuid, "60")) == "setuid"
    assert reason_of(NOBODY) == "unknown"


def test_a_static_program_is_named_so(start, tmp_path):
    source = tmp_path / "waits.c"
    source.write_text("#include <unistd.h>\nint main(void) { for (;;) pause(); }\n")
    compiler = [os.environ.get("CC", "cc"), "-static", "-o", str(tmp_path / "waits"), str(source)]
    if subprocess.run(compiler, capture_output=True, check=False).returncode:
        pytest.skip("nothing links static programs here")
    assert reason_of(start(tmp_path / "waits")) == "static"


@pytest.mark.parametrize(
    ("environment", "job"),
    [({"GPUSHARE_JOB": "a1"}, "a1"), ({"GPUSHARE_JOB": ""}, None), ({"OLD_GPUSHARE_JOB": "b2"}, None), ({}, None)],
)
def test_the_job_that_a_process_was_started_under(start, environment, job):
    assert job_of(start(SLEEP, "60", **environment)) == job


def test_nobody_was_started_under_a_job():
    assert job_of(NOBODY) is None


def test_a_handle_for_a_process_of_the_job_and_of_no_other(start):
    pid = start(SLEEP, "60", GPUSHARE_JOB="a1")
    process = open_unhooked(pid, "a1")
    assert process is not None and (process.pid, process.start_time) == (pid, start_time(pid))
    process.close()
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert open_unhooked(pid, "b2") is None and open_unhooked(NOBODY, "a1") is None
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    inside = open_unhooked(pid, "b2", {pid: "b2"}.get)
    assert inside is not None, "a placement counts before the environment"
    inside.close()
    assert open_unhooked(pid, "a1", {pid: "b2"}.get) is None


def test_the_largest_comes_first_and_who_is_known_is_left_out(start):
    first, second, third = (start(SLEEP, "60") for _ in range(3))
    sample = {third: GIB, first: GIB, second: 3 * GIB, os.getpid(): 2 * GIB, NOBODY: 2 * GIB, os.getppid(): 0}
    found = foreign_processes(sample, [os.getpid()])
    assert [one["pid"] for one in found] == [second, NOBODY, *sorted((first, third))]
    assert [one["bytes"] // GIB for one in found] == [3, 2, 1, 1]
    assert (found[0]["command"], found[0]["uid"], found[0]["job"]) == ("sleep", os.getuid(), None)
    gone = found[1]
    assert (gone["command"], gone["user"], gone["uid"], gone["reason"]) == ("?", "?", -1, "unknown")
    assert foreign_processes(None, []) == []


def test_who_holds_nothing_and_who_has_a_page_is_not_looked_at():
    """Each look reads files of the process."""
    looked = []

    def placed(pid):
        looked.append(pid)
        return "a1"

    jobs: Any = {"a1": SimpleNamespace(spec=SimpleNamespace(uid=70001))}
    clients: Any = SimpleNamespace(of_pid=lambda pid: [object()] if pid == 3 else [])
    finder = UnhookedFinder(placed)
    assert set(finder.among(GPU, {NOBODY: 1, 2: 0, 3: 5}, clients, jobs)) == {NOBODY} and looked == [NOBODY]
    assert set(finder.among(GPU, {NOBODY: 7}, clients, jobs)) == {NOBODY} and looked == [NOBODY], "once"
    assert finder.among(GPU, {NOBODY: 7}, clients, {}) == {} == finder.among(GPU, None, clients, jobs)
    assert set(finder.among(GPU, {NOBODY: 7}, clients, jobs)) == {NOBODY} and looked == [NOBODY] * 2, "it had gone"


def shown(make_daemon, by_pid: dict[int, int], job: str) -> list[dict]:
    gpus = FixedGpus([GpuInfo(GPU, 0, "Test GPU", 16 * GIB)], {GPU: Sample(sum(by_pid.values()), by_pid)})
    daemon = make_daemon(gpus)
    body = {"job": job, "name": "watched", "command": ["x"], "mode": "observe"}
    assert daemon.client.register(body)["state"] == "observed"
    return until(lambda: daemon.client.status()["gpus"][0]["unmanaged_processes"])


JOB = "00000000000000a1"


def test_a_process_of_an_observed_job_is_only_observed(make_daemon, start):
    inside, outside = start(SLEEP, "60", GPUSHARE_JOB=JOB), start(SLEEP, "60", GPUSHARE_JOB="00000000000000b2")
    found = shown(make_daemon, {inside: 2 * GIB, outside: GIB}, JOB)
    assert [(one["pid"], one["job"], one["reason"]) for one in found] == [
        (inside, JOB, "observed"),
        (outside, "00000000000000b2", "not_preloaded"),
    ]


@needs_root
def test_what_another_user_writes_into_its_environment_makes_it_no_part_of_the_job(make_daemon):
    with subprocess.Popen([SLEEP, "60"], env={"GPUSHARE_JOB": JOB}, user=ALICE, cwd="/") as process:
        until(lambda: job_of(process.pid) == JOB)
        (found,) = shown(make_daemon, {process.pid: GIB}, JOB)
        assert (found["uid"], found["reason"]) == (ALICE, "not_preloaded")
        process.kill()
