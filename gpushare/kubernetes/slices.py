"""What a node has as a ResourceSlice: one device for each GPU, which many claims may have parts of. Pure.

A claim says how much of the capacity `memory` it takes. One that says nothing takes the whole GPU. What the node daemon
keeps for itself is not in the capacity. The attribute `health` has the daemon's word about the GPU. One that is sick
takes no new claims; one that is lost takes none, and pods that have it are evicted.

A node whose GPUs NVIDIA's driver publishes (attach.py) has the device `attach` in their place, so that no GPU is in two
inventories.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpushare.api import Gpu
from gpushare.kubernetes.amounts import written
from gpushare.kubernetes.names import ATTACH, ATTACHED, DRIVER, MEMORY, NVIDIA, device_of

__all__ = ["STEP", "resource_slice"]

STEP = 64 * 2**20
"""Bytes: requests are rounded up to multiples of this."""
EFFECTS = {"sick": "NoSchedule", "lost": "NoExecute"}
"""What follows in Kubernetes from the daemon's word about a GPU."""
LONGEST_VALUE = 64
"""Characters of an attribute."""


def resource_slice(
    node: str, gpus: Sequence[Gpu], driver: str, *, shared: bool = True, attach: bool = False
) -> dict[str, Any]:
    """The object without what the API server adds. `driver`: nvidia or sim. `shared`: the server knows parts of
    devices; without that each device goes to one claim as a whole. `attach`: the GPUs are those of NVIDIA's driver."""
    usable = [gpu for gpu in gpus if gpu["capacity"] >= 2 * STEP]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-{DRIVER}"},
        "spec": {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": _attached(usable, shared) if attach else [_device(gpu, driver, shared) for gpu in usable],
        },
    }


def _device(gpu: Gpu, driver: str, shared: bool) -> dict[str, Any]:
    capacity = gpu["capacity"] // STEP * STEP
    memory: dict[str, Any] = {"value": written(capacity)}
    device: dict[str, Any] = {
        "name": device_of(gpu["uuid"]),
        "attributes": {
            "uuid": _text(gpu["uuid"]),
            "index": {"int": gpu["index"]},
            "productName": _text(gpu["name"]),
            "driver": _text(driver),
            "health": _text(str(gpu["health"]["state"])),
        },
        "capacity": {MEMORY: memory},
    }
    if shared:
        device["allowMultipleAllocations"] = True
        memory["requestPolicy"] = {
            "default": written(capacity),
            "validRange": {"min": written(STEP), "step": written(STEP)},
        }
    taint = _taint(gpu["health"])
    return device | ({"taints": [taint]} if taint else {})


def _attached(gpus: Sequence[Gpu], shared: bool) -> list[dict[str, Any]]:
    """One for all claims. Where devices are not shared, as many claims as there are GPUs can have one."""
    about = {"attributes": {ATTACHED: {"string": NVIDIA}}}
    if shared:
        return [{"name": ATTACH, **about, "allowMultipleAllocations": True}]
    return [{"name": f"{ATTACH}-{gpu['index']}", **about} for gpu in gpus]


def _taint(health: Mapping[str, Any]) -> dict[str, str] | None:
    effect = EFFECTS.get(str(health["state"]))
    return {"key": f"{DRIVER}/health", "value": str(health["state"]), "effect": effect} if effect else None


def _text(value: str) -> dict[str, str]:
    return {"string": value[:LONGEST_VALUE]}
