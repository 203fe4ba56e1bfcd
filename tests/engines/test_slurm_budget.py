"""Slurm with a node daemon on each of its nodes, on the software driver: what is in force in a job's programs."""

from __future__ import annotations

import re
import subprocess

import pytest
from slurm_site import HUNGRY, MIB, PYTHON, jobs, look, open_site, uuids
from slurm_stage import Stage, missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

REQUEST = "--gpushare=request=800Mi,limit=1000Mi"


@pytest.fixture(scope="module")
def site():
    with open_site() as site:
        yield site


@pytest.fixture
def stage(site, tmp_path):
    stage = Stage(site, tmp_path / "service")
    yield stage
    stage.clear()


def over(stage: Stage, id: str) -> str:
    """The last line of its output, when it is over."""
    stage.until(lambda: stage.cluster.state(id) in ("COMPLETED", "FAILED"), f"{id} has not ended")
    return (stage.cluster.output(id).splitlines() or [""])[-1]


def test_the_budget_is_in_force_on_exactly_its_gpu(stage, site) -> None:
    first = site.sbatch("sleep 600", "--gpushare=request=100%")
    stage.running(first)
    ((node, (taken,)),) = stage.gpus(first)
    id = site.sbatch(look(site), REQUEST, "-w", node)
    assert over(stage, id) == f"{uuids(site, node)[1 - taken]} 1 1000 0 2", site.output(id)
    site.until(lambda: list(jobs(site, node)) == [f"slurm-{first}"], "the Epilog ends the job of the node")


def test_a_job_of_the_node_belongs_to_the_user_of_the_slurm_job(stage, site) -> None:
    """Software GPUs are there for one user only, so the program uses none."""
    id = site.sbatch("env | sort; sleep 600", REQUEST, user="games")
    stage.running(id)
    site.until(lambda: f"GPUSHARE_LIMIT={1000 * MIB}" in site.output(id), "its task has its budget")
    ((node, _),) = stage.gpus(id)
    (job,) = site.daemons.client(node).jobs()
    assert (job["name"], job["user"]) == (f"slurm-{id}", "games")
    assert f"GPUSHARE_JOB={job['id']}" in site.output(id)


def test_what_a_user_exports_does_not_raise_the_budget(stage, site) -> None:
    hostile = "GPUSHARE_LIMIT=max,GPUSHARE_REQUEST=max,GPUSHARE_MODE=off,GPUSHARE_SOCKET=/nowhere,GPUSHARE_JOB=feed"
    hostile += ",CUDA_VISIBLE_DEVICES=0,LD_PRELOAD=/lib/other.so"
    changed = f"GPUSHARE_JOB=feed GPUSHARE_LIMIT=max GPUSHARE_REQUEST=max setsid {look(site)}"
    id = site.sbatch(f"{look(site)}; {changed}", REQUEST, f"--export=ALL,{hostile}")
    over(stage, id)
    lines = [line for line in site.output(id).splitlines() if line.startswith("GPU-")]
    assert len(lines) == 2 and all(line.endswith(" 1 1000 0 2") for line in lines), site.output(id)


def test_steps_have_the_budget_of_their_job_together(stage, site) -> None:
    id = site.sbatch(f"srun --overlap {look(site)}; srun --overlap -n1 {look(site)}", REQUEST)
    over(stage, id)
    lines = [line for line in site.output(id).splitlines() if line.startswith("GPU-")]
    assert len(lines) == 2 and all(line.endswith(" 1 1000 0 2") for line in lines), site.output(id)


@pytest.mark.parametrize("line", [["srun"], ["salloc", "srun"]], ids=["srun", "salloc"])
def test_interactive_jobs_wait_for_the_allocator_too(stage, site, line) -> None:
    words = [line[0], REQUEST, *line[1:], PYTHON, f"{site.root}/etc/look.py"]
    path = site.root / "jobs" / f"{line[0]}.out"
    with path.open("w") as file:
        program = subprocess.Popen(
            words, env=site.environ, cwd=site.root, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
        )
        stage.until(lambda: program.poll() is not None, "it has not ended")
    assert path.read_text().splitlines()[-1].endswith(" 1 1000 0 2") or "1 1000 0 2" in path.read_text()


def test_a_gang_has_its_budget_on_each_node(stage, site) -> None:
    id = site.sbatch(f"srun -N2 -n2 {look(site)}", "-N2", "--gpushare=gpus=2,request=100%")
    over(stage, id)
    lines = {line.split()[0] for line in site.output(id).splitlines() if line.startswith("GPU-")}
    assert lines == {",".join(uuids(site, name)) for name in site.names}, site.output(id)


def stopped_borrower(stage, site, *options: str, after: str = "") -> str:
    """On one GPU of n0 an owner has taken its memory back from it, while both ran. Its node does that by itself; the
    service looks again when the test has it look."""
    borrower = site.sbatch(HUNGRY % (2500, 600) + after, "--gpushare=request=25%,limit=100%", "-w", "n0", *options)
    stage.until(lambda: "has it" in site.output(borrower), "it borrows what is idle")
    filler = site.sbatch("sleep 600", "--gpushare=request=100%", "-w", "n0")
    stage.running(filler)
    owner = site.sbatch(HUNGRY % (2000, 5), "--gpushare=request=75%", "-w", "n0")
    stage.running(owner)
    site.until(lambda: "has it" in site.output(owner), f"the owner has its memory: {site.output(owner)}")
    assert stage.gpus(filler) != stage.gpus(borrower)
    return borrower


def comment(site, id: str) -> str:
    return site.run("squeue", "-h", "-t", "all", "-j", id, "-o", "%k").stdout


def test_a_borrower_that_its_node_stops_waits_again_and_keeps_its_id(stage, site) -> None:
    """Request and limit, end to end."""
    id = stopped_borrower(stage, site)
    after = site.sbatch("true", "--gpushare=request=1%", f"--dependency=afterany:{id}")
    site.until(lambda: site.show(id).get("Restarts") == "1", f"it waits again: {site.show(id)}")
    site.until(lambda: "stopped on n0 to return" in comment(site, id), "it says why")
    assert re.search(r"borrowed memory: \S+ GiB owed to slurm-\d+ ", comment(site, id))
    stage.running(id)
    assert (stage.engine._look.jobs[id].mark.evictions, stage.job(id)["attempt"]) == (1, 2)
    site.until(lambda: "has it" in site.output(id), "its program has begun again")
    assert site.state(after) == "PENDING"


def test_a_borrower_that_is_not_to_be_requeued_ends_and_says_why(stage, site) -> None:
    id = stopped_borrower(stage, site, "--no-requeue")
    stage.until(lambda: site.state(id) == "FAILED", f"it ends: {site.show(id)}")
    assert "gpushare: stopped on n0 to return" in site.output(id)
    assert site.show(id)["Restarts"] == "0"


def test_a_borrower_whose_script_ends_well_is_done(stage, site) -> None:
    id = stopped_borrower(stage, site, after="\ntrue")
    stage.until(lambda: site.state(id) == "COMPLETED", f"it ends: {site.show(id)}")


def test_the_daemon_may_restart_under_a_job(stage, site) -> None:
    id = site.sbatch("sleep 600", REQUEST, "-w", "n1")
    stage.running(id)
    site.until(lambda: f"slurm-{id}" in jobs(site, "n1"), "the Prolog has registered it")
    site.daemons.kill("n1")
    site.daemons.start("n1")
    site.until(lambda: site.daemons.answers("n1"), "it answers again")
    site.until(lambda: f"slurm-{id}" in jobs(site, "n1"), "its placement is known")


def test_a_node_without_its_daemon_is_drained_and_the_job_runs_elsewhere(stage, site) -> None:
    site.daemons.kill("n0")
    try:
        id = site.sbatch(look(site), REQUEST)
        other = site.sbatch(look(site), REQUEST, "-w", "n0")
        assert over(stage, id).endswith(" 1 1000 0 2"), site.output(id)
        assert "DRAIN" in site.run("scontrol", "-o", "show", "node", "n0").stdout
        stage.until(lambda: stage.store.allocator.nodes["n0"].cordoned, "the allocator knows")
        assert stage.job(other)["state"] in ("pending", "held") and "GPU-" not in site.output(other)
    finally:
        site.daemons.start("n0")
        site.until(lambda: site.daemons.answers("n0"), "it answers again")
        site.run("scontrol", "update", "NodeName=n0", "State=RESUME", check=True)
    assert over(stage, other).endswith(" 1 1000 0 2"), site.output(other)
