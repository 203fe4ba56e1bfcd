"""How long some calls of a run take, by kind."""

from __future__ import annotations

import time
from typing import Any


def around(spent: dict[str, float], thing: Any, name: str, kind: str) -> None:
    """From now on each call of the method adds its seconds to this kind."""
    inner = getattr(thing, name)

    def outer(*arguments: Any, **named: Any) -> Any:
        began = time.monotonic()
        try:
            return inner(*arguments, **named)
        finally:
            spent[kind] += time.monotonic() - began

    setattr(thing, name, outer)
