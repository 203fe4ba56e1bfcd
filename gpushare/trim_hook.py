"""Give back GPU memory that Python frameworks keep and do not use.

The library contains this text (shim/preload/python.c) and runs it in the program's own interpreter: Python 3.6 or
later, with or without site packages. So it imports only the standard library, and no framework: one that the program
has not loaded keeps no memory. It runs on a thread of ours with a context of the GPU current, so that no framework
opens another.
"""

import gc
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

LONGEST = 200
"""Characters of a problem."""


def trim(wanted: "Callable[[], int]", gpu: "tuple[str, int, int]", seconds: float, reason: str) -> "list[str]":
    """Give back what is kept on one GPU, the cheapest first, until nothing more is wanted.

    wanted()   how many bytes are still wanted on this GPU
    gpu        its UUID, its number in CUDA's order, and whether the current context is its primary one, which the CUDA
               runtime uses
    seconds    the time for all of it
    Returns problems as a list of texts. Raises nothing.
    """
    until = time.monotonic() + seconds
    problems = []  # type: list[str]
    uuid, index, primary = gpu
    if primary:
        empty_caches(wanted, problems)
    hooks = sys.modules.get("gpushare.pressure_hooks")  # callbacks that the program has registered
    if hooks is not None and wanted():
        attempt(
            lambda: problems.extend(hooks.run_hooks(wanted, uuid, index, until - time.monotonic(), reason)),
            "gpushare",
            problems,
        )
    return problems


def empty_caches(wanted: "Callable[[], int]", problems: "list[str]") -> None:
    """Empty the caches of the loaded frameworks, on the GPU whose primary context is current."""
    caches = [torch_cache, cupy_pools, numba_deallocations]
    empty(caches, wanted, problems)
    if wanted() and any(name in sys.modules for name in ("torch", "cupy", "numba.cuda")):
        gc.collect()  # last, because a large program stops for it, and tensors in cycles are rare
        empty(caches, wanted, problems)


def empty(caches: "list[Any]", wanted: "Callable[[], int]", problems: "list[str]") -> None:
    for cache in caches:
        if not wanted():
            return
        attempt(cache, cache.__name__.partition("_")[0], problems)


def attempt(action: "Callable[[], object]", name: str, problems: "list[str]") -> None:
    try:
        action()
    except BaseException as error:  # not even SystemExit may end the program here
        problems.append(f"{name}: {told(error)}")


def told(error: BaseException) -> str:
    """In one line. The program's exception may raise another when it is asked for its text."""
    try:
        text = f"{type(error).__name__}: {error}"
    except BaseException:
        return "an exception whose text cannot be had"
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text.partition("\n")[0][:LONGEST])


# ---- PyTorch


def torch_cache() -> None:
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    started = getattr(cuda, "is_initialized", None)
    if started is not None and started():
        getattr(cuda, "empty_cache", int)()


# ---- CuPy


def cupy_pools() -> None:
    """The default pool, and the one that the program may have set instead. Pinned memory is on the host: left alone."""
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
    """Memory that Numba frees later. Two threads may not empty its list at the same time."""
    module = sys.modules.get("numba.cuda.cudadrv.driver")
    if module is None or sys.version_info < (3, 10) or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return
    driver = getattr(module, "driver", None)
    devices = getattr(driver, "__dict__", {}).get("devices") or {}  # not by Numba's own function: that would start CUDA
    for device in list(devices.values()):
        context = getattr(device, "primary_context", None)
        pending = getattr(getattr(context, "memory_manager", None), "deallocations", None)
        if pending is not None and not pending.is_disabled:
            drain(pending)


def drain(pending: "Any") -> None:
    """Like its clear(), but alone: other threads find it disabled. If one is already in it, do nothing."""
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
