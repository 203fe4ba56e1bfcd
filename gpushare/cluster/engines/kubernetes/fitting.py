"""Which nodes a pod may run on, by its node affinity, by its volumes, by taints, and by CPUs and memory. Pure.

The allocator knows labels of nodes, and that a job needs some. So what a pod says is one more label, made of its words,
and the nodes that it fits have that label. It follows when a node changes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gpushare.cluster.engines.kubernetes import needs
from gpushare.cluster.engines.kubernetes.names import Thing
from gpushare.cluster.engines.kubernetes.needs import PLENTY, Needs

__all__ = ["LOST", "Wants", "fits", "matches_one", "of", "selects", "told"]

LABEL = "what its pod says of nodes"
"""How the label begins where the allocator says that no node has it."""
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
KEEPS_OUT = ("NoSchedule", "NoExecute")
NAMED = re.compile(rf"(?:label )?{LABEL} [0-9a-f]{{8}}=")
"""It, as the allocator writes it."""
OF_STATE = "node.kubernetes.io/"
"""Taints of nodes that are closed or do not answer: the engine shows these by themselves."""
LOST = "node.kubernetes.io/out-of-service"


@dataclass(frozen=True, slots=True)
class Wants:
    """What a pod says about nodes."""

    text: str

    @property
    def label(self) -> tuple[str, str]:
        """Of nodes that it fits."""
        return f"{LABEL} {hashlib.sha256(self.text.encode()).hexdigest()[:8]}", ""

    @property
    def terms(self) -> Sequence[Sequence[Mapping[str, Any]]]:
        """One of each matches: those of its affinity, those of its volumes."""
        said: Sequence[Sequence[Mapping[str, Any]]] = _read(self.text)[0]
        return said

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        """A node with that name and these labels, whatever its taints are."""
        return all(matches_one(name, labels, terms) for terms in self.terms)

    @property
    def needs(self) -> Needs:
        return Needs(*_read(self.text)[2])

    @property
    def tolerations(self) -> Sequence[Mapping[str, Any]]:
        said: Sequence[Mapping[str, Any]] = _read(self.text)[1]
        return said


@lru_cache(1024)
def _read(text: str) -> Any:
    """Asked of each node."""
    return json.loads(text)


def of(pod: Thing, volumes: Sequence[Sequence[Thing]] = ()) -> Wants:
    """`volumes`: what these say of nodes (volumes.py)."""
    spec = pod["spec"]
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(REQUIRED)
    terms = [required.get("nodeSelectorTerms") or []] if required else []
    tolerations = [one for one in spec.get("tolerations") or () if not str(one.get("key", "")).startswith(OF_STATE)]
    return Wants(json.dumps([[*terms, *volumes], tolerations, needs.of_pod(pod)], sort_keys=True))


def fits(node: Thing, wants: Wants, left: Needs = PLENTY) -> bool:
    """`left`: what others leave of its CPUs and memory; these count only where it is said."""
    if not wants.needs.within(left):
        return False
    taints = (node.get("spec") or {}).get("taints") or ()
    for taint in taints:
        if taint.get("effect") not in KEEPS_OUT or str(taint.get("key", "")).startswith(OF_STATE):
            continue
        if not any(_tolerates(one, taint) for one in wants.tolerations):
            return False
    return wants.matches(node["metadata"]["name"], node["metadata"].get("labels") or {})


def told(text: str, short: int, lacked: Needs) -> str:
    """Why it waits, in the allocator's words, which knows no CPUs. `short`: nodes that have less left of these."""
    lack = f"{short} nodes lack" if short != 1 else "1 node lacks"
    return NAMED.sub(LABEL, text) + (f"; {lack} the {lacked} that it needs" if short else "")


def _tolerates(toleration: Thing, taint: Thing) -> bool:
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return toleration.get("key") in (None, "", taint.get("key"))
    return toleration.get("key") == taint.get("key") and (toleration.get("value") or "") == (taint.get("value") or "")


def matches_one(name: str, labels: Mapping[str, str], terms: Iterable[Thing]) -> bool:
    """One of the terms matches the node of that name with these labels."""
    return any(_matches(name, labels, term) for term in terms)


def selects(selector: Thing, labels: Mapping[str, str]) -> bool:
    """A selector of labels, as claims of volumes have it; an empty one selects all."""
    exactly = (selector.get("matchLabels") or {}).items()
    said = selector.get("matchExpressions") or ()
    return all(labels.get(key) == value for key, value in exactly) and all(_holds(one, labels) for one in said)


def _matches(name: str, labels: Mapping[str, str], term: Thing) -> bool:
    """A term without a word matches nothing."""
    fields = {"metadata.name": name}
    said = [(one, labels) for one in term.get("matchExpressions") or ()]
    said += [(one, fields) for one in term.get("matchFields") or ()]
    return bool(said) and all(_holds(one, values) for one, values in said)


def _holds(one: Thing, values: Mapping[str, str]) -> bool:
    test = OPERATORS.get(one.get("operator", ""))
    return test is not None and test(values.get(one.get("key", "")), one.get("values") or ())


def _number(text: str | None) -> int | None:
    """As Kubernetes has it, of 64 bits at most."""
    return int(text) if text is not None and len(text) <= 20 and text.removeprefix("-").isdecimal() else None


def _compare(value: str | None, words: Iterable[str], sign: int) -> bool:
    number, bound = _number(value), _number(next(iter(words), None))
    return number is not None and bound is not None and sign * number > sign * bound


OPERATORS: Mapping[str, Callable[[str | None, Iterable[str]], bool]] = {
    "In": lambda value, words: value is not None and value in words,
    "NotIn": lambda value, words: value is None or value not in words,
    "Exists": lambda value, _: value is not None,
    "DoesNotExist": lambda value, _: value is None,
    "Gt": lambda value, words: _compare(value, words, 1),
    "Lt": lambda value, words: _compare(value, words, -1),
}
