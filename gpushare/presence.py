"""Whether gpushare is in this process, and how. Asks the loader, not the environment.

An environment variable only says what somebody wanted. The list of mapped files says what is loaded.
"""

from __future__ import annotations

import ctypes
import os
from enum import Enum
from pathlib import Path

from gpushare.paths import library

__all__ = ["Presence", "attach_library", "is_initialised", "loaded_driver", "mapped", "presence"]

CUDA_ERROR_NOT_INITIALIZED = 3


class Presence(Enum):
    ABSENT = "absent"
    PRELOADED = "preloaded"
    LATE = "late"  # by gpushare.enable()


def attach_library() -> Path:
    """The library that gpushare.enable() opens under the driver's name."""
    return library().with_name("libgpushare-late.so")


def presence() -> Presence:
    if mapped(library().name) is not None:
        return Presence.PRELOADED
    return Presence.LATE if _late_is_enabled() else Presence.ABSENT


def _late_is_enabled() -> bool:
    """Whether the driver of this process is the library, and its checks have passed."""
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        return bool(ctypes.c_int.in_dll(driver, "gpushare_late_enabled"))
    except (OSError, ValueError):
        return False


def mapped(beginning: str, maps: str | None = None) -> str | None:
    """The first loaded file whose name begins with this; `maps`: the list of another process."""
    return next((path for path in _mapped(maps) if Path(path).name.startswith(beginning)), None)


def loaded_driver() -> ctypes.CDLL | None:
    """The CUDA driver that this process has loaded, by its name or by its file's name; None if there is none."""
    for name in ("libcuda.so.1", mapped("libcuda.so")):
        try:
            if name is not None:
                return ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        except OSError:
            continue
    return None


def is_initialised(driver: ctypes.CDLL) -> bool:
    """Whether CUDA has been started in this process."""
    count = ctypes.c_int()
    return bool(driver.cuDeviceGetCount(ctypes.byref(count)) != CUDA_ERROR_NOT_INITIALIZED)


def _mapped(maps: str | None = None) -> list[str]:
    if maps is None:
        maps = Path("/proc/self/maps").read_text(errors="surrogateescape")
    paths = (line.split(maxsplit=5)[5:] for line in maps.splitlines())
    return list(dict.fromkeys(path[0].removesuffix(" (deleted)") for path in paths if path and path[0][0] == "/"))
