"""One writer at a time for a cluster's file: a service, or commands one after the other.

Beside the file is a lock. A service holds it alone as long as it runs, and writes into it where it listens. A command
that writes to the file itself holds it together with other commands; SQLite orders these.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpushare.cluster.store import StoreError
from gpushare.errors import NotPermitted

__all__ = ["Lock", "serving", "writing"]

MOST = 4096


def _path(store: Path) -> Path:
    return store.with_name(f"{store.name}.lock")


class Lock:
    """The lock of a service on its file."""

    def __init__(self, store: Path, socket: Path) -> None:
        """StoreError if a service or a command has the file."""
        path = _path(store)
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise NotPermitted(
                f"cannot write {path}: {error.strerror}", hint="name another file with --store"
            ) from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._file)
            other = serving(store)
            raise StoreError(
                f"{store} is in use" + (f" by the service at {other}" if other else ""),
                code="already_running",
                hint="stop that service first" if other else "try again in a moment",
            ) from None
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, os.fsencode(socket), 0)

    def release(self) -> None:
        os.ftruncate(self._file, 0)
        os.close(self._file)


def serving(store: Path) -> Path | None:
    """The socket of the service that has this file; None: there is none, or we may not know."""
    try:
        file = os.open(_path(store), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        said = os.pread(file, MOST, 0)
        return Path(os.fsdecode(said)) if said else None
    finally:
        os.close(file)
    return None


@contextmanager
def writing(store: Path) -> Iterator[None]:
    """For a command that writes to the file itself. StoreError while a service has it."""
    try:
        file = os.open(_path(store), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        yield  # a user who cannot write here gets SQLite's error
        return
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreError(
                f"a service writes to {store}",
                code="served",
                hint="leave --store out, or set GPUSHARE_CLUSTER_SOCKET to the service's socket",
            ) from None
        yield
    finally:
        os.close(file)
