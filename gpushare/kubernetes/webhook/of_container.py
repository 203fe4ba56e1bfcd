"""Annotations that KAI has of a single container: the pod's part of a GPU, and who of it uses that. Pure.

    nvidia.com/container.NAME.gpu-memory.request: 8Gi              guaranteed; without it the limit
    nvidia.com/container.NAME.gpu-memory.limit: 16Gi
    nvidia.com/container.NAME.gpu-compute.mode: time-slicing       the only one here
    kai.scheduler/container.NAME.gpu-memory.portion.limit: "0.8"   beside gpu-fraction

KAI gives one container of a pod a part, and so do we. What its binder writes (`gpus.devices`) is not read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gpushare.errors import UsageError

__all__ = ["ASKS", "OfContainer", "read"]

ASKS = "^nvidia[.]com/container[.].+[.]gpu-memory[.](request|limit)$"
"""Annotations that ask for a part of a GPU. The API server goes by the same words: deploy/kubernetes."""
REQUEST, LIMIT, PORTION = "gpu-memory.request", "gpu-memory.limit", "gpu-memory.portion.limit"
MODE, COMPUTE = "gpu-compute.mode", "gpu-compute.request"
NAMED = re.compile(
    rf"nvidia\.com/container\.(.+)\.({re.escape(REQUEST)}|{re.escape(LIMIT)}|{re.escape(MODE)}|{re.escape(COMPUTE)})"
    rf"|kai\.scheduler/container\.(.+)\.({re.escape(PORTION)})"
)
ONLY_MODE = "time-slicing"


@dataclass(frozen=True, slots=True)
class OfContainer:
    container: str
    """Its name."""
    names: Mapping[str, str]
    """The whole name of each such annotation, by what it says."""

    @property
    def request(self) -> str | None:
        """The annotation that says the request; None: none does."""
        return self.names.get(REQUEST) or self.names.get(LIMIT)

    @property
    def limit(self) -> str | None:
        return self.names.get(LIMIT)

    @property
    def portion(self) -> str | None:
        """The one that says the limit beside gpu-fraction."""
        return self.names.get(PORTION)


def read(annotations: Mapping[str, object]) -> OfContainer | None:
    """None: there are none. Raises UsageError for more than one container, and for what has no meaning here."""
    found: dict[str, dict[str, str]] = {}
    for name in sorted(annotations):
        match = NAMED.fullmatch(name)
        if match is not None:
            found.setdefault(match[1] or match[3], {})[match[2] or match[4]] = name
    if not found:
        return None
    (container, names), *others = found.items()
    if others:
        one, other = next(iter(names.values())), next(iter(others[0][1].values()))
        raise UsageError(
            f"annotations {one} and {other} are about two containers",
            hint="one container of a pod has a part of a GPU: make two pods of it",
        )
    if COMPUTE in names:
        raise UsageError(
            f"annotation {names[COMPUTE]}: gpushare divides memory here, not computing", hint="leave it out"
        )
    if MODE in names and annotations[names[MODE]] != ONLY_MODE:
        said = str(annotations[names[MODE]])[:40]
        raise UsageError(f"annotation {names[MODE]} is {said!r}", hint=f"leave it out, or write {ONLY_MODE}")
    return OfContainer(container, names)
