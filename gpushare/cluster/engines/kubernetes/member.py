"""A pod of ours, with its claims, its mark and what is known of it. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpushare.cluster.engines.kubernetes.allocation import for_pod
from gpushare.cluster.engines.kubernetes.groups import Group, Line
from gpushare.cluster.engines.kubernetes.mark import Mark
from gpushare.cluster.engines.kubernetes.names import QUEUE, Key, Thing, key_of, of_pod
from gpushare.cluster.engines.kubernetes.request import Asked
from gpushare.cluster.engines.kubernetes.seats import Sitter
from gpushare.cluster.engines.kubernetes.seen import Phase, is_over, is_replaced, phase_of, seconds

__all__ = ["HOLD", "Member"]

HOLD = "gpushare.dev/hold"
"""Annotation: "true" while its user does not want it to start. Scheduling gates say the same."""


@dataclass(slots=True)
class Member:
    """A pod of ours."""

    pod: Thing
    claims: tuple[Thing, ...]
    mark: Mark
    asked: Asked | None
    wrong: str
    """Why it can never start as it is; "": nothing is wrong. None of `asked` and no word: its claims are not made."""
    group: Group
    lost: bool = False
    """Its node is."""
    ended: bool = False
    """It was seen to have ended by itself."""
    follows: Member | None = field(default=None, init=False)
    """Of pods that share its claim, the one that starts first (sharing.py)."""
    waits: str = field(default="", init=False)
    """Why it does not join that one yet."""
    taken: str = field(default="", init=False)
    """Why it cannot have its claims, or is no part of its group."""
    joins: bool = field(default=False, init=False)
    """Its start is one of a claim that another pod has already."""
    given: Mapping[str, str] = field(default_factory=dict, init=False)
    """Where the API server has no claims: annotations that it gets with its binding."""
    keys: tuple[Key, ...] = field(init=False)
    """Of its claims."""
    created: float = field(init=False)

    def __post_init__(self) -> None:
        self.keys = tuple(map(key_of, self.claims))
        self.created = seconds(self.pod["metadata"].get("creationTimestamp")) or 0.0

    @property
    def line(self) -> Line | None:
        return self.group.line

    @property
    def queue(self) -> str:
        """ "": it names none."""
        return self.mark.queue_of(of_pod(self.pod, "labels", QUEUE), bound=bool(self.bound))

    @property
    def troubled(self) -> str:
        """Why it cannot start as things are; "": it can."""
        return self.wrong or self.taken

    @property
    def leaves(self) -> bool:
        """Another pod is to take its seat."""
        phase = (self.pod.get("status") or {}).get("phase")
        if phase == "Failed" and self.line is not None and self.line[0] == "group":
            return True
        if (self.ended or phase == "Succeeded") and not is_replaced(self.pod):
            return False
        return self.lost or bool(self.pod["metadata"].get("deletionTimestamp"))

    @property
    def over(self) -> bool:
        return is_over(self.pod) and not self.leaves

    @property
    def sitter(self) -> Sitter:
        return Sitter(self.uid, self.group, self.created, self.title, self.mark, leaves=self.leaves, over=self.over)

    @property
    def uid(self) -> str:
        return str(self.pod["metadata"]["uid"])

    @property
    def key(self) -> Key:
        return key_of(self.pod)

    @property
    def title(self) -> str:
        return "/".join(self.key)

    @property
    def bound(self) -> str:
        """Its node; "": it has none."""
        return str(self.pod["spec"].get("nodeName") or "")

    @property
    def holds(self) -> bool:
        return any(for_pod(claim, self.uid) for claim in self.claims)

    @property
    def phase(self) -> Phase | None:
        return phase_of(self.pod, self.mark, holds=lambda: self.holds)

    @property
    def keeps(self) -> bool:
        """It holds what it was not bound with: that start is over, or nobody knows any more where it was to run."""
        return not self.bound and self.holds and self.phase != "starting"

    @property
    def held(self) -> bool:
        return bool(self.pod["spec"].get("schedulingGates")) or of_pod(self.pod, "annotations", HOLD) == "true"

    @property
    def told(self) -> str:
        """Why it waits, as its users are told."""
        for one in (self.pod.get("status") or {}).get("conditions") or ():
            if one["type"] == "PodScheduled" and one["status"] == "False":
                return str(one.get("message", ""))
        return ""

    def grace(self, most: float) -> float:
        """Seconds: what its claim says, else the pod; never more than the allocator gives."""
        said = self.asked.grace if self.asked is not None else None
        usual = float(self.pod["spec"].get("terminationGracePeriodSeconds") or most)
        return min(most, usual if said is None else said)
