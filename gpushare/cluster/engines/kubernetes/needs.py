"""CPUs and memory of the host that pods ask for, and that nodes have. Pure.

What pods of other schedulers take is gone. What pods of this one hold can be had by evicting them, and they are
evicted for GPUs: so it counts where a pod would start beside them (seen.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from gpushare.cluster.engines.kubernetes.names import Thing
from gpushare.errors import UsageError
from gpushare.kubernetes import fields
from gpushare.kubernetes.amounts import milli, parse
from gpushare.quantity import format_bytes

__all__ = ["NONE", "PLENTY", "Needs", "left", "of_pod"]


class Needs(NamedTuple):
    cpu: int
    """Thousandths."""
    memory: int
    """Bytes."""

    def __str__(self) -> str:
        said = [f"{self.cpu / 1000:g} CPUs"] if self.cpu else []
        return " and ".join([*said, f"{format_bytes(self.memory)} of memory"] if self.memory else said)

    def plus(self, other: Needs) -> Needs:
        return Needs(self.cpu + other.cpu, self.memory + other.memory)

    def less(self, other: Needs) -> Needs:
        return Needs(self.cpu - other.cpu, self.memory - other.memory)

    def within(self, there: Needs) -> bool:
        """What is not asked for is there."""
        return all(wanted <= had for wanted, had in zip(self, there, strict=True) if wanted)

    def at_least(self, other: Needs) -> Needs:
        return Needs(max(self.cpu, other.cpu), max(self.memory, other.memory))


NONE = Needs(0, 0)
ENOUGH = 2**63
PLENTY = Needs(ENOUGH, ENOUGH)


def of_pod(pod: Thing) -> Needs:
    """As Kubernetes counts them: containers run together, with sidecars; what runs before them runs alone."""
    together = _sum(_requests(one) for one in fields.objects(pod, "spec/containers"))
    before = NONE
    for one in fields.objects(pod, "spec/initContainers"):
        if fields.text(one, "restartPolicy") == "Always":
            together = together.plus(_requests(one))
        else:
            before = before.at_least(_requests(one))
    said = fields.part(pod, "spec/resources/requests")
    whole = together.at_least(before)
    whole = Needs(_cpu(said) if "cpu" in said else whole.cpu, _memory(said) if "memory" in said else whole.memory)
    overhead = fields.part(pod, "spec/overhead")
    return whole.plus(Needs(_cpu(overhead), _memory(overhead)))


def left(node: Thing, taken: Needs) -> Needs:
    """Of what its pods may have. A node that does not say how much that is has enough."""
    said = fields.part(node, "status/allocatable")
    return Needs(
        _cpu(said) - taken.cpu if "cpu" in said else ENOUGH,
        _memory(said) - taken.memory if "memory" in said else ENOUGH,
    )


def _requests(container: Thing) -> Needs:
    """What it limits and does not request, it requests."""
    limits, requests = fields.part(container, "resources/limits"), fields.part(container, "resources/requests")
    said = {**limits, **requests}
    return Needs(_cpu(said), _memory(said))


def _sum(those: Iterable[Needs]) -> Needs:
    found = NONE
    for one in those:
        found = found.plus(one)
    return found


def _cpu(said: Thing) -> int:
    try:
        return milli(said["cpu"])
    except (KeyError, UsageError):
        return 0


def _memory(said: Thing) -> int:
    try:
        return parse(said["memory"])
    except (KeyError, UsageError):
        return 0
