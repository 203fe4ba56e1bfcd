"""How a report's file is written: whole or not at all, in the place of one that is there."""

from __future__ import annotations

import os
from pathlib import Path

from gpushare.errors import GpushareError, UsageError

__all__ = ["check", "write"]


def check(path: Path) -> None:
    """Whether the file could be written, before anything is asked. Raises UsageError."""
    try:
        path.absolute()
    except FileNotFoundError:
        raise UsageError("the working directory has been removed", hint="change to another") from None
    if not path.parent.is_dir():
        raise UsageError(f"{path.parent} is not a directory", hint="make it first, or write elsewhere")
    if not os.access(path.parent, os.W_OK):
        raise UsageError(f"cannot write into {path.parent}", hint="write elsewhere")


def write(path: Path, content: bytes) -> None:
    """Raises GpushareError. A file that is there stays as it was until the new one is complete."""
    try:
        target = path.resolve()  # the file that a link names is replaced, not the link
        unfinished = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            unfinished.write_bytes(content)
            unfinished.replace(target)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise GpushareError(f"cannot write {path}: {error.strerror}", hint="name another file") from None
