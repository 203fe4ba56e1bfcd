"""A backup controller of Slurm takes over, and gives back: no job is lost, doubled, or on two GPUs.

Both run here. The backup has a host name of its own, in a namespace, and another address of this machine.
"""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import time

import pytest
import slurm_root
from slurm_stage import Cluster, Stage, missing, open_folder, with_plugins

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

BACKUP = "gpushare-backup"
SAVED = 8.0
"""Seconds after which Slurm has written what it knows; of what comes after that a new controller may know nothing."""


class Pair(Cluster):
    """With a second controller."""

    def start_backup(self) -> None:
        conf = self.conf.with_name("backup.conf")
        text = self.conf.read_text()
        for name in ("slurmctld.pid", "slurmctld.log"):
            text = text.replace(name, f"backup-{name}")
        conf.write_text(text)
        hosts = self.root / "hosts"
        hosts.write_text(f"{slurm_root.hosts().read_text()}\n127.0.0.2 {BACKUP}\n")
        self._forget("backup-slurmctld")
        line = f"hostname {BACKUP} && mount --bind {hosts} {slurm_root.hosts()} && exec slurmctld -f {conf}"
        words = ["unshare", "--uts", "--mount", "sh", "-c", line]
        self.run(*words, check=True, env={"SLURM_CONF": str(conf)})
        self.until(lambda: self.pings() == ["UP", "UP"], f"the backup answers: {self.pings()}")

    def pings(self) -> list[str]:
        """Of the primary and of the backup: UP or DOWN."""
        return re.findall(r"^Slurmctld\(.*\) at .* is (\w+)", self.run("scontrol", "ping").stdout, re.MULTILINE)

    def down(self) -> None:
        with contextlib.suppress(subprocess.SubprocessError):
            self.cancel_all()  # whichever of them leads
        super().down()


@pytest.fixture
def cluster():
    with open_folder() as root:
        more = [f"SlurmctldHost={BACKUP}(127.0.0.2)", "CommunicationParameters=NoCtldInAddrAny"]
        cluster = with_plugins(root, kind=Pair, more=more)
        assert isinstance(cluster, Pair)
        try:
            cluster.up()
            cluster.start_backup()
            yield cluster
        finally:
            cluster.down()


def began(cluster, id: str) -> int:
    return cluster.output(id).count("began")


def test_a_backup_controller_takes_over_what_runs_and_what_waits(cluster, tmp_path) -> None:
    stage = Stage(cluster, tmp_path / "service")
    script, whole = "echo began; sleep 600", "--gpushare=gpus=2,request=100%"
    runs, ends = (cluster.sbatch(script, whole) for _ in range(2))
    waits = cluster.sbatch(script, whole)
    for id in (runs, ends):
        stage.running(id)
    where = {id: stage.gpus(id) for id in (runs, ends)}
    time.sleep(SAVED)
    cluster.stop("slurmctld", signal.SIGKILL)
    stage.until(lambda: not stage.service.work.trouble and stage.job(runs)["state"] == "running", "the backup leads")
    assert cluster.pings() == ["DOWN", "UP"]
    assert stage.gpus(runs) == where[runs] and cluster.state(waits) == "PENDING"
    cluster.run("scancel", ends)
    stage.running(waits)
    assert stage.gpus(waits) == where[ends]
    time.sleep(SAVED)
    cluster.start_controller()
    stage.until(lambda: cluster.pings() == ["UP", "UP"] and not stage.service.work.trouble, "the first one leads again")
    late = cluster.sbatch(script, whole)
    for _ in range(3):
        stage.round()
    assert cluster.state(late) == "PENDING"
    cluster.run("scancel", waits)
    stage.running(late)
    for id in (runs, ends, waits, late):
        cluster.until(lambda id=id: began(cluster, id), f"{id} has run")
        assert began(cluster, id) == 1 and stage.cluster.show(id)["Restarts"] == "0"
    assert stage.gpus(runs) == where[runs]
    stage.clear()
