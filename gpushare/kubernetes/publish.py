"""What the cluster is told: the node's GPUs (a ResourceSlice), and how each claim uses its own (`status.devices`); and
what NVIDIA's driver has told it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from gpushare.api import Gpu, Job
from gpushare.errors import GpushareError, NoSuchJob
from gpushare.kubernetes import fields, stored
from gpushare.kubernetes.amounts import written
from gpushare.kubernetes.events import now
from gpushare.kubernetes.names import API, ATTACHES, DRIVER, NODE_GPUS, NVIDIA, attaches, device_of
from gpushare.kubernetes.server import MERGE, Answer, Server
from gpushare.kubernetes.slices import resource_slice
from gpushare.quantity import format_bytes

__all__ = ["CLAIMS", "Publisher", "node_gpus", "of_nvidia", "use_of"]

log = logging.getLogger(__name__)
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims/{}"
NODES = "/api/v1/nodes"
ALLOCATION = "status.allocation"
"""An API server names this field if it takes the allocation that it has stored itself for a change (stored.py)."""
FORBIDDEN = 403
COARSE = 64 * 2**20
"""Bytes: what claims use is shown in multiples of this, so that small changes write nothing."""


class Publisher:
    """Of one node."""

    def __init__(self, server: Server, node: str, *, claims: bool = True) -> None:
        """`claims`: the API server has them. Else nodes publish objects of ours, which tell of claims, too."""
        self._server = server
        self._node = node
        self._claims = claims
        self._shared = True
        self._attach = False
        self._owner: list[dict[str, Any]] = []
        self._tells = True
        self._uses: list[dict[str, Any]] = []
        """Of claims that pods carry, since begin()."""

    def publish(self, gpus: Sequence[Gpu], driver: str) -> None:
        """Make the object as it should be. Raises GpushareError."""
        if not self._owner:
            node = self._server.ask("GET", f"{NODES}/{self._node}")
            self._owner = [{"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": node["metadata"]["uid"]}]
            self._attach = fields.named(node, "labels", ATTACHES) == "true"
        if self._claims:
            wanted = resource_slice(self._node, gpus, driver, shared=self._shared, attach=self._attach)
        else:
            wanted = node_gpus(self._node, gpus, driver)
        wanted["metadata"]["ownerReferences"] = self._owner
        answer = self._write(wanted)
        devices = answer["spec"].get("devices") or ()
        if self._claims and self._shared and any("allowMultipleAllocations" not in one for one in devices):
            log.warning("the API server takes no parts of devices (DRAConsumableCapacity): each GPU goes to one claim")
            self._shared = False
            self.publish(gpus, driver)

    def _write(self, wanted: dict[str, Any]) -> dict[str, Any]:
        collection = SLICES if self._claims else NODE_GPUS
        path = f"{collection}/{wanted['metadata']['name']}"
        try:
            found = self._server.ask("GET", path)
        except NoSuchJob:
            return self._server.ask("POST", collection, wanted)
        if _same(found["spec"].get("devices") or (), wanted["spec"]["devices"]):
            return found
        pool = {**wanted["spec"]["pool"], "generation": found["spec"]["pool"]["generation"] + 1}
        meta = {**wanted["metadata"], "resourceVersion": found["metadata"]["resourceVersion"]}
        return self._server.ask("PUT", path, {**wanted, "metadata": meta, "spec": {**wanted["spec"], "pool": pool}})

    def tell(self, claim: Mapping[str, Any], job: Job) -> None:
        """How it uses its GPUs, if the claim does not say so yet; of a pod that carries it, end() says so. Raises
        GpushareError."""
        meta, wanted = claim["metadata"], use_of(claim, self._node, job)
        if not self._claims:
            pod = {name: meta[name] for name in ("namespace", "name", "uid")}
            self._uses += [{"pod": pod, **one} for one in wanted]
            return
        if not self._tells or all(one in _without_times(claim) for one in wanted):
            return
        at = now()
        said = [{**one, "conditions": [{**one["conditions"][0], "lastTransitionTime": at}]} for one in wanted]
        status = {
            "apiVersion": claim["apiVersion"],
            "kind": "ResourceClaim",
            "metadata": {"name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"]},
            "status": {"devices": said},
        }
        answer = self._write_status(CLAIMS.format(meta["namespace"], meta["name"]), status)
        if not _without_times(answer):
            log.warning("the API server keeps nothing about the use of devices (DRAResourceClaimDeviceStatus)")
            self._tells = False

    def begin(self) -> None:
        """All claims of the node will be told of."""
        self._uses = []

    def end(self) -> None:
        """They were. Raises GpushareError."""
        if self._claims:
            return
        path = f"{NODE_GPUS}/{self._node}"
        try:
            found = self._server.ask("GET", path)
        except NoSuchJob:
            return  # publish() makes it
        said = sorted(self._uses, key=lambda one: (one["pod"]["namespace"], one["pod"]["name"], one["device"]))
        if said != fields.objects(found, "status/uses"):
            self._server.ask("PATCH", f"{path}/status", {"status": {"uses": said}}, MERGE)

    def _write_status(self, path: str, status: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return self._server.apply(f"{path}/status", status)
        except Answer as error:
            if ALLOCATION not in error.message:
                raise
        try:
            data = stored.with_devices(self._server.stored(path), DRIVER, status["status"]["devices"])
        except ValueError as error:
            raise GpushareError(f"claim {path}: {error}") from None
        return self._server.ask("PUT", f"{path}/status", data, stored.PROTOBUF)


def node_gpus(node: str, gpus: Sequence[Gpu], driver: str) -> dict[str, Any]:
    """The same as a ResourceSlice says, as an object of ours: for a server that has none. Pure."""
    made = resource_slice(node, gpus, driver)
    return {**made, "apiVersion": API, "kind": "NodeGpus", "metadata": {"name": node}}


def of_nvidia(server: Server, node: str) -> list[Mapping[str, Any]]:
    """The ResourceSlices of NVIDIA's driver on this node. Raises GpushareError."""
    try:
        answer = server.ask("GET", f"{SLICES}?fieldSelector=spec.driver%3D{NVIDIA}%2Cspec.nodeName%3D{node}")
    except Answer as error:
        if error.status == FORBIDDEN:
            error.hint = "kubectl apply -k deploy/kubernetes/attach gives it this right"
        raise
    return fields.objects(answer, "items")


def use_of(claim: Mapping[str, Any], node: str, job: Job) -> list[dict[str, Any]]:
    """The claim's `status.devices` of this driver, without times. Pure."""
    results = ((claim.get("status") or {}).get("allocation") or {}).get("devices", {}).get("results") or ()
    gpus: dict[str, Mapping[str, Any]] = {device_of(gpu["uuid"]): gpu for gpu in job["gpus"]}
    every = {name: sum(gpu[name] for gpu in gpus.values()) for name in ("usage", "loan", "request", "limit")}
    found = []
    for one in results:
        gpu = every if attaches(one["device"]) else gpus.get(one["device"])
        if (one["driver"], one["pool"]) != (DRIVER, node) or gpu is None:
            continue
        usage, loan = (-(-gpu[key] // COARSE) * COARSE for key in ("usage", "loan"))
        text = f"uses {format_bytes(usage)} of {format_bytes(gpu['request'])} requested"
        if loan:
            text += f"; {format_bytes(loan)} of that are on loan"
        if loan and job["state"] in ("asked_back", "trimming"):
            text += " and asked back by their owner"
        share = {"shareID": one["shareID"]} if one.get("shareID") else {}
        data = {name: written(amount) for name, amount in (("usage", usage), ("loan", loan))}
        data |= {"request": written(gpu["request"]), "limit": written(gpu["limit"]), "state": job["state"]}
        condition = {
            "type": "Borrowing",
            "status": "True" if loan else "False",
            "reason": "".join(word.title() for word in job["state"].split("_")),
            "message": text,
        }
        found.append(
            {
                **{name: one[name] for name in ("driver", "pool", "device")},
                **share,
                "data": {"apiVersion": API, "kind": "Use", **data},
                "conditions": [condition],
            }
        )
    return found


def _without_times(claim: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What its status says already."""
    return [
        {**one, "conditions": [{k: v for k, v in c.items() if k != "lastTransitionTime"} for c in one["conditions"]]}
        for one in (claim.get("status") or {}).get("devices") or ()
        if one.get("driver") == DRIVER and one.get("conditions")
    ]


def _same(found: Sequence[Mapping[str, Any]], wanted: Sequence[Mapping[str, Any]]) -> bool:
    """In all fields that this driver writes. The server adds others, such as the time of a taint."""
    return list(map(_said, found)) == list(map(_said, wanted))


def _said(device: Mapping[str, Any]) -> list[Any]:
    taints = [[taint.get(name) for name in ("key", "value", "effect")] for taint in device.get("taints") or ()]
    return [*(device.get(name) for name in ("name", "attributes", "capacity", "allowMultipleAllocations")), taints]
