"""Limits that a pod's queue puts on its claims. Pure.

Users write claims, and say limits in them. What administrators say in a queue counts all the same: the scheduler adds a
block of the driver to the claim's allocation, behind those of the claim, and the node's plugin takes the last word.
"""

from __future__ import annotations

from typing import Any

from gpushare.cluster.engines.kubernetes.names import Thing
from gpushare.kubernetes.amounts import written
from gpushare.kubernetes.names import API, BUDGET, DRIVER
from gpushare.kubernetes.webhook.limits import Limits
from gpushare.quantity import SHARE_PARTS, Kind, Quantity

__all__ = ["block", "bounded"]


def bounded(own: Quantity | None, request: int, memory: int, usual: int | None, limits: Limits) -> int | None:
    """Bytes; None: what the claim says holds. `own`: its limit. `memory`: of the GPU. `usual`: the part of a GPU that
    is the limit of those that say none. No bound is below the request, which the quota has already."""
    if own is None and usual is None:
        return None
    said = memory * (usual or 0) // SHARE_PARTS if own is None else _bytes(own, memory)
    most = said if limits.most is None else memory * limits.most // SHARE_PARTS
    found = max(request, min(said, most))
    return None if own is not None and found == max(request, said) else found


def _bytes(amount: Quantity, memory: int) -> int:
    if amount.kind is Kind.SHARE:
        return memory * amount.value // SHARE_PARTS
    return amount.value if amount.kind is Kind.BYTES else memory


def block(limit: int) -> Thing:
    """Of an allocation's config."""
    parameters: dict[str, Any] = {"apiVersion": API, "kind": BUDGET, "limit": written(limit)}
    return {"source": "FromClaim", "requests": [], "opaque": {"driver": DRIVER, "parameters": parameters}}
