"""gpushare: share NVIDIA GPUs between programs.

    import gpushare

    gpushare.status()                        # the GPUs and jobs of this node
    gpushare.set_limit("train", "12Gi")      # while it runs
    gpushare.Quantity.parse("25%").resolve(80 * 2**30)
    gpushare.enable(limit="8Gi")             # in a notebook, before CUDA starts

    %load_ext gpushare                       # in a notebook: %gpushare, %gpushare set 12Gi, %gpushare explain

Importing this package costs next to nothing: each name is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpushare import errors
    from gpushare.api import Change, Status
    from gpushare.late import Enabled
    from gpushare.quantity import Quantity

__version__ = "0.1.0"

__all__ = ["Quantity", "__version__", "enable", "errors", "load_ipython_extension", "set_limit", "status"]


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


def enable(
    request: str | Quantity | None = None,
    limit: str | Quantity | None = None,
    *,
    gpus: int = 1,
    name: str | None = None,
) -> Enabled:
    """Make this running process a job with a budget of GPU memory, as `gpushare run` would have: before CUDA starts.

    A budget given here wins over the environment. Where the driver is loaded already that is refused with an
    errors.GpushareError of the code "too_late". Children of this process belong to the job too.
    """
    from gpushare.late import enable as enable_late

    return enable_late(request, limit, gpus=gpus, name=name)


def load_ipython_extension(shell: Any) -> None:
    """%load_ext gpushare"""
    from gpushare.ipython import load

    load(shell)


def __getattr__(name: str) -> object:
    if name == "Quantity":
        return importlib.import_module("gpushare.quantity").Quantity
    if name == "errors":
        return importlib.import_module("gpushare.errors")
    raise AttributeError(f"module 'gpushare' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
