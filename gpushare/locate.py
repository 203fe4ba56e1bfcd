"""Finding the node daemon, and starting one for this user where there is none.

The order: the socket that GPUSHARE_SOCKET names, the system daemon, this user's daemon. Only `run` starts a daemon
(start_daemon.py), and `report` one that has ended. Neither starts one beside a system daemon on real GPUs: both would
lend the same memory and break their promises. Where the system daemon is installed and cannot be used, they get an
error that says so. The software driver makes separate GPUs for each user, so a private daemon is safe there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from gpushare.api import PROTOCOL, Version
from gpushare.client import Client
from gpushare.env import Setting, Settings
from gpushare.errors import DaemonUnreachable, GpushareError, UsageError
from gpushare.file_kinds import is_directory
from gpushare.paths import SYSTEM_DIR, SYSTEM_UNITS, Runtime, history_dir, own_dir, user_dir
from gpushare.start_daemon import Starter, did_not_start

__all__ = ["Node", "detect_driver", "find", "for_history", "for_run", "foreign_software_gpus"]

ANSWER_WITHIN = 2.0  # a running daemon answers in a millisecond
RUN_WITHIN = 10.0  # the same for `run`: without it the request is not guaranteed
STARTS_WITHIN = 30.0  # seconds for a daemon that starts: on a loaded machine it needs more than ten
RESTARTS_WITHIN = 3.0  # seconds that `run` waits for a system daemon that is being restarted
POLL = 0.05  # seconds between two tries to reach our daemon
GIVE_UP_AFTER = 2  # daemons that failed to start


class Node(NamedTuple):
    """A daemon: where it is, which driver it serves, and how to start it again (only this user's)."""

    runtime: Runtime
    driver: str
    starter: Starter | None = None
    passed_over: GpushareError | None = None  # why not the system daemon
    moved: str | None = None  # why this user's directory is not in its usual place

    def client(self, timeout: float = 10.0) -> Client:
        return Client(self.runtime.api_socket, timeout)


def detect_driver() -> str:
    """`nvidia` if programs here would find NVIDIA's driver and a GPU, else `sim`."""
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
        return _named(named, driver, ANSWER_WITHIN)
    problems: list[GpushareError] = []
    unusable: Node | None = None
    for runtime in _places(driver, settings.environ):
        try:
            node = _ask(runtime, driver)
        except DaemonUnreachable as error:
            if error.code != "no_daemon":
                problems.append(error)
        else:
            if foreign_software_gpus(node, settings.environ) is None:
                return node
            unusable = unusable or node
    if unusable is not None:
        return unusable
    if problems:
        raise problems[0]
    raise DaemonUnreachable(
        "no daemon runs on this node", code="no_daemon", hint="`gpushare run` starts one for its job by itself"
    )


def for_run(settings: Settings) -> Node:
    """The daemon for a new job. Starts this user's daemon if there is no other.

    Raises DaemonUnreachable; with the code `system_daemon_away` where only the system daemon may be used.
    """
    driver = settings.choice("GPUSHARE_DRIVER")
    named = settings.find("GPUSHARE_SOCKET")
    if named:
        return _named(named, driver, RUN_WITHIN)
    wanted = detect_driver() if driver == "auto" else driver
    passed_over = None
    sign = system_sign()
    if sign is not None:
        try:
            return _system(driver, settings.environ, patience=RESTARTS_WITHIN if wanted == "nvidia" else 0.0)
        except GpushareError as error:  # not running, for another driver, or not for us
            passed_over = error
        if wanted == "nvidia" and passed_over.code not in ("other_driver", "foreign_software_gpus"):
            raise _system_daemon_away(passed_over, sign)
    directory, moved = own_dir(wanted, settings.environ)
    starter = Starter(Runtime(directory), wanted, settings.environ)
    _bring_up(starter)
    return Node(starter.runtime, wanted, starter, passed_over, moved)


def system_sign() -> str | None:
    """The file or setting that shows that this node has a system daemon, running or not; None if nothing does."""
    return next((str(path) for path in (SYSTEM_DIR, *SYSTEM_UNITS) if os.path.lexists(path)), None)


def for_history(settings: Settings) -> Node:
    """The daemon that knows what this user's jobs have used. Starts this user's again if it has ended and has left a
    history: it reads that as well as it writes it."""
    try:
        return find(settings)
    except DaemonUnreachable as error:
        driver = settings.choice("GPUSHARE_DRIVER")
        left = history_dir(detect_driver() if driver == "auto" else driver, settings.environ)
        if error.code != "no_daemon" or settings.find("GPUSHARE_SOCKET") or left is None or not is_directory(left):
            raise
    return for_run(settings)


def _system(driver: str, environ: Mapping[str, str], patience: float) -> Node:
    """The system daemon, if this user's programs can use its GPUs."""
    deadline = time.monotonic() + patience
    while True:
        try:
            node = _ask(Runtime(SYSTEM_DIR), driver, RUN_WITHIN)
            break
        except DaemonUnreachable as error:
            if error.code not in ("no_daemon", "hung_up") or time.monotonic() >= deadline:
                raise
            time.sleep(0.1)
    why_not = foreign_software_gpus(node, environ)
    if why_not is not None:
        raise why_not
    return node


def _system_daemon_away(error: GpushareError, sign: str) -> DaemonUnreachable:
    return DaemonUnreachable(
        f"the system daemon of this node cannot be used: {error.message}",
        code="system_daemon_away",
        facts=[("found", sign), ("log", "journalctl -u gpushared")],
        hint="`systemctl start gpushared` as root starts it; a daemon of your own would lend the same memory a second"
        " time, so none is started",
    )


def foreign_software_gpus(node: Node, environ: Mapping[str, str]) -> GpushareError | None:
    """Why this user's programs do not see the daemon's GPUs: the software driver makes GPUs for each user."""
    if node.driver != "sim" or node.starter is not None or "pool=" in environ.get("GPUSHARE_SIM", ""):
        return None
    try:
        owner = node.runtime.api_socket.stat().st_uid
    except OSError:
        return None
    if owner == os.getuid():
        return None
    return GpushareError(
        f"the daemon at {node.runtime.api_socket} serves software GPUs of user {owner}, which are not there for others",
        code="foreign_software_gpus",
    )


def _places(driver: str, environ: Mapping[str, str]) -> list[Runtime]:
    drivers = ("nvidia", "sim") if driver == "auto" else (driver,)
    return [Runtime(SYSTEM_DIR), *(Runtime(user_dir(name, environ)) for name in drivers)]


def _named(named: Setting, driver: str, within: float) -> Node:
    """The daemon whose socket a setting names."""
    try:
        return _ask(Runtime.of_socket(named.text), driver, within)
    except DaemonUnreachable as error:
        if error.code == "no_daemon":
            error.hint = f"start it, or take away what names it: {named.source}"
        raise


def _ask(runtime: Runtime, driver: str, within: float = ANSWER_WITHIN) -> Node:
    version = _version(runtime, within)
    if driver not in ("auto", version["driver"]):
        raise UsageError(
            f"the daemon at {runtime.api_socket} serves the driver {version['driver']}, not {driver}",
            code="other_driver",
            hint="leave --driver out, or GPUSHARE_SOCKET",
        )
    return Node(runtime, version["driver"])


def _version(runtime: Runtime, within: float) -> Version:
    """`within`: seconds for the answer."""
    version = Client(runtime.api_socket, within).version()
    if version["protocol"] != PROTOCOL:
        raise DaemonUnreachable(
            f"the daemon at {runtime.api_socket} speaks protocol {version['protocol']}, this command {PROTOCOL}",
            code="other_protocol",
            hint="restart the daemon: it is of another version",
        )
    return version


def _bring_up(starter: Starter) -> None:
    """Start this user's daemon if need be, and return when it answers."""
    deadline, pause = time.monotonic() + STARTS_WITHIN, 0.01
    while True:
        try:
            _version(starter.runtime, RUN_WITHIN)
        except DaemonUnreachable as error:
            if error.code not in ("no_daemon", "hung_up", "cannot_connect"):
                raise
            if time.monotonic() > deadline or starter.failures >= GIVE_UP_AFTER:
                raise did_not_start(starter, STARTS_WITHIN) from None
        else:
            return
        starter.start()
        time.sleep(pause)
        pause = min(pause * 1.5, POLL if starter.coming_up else 1.0)
