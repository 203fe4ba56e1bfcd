"""Volumes that an administrator has made, as of disks in nodes: which of them a claim may get. Pure.

Nobody makes volumes of a class whose provisioner is kubernetes.io/no-provisioner. Where it waits for its first pod, a
scheduler gives the claim one that is free on the node of the pod, and Kubernetes binds the two. The rules are those of
its controller of volumes (FindMatchingVolume of component-helpers).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gpushare.cluster.engines.kubernetes import fitting
from gpushare.cluster.engines.kubernetes.names import Key, Thing, key_of
from gpushare.errors import QuantityError
from gpushare.kubernetes import fields
from gpushare.kubernetes.amounts import parse

__all__ = ["BY_HAND", "candidates", "claim_of", "enough", "is_for", "is_on", "patch", "where"]

BY_HAND = "kubernetes.io/no-provisioner"
TERMS = "spec/nodeAffinity/required/nodeSelectorTerms"
BOUND_BY_US = "pv.kubernetes.io/bound-by-controller"
"""Annotation of a volume whose claim no person chose."""


def candidates(claim: Thing, volumes: Iterable[Thing]) -> list[Thing]:
    """Of the volumes of its class, those that it may get, the smallest first. One that it was given is the only one."""
    named = fields.text(claim, "spec/volumeName")
    if named:  # its user has chosen
        volumes = [one for one in volumes if _name(one) == named]
    volumes = list(volumes)
    its = [one for one in volumes if claim_of(one) is not None and is_for(one, claim)]
    free = its[:1] or [one for one in volumes if claim_of(one) is None and _may_have(claim, one)]
    return sorted(free, key=lambda one: (_size(one), _name(one)))


def claim_of(volume: Thing) -> tuple[Key, str] | None:
    """Of the claim that it was given to; "" for a uid: any with that name. None: it is free."""
    said = fields.part(volume, "spec/claimRef")
    return ((fields.text(said, "namespace"), fields.text(said, "name")), fields.text(said, "uid")) if said else None


def is_for(volume: Thing, claim: Thing) -> bool:
    """It was given to it, or somebody keeps it for that name."""
    key, uid = claim_of(volume) or (None, "")
    return key == key_of(claim) and uid in ("", fields.text(claim, "metadata/uid"))


def _may_have(claim: Thing, volume: Thing) -> bool:
    wanted = fields.text(fields.part(claim, "spec/resources"), "requests/storage")
    return (
        fields.text(volume, "status/phase") == "Available"
        and not fields.text(volume, "metadata/deletionTimestamp")
        and _mode(volume) == _mode(claim)
        and set(fields.texts(claim, "spec/accessModes")) <= set(fields.texts(volume, "spec/accessModes"))
        and fitting.selects(fields.part(claim, "spec/selector"), fields.part(volume, "metadata/labels"))
        and _size(volume) >= _bytes(wanted)
    )


def _mode(thing: Thing) -> str:
    return fields.text(thing, "spec/volumeMode") or "Filesystem"


def _size(volume: Thing) -> int:
    return _bytes(fields.text(volume, "spec/capacity/storage"))


def _bytes(text: str) -> int:
    try:
        return parse(text or "0")
    except QuantityError:
        return 0


def where(volumes: Sequence[Thing]) -> list[Thing]:
    """Of nodes, as terms of an affinity: one of them has to match; none: all do. Terms that name one value of a label,
    as those of disks in nodes do, are put together."""
    values: dict[str, list[str]] = {}
    others: list[Thing] = []
    for volume in volumes:
        terms = fields.objects(volume, TERMS)
        if not terms:
            return []
        for term in terms:
            said = fields.objects(term, "matchExpressions")
            if len(said) == 1 and said[0].get("operator") == "In" and not fields.objects(term, "matchFields"):
                values.setdefault(fields.text(said[0], "key"), []).extend(fields.texts(said[0], "values"))
            elif term not in others:
                others.append(term)
    joined = [{"key": key, "operator": "In", "values": sorted(set(of_key))} for key, of_key in sorted(values.items())]
    return [*({"matchExpressions": [one]} for one in joined), *others]


def is_on(volume: Thing, node: str, labels: Mapping[str, str]) -> bool:
    terms = fields.objects(volume, TERMS)
    return not terms or fitting.matches_one(node, labels, terms)


def enough(wishes: Iterable[Sequence[Thing]]) -> bool:
    """Each can get one of its candidates, and no two the same. Who has the fewest chooses first."""
    taken: set[str] = set()
    for one in sorted(wishes, key=len):
        free = next((name for name in map(_name, one) if name not in taken), None)
        if free is None:
            return False
        taken.add(free)
    return True


def _name(volume: Thing) -> str:
    return str(volume["metadata"]["name"])


def patch(volume: Thing, claim: Thing) -> dict[str, object]:
    """The volume is the claim's; who binds them takes it from there. Of exactly this version."""
    meta = claim["metadata"]
    names = ("namespace", "name", "uid", "resourceVersion")
    reference = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **{name: meta[name] for name in names}}
    said = {"resourceVersion": volume["metadata"]["resourceVersion"], "annotations": {BOUND_BY_US: "yes"}}
    return {"metadata": said, "spec": {"claimRef": reference}}
