"""gpushare: share NVIDIA GPUs between programs.

    import gpushare

    gpushare.status()                        # the GPUs and jobs of this node
    gpushare.set_limit("train", "12Gi")      # while it runs
    gpushare.Quantity.parse("25%").resolve(80 * 2**30)
    gpushare.enable(limit="8Gi")             # in a notebook, before CUDA starts

    gpushare.on_pressure(shrink)             # shrink(pressure) is called when borrowed memory is wanted back
    gpushare.checkpointed()                  # the work is saved: stopping this job now costs little
    gpushare.pressure()                      # how much of the time jobs have waited for memory

    %load_ext gpushare                       # in a notebook: %gpushare, %gpushare set 12Gi, %gpushare explain

Importing this package costs next to nothing: each name is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpushare import errors
    from gpushare.api import Change, Status
    from gpushare.attach import Enabled
    from gpushare.pressure_hooks import Callback, GpuPressure, Registration
    from gpushare.quantity import Amount, Quantity

__version__ = "0.1.0"

__all__ = [
    "Quantity",
    "__version__",
    "checkpoint_signal",
    "checkpointed",
    "enable",
    "errors",
    "load_ipython_extension",
    "on_pressure",
    "pressure",
    "set_limit",
    "status",
]


def status() -> Status:
    """The GPUs and jobs of this node, from the daemon that answers here."""
    from gpushare.config import load_settings
    from gpushare.locate import find

    return find(load_settings()).client().status()


def set_limit(job: str, limit: Amount) -> Change:
    """Change the limit of a running job (id, beginning of the id, name, or pid of a process).

    The limit is text as on the command line ("12Gi"), a number of bytes, or a share (0.25).
    """
    from gpushare.config import load_settings
    from gpushare.errors import told_in_full
    from gpushare.locate import find
    from gpushare.quantity import Quantity as Quantities

    with told_in_full():
        amount = Quantities.of(limit)
        client = find(load_settings()).client()
        return client.change(client.find_job(job)["id"], {"limit": amount.canonical()})


def enable(
    request: Amount | None = None,
    limit: Amount | None = None,
    *,
    gpus: int = 1,
    name: str | None = None,
) -> Enabled:
    """Make this running process a job with a budget of GPU memory, as `gpushare run` would have: before CUDA starts.

    A budget given here wins over the environment. Where the driver is loaded already that is refused with an
    errors.GpushareError of the code "too_late". Children of this process belong to the job too.

    Amounts are text as on the command line ("8Gi", "25%"), a number of bytes (8 * 2**30), or a share of the GPU (0.25).
    """
    from gpushare.attach import enable as attach
    from gpushare.errors import told_in_full

    with told_in_full():
        return attach(request, limit, gpus=gpus, name=name)


def on_pressure(callback: Callback) -> Registration:
    """Have `callback(pressure)` called when memory that this job has borrowed is wanted back. Also a decorator.

    It is called on a thread of gpushare's, with a context of the GPU current, while the program runs on: as from any
    other thread, what both touch needs a lock. The frameworks' caches (PyTorch, CuPy, Numba) are empty by then, so
    what counts is memory that the program itself can do without. `pressure` is a pressure_hooks.Pressure: `gpu` (UUID),
    `index` (CUDA's number of it), `wanted` (bytes), `seconds` (how long that is waited for), `reason` (a text).

    It may return how many bytes it gives back; needed only if they become free later. An exception becomes one line
    on stderr. Callbacks are called in the order of their registration until enough is free. The answer's `cancel()`
    takes a callback back. Where gpushare is not in the process, nobody calls.
    """
    from gpushare.pressure_hooks import on_pressure as register

    return register(callback)


def checkpoint_signal(signum: int | None) -> None:
    """Have this process sent a signal when it should save its work: memory is wanted back and all else was not enough.

    For frameworks that write a checkpoint on SIGUSR1 or the like. Sent at most once a minute, and not at all while
    the signal has no handler, which would end the program. None: no signal, as it is at first. ValueError for what
    is no signal or cannot be handled. Where gpushare is not in the process, nothing is sent.
    """
    from gpushare.pressure_hooks import checkpoint_signal as register

    register(signum)


def checkpointed() -> bool:
    """Say that the work of this job is saved now, so that stopping it would lose little. After each checkpoint.

    When borrowed memory must be had back and several jobs could give it, the one that loses least is asked first.
    True: the daemon has noted it. False: it could not be told (gpushare is not in the process, or there is no
    daemon, or an older one), which is no error.
    """
    from gpushare.pressure_hooks import checkpointed as tell

    return tell()


def pressure() -> tuple[GpuPressure, ...]:
    """How much of the time jobs have waited for memory, for each GPU of this node; () where there is no daemon.

    Like Linux's pressure stall information: `some` is the time in which at least one job waited, `full` that in which
    all on the GPU did; each with `avg10`, `avg60`, `avg300` (shares of the last so many seconds, 0 to 1) and `total`
    (seconds).
    """
    from gpushare.pressure_hooks import pressure as ask

    return ask()


def load_ipython_extension(shell: Any) -> None:
    """%load_ext gpushare"""
    from gpushare.notebook.session import load

    load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """%unload_ext gpushare"""
    from gpushare.notebook.session import unload

    unload(shell)


def __getattr__(name: str) -> object:
    if name == "Quantity":
        return importlib.import_module("gpushare.quantity").Quantity
    if name == "errors":
        return importlib.import_module("gpushare.errors")
    raise AttributeError(f"module 'gpushare' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
