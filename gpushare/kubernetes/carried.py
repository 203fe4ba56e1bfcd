"""A pod's claim where the API server has none (before Kubernetes 1.34): the pod's annotations carry it. Pure.

    gpushare.dev/claim       what it asks for, as the webhook writes it: {"memory": "8Gi", "count": 2, "limit": "24Gi"}
    gpushare.dev/allocation  what it has: `status.allocation` of the claim
    gpushare.dev/gpus        the UUIDs of these GPUs; with gpushare.dev/request and gpushare.dev/limit of each of them
                             for variables of its container

The scheduler alone writes all but the first. What reads claims reads these as ResourceClaims: of_pod() makes one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from gpushare import quantity
from gpushare.errors import UsageError
from gpushare.kubernetes import claim as claims
from gpushare.kubernetes import fields
from gpushare.kubernetes.amounts import written
from gpushare.kubernetes.names import API, BUDGET, DRIVER, MEMORY, OWN_CLASS
from gpushare.quantity import Quantity

__all__ = [
    "CLAIM",
    "GATES",
    "GPUS",
    "LIMIT",
    "REQUEST",
    "VOLUME",
    "WRITTEN",
    "class_of",
    "gate_of",
    "given",
    "is_carried",
    "of_pod",
    "reading",
    "taken",
]

Thing = Mapping[str, Any]
CLAIM = f"{DRIVER}/claim"
ALLOCATION = f"{DRIVER}/allocation"
GPUS, REQUEST, LIMIT = f"{DRIVER}/gpus", f"{DRIVER}/request", f"{DRIVER}/limit"
WRITTEN = (ALLOCATION, GPUS, REQUEST, LIMIT)
"""By the scheduler."""
CARRIER = "Pod"
"""The kind of such a claim's object."""
NAME = "gpu"
"""Of its one request."""
MOST_GPUS = 32
"""Devices that one claim may have in Kubernetes."""
GATES = "/var/lib/gpushare-dra/pods"
"""On nodes. A folder for each pod, with a name that the webhook has made up, and the library in it: when the pod's
placement is there. The kubelet starts no container before that, because the pod's volume names this file."""
VOLUME = "gpushare"
"""Of the pod, which is that file. Others of the pod may be anything: its user has written them."""
GATE = re.compile(re.escape(GATES) + r"/([0-9a-f]{32})/libgpushare\.so")
OVER = ("Succeeded", "Failed")


def class_of(budget: Mapping[str, Any]) -> dict[tuple[str, str], Thing]:
    """The one class that there is: a server without claims has none. `budget`: what an administrator says."""
    spec: dict[str, Any] = {"selectors": [{"cel": {"expression": OWN_CLASS}}]}
    if budget:
        spec["config"] = [{"opaque": _block(budget)}]
    return {("", DRIVER): {"metadata": {"name": DRIVER}, "spec": spec}}


def is_carried(claim: Thing) -> bool:
    return claim.get("kind") == CARRIER


def reading(pod: Thing) -> dict[str, Any] | None:
    """What its annotation says; None: it has none. Raises UsageError for one that cannot be read."""
    text = fields.named(pod, "annotations", CLAIM)
    if not text:
        return None
    said = fields.json_object(text)
    if said is None:
        raise UsageError(f"annotation {CLAIM}: it is not an object of JSON", hint='write {"memory": "8Gi"}')
    count = said.get("count", 1)
    if type(count) is not int or not 1 <= count <= MOST_GPUS:
        raise UsageError(f"annotation {CLAIM}: count is not a number of GPUs from 1 to {MOST_GPUS}")
    return said


def of_pod(pod: Thing) -> dict[str, Any] | None:
    """Its claim as an object, with the pod's own name and uid; None: it carries none. Of an annotation that cannot be
    read the object has no requests. Its user may remove what it asks for, and not what it has."""
    asked = fields.named(pod, "annotations", CLAIM)
    if not asked and not fields.named(pod, "annotations", ALLOCATION):
        return None
    meta = pod["metadata"]
    try:
        spec = {"devices": _devices(reading(pod) or {}) if asked else {"requests": []}}
    except UsageError:
        spec = {"devices": {"requests": []}}
    head = {name: meta[name] for name in ("name", "namespace", "uid", "resourceVersion") if name in meta}
    claim = {"apiVersion": "v1", "kind": CARRIER, "metadata": head, "spec": spec, "status": _status(pod)}
    return {**claim, "gate": gate_of(pod)}


def given(claim: Thing, allocation: Thing, node: str, amount: int, uuids: Sequence[str]) -> dict[str, str]:
    """Annotations that give the pod this: `amount` bytes of each of these GPUs. Raises UsageError."""
    read = claims.read({**claim, "status": {"allocation": allocation}}, node)
    budget = quantity.Budget.of(Quantity.parse(written(amount)), read.budget.limit)
    text = json.dumps(allocation, separators=(",", ":"), sort_keys=True)
    values = text, ",".join(uuids), budget.request.canonical(), budget.limit.canonical()
    return dict(zip(WRITTEN, values, strict=True))


def taken() -> dict[str, None]:
    """Annotations that take it back."""
    return dict.fromkeys(WRITTEN)


def gate_of(pod: Thing) -> str | None:
    """The name of its folder among GATES; None: the webhook has not prepared it."""
    own = (one for one in fields.objects(pod, "spec/volumes") if fields.text(one, "name") == VOLUME)
    found = GATE.fullmatch(fields.text(next(own, None), "hostPath/path"))
    return found[1] if found else None


def _devices(said: Mapping[str, Any]) -> dict[str, Any]:
    """As `spec.devices` of a claim says the same."""
    rest = dict(said)
    exactly: dict[str, Any] = {"deviceClassName": DRIVER, "count": rest.pop("count", 1)}
    memory = rest.pop("memory", None)
    if memory is not None:
        exactly["capacity"] = {"requests": {MEMORY: memory}}
    devices: dict[str, Any] = {"requests": [{"name": NAME, "exactly": exactly}]}
    if rest:
        devices["config"] = [{"requests": [NAME], "opaque": _block(rest)}]
    return devices


def _block(budget: Mapping[str, Any]) -> dict[str, Any]:
    return {"driver": DRIVER, "parameters": {"apiVersion": API, "kind": BUDGET, **budget}}


def _status(pod: Thing) -> dict[str, Any]:
    """A pod that is over has nothing any more: the kubelet says so when its last container has ended."""
    if fields.text(pod, "status/phase") in OVER:
        return {}
    allocation = fields.json_object(fields.named(pod, "annotations", ALLOCATION))
    if allocation is None:
        return {}
    meta = pod["metadata"]
    return {
        "allocation": allocation,
        "reservedFor": [{"resource": "pods", "name": meta["name"], "uid": meta["uid"]}],
    }
