"""Volumes of a pod: on which nodes they are or may be, and which are made only where the pod is. Pure.

A claim of a volume (PersistentVolumeClaim) that has its volume says by it where the pod can run: a disk of a zone, a
folder of a node. One whose class waits for its first pod (WaitForFirstConsumer) gets its volume when it is told the
node, as kube-scheduler tells it, and the pod is bound when that is made. Where nobody makes volumes, the
claim is given one that is there (local_volumes.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from gpushare.cluster.engines.kubernetes import local_volumes
from gpushare.cluster.engines.kubernetes.names import Key, Thing, key_of
from gpushare.errors import UsageError
from gpushare.kubernetes import fields

__all__ = ["NODE", "NOTHING", "Storage", "Unmade", "Volumes", "objects", "on_node", "read"]

NODE = "volume.kubernetes.io/selected-node"
"""Annotation of such a claim: where its volume is to be made. Who makes volumes removes it when it cannot."""
WAITS = "WaitForFirstConsumer"
TERMS = "nodeSelectorTerms"


@dataclass(frozen=True)
class Storage:
    """What the API server has."""

    claims: Mapping[Key, Thing]
    volumes: Mapping[Key, Thing]
    classes: Mapping[Key, Thing]

    @cached_property
    def by_class(self) -> Mapping[str, Sequence[Thing]]:
        """Its volumes, by the names of their classes: each pod that waits for one asks for them at each look."""
        found: dict[str, list[Thing]] = {}
        for one in self.volumes.values():
            found.setdefault(fields.text(one, "spec/storageClassName"), []).append(one)
        return found


NOTHING = Storage({}, {}, {})


class Unmade(NamedTuple):
    """A claim that has no volume yet."""

    claim: Thing
    there: tuple[Thing, ...] | None = None
    """Volumes of which it gets one, the first that is free; None: its volume is made where the pod is to run."""

    def is_told(self, node: str) -> bool:
        """Its volume is being made there, or is given to it."""
        if self.there is None:
            return fields.named(self.claim, "annotations", NODE) == node
        return any(local_volumes.claim_of(one) for one in self.there)


@dataclass(frozen=True, slots=True)
class Volumes:
    terms: tuple[Sequence[Thing], ...] = ()
    """Of nodes, as an affinity has them: one of each has to match."""
    unmade: tuple[Unmade, ...] = ()
    listed: bool = True
    """False: a claim that Kubernetes makes for the pod is not there yet."""


def objects(pod: Thing, storage: Storage) -> tuple[Thing, ...]:
    """All that read() reads."""
    found: list[Thing] = []
    for key, _ in _keys(pod):
        claim = storage.claims.get(key)
        if claim is not None:
            volume = storage.volumes.get(("", fields.text(claim, "spec/volumeName")))
            kind = storage.classes.get(("", fields.text(claim, "spec/storageClassName")))
            found += [one for one in (claim, volume, kind) if one is not None]
            if _is_by_hand(kind) and not _is_bound(claim):
                found += storage.by_class.get(fields.text(claim, "spec/storageClassName"), ())
    return tuple(found)


def read(pod: Thing, storage: Storage) -> Volumes:
    """Raises UsageError for what keeps the pod from starting anywhere."""
    terms: list[Sequence[Thing]] = []
    unmade: list[Unmade] = []
    for key, own in _keys(pod):
        claim = storage.claims.get(key)
        if claim is None and own:
            return Volumes(listed=False)
        if claim is None:
            raise UsageError(f"there is no PersistentVolumeClaim {'/'.join(key)}")
        if _is_bound(claim):
            volume = storage.volumes.get(("", fields.text(claim, "spec/volumeName")))
            terms += _said(fields.objects(volume, f"spec/nodeAffinity/required/{TERMS}"))
        else:
            one = _unmade(claim, storage)
            terms += _said(_of_class(claim, storage) if one.there is None else local_volumes.where(one.there))
            unmade.append(one)
    return Volumes(tuple(terms), tuple(unmade))


def on_node(unmade: Sequence[Unmade], node: str, labels: Mapping[str, str]) -> tuple[Unmade, ...] | None:
    """With the volumes that are on this node; None: there are not enough of them."""
    found = tuple(
        one if one.there is None else one._replace(there=tuple(_on(one.there, node, labels))) for one in unmade
    )
    return found if local_volumes.enough(one.there for one in found if one.there is not None) else None


def _on(volumes: Sequence[Thing], node: str, labels: Mapping[str, str]) -> Iterator[Thing]:
    return (one for one in volumes if local_volumes.is_on(one, node, labels))


def _keys(pod: Thing) -> Iterator[tuple[Key, bool]]:
    """Of its claims of volumes; True: it is made for this pod alone."""
    namespace, name = key_of(pod)
    for one in fields.objects(pod, "spec/volumes"):
        claimed = fields.text(one, "persistentVolumeClaim/claimName")
        if claimed:
            yield (namespace, claimed), False
        elif "ephemeral" in one:
            yield (namespace, f"{name}-{fields.text(one, 'name')}"), True


def _is_bound(claim: Thing) -> bool:
    return fields.text(claim, "status/phase") == "Bound"


def _is_by_hand(kind: Thing | None) -> bool:
    return fields.text(kind, "provisioner") == local_volumes.BY_HAND


def _unmade(claim: Thing, storage: Storage) -> Unmade:
    title, name = "/".join(key_of(claim)), fields.text(claim, "spec/storageClassName")
    kind = storage.classes.get(("", name))
    if kind is None or fields.text(kind, "volumeBindingMode") != WAITS:
        raise UsageError(f"PersistentVolumeClaim {title} has no volume yet")
    if not _is_by_hand(kind):
        return Unmade(claim)
    there = local_volumes.candidates(claim, storage.by_class.get(name, ()))
    if not there:
        raise UsageError(
            f"PersistentVolumeClaim {title} has no volume, and no free one of StorageClass {name} is as it asks",
            hint="nobody makes volumes of this class: make one that is large enough, with its access modes",
        )
    return Unmade(claim, tuple(there))


def _of_class(claim: Thing, storage: Storage) -> Sequence[Thing]:
    """Where its class makes volumes, as terms."""
    kind = storage.classes.get(("", fields.text(claim, "spec/storageClassName")))
    return [
        {"matchExpressions": [{**one, "operator": "In"} for one in fields.objects(term, "matchLabelExpressions")]}
        for term in fields.objects(kind, "allowedTopologies")
    ]


def _said(terms: Sequence[Thing]) -> Iterator[Sequence[Thing]]:
    if terms:
        yield terms
