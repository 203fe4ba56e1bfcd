"""The disk of the cluster's file is full, or takes no writing: what users are told, and that nothing is lost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from test_queue_commands import WITHIN, Service

from cluster_service.service_process import until
from gpushare.paths import SYSTEM_DIR, library

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("unshare") or not shutil.which("nsenter"), reason="mounts a small disk: root"
)
MOUNTED = 'mount -t tmpfs -o size=8m none "$1" && shift && exec "$@"'


class OnSmallDisk(Service):
    """Its state is on a disk of 8 MiB, which it alone sees, and who enters its mounts."""

    def line(self) -> list[str]:
        self.state = self.directory / "state"
        self.state.mkdir(exist_ok=True)
        return ["unshare", "-m", "sh", "-c", MOUNTED, "sh", str(self.state), *super().line()]

    def __call__(self, *words: str) -> subprocess.CompletedProcess:
        return self.inside(sys.executable, "-P", "-m", "gpushare", *words)

    def stop_daemon(self) -> bool:
        """The node daemon that the service has started, and would start again. It stays while it has jobs."""
        line = [sys.executable, "-P", "-m", "gpushare", "daemon", "stop"]
        done = subprocess.run(line, env=self.environ, cwd=self.directory, capture_output=True, timeout=WITHIN)
        return done.returncode == 0

    def inside(self, *words: str) -> subprocess.CompletedProcess:
        line = ["nsenter", "-t", str(self.process.pid), "-m", f"--wd={self.directory}", *words]
        return subprocess.run(line, env=self.environ, capture_output=True, text=True, check=False, timeout=WITHIN)

    def fill(self) -> None:
        self.inside("dd", "if=/dev/zero", f"of={self.state}/filler", "bs=1k")

    def empty(self) -> None:
        self.inside("rm", f"{self.state}/filler")

    def names(self) -> set[str]:
        return {job["name"] for job in json.loads(self("queue", "--json").stdout)["jobs"]}


@pytest.fixture
def service():
    if not library().exists():
        pytest.skip(f"{library()} is not built")
    if SYSTEM_DIR.exists():
        pytest.skip("a system daemon's directory exists on this machine and comes first")
    with tempfile.TemporaryDirectory(prefix="gs-") as made:  # short: the name of a socket has at most 107 bytes
        service = OnSmallDisk(Path(made))
        with service.log:
            service.start()
            yield service
            for job in json.loads(service("queue", "--json").stdout)["jobs"]:
                service("cancel", "--now", job["id"])
            service.stop()
            until(service.stop_daemon)


@pytest.mark.timeout(300)
def test_a_full_disk_is_named_and_what_was_taken_stays(service) -> None:
    held = service("submit", "--name", "waits", "--hold", "--", "true")
    runs = service("submit", "--name", "runs", "--", "sleep", "600")
    assert held.returncode == runs.returncode == 0, (held.stderr, runs.stderr)
    service.until(runs.stdout.strip(), "running")
    service.fill()
    for words in (["submit", "--name", "late", "--", "true"], ["release", held.stdout.strip()]):
        done = service(*words)
        assert done.returncode != 0
        assert "cluster.db: database or disk is full" in done.stderr and "free some space there" in done.stderr
    assert service.names() == {"waits", "runs"}, "questions are answered, and what was refused is not half there"
    service.empty()
    assert service("release", held.stdout.strip()).returncode == 0
    assert service.until(held.stdout.strip(), "ended")["result"]["how"] == "done"
    assert service.job(runs.stdout.strip())["state"] == "running"


@pytest.mark.timeout(300)
def test_a_disk_that_takes_no_writing_is_named(service, tmp_path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    words = [sys.executable, "-P", "-m", "gpushare", "cluster", "serve", "--engine", "local", "--store"]
    mounted = f'mount -t tmpfs -o ro none {other} && exec "$@"'
    line = ["unshare", "-m", "sh", "-c", mounted, "sh", *words, f"{other}/cluster.db", "--socket", f"{tmp_path}/s"]
    done = subprocess.run(line, env=service.environ, capture_output=True, text=True, check=False, timeout=WITHIN)
    assert done.returncode != 0 and "Traceback" not in done.stderr
    assert str(other) in done.stderr and "hint: " in done.stderr, done.stderr


@pytest.mark.timeout(300)
def test_a_job_that_ends_while_the_disk_is_full_has_an_end_and_its_share_comes_back(service) -> None:
    """Its keeper took the room for that when it started."""
    ends = service("submit", "--request", "60%", "--", "sh", "-c", "sleep 4; exit 3").stdout.strip()
    taken = service("submit", "--request", "30%", "--", "sleep", "600").stdout.strip()
    for id in (ends, taken):
        service.until(id, "running")
    service.fill()
    time.sleep(8.0)
    running = json.loads(service.inside(sys.executable, "-P", "-m", "gpushare", "ps", "--json").stdout)
    assert len(running["jobs"]) == 1, "what it had on the GPU is free although nothing can be written"
    service.empty()
    job = service.until(ends, "ended")
    assert job["result"]["how"] == "failed" and job["result"]["exit"] == 3
    assert job["ended"] - job["started"] < 7.0
    assert service("cancel", "--now", taken).returncode == 0
    later = service("submit", "--gpus", "2", "--", "true").stdout.strip()
    assert service.until(later, "ended")["result"]["how"] == "done"
