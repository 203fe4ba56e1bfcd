"""`gpushare cluster serve --engine kubernetes` as a process, and what deploy/kubernetes/scheduler lets it do."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from api_double import SERVED
from kube_cluster import KubeCluster, Program
from test_scheduler_volumes import WITH_DISK, bind_volumes, given, made, put_claim, put_folder, put_wish, with_disks
from test_scheduler_words import told

from gpushare.cluster.client import ClusterClient
from gpushare.cluster.engines.kubernetes.names import QUEUES
from gpushare.cluster.engines.kubernetes.settings import Settings
from gpushare.errors import DaemonUnreachable, UsageError

DEPLOY = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes" / "scheduler"
VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "WATCH": "watch"}
NOT_ASKED = {("patch", "resourceclaims/binding"), ("create", "pods/eviction"), ("update", "resourceclaims")}
"""By a newer server, for an eviction, and of a claim that no patch may touch (test_stored_claims.py)."""
WITHIN = 30.0


class Service:
    """On the stand-in for a cluster, with queues of namespaces alone."""

    def __init__(self, cluster: KubeCluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.config = folder / "cluster.toml"
        self.config.write_text(f'[kubernetes]\nkubeconfig = "{cluster.api.kubeconfig}"\n')
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        words = ["--engine", "kubernetes", "--store", str(self.folder / "cluster.db"), "--config", str(self.config)]
        words += ["--socket", str(self.folder / "api.sock")]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen([sys.executable, "-P", "-m", "gpushared.cluster", *words], stderr=log)
        self.until(self.answers)

    @property
    def client(self) -> ClusterClient:
        return ClusterClient(self.folder / "api.sock", WITHIN)

    def answers(self) -> bool:
        try:
            return bool(self.client.version())
        except DaemonUnreachable:
            return False

    def until(self, true: Callable[[], Any]) -> Any:
        """While time of the cluster passes."""
        deadline = time.monotonic() + WITHIN
        while not (found := true()):
            assert time.monotonic() < deadline, (self.folder / "log").read_text()
            assert self.process is not None and self.process.poll() is None, (self.folder / "log").read_text()
            self.cluster.tick(0.05)
            time.sleep(0.05)
        return found

    def kill(self, number: int = signal.SIGKILL) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        status, self.process = self.process.wait(WITHIN), None
        return status


@pytest.fixture
def service(tmp_path):
    cluster = KubeCluster(tmp_path)
    made = Service(cluster, tmp_path)
    yield made
    if made.process is not None:
        made.kill()
    cluster.close()
    assert not cluster.unread


def test_why_a_pod_is_no_job_yet_is_explained(service):
    cluster = service.cluster
    cluster.api.put(f"{QUEUES}/b", {"metadata": {"name": "b"}, "spec": {"namespaces": ["team-b"]}})
    uid = cluster.submit("thief", queue="b")
    labels, annotations = {"gpushare.dev/pod-group": "g"}, {"gpushare.dev/pod-group-size": "2"}
    cluster.submit("alone", labels=labels, annotations=annotations)
    service.start()
    for pod in ("thief", "alone"):
        service.until(lambda pod=pod: told(cluster, pod))
    for name, pod in ((uid, "thief"), ("team-a/thief", "thief"), ("team-a/alone", "alone")):
        with pytest.raises(UsageError) as caught:
            service.client.explain(name)
        assert caught.value.message == told(cluster, pod) and "kubectl describe pod" in caught.value.hint
    assert told(cluster, "thief").startswith("namespace team-a may not use queue b")


def test_pods_of_a_namespace_run_wait_and_are_found_again_after_kill_9(service):
    cluster = service.cluster
    service.start()
    for number in range(5):
        cluster.submit(f"p{number}", Program(), memory=None)
    programs = cluster.programs.values()
    service.until(lambda: sum(one.began for one in programs) == 4)
    (waits,) = [name for name, one in cluster.programs.items() if not one.began]
    service.until(lambda: cluster.pod(waits)["status"].get("conditions"))
    message = cluster.pod(waits)["status"]["conditions"][0]["message"]
    explained = service.client.explain(f"team-a/{waits}")
    assert explained["reason"]["message"] == message
    service.kill()
    for path in service.folder.glob("cluster.db*"):
        if path.is_file():
            path.unlink()
    service.start()
    (name,) = [name for name, one in cluster.programs.items() if one.began][:1]
    cluster.cancel(name)
    service.until(lambda: cluster.programs[waits].began == 1)
    assert all(one.began == 1 for one in programs), "what ran was found, and nothing was started twice"
    with pytest.raises(UsageError, match="own commands"):
        service.client.cancel(f"team-a/{waits}")
    assert service.kill(signal.SIGTERM) == 0
    (lease,) = cluster.api.of("leases")
    assert lease["spec"]["holderIdentity"] == "", "another may lead at once"


def test_it_may_do_what_it_does_and_nothing_else(service):
    cluster = service.cluster
    service.start()
    conflicts = {"pods", "resourceclaims", "persistentvolumes"}

    def refuses(method, path, _):
        """A conflict of each mark, each allocation and each volume: then it reads again. Words for users are not
        written again."""
        words = "/pods/" in path and path.endswith("/status")
        found = [kind for kind in conflicts if f"/{kind}/" in path and method == "PATCH" and not words]
        conflicts.difference_update(found)
        return (409, {"message": "the object has been modified"}) if found else None

    cluster.api.refuses = refuses
    cluster.api.put(f"{QUEUES}/team-a", {"metadata": {"name": "team-a"}, "spec": {"quota": 4}})
    put_wish(cluster)
    cluster.submit("runs", Program(), memory=None, count=2, spec=WITH_DISK)
    service.until(lambda: made(cluster))
    service.until(lambda: cluster.programs["runs"].began)
    put_claim(cluster, "local")
    put_folder(cluster, "folder")
    cluster.submit("kept", Program(), memory=None, spec=with_disks("local"))
    service.until(lambda: given(cluster)["folder"])
    bind_volumes(cluster)
    service.until(lambda: cluster.programs["kept"].began)
    cluster.submit("never", memory=None, count=3)
    service.until(lambda: cluster.api.of("events") and cluster.api.objects[f"{QUEUES}/team-a"].get("status"))
    assert "nodeName" not in cluster.pod("never")["spec"]
    service.kill(signal.SIGTERM)
    asked = {(verb_of(method, path), resource(path)) for method, path in cluster.api.requests if path != SERVED}
    objects = list(yaml.safe_load_all((DEPLOY / "rbac.yaml").read_text()))
    rules = [rule for role in objects if role["kind"] in ("ClusterRole", "Role") for rule in role["rules"]]
    granted = {(verb, what) for rule in rules for what in rule["resources"] for verb in rule["verbs"]}
    assert granted - asked == NOT_ASKED
    assert asked <= granted


def verb_of(method: str, path: str) -> str:
    return "list" if method == "GET" and path.endswith(f"/{resource(path)}") else VERBS[method]


def resource(path: str) -> str:
    """As a role names it, with its subresource."""
    words = path.split("/")
    start = words.index("namespaces") + 2 if "namespaces" in words[:-1] else 3 if words[1] == "api" else 4
    kind, rest = words[start], words[start + 2 :]
    return f"{kind}/{rest[0]}" if rest else kind


def test_settings_that_make_no_sense_are_refused():
    for said, words in (
        ({"kubeconfg": "/x"}, "no 'kubeconfg'"),
        ({"kubeconfig": "x"}, "absolute path"),
        ({"lease": 3}, "must be a text"),
        ({"lease": ""}, "must be a text"),
    ):
        with pytest.raises(UsageError, match=words):
            Settings.read(said)


def test_the_manifests_are_a_whole():
    (kustomization,) = yaml.safe_load_all((DEPLOY / "kustomization.yaml").read_text())
    assert set(kustomization["resources"]) == {path.name for path in DEPLOY.iterdir()} - {"kustomization.yaml"}
    objects = [one for name in kustomization["resources"] for one in yaml.safe_load_all((DEPLOY / name).read_text())]
    kinds = {one["kind"]: one for one in objects}
    spec = kinds["Deployment"]["spec"]["template"]["spec"]
    account = {"kind": "ServiceAccount", "name": spec["serviceAccountName"], "namespace": kustomization["namespace"]}
    assert kinds["ClusterRoleBinding"]["subjects"] == kinds["RoleBinding"]["subjects"] == [account]
    lease = Settings()
    (named_rule,) = [rule for rule in kinds["Role"]["rules"] if "resourceNames" in rule]
    assert named_rule["resourceNames"] == [lease.lease] and lease.namespace == kustomization["namespace"]
    policies = {one["metadata"]["name"]: one for one in objects if one["kind"] == "ValidatingAdmissionPolicy"}
    condition = policies["gpushare-marks"]["spec"]["matchConditions"][0]["expression"]
    assert f"system:serviceaccount:{account['namespace']}:{account['name']}" in condition
    (container,) = spec["containers"]
    assert {one["name"] for one in container["volumeMounts"]} == {one["name"] for one in spec["volumes"]}
    written = [word for word in [*container["command"], *container["args"]] if word.startswith("/")]
    mounted = [one["mountPath"] for one in container["volumeMounts"]]
    assert len(written) == 3 and all(any(path.startswith(f"{top}/") for top in mounted) for path in written)
