"""What the shim does to a program that it is in: nothing that the program could see, as the kernel tells it."""

from __future__ import annotations

import collections
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hosts_node import SHIM

needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
# What the loader does for one library more; brk and mremap: its own memory.
LOADING = {"openat", "read", "pread64", "fstat", "newfstatat", "mmap", "mprotect", "munmap", "close", "brk"}
SETTINGS = {"GPUSHARE_LIMIT": "1Gi", "GPUSHARE_LOG": "debug"}


def trace(command: list[str], env: dict[str, str], file: Path) -> list[str]:
    line = ["strace", "-f", "-qq", "-s", "64", "-o", str(file), *command]
    done = subprocess.run(line, env=env, capture_output=True, text=True, check=False, timeout=60)
    if "ptrace" in done.stderr:
        pytest.skip("strace may not trace here")
    return [line.split(maxsplit=1)[1] for line in file.read_text().splitlines()]


def names(calls: list[str]) -> collections.Counter[str]:
    return collections.Counter(found[1] for call in calls if (found := re.match(r"(\w+)\(", call)))


@needs_strace
@pytest.mark.parametrize("program", [["/bin/true"], ["/bin/sh", "-c", "umask; cd /; ls >/dev/null; exit 3"]])
def test_before_the_first_cuda_call_there_is_only_the_loader(hosts, tmp_path, program):
    """A constructor, a thread, a look at the environment would show as a call that is not there without us."""
    env = hosts.bare(**SETTINGS)
    without = trace(program, env, tmp_path / "without")
    with_us = trace(program, {**env, "LD_PRELOAD": str(SHIM)}, tmp_path / "with")
    more = names(with_us) - names(without)
    assert set(more) <= LOADING, more
    strange = [call for call in with_us if re.search("gpushare|GPUSHARE", call.replace(str(SHIM), ""))]
    assert not [call for call in strange if "execve(" not in call and "/gpushare-sim/drivers" not in call], strange


@needs_strace
@pytest.mark.parametrize("way", ["exec", "vfork", "spawn", "fork"])
def test_a_whole_run_makes_no_call_that_a_guest_may_not_make(hosts, compile_c, tmp_path, way):
    """With a daemon, allocations, a refusal and its message: compared with the same run without us."""
    job = hosts.job_env("traced", "--limit", "2Gi")
    program = [str(compile_c("starts.c")), way]
    without = trace(program, hosts.bare(), tmp_path / "without")
    with_us = trace(program, job, tmp_path / "with")
    assert any("shim.sock" in call for call in with_us), "the daemon was asked"
    for forbidden in (
        "rt_sigaction",
        "rt_sigprocmask",
        "umask",
        "exit",
        "exit_group",
        "chdir",
        "setsid",
        "setpgid",
        "kill",
    ):
        assert names(with_us)[forbidden] == names(without)[forbidden], forbidden
    assert not {"rt_sigsuspend", "signalfd4", "prctl", "setrlimit", "ptrace", "seccomp"} & set(
        names(with_us) - names(without)
    )
    out = [[call for call in calls if call.startswith("write(1,")] for calls in (without, with_us)]
    assert len(out[0]) == len(out[1]) == 1
    started = [sum(names(calls)[one] for one in ("clone", "clone3", "fork", "vfork")) for calls in (without, with_us)]
    assert started[0] == started[1], "no thread and no process of ours"


@pytest.mark.parametrize("daemon", [True, False])
def test_a_program_finds_itself_as_it_was(hosts, compile_c, daemon):
    program = compile_c("unchanged.c")
    if daemon:
        done = hosts.gpushare("run", "--limit", "2Gi", program)
    else:
        env = hosts.bare(LD_PRELOAD=str(SHIM), **SETTINGS)
        done = subprocess.run([program], env=env, capture_output=True, text=True, check=False)
    assert done.stdout == "2 \n", done.stdout + done.stderr


@pytest.mark.parametrize("settings", [{}, SETTINGS])
@pytest.mark.parametrize(
    "program",
    [
        ["ls", "-la", "/"],
        ["cat", "/etc/passwd"],
        ["git", "--version"],
        ["sh", "-c", "umask; echo $0; trap; ulimit -n; ls /proc/self/fd | wc -l"],
        ["sh", "-c", "unset LD_PRELOAD; env | sort"],
        ["python3", "-c", "import signal; print([str(signal.getsignal(n)) for n in range(1, 32)])"],
    ],
    ids=lambda program: program[0],
)
def test_preloaded_everywhere(hosts, settings, program):
    """As by /etc/ld.so.preload."""
    if shutil.which(program[0]) is None:
        pytest.skip(f"no {program[0]} here")

    def run(**more: str) -> tuple[int, str, str]:
        env = {**hosts.bare(), **settings, **more}
        done = subprocess.run(program, env=env, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    assert run(LD_PRELOAD=str(SHIM), LD_BIND_NOW="1") == run(LD_BIND_NOW="1")
