"""What the shim does to a program that it is in: nothing that the program could see, as the kernel tells it."""

from __future__ import annotations

import collections
import re
import shutil
import signal
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


BORROWS = ("--request", "1Gi", "--limit", "2Gi")


def test_a_borrower_has_one_thread_more(hosts, compile_c):
    done = hosts.gpushare("run", *BORROWS, compile_c("unchanged.c"))
    assert done.stdout == "2 threads \n", done.stdout + done.stderr


@needs_strace
def test_a_borrower_makes_one_thread_and_no_other_trace(hosts, compile_c, tmp_path):
    job = hosts.job_env("traced", *BORROWS)
    program = [str(compile_c("starts.c")), "spawn"]
    without = trace(program, hosts.bare(), tmp_path / "without")
    with_us = trace(program, job, tmp_path / "with")
    for forbidden in ("umask", "exit_group", "chdir", "setsid", "setpgid", "kill", "tgkill", "prctl", "setrlimit"):
        assert names(with_us)[forbidden] == names(without)[forbidden], forbidden
    started = [sum(names(calls)[one] for one in ("clone", "clone3", "fork", "vfork")) for calls in (without, with_us)]
    assert started[1] == started[0] + 2, "one in each of the two processes that use the GPU"


def test_the_thread_of_a_borrower(hosts):
    """There from the first context on; it has the program's name, and takes none of its signals."""
    said = hosts.python(
        """
        import signal, time
        def threads():
            found = {}
            for task in os.listdir("/proc/self/task"):
                lines = open(f"/proc/self/task/{task}/status").read().splitlines()
                found[int(task)] = dict(line.split(":\\t", 1) for line in lines if ":\\t" in line)
            return found
        def masks():
            ours = [status for task, status in threads().items() if task != os.getpid()]
            return [[status["Name"], int(status["SigBlk"], 16)] for status in ours]
        handlers = [str(signal.getsignal(n)) for n in range(1, 32)]
        say([masks(), open("/proc/self/comm").read().strip()])
        cuda = Cuda()
        check(cuda.cuInit(0))
        Nvml().memory()
        say(masks())
        cuda.start()
        until = time.monotonic() + 5
        while masks()[0][1] >> signal.SIGSEGV - 1 & 1 and time.monotonic() < until:
            time.sleep(0.01)  # the C library begins a thread with all of them blocked
        say(masks())
        got = []
        signal.signal(signal.SIGUSR1, lambda *_: got.append(1))
        for _ in range(200):
            os.kill(os.getpid(), signal.SIGUSR1)
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
        say([len(got), handlers == [str(signal.getsignal(n)) for n in range(1, 32)]])
        """,
        *BORROWS,
    )
    (before, name), initialised, ((ours, blocked),), (signals, same) = said
    assert before == initialised == []
    assert ours == name
    faults = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS}
    never = {signal.SIGKILL, signal.SIGSTOP}
    for number in set(signal.valid_signals()) - never:
        assert bool(blocked >> (number - 1) & 1) is (number not in faults), number
    assert (signals, same) == (200, True)


@pytest.mark.parametrize("settings", [{}, SETTINGS])
@pytest.mark.parametrize(
    "program",
    [
        ["ls", "-la", str(Path(__file__).parent / "programs")],  # "/" shows how many processes there are
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
