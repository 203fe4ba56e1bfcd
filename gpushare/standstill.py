"""Whether a process stands still: nothing in it runs until somebody lets it."""

from __future__ import annotations

from pathlib import Path

__all__ = ["HOW", "stands_still"]

GROUPS = Path("/sys/fs/cgroup")
PROCESSES = Path("/proc")
STOPPED = ("T", "t")
"""By a signal; by a debugger."""
HOW = "Ctrl-Z, SIGSTOP, a debugger or `docker pause`"
"""For people."""


def stands_still(pid: int) -> bool:
    """NVIDIA's driver waits without end for such a program before it suspends it or brings it back."""
    return _is_stopped(pid) or _is_frozen(pid)


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
