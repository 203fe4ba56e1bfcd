"""Which namespaces may use a queue. Pure.

Users write the label of a pod that names its queue. Administrators say in the queue's object, or in one above it, whose
it is: by names (`namespaces`) and by labels (`namespaceSelector`). One of both is enough, and the nearest queue on the
way up that says either counts. A pod of another namespace waits. One that has started goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from gpushare.cluster.engines.kubernetes import fitting
from gpushare.cluster.engines.kubernetes.member import Member
from gpushare.cluster.engines.kubernetes.names import QUEUE, Thing
from gpushare.errors import UsageError
from gpushare.kubernetes import fields

__all__ = ["FIELDS", "Users", "bar", "check"]

NAMES, SELECTOR = "namespaces", "namespaceSelector"
FIELDS = (NAMES, SELECTOR)
"""Of a queue's `spec`."""
DEEPEST = 100
"""Queues above one another. More is a circle."""
HINT = f"name a queue of this namespace in the label {QUEUE}, or ask who keeps the queues"


@dataclass(frozen=True, slots=True)
class Users:
    """What there is to say about queues and namespaces."""

    queues: Mapping[str, Thing]
    namespaces: Mapping[str, Thing] | None
    """By name; None: they cannot be read."""
    open: bool = True
    """A queue that says nothing of namespaces is for all. Else it is for the namespace of the same name."""

    def barred(self, namespace: str, queue: str) -> str:
        """Why its pods may not use that queue; "": they may."""
        refused = f"namespace {namespace} may not use queue {queue}"
        name, spec = self._said(queue) or ("", {})
        if not name:
            why = "a queue that says nothing of namespaces is for the namespace of the same name"
            return "" if self.open or namespace == queue else f"{refused}: {why} ({HINT})"
        try:
            check(spec)
        except UsageError as error:
            return f"{refused}: queue {name} does not say it in a way that can be read: {error.message}"
        if namespace in (spec.get(NAMES) or ()):
            return ""
        if spec.get(SELECTOR) is not None:
            known = (self.namespaces or {}).get(namespace)
            if known is None:
                return f"{refused}: queue {name} chooses namespaces by labels, and those of this one cannot be read"
            if fitting.selects(spec[SELECTOR], fields.part(known, "metadata/labels")):
                return ""
        above = "" if name == queue else f", because queue {name} above it is for others"
        return f"{refused}{above} ({HINT})"

    def is_said(self, queue: str) -> bool:
        """Whose it is."""
        return self._said(queue) is not None

    def _said(self, queue: str) -> tuple[str, Thing] | None:
        """The queue that says it, and what it says."""
        those = (
            (name, spec) for name, spec in self._upwards(queue) if any(spec.get(one) is not None for one in FIELDS)
        )
        return next(those, None)

    def _upwards(self, queue: str) -> Iterator[tuple[str, Thing]]:
        name = queue
        for _ in range(DEEPEST):
            if name not in self.queues:
                return
            spec = fields.part(self.queues[name], "spec")
            yield name, spec
            name = fields.text(spec, "parent")


def check(spec: Thing) -> None:
    """Raises UsageError, which names the field."""
    names, selector = spec.get(NAMES), spec.get(SELECTOR)
    if names is not None and not (isinstance(names, list) and all(isinstance(one, str) for one in names)):
        raise UsageError(f"spec.{NAMES} is not a list of names", hint="write namespaces: [team-a, team-b]")
    if selector is not None and not _is_selector(selector):
        hint = "write namespaceSelector: {matchLabels: {team: vision}}"
        raise UsageError(f"spec.{SELECTOR} is not a selector of labels", hint=hint)


def _is_selector(said: object) -> bool:
    if not isinstance(said, Mapping) or set(said) - {"matchLabels", "matchExpressions"}:
        return False
    exactly, others = said.get("matchLabels") or {}, said.get("matchExpressions") or []
    return (
        isinstance(exactly, Mapping)
        and all(isinstance(one, str) for one in exactly.values())
        and isinstance(others, list)
        and len(fields.objects(said, "matchExpressions")) == len(others)
        and all(fields.text(one, "key") and one.get("operator") in OPERATORS for one in others)
    )


OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")
"""Of selectors of labels: those of nodes have more."""


def bar(members: Iterable[Member], users: Users) -> None:
    """Say of each that has not started that its namespace may not use its queue."""
    known: dict[tuple[str, str], str] = {}
    for one in members:
        namespace = one.key[0]
        which = namespace, one.queue or namespace
        if which not in known:
            known[which] = users.barred(*which)
        if known[which] and one.phase in (None, "failed") and not one.bound:
            one.taken = known[which]
