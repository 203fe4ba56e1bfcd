"""Run with the shim preloaded: what NVIDIA's runtime library has found of the driver.

    cudart_look LIBRARY DRIVER SHIM       LIBRARY: libcudart, or one that it is linked into

Says the names of the hooks that its data points at, those of the driver's own functions that it should not have, and
what cudaGetDriverEntryPoint gives. The software driver does not pretend to be NVIDIA's, so no runtime library goes on
after it has looked up its functions; until then it does all that it does with a real one.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

from cuda_client import byref, c_char, c_int, c_uint64, c_void_p, say
from shim_tree import exported

runtime = ctypes.CDLL(sys.argv[1])
prefix = "linked_" if hasattr(runtime, "linked_cudaFree") else ""
driver, shim = Path(sys.argv[2]).resolve(), Path(sys.argv[3]).resolve()


def mappings() -> Iterator[tuple[int, int, str, str]]:
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, flags, _, _, _, *file = line.split(None, 5)
        start, end = (int(number, 16) for number in span.split("-"))
        yield start, end, flags, file[0] if file else ""


def base(library: Path) -> int:
    return min(start for start, _, _, file in mappings() if file == str(library))


def data_of(library: Path) -> Iterator[bytes]:
    """What it may write to: its data, and what follows them without a file."""
    behind = -1
    for start, end, flags, file in mappings():
        if "w" in flags and (file == str(library) or (start == behind and not file)):
            yield bytes((c_char * (end - start)).from_address(start))
        behind = end if file == str(library) else -1


count, entry = c_int(), c_void_p()
started = [runtime[prefix + "cudaGetDeviceCount"](byref(count)), runtime[prefix + "cudaFree"](None)]
hooks = {name: at for name, at in exported(shim).items() if name.startswith("cu")}
of_shim = {base(shim) + at: name for name, at in hooks.items()}
of_driver = {base(driver) + at: name for name, at in exported(driver).items() if name in hooks}
words = {word for data in data_of(Path(sys.argv[1]).resolve()) for (word,) in struct.iter_unpack("<Q", data)}
asked = runtime[prefix + "cudaGetDriverEntryPoint"](b"cuMemAlloc", byref(entry), c_uint64(0), byref(c_int()))
say(
    {
        "started": started,
        "hooked": sorted(of_shim[word] for word in words & of_shim.keys()),
        "bare": sorted(of_driver[word] for word in words & of_driver.keys()),
        "entry": None if asked else of_shim.get(entry.value or 0, "another"),
    }
)
