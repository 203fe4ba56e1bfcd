"""What nodes, slices, claims and pods mean for the reconcile loop. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from gpushare.cluster.engines.kubernetes import needs
from gpushare.cluster.engines.kubernetes.allocation import Device, Part
from gpushare.cluster.engines.kubernetes.fitting import LOST, Wants, fits
from gpushare.cluster.engines.kubernetes.mark import Mark
from gpushare.cluster.engines.kubernetes.names import Thing
from gpushare.cluster.engines.kubernetes.needs import NONE, PLENTY, Needs
from gpushare.cluster.engines.seam import SeenNode
from gpushare.cluster.model import Node
from gpushare.cluster.nouns import MOST_GPUS_OF_NODE
from gpushare.errors import UsageError
from gpushare.kubernetes.amounts import parse
from gpushare.kubernetes.names import DRIVER, MEMORY

__all__ = [
    "Held",
    "Kept",
    "Phase",
    "Shape",
    "gpus_of",
    "is_over",
    "is_replaced",
    "node_of",
    "phase_of",
    "seconds",
    "used",
]

Phase = Literal["starting", "running", "stopping", "done", "failed"]
OVER = ("Succeeded", "Failed")
POOL = "gpushare.dev/pool"
"""Label of a node: its pool."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A node with its GPUs."""

    node: Node
    devices: Mapping[int, Device]
    """By the index of the GPU."""
    state: Literal["ready", "unknown", "lost"]
    cordoned: bool
    room: Needs = PLENTY
    """Of its CPUs and memory, beside all pods that it has."""

    def seen(self, foreign: Mapping[tuple[str, int], int]) -> SeenNode:
        name = self.node.name
        taken = tuple((gpu, foreign[name, gpu]) for gpu in range(self.node.gpus) if foreign.get((name, gpu)))
        return SeenNode(self.node, self.state, cordoned=self.cordoned, foreign=taken)

    def index(self, device: str) -> int | None:
        return next((index for index, one in self.devices.items() if one.name == device), None)


def seconds(text: str | None) -> float | None:
    """Since 1970, of a time as the API server writes it."""
    return datetime.fromisoformat(text).timestamp() if text else None


# ---- nodes ---------------------------------------------------------------------------------------------


def gpus_of(slices: Iterable[Thing]) -> dict[str, list[Thing]]:
    """Devices of each node, from the newest slices of its pool, if all of these are there."""
    pools: dict[str, list[Thing]] = {}
    for one in slices:
        spec = one["spec"]
        if spec.get("driver") == DRIVER and spec.get("nodeName") and spec["pool"]["name"] == spec["nodeName"]:
            pools.setdefault(spec["nodeName"], []).append(spec)
    found = {}
    for node, specs in pools.items():
        newest = max(spec["pool"]["generation"] for spec in specs)
        those = [spec for spec in specs if spec["pool"]["generation"] == newest]
        if len(those) >= those[0]["pool"].get("resourceSliceCount", 1):
            found[node] = [device for spec in those for device in spec.get("devices") or ()]
    return found


@dataclass(slots=True)
class Held:
    """What pods of ours have of a node."""

    needs: Needs = NONE
    gpus: Counter[int] = field(default_factory=Counter)
    """Bytes of each GPU."""


Shape = tuple[int, int | None]
"""GPUs that a pod asks for, and bytes of each; None: all of it."""


def node_of(
    node: Thing,
    devices: Sequence[Thing],
    wanted: Mapping[Wants, Collection[Shape]],
    taken: Needs = NONE,
    held: Held | None = None,
) -> Kept | None:
    """`wanted`: what pods say about nodes, and what those of them that wait ask for. `taken`: what pods of others have
    of its CPUs and memory; `held`: what ours have. None: it has no GPU of this driver."""
    there = _by_index(devices)
    if not there:
        return None
    meta, spec, status = node["metadata"], node.get("spec") or {}, node.get("status") or {}
    known = {index: _device(one) for index, one in there.items()}
    count = max(there) + 1
    sick = {index for index, one in there.items() if one.get("taints")}
    labels = dict(meta.get("labels") or {})
    left = needs.left(node, taken)
    room = left.less(held.needs if held is not None else NONE)
    free = [one.memory - (held.gpus[index] if held is not None else 0) for index, one in known.items()]
    whole = min(one.memory for one in known.values())
    fitting = tuple(
        one.label
        for one, shapes in wanted.items()
        if fits(node, one, left) and (one.needs.within(room) or _makes_room(shapes, free, whole))
    )
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions") or ())
    lost = any(taint.get("key") == LOST for taint in spec.get("taints") or ())
    made = Node(
        name=meta["name"],
        gpus=count,
        memory=whole,
        type=_attribute(next(iter(there.values())), "productName"),
        pool=labels.get(POOL, "default"),
        labels=tuple(sorted((*labels.items(), *fitting))),
        broken=frozenset(index for index in range(count) if index not in there or index in sick),
        uuids=tuple(_attribute(there[index], "uuid") if index in there else "" for index in range(count)),
    )
    state: Literal["ready", "unknown", "lost"] = "lost" if lost else "ready" if ready else "unknown"
    return Kept(made, known, state, bool(spec.get("unschedulable")), room)


def _makes_room(shapes: Collection[Shape], free: Sequence[int], whole: int) -> bool:
    """Some of them can only be started by evicting others, whose CPUs and memory are free then. Where none waits,
    those that run stay."""
    return not shapes or any(
        sum(left >= (whole if amount is None else amount) for left in free) < gpus for gpus, amount in shapes
    )


def _by_index(devices: Sequence[Thing]) -> dict[int, Thing]:
    """By the node's own numbers, so that a GPU keeps its number when another one is gone."""
    found: dict[int, Thing] = {}
    for place, one in enumerate(devices):
        index = ((one.get("attributes") or {}).get("index") or {}).get("int", place)
        if 0 <= index < MOST_GPUS_OF_NODE and index not in found and _memory(one):
            found[index] = one
    return dict(sorted(found.items()))


def _memory(device: Thing) -> int:
    """Bytes; 0: it does not say."""
    try:
        return parse(((device.get("capacity") or {}).get(MEMORY) or {}).get("value"))
    except UsageError:
        return 0


def _device(one: Thing) -> Device:
    return Device(one["name"], _memory(one), bool(one.get("allowMultipleAllocations")), _attribute(one, "uuid"))


def _attribute(device: Thing, name: str) -> str:
    return str(((device.get("attributes") or {}).get(name) or {}).get("string", ""))


# ---- pods ----------------------------------------------------------------------------------------------


def is_over(pod: Thing) -> bool:
    """None of its programs runs, or will."""
    return (pod.get("status") or {}).get("phase") in OVER


def is_replaced(pod: Thing) -> bool:
    """A pod that restarts always is being deleted: its controller makes another one, however its programs ended."""
    return pod["spec"].get("restartPolicy") == "Always" and bool(pod["metadata"].get("deletionTimestamp"))


def phase_of(pod: Thing, mark: Mark, *, holds: Callable[[], bool]) -> Phase | None:
    """Of the task that the mark is about. None: nothing of it exists, or will. `holds`: its claims have devices."""
    if not mark.node:
        return None
    if pod["spec"].get("nodeName"):
        if is_over(pod):
            return "stopping" if holds() else None if is_replaced(pod) else "done"
        if pod["metadata"].get("deletionTimestamp"):
            return "stopping"
        return "running" if (pod.get("status") or {}).get("phase") == "Running" else "starting"
    if pod["metadata"].get("deletionTimestamp") or mark.stop:
        return "stopping" if holds() else None
    if mark.failed:
        return "stopping" if holds() else "failed"
    return "starting"


# ---- GPUs ----------------------------------------------------------------------------------------------


def used(parts: Iterable[Part], nodes: Mapping[str, Kept]) -> Counter[tuple[str, int]]:
    """Bytes of each GPU that these have; of no GPU more than it has."""
    found: Counter[tuple[str, int]] = Counter()
    for part in parts:
        kept = nodes.get(part.node)
        index = kept.index(part.device) if kept is not None else None
        if kept is not None and index is not None:
            whole = kept.devices[index].memory
            found[part.node, index] += whole if part.memory is None else part.memory
    return Counter({place: min(amount, nodes[place[0]].node.memory) for place, amount in found.items()})
