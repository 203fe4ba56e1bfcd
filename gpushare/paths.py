"""Where the daemons' sockets are, and whether a directory may be trusted with one.

    system daemon     /run/gpushare/
    per-user daemon   $XDG_RUNTIME_DIR/gpushare/, or /tmp/gpushare-UID/ where there is no XDG_RUNTIME_DIR
                      (with the software driver the name ends in -sim: the two never share a daemon)

In each: api.sock (HTTP+JSON), shim.sock (frames), pages/, and for a per-user daemon lock, daemon.log and drivers/.
GPUSHARE_SOCKET names an api.sock; the rest lies beside it. A directory in /tmp has a name that anybody can guess, so
it is used only if it is ours and closed to others: else somebody could lend us a socket of theirs.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from gpushare.errors import NotPermitted, UsageError

__all__ = ["SYSTEM_DIR", "Runtime", "library", "software_driver_dir", "user_dir"]

SYSTEM_DIR = Path("/run/gpushare")
PACKAGE = Path(__file__).resolve().parent
SOCKET_PATH_BYTES = 107  # sun_path, less its zero byte


class Runtime:
    """A daemon's runtime directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @classmethod
    def of_socket(cls, api_socket: str) -> Runtime:
        path = Path(api_socket)
        if not path.is_absolute():
            raise UsageError(f"GPUSHARE_SOCKET={api_socket} is not an absolute path", code="bad_socket")
        return cls(path.parent) if path.name == "api.sock" else _Named(path)

    @property
    def api_socket(self) -> Path:
        return self.directory / "api.sock"

    @property
    def log(self) -> Path:
        return self.directory / "daemon.log"

    @property
    def drivers(self) -> Path:
        """Symbolic links to the software driver under the names that programs look for."""
        return self.directory / "drivers"

    def make(self) -> None:
        """Make the directory, or see that it is ours alone."""
        try:
            self.directory.mkdir(mode=0o700, parents=False, exist_ok=True)
        except OSError as error:
            raise NotPermitted(
                f"cannot make {self.directory}: {error.strerror}",
                code="bad_runtime_dir",
                hint="set XDG_RUNTIME_DIR to a directory that is yours",
            ) from None
        self.check()

    def check(self) -> None:
        found = self.directory.lstat()
        if not stat.S_ISDIR(found.st_mode):
            raise self._not_ours("is not a directory")
        if found.st_uid != os.getuid():
            raise self._not_ours(f"belongs to user {found.st_uid}, not to you")
        if found.st_mode & 0o077:
            raise self._not_ours(f"is open to others (mode {stat.S_IMODE(found.st_mode):04o})")
        if len(os.fsencode(self.api_socket)) > SOCKET_PATH_BYTES:
            raise UsageError(
                f"{self.api_socket} is too long for a socket's name",
                code="bad_runtime_dir",
                hint="set XDG_RUNTIME_DIR to a shorter path",
            )

    def _not_ours(self, why: str) -> NotPermitted:
        return NotPermitted(
            f"{self.directory} {why}",
            code="bad_runtime_dir",
            hint="remove it, or set XDG_RUNTIME_DIR to a directory that is yours and closed to others (mode 0700)",
        )


class _Named(Runtime):
    """A socket under a name of its own, as an administrator or a container may give it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path.parent)
        self._path = path

    @property
    def api_socket(self) -> Path:
        return self._path


def user_dir(driver: str, environ: Mapping[str, str]) -> Path:
    suffix = "-sim" if driver == "sim" else ""
    base = environ.get("XDG_RUNTIME_DIR", "")
    if base and Path(base).is_dir():
        return Path(base) / f"gpushare{suffix}"
    return Path(f"/tmp/gpushare-{os.getuid()}{suffix}")


def library() -> Path:
    """The preload library."""
    return PACKAGE / "lib" / "libgpushare.so"


def software_driver_dir() -> Path:
    return PACKAGE / "sim"
