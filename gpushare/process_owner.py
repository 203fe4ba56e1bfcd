"""The user of a process, asked before root or the daemon sends it a signal.

A process that executes a setuid program belongs to another user from then on, with the same pid and a valid pidfd. The
rule is the kernel's own: a user may signal a process if it is the process's real or saved user. So no user can end with
gpushare a process that it could not end itself.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["ROOT", "may_signal", "users_of"]

ROOT = 0


def users_of(pid: int) -> tuple[int, int] | None:
    """The real and the saved user id; None: no such process, or we may not see it."""
    try:
        status = Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return None
    for line in status.splitlines():
        if line.startswith(b"Uid:"):
            real, _effective, saved, _files = (int(one) for one in line.split()[1:5])
            return real, saved
    return None


def may_signal(uid: int, users: tuple[int, int]) -> bool:
    """Whether this user may signal a process with these real and saved users."""
    return uid == ROOT or uid in users
