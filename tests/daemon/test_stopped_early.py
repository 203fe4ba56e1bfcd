"""A job whose program is stopped (SIGSTOP) before it has opened a GPU."""

from __future__ import annotations

import signal
import subprocess
from typing import Any

from daemon_harness import InProcess, until


def test_it_is_shown_as_stopped(daemon: InProcess) -> None:
    client = daemon.client
    made: Any = client.register({"name": "a", "command": ["a"], "request": "4Gi", "limit": "8Gi", "gpus": 1})
    job = made["id"]
    child = subprocess.Popen(["sleep", "60"])
    try:
        client.set_main(job, child.pid)
        assert client.job(job)["state"] == "running"
        child.send_signal(signal.SIGSTOP)
        until(lambda: client.job(job)["state"] == "stopped")
        child.send_signal(signal.SIGCONT)
        until(lambda: client.job(job)["state"] == "running")
    finally:
        child.kill()
        child.wait()
