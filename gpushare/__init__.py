"""gpushare: share NVIDIA GPUs between programs.

    import gpushare

    gpushare.status()                        # the GPUs and jobs of this node
    gpushare.set_limit("train", "12Gi")      # while it runs
    gpushare.Quantity.parse("25%").resolve(80 * 2**30)

Importing this package costs next to nothing: each name is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpushare import errors
    from gpushare.api import Change, Status
    from gpushare.quantity import Quantity

__version__ = "0.1.0"

__all__ = ["Quantity", "__version__", "errors", "set_limit", "status"]


def status() -> Status:
    """The GPUs and jobs of this node, from the daemon that answers here."""
    from gpushare.config import load_settings
    from gpushare.locate import find

    return find(load_settings()).client().status()


def set_limit(job: str, limit: str | Quantity) -> Change:
    """Change the limit of a running job (id, beginning of the id, name, or pid of a process)."""
    from gpushare.config import load_settings
    from gpushare.locate import find
    from gpushare.quantity import Quantity as Amount

    amount = Amount.parse(limit) if isinstance(limit, str) else limit
    client = find(load_settings()).client()
    return client.change(client.find_job(job)["id"], {"limit": amount.canonical()})


def __getattr__(name: str) -> object:
    if name == "Quantity":
        return importlib.import_module("gpushare.quantity").Quantity
    if name == "errors":
        return importlib.import_module("gpushare.errors")
    raise AttributeError(f"module 'gpushare' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
