"""Queues as objects of the cluster: what they say counts, and their status says how they are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from kube_cluster import KubeCluster, Program
from scheduler_stage import Scheduler

from gpushare.cluster.engines.kubernetes import cache
from gpushare.cluster.engines.kubernetes.names import QUEUES
from gpushare.cluster.engines.kubernetes.queue_objects import COUNTS, KNOWN
from gpushare.cluster.model import Policy, Queue, QueueAdded
from gpushare.cluster.quantity import gpus
from gpushare.cluster.service.driver import Options
from gpushare.cluster.service.of_queue import QueueRounds
from gpushare.cluster.store import Store

DEPLOY = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes" / "scheduler"


class Served(Scheduler):
    """Under the service's rounds."""

    def __init__(self, cluster: KubeCluster, folder: Path) -> None:
        super().__init__(cluster)
        self.store = Store.create(folder / "ledger.db", Policy(endings="reported", protect=0.0))
        self.work = QueueRounds(self.store, self.engine, lambda: cluster.now, Options())

    def close(self) -> None:
        super().close()
        self.store.close()

    def round(self, seconds: float = 1.0) -> None:
        self.settle()
        self.work.round()
        assert not self.work.trouble
        self.cluster.tick(seconds)
        self.settle()

    def rounds(self, count: int) -> None:
        for _ in range(count):
            self.round()

    def queue(self, name: str) -> Queue:
        return self.store.allocator.queues[name].queue


@pytest.fixture
def served(cluster, tmp_path):
    made = Served(cluster, tmp_path)
    yield made
    made.close()


def put(cluster, name: str, **spec) -> None:
    cluster.api.put(f"{QUEUES}/{name}", {"metadata": {"name": name}, "spec": spec})


def accepted(cluster, name: str) -> str:
    """ "" if it is, else why not."""
    (condition,) = cluster.api.objects[f"{QUEUES}/{name}"]["status"]["conditions"]
    assert (condition["status"] == "True") == (condition["message"] == COUNTS)
    return str(condition["message"]).removeprefix(COUNTS)


def test_what_a_queue_says_counts_and_its_status_says_how_it_is(cluster, served):
    put(cluster, "vision", parent="research", quota=3, limit="3.5", weight=2, priority=1, minRunTime="10m")
    put(cluster, "research", quota="unlimited")
    put(cluster, "speech", parent="research")
    served.round()
    assert served.queue("vision") == Queue("vision", "research", gpus(3), gpus(3.5), gpus(2), 1, min_runtime=600.0)
    assert served.queue("research") == Queue("research", quota=None) and served.queue("speech").parent == "research"
    for number in range(4):
        cluster.submit(f"p{number}", Program(requeue=False), memory=None, queue="vision")
    served.rounds(8)
    assert sum(program.began for program in cluster.programs.values()) == 3, "the limit holds"
    status = cluster.api.objects[f"{QUEUES}/vision"]["status"]
    told = {name: status[name] for name in ("held", "share", "waiting", "running")}
    assert told == {"held": "3", "share": "3.5", "waiting": 1, "running": 3}
    assert accepted(cluster, "vision") == accepted(cluster, "research") == ""
    cluster.api.change(f"{QUEUES}/vision", lambda one: one["spec"].update(limit=4))
    served.rounds(3)
    assert sum(program.began for program in cluster.programs.values()) == 4


def test_a_quota_is_taken_back_from_a_namespace_that_borrows(cluster, served):
    put(cluster, "vision", quota=2)
    for number in range(4):
        cluster.submit(f"free{number}", Program(), memory=None)
    served.rounds(3)
    assert sum(program.began for program in cluster.programs.values()) == 4
    cluster.submit("owner", memory=None, queue="vision")
    served.rounds(6)
    assert cluster.programs["owner"].began == 1
    status = cluster.api.objects[f"{QUEUES}/vision"]["status"]
    assert (status["held"], status["running"]) == ("1", 1)


WRONG = {
    "a negative quota": ({"quota": "-1"}, "quota"),
    "a part of what": ({"quota": "50%"}, "a queue is promised GPUs, not a percentage"),
    "an unknown field": ({"quotta": 1}, "spec has no field 'quotta'"),
    "a parent that is not there": ({"parent": "nobody"}, "it cannot change"),
    "itself as its parent": ({"parent": "q"}, "it cannot change"),
    "another parent": ({"parent": "other"}, "it cannot change"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_makes_no_sense_is_told_and_the_queue_stays_as_it_was(cluster, served, what):
    spec, words = WRONG[what]
    put(cluster, "q", quota=2)
    put(cluster, "other", quota=1)
    served.round()
    before = served.queue("q")
    assert accepted(cluster, "q") == ""
    cluster.api.change(f"{QUEUES}/q", lambda one: one.update(spec=spec))
    served.rounds(7)
    assert words in accepted(cluster, "q"), accepted(cluster, "q")
    assert served.queue("q") == before
    cluster.api.change(f"{QUEUES}/q", lambda one: one.update(spec={"quota": 3}))
    served.rounds(7)
    assert accepted(cluster, "q") == "" and served.queue("q").quota == gpus(3)


def test_a_new_queue_below_one_that_is_not_there_is_told(cluster, served):
    put(cluster, "q", parent="nobody")
    served.round()
    assert "nobody" in accepted(cluster, "q") and "q" not in served.store.allocator.queues
    put(cluster, "nobody")
    served.rounds(7)
    assert accepted(cluster, "q") == "" and served.queue("q").parent == "nobody"


def test_a_queue_that_is_removed_has_no_quota_and_keeps_its_jobs(cluster, served):
    put(cluster, "vision", quota=2, limit=2)
    cluster.submit("train", memory=None, queue="vision")
    served.rounds(2)
    assert cluster.programs["train"].began == 1
    cluster.api.remove(f"{QUEUES}/vision")
    served.rounds(2)
    assert served.queue("vision") == Options().own_queue("vision").queue
    assert [one.phase for one in served.engine.snapshot().jobs[0].tasks] == ["running"]


def test_a_status_is_written_when_it_changes_and_not_more_often_than_every_few_seconds(cluster, served):
    put(cluster, "vision", quota=2)

    def written() -> int:
        return sum(method == "PATCH" and "/queues/" in path for method, path in cluster.api.requests)

    served.rounds(20)
    assert written() == 1
    for number in range(3):
        cluster.submit(f"p{number}", Program(seconds=2.0, requeue=False), memory="1Gi", queue="vision")
        served.rounds(2)
    assert 1 < written() <= 3
    began = cluster.api.objects[f"{QUEUES}/vision"]["status"]["conditions"][0]["lastTransitionTime"]
    served.rounds(10)
    assert cluster.api.objects[f"{QUEUES}/vision"]["status"]["conditions"][0]["lastTransitionTime"] == began


def test_a_server_without_the_kind_has_queues_of_the_file(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "ABSENT", 0.05)
    monkeypatch.setattr(cache, "MOST", 0.05)
    cluster.api.refuses = lambda _method, path, _body: (404, {"message": "no"}) if path == QUEUES else None
    put(cluster, "file", quota=3)
    served = Served(cluster, tmp_path)
    try:
        served.store.append([QueueAdded(Queue("file", quota=gpus(2)))], cluster.now)
        cluster.submit("train", memory=None, queue="file")
        served.settle()
        served.work.round()
        cluster.tick()
        assert cluster.programs["train"].began == 1 and served.queue("file").quota == gpus(2)
        cluster.api.refuses = lambda *_: None
        for _ in range(1000):
            if served.queue("file").quota == gpus(3):
                break
            served.work.round()
            served.woken.wait(0.01)
        assert served.queue("file").quota == gpus(3), "the kind is served by now"
    finally:
        served.close()


def test_the_page_has_a_row_for_each_field_and_its_queue_is_read(cluster, served):
    page = (DEPLOY.parents[2] / "docs" / "kubernetes.md").read_text().partition("**What a queue has**")[2]
    rows = re.findall(r"^\| `(\w+)` \|", page.partition("**Why a pod waits**")[0], re.MULTILINE)
    assert set(rows) == set(KNOWN)
    block = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)[0]
    written = yaml.safe_load(block)
    put(cluster, "research")
    put(cluster, written["metadata"]["name"], **written["spec"])
    served.round()
    assert served.queue("vision") == Queue("vision", "research", gpus(5), gpus(8))


def test_the_schema_has_the_fields_that_are_read():
    (kind,) = yaml.safe_load_all((DEPLOY / "queues.yaml").read_text())
    (version,) = kind["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]["properties"]
    assert set(schema["spec"]["properties"]) == set(KNOWN)
    assert set(schema["status"]["properties"]) == {"held", "share", "waiting", "running", "conditions"}
    assert f"{kind['spec']['group']}/{version['name']}" in QUEUES and QUEUES.endswith(kind["spec"]["names"]["plural"])
    for column in version["additionalPrinterColumns"]:
        part, _, name = column["jsonPath"].removeprefix(".").partition(".")
        assert part == "metadata" or name.partition("[")[0] in schema[part]["properties"]
