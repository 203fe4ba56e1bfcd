"""What the history may lose: ten seconds if the daemon is killed, what comes while the disk is full; no daemon."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_harness import until

from gpushare import unixhttp
from gpushared.history.usage import COMMIT_EVERY

JOB = {"name": "train", "command": ["train.py"], "request": "4Gi", "limit": "14Gi"}
BETWEEN = 1.5
"""Seconds between two samples, on a busy machine."""


def points(daemon, job: str, since: float) -> list[list[float]]:
    target = f"/v1/history?job={job}&since={since:.0f}"
    _, text = unixhttp.exchange(daemon.directory / "api.sock", "GET", target, None, 10.0)
    found = json.loads(text)["series"]
    return found[0]["points"] if found else []


def test_a_killed_daemon_loses_the_last_ten_seconds_at_most(gpushared):
    assert COMMIT_EVERY == 10.0, "what is promised"
    gpushared.start()
    gpu = gpushared.client.status()["gpus"][0]["uuid"]
    job, began = gpushared.client.register({**JOB, "devices": [gpu]})["id"], time.time()
    while time.time() - began < COMMIT_EVERY + 3:
        gpushared.client.change(job, {"limit": f"{8 + int(4 * time.time()) % 4}Gi"})  # each sample differs
        time.sleep(0.3)
    gpushared.kill()
    killed = time.time()
    gpushared.start()
    until(lambda: points(gpushared, job, began - 5))
    ended = [one[0] for one in points(gpushared, job, began - 5) if len(one) == 1 and one[0] < killed]
    assert ended, "nothing is known from its last write on"
    assert killed - ended[-1] <= COMMIT_EVERY + BETWEEN


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of half a MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k,mode=700", "none", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip("only root can mount a small disk here")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def test_a_disk_that_is_full_stops_the_history_and_nothing_else(gpushared, small_disk):
    filler = small_disk / "others"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    gpushared.start("--history", str(small_disk / "history"))
    gpu = gpushared.client.status()["gpus"][0]["uuid"]
    began = time.time()
    job = gpushared.client.register({**JOB, "devices": [gpu]})["id"]
    until(lambda: "the usage history cannot be written" in gpushared.log.read_text(), 30.0)
    assert gpushared.client.job(job)["state"] == "running" and points(gpushared, job, began - 5) == []
    gpushared.client.change(job, {"limit": "8Gi"})
    filler.unlink()
    until(lambda: points(gpushared, job, began - 5), 30.0)
    assert gpushared.stop() == 0
