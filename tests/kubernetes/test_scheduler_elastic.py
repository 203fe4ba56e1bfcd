"""Pod groups with a least and a most: they start with the least, grow while there is room, and give it back first."""

from __future__ import annotations

import pytest
from kube_cluster import PODS, Program
from scheduler_stage import Scheduler
from test_scheduler_words import told

from gpushare.cluster.engines.seam import Accepted, Evict, Start
from gpushare.cluster.model import Place

WHOLE = 80 * 2**30


def submit(cluster, name, size, least, **more):
    """So many pods of one owner."""
    annotations = {"gpushare.dev/pod-group-size": str(size), "gpushare.dev/pod-group-min": str(least)}
    program = Program(pods=size)
    labels = {"gpushare.dev/pod-group": name}
    first = cluster.submit(name, program, memory="80Gi", queue="a", labels=labels, annotations=annotations, **more)
    for number in range(1, size):
        program.make(f"{name}-{number}")
    return first


def running(cluster, owner):
    return sum(pod["status"]["phase"] == "Running" for _, pod in cluster.pods_of(owner))


def test_it_has_all_that_is_free_gives_it_back_and_takes_it_again(cluster, ruled):
    submit(cluster, "train", 4, 1)
    ruled.settle()
    ruled.go(lambda: running(cluster, "train") == 4)
    (job,) = [one for one in ruled.engine.snapshot().jobs if one.tasks]
    assert (job.job.tasks[0].least, job.job.tasks[0].most) == (1, 4)
    kept = {pod["metadata"]["uid"] for _, pod in cluster.pods_of("train")}
    for number in range(2):
        cluster.submit(f"own{number}", Program(requeue=False), memory="80Gi", queue="b")
        ruled.settle()
        ruled.go(lambda number=number: cluster.programs[f"own{number}"].began)
    assert running(cluster, "train") == 2, "two of its pods went, and two go on"
    assert len(kept & {pod["metadata"]["uid"] for _, pod in cluster.pods_of("train")}) == 2
    for number in range(2):
        cluster.cancel(f"own{number}")
    ruled.settle()
    ruled.go(lambda: running(cluster, "train") == 4)
    ruled.settle()
    (job,) = [one for one in ruled.engine.snapshot().jobs if one.tasks]
    assert sorted(task.task for task in job.tasks) == [0, 1, 2, 3]
    assert job.attempt == 1, "its least has run on"


def test_it_starts_with_the_least_where_there_is_no_room_for_more(cluster, ruled):
    for number in range(2):
        cluster.submit(f"runs{number}", Program(requeue=False), memory="80Gi", queue="b")
    ruled.settle()
    ruled.go(lambda: cluster.programs["runs0"].began and cluster.programs["runs1"].began)
    submit(cluster, "train", 3, 2)
    ruled.settle()
    ruled.go(lambda: running(cluster, "train") == 2)
    for _ in range(5):
        ruled.round()
    assert running(cluster, "train") == 2
    cluster.cancel("runs0")
    ruled.settle()
    ruled.go(lambda: running(cluster, "train") == 3)


def test_a_restarted_service_knows_which_of_them_may_start_again(cluster):
    """What was shrunk is in the mark: the task that its next pod takes starts in the same attempt."""
    uid = submit(cluster, "train", 2, 1)
    first = Scheduler(cluster)
    places = tuple(Place(0, task, "n1", (task,), WHOLE, 0) for task in range(2))
    assert isinstance(first.start(uid, places=places), Accepted)
    cluster.tick()
    first.settle()
    first.engine.snapshot()
    assert isinstance(first.engine.evict(Evict(uid, 1, ((0, 1),), 5.0, True), first.token()), Accepted)
    first.close()
    second = Scheduler(cluster)
    second.number = first.number
    second.engine.snapshot()
    for _ in range(2):
        cluster.tick()
        second.settle()
        second.engine.snapshot()
    assert len(cluster.pods_of("train")) == 2
    answer = second.engine.start(Start(uid, 1, places[1:], 0), second.token())
    assert isinstance(answer, Accepted), answer
    cluster.tick()
    assert running(cluster, "train") == 2
    second.close()


@pytest.mark.parametrize("least", ["0", "4", "some", "-1"])
def test_a_least_that_makes_no_sense_is_told(cluster, ruled, least):
    submit(cluster, "train", 3, least)
    ruled.settle()
    ruled.go(lambda: "gpushare.dev/pod-group-min" in told(cluster, "train"))
    assert not cluster.api.objects[f"{PODS}/train"]["spec"].get("nodeName")
