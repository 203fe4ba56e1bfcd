"""Runs a check as a process of its own, with a time limit, and ends every process that it left behind.

A check may start daemons, which detach themselves. This process therefore adopts orphans (PR_SET_CHILD_SUBREAPER): all
that a check ever started stays below it, and nothing else does.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuday.judge import SIDES, Result
from gpuday.table import Check

ROOT = Path(__file__).resolve().parents[2]
PR_SET_CHILD_SUBREAPER = 36
TAIL = 2000
TO_END = 5.0


@dataclass(frozen=True)
class Machine:
    """What the checks run on."""

    driver: str = "nvidia"
    """nvidia or sim."""
    settings: str = "memory=16Gi"
    """GPUSHARE_SIM of the software driver, without pool=."""
    python: str = sys.executable
    """The Python that has the frameworks."""
    scale: float = 1.0
    """Of the time that random and repeated work takes."""
    only: tuple[str, ...] = ()
    """Of the parts of a check; all if empty."""
    binaries: str = ""
    """Where the small C programs are, already compiled. Empty: they are compiled when needed."""


def run(check: Check, machine: Machine, limit: float | None = None) -> Result:
    """The check's answers, not yet judged. `limit` in seconds, by default what the table says."""
    adopt_orphans()
    others = descendants()
    result = Result(check.number, check.name)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gpuday-") as directory:
        errors = Path(directory) / "errors"
        with errors.open("w") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-m", "gpuday.one", check.name, directory, json.dumps(machine.__dict__)],
                cwd=directory,  # `python -m gpushare` must not find another copy in the folder that we were called from
                env=environment(machine, Path(directory)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
            )
        try:
            in_time = _read(process, result, began + (limit or check.seconds))
            if in_time:
                result.rc = process.wait()
        finally:
            end_all(others)
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        if result.rc != 0:
            result.error = errors.read_text(errors="replace")[-TAIL:].strip()
    result.seconds = round(time.monotonic() - began, 3)
    return result


def environment(machine: Machine, directory: Path) -> dict[str, str]:
    """Of a check. It sees the same GPUs as the programs that it starts, without the preload library."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("GPUSHARE_", "CUDA_", "LD_PRELOAD", "RUNAI_"))
    }
    search = f"{ROOT}:{ROOT / 'daemon'}:{ROOT / 'tests'}"
    kept |= {
        "PYTHONPATH": ":".join(filter(None, (search, os.environ.get("GPUDAY_PACKAGES", "")))),
        "TMPDIR": str(directory),
    }
    kept |= {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    if machine.driver == "sim":
        kept |= {
            "GPUSHARE_SIM": f"{machine.settings},pool={directory}/pool",
            "LD_LIBRARY_PATH": str(ROOT / "gpushare" / "sim"),
        }
    return kept


def _read(process: subprocess.Popen[bytes], result: Result, deadline: float) -> bool:
    """Takes the check's lines until it ends. False if it has not ended in time."""
    assert process.stdout is not None
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            if not selector.select(max(0.0, deadline - time.monotonic())):
                return False
            fresh = os.read(process.stdout.fileno(), 65536)
            if not fresh:
                break
            *lines, rest = (rest + fresh).split(b"\n")
            for line in lines:
                take(json.loads(line), result)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(max(0.0, deadline - time.monotonic()))
    return process.poll() is not None


def take(line: dict[str, Any], result: Result) -> None:
    """One line of a check: an answer, or a part that it skips."""
    if "skip" in line:
        result.skipped[line["skip"]] = line["why"]
        return
    assert line["side"] in SIDES
    result.side(line["side"])[line["answer"]] = line["value"]


# ---- processes ---------------------------------------------------------------------------------------


def adopt_orphans() -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def parents() -> dict[int, int]:
    """Parent of each process that is not a zombie."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                if state not in "ZX":
                    found[int(entry.name)] = int(parent)
    return found


def descendants() -> set[int]:
    """Of this process."""
    above, ours = parents(), {os.getpid()}
    while True:
        more = {pid for pid, parent in above.items() if parent in ours} - ours
        if not more:
            return ours - {os.getpid()}
        ours |= more


def end_all(others: set[int]) -> None:
    """Kills the descendants of this process but the others, and waits until none is left (5 s at most)."""
    patience = time.monotonic() + TO_END
    while left := descendants() - others:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > patience:
            return
        time.sleep(0.01)
