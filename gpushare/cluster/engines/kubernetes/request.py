"""What a pod asks for, from its claims: a job of the allocator. Pure.

All GPUs of a pod are on one node, and the pod takes the same memory of each, as the node daemon has it. What cannot be
read here is refused with the reason, and never started as something else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpushare import quantity
from gpushare.cluster.engines.kubernetes import fitting
from gpushare.cluster.engines.kubernetes import volumes as of_volumes
from gpushare.cluster.engines.kubernetes.allocation import Device, allocation
from gpushare.cluster.engines.kubernetes.names import CHECKPOINT, PREEMPTIBLE, Key, Thing, key_of, of_pod
from gpushare.cluster.engines.kubernetes.volumes import NOTHING, Storage, Unmade
from gpushare.cluster.model import Selector, Tasks
from gpushare.errors import QuantityError, UsageError
from gpushare.kubernetes import carried
from gpushare.kubernetes import claim as claims
from gpushare.kubernetes.amounts import parse, written
from gpushare.kubernetes.names import DRIVER, MEMORY, OWN_CLASS
from gpushare.kubernetes.slices import STEP
from gpushare.quantity import Kind, Quantity, parse_duration

__all__ = ["Asked", "claims_of", "read"]

USUAL_PRIORITY = 50
"""Of a cluster's job; that of a node's job is 0."""
NOT_READ = ("selectors", "adminAccess", "firstAvailable")
"""Fields of a request that would change which devices it gets."""
HINT = f"write exactly: {{deviceClassName: {DRIVER}, capacity: {{requests: {{memory: 8Gi}}}}}}"


@dataclass(frozen=True, slots=True)
class Asked:
    """What of a job is in one of its pods."""

    claims: tuple[tuple[Key, int], ...]
    """Each of its claims, and on how many GPUs."""
    tasks: Tasks
    priority: int
    min_runtime: float
    grace: float | None
    """Seconds; None: as the pod says."""
    preemptible: bool
    checkpoint_every: float | None
    wants: fitting.Wants
    labels: tuple[tuple[str, str], ...]
    """That a node must have."""
    limits: tuple[Quantity | None, ...] = ()
    """Of each of its claims, as it says itself."""
    unmade: tuple[Unmade, ...] = ()
    """Claims of volumes that get these where it runs."""

    def suits(self, node: Thing) -> bool:
        """It may run there, if there is room."""
        labels = node["metadata"].get("labels") or {}
        return set(self.labels) <= set(labels.items()) and fitting.fits(node, self.wants)

    @property
    def selector(self) -> Selector:
        return Selector(labels=tuple(sorted((*self.labels, self.wants.label))))


def claims_of(pod: Thing, known: Mapping[Key, Thing]) -> list[Key] | None:
    """Its claims; None: Kubernetes has not made all of them yet. One that the pod carries itself is `known`."""
    namespace = pod["metadata"]["namespace"]
    if not pod["spec"].get("resourceClaims"):
        own = known.get(key_of(pod))
        return [key_of(pod)] if own is not None and carried.is_carried(own) else []
    made = {
        one["name"]: one.get("resourceClaimName")
        for one in (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    }
    found = []
    for one in pod["spec"].get("resourceClaims") or ():
        name = one.get("resourceClaimName") or made.get(one["name"])
        if name is None and one["name"] not in made:
            return None
        if name is not None:  # else its template makes none
            found.append((namespace, name))
    return found


def read(
    pod: Thing, found: Mapping[Key, Thing], classes: Mapping[str, Thing], storage: Storage = NOTHING
) -> Asked | None:
    """None: its claims are not there yet. Raises UsageError, which says what is wrong."""
    try:
        return _read(pod, found, classes, storage)
    except claims.MALFORMED as error:
        raise UsageError(f"its claims cannot be read: {type(error).__name__} {error}") from None


def _read(pod: Thing, found: Mapping[Key, Thing], classes: Mapping[str, Thing], storage: Storage) -> Asked | None:
    keys = claims_of(pod, found)
    if keys is None or any(key not in found for key in keys):
        return None
    if not keys:
        raise UsageError(
            f"it claims no GPU of {DRIVER}", hint="leave schedulerName out: another scheduler starts such pods"
        )
    _check_pod(pod)
    if carried.is_carried(found[keys[0]]):
        carried.reading(pod)
    volumes = of_volumes.read(pod, storage)
    if not volumes.listed:
        return None
    memory: set[int | None] = set()
    counts, read = [], []
    for key in keys:
        requests = list(_requests(found[key], classes))
        memory |= {amount for _, amount in requests}
        count = sum(number for number, _ in requests)
        counts.append((key, count))
        read.append(_as_allocated(found[key], classes, count, requests[0][1]))
    if len(memory) > 1:
        raise UsageError(
            "its GPUs have different amounts of memory", hint="ask for the same of each, or make two pods of it"
        )
    amount = memory.pop()
    options = [one.budget.options for one in read]
    graces = [one["grace"] for one in options if "grace" in one]
    return Asked(
        claims=tuple(counts),
        tasks=Tasks(gpus=sum(count for _, count in counts), memory=amount, limit=_limit(read, amount)),
        priority=USUAL_PRIORITY + min(one.get("priority", 0) for one in options),
        min_runtime=max(one.get("min_run_time", 0.0) for one in options),
        grace=min(graces, default=None),
        preemptible=of_pod(pod, "annotations", PREEMPTIBLE) != "false",
        checkpoint_every=_checkpoints(of_pod(pod, "annotations", CHECKPOINT)),
        wants=fitting.of(pod, volumes.terms),
        labels=tuple((pod["spec"].get("nodeSelector") or {}).items()),
        limits=tuple(one.budget.limit for one in read),
        unmade=volumes.unmade,
    )


def _requests(claim: Thing, classes: Mapping[str, Thing]) -> Iterator[tuple[int, int | None]]:
    """Of each of its requests: how many GPUs, and bytes of each; None: all of it."""
    title = "claim {}/{}".format(claim["metadata"]["namespace"], claim["metadata"]["name"])
    spec = claim["spec"]["devices"]
    if spec.get("constraints"):
        raise UsageError(f"{title} has constraints, which this scheduler does not read", hint="leave them out")
    if not spec.get("requests"):
        raise UsageError(f"{title} requests no GPU", hint=HINT)
    for one in spec["requests"]:
        exactly = one.get("exactly") or {}
        said = [name for name in NOT_READ if one.get(name) or exactly.get(name)]
        if said or exactly.get("allocationMode", "ExactCount") != "ExactCount":
            what = said[0] if said else f"allocationMode {exactly['allocationMode']}"
            raise UsageError(f"{title} has {what}, which this scheduler does not read", hint=HINT)
        _check_class(title, exactly["deviceClassName"], classes)
        asked = (exactly.get("capacity") or {}).get("requests") or {}
        if set(asked) - {MEMORY}:
            raise UsageError(f"{title} asks for more than the capacity {MEMORY}", hint=HINT)
        try:
            amount = None if MEMORY not in asked else -(-parse(asked[MEMORY]) // STEP) * STEP
        except QuantityError as error:
            raise UsageError(f"{title}: {error.message}", hint=error.hint) from None
        if amount == 0:
            raise UsageError(f"{title} asks for no memory", hint=HINT)
        yield exactly.get("count") or 1, amount


def _check_class(title: str, name: str, classes: Mapping[str, Thing]) -> None:
    if name not in classes:
        raise UsageError(f"{title}: there is no DeviceClass {name}")
    selectors = classes[name]["spec"].get("selectors") or ()
    expressions = [(one.get("cel") or {}).get("expression", "").strip() for one in selectors]
    if expressions != [OWN_CLASS]:
        raise UsageError(
            f"{title}: DeviceClass {name} is not one of {DRIVER} alone",
            hint=f"this scheduler takes classes with the one selector {OWN_CLASS}",
        )


def _as_allocated(claim: Thing, classes: Mapping[str, Thing], count: int, amount: int | None) -> claims.Allocated:
    """What the node's plugin will read of it. Raises UsageError, as it would there."""
    devices = [Device(str(number), 0, shared=amount is not None) for number in range(count)]
    given = allocation(claim, classes, "?", devices, amount or 0)
    return claims.read({**claim, "status": {"allocation": given}}, "?")


def _limit(read: list[claims.Allocated], amount: int | None) -> int | None:
    """Bytes, where all its claims say the same. Raises UsageError for one below the request."""
    limits = {one.budget.limit for one in read}
    if amount is not None:
        for one in read:
            _check_limit(one, amount)
    limit = limits.pop() if len(limits) == 1 else None
    return limit.value if limit is not None and limit.kind is Kind.BYTES and amount is not None else None


def _check_limit(one: claims.Allocated, amount: int) -> None:
    try:
        quantity.Budget.of(Quantity.parse(written(amount)), one.budget.limit)
    except UsageError:
        message = f"{one}: Budget.limit {one.budget.limit} is below the request {written(amount)}"
        raise UsageError(message, hint="raise the limit, or leave it out") from None


def _checkpoints(text: str) -> float | None:
    return parse_duration(text) if text else None


# ---- where it may run ----------------------------------------------------------------------------------


def _check_pod(pod: Thing) -> None:
    """What other schedulers read and this one does not."""
    spec: Mapping[str, Any] = pod["spec"]
    affinity = spec.get("affinity") or {}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    for name in ("podAffinity", "podAntiAffinity"):
        if (affinity.get(name) or {}).get(required):
            raise UsageError(f"it has a required {name}, which this scheduler does not read", hint="use nodeSelector")
    if any(one.get("whenUnsatisfiable") == "DoNotSchedule" for one in spec.get("topologySpreadConstraints") or ()):
        raise UsageError("it has topologySpreadConstraints, which this scheduler does not read", hint="leave them out")
