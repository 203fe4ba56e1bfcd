"""Which service leads, kept in Slurm itself: in the field Extra of the first node.

    gpushare:7:1795402717.5:gpu-controller%2Fvar%2Flib%2Fcluster.db      term, until when, who

Slurm has no compare-and-swap. So what was written is read again before it counts, and each look compares it: of two
services that began in one moment the one that wrote last leads, and the other one finds that out at its next look.
Meanwhile Slurm's counters keep both from harm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote

from gpushare.cluster.engines.slurm.listing import ListedNode

__all__ = ["Lease", "found"]

FIRST = "gpushare"
LONGEST = 3600.0
"""Seconds: a lease that ends later is of a clock that has jumped."""


@dataclass(frozen=True, slots=True)
class Lease:
    term: int = 0
    until: float = 0.0
    holder: str = ""

    def text(self) -> str:
        return f"{FIRST}:{self.term}:{self.until:.3f}:{quote(self.holder, safe='')}"

    def holds(self, now: float) -> bool:
        return bool(self.holder) and now < self.until <= now + LONGEST


def found(nodes: Sequence[ListedNode]) -> tuple[Lease, str]:
    """The lease that counts, and the node to write one to: the first whose field is ours or empty."""
    leases = [(_read(node.extra), node.name) for node in nodes]
    ours = [(lease, name) for lease, name in leases if lease is not None]
    if not ours:
        return Lease(), ""
    return max(ours, key=lambda one: one[0].term)  # of equal ones the first


def _read(text: str) -> Lease | None:
    """None: somebody else uses the field."""
    if not text:
        return Lease()
    first, *rest = text.split(":")
    if first != FIRST or len(rest) != 3:
        return None
    try:
        return Lease(int(rest[0]), float(rest[1]), unquote(rest[2]))
    except ValueError:
        return None
