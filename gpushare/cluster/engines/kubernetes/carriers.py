"""What carries claims and GPUs: objects of Kubernetes' own (1.34 and later), or pods' annotations and objects of ours.

The API server says which, once. All else of the engine sees claims, classes and slices, whoever carries them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from gpushare.cluster.engines.kubernetes.names import CLAIMS, CLASSES, SLICES, Key, Thing, key_of
from gpushare.kubernetes import carried
from gpushare.kubernetes.names import NODE_GPUS

__all__ = ["Annotations", "Claims"]

Found = Mapping[str, Mapping[Key, Thing]]
"""Objects by the path of their collection."""


class Claims:
    """Resource claims."""

    paths: Collection[str] = (CLAIMS, CLASSES, SLICES)
    told = "claims are objects of resource.k8s.io/v1"

    def of(self, found: Found, pods: Iterable[Thing]) -> tuple[Mapping[Key, Thing], ...]:  # noqa: ARG002
        """Claims, classes and slices."""
        return found[CLAIMS], found[CLASSES], found[SLICES]


@dataclass(slots=True)
class Annotations:
    """Those of pods. A pod that is the same object as before has the same claim."""

    classes: Mapping[Key, Thing]
    """As an administrator has it (settings.py)."""
    _made: dict[int, tuple[Thing, Thing | None]] = field(default_factory=dict)

    @property
    def paths(self) -> Collection[str]:
        return (NODE_GPUS,)

    @property
    def told(self) -> str:
        return "claims are annotations of pods: the API server has no resource.k8s.io/v1"

    def of(self, found: Found, pods: Iterable[Thing]) -> tuple[Mapping[Key, Thing], ...]:
        """Claims, classes and slices."""
        before, self._made = self._made, {}
        for pod in pods:
            known = before.get(id(pod))
            self._made[id(pod)] = known if known is not None else (pod, carried.of_pod(pod))
        claims = {key_of(claim): claim for _, claim in self._made.values() if claim is not None}
        return claims, self.classes, found[NODE_GPUS]
