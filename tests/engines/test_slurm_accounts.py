"""Accounts of a real slurmdbd as queues: their tree, shares and limits, and what becomes of changes."""

from __future__ import annotations

import signal

import pytest
from slurm_accounts import AccountedCluster, missing
from slurm_stage import Stage, open_folder, with_plugins

from gpushare.cluster.quantity import MICRO

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

SLEEP = "sleep 600"
DEFAULT = "--gpushare=default"


@pytest.fixture(scope="module")
def cluster():
    with open_folder() as root:
        cluster = with_plugins(root, kind=AccountedCluster)
        try:
            cluster.up()
            for words in (
                "account science fairshare=30",
                "account physics parent=science fairshare=20",
                "account biology parent=science fairshare=10 GrpTRES=gres/gpumem=32768",
                "account art fairshare=10",
                "user games account=art fairshare=3",
                "user games account=physics",
                "user games account=science fairshare=5",
                "user games account=biology GrpTRES=gres/gpu=1",
                "user root account=art,science,physics,biology",
            ):
                cluster.accounts("add", *words.split())
            yield cluster
        finally:
            cluster.down()


@pytest.fixture
def stage(cluster, tmp_path):
    stage = Stage(cluster, tmp_path / "service", accounts="1s")
    stage.round()
    yield stage
    stage.clear()


def queues(stage) -> dict[str, tuple[str | None, int | None, int | None]]:
    """Parent, weight and limit in GPUs."""
    found = stage.store.allocator.queues
    return {
        name: (one.queue.parent, one.queue.weight // MICRO, one.queue.limit and one.queue.limit // MICRO)
        for name, one in found.items()
    }


def test_each_account_and_each_of_its_users_is_a_queue_with_its_share_and_limit(stage) -> None:
    assert queues(stage) == {
        "science": (None, 30, None),
        "science:games": ("science", 5, None),
        "science:root": ("science", 1, None),
        "physics": ("science", 20, None),
        "physics:games": ("physics", 1, None),
        "physics:root": ("physics", 1, None),
        "biology": ("science", 10, 2),
        "biology:games": ("biology", 1, 1),
        "biology:root": ("biology", 1, None),
        "art": (None, 10, None),
        "art:games": ("art", 3, None),
        "art:root": ("art", 1, None),
    }


def test_a_job_uses_the_share_of_its_user_in_its_account(stage, cluster) -> None:
    art = cluster.sbatch(SLEEP, DEFAULT, user="games")
    physics = cluster.sbatch(SLEEP, DEFAULT, "-A", "physics", user="games")
    above = cluster.sbatch(SLEEP, DEFAULT, "-A", "science", user="games")
    assert [stage.running(id)["queue"] for id in (art, physics, above)] == [
        "art:games",
        "physics:games",
        "science:games",
    ]


@pytest.mark.parametrize(
    ("account", "user"), [("physics", "root"), ("art", "games")], ids=["of accounts", "of users of one account"]
)
def test_shares_decide_who_gives_gpus_back(stage, cluster, account, user) -> None:
    """Three to one, on four GPUs, of science and art, and of games and root in art."""
    borrowers = [cluster.sbatch(SLEEP, DEFAULT, "-A", "art") for _ in range(4)]
    for id in borrowers:
        stage.running(id)
    owners = [cluster.sbatch(SLEEP, DEFAULT, "-A", account, user=user) for _ in range(4)]
    stage.until(lambda: [cluster.state(id) for id in owners].count("RUNNING") == 3, "they have their three GPUs")
    for _ in range(3):
        stage.round()
    assert sorted(cluster.state(id) for id in borrowers) == ["PENDING"] * 3 + ["RUNNING"]
    assert sorted(cluster.state(id) for id in owners) == ["PENDING"] + ["RUNNING"] * 3


@pytest.mark.parametrize(("user", "most"), [("root", 2), ("games", 1)], ids=["of the account", "of its user"])
def test_a_limit_holds(stage, cluster, user, most) -> None:
    *fit, over = (cluster.sbatch(SLEEP, DEFAULT, "-A", "biology", user=user) for _ in range(most + 1))
    for id in fit:
        stage.running(id)
    for _ in range(3):
        stage.round()
    assert cluster.state(over) == "PENDING"
    assert stage.job(over)["reason"]["code"] == "limit"


def test_the_share_of_another_account_cannot_be_taken(stage, cluster) -> None:
    id = cluster.sbatch(SLEEP, "--gpushare=queue=physics", user="games")
    for _ in range(3):
        stage.round()
    assert cluster.state(id) == "PENDING"
    said = cluster.run("squeue", "-h", "-j", id, "-o", "%k").stdout
    assert "a job of account art cannot use the queue physics (leave queue= out, and name the account with -A)" in said


def test_a_change_with_sacctmgr_is_followed_and_an_account_that_is_gone_has_no_share(stage, cluster) -> None:
    cluster.accounts("add", "account", "music", "fairshare=7")
    stage.until(lambda: queues(stage).get("music") == (None, 7, None), "it is a queue")
    cluster.accounts("modify", "account", "music", "set", "fairshare=9", "GrpTRES=gres/gpu=2")
    stage.until(lambda: queues(stage)["music"] == (None, 9, 2), "its share has changed")
    cluster.accounts("add", "user", "games", "account=music", "fairshare=4")
    stage.until(lambda: queues(stage).get("music:games") == ("music", 4, None), "its user is one, too")
    cluster.accounts("modify", "user", "games", "where", "account=music", "set", "fairshare=6")
    stage.until(lambda: queues(stage)["music:games"] == ("music", 6, None), "the user's share has changed")
    cluster.accounts("delete", "user", "games", "account=music")
    stage.until(lambda: queues(stage)["music:games"] == ("music", 1, None), "the user's share is gone")
    cluster.accounts("delete", "account", "music")
    stage.until(lambda: queues(stage)["music"] == (None, 1, None), "it is as a queue that a user's first job makes")


def test_shares_stay_while_the_database_does_not_answer(stage, cluster, caplog) -> None:
    before = queues(stage)
    cluster.stop("slurmdbd", signal.SIGKILL)
    try:
        id = cluster.sbatch(SLEEP, DEFAULT, "-A", "physics")
        stage.running(id)
        stage.until(lambda: "the accounts' shares stay as they were" in caplog.text, "the log says so")
        stage.crash(accounts="1s")
        stage.running(id)
        assert queues(stage) == before
    finally:
        cluster.start_accounts()
