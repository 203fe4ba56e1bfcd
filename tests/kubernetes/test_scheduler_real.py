"""The scheduler with a real API server, with the rights that deploy/kubernetes gives it.

A server before 1.34 drops `resourceClaims` of pods. There an annotation says which claim a pod has, and the scheduler
sees it where it would see the field; all else is as it is.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from claims import gpu
from real_api_server import HAS, RealApiServer, missing, with_claims

from gpushare.cluster.engines.kubernetes import api as engine_api
from gpushare.cluster.engines.kubernetes.api import Api
from gpushare.cluster.engines.kubernetes.engine import Kubernetes
from gpushare.cluster.engines.kubernetes.mark import read
from gpushare.cluster.engines.kubernetes.settings import Settings
from gpushare.cluster.engines.loop import Loop
from gpushare.cluster.engines.seam import Deposed, Evict, Refused, Unanswered
from gpushare.cluster.model import Policy, Queue, QueueAdded
from gpushare.cluster.quantity import gpus
from gpushare.cluster.service.driver import Options
from gpushare.cluster.service.of_queue import QueueRounds
from gpushare.cluster.store import Store
from gpushare.doctor import examine
from gpushare.doctor.cluster import CHECKS, Cluster
from gpushare.errors import NoSuchJob
from gpushare.kubernetes import claim as claims
from gpushare.kubernetes.reader import Reader
from gpushare.kubernetes.server import MERGE, Access, Answer, Server
from gpushare.kubernetes.server import Unanswered as NoAnswer
from gpushare.kubernetes.slices import resource_slice

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

GIB = 2**30
PODS = "/api/v1/namespaces/team-a/pods"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/team-a/resourceclaims"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
NODES = "/api/v1/nodes"
WITHIN = 60.0


@pytest.fixture(scope="module")
def cluster():
    with tempfile.TemporaryDirectory(prefix="gs-api-") as folder:
        api = RealApiServer(Path(folder))
        try:
            api.serve_claims()
            api.deploy()
            api.deploy("scheduler")
            server = api.server
            server.ask("POST", "/api/v1/namespaces", {"metadata": {"name": "team-a"}})
            for name in ("n1", "n2"):
                node = server.ask("POST", NODES, {"metadata": {"name": name}})
                said = {"conditions": [{"type": "Ready", "status": "True"}]}
                server.ask("PUT", f"{NODES}/{name}/status", {**node, "status": said})
                devices = [gpu(f"GPU-{name}-{index}", index, capacity=80 * GIB) for index in (0, 1)]
                server.ask("POST", SLICES, resource_slice(name, devices, "sim"))
            yield api
        finally:
            api.end()


class Stage:
    def __init__(self, cluster: RealApiServer, folder: Path) -> None:
        self.cluster = cluster
        settings = Settings(kubeconfig=str(cluster.schedulers))
        self.woken = threading.Event()
        self.api = Api(settings, self.woken.set)
        self.engine = Kubernetes(self.api, settings, self.woken)
        self.store = Store.create(folder / "ledger.db", Policy(endings="reported", back_off=0.1, protect=0.0))
        self.store.append([QueueAdded(Queue(name, quota=gpus(2))) for name in ("a", "b")], time.time())
        self.loop = Loop(self.store, self.engine, time.time)

    def close(self) -> None:
        self.engine.close()
        self.store.close()

    def go(self, true: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + WITHIN
        while not (found := true()):
            assert time.monotonic() < deadline
            with contextlib.suppress(Unanswered):
                self.loop.step()
            self.engine.watch(0.2)
        return found

    def submit(self, name: str, memory: str | None = None, queue: str = "a") -> str:
        server = self.cluster.server
        exactly: dict[str, Any] = {"deviceClassName": "gpushare.dev"}
        if memory is not None:
            exactly["capacity"] = {"requests": {"memory": memory}}
        meta = {"name": f"{name}-gpu", "namespace": "team-a"}
        spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
        head = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
        server.ask("POST", CLAIMS, {**head, "metadata": meta, "spec": spec})
        labels = {"gpushare.dev/queue": queue}
        pod = {
            "metadata": {"name": name, "labels": labels, "annotations": {HAS: f"{name}-gpu"}},
            "spec": {
                "schedulerName": "gpushare",
                "containers": [{"name": "main", "image": "x"}],
                "resourceClaims": [{"name": "gpu", "resourceClaimName": f"{name}-gpu"}],
            },
        }
        return str(server.ask("POST", PODS, pod)["metadata"]["uid"])

    def pod(self, name: str) -> dict[str, Any]:
        return self.cluster.server.ask("GET", f"{PODS}/{name}")

    def bound(self, name: str) -> str:
        return str(self.pod(name)["spec"].get("nodeName") or "")

    def remove(self, *names: str) -> None:
        """As controllers and kubelets do."""
        for name in names:
            now = {"gracePeriodSeconds": 0}
            self.cluster.server.ask("DELETE", f"{PODS}/{name}", now)
            claim = self.cluster.server.ask("GET", f"{CLAIMS}/{name}-gpu")
            meta = {**claim["metadata"], "finalizers": []}
            self.cluster.server.ask("PUT", f"{CLAIMS}/{name}-gpu", {**claim, "metadata": meta})
            self.cluster.server.ask("DELETE", f"{CLAIMS}/{name}-gpu")


@pytest.fixture
def stage(cluster, tmp_path, monkeypatch):
    if not cluster.own:
        monkeypatch.setattr(engine_api, "_keeps", with_claims(engine_api._keeps))
    made = Stage(cluster, tmp_path)
    yield made
    made.close()


def test_a_pod_gets_its_gpu_and_its_node_and_another_is_told_why_it_waits(stage):
    names = [f"p{number}" for number in range(4)]
    for name in names:
        stage.submit(name)
    stage.submit("part", "8Gi")
    stage.go(lambda: all(stage.bound(name) for name in names))
    where = set()
    for name in names:
        claim = stage.cluster.server.ask("GET", f"{CLAIMS}/{name}-gpu")
        read = claims.read(claim, stage.bound(name))
        (device,) = read.devices
        where.add((device.pool, device.name))
        assert device.memory == 80 * GIB and read.pods == [stage.pod(name)["metadata"]["uid"]]
    assert where == {("n1", "gpu-n1-0"), ("n1", "gpu-n1-1"), ("n2", "gpu-n2-0"), ("n2", "gpu-n2-1")}

    def told():
        conditions = stage.pod("part")["status"].get("conditions") or ()
        return next((one for one in conditions if one["type"] == "PodScheduled"), None)

    condition = stage.go(told)
    uid = stage.pod("part")["metadata"]["uid"]
    assert condition["status"] == "False"
    assert condition["message"] == stage.store.allocator.explain(uid).reason.message
    events = stage.cluster.server.ask("GET", "/api/v1/namespaces/team-a/events")["items"]
    assert [one["message"] for one in events if one["involvedObject"]["uid"] == uid] == [condition["message"]]
    stage.remove("p0")
    stage.go(lambda: stage.bound("part"))
    stage.remove("part", "p1", "p2", "p3")
    stage.go(lambda: not stage.store.allocator.jobs)


def test_the_server_is_killed_and_what_came_meanwhile_is_started_once(stage):
    stage.submit("before", "8Gi")
    stage.go(lambda: stage.bound("before"))
    stage.cluster.kill()
    with pytest.raises(Unanswered):
        for _ in range(600):
            stage.engine.snapshot()
            time.sleep(0.05)
    stage.cluster.start()
    stage.submit("after", "8Gi")
    stage.go(lambda: stage.bound("after"))
    assert stage.engine.snapshot().jobs[0].tasks
    stage.remove("before", "after")
    stage.go(lambda: not stage.store.allocator.jobs)


def test_of_two_one_leads_until_it_ends(stage, tmp_path):
    (tmp_path / "other").mkdir()
    assert stage.engine.lead("one", 15.0)
    other = Stage(stage.cluster, tmp_path / "other")
    try:
        assert other.engine.lead("two", 15.0) is None
        stage.engine._leadership.release()
        term = other.engine.lead("two", 15.0)
        assert term
        stage.engine.lead("one", 15.0)
        with pytest.raises(Deposed):
            stage.engine.evict(Evict("x", 1, (), 1.0, True), (term - 1, 1))
    finally:
        other.close()


def test_a_binding_that_is_late_is_refused_by_the_server(stage):
    """What the scheduler relies on: a binding counts for one version of a pod."""
    if not stage.cluster.own:
        pytest.skip("bindings have preconditions since 1.23")
    stage.submit("late", "8Gi")
    pod = stage.pod("late")
    body = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {name: pod["metadata"][name] for name in ("name", "namespace", "uid", "resourceVersion")},
        "target": {"kind": "Node", "name": "n1"},
    }
    stage.cluster.server.ask(
        "PATCH", f"{PODS}/late", {"metadata": {"annotations": {"x": "y"}}}, "application/merge-patch+json"
    )
    scheduler = Server(Access.of_kubeconfig(stage.cluster.schedulers))
    with pytest.raises(Answer) as caught:
        scheduler.ask("POST", f"{PODS}/late/binding", body)
    assert caught.value.status == 409
    stage.remove("late")


def test_a_start_that_is_cut_off_before_its_binding_is_undone_and_done_anew(stage, monkeypatch):
    """The binding comes to the server when the claim was given back: too late, where bindings have preconditions."""
    uid = stage.submit("cut", "8Gi")
    claim, ask = f"{CLAIMS}/cut-gpu", stage.api.server.ask
    late: list[Any] = []
    answers: list[int] = []

    def asks(method, path, body=None, *more):
        if path == f"{PODS}/cut/binding" and not late:
            late.append(body)
            assert stage.cluster.server.ask("GET", claim)["status"]["allocation"]
            raise NoAnswer("as the test wants it")
        answer = ask(method, path, body, *more)
        if path == f"{claim}/status" and not body["status"].get("allocation"):
            assert late and not stage.bound("cut")
            if stage.cluster.own:
                with pytest.raises(Answer) as caught:
                    ask("POST", f"{PODS}/cut/binding", late[0])
                answers.append(caught.value.status)
            else:
                answers.append(409)
        return answer

    monkeypatch.setattr(stage.api.server, "ask", asks)
    stage.go(lambda: stage.bound("cut"))
    assert answers == [409]
    mark = read(stage.pod("cut")["metadata"]["annotations"]["gpushare.dev/start"])
    assert (mark.job, mark.attempt, mark.node) == (uid, 1, stage.bound("cut"))
    (result,) = stage.cluster.server.ask("GET", claim)["status"]["allocation"]["devices"]["results"]
    assert result["pool"] == mark.node
    stage.remove("cut")


def test_an_eviction_is_the_servers(stage):
    uid = stage.submit("evicted", "8Gi")
    stage.go(lambda: stage.bound("evicted"))
    stage.go(lambda: any(one.job.id == uid and one.tasks for one in stage.engine.snapshot().jobs))
    term = stage.engine.lead(stage.loop.holder, 15.0)
    answer = stage.engine.evict(Evict(uid, 1, ((0, 0),), 5.0, True), (term, 10**6))
    if isinstance(answer, Refused):
        assert "policy" in answer.why, "a server before 1.22 has no policy/v1"
        stage.remove("evicted")
        return
    meta = stage.pod("evicted")["metadata"]
    assert meta["deletionTimestamp"] and meta["deletionGracePeriodSeconds"] == 5
    stage.remove("evicted")


def test_queues_are_objects_with_a_schema_and_a_status(stage):
    server, path = stage.cluster.server, "/apis/gpushare.dev/v1/queues"
    head = {"apiVersion": "gpushare.dev/v1", "kind": "Queue"}
    for spec in ({"quota": -1}, {"priority": "high"}, {"parent": 3}, {"quota": ["4"]}):
        with pytest.raises(Answer) as caught:
            server.ask("POST", path, {**head, "metadata": {"name": "vision"}, "spec": spec})
        assert caught.value.status == 422, spec
    server.ask("POST", path, {**head, "metadata": {"name": "vision"}, "spec": {"quota": "2.5", "parent": "research"}})
    server.ask("POST", path, {**head, "metadata": {"name": "research"}, "spec": {"quota": 3}})
    work = QueueRounds(stage.store, stage.engine, time.time, Options())
    deadline = time.monotonic() + WITHIN
    while not (status := server.ask("GET", f"{path}/vision").get("status")) or is_refused(status):
        assert time.monotonic() < deadline and not work.trouble
        work.round()
        stage.engine.watch(0.2)
    assert (status["held"], status["waiting"]) == ("0", 0)
    assert stage.store.allocator.queues["vision"].queue.quota == gpus(2.5)
    for name in ("vision", "research"):
        server.ask("DELETE", f"{path}/{name}")


def is_refused(status: dict[str, Any]) -> bool:
    """As it is until its parent is seen, too."""
    return bool(status["conditions"][0]["status"] != "True")


@pytest.fixture
def closed(stage):
    """Makes queues, which go with the test."""
    server, path, made = stage.cluster.server, "/apis/gpushare.dev/v1/queues", []

    def make(name: str, **spec: Any) -> None:
        head = {"apiVersion": "gpushare.dev/v1", "kind": "Queue", "metadata": {"name": name}}
        server.ask("POST", path, {**head, "spec": spec})
        made.append(f"{path}/{name}")

    yield make
    for one in made:
        server.ask("DELETE", one)


def waits(stage: Stage, name: str) -> str:
    conditions = stage.pod(name)["status"].get("conditions") or ()
    return next((str(one["message"]) for one in conditions if one["type"] == "PodScheduled"), "")


def test_a_queue_says_which_namespaces_may_use_it(stage, closed):
    server, namespace = stage.cluster.server, "/api/v1/namespaces/team-a"
    closed("b", namespaces=["team-b"], namespaceSelector={"matchLabels": {"team": "b"}})
    uid = stage.submit("guest", "8Gi", queue="b")
    why = stage.go(lambda: waits(stage, "guest"))
    assert why.startswith("namespace team-a may not use queue b (")
    events = server.ask("GET", "/api/v1/namespaces/team-a/events")["items"]
    assert [one["message"] for one in events if one["involvedObject"]["uid"] == uid] == [why]
    server.ask("PATCH", namespace, {"metadata": {"labels": {"team": "b"}}}, MERGE)
    stage.go(lambda: stage.bound("guest"))
    server.ask("PATCH", namespace, {"metadata": {"labels": {"team": None}}}, MERGE)
    stage.submit("next", "8Gi", queue="b")
    stage.go(lambda: waits(stage, "next").startswith("namespace team-a may not use queue b ("))
    server.ask("PATCH", f"{PODS}/guest", {"metadata": {"labels": {"gpushare.dev/queue": "a"}}}, MERGE)
    stage.go(lambda: stage.pod("guest")["metadata"]["labels"]["gpushare.dev/queue"] == "a")
    for _ in range(3):
        stage.loop.step()
        stage.engine.watch(0.2)
    assert stage.store.allocator.jobs[uid].job.queue == "b", "it stays where it has started"
    stage.remove("guest", "next")
    stage.go(lambda: not stage.store.allocator.jobs)


@pytest.mark.parametrize(
    "spec",
    [
        {"namespaces": "team-b"},
        {"namespaces": [""]},
        {"namespaces": ["x", "x"]},
        {"namespaceSelector": {"matchLabels": {"team": 3}}},
        {"namespaceSelector": {"matchExpressions": [{"key": "team", "operator": "Gt", "values": ["3"]}]}},
        {"namespaceSelector": {"matchExpressions": [{"operator": "Exists"}]}},
    ],
)
def test_whose_a_queue_is_has_a_schema(stage, closed, spec):
    with pytest.raises(Answer) as caught:
        closed("odd", **spec)
    assert caught.value.status == 422


TENANT = "tenant"
IN_QUEUE = {"schedulerName": "gpushare"}
CLAIMED = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "x"}]}
BY_CLASS = {"deviceclass.resource.kubernetes.io/gpushare.dev": "1"}


def of_containers(**more: Any) -> dict[str, Any]:
    return {"containers": [{"name": "main", "image": "x"}], **more}


@pytest.mark.parametrize(
    ("spec", "may"),
    [
        (of_containers(), True),
        (of_containers(**CLAIMED), False),
        (of_containers(**CLAIMED, **IN_QUEUE), True),
        (of_containers(**CLAIMED, **IN_QUEUE, nodeName="n1"), False),
        (of_containers(**CLAIMED, schedulerName="kai-scheduler"), False),
        (
            {"containers": [{"name": "main", "image": "x", "resources": {"limits": BY_CLASS, "requests": BY_CLASS}}]},
            False,
        ),
        ({"containers": [{"name": "main", "image": "x", "resources": {"limits": {"cpu": "1"}}}]}, True),
    ],
)
def test_pods_of_tenants_that_claim_devices_wait_in_a_queue(stage, spec, may):
    if not stage.cluster.own:
        pytest.skip("the policy needs a server of 1.30 or later")
    server = stage.cluster.server
    with contextlib.suppress(Answer):
        meta = {"name": TENANT, "labels": {"gpushare.dev/tenants": "true"}}
        server.ask("POST", "/api/v1/namespaces", {"metadata": meta})
    for namespace in (TENANT, "default"):
        pods, body = f"/api/v1/namespaces/{namespace}/pods", {"metadata": {"name": "claims"}, "spec": spec}
        refusal = contextlib.nullcontext()
        if namespace == TENANT and not may:
            refusal = pytest.raises(Answer, match="wait in a queue: write schedulerName: gpushare")
        with refusal:
            server.ask("POST", pods, body)
            server.ask("DELETE", f"{pods}/claims", {"gracePeriodSeconds": 0})


def test_who_may_edit_a_namespace_has_no_way_round_the_queues(stage):
    """The role `edit` is put together of this one and `view`, by a controller that is not here."""
    path = "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:aggregate-to-edit"
    role = stage.cluster.server.ask("GET", path)
    writes = {
        what
        for rule in role["rules"]
        for what in rule.get("resources", ())
        if set(rule["verbs"]) - {"get", "list", "watch"}
    }
    assert "pods" in writes
    assert not writes & {"pods/binding", "bindings", "resourceclaims/status", "namespaces", "queues", "*"}


def test_the_scheduler_has_no_other_rights(cluster):
    scheduler = Server(Access.of_kubeconfig(cluster.schedulers))
    for method, path in (
        ("GET", "/api/v1/namespaces/team-a/secrets"),
        ("GET", "/api/v1/namespaces/gpushare/configmaps"),
        ("DELETE", f"{PODS}/x"),
        ("DELETE", f"{CLAIMS}/x"),
        ("PATCH", f"{NODES}/n1"),
        ("PATCH", "/apis/gpushare.dev/v1/queues/x"),
        ("PATCH", "/api/v1/namespaces/team-a"),
        ("GET", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"),
    ):
        with pytest.raises(Answer) as caught:
            scheduler.ask(method, path, {} if method == "PATCH" else None, "application/merge-patch+json")
        assert caught.value.status == 403
    with pytest.raises(NoSuchJob):
        scheduler.ask("GET", f"{PODS}/x")


def test_nobody_else_writes_a_mark_by_whatever_way(stage):
    """An annotation also comes with a pod's binding, and with its status."""
    if not stage.cluster.own:
        pytest.skip("the policy needs a server of 1.30 or later")
    stage.submit("marked", "8Gi")
    pod, annotations = stage.pod("marked"), {"gpushare.dev/start": "{}"}
    meta = {name: pod["metadata"][name] for name in ("name", "namespace", "uid")}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {**meta, "annotations": annotations}}
    binding["target"] = {"kind": "Node", "name": "n1"}
    changed = {"metadata": {"annotations": annotations}}
    kind = "application/merge-patch+json"
    for method, path, body in (
        ("PATCH", f"{PODS}/marked", changed),
        ("PATCH", f"{PODS}/marked/status", changed),
        ("POST", f"{PODS}/marked/binding", binding),
        ("POST", "/api/v1/namespaces/team-a/bindings", binding),
    ):
        with pytest.raises(Answer, match="only gpushare's scheduler writes"):
            stage.cluster.server.ask(method, path, body, kind if method == "PATCH" else "application/json")
    assert "gpushare.dev/start" not in stage.pod("marked")["metadata"].get("annotations", {})
    stage.cluster.server.ask("PATCH", f"{PODS}/marked/status", {"status": {"phase": "Pending"}}, kind)
    stage.remove("marked")


def test_doctor_finds_that_the_accounts_have_their_rights_and_which_are_missing(cluster):
    reader = Reader(Access.of_kubeconfig(cluster.kubeconfig))
    found = {check.id: one for check, one in examine(Cluster(reader), CHECKS)}
    assert {found[id].state for id in ("GK02", "GK04", "GK13")} == {"ok"}, found
    bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
    binding = cluster.server.ask("GET", f"{bindings}/gpushare-scheduler")
    cluster.server.ask("DELETE", f"{bindings}/gpushare-scheduler")
    try:
        cluster._until(lambda: _is_refused(cluster))
        denied = {check.id: one for check, one in examine(Cluster(reader), CHECKS)}["GK13"]
    finally:
        meta = {"name": binding["metadata"]["name"]}
        cluster.server.ask("POST", bindings, {**binding, "metadata": meta})
        reader.close()
    assert denied.state == "fail" and denied.detail.startswith(
        "gpushare-scheduler: list nodes; gpushare-scheduler: watch"
    )
    assert "gpushare-dra" not in denied.detail


def _is_refused(cluster: RealApiServer) -> None:
    """Raises as long as the scheduler may still list nodes."""
    try:
        Server(Access.of_kubeconfig(cluster.schedulers)).ask("GET", NODES)
    except Answer:
        return
    raise NoSuchJob("it may")
