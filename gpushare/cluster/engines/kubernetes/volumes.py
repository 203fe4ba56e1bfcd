"""Volumes of a pod: on which nodes they are or may be, and which are made only where the pod is. Pure.

A claim of a volume (PersistentVolumeClaim) that has its volume says by it where the pod can run: a disk of a zone, a
folder of a node. One whose class waits for its first pod (WaitForFirstConsumer) gets its volume when it is told the
node, as kube-scheduler tells it, and the pod is bound when that is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpushare.cluster.engines.kubernetes.names import Key, Thing, key_of
from gpushare.errors import UsageError
from gpushare.kubernetes import fields

__all__ = ["NODE", "NOTHING", "Storage", "Volumes", "objects", "read", "told_node"]

NODE = "volume.kubernetes.io/selected-node"
"""Annotation of such a claim: where its volume is to be made. Who makes volumes removes it when it cannot."""
WAITS = "WaitForFirstConsumer"
BY_HAND = "kubernetes.io/no-provisioner"
TERMS = "nodeSelectorTerms"


class Storage(NamedTuple):
    """What the API server has."""

    claims: Mapping[Key, Thing]
    volumes: Mapping[Key, Thing]
    classes: Mapping[Key, Thing]


NOTHING = Storage({}, {}, {})


@dataclass(frozen=True, slots=True)
class Volumes:
    terms: tuple[Sequence[Thing], ...] = ()
    """Of nodes, as an affinity has them: one of each has to match."""
    unmade: tuple[Thing, ...] = ()
    """Claims whose volumes are made where the pod is."""
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
    return tuple(found)


def read(pod: Thing, storage: Storage) -> Volumes:
    """Raises UsageError for what keeps the pod from starting anywhere."""
    terms: list[Sequence[Thing]] = []
    unmade: list[Thing] = []
    for key, own in _keys(pod):
        claim = storage.claims.get(key)
        if claim is None and own:
            return Volumes(listed=False)
        if claim is None:
            raise UsageError(f"there is no PersistentVolumeClaim {'/'.join(key)}")
        if fields.text(claim, "status/phase") == "Bound":
            volume = storage.volumes.get(("", fields.text(claim, "spec/volumeName")))
            terms += _said(fields.objects(volume, f"spec/nodeAffinity/required/{TERMS}"))
        else:
            terms += _said(_of_class(claim, storage))
            unmade.append(claim)
    return Volumes(tuple(terms), tuple(unmade))


def told_node(claim: Thing) -> str:
    """Where its volume is being made; "": nowhere."""
    return str((claim["metadata"].get("annotations") or {}).get(NODE) or "")


def _keys(pod: Thing) -> Iterator[tuple[Key, bool]]:
    """Of its claims of volumes; True: it is made for this pod alone."""
    namespace, name = key_of(pod)
    for one in fields.objects(pod, "spec/volumes"):
        claimed = fields.text(one, "persistentVolumeClaim/claimName")
        if claimed:
            yield (namespace, claimed), False
        elif "ephemeral" in one:
            yield (namespace, f"{name}-{fields.text(one, 'name')}"), True


def _of_class(claim: Thing, storage: Storage) -> Sequence[Thing]:
    """Where its class makes volumes, as terms."""
    title, name = "/".join(key_of(claim)), fields.text(claim, "spec/storageClassName")
    kind = storage.classes.get(("", name))
    if kind is None or fields.text(kind, "volumeBindingMode") != WAITS:
        raise UsageError(f"PersistentVolumeClaim {title} has no volume yet")
    if fields.text(kind, "provisioner") == BY_HAND:
        raise UsageError(
            f"PersistentVolumeClaim {title} has no volume, and nobody makes those of StorageClass {name}",
            hint="name one in the claim: volumeName",
        )
    return [
        {"matchExpressions": [{**one, "operator": "In"} for one in fields.objects(term, "matchLabelExpressions")]}
        for term in fields.objects(kind, "allowedTopologies")
    ]


def _said(terms: Sequence[Thing]) -> Iterator[Sequence[Thing]]:
    if terms:
        yield terms
