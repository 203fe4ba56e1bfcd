"""The kernel ends the program or its wrapper for want of memory; and a program in a chroot."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hosts_node import SHIM

from integration.node import wait_for

MIB = 2**20
CGROUPS = Path("/sys/fs/cgroup")
HOLDER = """
    cuda = Cuda().start()
    cuda.must_alloc(2 * GiB)
    say(1)
    while hear():
        say(cuda.alloc(256 * MiB)[0])
"""
HOG = """
    cuda = Cuda().start()
    cuda.must_alloc(2 * GiB)
    say(1)
    hear()
    hog = bytearray(400 * MiB)
    say("not reached")
"""


@contextlib.contextmanager
def limited(pid: int, size: int) -> Iterator[None]:
    """What the process takes from now on is limited, as in a container."""
    for above, limit in ((CGROUPS / "memory", "memory.limit_in_bytes"), (CGROUPS, "memory.max")):
        group = above / f"gpushare-test-{os.getpid()}"
        with contextlib.suppress(OSError):
            group.mkdir()
            if (group / limit).exists():
                break
            group.rmdir()
    else:
        pytest.skip("no group with a limit of memory can be made here")
    try:
        (group / limit).write_text(str(size))
        with contextlib.suppress(OSError):
            (group / "memory.swap.max").write_text("0")
        (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        for one in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (above / "cgroup.procs").write_text(one)
        wait_for(lambda: removed(group), "the group to be empty")


def removed(group: Path) -> bool:
    with contextlib.suppress(OSError):
        group.rmdir()
    return not group.exists()


def free_again(hosts) -> bool:
    gpus = hosts.api("GET", "/v1/status")["gpus"]
    return sum(gpu["usage"] + gpu["returning"] + gpu["unmanaged"] for gpu in gpus) == 0


@pytest.fixture
def alone(hosts):
    hosts.env["CUDA_VISIBLE_DEVICES"] = "0"
    return hosts


def test_a_program_that_is_ended_for_its_memory(alone):
    """Its GPU memory is back, and `gpushare run` ends as the program did, with a word about the signal."""
    program = alone.start(HOG, "--limit", "4Gi", "--name", "hog")
    assert program.stdout.readline() == "1\n"
    (process,) = alone.job("hog")["processes"]
    with limited(process["pid"], 100 * MIB):
        out, err = program.communicate("\n", timeout=60)
    assert program.returncode == 128 + signal.SIGKILL and out == "", err
    assert "reclaim" not in err and "gave back" not in err, "nobody wanted its memory"
    wait_for(lambda: free_again(alone), "its memory to be back")


def test_a_wrapper_that_is_ended_leaves_its_program_in_peace(alone):
    """SIGKILL is what the kernel sends for want of memory. The program keeps what it has, and gets more."""
    program = alone.start(HOLDER, "--limit", "4Gi", "--name", "holder")
    assert program.stdout.readline() == "1\n"
    program.send_signal(signal.SIGKILL)
    program.wait(10)
    program.stdin.write("x\n")
    program.stdin.flush()
    assert program.stdout.readline() == "0\n", "it goes on"
    program.stdin.close()
    wait_for(lambda: free_again(alone), "its memory to be back")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change its root")
def test_a_program_in_a_chroot_without_proc_and_socket(alone, tmp_path):
    """The library is there, and neither the daemon's socket nor /proc: the program runs, and says what it says."""
    root = tmp_path / "root"
    listed = subprocess.run(["ldd", "/bin/echo"], capture_output=True, text=True, check=True).stdout
    for file in {word for word in listed.split() if word.startswith("/")} | {"/bin/echo", str(SHIM)}:
        (root / file[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(file).resolve(), root / file[1:])
    done = alone.gpushare("run", "-q", "--limit", "1Gi", "--", "chroot", root, "/bin/echo", "x")
    assert (done.returncode, done.stdout, done.stderr) == (0, "x\n", "")
    wait_for(lambda: free_again(alone), "all to be back")
