"""The engines that the service can run, by the name that people type: `gpushare cluster serve --engine NAME`.

Each has a module with a function make(context) that returns a Runner.
"""

from __future__ import annotations

import importlib

from gpushare.cluster.engines.runner import Context, Runner
from gpushare.errors import UsageError
from gpushare.nearest import did_you_mean

__all__ = ["ENGINES", "make"]

ENGINES = {
    "memory": "gpushare.cluster.engines.paced",
    "local": "gpushare.cluster.engines.local.runner",
}
"""Name -> module."""


def make(name: str, context: Context) -> Runner:
    """UsageError where there is no engine of that name, or its settings are wrong."""
    if name not in ENGINES:
        raise UsageError(
            f"no engine {name!r}",
            code="no_engine",
            hint=did_you_mean(name, ENGINES) or f"there are: {', '.join(ENGINES)}",
        )
    try:
        module = importlib.import_module(ENGINES[name])
    except ModuleNotFoundError as error:
        if not ENGINES[name].startswith(error.name or "?"):
            raise
        raise UsageError(f"the engine {name!r} is not part of this version", code="no_engine") from None
    made: Runner = module.make(context)
    return made
