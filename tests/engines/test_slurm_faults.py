"""Bad input and faults on a real Slurm: the message names the cause and the way out, and nothing is lost."""

from __future__ import annotations

import pytest
from slurm_stage import Stage, missing, running

from gpushare.errors import GpushareError

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

PART = "--gpushare=request=10%"


@pytest.fixture(scope="module")
def cluster():
    with running() as cluster:
        yield cluster


@pytest.fixture
def stage(cluster, tmp_path):
    stage = Stage(cluster, tmp_path / "service")
    yield stage
    stage.clear()


def submit(cluster, script: str, user: str = "games", **variables: str) -> str:
    path = cluster.root / "jobs" / "script.sh"
    path.write_text(f"#!/bin/bash\n{script}\n")
    path.chmod(0o755)
    words = ["sbatch", "--parsable", "-o", "job-%j.out", PART, str(path)]
    return cluster.run(*words, user=user, check=True, env=variables).stdout.strip()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("queue=visoin", "no queue 'visoin' (did you mean"),
        ("gpus=9", "no node that is there can hold it: 9 GPUs needed, the largest that matches: n0 with 2 GPUs"),
        ("request=64Gi", "1 GPU of 64.0 GiB needed, the largest that matches: n0 with 2 GPUs of 16.0 GiB"),
        ("request=200%", "--gpushare: request: '200%' is no part of a GPU (write 0.5 or 50%)"),
        ("request=50%,limit=10%", "below the request of 0.5 (raise the limit, or leave it out"),
        ("min_run_time=soon", "--gpushare: min_run_time: cannot read 'soon' as a duration (write 5s"),
    ],
)
def test_a_request_that_cannot_be_met_says_why_in_squeue_and_in_explain(stage, cluster, words, said) -> None:
    stage.queues(vision=2)
    id = cluster.sbatch("sleep 600", f"--gpushare={words}", user="games")
    stage.until(lambda: said in cluster.run("squeue", "-h", "-j", id, "-o", "%k").stdout, "squeue says why")
    assert cluster.state(id) == "PENDING"
    try:
        told = stage.service.explain(id)["reason"]["message"]
    except GpushareError as error:
        told = error.message
    assert said in told
    with pytest.raises(GpushareError) as caught:
        stage.service.cancel(id, None)
    assert caught.value.hint == f"scancel {id}"


def test_a_job_that_makes_no_sense_is_in_nobodys_way(stage, cluster) -> None:
    cluster.sbatch("sleep 600", "--gpushare=request=200%", user="games")
    stage.running(cluster.sbatch("sleep 600", PART, user="games"))


def test_without_the_controller_nothing_is_concluded_and_the_trouble_is_named(stage, cluster) -> None:
    id = cluster.sbatch("sleep 600", PART)
    stage.running(id)
    cluster.stop("slurmctld")
    try:
        stage.round()
        assert "`scontrol ping`" in stage.service.work.trouble or "slurm" in stage.service.work.trouble
        assert stage.job(id)["state"] == "running"
    finally:
        cluster.start_controller()
    stage.until(lambda: not stage.service.work.trouble, "it goes on")
    assert stage.running(id)["attempt"] == 1


def test_a_script_that_is_not_there(cluster) -> None:
    done = cluster.run("sbatch", PART, "/no/such.sh", user="games")
    assert done.returncode == 1 and "Unable to open file /no/such.sh" in done.stderr


def test_a_program_that_is_not_there_is_not_started_again_and_again(stage, cluster) -> None:
    id = submit(cluster, "exec /no/such/program")
    stage.until(lambda: cluster.state(id) == "FAILED", "it ends")
    assert "/no/such/program: No such file" in cluster.output(id) and cluster.show(id)["Restarts"] == "0"


def test_a_user_without_a_home(stage, cluster) -> None:
    id = submit(cluster, "echo at $PWD", HOME="/nonexistent")
    stage.until(lambda: cluster.state(id) == "COMPLETED", "it ends well")
    assert cluster.output(id) == f"at {cluster.root}/jobs\n"


def test_a_large_environment_reaches_the_job(stage, cluster) -> None:
    """1.5 MB. Of ten the kernel itself starts no program, so no sbatch either."""
    variables = {f"LARGE{number}": "x" * 100_000 for number in range(15)}
    id = submit(cluster, "env | wc -c", **variables)
    stage.until(lambda: cluster.state(id) == "COMPLETED", "it ends well")
    assert int(cluster.output(id)) > 1_500_000


def test_the_service_without_slurms_commands_says_so(cluster, tmp_path, monkeypatch) -> None:
    stage = Stage(cluster, tmp_path / "service")
    monkeypatch.setitem(stage.engine._commands._environ, "PATH", "/nowhere")
    monkeypatch.setenv("PATH", "/nowhere")
    try:
        stage.round()
        assert stage.service.work.trouble == "cannot run squeue: No such file or directory"
    finally:
        monkeypatch.undo()
        stage.clear()
