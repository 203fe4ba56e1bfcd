"""What a pod's annotations ask for, as KAI and Run:ai document them. Pure.

    gpu-fraction: "0.5"                 of each GPU's memory            gpu-fraction-limit: "0.8"
    gpu-memory: "8192"                  MiB of each GPU, or 8Gi         gpu-memory-limit: "16384"
    gpu-fraction-num-devices: "2"       on so many GPUs
    gpu-fraction-container-name: main   the container that uses them; else the first
    gpushare.dev/budget: '{"grace": "30s"}'   what a Budget says beside the limit; ours, and not theirs

The variable RUNAI_GPU_MEMORY_LIMIT of that container is a limit, too. Request and limit are both parts of a GPU, or
both amounts; a limit of `1` is the whole GPU for either. KAI's annotations of a single container say the same
(of_container.py); amounts in these are Kubernetes', so a number without a unit is bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpushare.errors import QuantityError, UsageError
from gpushare.kubernetes import amounts
from gpushare.kubernetes.budget import read as read_budget
from gpushare.kubernetes.fields import json_object
from gpushare.kubernetes.names import API, BUDGET, DRIVER
from gpushare.kubernetes.webhook import of_container
from gpushare.kubernetes.webhook.of_container import OfContainer
from gpushare.quantity import MAX, SHARE_PARTS, Dialect, Kind, Quantity

__all__ = ["ANNOTATIONS", "Asked", "read"]

FRACTION, MEMORY = "gpu-fraction", "gpu-memory"
COUNT = "gpu-fraction-num-devices"
CONTAINER = "gpu-fraction-container-name"
LIMITS: Mapping[str, Sequence[str]] = {
    FRACTION: ("gpu-fraction-limit", "gpu-fraction.limit"),
    MEMORY: ("gpu-memory-limit", "gpu-memory.limit"),
}
"""With a dash, and as KAI writes them."""
ANNOTATIONS = (FRACTION, MEMORY, *LIMITS[FRACTION], *LIMITS[MEMORY], COUNT, CONTAINER)
BUDGET_SAID = f"{DRIVER}/budget"
VARIABLE = "RUNAI_GPU_MEMORY_LIMIT"
WHOLE_GPUS = "nvidia.com/gpu"
MOST_GPUS = 32
"""Devices that one claim may have in Kubernetes."""
HINTS: Mapping[Kind, str] = {
    Kind.SHARE: "write a part of one GPU, as in 0.5, or 1 for all of it",
    Kind.BYTES: "write MiB, as in 8192, or an amount with its unit, as in 8Gi",
}
HINTS_OF_VARIABLE = {**HINTS, Kind.BYTES: "write an amount with its unit, as in 16Gi, or 1 for the whole GPU"}


@dataclass(frozen=True, slots=True)
class Asked:
    """Of each GPU."""

    request: Quantity
    """Bytes or a share."""
    said: str
    """The annotation that says it, and its value: for messages."""
    limit: Quantity | None
    """Of the same kind, or MAX. None: nothing is said."""
    limit_said: str
    count: int
    """GPUs."""
    container: tuple[str, int]
    """The list in the pod's spec that it is in, and where."""
    budget: Mapping[str, Any] = field(default_factory=dict)
    """Fields of a Budget, without the limit."""

    @property
    def whole(self) -> bool:
        return self.request.kind is Kind.SHARE and self.request.value == SHARE_PARTS


def read(pod: Mapping[str, Any]) -> Asked | None:
    """None: it has none of these annotations. Raises UsageError, which names the annotation."""
    found = pod["metadata"].get("annotations") or {}
    own = of_container.read(found)
    names = [name for name in ANNOTATIONS if name in found] + ([*own.names.values()] if own else [])
    said = {name: str(found[name]) for name in names}
    if not said:
        return None
    requests = [name for name in (FRACTION, MEMORY, own and own.request) if name in said]
    if not requests:
        name = next(iter(said))
        raise UsageError(f"annotation {name} stands alone", hint=f"add {FRACTION} or {MEMORY}, which say the request")
    if len(requests) > 1:
        raise UsageError(f"annotations {requests[0]} and {requests[1]} both say the request", hint="keep one of them")
    (name,) = requests
    assert name is not None
    _check_whole_gpus(pod["spec"], name)
    kind = Kind.SHARE if name == FRACTION else Kind.BYTES
    request = _said(name, said[name], kind)
    container = _container(pod["spec"], said.get(CONTAINER), own)
    shown = f"{name} {said[name]}"
    limit, limit_said = _limit(name, said, pod["spec"][container[0]][container[1]], kind, own)
    if limit is not None and limit.kind is kind and limit.value < request.value:
        raise UsageError(f"{limit_said} is below {shown}", hint="raise the limit, or leave it out")
    budget = _budget(str(found.get(BUDGET_SAID) or "{}"))
    return Asked(request, shown, limit, limit_said, _count(said.get(COUNT, "1")), container, budget)


def _said(name: str, text: str, kind: Kind) -> Quantity:
    """Of an annotation."""
    where = f"annotation {name}"
    if name in ANNOTATIONS or kind is Kind.SHARE:
        return _amount(where, text, kind)
    try:
        found = amounts.parse(text)
    except QuantityError as error:
        raise UsageError(f"{where}: {error.message}", hint=error.hint) from None
    if not 0 < found < 2**63:
        raise UsageError(f"{where}: {_shown(text)} is not an amount of memory", hint="write 8Gi or 1536Mi")
    return Quantity(Kind.BYTES, found, text)


def _amount(where: str, text: str, kind: Kind, dialect: Dialect | None = None) -> Quantity:
    bare = kind is Kind.BYTES and text.strip().isdecimal()
    hint = HINTS[kind] if dialect is None else HINTS_OF_VARIABLE[kind]
    try:
        found = Quantity.parse(text, dialect or (Dialect.MIB if bare else Dialect.NATIVE))
    except QuantityError as error:
        raise UsageError(f"{where}: {error.message}", hint=hint) from None
    if found.kind is not kind:
        what = "a part of a GPU" if kind is Kind.SHARE else "an amount of memory"
        raise UsageError(f"{where}: {_shown(text)} is not {what}", hint=hint)
    return found


def _limit(
    name: str, said: Mapping[str, str], container: Mapping[str, Any], kind: Kind, own: OfContainer | None
) -> tuple[Quantity | None, str]:
    """The limit, and what says it."""
    of_own = own and (own.portion if name == FRACTION else own.limit)
    mine = [*LIMITS.get(name, ()), *([of_own] if of_own else [])]
    all_limits = [*LIMITS[FRACTION], *LIMITS[MEMORY], *(one for one in (own and own.portion, own and own.limit) if one)]
    for wrong in all_limits:
        if wrong in said and wrong not in mine:
            raise UsageError(f"annotation {wrong} is not the limit of {name}", hint=f"write {_limit_for(name)}")
    read = [(_limit_of(one, said[one], kind), f"annotation {one} {_shown(said[one])}") for one in mine if one in said]
    variable = _variable(container)
    if variable:
        where = f"variable {VARIABLE}"
        read.append((_limit_of_variable(where, variable, kind), f"{where} {_shown(variable)}"))
    if len({limit for limit, _ in read}) > 1:
        raise UsageError(f"{read[0][1]} and {read[-1][1]} are two limits", hint="keep one of them")
    return read[0] if read else (None, "")


def _limit_for(name: str) -> str:
    """The annotation that says the limit beside that one."""
    return LIMITS[name][0] if name in LIMITS else name.replace(".request", ".limit")


def _limit_of(name: str, text: str, kind: Kind) -> Quantity:
    """All of it is the whole GPU."""
    if text.strip() == "max" and name in ANNOTATIONS:
        return MAX
    found = _said(name, text, kind)
    return MAX if found.kind is Kind.SHARE and found.value == SHARE_PARTS else found


def _limit_of_variable(where: str, text: str, kind: Kind) -> Quantity:
    """`1` is the whole GPU, whatever the request is."""
    if text.strip() in ("max", "1", "1.0"):
        return MAX
    return _amount(where, text, kind, Dialect.RUNAI)


def _variable(container: Mapping[str, Any]) -> str:
    said = [one for one in container.get("env") or () if one.get("name") == VARIABLE]
    if said and said[-1].get("valueFrom"):
        raise UsageError(f"variable {VARIABLE} has its value from elsewhere", hint="write the value itself")
    return str(said[-1].get("value") or "") if said else ""


def _budget(text: str) -> Mapping[str, Any]:
    said = json_object(text)
    if said is None:
        raise UsageError(f"annotation {BUDGET_SAID} is not an object of JSON", hint='write {"grace": "30s"}')
    if "limit" in said:
        hint = f"write {LIMITS[FRACTION][0]} or {LIMITS[MEMORY][0]}"
        raise UsageError(f"annotation {BUDGET_SAID} says the limit", hint=hint)
    try:
        read_budget({"apiVersion": API, "kind": BUDGET, **said})
    except UsageError as error:
        raise UsageError(f"annotation {BUDGET_SAID}: {error.message}", hint=error.hint) from None
    return said


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 4 and 1 <= int(text) <= MOST_GPUS):
        raise UsageError(f"annotation {COUNT}: {_shown(text)} is not a number of GPUs from 1 to {MOST_GPUS}")
    return int(text)


def _container(spec: Mapping[str, Any], name: str | None, own: OfContainer | None) -> tuple[str, int]:
    said, hint = CONTAINER, "name one, or leave it out for the first"
    if own is not None:
        said = next(iter(own.names.values()))
        if name not in (None, own.container):
            raise UsageError(
                f"annotation {CONTAINER} is {_shown(str(name))}, and annotation {said} is of another", hint="name one"
            )
        name, hint = own.container, "name one of its containers"
    if name is None:
        return "containers", 0
    for kind in ("containers", "initContainers"):
        for index, one in enumerate(spec.get(kind) or ()):
            if one.get("name") == name:
                return kind, index
    raise UsageError(
        f"annotation {said}: the pod has no container {_shown(name)}",
        hint=hint,
    )


def _check_whole_gpus(spec: Mapping[str, Any], name: str) -> None:
    for one in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
        resources = one.get("resources") or {}
        if any(WHOLE_GPUS in (resources.get(kind) or {}) for kind in ("limits", "requests")):
            message = f"container {one.get('name')} asks for {WHOLE_GPUS}, and annotation {name} for a part of a GPU"
            raise UsageError(message, hint="leave one of them out")


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:37]}...")
