"""What a path is that a user has written, or that comes from the user's environment.

Nothing is there where this user may not look, and under a name that no file can have. pathlib raises then, up to Python
3.13; who asks these is about to say what is wrong with the path.
"""

from __future__ import annotations

import stat
from pathlib import Path

__all__ = ["is_directory", "is_file", "is_there"]


def is_there(path: Path) -> bool:
    return _kind(path) != 0


def is_file(path: Path) -> bool:
    """A regular one, or a link to one."""
    return _kind(path) == stat.S_IFREG


def is_directory(path: Path) -> bool:
    """Or a link to one."""
    return _kind(path) == stat.S_IFDIR


def _kind(path: Path) -> int:
    """0: nothing."""
    try:
        return stat.S_IFMT(path.stat().st_mode)
    except (OSError, ValueError):
        return 0
