"""Asking a job to stop: SIGTERM to its processes, which is what the daemon sends when it wants memory back. A program
that frees memory on SIGTERM may therefore run on; nothing here insists.

The daemon says which processes a job has; the signal is the caller's own, so that the kernel decides who may send it
to whom. A number alone could be somebody else's by now: each process is held first, and only then is the daemon asked
once more whether it is the job's. What it says holds for its own PID namespace, so it must be ours.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct

from gpushare import unixhttp
from gpushare.client import Client
from gpushare.errors import GpushareError, NoSuchJob, NotPermitted
from gpushare.whose import may_signal, users_of

__all__ = ["ask_to_stop"]

PEER = struct.Struct("3i")  # struct ucred: pid, uid, gid


def ask_to_stop(client: Client, identity: str) -> str:
    """What was done, in a line. A job that still queues leaves the queue."""
    job = client.job(identity)
    if job["state"] == "queued":
        client.end(identity, None, None)
        return f"job {job['name']} has left the queue"
    _same_namespace(client)
    asked, not_theirs = 0, []
    with contextlib.ExitStack() as held:
        ours = {}
        for pid in {process["pid"] for process in job["processes"]}:
            with contextlib.suppress(ProcessLookupError):
                ours[pid] = os.pidfd_open(pid)
                held.callback(os.close, ours[pid])
        still = {process["pid"] for process in client.job(identity)["processes"]} if ours else set()
        for pid in ours.keys() & still:
            users = users_of(pid)
            if users is not None and not may_signal(job["uid"], users):
                not_theirs.append(pid)  # root could, but what a job may execute is not the job's
                continue
            try:
                signal.pidfd_send_signal(ours[pid], signal.SIGTERM)
                asked += 1
            except ProcessLookupError:
                continue
            except PermissionError:
                raise NotPermitted(f"job {job['name']} ({identity}) belongs to {job['user']}") from None
    if not_theirs and not asked:
        named = ", ".join(map(str, sorted(not_theirs)))
        raise NotPermitted(f"process {named} of job {job['name']} belongs to another user than the job now")
    if not asked:
        raise NoSuchJob(f"no process of job {job['name']} has a GPU open: end its `gpushare run`")
    whom = "1 process, which" if asked == 1 else f"{asked} processes, which"
    return f"asked job {job['name']} to stop: SIGTERM to {whom} may also free memory and run on"


def _same_namespace(client: Client) -> None:
    """The daemon's own pid, as the kernel translates it for us, is the one that it has itself."""
    with unixhttp.connect(client.api_socket, client.timeout) as connection:
        seen, _, _ = PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))
    if seen != client.version()["pid"]:
        raise GpushareError(
            "the daemon is in another PID namespace: its processes have other numbers here",
            code="other_namespace",
            hint="do it outside of the container",
        )
