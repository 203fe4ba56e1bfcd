"""What administrators say about limits: of a queue, and of the cluster. Pure.

    defaultLimit      of pods that say no limit themselves
    interactiveLimit  the same, for interactive pods
    maxLimit          no pod's limit is more

Each is a part of a GPU. The nearest queue on the way up that says a default counts, then the cluster; the least of all
maxima counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpushare.cluster.engines.kubernetes.names import QUEUE
from gpushare.errors import QuantityError, UsageError
from gpushare.quantity import Kind, Quantity

__all__ = ["FIELDS", "NONE", "Limits", "read", "together"]

FIELDS: Mapping[str, str] = {"defaultLimit": "usual", "interactiveLimit": "interactive", "maxLimit": "most"}
"""Of a queue's `spec`, and of Limits."""
DEEPEST = 100
"""Queues above one another. More is a circle."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Parts of a GPU, of SHARE_PARTS; None: nothing is said."""

    usual: int | None = None
    interactive: int | None = None
    most: int | None = None
    whose: str = "this cluster"
    """Whose maximum that is."""


NONE = Limits()


def read(spec: Mapping[str, Any], whose: str, at: str = "spec.") -> Limits:
    """Raises UsageError, which names the field."""
    found = {FIELDS[name]: _share(f"{at}{name}", spec[name]) for name in FIELDS if spec.get(name) is not None}
    return Limits(**found, whose=whose)


def together(
    pod: Mapping[str, Any], queue: str, queues: Mapping[str, Mapping[str, Any]] | None, above: Limits
) -> Limits:
    """What holds for a pod of this namespace's queue, or of the one that its label names. `queues`: objects of the
    kind Queue by name; None: the API server does not know it. Raises UsageError for a queue that is not there."""
    said = (pod["metadata"].get("labels") or {}).get(QUEUE)
    if said and queues is not None and said not in queues:
        raise UsageError(f"label {QUEUE}: there is no queue {str(said)[:60]!r}", hint="kubectl get queues.gpushare.dev")
    path: list[Limits] = []
    name: Any = said or queue
    while queues is not None and name in queues and len(path) < DEEPEST:
        spec = queues[name].get("spec") or {}
        path.append(read(spec, f"queue {name}", f"queue {name}: spec."))
        name = spec.get("parent")
    return _merged([*path, above])


def _merged(path: Sequence[Limits]) -> Limits:
    """Nearest first."""
    most = min((one for one in path if one.most is not None), key=lambda one: one.most or 0, default=Limits())
    return Limits(
        next((one.usual for one in path if one.usual is not None), None),
        next((one.interactive for one in path if one.interactive is not None), None),
        most.most,
        most.whose,
    )


def _share(where: str, value: object) -> int:
    try:
        found = Quantity.parse(str(value))
    except QuantityError:
        found = None
    if found is None or found.kind is not Kind.SHARE:
        hint = "write a part of a GPU, as in 0.5 or 50%, or 1 for all of it"
        raise UsageError(f"{where}: {str(value)[:40]!r} is not a part of a GPU", hint=hint)
    return found.value
