"""Which pods start together. Pure.

A pod says it with a label and annotations of gpushare, or by Kubernetes' own API where the server has that: up to 1.35
`spec.workloadRef` names a group of a Workload, from 1.36 on `spec.schedulingGroup` names a PodGroup. Kubernetes' groups
say with how many pods they start (`minCount`), and not how many pods they have: those that come later start alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpushare.cluster.engines.kubernetes.names import GROUP, LEAST, SIZE, Key, Thing, of_pod
from gpushare.errors import UsageError
from gpushare.kubernetes import fields

__all__ = ["NONE", "Group", "Line", "Named", "line_of", "objects", "read"]

MOST_OF_A_GROUP = 10_000
DIGITS = 9
"""Of a number that is read at all: users write what they like."""

Line = tuple[str, ...]
"""Whose pods take each other's seats."""


@dataclass(frozen=True, slots=True)
class Group:
    line: Line | None
    """None: nobody takes its seat."""
    size: int = 1
    """Tasks of the job that its pods are."""
    least: int = 1
    """So many of these start together; the others when there is room."""
    open: bool = False
    """Further pods may belong to it. They start alone, once so many run."""


@dataclass(frozen=True, slots=True)
class Named:
    """Objects of scheduling.k8s.io; None: the API server has no such kind."""

    workloads: Mapping[Key, Thing] | None = None
    pod_groups: Mapping[Key, Thing] | None = None
    trouble: str = ""
    """Why some of them may be missing."""


NONE = Named()


def read(pod: Thing, named: Named) -> Group:
    """Raises UsageError where it does not say how many start together."""
    line, policy = line_of(pod, named), _policy(pod, named)
    if policy is None:
        size = _size(pod)
        return Group(line, size, _least(pod, size))
    if "gang" not in policy:
        return Group(_owner(pod))
    count = fields.number(policy, "gang/minCount")
    if not 1 <= count <= MOST_OF_A_GROUP:
        raise UsageError(
            f"its {_title(pod)} has minCount {count}",
            hint=f"write with how many pods it starts, 1 to {MOST_OF_A_GROUP}",
        )
    return Group(line, count, count, open=count > 1)


def line_of(pod: Thing, named: Named) -> Line | None:
    """Also of a pod whose group is gone."""
    reference = _reference(pod, named)
    if reference is not None:
        kind, key, *more = reference
        return "group", key[0], kind, key[1], *more
    group = of_pod(pod, "labels", GROUP)
    return ("group", pod["metadata"]["namespace"], group) if group else _owner(pod)


def objects(pod: Thing, named: Named) -> Iterator[Thing]:
    """What it names of these."""
    reference = _reference(pod, named)
    if reference is not None:
        kind, key, *_ = reference
        found = ((named.pod_groups if kind == POD_GROUP else named.workloads) or {}).get(key)
        if found is not None:
            yield found


# ---- Kubernetes' own -----------------------------------------------------------------------------------

POD_GROUP, WORKLOAD = "PodGroup", "Workload"
Reference = tuple[str, Key] | tuple[str, Key, str, str]
"""Kind and key; of a Workload also the group in it, and which instance of that."""


def _reference(pod: Thing, named: Named) -> Any:
    """What the pod names of the kinds that the API server has. None: nothing."""
    spec, namespace = pod.get("spec") or {}, pod["metadata"].get("namespace", "")
    if "schedulingGroup" not in spec and "workloadRef" not in spec:
        return None
    name = fields.text(spec, "schedulingGroup/podGroupName")
    if name and named.pod_groups is not None:
        return POD_GROUP, (namespace, name)
    said = fields.part(spec, "workloadRef")
    name = fields.text(said, "name")
    if name and named.workloads is not None:
        return WORKLOAD, (namespace, name), fields.text(said, "podGroup"), fields.text(said, "podGroupReplicaKey")
    return None


def _policy(pod: Thing, named: Named) -> Thing | None:
    """None: it names no group of Kubernetes'. Raises UsageError for one that is not there."""
    reference = _reference(pod, named)
    if reference is None:
        return None
    kind, _, *more = reference
    found: Iterable[Thing] = objects(pod, named)
    if kind == WORKLOAD:
        found = [
            group for one in found for group in fields.objects(one, "spec/podGroups") if group.get("name") == more[0]
        ]
        policies = [fields.part(group, "policy") for group in found]
    else:
        policies = [fields.part(one, "spec/schedulingPolicy") for one in found]
    if not policies:
        raise UsageError(f"its {_title(pod)} is not there yet" + (f": {named.trouble}" if named.trouble else ""))
    return policies[0]


def _title(pod: Thing) -> str:
    name = fields.text(pod, "spec/schedulingGroup/podGroupName")
    said = fields.part(pod, "spec/workloadRef")
    return (
        f"PodGroup {name}" if name else f"group {fields.text(said, 'podGroup')} of Workload {fields.text(said, 'name')}"
    )


# ---- by label ------------------------------------------------------------------------------------------


def _owner(pod: Thing) -> Line | None:
    owners: Iterable[Mapping[str, Any]] = pod["metadata"].get("ownerReferences") or ()
    namespace = str(pod["metadata"].get("namespace", ""))
    return next((("owner", namespace, str(one["uid"])) for one in owners if one.get("controller")), None)


def _size(pod: Thing) -> int:
    if not of_pod(pod, "labels", GROUP):
        return 1
    text = of_pod(pod, "annotations", SIZE)
    size = _count(text, MOST_OF_A_GROUP)
    if size is None:
        raise UsageError(
            f"it is in a pod group, and its annotation {SIZE} is {text[:20]!r}",
            hint="write how many pods start together",
        )
    return size


def _least(pod: Thing, size: int) -> int:
    text = of_pod(pod, "annotations", LEAST)
    if not text or not of_pod(pod, "labels", GROUP):
        return size
    least = _count(text, size)
    if least is None:
        raise UsageError(f"its annotation {LEAST} is {text[:20]!r}", hint=f"write a number from 1 to {SIZE}, {size}")
    return least


def _count(text: str, most: int) -> int | None:
    """None: it is no number from 1 to `most`."""
    found = int(text) if text.isdecimal() and len(text) <= DIGITS else 0
    return found if 1 <= found <= most else None
