"""Which namespaces may use a queue: pods of others wait and are told; a label of a pod that runs moves nothing."""

from __future__ import annotations

import pytest
from kube_cluster import NAMESPACE, PODS, Program
from scheduler_stage import Ruled, Scheduler
from test_scheduler_words import events, told

from gpushare.cluster.engines.kubernetes.mark import UNSAID, read
from gpushare.cluster.engines.kubernetes.names import NAMESPACES, QUEUES
from gpushare.cluster.engines.kubernetes.queue_objects import read as read_queue
from gpushare.cluster.engines.kubernetes.queue_users import Users
from gpushare.cluster.engines.kubernetes.settings import Settings
from gpushare.cluster.engines.seam import Accepted
from gpushare.cluster.model import Queue, QueueAdded
from gpushare.errors import UsageError


def queue(cluster, name: str, **spec) -> None:
    cluster.api.put(f"{QUEUES}/{name}", {"metadata": {"name": name}, "spec": spec})


def namespace(cluster, name: str = NAMESPACE, **labels: str) -> None:
    cluster.api.put(f"{NAMESPACES}/{name}", {"metadata": {"name": name, "labels": labels}})


def label(cluster, pod: str, queue: str) -> None:
    change = {"gpushare.dev/queue": queue}
    cluster.api.change(f"{PODS}/{pod}", lambda one: one["metadata"]["labels"].update(change))


def settled(ruled: Ruled, rounds: int = 5) -> None:
    for _ in range(rounds):
        ruled.settle()
        ruled.round()


MAY_NOT = "namespace team-a may not use queue b"


def test_a_pod_of_another_namespace_waits_and_is_told(cluster, ruled):
    queue(cluster, "b", namespaces=["team-b"])
    cluster.submit("thief", memory=None, queue="b")
    cluster.submit("own", memory=None, queue="a")
    ruled.settle()
    ruled.go(lambda: cluster.programs["own"].began and told(cluster, "thief"))
    settled(ruled)
    assert told(cluster, "thief").startswith(MAY_NOT) and "gpushare.dev/queue" in told(cluster, "thief")
    assert events(cluster, "thief") == [told(cluster, "thief")]
    assert not cluster.programs["thief"].began
    assert [one.job.name for one in ruled.store.allocator.jobs.values()] == ["team-a/own"]


@pytest.mark.parametrize(
    "admit",
    [
        lambda cluster: queue(cluster, "b", namespaces=["team-b", NAMESPACE]),
        lambda cluster: queue(cluster, "b", namespaces=["team-b"], namespaceSelector={"matchLabels": {"team": "a"}}),
        lambda cluster: queue(cluster, "b"),
        lambda cluster: label(cluster, "waits", "a"),
        lambda cluster: cluster.api.remove(f"{QUEUES}/b"),
    ],
    ids=["by name", "by label", "nothing is said", "another queue", "the object is removed"],
)
def test_it_starts_when_its_namespace_may(cluster, ruled, admit):
    namespace(cluster, team="a")
    queue(cluster, "b", namespaces=["team-b"])
    cluster.submit("waits", queue="b")
    ruled.settle()
    ruled.go(lambda: told(cluster, "waits").startswith(MAY_NOT))
    admit(cluster)
    ruled.settle()
    ruled.go(lambda: cluster.programs["waits"].began)


def test_labels_of_a_namespace_that_change_count(cluster, ruled):
    namespace(cluster, team="other")
    queue(cluster, "b", namespaceSelector={"matchExpressions": [{"key": "team", "operator": "In", "values": ["a"]}]})
    cluster.submit("waits", queue="b")
    ruled.settle()
    ruled.go(lambda: told(cluster, "waits").startswith(MAY_NOT))
    namespace(cluster, team="a")
    ruled.settle()
    ruled.go(lambda: cluster.programs["waits"].began)
    namespace(cluster, team="other")
    settled(ruled)
    assert cluster.pod("waits")["status"]["phase"] == "Running", "one that has started goes on"
    cluster.submit("next", queue="b")
    ruled.settle()
    ruled.go(lambda: told(cluster, "next").startswith(MAY_NOT))


def test_namespaces_that_cannot_be_read_stop_nobody_else(cluster, tmp_path):
    """As with the roles of an earlier release."""
    cluster.api.refuses = lambda _, path, __: (403, {"message": "no"}) if path == NAMESPACES else None
    queue(cluster, "a", namespaces=[NAMESPACE])
    queue(cluster, "b", namespaceSelector={})
    cluster.submit("named", queue="a")
    cluster.submit("chosen", queue="b")
    ruled = Unwatched(cluster, tmp_path)
    try:
        ruled.go(lambda: cluster.programs["named"].began and told(cluster, "chosen"))
    finally:
        ruled.close()
    assert "chooses namespaces by labels, and those of this one cannot be read" in told(cluster, "chosen")


class Unwatched(Ruled):
    """Whose scheduler may not read namespaces."""

    def settle(self) -> None:
        kept = self.api.watched.pop(NAMESPACES)
        try:
            super().settle()
        finally:
            self.api.watched[NAMESPACES] = kept


def test_a_label_of_a_pod_that_runs_moves_nothing_even_when_the_scheduler_has_lost_its_file(cluster, ruled, tmp_path):
    """Else a pod that has started would be counted in a queue that its namespace may not use."""
    queue(cluster, "b", namespaces=["team-b"])
    uid = cluster.submit("train", Program(requeue=False), memory=None, queue="a")
    unsaid = cluster.submit("unsaid", Program(requeue=False), memory=None)
    ruled.settle()
    assert isinstance(ruled.start(uid), Accepted) and isinstance(ruled.start(unsaid, gpu=1), Accepted)
    cluster.tick()
    label(cluster, "train", "b")
    label(cluster, "unsaid", "b")
    other = Scheduler(cluster)
    jobs = {one.job.id: one for one in other.engine.snapshot().jobs}
    other.close()
    assert (jobs[uid].job.queue, jobs[unsaid].job.queue) == ("a", "")
    assert [one.phase for one in jobs[uid].tasks] == ["running"]
    mark = read(cluster.pod("unsaid")["metadata"]["annotations"]["gpushare.dev/start"])
    assert mark.queue == UNSAID


def test_a_pod_whose_start_failed_may_not_go_to_a_queue_of_others(cluster, scheduler):
    queue(cluster, "b", namespaces=["team-b"])
    uid = cluster.submit("train", queue="a")
    refused = (422, {"message": "as the test wants it"})
    cluster.api.refuses = lambda _, path, __: refused if path.endswith("/binding") else None
    scheduler.start(uid)
    cluster.api.refuses = lambda *_: None
    label(cluster, "train", "b")
    assert scheduler.job(uid) is None
    label(cluster, "train", "a")
    assert scheduler.job(uid).job.queue == "a"


def test_pods_of_a_group_wait_together(cluster, ruled):
    queue(cluster, "b", namespaces=["team-b"])
    for name in ("p0", "p1"):
        labels, annotations = {"gpushare.dev/pod-group": "g"}, {"gpushare.dev/pod-group-size": "2"}
        cluster.submit(name, queue="b", labels=labels, annotations=annotations)
    ruled.settle()
    ruled.go(lambda: all(told(cluster, name).startswith(MAY_NOT) for name in ("p0", "p1")))


def test_closed_queues_are_for_the_namespace_of_their_name(cluster, tmp_path):
    cluster.settings["open_queues"] = "false"
    queue(cluster, "a")
    ruled = Ruled(cluster, tmp_path)
    try:
        ruled.store.append([QueueAdded(Queue(NAMESPACE))], cluster.now)
        for pod, name in (("other", "a"), ("invented", "z"), ("own", NAMESPACE)):
            cluster.submit(pod, queue=name)
        ruled.settle()
        ruled.go(lambda: cluster.programs["own"].began and told(cluster, "other") and told(cluster, "invented"))
        settled(ruled)
    finally:
        ruled.close()
    assert told(cluster, "other").startswith("namespace team-a may not use queue a: a queue that says nothing")
    assert told(cluster, "invented").startswith("namespace team-a may not use queue z: ")


TREE = {
    "top": {"namespaces": ["x", "y"]},
    "middle": {"parent": "top"},
    "leaf": {"parent": "middle"},
    "own": {"parent": "middle", "namespaces": ["z"]},
    "nobody": {"namespaces": []},
    "all": {"namespaceSelector": {}},
    "old": {"namespaceSelector": {"matchExpressions": [{"key": "new", "operator": "DoesNotExist"}]}},
    "circle": {"parent": "circle"},
    "text": {"namespaces": "x"},
    "odd": {"namespaceSelector": {"matchLabels": {"a": 1}}},
    "typo": {"namespaceSelector": {"matchLabel": {"a": "b"}}},
}
LABELS = {"x": {"new": ""}, "y": {}, "z": None}
NAMES = {name: {"metadata": {"name": name, "labels": labels}} for name, labels in LABELS.items()}


@pytest.mark.parametrize(
    ("name", "may"),
    [
        ("top", "xy"),
        ("leaf", "xy"),
        ("own", "z"),
        ("nobody", ""),
        ("all", "xyz"),
        ("old", "yz"),
        ("circle", "xyz"),
        ("unknown", "xyz"),
        ("text", ""),
        ("odd", ""),
        ("typo", ""),
    ],
)
def test_the_nearest_queue_that_says_namespaces_counts(name, may):
    users = Users({name: {"spec": spec} for name, spec in TREE.items()}, NAMES)
    assert "".join(one for one in NAMES if not users.barred(one, name)) == may


def test_closed_and_nothing_said():
    users = Users({"x": {"spec": {}}, "below": {"spec": {"parent": "x"}}}, NAMES, open=False)
    assert [users.barred("x", name) == "" for name in ("x", "below", "other")] == [True, False, False]


def test_the_queue_above_is_named():
    users = Users({name: {"spec": spec} for name, spec in TREE.items()}, NAMES)
    assert "may not use queue leaf, because queue top above it is for others (" in users.barred("z", "leaf")


def test_a_namespace_that_is_not_seen_is_not_chosen():
    users = Users({"all": {"spec": TREE["all"]}}, NAMES)
    assert "cannot be read" in users.barred("new", "all")


@pytest.mark.parametrize(
    ("name", "words"), [("text", "spec.namespaces"), ("odd", "spec.namespaceSelector"), ("typo", "matchLabels")]
)
def test_what_makes_no_sense_is_in_the_condition_of_the_queue(name, words):
    assert words in read_queue({"metadata": {"name": "q"}, "spec": TREE[name]})
    assert not isinstance(read_queue({"metadata": {"name": "q"}, "spec": TREE["old"]}), str)


def test_the_setting_is_one_of_two_words():
    assert Settings.read({}).has_open_queues and not Settings.read({"open_queues": "false"}).has_open_queues
    with pytest.raises(UsageError, match="open_queues is 'no'"):
        Settings.read({"open_queues": "no"})
