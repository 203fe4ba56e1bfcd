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
from typing import TYPE_CHECKING, Any, cast

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
    """The GPUs and jobs of this node, from the daemon that answers here: a dict, which a notebook shows as bars and a
    table. Amounts are bytes. Raises DaemonUnreachable."""
    from gpushare.config import load_settings
    from gpushare.locate import find
    from gpushare.notebook.node_view import NodeView

    return cast("Status", NodeView(find(load_settings()).client().status()))


def set_limit(job: str, limit: Amount) -> Change:
    """Change the limit of a running job (id, beginning of the id, name, or pid of a process).

    The limit is text as on the command line ("12Gi"), a number of bytes, or a fraction of the GPU (0.25).
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
    """Make this running process a job with a budget of GPU memory, as under `gpushare run`. Call it before CUDA starts.

    A budget given here overrides the environment. Raises errors.GpushareError with the code "too_late" if the driver is
    already loaded. Children of this process belong to the job, too.

    Amounts are text as on the command line ("8Gi", "25%"), a number of bytes (8 * 2**30), or a fraction (0.25).
    """
    from gpushare.attach import enable as attach
    from gpushare.errors import told_in_full

    with told_in_full():
        return attach(request, limit, gpus=gpus, name=name)


def on_pressure(callback: Callback) -> Registration:
    """Call `callback(pressure)` when memory that this job has borrowed is wanted back. Also a decorator.

    gpushare calls it on a thread of its own, with a context of the GPU current, while the program runs on: data that
    both use need a lock. The frameworks' caches (PyTorch, CuPy, Numba) are already empty by then, so free memory that
    the program itself keeps. `pressure` is a pressure_hooks.Pressure: `gpu` (UUID), `index` (its number in CUDA),
    `wanted` (bytes), `seconds` (how long gpushare waits), `reason` (a text).

    The callback may return how many bytes it gives back; that is needed only if they become free later. An exception
    becomes one line on stderr. Callbacks are called in the order of registration until enough is free. `cancel()` of
    the result removes the callback. Without gpushare in the process nothing is called.
    """
    from gpushare.pressure_hooks import on_pressure as register

    return register(callback)


def checkpoint_signal(signum: int | None) -> None:
    """Send this process a signal when it should save its work: memory is wanted back, and caches were not enough.

    For frameworks that write a checkpoint on SIGUSR1 or the like. It is sent at most once a minute, and never while the
    signal has no handler, because that would end the program. None, the default: no signal. Raises ValueError for a
    number that is no signal or cannot be handled. Without gpushare in the process nothing is sent.
    """
    from gpushare.pressure_hooks import checkpoint_signal as register

    register(signum)


def checkpointed() -> bool:
    """Tell the daemon that this job's work is saved. Call it after each checkpoint.

    If several jobs could give borrowed memory back, the daemon first stops the one that loses the least work. Returns
    True if the daemon has noted it, False if not (gpushare is not in the process, or there is no daemon, or an older
    one). False is no error.
    """
    from gpushare.pressure_hooks import checkpointed as tell

    return tell()


def pressure() -> tuple[GpuPressure, ...]:
    """How much of the time jobs waited for memory, for each GPU of this node; () without a daemon.

    Like Linux's pressure stall information: `some` is the time in which at least one job waited, `full` the time in
    which all jobs on the GPU did. Each has `avg10`, `avg60`, `avg300` (fraction of the last 10, 60, 300 seconds) and
    `total` (seconds).
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
