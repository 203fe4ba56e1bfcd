"""What a busy or odd cluster does to the scheduler: conflicts, clocks that differ, another driver's devices."""

from __future__ import annotations

import json
import random

import pytest
from kube_cluster import CLAIMS, NODES, SLICES, Program

from gpushare.cluster.engines.kubernetes.names import MARK

LEASE = "/apis/coordination.k8s.io/v1/namespaces/gpushare/leases/gpushare-scheduler"
KINDS = ("/pods/", "/resourceclaims/", "/binding")


@pytest.mark.parametrize("seed", range(3))
def test_a_storm_of_conflicts_loses_and_doubles_nothing(cluster, ruled, seed):
    """Seven of ten writes are refused, because somebody else has changed the object; what is refused is read again."""
    dice, refused = random.Random(seed), []

    def refuses(method, path, _):
        written = method in ("PATCH", "POST") and any(kind in path for kind in KINDS)
        if not written or len(refused) >= 150 or dice.random() > 0.7:
            return None
        refused.append(path)
        return 409, {"message": "the object has been modified"}

    cluster.api.refuses = refuses
    for number in range(12):
        cluster.submit(f"p{number}", Program(seconds=5, requeue=False), memory="40Gi", queue="ab"[number % 2])
    ruled.settle()
    ruled.go(lambda: all(program.began for program in cluster.programs.values()), rounds=600)
    assert len(refused) > 50
    assert all(program.began == 1 for program in cluster.programs.values())
    ruled.go(lambda: not sum(ruled.engine._board.used.values()), rounds=100)
    assert not any(claim.get("status") for path, claim in cluster.api.objects.items() if path.startswith(CLAIMS))


@pytest.mark.parametrize(
    ("method", "kind", "pods"),
    [
        ("POST", "/binding", 1),
        ("POST", "/binding", 2),
        ("PATCH", "/pods/", 2),
        ("PATCH", "/resourceclaims/", 1),
        ("PATCH", "/resourceclaims/", 2),
    ],
)
def test_a_start_whose_object_keeps_changing_has_not_failed(cluster, ruled, method, kind, pods):
    """It is tried again in the same attempt; only what the API server has an objection to counts as a failure."""
    left = [20]

    def refuses(asked, path, _):
        if asked != method or kind not in path or not left[0]:
            return None
        left[0] -= 1
        return 409, {"message": "the object has been modified"}

    if pods == 1:
        cluster.submit("p", pod="p-0", queue="a")
    else:
        cluster.submit_group("p", pods, queue="a")
    cluster.api.refuses = refuses
    ruled.settle()
    ruled.go(lambda: cluster.programs["p"].began == pods)
    assert left == [0]
    assert {json.loads(pod["metadata"]["annotations"][MARK])["attempt"] for _, pod in cluster.pods()} == {1}


@pytest.mark.parametrize("renewed", ["1999-01-01T00:00:00.000000Z", "2199-01-01T00:00:00.000000Z"])
def test_the_clock_of_another_leader_does_not_count(cluster, scheduler, renewed):
    """Its lease runs out when it has not changed for as long as it says, by this process's own clock."""
    spec = {"holderIdentity": "other", "leaseDurationSeconds": 15, "leaseTransitions": 3, "renewTime": renewed}
    meta = {"name": "gpushare-scheduler", "namespace": "gpushare"}
    cluster.api.put(LEASE, {"metadata": meta, "spec": spec})
    assert scheduler.engine.lead("us", 10.0) is None, "it may have renewed it just now"
    cluster.now += 14.0
    assert scheduler.engine.lead("us", 10.0) is None
    cluster.now += 2.0
    assert scheduler.engine.lead("us", 10.0) == 4


def test_another_drivers_devices_and_claims_are_its_own(cluster, ruled):
    """NVIDIA's driver beside this one: the same GPUs under other names, and claims of them."""
    device = {"name": "gpu-0", "capacity": {"memory": {"value": "80Gi"}}, "allowMultipleAllocations": True}
    pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.nvidia.com", "nodeName": "n1", "pool": pool, "devices": [device]}
    cluster.api.put(f"{SLICES}/n1-gpu.nvidia.com", {"metadata": {"name": "n1-gpu.nvidia.com"}, "spec": spec})
    result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "n1", "device": "gpu-n1-0"}
    status = {"allocation": {"devices": {"results": [result]}}}
    meta = {"name": "theirs", "namespace": "team-a"}
    cluster.api.put(f"{CLAIMS}/theirs", {"metadata": meta, "status": status})
    ruled.settle()
    nodes = {one.node.name: one for one in ruled.engine.snapshot().nodes}
    assert (nodes["n1"].node.gpus, nodes["n1"].foreign) == (2, ())
    cluster.api.change(f"{NODES}/n2", lambda one: one["spec"].update(unschedulable=True))
    for number in range(2):
        cluster.submit(f"p{number}", Program(requeue=False), memory=None, queue="a")
    ruled.settle()
    ruled.go(lambda: all(program.began for program in cluster.programs.values()))
    assert cluster.api.objects[f"{CLAIMS}/theirs"]["status"] == status
