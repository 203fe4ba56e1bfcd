"""Finding the node daemon, and starting one for this user where there is none.

The order: the socket that GPUSHARE_SOCKET names, the system daemon, this user's daemon. Only `run` starts one. Several
wrappers may start one at the same moment: the daemon locks its directory and the losers end at once, so all that a
wrapper does is start, and connect until somebody answers.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from gpushare.api import PROTOCOL, Version
from gpushare.client import Client
from gpushare.env import Settings
from gpushare.errors import DaemonUnreachable, GpushareError, UsageError
from gpushare.paths import SYSTEM_DIR, Runtime, user_dir

__all__ = ["Node", "Starter", "detect_driver", "find", "for_run"]

ANSWER_WITHIN = 2.0  # a daemon that is there answers in a millisecond
START_WITHIN = 10.0
GIVE_UP_AFTER = 2  # daemons that fail
NEVER_TOLD = (
    "LD_PRELOAD",
    "CUDA_VISIBLE_DEVICES",
    "GPUSHARE_JOB",
    "GPUSHARE_NAME",
    "GPUSHARE_REQUEST",
    "GPUSHARE_LIMIT",
)


class Node(NamedTuple):
    """A daemon: where it is, which driver it serves, and how to start it again (only this user's)."""

    runtime: Runtime
    driver: str
    starter: Starter | None = None
    passed_over: GpushareError | None = None  # why not the system daemon

    def client(self, timeout: float = 10.0) -> Client:
        return Client(self.runtime.api_socket, timeout)


class Starter:
    """Starts this user's daemon, one at a time, without ever blocking."""

    def __init__(self, runtime: Runtime, driver: str, environ: Mapping[str, str]) -> None:
        self.runtime = runtime
        self.driver = driver
        self._environ = {name: value for name, value in environ.items() if name not in NEVER_TOLD}
        self._pid: int | None = None
        self.failures = 0

    def start(self) -> None:
        """Unless the one we started last is still coming up."""
        self.reap()
        if self._pid is None:
            self.runtime.make()
            self._pid = self._spawn()

    def reap(self) -> None:
        """Forget ours when it has ended: it lost the race for the directory, or failed."""
        if self._pid is not None:
            ended, status = os.waitpid(self._pid, os.WNOHANG)
            if ended:
                self._pid = None
                self.failures += status != 0  # the loser of a race exits with 0

    @property
    def coming_up(self) -> bool:
        self.reap()
        return self._pid is not None

    def _spawn(self) -> int:
        command = [
            sys.executable,
            "-P",  # a user's directory may hold a queue.py or a types.py
            *("-m", "gpushared", "--user", "--driver", self.driver, "--dir", str(self.runtime.directory)),
        ]
        # O_APPEND: a loser of the race must not wipe the winner's log.
        log = os.open(self.runtime.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            return os.posix_spawn(
                sys.executable,
                command,
                self._environ,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, log, 1),
                    (os.POSIX_SPAWN_DUP2, log, 2),
                    *((os.POSIX_SPAWN_CLOSE, fd) for fd in _inheritable_fds()),
                ],
                setsid=True,
                setsigmask=(),
                setsigdef=(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE),
            )
        finally:
            os.close(log)


def _inheritable_fds() -> list[int]:
    """What a shell or a build tool left open for its children: the daemon outlives them and must not hold it."""
    found = [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]
    return [fd for fd in found if fd > 2 and _is_inheritable(fd)]


def _is_inheritable(fd: int) -> bool:
    try:
        return os.get_inheritable(fd)
    except OSError:
        return False  # the one that listed the directory


def detect_driver() -> str:
    """`nvidia` when programs here would find NVIDIA's driver and a GPU behind it, else `sim`."""
    if not Path("/dev/nvidiactl").exists():
        return "sim"
    import ctypes

    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "sim"
    return "nvidia"


def find(settings: Settings) -> Node:
    """The daemon that a command other than `run` talks to. Starts nothing."""
    driver = settings.choice("GPUSHARE_DRIVER")
    named = settings.find("GPUSHARE_SOCKET")
    if named:
        try:
            return _ask(Runtime.of_socket(named.text), driver)
        except DaemonUnreachable as error:
            if error.code == "no_daemon":
                error.hint = f"start it, or take away what names it: {named.source}"
            raise
    problems = []
    for runtime in _places(driver, settings.environ):
        try:
            return _ask(runtime, driver)
        except DaemonUnreachable as error:
            if error.code != "no_daemon":
                problems.append(error)
    if problems:
        raise problems[0]
    raise DaemonUnreachable(
        "no daemon runs on this node", code="no_daemon", hint="`gpushare run` starts one for its job by itself"
    )


def for_run(settings: Settings) -> Node:
    """The daemon for a new job; this user's is started when no other answers."""
    driver = settings.choice("GPUSHARE_DRIVER")
    named = settings.find("GPUSHARE_SOCKET")
    if named:
        return _ask(Runtime.of_socket(named.text), driver)
    passed_over = None
    if SYSTEM_DIR.exists():
        try:
            return _ask(Runtime(SYSTEM_DIR), driver)
        except GpushareError as error:  # not running, of another driver, or not for us
            passed_over = error
    driver = detect_driver() if driver == "auto" else driver
    runtime = Runtime(user_dir(driver, settings.environ))
    runtime.make()
    starter = Starter(runtime, driver, settings.environ)
    _bring_up(starter)
    return Node(runtime, driver, starter, passed_over)


def _places(driver: str, environ: Mapping[str, str]) -> list[Runtime]:
    drivers = ("nvidia", "sim") if driver == "auto" else (driver,)
    return [Runtime(SYSTEM_DIR), *(Runtime(user_dir(name, environ)) for name in drivers)]


def _ask(runtime: Runtime, driver: str) -> Node:
    version = _version(runtime)
    if driver not in ("auto", version["driver"]):
        raise UsageError(
            f"the daemon at {runtime.api_socket} serves the driver {version['driver']}, not {driver}",
            code="other_driver",
            hint="leave --driver out, or GPUSHARE_SOCKET",
        )
    return Node(runtime, version["driver"])


def _version(runtime: Runtime) -> Version:
    version = Client(runtime.api_socket, ANSWER_WITHIN).version()
    if version["protocol"] != PROTOCOL:
        raise DaemonUnreachable(
            f"the daemon at {runtime.api_socket} speaks protocol {version['protocol']}, this command {PROTOCOL}",
            code="other_protocol",
            hint="restart the daemon: it is of another version",
        )
    return version


def _bring_up(starter: Starter) -> None:
    """Return when this user's daemon answers; start it if need be."""
    deadline, pause = time.monotonic() + START_WITHIN, 0.01
    while True:
        try:
            _version(starter.runtime)
        except DaemonUnreachable as error:
            if error.code not in ("no_daemon", "hung_up", "cannot_connect"):
                raise
            if time.monotonic() > deadline or starter.failures >= GIVE_UP_AFTER:
                raise _did_not_start(starter.runtime) from None
        else:
            return
        starter.start()
        time.sleep(pause)
        pause = min(pause * 1.5, 0.25 if starter.coming_up else 1.0)


def _did_not_start(runtime: Runtime) -> DaemonUnreachable:
    try:
        tail = runtime.log.read_text(errors="backslashreplace").splitlines()[-3:]
    except OSError:
        tail = []
    return DaemonUnreachable(
        "the daemon did not start",
        code="did_not_start",
        facts=[("log", "\n".join(tail))] if tail else (),
        hint=f"its log is {runtime.log}",
    )
