"""CPUs and memory of the host that pods ask for, and that nodes have; and how many pods a node takes. Pure.

What pods of other schedulers take is gone. What pods of this one hold can be had by evicting them, and they are
evicted for GPUs: so it counts where a pod would start beside them (seen.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    pods: int = 1

    def __str__(self) -> str:
        words = f"{self.cpu / 1000:g} CPUs", f"{format_bytes(self.memory)} of memory", "place for one more pod"
        return " and ".join(one for amount, one in zip(self, words, strict=True) if amount)

    def plus(self, other: Needs) -> Needs:
        return Needs(self.cpu + other.cpu, self.memory + other.memory, self.pods + other.pods)

    def less(self, other: Needs) -> Needs:
        return Needs(self.cpu - other.cpu, self.memory - other.memory, self.pods - other.pods)

    def within(self, there: Needs) -> bool:
        """What is not asked for is there."""
        return all(wanted <= had for wanted, had in zip(self, there, strict=True) if wanted)

    def beyond(self, rooms: Sequence[Needs]) -> Needs:
        """Those of them that one of the rooms does not have."""
        lacks = (any(amount > had for had in each) for amount, each in zip(self, zip(*rooms, strict=True), strict=True))
        return Needs(*(amount if lack else 0 for amount, lack in zip(self, lacks, strict=True)))

    def at_least(self, other: Needs) -> Needs:
        return Needs(max(self.cpu, other.cpu), max(self.memory, other.memory), max(self.pods, other.pods))


NONE = Needs(0, 0, 0)
ENOUGH = 2**63
PLENTY = Needs(ENOUGH, ENOUGH, ENOUGH)


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
    return whole.plus(Needs(_cpu(overhead), _memory(overhead), 0))


def left(node: Thing, taken: Needs) -> Needs:
    """Of what its pods may have. A node that does not say how much that is has enough."""
    said = fields.part(node, "status/allocatable")
    return Needs(
        _cpu(said) - taken.cpu if "cpu" in said else ENOUGH,
        _memory(said) - taken.memory if "memory" in said else ENOUGH,
        _amount(said, "pods") - taken.pods if "pods" in said else ENOUGH,
    )


def _requests(container: Thing) -> Needs:
    """What it limits and does not request, it requests."""
    limits, requests = fields.part(container, "resources/limits"), fields.part(container, "resources/requests")
    said = {**limits, **requests}
    return Needs(_cpu(said), _memory(said), 0)


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
    return _amount(said, "memory")


def _amount(said: Thing, name: str) -> int:
    try:
        return parse(said[name])
    except (KeyError, UsageError):
        return 0
