"""`scontrol suspend` and `resume` of jobs on GPUs: what runs then is what the node daemon says."""

from __future__ import annotations

import os
import signal
import time

import pytest
from slurm_site import HUNGRY, MIB, TICKS, open_site
from slurm_stage import Stage, missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

PART = "--gpushare=request=50%,limit=100%"
WHOLE = "--gpushare=request=100%"
CHECK = ("HealthCheckProgram={root}/etc/check", "HealthCheckInterval=1")
AGAIN = "was suspended and ran"


@pytest.fixture(scope="module")
def site():
    with open_site(more=CHECK) as site:
        yield site


@pytest.fixture
def stage(site, tmp_path):
    stage = Stage(site, tmp_path / "service")
    yield stage
    stage.clear()


def ticking(stage, site, *options: str) -> str:
    """A job that has a thousand MiB on GPU 0 or 1 of n0, and says so again and again."""
    id = site.sbatch(TICKS % 1000, *(options or (PART,)), "-w", "n0")
    stage.until(lambda: "tick" in site.output(id), f"it runs: {site.output(id)}")
    stage.running(id)
    return id


def placed(site, id: str):
    """As the node daemon knows it."""
    found = site.daemons.client("n0").placements()
    return next((one for one in found if one["job"]["name"] == f"slurm-{id}"), None)


def ticks(site, id: str, seconds: float = 0.3) -> int:
    before = len(site.output(id))
    time.sleep(seconds)
    return len(site.output(id)) - before


def stands(site, id: str) -> bool:
    return bool(placed(site, id)["job"]["state"] == "stopped" and not ticks(site, id))


def rounds(stage, count: int = 3) -> None:
    for _ in range(count):
        stage.round()


def log(site) -> str:
    return (site.root / "log" / "hooks.log").read_text()


def test_a_suspended_job_stands_still_keeps_its_gpu_and_goes_on(stage, site) -> None:
    id = ticking(stage, site)
    site.run("scontrol", "suspend", id, check=True)
    site.until(lambda: stands(site, id), f"it stands still: {placed(site, id)}")
    beside, over = (site.sbatch("sleep 600", WHOLE, "-w", "n0") for _ in range(2))
    stage.running(beside)
    rounds(stage)
    assert site.state(over) == "PENDING" and stage.gpus(beside) != stage.gpus(id)
    (gpu,) = placed(site, id)["job"]["gpus"]
    assert gpu["usage"] > 1000 * MIB
    assert site.state(id) == "SUSPENDED" and stage.job(id)["state"] == "running"
    site.run("scontrol", "resume", id, check=True)
    site.until(lambda: ticks(site, id), "it goes on")
    time.sleep(2.5)  # checks come each second
    assert ticks(site, id) and stage.running(id)["attempt"] == 1 and stage.job(id)["evictions"] == 0
    assert site.show(id)["Restarts"] == "0" and site.output(id).count("has it") == 1


def test_a_job_that_slurm_only_calls_suspended_is_suspended_again(stage, site) -> None:
    id = ticking(stage, site)
    site.run("scontrol", "suspend", id, check=True)
    site.until(lambda: stands(site, id), "it stands still")
    before = log(site).count(AGAIN)
    for pid in placed(site, id)["pids"]:
        os.kill(pid, signal.SIGCONT)
    site.until(lambda: log(site).count(AGAIN) > before, "the node has noticed it")
    site.until(lambda: stands(site, id), "it stands still again")
    assert site.state(id) == "SUSPENDED"


def test_a_job_that_is_suspended_in_its_first_moment_stands_still_all_the_same(stage, site) -> None:
    """Then Slurm's signals are lost."""
    id = site.sbatch(TICKS % 1000, PART, "-w", "n0")
    stage.until(lambda: site.state(id) == "RUNNING", "it starts")
    site.run("scontrol", "suspend", id, check=True)
    time.sleep(3.0)
    site.until(lambda: not site.output(id) or stands(site, id), "it stands still")
    assert site.state(id) == "SUSPENDED"
    site.run("scontrol", "resume", id, check=True)
    site.until(lambda: ticks(site, id), "it goes on")


def test_a_job_is_stopped_for_another_queue_while_it_is_suspended(stage, site) -> None:
    stage.queues(a=2, b=2)
    borrowers = [site.sbatch(TICKS % 1000, "--gpushare=queue=a") for _ in range(4)]
    for id in borrowers:
        stage.until(lambda id=id: "tick" in site.output(id), f"it runs: {site.output(id)}")
    for id in borrowers:
        site.run("scontrol", "suspend", id, check=True)
        site.until(lambda id=id: not ticks(site, id), "it stands still")
    owner = site.sbatch("sleep 600", "--gpushare=queue=b")
    stage.running(owner)
    (stopped,) = [id for id in borrowers if site.state(id) == "PENDING"]
    site.run("scancel", owner)
    assert stage.running(stopped)["attempt"] == 2
    site.until(lambda: ticks(site, stopped), "it runs again")


def test_an_owner_gets_back_what_a_suspended_job_has_borrowed(stage, site) -> None:
    id = site.sbatch(HUNGRY % (2500, 600), "--gpushare=request=25%,limit=100%", "-w", "n0")
    stage.until(lambda: "has it" in site.output(id), "it borrows what is idle")
    stage.running(site.sbatch("sleep 600", WHOLE, "-w", "n0"))
    site.run("scontrol", "suspend", id, check=True)
    site.until(lambda: placed(site, id)["job"]["state"] == "stopped", "it stands still")
    owner = site.sbatch(HUNGRY % (2000, 0), "--gpushare=request=75%", "-w", "n0")
    stage.until(lambda: "has it" in site.output(owner), f"the owner has its memory: {site.output(owner)}")
    rounds(stage)
    assert site.state(id) == "SUSPENDED", "Slurm waits for whoever has suspended it"
    site.run("scontrol", "resume", id, check=True)
    stage.until(lambda: site.show(id).get("Restarts") == "1", f"the borrower waits again: {site.show(id)}")
    stage.running(id)
    assert stage.job(id)["attempt"] == 2
