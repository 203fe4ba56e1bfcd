"""Jobs of a real Slurm that the allocator starts and stops: where they run, and what becomes of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from slurm_stage import ROOT, Stage, missing, running

from gpushare.errors import UsageError

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

SLEEP = "sleep 600"
MIB = 2**20


@pytest.fixture(scope="module")
def cluster():
    with running() as cluster:
        yield cluster


@pytest.fixture
def stage(cluster, tmp_path):
    stage = Stage(cluster, tmp_path / "service")
    yield stage
    stage.clear()


def test_a_job_waits_until_the_allocator_starts_it(stage, cluster) -> None:
    id = cluster.sbatch(SLEEP, "--gpushare=request=25%", user="games")
    assert cluster.state(id) == "PENDING"
    assert stage.running(id)["queue"] == "games"
    assert "gpumem:g" in cluster.show(id)["TresPerNode"]


def test_a_borrower_is_stopped_for_the_owner_and_starts_again(stage, cluster) -> None:
    stage.queues(a=2, b=2)
    borrowers = [cluster.sbatch(SLEEP, "--gpushare=queue=a") for _ in range(4)]
    for id in borrowers:
        stage.running(id)
    owner = cluster.sbatch(SLEEP, "--gpushare=queue=b,request=50%")
    stage.running(owner)
    (stopped,) = [id for id in borrowers if cluster.state(id) == "PENDING"]
    assert cluster.show(stopped)["Restarts"] == "1"
    stage.until(lambda: stage.job(stopped)["state"] == "pending", "the borrower waits")
    assert stage.job(stopped)["evictions"] == 1
    assert stage.service.explain(stopped)["state"] == "pending"
    cluster.run("scancel", owner)
    stage.running(stopped)
    assert stage.job(stopped)["attempt"] == 2


def test_each_of_an_array_has_its_own_place(stage, cluster) -> None:
    array = cluster.sbatch(SLEEP, "--gpushare=request=50%", "--array=0-5")
    ids = [f"{array}_{index}" for index in range(6)]
    for id in ids:
        stage.running(id)
    held = [gpu for id in ids for gpu in stage.gpus(id)]
    assert len(held) == 6 and max(held.count(gpu) for gpu in held) == 2


def test_a_gang_starts_as_a_whole(stage, cluster) -> None:
    one = cluster.sbatch(SLEEP, "--gpushare=request=75%")
    stage.running(one)
    gang = cluster.sbatch(SLEEP, "-N2", "--gpushare=gpus=2,request=100%")
    stage.until(lambda: stage.job(gang)["state"] == "pending", "there is no room on both nodes")
    cluster.run("scancel", one)
    stage.running(gang)
    assert stage.gpus(gang) == [("n0", (0, 1)), ("n1", (0, 1))]
    assert cluster.run("squeue", "-h", "-j", gang, "-o", "%D %N").stdout.split() == ["2", "n[0-1]"]


def test_tasks_of_a_gang_may_share_a_node(stage, cluster) -> None:
    gang = cluster.sbatch(SLEEP, "-N2", "--gpushare=request=50%")
    stage.running(gang)
    ((first, _), (second, _)) = stage.gpus(gang)
    assert first == second
    assert cluster.run("squeue", "-h", "-j", gang, "-o", "%D %N").stdout.split() == ["1", first]


def test_slurm_itself_refuses_what_would_not_fit(stage, cluster) -> None:
    """A job that an operator releases past the allocator."""
    id = cluster.sbatch(SLEEP, "--gpushare=request=75%")
    stage.running(id)
    (spot,) = stage.engine._look.jobs[id].mark.place
    past = cluster.sbatch(SLEEP, "--gpushare=request=75%")
    counter = f"Gres=gpumem:g{spot.gpus[0]}:{spot.request // MIB}"
    cluster.run("scontrol", "update", f"JobId={past}", f"ReqNodeList={spot.node}", counter, check=True)
    cluster.run("scontrol", "release", past, check=True)
    cluster.until(lambda: cluster.show(past)["Reason"] == "Resources", "Slurm has looked at it")
    assert cluster.state(past) == "PENDING"


def test_a_users_hold_is_kept_and_a_users_release_starts_nothing_by_itself(stage, cluster) -> None:
    id = cluster.sbatch(SLEEP, "--gpushare=request=25%", "--hold", user="games")
    for _ in range(3):
        stage.round()
    assert stage.job(id)["state"] == "held"
    cluster.run("scontrol", "release", id, user="games", check=True)
    assert cluster.state(id) == "PENDING" and cluster.show(id)["Priority"] == "0"
    stage.running(id)
    other = cluster.sbatch(SLEEP, "--gpushare=gpus=2,request=100%", user="games")
    cluster.run("scontrol", "hold", other, user="games", check=True)
    for _ in range(3):
        stage.round()
    assert stage.job(other)["state"] == "held"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--gpushare=nonsense=3"], 'no word "nonsense": there are gpus, request'),
        (["--gpushare=request"], 'cannot read "request"'),
        (["--gpushare=request=25%", "--gres=gpu:1"], "beside --gres or --gpus: say how many GPUs"),
        ([], "partition gpushare is for jobs that say what they need of a GPU"),
        (["--gpushare=gpus=1", "--comment=gpushare {}"], "a comment must not begin with"),
    ],
)
def test_what_makes_no_sense_is_refused_at_submission(cluster, options, words) -> None:
    done = cluster.run("sbatch", *options, "--wrap=true", user="games")
    assert done.returncode == 1 and words in done.stderr


def test_users_cannot_change_what_was_decided(stage, cluster) -> None:
    id = cluster.sbatch(SLEEP, "--gpushare=request=25%", user="games")
    stage.running(id)
    before = cluster.show(id)
    for change in ("Comment=gpushare {}", "Comment=mine", "Gres=gpumem:g0:1", "AdminComment=gpushare ask="):
        assert cluster.run("scontrol", "update", f"JobId={id}", change, user="games").returncode == 1, change
    after = cluster.show(id)
    assert (after["Comment"], after["TresPerNode"]) == (before["Comment"], before["TresPerNode"])


def test_a_request_that_means_nothing_is_told_to_its_user(stage, cluster) -> None:
    id = cluster.sbatch(SLEEP, "--gpushare=gpus=0.5,request=40Gi")
    stage.round()
    assert "a part of a GPU is said twice" in cluster.run("squeue", "-h", "-j", id, "-o", "%k").stdout


def test_the_engines_own_commands_are_named(stage, cluster) -> None:
    id = cluster.sbatch(SLEEP, "--gpushare=request=25%")
    stage.round()
    for call, hint in (
        (lambda: stage.service.submit({}, ROOT), "sbatch --gpushare=request=25%,limit=80% job.sh"),
        (lambda: stage.service.cancel(id, ROOT), f"scancel {id}"),
        (lambda: stage.service.hold(id, ROOT), f"scontrol hold {id}"),
        (lambda: stage.service.cordon("n0", False, ROOT), "scontrol update NodeName=n0 State=DRAIN"),
    ):
        with pytest.raises(UsageError) as caught:
            call()
        assert caught.value.hint is not None and caught.value.hint.startswith(hint)


def test_a_service_that_starts_again_goes_on(stage, cluster) -> None:
    runs, ended = (cluster.sbatch(SLEEP, "--gpushare=gpus=2,request=100%") for _ in range(2))
    waits = cluster.sbatch(SLEEP, "--gpushare=gpus=2,request=100%")
    for id in (runs, ended):
        stage.running(id)
    where = stage.gpus(runs)
    stage.store.close()
    cluster.run("scancel", ended)
    stage.open()
    stage.running(waits)
    assert stage.gpus(runs) == where and cluster.show(runs)["Restarts"] == "0"


def test_a_service_without_its_file_takes_over_what_runs(stage, cluster) -> None:
    id = cluster.sbatch(SLEEP, "--gpushare=request=25%")
    stage.running(id)
    where = stage.gpus(id)
    stage.store.close()
    for path in stage.directory.glob("cluster.db*"):
        path.unlink()
    stage.open()
    stage.until(lambda: stage.job(id)["state"] == "running", "it is adopted")
    assert stage.gpus(id) == where and cluster.show(id)["Restarts"] == "0"


def test_a_controller_that_is_killed_loses_and_doubles_nothing(stage, cluster) -> None:
    early = cluster.sbatch(SLEEP, "--gpushare=request=100%")
    stage.running(early)
    time.sleep(8)  # Slurm writes every 5 s what it knows; of what comes after that it forgets everything
    late = cluster.sbatch(f"echo began >> {cluster.root}/jobs/late; {SLEEP}", "--gpushare=request=100%")
    stage.running(late)
    cluster.stop("slurmctld", signal.SIGKILL)
    stage.round()  # nobody answers, and nothing is concluded
    assert set(stage.store.allocator.jobs) >= {early}
    cluster.start_controller()
    stage.running(early)
    if cluster.state(late):  # the controller's last seconds may be lost
        stage.running(late)
    assert cluster.show(early)["Restarts"] == "0"


def test_a_change_in_slurm_ends_the_wait_for_one(stage, cluster) -> None:
    """In an empty cluster, too, and what happens between two waits is not missed."""

    def waited() -> float:
        began = time.monotonic()
        stage.engine.watch(20.0)
        return time.monotonic() - began

    stage.round()
    while waited() < 5.0:
        pass  # what earlier tests have left
    id = cluster.sbatch(SLEEP, "--gpushare=request=25%")
    assert waited() < 15.0
    cluster.run("scancel", id)
    assert waited() < 15.0


def test_the_service_runs_by_itself(cluster, tmp_path) -> None:
    """As an administrator starts it, and users ask it."""
    (tmp_path / "cluster.toml").write_text(f'engine = "slurm"\n[slurm]\nconf = "{cluster.conf}"\n')
    socket = tmp_path / "api.sock"
    environ = {**os.environ, "GPUSHARE_CLUSTER_SOCKET": str(socket)}
    gpushare = [sys.executable, "-P", "-m", "gpushare"]
    options = ["--config", str(tmp_path / "cluster.toml"), "--store", str(tmp_path / "c.db"), "--socket", str(socket)]

    def ask(*words: str) -> str:
        done = subprocess.run([*gpushare, *words], env=environ, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    with (tmp_path / "log").open("wb") as log:
        service = subprocess.Popen([*gpushare, "cluster", "serve", *options], env=environ, stderr=log)
    try:
        cluster.until(lambda: "n1" in ask("cluster", "nodes"), "it knows the nodes")
        ids = [cluster.sbatch(SLEEP, "--gpushare=gpus=2", user="games") for _ in range(3)]
        wrong = cluster.sbatch(SLEEP, "--gpushare=queue=visoin", user="games")
        cluster.until(lambda: cluster.state(ids[1]) == "RUNNING", "two of them run")
        cluster.until(lambda: "'visoin'" in ask("cluster", "explain", wrong), "an unknown queue is named")
        assert "pending" in ask("queue") and "games" in ask("cluster", "queues")
        assert "no GPU is free" in ask("cluster", "explain", ids[2])
        assert f"scancel {ids[2]}" in ask("cancel", ids[2])
        assert "sbatch --gpushare" in ask("submit", "--", "true")
        cluster.until(lambda: why(cluster, ids[2]), "squeue says why")
    finally:
        service.terminate()
        service.wait()
        cluster.cancel_all()
    assert "ready" in (tmp_path / "log").read_text()


def why(cluster, id: str) -> bool:
    return '"why": ' in cluster.run("squeue", "-h", "-j", id, "-o", "%k").stdout
