"""Slurm's own scheduler places jobs, by shards; gpushare enforces what they asked for, lends, and takes back.

No allocator and no service runs here.
"""

from __future__ import annotations

import pytest
from slurm_site import HUNGRY, MIB, jobs, look, open_site, uuids
from slurm_stage import FILES, missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

WHOLE = 3840
"""MiB that may be promised of a GPU."""
FORGED = 'gpushare {"attempt": 1, "place": [["n0", [0], 4026531840, 4026531840]]}'


@pytest.fixture(scope="module")
def site():
    text = (FILES / "job_submit.lua").read_text()
    submit = text.replace("gpushare.partitions = {gpushare = true}", "gpushare.enforce = true")
    assert submit != text
    with open_site("prolog --enforce", {"job_submit.lua": submit}) as site:
        yield site


@pytest.fixture(autouse=True)
def empty(site):
    yield
    site.cancel_all()


def ended(site, id: str) -> list[str]:
    """The lines of its output."""
    site.until(lambda: site.state(id) in ("COMPLETED", "FAILED"), f"{id} has not ended")
    return site.output(id).splitlines()


def seen(site, *options: str) -> tuple[str, str]:
    """The GPU that Slurm has chosen, and what a program of the job sees."""
    id = site.sbatch(f"echo $SLURMD_NODENAME $SLURM_JOB_GPUS; {look(site)}", *options)
    lines = ended(site, id)
    node, gpu = lines[0].split()
    return uuids(site, node)[int(gpu)], lines[-1]


def test_its_part_of_the_shards_is_what_a_job_may_use_of_its_gpu(site) -> None:
    gpu, shown = seen(site, "--gres=shard:25")
    assert shown == f"{gpu} 1 {WHOLE // 4} 0 2"


def test_a_job_may_borrow_up_to_its_limit(site) -> None:
    gpu, shown = seen(site, "--gres=shard:25", "--gpushare=limit=80%")
    assert shown == f"{gpu} 1 {WHOLE * 8 // 10} 0 0"


def test_a_counter_of_a_gpus_memory_is_a_request_too(site) -> None:
    id = site.sbatch(f"echo $SLURMD_NODENAME; {look(site)}", "--gres=gpumem:g1:1000")
    node, *_, shown = ended(site, id)
    assert shown == f"{uuids(site, node)[1]} 1 1000 0 2"


def test_a_comment_that_looks_like_a_place_gives_nothing(site) -> None:
    """Only root can write one here."""
    gpu, shown = seen(site, "--gres=shard:25", f"--comment={FORGED}")
    assert shown == f"{gpu} 1 {WHOLE // 4} 0 2"


@pytest.mark.parametrize("options", [[], ["--gres=gpu:1"]])
def test_a_job_without_shards_is_left_alone(site, options) -> None:
    id = site.sbatch("env; sleep 600", *options)
    site.until(lambda: "SLURM_JOB_ID" in site.output(id), "it runs")
    assert "GPUSHARE" not in site.output(id) and "libgpushare" not in site.output(id)
    assert not jobs(site, "n0") and not jobs(site, "n1")


def test_an_owner_gets_back_what_a_borrower_has_and_slurm_starts_that_one_again(site) -> None:
    options = ["-w", "n0", "--comment=mine"]
    borrower = site.sbatch(HUNGRY % (2500, 600), "--gres=shard:25", "--gpushare=limit=100%", *options)
    site.until(lambda: "has it" in site.output(borrower), f"it borrows: {site.output(borrower)}")
    ids = [site.sbatch("sleep 600", "--gres=shard:75", *options) for _ in range(2)]
    site.until(lambda: [site.state(id) for id in ids] == ["RUNNING"] * 2, "both GPUs are asked for")
    for id in ids:
        site.run("scancel", id)
    owners = [site.sbatch(HUNGRY % (2000, 600), "--gres=shard:75", *options) for _ in range(2)]
    site.until(lambda: all("has it" in site.output(id) for id in owners), "the owners have their memory")
    site.until(lambda: site.show(borrower).get("Restarts") == "1", f"it waits: {site.show(borrower)}")
    assert "gpushare: stopped on n0 to return" in site.output(borrower)
    assert site.show(borrower)["Comment"] == "mine"
    site.run("scancel", *owners)
    site.until(lambda: site.state(borrower) == "PENDING" and not jobs(site, "n0"), "all have ended")
    site.run("scontrol", "update", f"JobId={borrower}", "StartTime=now+3")  # in place of Slurm's two minutes
    site.until(lambda: site.state(borrower) == "RUNNING", "it runs again")
    site.until(lambda: "has it" in site.output(borrower), f"it borrows again: {site.output(borrower)}")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--gres=shard:25", "--gpushare=request=50%"], 'no word "request": there are limit'),
        (["--gpushare=limit=80%"], "--gpushare says what a job may use beyond its shards: ask for some, with --gres"),
        (["--gres=gpu:1", "--gpushare=default"], "beyond its shards: ask for some, with --gres=shard:25"),
    ],
)
def test_what_makes_no_sense_is_refused_at_submission(site, options, words) -> None:
    done = site.run("sbatch", *options, "--wrap=true", user="games")
    assert done.returncode == 1 and words in done.stderr


def test_a_limit_that_means_nothing_does_not_close_the_node(site) -> None:
    gpu, shown = seen(site, "--gres=shard:25", "--gpushare=limit=8x")
    assert shown == f"{gpu} 1 {WHOLE // 4} 0 2"
    assert "has no other limit than its request" in (site.root / "log" / "hooks.log").read_text()
    assert "DRAIN" not in site.run("scontrol", "-o", "show", "node").stdout


def test_users_of_one_gpu_have_their_parts(site) -> None:
    """Three programs beside each other; Slurm has packed them on as few GPUs as they fit on."""
    ids = [site.sbatch(f"{look(site)}; sleep 600", "--gres=shard:30", "-w", "n1") for _ in range(3)]
    site.until(lambda: all(site.output(id).strip() for id in ids), "all run")
    part = WHOLE * 30 // 100
    assert all(site.output(id).strip().endswith(f" 1 {part} 0 2") for id in ids)
    held = site.daemons.client("n1").status()["gpus"]
    assert sum(gpu["requested"] for gpu in held) // MIB == 3 * part
