"""Checks of an installation on Kubernetes: server, nodes, plugin, scheduler, queues. They have the user's own rights.

Objects may be of anybody: what cannot be read counts as absent (gpushare/kubernetes/fields.py).
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gpushare.doctor.finding import Check, Finding
from gpushare.errors import DaemonUnreachable, GpushareError, NoSuchJob, NotPermitted
from gpushare.kubernetes import fields
from gpushare.kubernetes.names import ATTACHED, ATTACHES, NODE_GPUS, NVIDIA, OWN_CLASS

if TYPE_CHECKING:
    from gpushare.kubernetes.reader import Reader

__all__ = ["CHECKS", "RIGHTS", "Cluster"]

NAMESPACE = "gpushare"
"""Where deploy/kubernetes puts everything."""
DRIVER = "gpushare.dev"
NODE_LABEL = f"{DRIVER}/node"
PLUGIN, SCHEDULER = "gpushare-dra", "gpushare-scheduler"
ATTACH_CLASS = f"attach.{DRIVER}"
SLICES = "resource.k8s.io/resourceslices"
RECENT = 3600.0
"""Seconds: events before that say nothing about now."""
MOST_NAMED = 4
ATTACH_HINT = f"look at the log of NVIDIA's driver there, or take the label {ATTACHES} away and restart {PLUGIN}"
APPLY = "kubectl apply -k deploy/kubernetes"
APPLY_ATTACH = "kubectl apply -k deploy/kubernetes/attach"
APPLY_SCHEDULER = "kubectl apply -k deploy/kubernetes/scheduler"
APPLY_OLDER = "kubectl apply -k deploy/kubernetes-1.33"
"""All of it, for servers without claims."""
GPUS_OF_NODES = "gpushare.dev/nodegpus"
CLAIMS = "resource.k8s.io/resourceclaims"
RIGHTS: Mapping[str, Mapping[str, str]] = {
    PLUGIN: {
        "nodes": "get",
        SLICES: "get create update",
        CLAIMS: "get",
        f"{CLAIMS}/status": "patch update",
    },
    SCHEDULER: {
        "nodes": "list watch",
        "namespaces": "list watch",
        "pods": "get list watch patch",
        "pods/status": "patch",
        "pods/binding": "create",
        "pods/eviction": "create",
        "persistentvolumes": "get list watch patch",
        "persistentvolumeclaims": "list watch patch",
        "storage.k8s.io/storageclasses": "list watch",
        "events": "create",
        SLICES: "list watch",
        "resource.k8s.io/deviceclasses": "list watch",
        CLAIMS: "get list watch patch update",
        f"{CLAIMS}/status": "patch",
        "scheduling.k8s.io/podgroups": "list watch",
        "scheduling.k8s.io/workloads": "list watch",
        "gpushare.dev/queues": "list watch",
        "gpushare.dev/queues/status": "patch",
    },
}
"""What each has to be allowed in all namespaces: verbs by resource, with its group before it."""
OF_ANNOTATIONS: Mapping[str, Mapping[str, str]] = {
    PLUGIN: {
        **{"nodes": "get", "pods": "list watch", "events": "create"},
        **{GPUS_OF_NODES: "get create update", f"{GPUS_OF_NODES}/status": "patch"},
    },
    SCHEDULER: {
        **{what: verbs for what, verbs in RIGHTS[SCHEDULER].items() if not what.startswith("resource.k8s.io/")},
        GPUS_OF_NODES: "list watch",
    },
}
"""The same where annotations of pods carry claims."""

Thing = Mapping[str, Any]


@dataclass
class Cluster:
    """What the checks look at, asked once. Each property may raise GpushareError."""

    _reader: Reader
    silent: str = ""
    """Why the API server does not answer; then nothing more is asked."""

    @property
    def reader(self) -> Reader:
        if self.silent:
            raise DaemonUnreachable("the API server does not answer")
        return self._reader

    @cached_property
    def version(self) -> str:
        return fields.text(self.reader.ask("/version"), "gitVersion")

    @cached_property
    def served(self) -> Thing | None:
        """What it serves of resource.k8s.io/v1; None: nothing, and annotations of pods carry claims."""
        try:
            return self.reader.ask("/apis/resource.k8s.io/v1")
        except NoSuchJob:
            return None

    @property
    def has_claims(self) -> bool:
        return self.served is not None

    @property
    def apply(self) -> str:
        return APPLY if self.has_claims else APPLY_OLDER

    @cached_property
    def nodes(self) -> dict[str, Thing]:
        """Nodes with the label, by name."""
        every = self.reader.all("/api/v1/nodes")
        return {_name(one): one for one in every if fields.named(one, "labels", NODE_LABEL) == "true"}

    @cached_property
    def slices(self) -> dict[str, list[Thing]]:
        """Slices of this driver, by node; of several generations the newest."""
        found: dict[str, list[Thing]] = {}
        for one in self._every_slice:
            if fields.text(one, "spec/driver") == DRIVER:
                found.setdefault(fields.text(one, "spec/nodeName"), []).append(one)
        newest = {node: max(map(_generation, those)) for node, those in found.items()}
        return {node: [one for one in those if _generation(one) == newest[node]] for node, those in found.items()}

    @property
    def devices(self) -> list[tuple[str, Thing]]:
        """All GPUs, with their nodes."""
        return [
            (node, device)
            for node, those in sorted(self.slices.items())
            for device in _devices(those)
            if not _attaches(device)
        ]

    @property
    def attaching(self) -> list[str]:
        """Nodes whose GPUs NVIDIA's driver publishes; none where who asks may not know."""
        with contextlib.suppress(NotPermitted):
            return [node for node, those in sorted(self.slices.items()) if any(map(_attaches, _devices(those)))]
        return []

    @property
    def of_nvidia(self) -> set[str]:
        """Nodes on which NVIDIA's DRA driver publishes GPUs."""
        those = [one for one in self._every_slice if fields.text(one, "spec/driver") == NVIDIA]
        return {fields.text(one, "spec/nodeName") for one in those if fields.objects(one, "spec/devices")}

    @cached_property
    def gpus_of_nodes(self) -> list[Thing] | None:
        """What nodes publish where annotations of pods carry claims; None: the server does not know the kind."""
        return self._all(NODE_GPUS)

    @cached_property
    def _every_slice(self) -> list[Thing]:
        those = self._all("/apis/resource.k8s.io/v1/resourceslices") if self.has_claims else self.gpus_of_nodes
        return those or []

    @cached_property
    def pods(self) -> list[Thing]:
        """The pods of the installation."""
        return self.reader.all(f"/api/v1/namespaces/{NAMESPACE}/pods")

    @cached_property
    def lease(self) -> Thing | None:
        try:
            return self.reader.ask(f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{SCHEDULER}")
        except NoSuchJob:
            return None

    @cached_property
    def queues(self) -> list[Thing] | None:
        """All queues; None: the server does not know the kind."""
        return self._all("/apis/gpushare.dev/v1/queues")

    @property
    def has_scheduler(self) -> bool:
        """Whether deploy/kubernetes/scheduler is applied, or runs elsewhere."""
        return self.lease is not None or self.queues is not None

    def _all(self, path: str) -> list[Thing] | None:
        from gpushare.kubernetes.reader import NotServed

        try:
            return self.reader.all(path)
        except NotServed:
            return None

    def of(self, app: str) -> list[Thing]:
        return [one for one in self.pods if fields.named(one, "labels", "app") == app]

    def now(self) -> float:
        """The time by the API server's clock."""
        return time.time() + self.reader.ahead


# ---- the server ----------------------------------------------------------------------------------------


def check_server(cluster: Cluster) -> Finding:
    try:
        version = cluster.version
    except NotPermitted:
        raise
    except GpushareError as error:
        cluster.silent = error.message
        return Finding("fail", error.message, "see that `kubectl get nodes` answers; --kubeconfig and --context choose")
    found = re.match(r"v?(\d+)\.(\d+)", version)
    if found is None:
        return Finding("warn", f"it does not say its version: {version!r}")
    return Finding("ok", f"Kubernetes {version}")


def check_claims(cluster: Cluster) -> Finding:
    if cluster.served is None:
        if cluster.gpus_of_nodes is None:
            return Finding("fail", "resource.k8s.io/v1 is not served, nor is the kind NodeGpus", fix=(APPLY_OLDER,))
        return Finding("ok", "annotations of pods carry them: resource.k8s.io/v1 is not served")
    there = {_name_of(one) for one in fields.objects(cluster.served, "resources")}
    lacking = {"resourceclaims", "resourceslices", "deviceclasses"} - there
    if lacking:
        return Finding("fail", f"resource.k8s.io/v1 lacks {_some(lacking)}")
    return Finding("ok", "resource.k8s.io/v1 is served")


def check_parts(cluster: Cluster) -> Finding:
    """The server drops the field where the feature is off, so what the plugin has written tells."""
    if not cluster.has_claims:
        return Finding("skip", "annotations of pods carry claims")
    if not cluster.devices:
        return Finding("skip", "no GPU is published yet")
    whole = sum(1 for _, one in cluster.devices if one.get("allowMultipleAllocations") is not True)
    if whole:
        return Finding("warn", f"{whole} of {len(cluster.devices)} GPUs go to one claim as a whole")
    return Finding("ok", "claims may have parts of GPUs")


def check_class(cluster: Cluster) -> Finding:
    if not cluster.has_claims:
        return Finding("skip", "annotations of pods carry claims, and there are no classes")
    try:
        found = cluster.reader.ask(f"/apis/resource.k8s.io/v1/deviceclasses/{DRIVER}")
    except NoSuchJob:
        return Finding("fail", f"there is no DeviceClass {DRIVER}", fix=(APPLY,))
    said = [fields.text(one, "cel/expression").strip() for one in fields.objects(found, "spec/selectors")]
    if said != [OWN_CLASS]:
        return Finding("warn", f"DeviceClass {DRIVER} selects {_some(said) or 'all devices'}", fix=(APPLY,))
    if cluster.attaching:
        try:
            cluster.reader.ask(f"/apis/resource.k8s.io/v1/deviceclasses/{ATTACH_CLASS}")
        except NoSuchJob:
            return Finding("fail", f"there is no DeviceClass {ATTACH_CLASS}", fix=(APPLY_ATTACH,))
    return Finding("ok", f"DeviceClass {DRIVER}" + (f", {ATTACH_CLASS}" if cluster.attaching else ""))


# ---- nodes ---------------------------------------------------------------------------------------------


def check_nodes(cluster: Cluster) -> Finding:
    if not cluster.nodes:
        fix = (f"kubectl label node NAME {NODE_LABEL}=true",)
        return Finding("fail", f"no node has the label {NODE_LABEL}=true", fix=fix)
    away = [name for name, one in cluster.nodes.items() if not _is_true(one, "Ready")]
    if away:
        return Finding("warn", f"not ready: {_some(away)}", "`kubectl describe node NAME` says why")
    return Finding("ok", f"{_count(len(cluster.nodes), 'node')} with the label {NODE_LABEL}=true")


def check_plugin(cluster: Cluster) -> Finding:
    if not cluster.nodes:
        return Finding("skip", "no node has the label")
    ready = {fields.text(one, "spec/nodeName") for one in cluster.of(PLUGIN) if _is_true(one, "Ready")}
    lacking = sorted(cluster.nodes.keys() - ready)
    if not lacking:
        return Finding("ok", f"{PLUGIN} runs on {_count(len(cluster.nodes), 'node')}")
    services = [name for name in lacking if name in cluster.slices]
    silent = [name for name in lacking if name not in cluster.slices]
    if not silent:
        return Finding("ok", f"{PLUGIN} has no pod on {_some(services)}: it runs there as a service, or did")
    hint = f"`kubectl -n {NAMESPACE} logs -l app={PLUGIN}` says why; the node's gpushared must run, too"
    return Finding(
        "fail", f"{PLUGIN} does not run on {_some(silent)}", hint, () if cluster.of(PLUGIN) else (cluster.apply,)
    )


def check_slices(cluster: Cluster) -> Finding:
    if not cluster.nodes:
        return Finding("skip", "no node has the label")
    lacking = [name for name in cluster.nodes if name not in cluster.slices]
    if lacking:
        return Finding("fail", f"no GPU is published by {_some(lacking)}")
    wanted = {node: fields.number(those[0], "spec/pool/resourceSliceCount") for node, those in cluster.slices.items()}
    partly = [node for node, those in cluster.slices.items() if len(those) < wanted[node]]
    if partly:
        return Finding("warn", f"some of the slices are missing: {_some(partly)}")
    having, attaching = {node for node, _ in cluster.devices}, cluster.attaching
    empty = cluster.slices.keys() - having.union(attaching)
    if empty:
        return Finding("warn", f"no GPU is in the slices of {_some(empty)}")
    twice = having & cluster.of_nvidia
    if twice:
        hint = f"one driver has to publish them: docs/kubernetes.md says what the label {ATTACHES}=true of a node does"
        return Finding("warn", f"both {DRIVER} and {NVIDIA} publish the GPUs of {_some(twice)}", hint)
    alone = [node for node in attaching if node not in cluster.of_nvidia]
    if alone:
        return Finding("warn", f"{NVIDIA} publishes no GPU that {_some(alone)} could attach to", ATTACH_HINT)
    text = f"{_count(len(cluster.devices), 'GPU')} on {_count(len(having), 'node')}"
    also = f"; {_some(attaching)}: {NVIDIA}'s" if attaching else ""
    return Finding("ok", text + also)


def check_health(cluster: Cluster) -> Finding:
    if not cluster.devices:
        return Finding("skip", "no GPU is published yet")
    sick = []
    for node, one in cluster.devices:
        taints = [fields.text(taint, "value") or fields.text(taint, "key") for taint in fields.objects(one, "taints")]
        if taints:
            sick.append(f"{node} GPU {fields.text(one, 'attributes/index/int') or _name_of(one)}: {_some(taints)}")
    if sick:
        return Finding("warn", "; ".join(sick[:MOST_NAMED]) + _more(sick))
    return Finding("ok", "no GPU has a taint")


# ---- the scheduler -------------------------------------------------------------------------------------


def check_scheduler(cluster: Cluster) -> Finding:
    lease = cluster.lease
    if not cluster.has_scheduler:
        return Finding("skip", "it is not set up: another scheduler places the pods")
    if lease is None:
        return Finding("fail", f"no lease {NAMESPACE}/{SCHEDULER}: none has led yet")
    holder, renewed = fields.text(lease, "spec/holderIdentity"), _moment(fields.text(lease, "spec/renewTime"))
    if not holder or renewed is None:
        return Finding("fail", "no scheduler leads")
    age, lasts = max(0.0, cluster.now() - renewed), fields.number(lease, "spec/leaseDurationSeconds")
    if age > max(lasts, 1):
        return Finding("fail", f"{holder.partition(':')[0]} led, and has been silent for {_lasted(age)}")
    return Finding("ok", f"{holder.partition(':')[0]} leads, and said so {_lasted(age)} ago")


def check_queues(cluster: Cluster) -> Finding:
    from gpushare.cluster.engines.kubernetes import views
    from gpushare.cluster.engines.kubernetes.queue_users import Users

    if cluster.queues is None:
        what = "the kind Queue of gpushare.dev/v1 is not served"
        return Finding("skip", what) if cluster.lease is None else Finding("warn", what, fix=(APPLY_SCHEDULER,))
    wrong = [one for one in views.queues(cluster.queues) if one.wrong]
    if wrong:
        told = [f"{one.name}: {one.wrong}" for one in wrong[:MOST_NAMED]]
        return Finding("warn", "; ".join(told) + _more(wrong))
    users = Users({fields.text(one, "metadata/name"): one for one in cluster.queues}, None)
    free = [name for name in sorted(users.queues) if not users.is_said(name)]
    whose = f"; unless open_queues is false, all may use {', '.join(free[:MOST_NAMED])}{_more(free)}" if free else ""
    return Finding("ok", f"{_count(len(cluster.queues), 'queue')}, all accepted{whose}")


def check_marks(cluster: Cluster) -> Finding:
    if not cluster.has_scheduler:
        return Finding("skip", "no scheduler of gpushare")
    base = "/apis/admissionregistration.k8s.io/v1"
    for kind in ("validatingadmissionpolicies", "validatingadmissionpolicybindings"):
        try:
            cluster.reader.ask(f"{base}/{kind}/gpushare-marks")
        except NoSuchJob:
            what = f"{kind} gpushare-marks is not there: users may write the scheduler's annotation"
            return Finding("warn", what, fix=(APPLY_SCHEDULER,))
    return Finding("ok", "only the scheduler writes its annotation")


def check_events(cluster: Cluster) -> Finding:
    """The kubelet says in events of a pod what it could not prepare; with the claim, the field and the cause."""
    recent: dict[str, str] = {}
    for one in cluster.reader.all("/api/v1/events"):
        message = fields.text(one, "message")
        at = _moment(fields.text(one, "lastTimestamp") or fields.text(one, "eventTime"))
        if one.get("type") != "Warning" or DRIVER not in message or at is None or at < cluster.now() - RECENT:
            continue
        who = f"{fields.text(one, 'involvedObject/namespace')}/{fields.text(one, 'involvedObject/name')}"
        recent[who] = " ".join(message.split())[:300]
    if not recent:
        return Finding("ok", f"no event of the last {_lasted(RECENT)} tells of a failure")
    (who, message), *_ = sorted(recent.items())
    return Finding("warn", f"{_count(len(recent), 'pod')} with failures, such as {who}: {message}")


def check_rights(cluster: Cluster) -> Finding:
    accounts = [PLUGIN, *([SCHEDULER] if cluster.has_scheduler else [])]
    lacking = []
    for account in accounts:
        rights = RIGHTS if cluster.has_claims else OF_ANNOTATIONS
        needed = [(verb, what) for what, verbs in rights[account].items() for verb in verbs.split()]
        needed += [("list", SLICES)] if account == PLUGIN and cluster.attaching else []
        lacking += [f"{account}: {verb} {what}" for verb, what in needed if not _may(cluster, account, verb, what)]
    if lacking and not cluster.has_claims:
        return Finding("fail", "; ".join(lacking[:MOST_NAMED]) + _more(lacking), fix=(APPLY_OLDER,))
    if lacking:
        fix = (
            APPLY,
            *([APPLY_ATTACH] if cluster.attaching else []),
            *([APPLY_SCHEDULER] if SCHEDULER in accounts else []),
        )
        return Finding("fail", "; ".join(lacking[:MOST_NAMED]) + _more(lacking), fix=fix)
    return Finding("ok", f"{' and '.join(accounts)} may do what they need to")


def _may(cluster: Cluster, account: str, verb: str, resource: str) -> bool:
    group, _, kind = resource.partition("/") if "." in resource.partition("/")[0] else ("", "", resource)
    kind, _, sub = kind.partition("/")
    asked = {"verb": verb, "group": group, "resource": kind, **({"subresource": sub} if sub else {})}
    user = f"system:serviceaccount:{NAMESPACE}:{account}"
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}", "system:authenticated"]
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "groups": groups, "resourceAttributes": asked},
    }
    answer = cluster.reader.ask("/apis/authorization.k8s.io/v1/subjectaccessreviews", body)
    return fields.part(answer, "status").get("allowed") is True


CHECKS = (
    Check("GK01", "API server", check_server, "see that `kubectl version` answers"),
    Check(
        "GK02",
        "claims",
        check_claims,
        "Kubernetes serves them from 1.34 on; on an older one annotations of pods carry them",
    ),
    Check(
        "GK03",
        "parts of GPUs",
        check_parts,
        "switch the feature gate DRAConsumableCapacity on, for the API server, the schedulers and the kubelets",
    ),
    Check("GK04", "device class", check_class, f"`{APPLY}` makes it"),
    Check("GK05", "nodes", check_nodes, "label the nodes whose GPUs are to be shared"),
    Check("GK06", "plugin", check_plugin, ""),
    Check("GK07", "published GPUs", check_slices, "the plugin publishes what the node's gpushared shows; see its log"),
    Check("GK08", "health of the GPUs", check_health, "`gpushare status` on the node says what is wrong"),
    Check(
        "GK09",
        "scheduler",
        check_scheduler,
        f"`kubectl -n {NAMESPACE} get pods` and its log say why; nothing starts and nothing is evicted meanwhile",
    ),
    Check("GK10", "queues", check_queues, "correct the objects; until then they are as before"),
    Check("GK11", "the scheduler's annotation", check_marks, "Kubernetes 1.30 and later keep it from users"),
    Check("GK12", "claims that failed", check_events, "the message says what to change; the kubelet tries again"),
    Check("GK13", "rights", check_rights, "apply the roles of deploy/kubernetes again"),
)


# ---- small things --------------------------------------------------------------------------------------


def _name(one: Thing) -> str:
    return fields.text(one, "metadata/name")


def _name_of(one: Thing) -> str:
    return fields.text(one, "name")


def _generation(one: Thing) -> int:
    return fields.number(one, "spec/pool/generation")


def _is_true(one: Thing, condition: str) -> bool:
    said = fields.objects(one, "status/conditions")
    return any(each.get("type") == condition and each.get("status") == "True" for each in said)


def _moment(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def _lasted(seconds: float) -> str:
    from gpushare.quantity import format_duration

    return format_duration(float(int(seconds)))


def _devices(slices: Sequence[Thing]) -> list[Thing]:
    return [device for one in slices for device in fields.objects(one, "spec/devices")]


def _attaches(device: Thing) -> bool:
    """It stands for GPUs of NVIDIA's driver."""
    return ATTACHED in fields.part(device, "attributes")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _some(names: Sequence[str] | set[str]) -> str:
    found = sorted(names)
    return ", ".join(found[:MOST_NAMED]) + _more(found)


def _more(found: Sequence[object]) -> str:
    return f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
