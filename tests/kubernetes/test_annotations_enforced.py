"""From an annotated pod to a program that is refused, on a server without claims: webhook, scheduler, plugin and node
daemon are the real ones; the kubelet's part is done by the test."""

from __future__ import annotations

import time
from typing import Any

import pytest
from claims import NODE
from cluster_double import ClusterDouble
from enforced_stage import Program, enforced_node
from kube_cluster import NAMESPACE, PODS
from kube_stage import KubeNode, missing, until
from scheduler_stage import Scheduler
from test_webhook_node import Cluster
from webhook_cases import pod
from webhook_stage import deploy, webhook_at

from gpushare.cluster.engines.seam import Accepted
from gpushare.kubernetes.carried import gate_of
from gpushare.kubernetes.names import NODE_GPUS

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
OUT_OF_MEMORY = 2


@pytest.fixture
def node():
    with enforced_node(ClusterDouble) as made:
        made.api.lacks = ("/apis/resource.k8s.io/",)
        ready = [{"type": "Ready", "status": "True"}]
        made.api.change(f"/api/v1/nodes/{NODE}", lambda one: one.update(spec={}, status={"conditions": ready}))
        deploy(made.api)
        made.start_daemon()
        made.start_plugin()
        until(lambda: f"{NODE_GPUS}/{NODE}" in made.api.objects, "the plugin to tell of its GPUs")
        yield made


def bound(node: KubeNode, **asked: dict[str, str]) -> None:
    """Pods with these annotations, on the first GPU."""
    with webhook_at(node.api, node.folder) as webhook:
        webhook.ready()
        for name, annotations in asked.items():
            stored = webhook.admit(pod(annotations, nodeSelector={}, schedulerName="gpushare"))
            meta = {"name": name, "namespace": NAMESPACE, "uid": f"p-{name}"}
            stored["metadata"] |= {**meta, "creationTimestamp": "2026-11-23T12:00:00Z"}
            node.api.put(f"{PODS}/{name}", {**stored, "status": {"phase": "Pending"}})
    scheduler = Scheduler(Cluster(node.api))  # type: ignore[arg-type]
    try:
        for name in asked:
            job = scheduler.job(f"p-{name}")
            assert job is not None
            (tasks,) = job.job.tasks
            assert scheduler.start(f"p-{name}", NODE, 0, tasks.memory) == Accepted()
    finally:
        scheduler.close()


def started(node: KubeNode, **asked: dict[str, str]) -> dict[str, dict[str, Any]]:
    """The same, and prepared: as they are stored then."""
    bound(node, **asked)
    for name in asked:
        node.pod(f"p-{name}")
    found = {name: node.api.objects[f"{PODS}/{name}"] for name in asked}
    gates = [node.state / "pods" / str(gate_of(one)) / "libgpushare.so" for one in found.values()]
    until(lambda: all(one.exists() for one in gates), lambda: f"the gates to open: {node.log()}")
    return found


def test_programs_of_two_pods_lend_and_are_held_to_what_they_were_given(node):
    lends = {"gpu-memory": "1024", "gpu-memory-limit": "3072"}
    stored = started(node, borrower=lends, owner={"gpu-memory": "2048"})
    borrower, owner = Program(node, stored["borrower"]), Program(node, stored["owner"])
    try:
        assert borrower.do("total") == 3072
        assert borrower.do(2200) == 0, "1 GiB of its own, the rest on loan"
        assert borrower.do(1000) == OUT_OF_MEMORY, "above its limit"
        assert owner.do(1700) == 0, "the owner's own memory"
        assert borrower.process.wait(30) != 0, "the borrower is stopped"
        assert owner.do(1000) == OUT_OF_MEMORY
    finally:
        borrower.end()
        owner.end()
    for name in ("borrower", "owner"):
        node.api.remove(f"{PODS}/{name}")
    until(lambda: not node.leftovers(), lambda: f"nothing to be left: {node.leftovers()}")


def test_what_a_program_sets_in_its_environment_does_not_count(node):
    stored = started(node, small={"gpu-memory": "1024"})
    lies = ("env", "GPUSHARE_LIMIT=4Gi", "GPUSHARE_REQUEST=4Gi", "GPUSHARE_JOB=00000000000000ff")
    program = Program(node, stored["small"], *lies)
    try:
        assert program.do(600) == 0
        assert program.do(600) == OUT_OF_MEMORY
    finally:
        program.end()
    node.api.remove(f"{PODS}/small")
    until(lambda: not node.leftovers(), lambda: f"nothing to be left: {node.leftovers()}")


def test_pods_that_are_gone_while_their_programs_run_hold_up_nobody(node):
    """Deleted with --force: the API server forgets them at once, and the kubelet gives them their time to end."""
    names = [f"gone-{number}" for number in range(3)]
    stored = started(node, **{name: {"gpu-memory": "512"} for name in names})
    programs = [Program(node, stored[name]) for name in names]
    try:
        assert [one.do(100) for one in programs] == [0, 0, 0]
        for name in names:
            node.api.remove(f"{PODS}/{name}")
        bound(node, next={"gpu-memory": "512"})
        began = time.monotonic()
        node.pod("p-next")
        until(lambda: len(node.placed()) == 4, "its placement")
        assert time.monotonic() < began + 2.5
    finally:
        for one in programs:
            one.end()
    node.api.remove(f"{PODS}/next")
    until(lambda: not node.leftovers(), lambda: f"nothing to be left: {node.leftovers()}")
