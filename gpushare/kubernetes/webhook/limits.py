"""What administrators say about limits: of a queue, and of the cluster. Pure.

    defaultLimit      of pods that say no limit themselves
    interactiveLimit  the same, for interactive pods
    maxLimit          no pod's limit is more

Each is a part of a GPU. The nearest queue on the way up that says a default counts, then the cluster; the least of all
maxima counts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpushare.cluster.engines.kubernetes.names import QUEUE
from gpushare.errors import QuantityError, UsageError
from gpushare.quantity import Kind, Quantity

__all__ = ["FIELDS", "INTERACTIVE", "NONE", "OPTIONS", "USUAL_RULES", "Limits", "Rules", "read", "together"]

FIELDS: Mapping[str, str] = {"defaultLimit": "usual", "interactiveLimit": "interactive", "maxLimit": "most"}
"""Of a queue's `spec`, and of Limits."""
OPTIONS: Mapping[str, str] = {
    "defaultLimit": "default_limit",
    "interactiveLimit": "interactive_limit",
    "maxLimit": "max_limit",
}
"""Field of a queue, and the option or setting that says it for the cluster."""
INTERACTIVE = ("build", "build-preemptible", "interactive-preemptible")
"""Priority classes of interactive pods in KAI and Run:ai."""
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

    def usual_for(self, *, interactive: bool) -> int | None:
        return self.interactive if interactive and self.interactive is not None else self.usual


NONE = Limits()


@dataclass(frozen=True, slots=True)
class Rules:
    """What the administrator says for the whole cluster."""

    limits: Limits = NONE
    interactive: Collection[str] = INTERACTIVE
    """Priority classes."""

    def is_interactive(self, pod: Mapping[str, Any]) -> bool:
        """KAI takes the class from a label, too."""
        label = (pod["metadata"].get("labels") or {}).get("priorityClassName")
        return str(label or pod["spec"].get("priorityClassName") or "") in self.interactive


USUAL_RULES = Rules()


def read(spec: Mapping[str, Any], whose: str, at: str = "spec.") -> Limits:
    """Raises UsageError, which names the field."""
    found = {FIELDS[name]: _share(f"{at}{name}", spec[name]) for name in FIELDS if spec.get(name) is not None}
    return Limits(**found, whose=whose)


def together(said: str, queue: str, queues: Mapping[str, Mapping[str, Any]] | None, above: Limits) -> Limits:
    """What holds for a pod of this namespace's queue, or of the one that is `said` in its label. `queues`: objects of
    the kind Queue by name; None: the API server does not know it. Raises UsageError for a queue that is not there."""
    if said and queues is not None and said not in queues:
        raise UsageError(f"label {QUEUE}: there is no queue {said[:60]!r}", hint="kubectl get queues.gpushare.dev")
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
