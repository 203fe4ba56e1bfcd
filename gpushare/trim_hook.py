"""What Python frameworks keep of a GPU's memory and do not use, given back.

This text is compiled into the library (shim/preload/python.c) and run in the program's own interpreter, whichever
that is: Python 3.6 or later, with or without its site packages. It imports nothing but what every interpreter has,
least of all a framework: what the program has not loaded keeps no memory. It runs on a thread of ours, on which a
context of the GPU is current, so that a framework has no reason to open one somewhere else.
"""

import gc
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def trim(wanted: "Callable[[], int]", gpu: "tuple[str, int, int]", seconds: float, reason: str) -> "list[str]":
    """Give back what is kept on one GPU, from the gentlest means on, until nothing more is wanted.

    wanted()   how many bytes are still wanted on this GPU
    gpu        its UUID, its number in CUDA's order, and whether the context that is current is its primary one, on
               which the CUDA runtime works
    seconds    the time there is for all of it
    Returns what went wrong, as a list of texts. Raises nothing.
    """
    until = time.monotonic() + seconds
    problems = []  # type: list[str]
    uuid, index, primary = gpu
    if primary:
        empty_caches(wanted, problems)
    hooks = sys.modules.get("gpushare.pressure_hooks")  # what the program itself has said that it can do
    if hooks is not None and wanted():
        attempt(
            lambda: problems.extend(hooks.run_hooks(wanted, uuid, index, until - time.monotonic(), reason)),
            "gpushare",
            problems,
        )
    return problems


def empty_caches(wanted: "Callable[[], int]", problems: "list[str]") -> None:
    """Of the frameworks that are loaded, on the GPU whose primary context is current."""
    caches = [torch_cache, cupy_pools, numba_deallocations]
    empty(caches, wanted, problems)
    if wanted() and any(name in sys.modules for name in ("torch", "cupy", "numba.cuda")):
        gc.collect()  # late, because a large program stands still for it; tensors in cycles are seldom
        empty(caches, wanted, problems)


def empty(caches: "list[Any]", wanted: "Callable[[], int]", problems: "list[str]") -> None:
    for cache in caches:
        if not wanted():
            return
        attempt(cache, cache.__name__.partition("_")[0], problems)


def attempt(action: "Callable[[], object]", name: str, problems: "list[str]") -> None:
    try:
        action()
    except BaseException as error:  # not even the end of the program is decided here
        problems.append(f"{name}: {type(error).__name__}: {error}")


# ---- PyTorch


def torch_cache() -> None:
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    started = getattr(cuda, "is_initialized", None)
    if started is not None and started():
        getattr(cuda, "empty_cache", int)()


# ---- CuPy


def cupy_pools() -> None:
    """The default pool, and the one that the program has put in its place. Pinned memory is the host's: left alone."""
    cupy = sys.modules.get("cupy")
    pools = []
    default = getattr(cupy, "get_default_memory_pool", None)
    if default is not None:
        pools.append(default())
    allocator = getattr(getattr(cupy, "cuda", None), "get_allocator", None)
    if allocator is not None:
        pools.append(getattr(allocator(), "__self__", None))
    for pool in pools:
        free = getattr(pool, "free_all_blocks", None)
        if free is not None:
            free()


# ---- Numba


def numba_deallocations() -> None:
    """Memory that Numba has put off to free. Its list is not made for two threads that empty it at once."""
    module = sys.modules.get("numba.cuda.cudadrv.driver")
    if module is None or sys.version_info < (3, 10) or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return
    driver = getattr(module, "driver", None)
    devices = getattr(driver, "__dict__", {}).get("devices") or {}  # not by its own door: that would start CUDA
    for device in list(devices.values()):
        context = getattr(device, "primary_context", None)
        pending = getattr(getattr(context, "memory_manager", None), "deallocations", None)
        if pending is not None and not pending.is_disabled:
            drain(pending)


def drain(pending: "Any") -> None:
    """As its clear(), while nobody else is in there: who comes finds it disabled, who is in already we leave alone."""
    with pending.disable():
        clear = type(pending).clear.__code__
        for top in sys._current_frames().values():
            frame = top  # type: Any
            while frame is not None:
                if frame.f_code is clear:
                    return
                frame = frame.f_back
        while pending._cons:
            free, handle, _size = pending._cons.popleft()
            free(handle)
        pending._size = 0
