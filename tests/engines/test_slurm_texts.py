"""What Slurm's lists and the texts in a job's record mean."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare.cluster.engines import slurm as package
from gpushare.cluster.engines.slurm import accounts, listing, mark, request, seen, shards, stopped
from gpushare.cluster.engines.slurm.lease import Lease, found
from gpushare.cluster.engines.slurm.listing import Listed, hosts
from gpushare.cluster.engines.slurm.mark import Mark, Spot
from gpushare.cluster.engines.slurm.starting import gres_of
from gpushare.cluster.model import ANYWHERE, Selector, Tasks
from gpushare.errors import UsageError
from gpushare.killed import stopped as stopped_words

GIB = 2**30


# ---- requests ----------------------------------------------------------------------------------------


def asked(words: str, count: int = 1) -> Tasks:
    return request.job_of("17", request.Asked(words, "", count), "train", ANYWHERE).tasks[0]


def test_words_of_a_request() -> None:
    assert asked("") == Tasks()
    assert asked("request=25%,limit=80%") == Tasks(share=250_000, limit=800_000)
    assert asked("gpus=2,request=20Gi,limit=40Gi", 4) == Tasks(4, gpus=2, memory=20 * GIB, limit=40 * GIB)
    job = request.job_of("17", request.Asked("queue=a,priority=70,preemptible=no,min_run_time=30m"), "x", ANYWHERE)
    assert (job.queue, job.priority, job.preemptible, job.min_runtime) == ("a", 70, False, 1800.0)


@pytest.mark.parametrize(
    "words", ["colour=red", "gpus", "gpus=", "request=lots", "preemptible=perhaps", "gpus=0.5,request=1Gi"]
)
def test_a_request_that_means_nothing(words) -> None:
    with pytest.raises(UsageError):
        asked(words)


def test_what_is_kept_in_the_record() -> None:
    kept = "gpushare ask=gpus=2,request=25% count=2 nodes=n[1-2]"
    assert request.read(kept) == request.Asked("gpus=2,request=25%", "n[1-2]", 2)
    assert request.read("gpushare ask=") == request.Asked()
    assert request.read("") is None and request.read("for gpushare") is None and request.read("  ") is None


def test_the_plug_in_for_submission_knows_the_same_words() -> None:
    text = (Path(package.__file__).parent / "gpushare_submit.lua").read_text()
    listed = re.search(r"M\.KEYS = \{(.*?)\}", text, re.DOTALL)
    assert listed is not None and re.findall(r'"(\w+)"', listed[1]) == list(request.KEYS)
    placed = re.search(r"local PLACED_KEYS = \{(.*?)\}", text)
    assert placed is not None and set(re.findall(r'"(\w+)"', placed[1])) == {"limit"} < set(request.KEYS)


@pytest.mark.parametrize("words", ["", "default"])
def test_no_words(words) -> None:
    assert request.words_of(words) == {}


# ---- jobs that Slurm places --------------------------------------------------------------------------

ENVIRON = {"SLURMD_NODENAME": "n1", "SPANK_GPUSHARE": "limit=80%"}
SHARDED = "NodeName=n1 Gres=gpu:2,shard:200,gpumem:g0:16K Partitions=a"


def placed(gres: str, environ: dict[str, str] = ENVIRON) -> tuple[tuple[int, ...], int, int] | None:
    """GPUs, request and limit, of a job on n0 and n1, of which the latter has two GPUs of 1000 MiB."""
    job = (
        f"JobId=7 Nodes=n0 CPU_IDs=0 Mem=0 GRES=shard:9(9/100,0/100) Nodes=n[1-2] CPU_IDs=0 Mem=0 GRES={gres} MinCPUs=1"
    )
    found = shards.placed(environ, job, SHARDED, [1000 * 2**20] * 2)
    if found is None:
        return None
    (spot,) = found.mark.place
    return spot.gpus, spot.request // 2**20, spot.limit // 2**20


def test_shards_of_both_kinds_of_slurm_and_counters() -> None:
    assert placed("shard:25(IDX:1)") == ((1,), 250, 800)
    assert placed("shard:25(0/100,25/100)") == ((1,), 250, 800)
    assert placed("shard:a100:120(100/100,20/100)") == ((0, 1), 1000, 1000), "the larger part counts on all of its GPUs"
    assert placed("gpumem:g1(CNT:500)") == ((1,), 500, 800)
    assert placed("gpu:1(IDX:0)") is placed("") is placed("shard:25(7/100)".replace("7", "0")) is None
    assert placed("shard:250(IDX:1)") == ((1,), 1000, 1000), "no more than there is"


def test_without_a_limit_it_is_the_request_and_a_bad_one_says_why() -> None:
    assert placed("shard:25(IDX:1)", {"SLURMD_NODENAME": "n1"}) == ((1,), 250, 250)
    assert placed("shard:25(IDX:1)", {**ENVIRON, "SPANK_GPUSHARE": "limit=10%"}) == ((1,), 250, 250)
    for words, why in (("limit=8x", "8x"), ("limits=80%", "no word 'limits'")):
        found = shards.placed(
            {**ENVIRON, "SPANK_GPUSHARE": words}, "Nodes=n1 CPU_IDs=0 Mem=0 GRES=shard:25(IDX:1)", SHARDED, [8, 8]
        )
        assert found is not None and why in found.wrong


def test_each_start_of_it_is_a_later_attempt() -> None:
    found = shards.placed(
        {**ENVIRON, "SLURM_JOB_RESTART_COUNT": "2"}, "Nodes=n1 CPU_IDs=0 Mem=0 GRES=shard:25(IDX:1)", SHARDED, [8, 8]
    )
    assert found is not None and (found.mark.attempt, found.mark.token) == (3, (0, 2))


# ---- accounts ----------------------------------------------------------------------------------------

ASSOCIATIONS = """
root||||1|
root||root||1|
art|root|||10|cpu=4,gres/gpu=2
art||ada||parent|
art||ada|night|7|
science|root|||30|gres/gpu=9,gres/gpumem=%s
physics|science|||parent|
science||bob||5|gres/gpu=1
science||eve||0|
physics||ada|night|7|
"""


@pytest.mark.parametrize("memory", ["32768", "32768M", "32G"])
def test_accounts_are_a_tree_of_queues(memory) -> None:
    read = accounts.read(ASSOCIATIONS % memory)
    found = {name: (one.parent, one.weight, one.limit) for name, one in accounts.queues_of(read, 16384)}
    assert found == {
        "art": (None, 10_000_000, 2_000_000),
        "art:ada": ("art", 1_000_000, None),
        "science": (None, 30_000_000, 2_000_000),
        "science:bob": ("science", 5_000_000, 1_000_000),
        "science:eve": ("science", 0, None),
        "physics": ("science", 1_000_000, None),
        "physics:ada": ("physics", 7_000_000, None),
    }


class Database:
    """What answers the commands of accounts."""

    def run(self, command: str, *_: str) -> str:
        return "ClusterName = c1\n" if command == "scontrol" else ASSOCIATIONS % "32768"


def test_the_share_that_a_job_has_is_that_of_its_user_in_its_account() -> None:
    database = Database()
    known = accounts.Accounts(database, 1.0, lambda: 0.0)
    known.queues(16384)
    for queue, account, user in (("", "art", "ada"), ("art:ada", "art", "ada"), ("", "music", "eve")):
        known.check(queue, account, user)
    with pytest.raises(UsageError, match="eve has no share in account art") as caught:
        known.check("", "art", "eve")
    assert caught.value.hint == "an administrator can give one: sacctmgr add user eve account=art"
    for queue in ("art", "science:bob"):
        with pytest.raises(UsageError, match=f"a job of account art cannot use the queue {queue}"):
            known.check(queue, "art", "ada")


# ---- jobs that their node has stopped ----------------------------------------------------------------

SHOWN = """JobId=17 ArrayJobId=17 ArrayTaskId=3 JobName=a b
   UserId=games(5) GroupId=games(60) MCS_label=N/A
   JobState=COMPLETING Reason=NonZeroExitCode Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=3:0
   Comment=gpushare {"why": "a = b", "attempt": 2}
   StdErr=/home/my files/17_3.out

JobId=16 ArrayJobId=17 ArrayTaskId=2 JobName=c
   JobState=RUNNING Reason=None Dependency=(null)
"""


def test_the_record_of_one_job_is_read() -> None:
    one, other = stopped.record_of(SHOWN, "17"), stopped.record_of(SHOWN, "16")
    assert (one["id"], one["Reason"], one["Requeue"], one["BatchFlag"]) == ("17_3", "NonZeroExitCode", "1", "1")
    assert mark.read(one["Comment"]) == Mark(why="a = b", attempt=2) and one["StdErr"] == "/home/my files/17_3.out"
    assert (other["id"], other["JobState"], other["Comment"]) == ("17_2", "RUNNING", "")
    assert stopped.record_of(SHOWN, "3") == {}


def test_a_job_that_was_stopped_says_for_whom() -> None:
    killed = {"code": "reclaim", "asked": 2 * GIB, "owner": "train", "owner_user": "ada"}
    words = "stopped on n0 to return borrowed memory: 2.0 GiB owed to train (ada)"
    assert stopped_words(killed, " on n0") == words
    assert stopped_words({**killed, "code": "breach"}, " on n0") == "stopped on n0: it used more memory than its limit"
    assert "could not be brought back" in stopped_words({**killed, "code": "suspend_stuck"}, " on n0")


# ---- marks -------------------------------------------------------------------------------------------

PLACED = Mark(attempt=3, place=(Spot("n2", (0, 1), 20 * GIB, 64 * GIB),), restarts=1, token=(2, 17))


def test_a_mark_is_read_as_it_was_written() -> None:
    full = replace(PLACED, why='it "waits", ünd more', failed="x", blame="n2", stop=True, theirs="mine", evictions=2)
    for one in (Mark(), PLACED, full, replace(full, held=True)):
        assert mark.read(one.text()) == one
    assert full.text().startswith('gpushare {"why": "it ')


@pytest.mark.parametrize(
    "text", ["", "mine", "gpushare", "gpushare {", "gpushare []", 'gpushare {"place": 7}', "gpushare 1"]
)
def test_what_is_no_mark_is_the_users_own_comment(text) -> None:
    assert mark.read(text) == Mark(theirs=text)


def test_counters_are_those_of_each_node_or_none() -> None:
    one = Spot("n1", (1,), 1024 * 2**20, 0)
    assert gres_of((one,)) == "gpumem:g1:1023"
    assert gres_of((one, one._replace(node="n2"))) == "gpumem:g1:1023"
    assert gres_of((one, one._replace(gpus=(0,)))) == "gpumem:g0:1023,gpumem:g1:1023"
    assert gres_of((one, one._replace(node="n2", gpus=(0,)))) == ""


# ---- lists -------------------------------------------------------------------------------------------


def test_names_of_nodes() -> None:
    assert list(hosts("n[0-2,7],login")) == ["n0", "n1", "n2", "n7", "login"]
    assert list(hosts("r[1-2]n[08-10]")) == ["r1n08", "r1n09", "r1n10", "r2n08", "r2n09", "r2n10"]
    assert list(hosts("")) == []


def test_the_lease_of_the_highest_term_counts() -> None:
    one, two = Lease(3, 100.0, "a:/b"), Lease(4, 100.0, "c d")
    nodes = [
        replace(node, name=name, extra=extra)
        for name, extra in (("n1", "theirs"), ("n2", one.text()), ("n3", two.text()), ("n4", ""))
        for node in listing.nodes(NODE)
    ]
    assert found(nodes) == (two, "n3") and found(nodes[:2]) == (one, "n2")
    assert found(nodes[3:]) == (Lease(), "n4") and found(nodes[:1]) == (Lease(), "")
    assert two.holds(99.0) and not two.holds(100.0) and not two.holds(-1e6) and not Lease().holds(0.0)


def test_a_job_waits_for_another_one_or_for_its_time() -> None:
    assert seen.waits(job(dependency="afterok:1(unfulfilled)"), 50.0) and not seen.waits(job(dependency=""), 50.0)
    assert seen.waits(job(start_time=60), 50.0) and not seen.waits(job(start_time=60), 70.0)
    assert not seen.waits(job(start_time=60, restart_cnt=1), 50.0), "Slurm's own pause after a requeue"


def entry(**said):
    return {"job_id": 17, "job_state": "PENDING", "user_name": "games", **said}


def test_a_waiting_array_is_one_entry_of_many_jobs() -> None:
    shown = {"jobs": [entry(array_job_id=17, array_task_string="0-2,5%2"), entry(array_job_id=17, array_task_id=3)]}
    assert [one.id for one in listing.jobs(shown)] == ["17_0", "17_1", "17_2", "17_5", "17_3"]


def test_numbers_and_states_of_later_versions() -> None:
    number = {"set": True, "infinite": False, "number": 5}
    unset = {"set": False, "infinite": False, "number": 9}
    states = ["RUNNING", "COMPLETING"]
    (one,) = listing.jobs({"jobs": [entry(job_state=states, priority=number, restart_cnt=unset, array_task_id=unset)]})
    assert (one.id, one.state, one.flags, one.priority, one.restarts) == ("17", "RUNNING", {"COMPLETING"}, 5, 0)


NODE = (
    "NodeName=n0 Arch=x86_64 ActiveFeatures=a,b Gres=gpu:2,gpumem:g0:16K,gpumem:g1:500 State=IDLE+DRAIN*"
    " Partitions=one,two BootTime=2026-11-23T01:00:00 OS=Linux 6.1 #1"
)


def test_a_node_has_the_memory_of_its_smallest_counter() -> None:
    (node,) = listing.nodes(NODE)
    assert (node.counters, node.partitions, node.responds) == ((16384, 500), ("one", "two"), False)
    shown = seen.node_of(node, {("n0", 1): 7})
    assert shown is not None
    assert (shown.node.gpus, shown.node.memory, shown.state) == (2, 500 * 2**20, "unknown")
    assert shown.cordoned and shown.foreign == ((1, 7),)
    assert seen.node_of(replace(node, counters=()), {}) is None
    lost = seen.node_of(replace(node, states=frozenset({"DOWN"})), {})
    assert lost is not None and lost.state == "lost"


def job(**said) -> Listed:
    (one,) = listing.jobs({"jobs": [entry(priority=0, **said)]})
    return one


@pytest.mark.parametrize(
    ("listed", "its_mark", "phase"),
    [
        (job(), Mark(), None),
        (job(restart_cnt=1), PLACED, None),  # half of a start: it has its place, and is not released
        (replace(job(restart_cnt=1), priority=5), PLACED, "starting"),
        (replace(job(restart_cnt=2), priority=5), PLACED, None),  # Slurm has requeued it by itself
        (job(restart_cnt=1, job_state="RUNNING"), PLACED, "running"),
        (job(restart_cnt=1, job_state="SUSPENDED"), PLACED, "running"),
        (job(restart_cnt=1, job_state="RUNNING"), replace(PLACED, stop=True), "stopping"),
        (job(job_state="COMPLETING"), PLACED, "stopping"),
        (job(job_state="COMPLETED"), PLACED, "done"),
        (job(restart_cnt=2), replace(PLACED, stop=True), None),
        (job(restart_cnt=2, state_reason="launch failed requeued held"), PLACED, "failed"),
        (job(restart_cnt=2, state_reason="launch_failed_requeued_held"), replace(PLACED, stop=True), None),
        (job(restart_cnt=1), replace(PLACED, failed="Resources"), "failed"),
    ],
)
def test_what_the_state_of_a_job_means_for_its_tasks(listed, its_mark, phase) -> None:
    assert seen.phase_of(listed, its_mark) == phase


def test_gpus_that_jobs_of_others_hold() -> None:
    nodes = list(listing.nodes(NODE))
    running = {"job_state": "RUNNING", "nodes": "n0"}
    theirs = job(**running, gres_detail=["gpu:1(IDX:1)"])
    counted = job(**running, gres_detail=["gpumem:g0(CNT:256)"])
    assert seen.used_by_others([theirs, replace(counted, id="18")], set(), nodes) == {
        ("n0", 1): 500 * 2**20,
        ("n0", 0): 256 * 2**20,
    }
    assert seen.used_by_others([theirs], {"17"}, nodes) == {}


def test_where_a_job_may_run() -> None:
    nodes = list(
        listing.nodes(f"{NODE}\n{NODE.replace('n0', 'n1').replace('one,two', 'two')}\nNodeName=login State=IDLE")
    )
    one, both = replace(job(), partition="one"), replace(job(), partition="two")
    assert seen.selector_of(both, request.Asked(), nodes) == ANYWHERE
    assert seen.selector_of(one, request.Asked(), nodes) == Selector(nodes=("n0",))
    assert seen.selector_of(replace(both, excluded="n[0,5]"), request.Asked(), nodes) == Selector(nodes=("n1",))
    assert seen.selector_of(both, request.Asked("", "n1"), nodes) == Selector(nodes=("n1",))
    assert seen.selector_of(one, request.Asked("", "n1"), nodes) == Selector(nodes=("none",))
