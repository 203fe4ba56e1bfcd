"""A claim's allocation as Kubernetes has it: `status.allocation` of a ResourceClaim. Pure.

The node's plugin reads it (gpushare/kubernetes/claim.py), and Kubernetes counts by it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpushare.cluster.engines.kubernetes.names import Thing
from gpushare.errors import UsageError
from gpushare.kubernetes.amounts import parse, written
from gpushare.kubernetes.names import DRIVER, MEMORY

__all__ = ["Device", "Part", "allocation", "for_pod", "parts", "reserved", "results"]

SHARES = uuid.UUID("6ba7c9a1-4d5c-4f0e-9d4b-5f3b7f1d2a90")
"""Names of shares are made from it, so that a start that is repeated writes the same."""


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU of a node, as its ResourceSlice has it."""

    name: str
    memory: int
    """Bytes."""
    shared: bool = True
    """Several claims may have parts of it."""
    uuid: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """What a claim has of a GPU."""

    node: str
    device: str
    memory: int | None
    """Bytes; None: all of it."""


def allocation(
    claim: Thing, classes: Mapping[str, Thing], node: str, devices: Sequence[Device], amount: int
) -> dict[str, Any]:
    """That gives the claim `amount` bytes of each of these devices, in the order of its requests."""
    left, found, config = list(devices), [], []
    spec = claim["spec"]["devices"]
    for request in spec["requests"]:
        exactly, name = request["exactly"], request["name"]
        count = exactly.get("count") or 1
        found += [_result(claim, name, node, device, amount) for device in left[:count]]
        del left[:count]
        for one in classes[exactly["deviceClassName"]]["spec"].get("config") or ():
            config.append({"source": "FromClass", "requests": [name], **one})
    config += [{"source": "FromClaim", **one} for one in spec.get("config") or ()]
    here = {"key": "metadata.name", "operator": "In", "values": [node]}
    return {
        "devices": {"results": found, "config": config},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [here]}]},
    }


def _result(claim: Thing, request: str, node: str, device: Device, amount: int) -> dict[str, Any]:
    result: dict[str, Any] = {"request": request, "driver": DRIVER, "pool": node, "device": device.name}
    if device.shared:
        share = uuid.uuid5(SHARES, f"{claim['metadata'].get('uid')}/{device.name}")
        result |= {"shareID": str(share), "consumedCapacity": {MEMORY: written(amount)}}
    return result


def results(claim: Thing) -> list[dict[str, Any]]:
    """Devices of this driver that a claim has."""
    status = claim.get("status") or {}
    devices = (status.get("allocation") or {}).get("devices") or {}
    return [one for one in devices.get("results") or () if one.get("driver") == DRIVER]


def parts(claim: Thing) -> Iterable[Part]:
    for one in results(claim):
        booked = (one.get("consumedCapacity") or {}).get(MEMORY)
        try:
            memory = None if booked is None else parse(booked)
        except UsageError:
            memory = None  # what nobody can read counts as all
        yield Part(one["pool"], one["device"], memory)


def reserved(claim: Thing) -> list[dict[str, Any]]:
    return list((claim.get("status") or {}).get("reservedFor") or ())


def for_pod(claim: Thing, uid: str) -> bool:
    """It has devices, and that pod may use them."""
    return bool((claim.get("status") or {}).get("allocation")) and any(one.get("uid") == uid for one in reserved(claim))
