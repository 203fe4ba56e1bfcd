"""The daemon's side of its directory: the lock that makes it the only one, and the sockets in it.

Wrappers start a user's daemon when they need one, often several at once. The daemon that gets the lock serves; the
others end quietly. A daemon that is just ending still holds the lock but no longer answers, so the others first make
sure that a daemon answers.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import time
from pathlib import Path

from gpushare.errors import GpushareError, NotPermitted
from gpushare.paths import Runtime

CONTAINERS = "containers"
"""The folder for containers: it has the socket of programs alone. The folder is mounted into them and not the socket,
because a daemon that starts again makes new sockets."""
PATIENCE = 5.0
"""Seconds to wait for the daemon with the lock to answer or to end."""


class AlreadyRunning(GpushareError):
    """Another daemon serves this directory."""

    code = "already_running"
    exit_code = 0


def bind(path: Path, kind: socket.SocketKind, *, for_all: bool) -> socket.socket:
    """A socket that is in place only when it is ready; `for_all`: users. They are told apart by SO_PEERCRED. Raises
    OSError."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    sock = socket.socket(socket.AF_UNIX, kind | socket.SOCK_CLOEXEC)
    try:
        fresh.unlink(missing_ok=True)
        sock.bind(str(fresh))
        fresh.chmod(0o666 if for_all else 0o600)
        fresh.replace(path)
    except OSError:
        sock.close()
        fresh.unlink(missing_ok=True)
        raise
    return sock


class RuntimeDir:
    """A directory that this process alone serves."""

    def __init__(self, directory: Path, *, system: bool) -> None:
        self.directory = directory
        self.system = system
        self._runtime = Runtime(directory)
        self._lock = -1
        self._bound: list[Path] = []

    def take(self) -> None:
        """Make the directory and lock it; AlreadyRunning if another daemon answers in it."""
        if self.system:
            self._make_system()
        else:
            self._runtime.make()
        self._lock = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        deadline = time.monotonic() + PATIENCE
        while not self._try_lock():
            if self._answers():
                raise AlreadyRunning(f"a daemon serves {self.directory} already", hint="`gpushare daemon stop` ends it")
            if time.monotonic() > deadline:
                raise GpushareError(f"another daemon holds {self.directory} and does not answer", code="locked")
            time.sleep(0.05)

    def bind(self, name: str, kind: socket.SocketKind, *, for_containers: bool = False) -> socket.socket:
        """A socket in the directory; `for_containers`: also in the folder for containers."""
        path = self.directory / name
        try:
            sock = bind(path, kind, for_all=self.system)
            if for_containers:
                self._link(path, self.directory / CONTAINERS / name)
        except OSError as error:
            raise GpushareError(f"cannot make {path}: {error.strerror}", code="bad_runtime_dir") from None
        self._bound.append(path)
        return sock

    def _link(self, path: Path, beside: Path) -> None:
        """A second name of a socket, in place at once."""
        mode = 0o711 if self.system else 0o700
        beside.parent.mkdir(mode=mode, exist_ok=True)
        beside.parent.chmod(mode)
        fresh = beside.with_name(f".{beside.name}.{os.getpid()}")
        fresh.unlink(missing_ok=True)
        os.link(path, fresh)
        fresh.replace(beside)
        self._bound.append(beside)

    def unbind(self) -> None:
        """No new connections; the lock stays until the process ends."""
        for path in self._bound:
            path.unlink(missing_ok=True)
        self._bound.clear()

    def release(self) -> None:
        self.unbind()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _try_lock(self) -> bool:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(1.0)
            try:
                sock.connect(str(self._runtime.api_socket))
            except OSError:
                return False
            return True

    def _make_system(self) -> None:
        """All users may pass through it; the files inside have modes of their own."""
        try:
            if not self.directory.is_dir():
                self.directory.mkdir(mode=0o711)
                self.directory.chmod(0o711)  # the umask of the starter does not count
            found = self.directory.lstat()
        except OSError as error:
            raise NotPermitted(
                f"cannot make {self.directory}: {error.strerror}",
                code="bad_runtime_dir",
                hint="systemd makes it for the system's daemon; without rights of that kind there is --user",
            ) from None
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise NotPermitted(
                f"{self.directory} is not a directory that only its daemon may write to", code="bad_runtime_dir"
            )
