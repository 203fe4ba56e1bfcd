"""Where the daemons' sockets are, and whether a directory is safe for one.

    system daemon     /run/gpushare/
    per-user daemon   $XDG_RUNTIME_DIR/gpushare/, or /tmp/gpushare-UID/ where there is no XDG_RUNTIME_DIR
                      (with the software driver the name ends in -sim: the two never share a daemon)

Another user can make /tmp/gpushare-UID first. Then the directory is /run/user/UID/gpushare/ if the system has made
/run/user/UID, else one with a random name in /tmp; ~/.local/state/gpushare/ keeps the name.

In each: api.sock (HTTP+JSON), shim.sock (frames), pages/, and for a per-user daemon lock, daemon.log and drivers/.
The history is kept elsewhere, so that it survives a logout and a reboot (gpushare/history.py):

    system daemon     /var/lib/gpushare/history/
    per-user daemon   $XDG_STATE_HOME/gpushare/history/HOST/ or ~/.local/state/gpushare/history/HOST/
                      (history-sim/ with the software driver): a home may be shared by several hosts

A daemon that was started with --dir DIR keeps it in DIR/history/ if --history does not name another place.
GPUSHARE_SOCKET names an api.sock; the other files are beside it. Anybody can guess the name of a directory in /tmp, so
it is used only if it belongs to us and is closed to others. Otherwise another user could put a socket there.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from gpushare.errors import NotPermitted, UsageError
from gpushare.file_kinds import is_directory

__all__ = [
    "SYSTEM_DIR",
    "SYSTEM_HISTORY",
    "SYSTEM_UNITS",
    "Runtime",
    "example",
    "history_dir",
    "library",
    "make_private",
    "own_dir",
    "software_driver_dir",
    "user_dir",
]

SYSTEM_DIR = Path("/run/gpushare")
SYSTEM_HISTORY = Path("/var/lib/gpushare/history")
SYSTEM_UNITS = tuple(Path(place, "systemd/system/gpushared.service") for place in ("/etc", "/usr/lib", "/lib"))
"""Where a system daemon's unit file is, if it is installed."""
TMP = Path("/tmp")
RUN_USER = Path("/run/user")
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
    def history(self) -> Path:
        """The history directory, if the daemon was given no other."""
        return self.directory / "history"

    @property
    def drivers(self) -> Path:
        """Symbolic links to the software driver under the names that programs look for."""
        return self.directory / "drivers"

    def make(self) -> None:
        """Make the directory, or check that it belongs to us and is closed to others. Raises GpushareError."""
        try:
            make_private(self.directory)
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
    """The runtime directory around a socket that an administrator or a container has named."""

    def __init__(self, path: Path) -> None:
        super().__init__(path.parent)
        self._path = path

    @property
    def api_socket(self) -> Path:
        return self._path


def make_private(directory: Path) -> None:
    """Make a directory for us alone, if there is none. Keeps our own rights whatever the umask."""
    try:
        directory.mkdir(mode=0o700)
    except FileExistsError:
        return
    directory.chmod(0o700)


def user_dir(driver: str, environ: Mapping[str, str]) -> Path:
    """The directory of this user's daemon, whether it exists or not. Makes nothing."""
    usual = _usual_dir(driver, environ)
    if not _is_anothers(usual):
        return usual
    return _in_run_user(driver) or _recorded(_record(usual, environ)) or usual


def own_dir(driver: str, environ: Mapping[str, str]) -> tuple[Path, str | None]:
    """Make the directory of this user's daemon. Returns its path, and why it is not in its usual place.

    Raises NotPermitted if no private directory can be made.
    """
    usual, directory = _usual_dir(driver, environ), user_dir(driver, environ)
    if directory == usual:
        try:
            Runtime(usual).make()
        except NotPermitted:
            if not _is_anothers(usual):
                raise
            directory = _make_elsewhere(usual, environ)
        else:
            return usual, None
    Runtime(directory).make()
    return directory, f"{usual} belongs to another user, so {directory} is used"


def _usual_dir(driver: str, environ: Mapping[str, str]) -> Path:
    base = environ.get("XDG_RUNTIME_DIR", "")
    if base and is_directory(Path(base)):
        return Path(base) / f"gpushare{_suffix(driver)}"
    return TMP / f"gpushare-{os.getuid()}{_suffix(driver)}"


def _suffix(driver: str) -> str:
    return "-sim" if driver == "sim" else ""


def _is_anothers(directory: Path) -> bool:
    """Another user has made the directory in /tmp."""
    try:
        return directory.parent == TMP and directory.lstat().st_uid != os.getuid()
    except OSError:
        return False


def _in_run_user(driver: str) -> Path | None:
    base = RUN_USER / str(os.getuid())
    try:
        found = base.lstat()
    except OSError:
        return None
    private = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
    return base / f"gpushare{_suffix(driver)}" if private else None


def _record(usual: Path, environ: Mapping[str, str]) -> Path:
    """The file that keeps the name of the random directory. Several hosts may share a home."""
    state = environ.get("XDG_STATE_HOME") or Path(environ.get("HOME", "/")) / ".local" / "state"
    return Path(state) / "gpushare" / f"{usual.name}@{os.uname().nodename}"


def _recorded(record: Path) -> Path | None:
    """The directory that the file names, if it still exists and is ours alone."""
    try:
        directory = Path(record.read_text())
        if not directory.is_absolute():
            return None
        Runtime(directory).check()
    except (OSError, ValueError, NotPermitted, UsageError):
        return None
    return directory


def _make_elsewhere(usual: Path, environ: Mapping[str, str]) -> Path:
    """Make a directory in /tmp with a random name, and keep the name for later commands."""
    record = _record(usual, environ)
    try:
        record.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with record.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # wrappers that start at the same time use one directory
            directory = _recorded(record)
            if directory is None:
                directory = TMP / f"{usual.name}-{os.urandom(8).hex()}"
                make_private(directory)
                file.truncate(0)
                file.write(str(directory))
    except OSError as error:
        raise NotPermitted(
            f"{usual} belongs to another user, and {record} cannot be written: {error.strerror}",
            code="bad_runtime_dir",
            hint="set XDG_RUNTIME_DIR to a directory that is yours and closed to others (mode 0700)",
        ) from None
    return directory


def history_dir(driver: str, environ: Mapping[str, str]) -> Path | None:
    """The history directory of this user's daemon on this host; None if the user has no home."""
    base = Path(environ.get("XDG_STATE_HOME") or "")
    if not base.is_absolute():
        home = Path(environ.get("HOME") or "")
        if not home.is_absolute():
            return None
        base = home / ".local" / "state"
    name = "history-sim" if driver == "sim" else "history"
    return base / "gpushare" / name / (os.uname().nodename.replace("/", "_").strip(".") or "host")


def library(*, turns: bool = False) -> Path:
    """The preload library; `turns`: the one for nodes where jobs take turns in computing, in which launches have hooks.
    Both have one name, so that whoever looks for it in a process finds either."""
    return PACKAGE / "lib" / "turns" / "libgpushare.so" if turns else PACKAGE / "lib" / "libgpushare.so"


def software_driver_dir() -> Path:
    return PACKAGE / "sim"


def example(path: Path) -> Path | None:
    """The file that documents name as examples/...: in the source tree or in an installation."""
    import sysconfig  # imported late: slow, and only needed after a mistake

    if "examples" not in path.parts:
        return None
    inside = Path(*path.parts[path.parts.index("examples") :])
    installed = Path(sysconfig.get_path("data"), "share", "gpushare")
    return next((place / inside for place in (installed, PACKAGE.parent) if (place / inside).is_file()), None)
