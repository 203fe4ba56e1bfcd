"""A queue's limits hold for claims that users write themselves."""

from __future__ import annotations

import pytest
from claims import budget
from kube_cluster import CLASSES, GIB
from scheduler_stage import Scheduler

from gpushare.cluster.engines.kubernetes.bounds import bounded
from gpushare.cluster.engines.kubernetes.names import QUEUES
from gpushare.cluster.engines.kubernetes.settings import Settings
from gpushare.cluster.model import Place
from gpushare.errors import UsageError
from gpushare.kubernetes import claim as claims
from gpushare.kubernetes.webhook.limits import NONE, Limits
from gpushare.quantity import SHARE_PARTS, Quantity

HALF = SHARE_PARTS // 2
WHOLE = 80 * GIB


@pytest.mark.parametrize(
    ("own", "request_", "usual", "most", "wanted"),
    [
        (None, 8, None, None, None),
        (None, 8, None, HALF, None),
        (None, 8, HALF, None, 40),
        (None, 8, SHARE_PARTS, HALF, 40),
        (None, 60, HALF, None, 60),
        ("24Gi", 8, HALF, None, None),
        ("24Gi", 8, None, HALF, None),
        ("40Gi", 8, None, HALF, None),
        ("41Gi", 8, None, HALF, 40),
        ("max", 8, None, HALF, 40),
        ("75%", 8, None, HALF, 40),
        ("50%", 8, None, HALF, None),
        ("max", 60, None, HALF, 60),
        ("max", 8, None, SHARE_PARTS, None),
    ],
)
def test_a_limit_is_at_most_what_is_allowed_and_never_below_the_request(own, request_, usual, most, wanted):
    said = None if own is None else Quantity.parse(own)
    found = bounded(said, request_ * GIB, WHOLE, usual, Limits(most=most))
    assert found == (None if wanted is None else wanted * GIB)


def queue(cluster, name, **spec):
    cluster.api.put(f"{QUEUES}/{name}", {"metadata": {"name": name}, "spec": {"quota": 4, **spec}})


def limit(cluster, pod) -> str:
    """As the node's plugin reads it."""
    read = claims.read(cluster.claim_of(pod), cluster.pod(pod)["spec"]["nodeName"])
    return claims.body(read, claims.gpus_of(read, cluster.gpus[cluster.pod(pod)["spec"]["nodeName"]]))["limit"]


def run(cluster, ruled, *pods):
    ruled.settle()
    ruled.go(lambda: all(cluster.programs[pod].began for pod in pods))


def test_claims_of_users_have_the_limits_of_their_queue(cluster, ruled):
    queue(cluster, "a", defaultLimit="0.4", maxLimit="0.5", interactiveLimit=1)
    queue(cluster, "b")
    cluster.submit("silent", queue="a")
    cluster.submit("modest", queue="a", said={"limit": "16Gi"})
    cluster.submit("greedy", queue="a", said={"limit": "max", "grace": "5s"})
    cluster.submit("notebook", queue="a", spec={"priorityClassName": "build"})
    cluster.submit("elsewhere", queue="b", said={"limit": "max"})
    run(cluster, ruled, "silent", "modest", "greedy", "notebook", "elsewhere")
    found = {pod: limit(cluster, pod) for pod in cluster.programs}
    assert found == {"silent": "32Gi", "modest": "16Gi", "greedy": "40Gi", "notebook": "40Gi", "elsewhere": "max"}


def test_a_queue_above_counts_too_and_what_a_class_allows(cluster, ruled):
    queue(cluster, "top", maxLimit="0.25")
    queue(cluster, "a", parent="top", quota=1)
    config = [{"opaque": budget(limit="max")["opaque"]}]
    cluster.api.change(f"{CLASSES}/gpushare.dev", lambda one: one["spec"].update(config=config))
    cluster.submit("train", queue="a")
    run(cluster, ruled, "train")
    assert limit(cluster, "train") == "20Gi"


def test_a_whole_gpu_has_no_such_limit(cluster, ruled):
    queue(cluster, "a", defaultLimit="0.4", maxLimit="0.5")
    cluster.submit("whole", queue="a", memory=None)
    run(cluster, ruled, "whole")
    assert limit(cluster, "whole") == "80Gi"


def test_settings_say_it_for_the_whole_cluster(cluster):
    said = {"kubeconfig": str(cluster.api.kubeconfig), "default_limit": "0.5", "interactive": "desk, lab"}
    rules = Settings.read(said).rules
    assert (rules.limits.usual, rules.limits.most) == (HALF, None)
    assert rules.is_interactive({"metadata": {}, "spec": {"priorityClassName": "lab"}})
    assert not rules.is_interactive({"metadata": {}, "spec": {"priorityClassName": "build"}})
    with pytest.raises(UsageError, match=r"\[kubernetes\]: maxLimit: '24Gi' is not a part of a GPU"):
        Settings.read({"max_limit": "24Gi"})


def test_a_start_after_a_restart_has_the_limit_too(cluster):
    """Killed between the marks and the claims: the next service reads the queue again."""
    queue(cluster, "a", maxLimit="0.5")
    uid = cluster.submit_group("train", 2, queue="a", said={"limit": "max"})
    first = Scheduler(cluster)
    cluster.api.refuses = lambda _, path, __: (503, {"message": "late"}) if "resourceclaims/" in path else None
    with pytest.raises(Exception, match="late"):
        first.start(uid, places=tuple(Place(0, task, "n1", (task,), 8 * GIB, 0) for task in range(2)))
    first.close()
    cluster.api.refuses = lambda *_: None
    second = Scheduler(cluster)
    second.token()
    second.engine.snapshot()
    second.close()
    assert limit(cluster, "train-0") == limit(cluster, "train-1") == "40Gi"
    assert NONE.most is None
