"""Paths of the API server, and names that pods have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = [
    "CHECKPOINT",
    "CLAIM",
    "CLAIMS",
    "CLASSES",
    "DISK",
    "DISKS",
    "DISK_CLAIM",
    "DISK_CLAIMS",
    "DISK_CLASSES",
    "GROUP",
    "LEASES",
    "LEAST",
    "MARK",
    "NAMESPACES",
    "NODES",
    "POD",
    "PODS",
    "POD_GROUPS",
    "PREEMPTIBLE",
    "QUEUE",
    "QUEUES",
    "SIZE",
    "SLICES",
    "WORKLOADS",
    "Key",
    "Thing",
    "key_of",
    "of_pod",
]

Thing = Mapping[str, Any]
"""An object of the API server."""
Key = tuple[str, str]
"""Its namespace ("" if it has none) and name."""

PODS = "/api/v1/pods"
POD = "/api/v1/namespaces/{}/pods/{}"
NODES = "/api/v1/nodes"
NAMESPACES = "/api/v1/namespaces"
CLAIMS = "/apis/resource.k8s.io/v1/resourceclaims"
CLAIM = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims/{}"
CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
DISK_CLAIM = "/api/v1/namespaces/{}/persistentvolumeclaims/{}"
DISK_CLAIMS = "/api/v1/persistentvolumeclaims"
DISK = "/api/v1/persistentvolumes/{1}"
"""They have no namespace: of a key, the name is enough."""
DISKS = "/api/v1/persistentvolumes"
DISK_CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
QUEUES = "/apis/gpushare.dev/v1/queues"
POD_GROUPS = ("/apis/scheduling.k8s.io/v1alpha3/podgroups", "/apis/scheduling.k8s.io/v1alpha2/podgroups")
"""Of Kubernetes 1.37 and 1.36: a server has one of them, where it has the feature GenericWorkload at all."""
WORKLOADS = "/apis/scheduling.k8s.io/v1alpha1/workloads"
"""Of 1.35, the same. Later ones have their policy in PodGroups."""
LEASES = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"

MARK = "gpushare.dev/start"
"""Annotation: what was decided about the pod (mark.py). Only the engine writes it."""
QUEUE = "gpushare.dev/queue"
"""Label: whose share it uses. Without it the queue is called as its namespace."""
GROUP = "gpushare.dev/pod-group"
"""Label: pods of one namespace that start together."""
SIZE = "gpushare.dev/pod-group-size"
"""Annotation of such pods: how many they are."""
LEAST = "gpushare.dev/pod-group-min"
"""Annotation of such pods: with how many they start, if not with all. The others come and go as there is room."""
PREEMPTIBLE = "gpushare.dev/preemptible"
"""Annotation: "false" for pods that are not evicted, and start only within their queue's quota."""
CHECKPOINT = "gpushare.dev/checkpoint-every"
"""Annotation: time between checkpoints, as in 10m. An eviction loses the work since the last."""


def key_of(thing: Thing) -> Key:
    meta = thing["metadata"]
    return meta.get("namespace", ""), meta["name"]


def of_pod(pod: Thing, what: str, name: str) -> str:
    """One of its labels or annotations; "" if it has none."""
    return str((pod["metadata"].get(what) or {}).get(name, ""))
