"""Whose a process is at this moment, for those who signal it with more rights than its user has (root, the daemon).

A process changes hands: a setuid program that it executes is another user's process under the same pid, and a pidfd
stays valid through that. The rule is the kernel's own for users without privileges: a user may signal the processes
whose real or saved user it is. So nobody ends by way of gpushare what it could not end itself.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["ROOT", "may_signal", "users_of"]

ROOT = 0


def users_of(pid: int) -> tuple[int, int] | None:
    """The real and the saved user id; None: no such process, or it is not shown to us."""
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
    """Whether this user could signal a process of these users itself."""
    return uid == ROOT or uid in users
