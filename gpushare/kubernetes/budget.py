"""The driver's own block in a claim or in its class: what the request does not say. Pure.

    opaque:
      driver: gpushare.dev
      parameters:
        apiVersion: gpushare.dev/v1
        kind: Budget
        limit: 24Gi              the most on each GPU; what is used above the request is borrowed
        grace: 30s               between SIGTERM and SIGKILL when memory is asked back
        onReclaim: [trim, term]  how it may be asked back
        priority: 10             of jobs on a node, the lowest are stopped first
        minRunTime: 10m          after its start nobody stops it for so long
        lend: true               false: what it leaves idle of its request is not lent
        visible: request         what a program sees as the size of the GPU: limit or request

Amounts are as `gpushare run` takes them: 24Gi, 50%, max. Administrators write classes, and users write claims. So a
claim may say less than its class of what is taken from others: priority, run time, grace.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

from gpushare.errors import GpushareError, UsageError
from gpushare.job_spec import FOREVER, LONGEST_GRACE, OPTIONS
from gpushare.kubernetes.names import API, BUDGET
from gpushare.nearest import did_you_mean
from gpushare.quantity import Quantity, parse_duration
from gpushare.reclaim_steps import OF_THE_WRAPPER, parse_steps

__all__ = ["Budget", "merged", "read"]

VISIBLE = ("limit", "request")
OF_OTHERS: Mapping[str, tuple[str, float]] = {
    "priority": ("priority", 0),
    "min_run_time": ("minRunTime", 0.0),
    "grace": ("grace", LONGEST_GRACE),
}
"""Option of a placement -> its field, and the most that a claim may say where its class says nothing. A grace has a
bound of the daemon's: it never outlasts a claim that waits."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What one or several blocks say."""

    limit: Quantity | None = None
    """None: as much as the request."""
    visible: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of a placement (docs/placements.md), as its body has them."""


def read(parameters: object) -> Budget:
    """One block. Raises UsageError, which names the field."""
    if not isinstance(parameters, Mapping):
        raise UsageError(f"the block of {API} is not an object")
    said = dict(parameters)
    kind, version = said.pop("kind", None), said.pop("apiVersion", None)
    if (version, kind) != (API, BUDGET):
        raise UsageError(
            f"{str(version)[:60]} {str(kind)[:60]} is not a kind of the driver", hint=f"write {API} {BUDGET}"
        )
    budget = Budget()
    for name, value in said.items():
        if name not in FIELDS:
            hint = did_you_mean(str(name), FIELDS) or f"there are: {', '.join(FIELDS)}"
            raise UsageError(f"{BUDGET} has no field {str(name)[:60]!r}", hint=hint)
        try:
            budget = FIELDS[name](budget, value)
        except GpushareError as error:
            raise UsageError(f"{BUDGET}.{name}: {error.message}", hint=error.hint, code=error.code) from None
    return budget


def merged(of_class: Iterable[Budget], of_claim: Iterable[Budget]) -> Budget:
    """Field by field, what a later block says counts, and a claim's before its class's. Raises UsageError for what only
    a class may say."""
    found = reduce(_over, of_class, Budget())
    own = reduce(_over, of_claim, Budget())
    for name, (field_, least) in OF_OTHERS.items():
        most = found.options.get(name, least)
        if own.options.get(name, most) > most:
            raise UsageError(
                f"{BUDGET}.{field_}: a claim may not say more than its class, which allows {most:g}",
                hint="an administrator sets it in the DeviceClass",
            )
    return _over(found, own)


def _over(below: Budget, one: Budget) -> Budget:
    return Budget(one.limit or below.limit, one.visible or below.visible, {**below.options, **one.options})


# ---- fields --------------------------------------------------------------------------------------------


def _limit(budget: Budget, value: object) -> Budget:
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise UsageError(f"{_shown(value)} is not an amount", hint="write 24Gi, 50% or max")
    return replace(budget, limit=Quantity.parse(str(value)))


def _visible(budget: Budget, value: object) -> Budget:
    if value not in VISIBLE:
        raise UsageError(f"{_shown(value)} is neither limit nor request")
    return replace(budget, visible=str(value))


def _option(name: str, read: Callable[[object], Any]) -> Callable[[Budget, object], Budget]:
    return lambda budget, value: replace(budget, options={**budget.options, name: read(value)})


def _seconds(most: float) -> Callable[[object], float]:
    def read(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise UsageError(f"{_shown(value)} is not a duration", hint="write 30s, 500ms or 2m")
        seconds = parse_duration(value) if isinstance(value, str) else float(value)
        if math.isnan(seconds) or not 0 <= seconds <= most:
            raise UsageError(f"{_shown(value)} is not a time from 0 to {most:g} seconds")
        return seconds

    return read


def _integer(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"{_shown(value)} is not a whole number", hint="write 10, 0 or -5")
    option = OPTIONS["priority"]
    if not option.least <= value <= option.most:
        raise UsageError(f"{_shown(value)} is not between {option.least} and {option.most}", hint="write 10, 0 or -5")
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise UsageError(f"{_shown(value)} is neither true nor false")
    return value


def _steps(value: object) -> str:
    words = [value] if isinstance(value, str) else value
    if not isinstance(words, list) or not words or not all(isinstance(one, str) for one in words):
        raise UsageError(f"{_shown(value)} is not a list of steps", hint="write [trim, term]")
    steps = parse_steps(",".join(words))
    for step in OF_THE_WRAPPER:
        if step in steps:
            raise UsageError(
                f"the step {step} is done by `gpushare run`, which is not in a pod", hint="write [trim, term]"
            )
    return ",".join(steps)


def _shown(value: object) -> str:
    return repr(value)[:60]


FIELDS: Mapping[str, Callable[[Budget, object], Budget]] = {
    "limit": _limit,
    "grace": _option("grace", _seconds(LONGEST_GRACE)),
    "onReclaim": _option("on_reclaim", _steps),
    "priority": _option("priority", _integer),
    "minRunTime": _option("min_run_time", _seconds(FOREVER)),
    "lend": _option("lend", _flag),
    "visible": _visible,
}
