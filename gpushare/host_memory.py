"""What a process may still take of host memory: by its control groups, whose limit kills and does not refuse."""

from __future__ import annotations

from pathlib import Path

__all__ = ["shortage"]

GROUPS = Path("/sys/fs/cgroup")
PROCESSES = Path("/proc")


def shortage(pid: int, amount: int) -> str:
    """Why this process cannot take so many bytes more, for people; empty if it can, or if nobody says."""
    room = _room(pid)
    if room is None or amount <= room:
        return ""
    return f"its control group has {room >> 20} MiB of host memory left, and {amount >> 20} MiB would go there"


def _room(pid: int) -> int | None:
    """In bytes: the least of all groups that it is in (cgroup v2). None: no group has a limit."""
    try:
        lines = (PROCESSES / str(pid) / "cgroup").read_text().splitlines()
    except OSError:
        return None
    own = next((line[3:].strip("/") for line in lines if line.startswith("0::")), None)
    if own is None or ".." in own:
        return None
    group, rooms = GROUPS / own, []
    while group != GROUPS.parent:
        room = _room_in(group)
        if room is not None:
            rooms.append(room)
        group = group.parent
    return min(rooms, default=None)


def _room_in(group: Path) -> int | None:
    try:
        most, now = (group / "memory.max").read_text().strip(), int((group / "memory.current").read_text())
        return None if most == "max" else max(0, int(most) - now)
    except (OSError, ValueError):
        return None
