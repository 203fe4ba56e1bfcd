"""How large the GPUs are that a pod may get, from what nodes have published. Pure.

A fraction says nothing until one knows of what, and Kubernetes books amounts. So it is taken of the smallest GPU of the
nodes that the pod may run on. Where these differ by more than a tenth, the pod has to say more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpushare.cluster.engines.kubernetes import fitting
from gpushare.errors import GpushareError, UsageError
from gpushare.kubernetes import fields
from gpushare.kubernetes.amounts import parse, written
from gpushare.kubernetes.names import DRIVER, MEMORY

__all__ = ["smallest"]

ALIKE = 0.9
"""GPUs of one kind differ by what driver and daemon keep for themselves."""
Thing = Mapping[str, Any]


def smallest(pod: Thing, slices: Iterable[Thing], nodes: Mapping[str, Thing]) -> int:
    """Bytes. Raises UsageError where there is no GPU, or where they differ."""
    sizes = [size for one in slices if _may_run(pod, nodes.get(one["spec"].get("nodeName"))) for size in _sizes(one)]
    if not sizes:
        raise UsageError(
            "no node that this pod may run on has published a GPU that can be shared",
            hint="say the amount with gpu-memory, or wait for the node",
        )
    least, most = min(sizes), max(sizes)
    if least < ALIKE * most:
        raise UsageError(
            f"the GPUs that this pod may get have from {written(least)} to {written(most)}",
            hint="choose its nodes with nodeSelector, or say the amount with gpu-memory",
        )
    return least


def _may_run(pod: Thing, node: Thing | None) -> bool:
    if node is None:
        return False
    labels = node["metadata"].get("labels") or {}
    wanted = pod["spec"].get("nodeSelector") or {}
    return all(labels.get(name) == value for name, value in wanted.items()) and fitting.fits(node, fitting.of(pod))


def _sizes(one: Thing) -> Iterable[int]:
    if one["spec"].get("driver") != DRIVER:
        return
    for device in one["spec"].get("devices") or ():
        if device.get("allowMultipleAllocations"):
            try:
                yield parse(fields.text(device, f"capacity/{MEMORY}/value"))
            except GpushareError:
                continue
