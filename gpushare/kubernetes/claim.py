"""An allocated ResourceClaim as a placement of the node daemon. Pure.

A claim is one job, with all its GPUs and all its containers. The request is what the allocation has booked of the
capacity `memory`: Kubernetes and the daemon then count the same. A job has the same request on each of its GPUs, so a
claim that booked different amounts is refused, and two claims are what it should be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpushare import quantity
from gpushare.api import Gpu
from gpushare.errors import GpushareError, UsageError
from gpushare.kubernetes import budget as budgets
from gpushare.kubernetes.amounts import parse, written
from gpushare.kubernetes.budget import Budget
from gpushare.kubernetes.names import DRIVER, MEMORY, NVIDIA, attaches, device_of
from gpushare.kubernetes.slices import STEP
from gpushare.quantity import Quantity

__all__ = ["Allocated", "Device", "Other", "body", "gpus_of", "read"]


@dataclass(frozen=True, slots=True)
class Device:
    """A device that the claim has a part of."""

    request: str
    """The name of the request in the claim, without that of the alternative that was taken."""
    pool: str
    name: str
    memory: int | None
    """Bytes that were booked; None: the whole device."""

    @property
    def attaches(self) -> bool:
        """It stands for devices of NVIDIA's driver in the same claim (attach.py)."""
        return attaches(self.name)


@dataclass(frozen=True, slots=True)
class Other:
    """A device that NVIDIA's driver has allocated in the same claim."""

    request: str
    pool: str
    name: str
    booked: Mapping[str, Any] | None
    """Of its capacities; None: the whole device."""


MALFORMED = (AttributeError, KeyError, TypeError, RecursionError)
"""What reading an object raises that is not shaped as the API server's are."""


@dataclass(frozen=True, slots=True)
class Allocated:
    """What a claim has on one node."""

    uid: str
    namespace: str
    name: str
    devices: Sequence[Device]
    budget: Budget
    pods: Sequence[str]
    """The uids of the pods that it is reserved for."""
    others: Sequence[Other] = ()
    """Where it attaches."""

    @property
    def attaches(self) -> bool:
        return any(device.attaches for device in self.devices)

    def __str__(self) -> str:
        return f"claim {self.namespace}/{self.name}"


def read(claim: Mapping[str, Any], node: str) -> Allocated:
    """What of a claim's allocation is of this driver and on this node. Raises UsageError, which names the claim."""
    try:
        return _read(claim, node)
    except MALFORMED as error:
        raise UsageError(f"the API server's claim is not one: {type(error).__name__} {error}") from None


def _read(claim: Mapping[str, Any], node: str) -> Allocated:
    meta, status = claim["metadata"], claim.get("status") or {}
    title = f"claim {meta['namespace']}/{meta['name']}"
    allocation = (status.get("allocation") or {}).get("devices") or {}
    results = [one for one in allocation.get("results") or () if (one["driver"], one["pool"]) == (DRIVER, node)]
    if not results:
        raise UsageError(f"{title} has no GPU of {DRIVER} on {node}", code="not_allocated")
    try:
        devices = [_device(one) for one in results]
        others = _others(allocation["results"]) if any(one.attaches for one in devices) else []
        names = {one["request"] for one in results} | {one.request for one in others}
        blocks = _blocks(allocation.get("config") or (), names)
        budget = budgets.merged(*(map(budgets.read, blocks[of_class]) for of_class in (True, False)))
    except GpushareError as error:
        raise UsageError(f"{title}: {error.message}", hint=error.hint, code=error.code) from None
    pods = [one["uid"] for one in status.get("reservedFor") or () if one.get("resource") == "pods"]
    return Allocated(meta["uid"], meta["namespace"], meta["name"], devices, budget, pods, others)


def gpus_of(one: Allocated, gpus: Iterable[Gpu]) -> list[Gpu]:
    """In the allocation's order. Raises UsageError for one that is gone."""
    known = {device_of(gpu["uuid"]): gpu for gpu in gpus}
    gone = [device.name for device in one.devices if device.name not in known]
    if gone:
        raise UsageError(f"{one}: this node has no GPU {gone[0]}", code="no_such_gpu")
    return [known[name] for name in dict.fromkeys(device.name for device in one.devices)]


def body(one: Allocated, gpus: Sequence[Gpu]) -> dict[str, Any]:
    """Of the placement's request, without what says where its programs run. `gpus`: the claim's own. Raises
    UsageError."""
    if len(gpus) != len(one.devices):
        raise UsageError(f"{one} has one GPU twice", hint="ask for the sum of both in one request")
    capacity = {device_of(gpu["uuid"]): gpu["capacity"] for gpu in gpus}
    amounts = {capacity[device.name] if device.memory is None else device.memory for device in one.devices}
    if len(amounts) != 1:
        shown = " and ".join(map(written, sorted(amounts)))
        raise UsageError(f"{one} has {shown} on its GPUs", hint="ask for the same on each, or make two claims")
    request = Quantity.parse(written(amounts.pop()))  # a bare number may be a share
    try:
        budget = quantity.Budget.of(request, one.budget.limit)
    except UsageError:
        message = f"{one}: Budget.limit {one.budget.limit} is below the request {written(request.value)}"
        raise UsageError(message, code="request_over_limit", hint="raise the limit, or leave it out") from None
    return {
        "attempt": 1,
        "uid": 0,
        "gpus": [gpu["uuid"] for gpu in gpus],
        "request": budget.request.canonical(),
        "limit": budget.limit.canonical(),
        "name": f"{one.namespace}/{one.name}",
        **one.budget.options,
    }


def _device(result: Mapping[str, Any]) -> Device:
    booked = (result.get("consumedCapacity") or {}).get(MEMORY)
    memory = None if booked is None else -(-parse(booked) // STEP) * STEP
    if memory == 0:
        raise UsageError(f"its request {result['request']} has no memory", hint="ask for memory: 8Gi")
    return Device(result["request"].partition("/")[0], result["pool"], result["device"], memory)


def _others(results: Iterable[Mapping[str, Any]]) -> list[Other]:
    return [
        Other(one["request"].partition("/")[0], one["pool"], one["device"], one.get("consumedCapacity"))
        for one in results
        if one["driver"] == NVIDIA
    ]


def _blocks(config: Iterable[Mapping[str, Any]], names: Iterable[str]) -> Mapping[bool, list[object]]:
    """Those of this driver for these requests: True: of the class; False: of the claim."""
    wanted = {*names, *(name.partition("/")[0] for name in names)}
    found: dict[bool, list[object]] = {True: [], False: []}
    for one in config:
        ours = (one.get("opaque") or {}).get("driver") == DRIVER
        if ours and (not one.get("requests") or wanted & set(one["requests"])):
            found[one.get("source") == "FromClass"].append(one["opaque"].get("parameters"))
    return found
