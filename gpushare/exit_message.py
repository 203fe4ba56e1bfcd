"""How a job ended: the wrapper's exit code, its last message and its report.

A process that was stopped to give memory back looks like any other that a signal ended. So the wrapper says which it
was: reclaimed by the daemon, killed by the kernel for host memory, or killed by somebody else.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from gpushare.api import Job, JobGpu, Killed, Outcome
from gpushare.errors import render
from gpushare.file_kinds import is_file, is_there
from gpushare.killed import cause, owner
from gpushare.quantity import format_bytes, format_duration
from gpushare.reasons import Code

__all__ = ["Ending", "exit_message", "memory_kills", "write_report"]

READ_WITHIN = 5.0
"""Seconds for a report that goes into a pipe."""
KILLED = 128 + signal.SIGKILL
REPORTED = ("uuid", "index", "name", "total", "request", "limit")  # of each GPU


@dataclass(frozen=True, slots=True)
class Ending:
    """How the child ended, and what the daemon knows about it."""

    status: int  # as waitpid gives it
    program: str  # name[pid]
    outcome: Outcome | None = None
    killed_notice: str | None = None  # the daemon's last notice, if it ended before it gave the outcome
    by_kernel: bool = False
    stopped: bool = False  # by `gpushare stop`: its notice has been shown

    @property
    def signal(self) -> int | None:
        return os.WTERMSIG(self.status) if os.WIFSIGNALED(self.status) else None

    @property
    def child_exit_code(self) -> int | None:
        return os.WEXITSTATUS(self.status) if os.WIFEXITED(self.status) else None

    @property
    def reclaimed(self) -> bool:
        return self.killed_notice is not None or (self.outcome is not None and self.outcome["killed"] is not None)

    @property
    def exit_code(self) -> int:
        # A child that handles SIGTERM, saves its work and exits 0 has still not finished.
        if self.reclaimed:
            return KILLED
        return 128 + self.signal if self.signal is not None else self.child_exit_code or 0


def exit_message(ending: Ending) -> str | None:
    killed = ending.outcome["killed"] if ending.outcome else None
    if killed:
        facts, hint = DETAILS.get(killed["code"], _of_reclaim)(killed)
        return render(f"{ending.program} was stopped{cause(killed['code']).said} (exit {KILLED})", facts, hint=hint)
    if ending.killed_notice is not None:
        what, *more = ending.killed_notice.splitlines() or ["no reason was given"]
        return "\n".join([render(f"{ending.program} was stopped (exit {KILLED}): {what}"), *more])
    if ending.signal != signal.SIGKILL or ending.stopped:
        return None
    if ending.by_kernel:
        return render(
            f"{ending.program} was killed by the kernel: host memory ran out (exit {KILLED})",
            hint="this was not about GPU memory; see `dmesg` or the memory limit of its cgroup",
        )
    return render(f"{ending.program} was killed with SIGKILL, not by the daemon (exit {KILLED})")


Details = tuple[list[tuple[str, str]], str]
"""Facts and hint."""


def _of_reclaim(killed: Killed) -> Details:
    when = time.strftime("%H:%M:%S", time.localtime(killed["time"]))
    grace = f", grace {format_duration(killed['grace'])}" if killed["grace"] else ""
    facts = [
        ("owed", f"{format_bytes(killed['asked'])} to {owner(killed)} at {when}{grace}"),
        ("returned", format_bytes(killed["got"])),
        (
            "used",
            f"{format_bytes(killed['usage'])}, guaranteed {format_bytes(killed['request'])},"
            f" borrowed {format_bytes(killed['loan'])}",
        ),
    ]
    way_out = "free memory on SIGTERM within the grace" if grace else "have notice first with --on-reclaim term,kill"
    if killed["reason"]:
        facts.append(("reason", killed["reason"]))
    return facts, f"ask for more with --request, or {way_out}"


def _of_breach(killed: Killed) -> Details:
    facts = [("used", f"{format_bytes(killed['usage'])}, as the driver saw it"), ("reason", killed["reason"])]
    return facts, "contexts and loaded modules count: raise --limit, and --request with it, if that is what it needs"


def _of_stuck_suspension(killed: Killed) -> Details:
    facts = [("used", format_bytes(killed["usage"])), ("reason", killed["reason"])]
    return facts, "start it again from its last checkpoint; without the step suspend if this repeats"


DETAILS = {Code.BREACH.value: _of_breach, Code.SUSPEND_STUCK.value: _of_stuck_suspension}
"""By the code, where it is not a reclaim."""


def memory_kills() -> int:
    """How often the kernel has killed for host memory in our cgroup; 0 if that is not known."""
    try:
        group = next(line for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
        events = Path("/sys/fs/cgroup", group[3:].lstrip("/"), "memory.events").read_text()
        return next(int(line.split()[1]) for line in events.splitlines() if line.startswith("oom_kill "))
    except (OSError, StopIteration, ValueError, IndexError):
        return 0


def write_report(
    path: Path, *, ending: Ending, command: list[str], job: Job | None, duration: float, recommended: str | None
) -> None:
    """recommended: the limit to ask for, of a program that was only observed."""
    report = {
        "schema": "gpushare.report/1",
        "command": command,
        "mode": "daemon" if job else "standalone",
        "job": {"id": job["id"], "name": job["name"]} if job else None,
        "gpus": [_gpu(gpu, ending.outcome) for gpu in job["gpus"]] if job else [],
        "request_source": job["request_source"] if job else None,
        "limit_source": job["limit_source"] if job else None,
        "exit_code": ending.exit_code,
        "child_exit_code": ending.child_exit_code,
        "child_signal": ending.signal,
        "reclaimed": ending.reclaimed,
        "duration": round(duration, 3),
        "recommended_limit": recommended,
        "outcome": ending.outcome,
    }
    text = json.dumps(report, indent=2) + "\n"
    if is_there(path) and not is_file(path):  # a pipe, /dev/stderr
        _write_to_reader(path, text.encode())
        return
    # Replace the file in one step: a scheduler may be reading it.
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fresh.write_text(text)
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise


def _write_to_reader(path: Path, data: bytes) -> None:
    """Write to a pipe. Waits at most READ_WITHIN for a reader; a signal ends the wait."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    deadline = time.monotonic() + READ_WITHIN
    descriptor = _open_for_reader(path, deadline)
    try:
        while data:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([], [descriptor], [], left)[1]:
                raise TimeoutError(errno.ETIMEDOUT, f"it was not read within {READ_WITHIN:g} s")
            with contextlib.suppress(BlockingIOError):
                data = data[os.write(descriptor, data) :]
    finally:
        os.close(descriptor)


def _open_for_reader(path: Path, deadline: float) -> int:
    """Open without waiting in open(), which returns only when a reader comes."""
    while True:
        try:
            return os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
        if time.monotonic() >= deadline:
            raise TimeoutError(errno.ETIMEDOUT, f"it was not opened for reading within {READ_WITHIN:g} s")
        time.sleep(0.05)


def _gpu(gpu: JobGpu, outcome: Outcome | None) -> dict[str, object]:
    peak = outcome["peak"].get(gpu["uuid"]) if outcome else None
    return {name: value for name, value in gpu.items() if name in REPORTED} | {"peak": peak}
