"""`gpushare doctor --cluster`: what it finds (doctor.txt), of what is there, of what is wrong, and of odd objects."""

from __future__ import annotations

import difflib
import json
import os
import random
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from annotated_cluster import AnnotatedCluster
from claims import gpu
from click.testing import CliRunner
from kube_cluster import CLASSES, NODES, SLICES, KubeCluster
from real_api_server import free_ports
from scheduler_stage import GIB
from test_kubectl_plugin import odd, written

from gpushare.cli import cli
from gpushare.doctor import examine
from gpushare.doctor.cluster import CHECKS, OF_ANNOTATIONS, PLUGIN, RIGHTS, SCHEDULER, Cluster
from gpushare.kubernetes.access import Access
from gpushare.kubernetes.names import NODE_GPUS
from gpushare.kubernetes.reader import Reader
from gpushare.kubernetes.slices import resource_slice

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).with_name("doctor.txt")
LABEL = {"gpushare.dev/node": "true"}
CLASS = f"{CLASSES}/gpushare.dev"
OURS = "/api/v1/namespaces/gpushare/pods"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/gpushare/leases/gpushare-scheduler"
QUEUES = "/apis/gpushare.dev/v1/queues"
EVENTS = "/api/v1/namespaces/team-a/events"
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolic{}/gpushare-marks"
REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
KINDS = ("resourceclaims", "resourceslices", "deviceclasses")


def ago(seconds: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


class Installed:
    """All that deploy/kubernetes has, on two nodes; a test takes something away."""

    def __init__(self, folder: Path, kind: type[KubeCluster] = KubeCluster) -> None:
        self.cluster = kind(folder)
        self.api = self.cluster.api
        self.version = "v1.34.1"
        self.kinds = list(KINDS)
        self.denied: set[tuple[str, str]] = set()
        self.closed: set[str] = set()
        self.queues = True
        self.api.refuses = self.answers
        for name in ("n1", "n2"):
            self.api.change(
                f"{NODES}/{name}", lambda one: one["metadata"]["labels"].update({"gpushare.dev/node": "true"})
            )
            self.pod(f"dra-{name}", "gpushare-dra", name)
        self.pod("scheduler", "gpushare-scheduler", "n1")
        spec = {"holderIdentity": "scheduler-x:/var/lib", "leaseDurationSeconds": 23, "renewTime": ago(7)}
        self.api.put(LEASE, {"metadata": {"name": "gpushare-scheduler", "namespace": "gpushare"}, "spec": spec})
        self.queue("vision", "True", "what it says counts")
        for kind in ("ies", "ybindings"):
            self.api.put(POLICIES.format(kind), {"metadata": {"name": "gpushare-marks"}})

    def pod(self, name: str, app: str, node: str) -> None:
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        meta = {"name": name, "namespace": "gpushare", "labels": {"app": app}}
        self.api.put(f"{OURS}/{name}", {"metadata": meta, "spec": {"nodeName": node}, "status": ready})

    def queue(self, name: str, accepted: str, message: str) -> None:
        condition = {"type": "Accepted", "status": accepted, "message": message}
        self.api.put(f"{QUEUES}/{name}", {"metadata": {"name": name}, "status": {"conditions": [condition]}})

    def event(self, name: str, message: str, age: float) -> None:
        body = {"type": "Warning", "message": message, "lastTimestamp": ago(age)}
        meta = {"name": f"e-{name}", "namespace": "team-a"}
        self.api.put(
            f"{EVENTS}/e-{name}", {"metadata": meta, "involvedObject": {"namespace": "team-a", "name": name}, **body}
        )

    def answers(self, method, path, body):
        if any(f"/{kind}" in path for kind in self.closed):
            return 403, {"message": "forbidden"}
        if path == "/version":
            return 200, {"gitVersion": self.version}
        if path == "/apis/resource.k8s.io/v1":
            return (
                (200, {"resources": [{"name": one} for one in self.kinds]}) if self.kinds else (404, {"message": "no"})
            )
        if path == REVIEWS:
            asked = body["spec"]["resourceAttributes"]
            account = body["spec"]["user"].rpartition(":")[2]
            what = "/".join(filter(None, (asked["group"], asked["resource"], asked.get("subresource"))))
            return 201, {"status": {"allowed": (account, f"{asked['verb']} {what}") not in self.denied}}
        if path in (QUEUES, NODE_GPUS) and not self.queues:
            return 404, {"message": "404 page not found"}
        return None

    def found(self) -> dict[str, tuple[str, str]]:
        reader = Reader(Access.of_kubeconfig(self.api.kubeconfig))
        try:
            return {check.id: (one.state, one.detail) for check, one in examine(Cluster(reader), CHECKS)}
        finally:
            reader.close()

    def told(self, *words: str) -> tuple[int, str]:
        result = CliRunner().invoke(
            cli, ["doctor", "--cluster", "--kubeconfig", str(self.api.kubeconfig), *words], standalone_mode=False
        )
        assert result.exception is None, result.exception
        return result.return_value, result.output


@pytest.fixture
def installed(tmp_path):
    made = Installed(tmp_path)
    yield made
    made.cluster.close()


def as_it_should_be(one: Installed) -> None:
    """Nothing is changed."""


def break_all(one: Installed) -> None:
    one.version = "v1.33.0"
    one.api.remove(f"{CLASSES}/gpushare.dev")
    one.cluster.set_ready("n2", ready=False)
    for name in ("dra-n1", "dra-n2"):
        one.api.remove(f"{OURS}/{name}")
    one.api.remove(f"{SLICES}/n2-gpushare.dev")
    sick = [gpu("GPU-n1-0", 0, capacity=80 * GIB, total=81 * GIB, health="sick"), one.cluster.gpus["n1"][1]]
    one.api.put(f"{SLICES}/n1-gpushare.dev", resource_slice("n1", sick, "sim", shared=False))
    one.api.change(LEASE, lambda lease: lease["spec"].update(renewTime=ago(3600)))
    one.queue("speech", "False", "queue speech: quota: 'many' is no number of GPUs")
    one.api.remove(POLICIES.format("ybindings"))
    claim = (
        "gpushare.dev: claim team-a/train: Budget.limit 4Gi is below the request 8Gi; raise the limit, or leave it out"
    )
    one.event("train", f"Failed to prepare dynamic resources: {claim}", 60)
    one.event("old", f"Failed to prepare dynamic resources: {claim}", 5000)
    one.denied |= {(SCHEDULER, "patch resource.k8s.io/resourceclaims/status"), (PLUGIN, "get nodes")}


def empty(one: Installed) -> None:
    """A cluster to which nothing was applied."""
    one.api.objects.clear()
    one.queues, one.kinds = False, []


def of_a_user(one: Installed) -> None:
    one.closed |= {"nodes", "pods", "resourceslices", "leases", "queues", "events", "subjectaccessreviews"}


def test_what_it_finds_is_as_before(tmp_path):
    told = ""
    for number, change in enumerate((as_it_should_be, break_all, empty, of_a_user)):
        folder = tmp_path / str(number)
        folder.mkdir()
        one = Installed(folder)
        try:
            change(one)
            for words in ((), ("--fix-hints",)):
                code, text = one.told(*words)
                name = (
                    getattr(change, "__name__", "").strip("<>").replace("lambda", "as it should be").replace("_", " ")
                )
                text = re.sub(r"\b\d+ s ago", "7 s ago", text)
                told += f"{name}: gpushare doctor {' '.join(('--cluster', *words))}\n{text}(exit status {code})\n\n"
        finally:
            one.cluster.close()
    if os.environ.get("GPUSHARE_TEST_UPDATE"):
        GOLDEN.write_text(told)
    changes = difflib.unified_diff(GOLDEN.read_text().splitlines(), told.splitlines(), "doctor.txt", "now", lineterm="")
    assert not list(changes)


def test_all_is_well(installed):
    assert {state for state, _ in installed.found().values()} == {"ok"}
    assert installed.told()[0] == 0
    checks = json.loads(installed.told("-o", "json")[1])["checks"]
    assert [one["id"] for one in checks] == [f"GK{number:02}" for number in range(1, 14)]


def attaches(one: Installed, *, alone: bool = False) -> None:
    """n2 has the GPUs of NVIDIA's driver."""
    made = resource_slice("n2", one.cluster.gpus["n2"], "sim", attach=True)
    one.api.put(f"{SLICES}/{made['metadata']['name']}", made)
    one.api.put(f"{CLASSES}/attach.gpushare.dev", {"metadata": {"name": "attach.gpushare.dev"}})
    if not alone:
        of_nvidia(one, "n2")


def of_nvidia(one: Installed, node: str) -> None:
    spec = {"driver": "gpu.nvidia.com", "nodeName": node, "pool": {"name": node}, "devices": [{"name": "gpu-0"}]}
    one.api.put(f"{SLICES}/{node}-nvidia", {"metadata": {"name": f"{node}-nvidia"}, "spec": spec})


def without_class(one: Installed) -> None:
    attaches(one)
    one.api.remove(f"{CLASSES}/attach.gpushare.dev")


def without_right(one: Installed) -> None:
    attaches(one)
    one.denied.add((PLUGIN, "list resource.k8s.io/resourceslices"))


def slices(one: Installed, count: int, **changes: Any) -> None:
    """The node n2 says that it has so many."""

    def change(found: dict[str, Any]) -> None:
        found["spec"]["pool"] |= {"resourceSliceCount": count, "generation": changes.pop("generation", 1)}
        found["spec"] |= changes

    one.api.change(f"{SLICES}/n2-gpushare.dev", change)


def tainted(one: Installed, count: int) -> None:
    """So many GPUs of n2."""
    sick = [gpu(f"GPU-n2-{index}", index, capacity=80 * GIB, total=81 * GIB, health="sick") for index in range(count)]
    one.api.put(f"{SLICES}/n2-gpushare.dev", resource_slice("n2", sick, "sim"))


@pytest.mark.parametrize(
    ("change", "check", "state", "words"),
    [
        (attaches, "GK07", "ok", "2 GPUs on 1 node; n2: gpu.nvidia.com's"),
        (attaches, "GK04", "ok", "DeviceClass gpushare.dev, attach.gpushare.dev"),
        (lambda one: attaches(one, alone=True), "GK07", "warn", "publishes no GPU that n2 could attach to"),
        (
            lambda one: of_nvidia(one, "n1"),
            "GK07",
            "warn",
            "both gpushare.dev and gpu.nvidia.com publish the GPUs of n1",
        ),
        (without_class, "GK04", "fail", "there is no DeviceClass attach.gpushare.dev"),
        (without_right, "GK13", "fail", "gpushare-dra: list resource.k8s.io/resourceslices"),
        (lambda one: setattr(one, "version", "v1.20.2"), "GK01", "ok", "1.20.2"),
        (lambda one: setattr(one, "version", "soon"), "GK01", "warn", "'soon'"),
        (lambda one: one.kinds.remove("resourceclaims"), "GK02", "fail", "lacks resourceclaims"),
        (
            lambda one: one.api.change(f"{CLASSES}/gpushare.dev", lambda o: o["spec"].clear()),
            "GK04",
            "warn",
            "all devices",
        ),
        (lambda one: one.api.remove(f"{OURS}/dra-n2"), "GK06", "ok", "as a service"),
        (lambda one: one.api.remove(f"{SLICES}/n2-gpushare.dev"), "GK07", "fail", "no GPU is published by n2"),
        (lambda one: slices(one, 2), "GK07", "warn", "some of the slices are missing: n2"),
        (lambda one: slices(one, 1), "GK07", "ok", "4 GPUs on 2 nodes"),
        (lambda one: slices(one, 1, devices=[]), "GK07", "warn", "no GPU is in the slices of n2"),
        (lambda one: slices(one, 1, generation=7), "GK07", "ok", "4 GPUs on 2 nodes"),
        (lambda one: tainted(one, 5), "GK08", "warn", "n2 GPU 3: sick and 1 more"),
        (lambda one: tainted(one, 4), "GK08", "warn", "n2 GPU 3: sick"),
        (lambda one: one.api.change(LEASE, lambda o: o["spec"].update(holderIdentity="")), "GK09", "fail", "leads"),
        (lambda one: one.api.change(LEASE, lambda o: o["spec"].update(renewTime="soon")), "GK09", "fail", "leads"),
        (lambda one: one.api.remove(LEASE), "GK09", "fail", "none has led yet"),
        (lambda one: setattr(one, "queues", False), "GK10", "warn", "not served"),
        (lambda one: one.api.put(f"{QUEUES}/new", {"metadata": {"name": "new"}}), "GK10", "warn", "not read it yet"),
        (lambda one: one.api.remove(POLICIES.format("ies")), "GK11", "warn", "users may write"),
        (
            lambda one: one.event("x", "gpushare.dev: no such GPU", 10),
            "GK12",
            "warn",
            "such as team-a/x",
        ),
        (lambda one: one.event("x", "another driver", 10), "GK12", "ok", ""),
        (lambda one: one.event("x", "gpushare.dev: it was so", 3500), "GK12", "warn", "1 pod with failures"),
        (lambda one: one.event("x", "gpushare.dev: it was so", 3700), "GK12", "ok", "of the last 1h"),
        (lambda one: one.event("x", "gpushare.dev: " + "long " * 99, 10), "GK12", "warn", ": gpushare.dev: long long"),
        (lambda one: one.denied.add((SCHEDULER, "create pods/binding")), "GK13", "fail", "create pods/binding"),
    ],
)
def test_what_is_wrong_is_found(installed, change, check, state, words):
    change(installed)
    found = installed.found()
    assert found[check][0] == state and words in found[check][1], found[check]
    assert len(found[check][1]) < 400, "an event may be long"
    assert (" more" in found[check][1]) == (" more" in words)


@pytest.fixture
def older(tmp_path):
    """Kubernetes 1.33, to which deploy/kubernetes-1.33 was applied."""
    made = Installed(tmp_path, AnnotatedCluster)
    made.version, made.kinds = "v1.33.4", []
    yield made
    made.cluster.close()


def test_on_an_older_server_annotations_carry_claims_and_all_is_well(older):
    found = older.found()
    assert {state for state, _ in found.values()} == {"ok", "skip"}
    assert [id for id, (state, _) in found.items() if state == "skip"] == ["GK03", "GK04"]
    assert found["GK02"] == ("ok", "annotations of pods carry them: resource.k8s.io/v1 is not served")
    assert found["GK07"] == ("ok", "4 GPUs on 2 nodes")
    assert older.told()[0] == 0


def test_on_an_older_server_what_is_wrong_has_another_way_out(older):
    older.denied |= {(PLUGIN, "list pods"), (SCHEDULER, "watch gpushare.dev/nodegpus")}
    older.api.remove(f"{NODE_GPUS}/n2")
    found = older.found()
    assert found["GK07"] == ("fail", "no GPU is published by n2")
    assert found["GK13"] == ("fail", "gpushare-dra: list pods; gpushare-scheduler: watch gpushare.dev/nodegpus")
    assert "kubectl apply -k deploy/kubernetes-1.33" in older.told("--fix-hints")[1]


def test_a_server_that_does_not_answer_is_asked_once(tmp_path):
    (port,) = free_ports(1)
    one = Installed(tmp_path)
    one.cluster.close()
    config = json.loads(one.api.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = f"http://127.0.0.1:{port}"
    written(one.api.kubeconfig, **config)
    found = one.found()
    assert found.pop("GK01")[0] == "fail" and {state for state, _ in found.values()} == {"skip"}


def test_each_right_is_asked_of_the_server_for_the_account_that_needs_it(installed):
    """As kubectl auth can-i asks: with the groups that the account has."""
    asked = []
    answers = installed.api.refuses

    def noted(method, path, body):
        if path == REVIEWS:
            asked.append(body)
        return answers(method, path, body)

    installed.api.refuses = noted
    assert installed.found()["GK13"][0] == "ok"
    assert {(one["apiVersion"], one["kind"]) for one in asked} == {("authorization.k8s.io/v1", "SubjectAccessReview")}
    for account in (PLUGIN, SCHEDULER):
        of_account = [one["spec"] for one in asked if one["spec"]["user"].endswith(f":{account}")]
        assert len(of_account) == sum(len(verbs.split()) for verbs in RIGHTS[account].values())
        assert all(
            one["user"] == f"system:serviceaccount:gpushare:{account}"
            and one["groups"] == ["system:serviceaccounts", "system:serviceaccounts:gpushare", "system:authenticated"]
            for one in of_account
        )
    wanted = [one["spec"]["resourceAttributes"] for one in asked]
    for attributes in (
        {"verb": "get", "group": "", "resource": "nodes"},
        {"verb": "create", "group": "", "resource": "pods", "subresource": "binding"},
        {"verb": "watch", "group": "", "resource": "persistentvolumes"},
        {"verb": "watch", "group": "storage.k8s.io", "resource": "storageclasses"},
        {"verb": "create", "group": "resource.k8s.io", "resource": "resourceslices"},
        {"verb": "patch", "group": "resource.k8s.io", "resource": "resourceclaims", "subresource": "status"},
        {"verb": "patch", "group": "gpushare.dev", "resource": "queues", "subresource": "status"},
    ):
        assert attributes in wanted


def test_queues_that_all_may_use_are_named(installed):
    state, detail = installed.found()["GK10"]
    assert (state, detail) == ("ok", "1 queue, all accepted; unless open_queues is false, all may use vision")
    path = f"{QUEUES}/vision"
    installed.api.change(path, lambda one: one.setdefault("spec", {}).update(namespaces=["team-a"]))
    assert installed.found()["GK10"] == ("ok", "1 queue, all accepted")


@pytest.mark.parametrize("status", [{}, {"allowed": False}, {"allowed": "true"}, {"allowed": 1}, None])
def test_only_a_plain_yes_is_a_right(installed, status):
    answers = installed.api.refuses

    def says(method, path, body):
        return (201, {"status": status}) if path == REVIEWS else answers(method, path, body)

    installed.api.refuses = says
    state, detail = installed.found()["GK13"]
    assert state == "fail" and detail.startswith(f"{PLUGIN}: get nodes; {PLUGIN}: get resource.k8s.io/resourceslices;")
    count = sum(len(verbs.split()) for account in (PLUGIN, SCHEDULER) for verbs in RIGHTS[account].values())
    assert detail.endswith(f" and {count - 4} more")


def granted(path: str, *roles: str) -> set[tuple[str, str]]:
    """What these roles of that file may do."""
    objects = [one for one in yaml.safe_load_all((ROOT / "deploy" / path).read_text()) if one["kind"] == "ClusterRole"]
    return {
        (verb, f"{group}/{what}" if group else what)
        for one in objects
        if not roles or one["metadata"]["name"] in roles
        for rule in one["rules"]
        for group in rule["apiGroups"]
        for what in rule["resources"]
        for verb in rule["verbs"]
        if not what.endswith(("/driver", "/binding")) or not group  # of Kubernetes 1.36
    }


def needed(rights: dict, account: str) -> set[tuple[str, str]]:
    return {(verb, what) for what, verbs in rights[account].items() for verb in verbs.split()}


def test_the_rights_are_those_that_deploy_gives():
    for account, path in ((PLUGIN, "rbac.yaml"), (SCHEDULER, "scheduler/rbac.yaml")):
        assert granted(f"kubernetes/{path}") == needed(RIGHTS, account)


def test_the_rights_are_those_that_deploy_gives_for_an_older_server():
    own = "kubernetes-1.33/rbac.yaml"
    plugin = granted(own, "gpushare-dra-annotations") | {("get", "nodes")}
    assert plugin == needed(OF_ANNOTATIONS, PLUGIN)
    scheduler = granted("kubernetes/scheduler/rbac.yaml") | granted(own, "gpushare-nodegpus")
    of_claims = {one for one in scheduler if one[1].startswith("resource.k8s.io/")}
    assert scheduler - of_claims - {("get", "gpushare.dev/nodegpus")} == needed(OF_ANNOTATIONS, SCHEDULER)


@pytest.mark.parametrize("seed", range(40))
def test_no_object_is_too_odd(installed, seed):
    chance = random.Random(seed)
    break_all(installed)
    answers = installed.api.refuses

    def refuses(method, path, body):
        told = answers(method, path, body)
        return told if told is None else (told[0], odd(told[1], chance))

    installed.api.refuses = refuses
    for path, one in list(installed.api.objects.items()):
        changed = odd(one, chance)
        installed.api.objects[path] = changed if isinstance(changed, dict) else {"a": changed}
    installed.api.handle = without_names(installed.api.handle)
    failed = {id: text for id, (_, text) in installed.found().items() if "check itself failed" in text}
    assert not failed


def without_names(handle):
    """The stand-in itself may not be able to answer with odd objects: then it is an error of the server."""

    def handled(*arguments):
        try:
            return handle(*arguments)
        except (KeyError, TypeError, AttributeError, ValueError):
            return 500, {"message": "odd"}

    return handled
