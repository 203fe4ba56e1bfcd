"""Stop a job, for `gpushare stop` and the k key of `gpushare top`: the daemon signals its processes.

The daemon knows the job's processes and holds each by a descriptor, so it cannot signal another process. It also
decides who may stop the job. The caller decides how long to wait between SIGTERM and SIGKILL.
"""

from __future__ import annotations

import time

from gpushare.api import Stopped
from gpushare.client import Client
from gpushare.errors import GpushareError, NoSuchJob
from gpushare.quantity import count

__all__ = ["ask_to_stop", "has_ended", "wait_for_end"]

POLL = 0.1


def ask_to_stop(client: Client, identity: str) -> str:
    """Send SIGTERM to the job's processes. Returns a line that says what was done. A queued job leaves the queue."""
    stopped = client.stop(identity, now=False)
    name, reached = stopped["job"]["name"], stopped["processes"]
    if stopped["job"]["state"] == "queued":
        return f"job {name} has left the queue"
    whom = "1 process" if reached == 1 else f"{reached} processes"
    return f"asked job {name} to stop: SIGTERM to {whom}{left_alone(stopped)}"


def left_alone(stopped: Stopped) -> str:
    """A text about processes that now belong to another user, as after sudo: they are not signalled."""
    if not stopped["spared"]:
        return ""
    return f"; {count(stopped['spared'], 'process', 'processes')} left alone: another user's by now"


def has_ended(client: Client, identity: str) -> bool:
    try:
        return client.job(identity)["state"] == "ended"
    except NoSuchJob:
        return True


def wait_for_end(client: Client, identity: str, seconds: float) -> bool:
    """Whether the job ends within that time."""
    deadline = time.monotonic() + seconds
    while not has_ended(client, identity):
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL)
    return True


def stop(client: Client, identity: str, grace: float, insist: float) -> bool:
    """Send SIGKILL if the job does not end within `grace` seconds of its SIGTERM. Returns whether that was needed.

    Raises GpushareError if it has not ended `insist` seconds later.
    """
    if wait_for_end(client, identity, grace):
        return False
    name = identity
    try:
        name = client.stop(identity, now=True)["job"]["name"]
    except NoSuchJob:
        return False
    if not wait_for_end(client, identity, insist):
        raise GpushareError(
            f"job {name} has not ended {insist:g} s after SIGKILL",
            code="does_not_end",
            hint="the kernel holds a process of it, in a driver or a file system that does not answer",
        )
    return True
