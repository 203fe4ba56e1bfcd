"""Whether a process stands still: nothing in it runs until somebody lets it."""

from __future__ import annotations

import time
from pathlib import Path

__all__ = ["HOW", "LOOKED_AT", "PROBLEM", "stands_still", "stays_still"]

GROUPS = Path("/sys/fs/cgroup")
PROCESSES = Path("/proc")
STOPPED = ("T", "t")
"""By a signal; by a debugger."""
HOW = "Ctrl-Z, SIGSTOP, a debugger or `docker pause`"
"""For people."""
PROBLEM = f"it stands still ({HOW}), and the driver would wait for it"
"""Why its job is not suspended, and not brought back."""
LOOKED_AT = 0.2
"""Seconds: who stands still for so long does not go on by itself. Tools that watch a program (strace, py-spy) stop it,
too, many times a second and each time for a moment."""


def stands_still(pid: int) -> bool:
    """Whether it does so now. NVIDIA's driver waits without end for such a program before it suspends it or brings it
    back."""
    return _is_stopped(pid) or _is_frozen(pid)


def stays_still(pid: int) -> bool:
    """Whether it does so for LOOKED_AT seconds. Blocks for as long, if it does."""
    until = time.monotonic() + LOOKED_AT
    while stands_still(pid):
        if time.monotonic() >= until:
            return True
        time.sleep(LOOKED_AT / 20)
    return False


def _is_stopped(pid: int) -> bool:
    state = _read(PROCESSES / str(pid) / "stat").rpartition(")")[2].split()[:1]
    return bool(state) and state[0] in STOPPED


def _is_frozen(pid: int) -> bool:
    """Whether one of its control groups is frozen, or one above it."""
    for line in _read(PROCESSES / str(pid) / "cgroup").splitlines():
        _, kinds, path = (*line.split(":", 2), "", "")[:3]
        own = path.strip("/")
        if ".." in own:  # a group outside of our own namespace has no file here
            continue
        if kinds == "freezer" and _read(GROUPS / "freezer" / own / "freezer.state").strip() in ("FROZEN", "FREEZING"):
            return True
        places = (GROUPS / own, GROUPS / "unified" / own) if kinds == "" else ()
        if any("frozen 1" in _read(place / "cgroup.events").splitlines() for place in places):
            return True
    return False


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
