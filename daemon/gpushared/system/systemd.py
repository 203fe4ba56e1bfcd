"""Tells systemd the daemon's state (sd_notify): READY, STATUS, WATCHDOG, STOPPING. One datagram each.

Without NOTIFY_SOCKET (started by hand, or by `gpushare run`) every call does nothing.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping


class Notifier:
    """The connection to the service manager."""

    def __init__(self, environment: MutableMapping[str, str] | None = None) -> None:
        environ = os.environ if environment is None else environment
        # Removed from the environment: processes that the daemon starts must not notify the service manager.
        self._address = environ.pop("NOTIFY_SOCKET", "")
        self.watchdog_interval = _watchdog_interval(environ)
        """Seconds between signs of life, half of what the service manager allows; None: it asks for none."""

    def send(self, *assignments: str) -> None:
        """Send lines such as READY=1. Does nothing if the service manager does not listen."""
        if not self._address:
            return
        address = self._address
        if address.startswith("@"):
            address = "\0" + address[1:]
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.setblocking(False)
                sock.sendto("\n".join(assignments).encode(), address)
        except OSError:
            pass

    def ready(self, status: str) -> None:
        self.send("READY=1", f"STATUS={status}")

    def status(self, status: str) -> None:
        self.send(f"STATUS={status}")

    def alive(self) -> None:
        self.send("WATCHDOG=1")

    def reloading(self, monotonic: float) -> None:
        self.send("RELOADING=1", f"MONOTONIC_USEC={int(monotonic * 1e6)}")

    def stopping(self) -> None:
        self.send("STOPPING=1")


def _watchdog_interval(environ: MutableMapping[str, str]) -> float | None:
    usec, pid = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
    if not usec.isdecimal() or int(usec) == 0 or (pid and pid != str(os.getpid())):
        return None
    return int(usec) / 2e6
