"""The engines that the service can run, by the name that people type: `gpushare cluster serve --engine NAME`.

Each has a module with a function make(context), and with CANNOT (abilities.py). make() returns a Runner or, where the
engine has a queue of its own, a QueueEngine.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from gpushare.cluster.engines.runner import Context, Runner
from gpushare.cluster.engines.seam import QueueEngine
from gpushare.errors import UsageError
from gpushare.nearest import did_you_mean

__all__ = ["ENGINES", "QUEUE_ENGINES", "cannot", "make", "make_queue_engine"]

ENGINES = {
    "memory": "gpushare.cluster.engines.paced",
    "local": "gpushare.cluster.engines.local.runner",
    "kubernetes": "gpushare.cluster.engines.kubernetes.engine",
    "slurm": "gpushare.cluster.engines.slurm.engine",
}
"""Name -> module."""
QUEUE_ENGINES = frozenset({"kubernetes", "slurm"})
"""Those with a queue of their own."""


def make(name: str, context: Context) -> Runner:
    """UsageError where there is no engine of that name, or its settings are wrong."""
    made: Runner = _module(name).make(context)
    return made


def make_queue_engine(name: str, context: Context) -> QueueEngine:
    """The same for one of QUEUE_ENGINES."""
    made: QueueEngine = _module(name).make(context)
    return made


def _module(name: str) -> Any:
    if name not in ENGINES:
        raise UsageError(
            f"no engine {name!r}",
            code="no_engine",
            hint=did_you_mean(name, ENGINES) or f"there are: {', '.join(ENGINES)}",
        )
    try:
        return importlib.import_module(ENGINES[name])
    except ModuleNotFoundError as error:
        if not ENGINES[name].startswith(error.name or "?"):
            raise
        raise UsageError(f"the engine {name!r} is not part of this version", code="no_engine") from None


def cannot(name: str) -> Mapping[str, str]:
    """What the engine cannot do, and why."""
    found: Mapping[str, str] = importlib.import_module(ENGINES[name]).CANNOT
    return found
