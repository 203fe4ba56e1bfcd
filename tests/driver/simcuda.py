"""A thin ctypes view of libcuda.so.1 for the driver tests: what a test says, the driver hears, nothing in between."""

from __future__ import annotations

import ctypes
import os
import sys
from ctypes import byref, c_char, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

KI, MI, GI = 1 << 10, 1 << 20, 1 << 30
BLOCK = 2 * MI
CONTEXT = 300 * MI

SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED = 0, 1, 2, 3
NO_DEVICE, INVALID_DEVICE, INVALID_CONTEXT, ALREADY_MAPPED = 100, 101, 201, 208
INVALID_HANDLE, NOT_FOUND, NOT_READY, NOT_SUPPORTED = 400, 500, 600, 801
CONTEXT_IS_DESTROYED = 709


# The driver under test, by its path; without it, whichever the library path leads to.
DRIVER = "GPUSHARE_TEST_DRIVER"
# Set where nobody knows what a context takes: what is used after the first one counts as nothing.
MEASURED = "GPUSHARE_TEST_MEASURED"


class CudaError(Exception):
    def __init__(self, name: str, code: int) -> None:
        super().__init__(f"{name} returned {code}")
        self.code = code


def _argument(value: Any) -> Any:
    # ctypes takes a plain int for a C int and would cut a pointer in half.
    if isinstance(value, int):
        return c_uint64(value & 0xFFFFFFFFFFFFFFFF)
    return c_void_p(None) if value is None else value


class Driver:
    """`cu.cuInit(0)` raises on failure; `cu.code("cuInit", 0)` returns the code."""

    def __init__(self) -> None:
        self._name = os.environ.get(DRIVER, "libcuda.so.1")
        self._library: ctypes.CDLL | None = None

    @property
    def library(self) -> ctypes.CDLL:
        if self._library is None:
            self._library = ctypes.CDLL(self._name)
        return self._library

    def code(self, name: str, *arguments: Any) -> int:
        return int(getattr(self.library, name)(*map(_argument, arguments)))

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> None:
            code = self.code(name, *arguments)
            if code != 0:
                raise CudaError(name, code)

        return call


cu = Driver()


class Location(ctypes.Structure):
    _fields_ = [("type", c_int), ("id", c_int)]


class AllocationProp(ctypes.Structure):
    _fields_ = [
        ("type", c_int),
        ("handle_types", c_int),
        ("location", Location),
        ("win32", c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


class AccessDesc(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", c_int)]


class PoolProps(ctypes.Structure):
    _fields_ = [
        ("type", c_int),
        ("handle_types", c_int),
        ("location", Location),
        ("security", c_void_p),
        ("max_size", c_size_t),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 54),
    ]


class Handle64(ctypes.Structure):
    """CUipcMemHandle, CUipcEventHandle and CUmemPoolPtrExportData are 64 bytes each."""

    _fields_ = [("bytes", c_char * 64)]

    def hex(self) -> str:
        return bytes(self).hex()

    @classmethod
    def from_hex(cls, text: str) -> Handle64:
        return cls.from_buffer_copy(bytes.fromhex(text))


class Array3D(ctypes.Structure):
    _fields_ = [
        ("width", c_size_t),
        ("height", c_size_t),
        ("depth", c_size_t),
        ("format", c_int),
        ("channels", c_uint),
        ("flags", c_uint),
    ]


class Requirements(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("alignment", c_size_t), ("reserved", c_uint * 4)]


class Memcpy2D(ctypes.Structure):
    _fields_ = [
        ("srcX", c_size_t),
        ("srcY", c_size_t),
        ("srcType", c_int),
        ("srcHost", c_void_p),
        ("srcDevice", c_uint64),
        ("srcArray", c_void_p),
        ("srcPitch", c_size_t),
        ("dstX", c_size_t),
        ("dstY", c_size_t),
        ("dstType", c_int),
        ("dstHost", c_void_p),
        ("dstDevice", c_uint64),
        ("dstArray", c_void_p),
        ("dstPitch", c_size_t),
        ("width", c_size_t),
        ("height", c_size_t),
    ]


class Memcpy3D(ctypes.Structure):
    _fields_ = [
        ("srcX", c_size_t),
        ("srcY", c_size_t),
        ("srcZ", c_size_t),
        ("srcLOD", c_size_t),
        ("srcType", c_int),
        ("srcHost", c_void_p),
        ("srcDevice", c_uint64),
        ("srcArray", c_void_p),
        ("reserved0", c_void_p),
        ("srcPitch", c_size_t),
        ("srcHeight", c_size_t),
        ("dstX", c_size_t),
        ("dstY", c_size_t),
        ("dstZ", c_size_t),
        ("dstLOD", c_size_t),
        ("dstType", c_int),
        ("dstHost", c_void_p),
        ("dstDevice", c_uint64),
        ("dstArray", c_void_p),
        ("reserved1", c_void_p),
        ("dstPitch", c_size_t),
        ("dstHeight", c_size_t),
        ("width", c_size_t),
        ("height", c_size_t),
        ("depth", c_size_t),
    ]


HOST, DEVICE, ARRAY = 1, 2, 3


def pointer(name: str, *arguments: Any) -> int:
    """The handle or address that a function writes into its first argument."""
    result = c_uint64()
    getattr(cu, name)(byref(result), *arguments)
    return result.value


def start(device: int = 0) -> int:
    """Initialises and makes the primary context of a device current."""
    cu.cuInit(0)
    context = pointer("cuDevicePrimaryCtxRetain", device)
    cu.cuCtxSetCurrent(context)
    if os.environ.get(MEASURED) and not _before:
        free, total = info()
        _before.append(total - free)
    return context


def alloc(size: int) -> int:
    return pointer("cuMemAlloc_v2", size)


def info() -> tuple[int, int]:
    """Free and total."""
    free, total = c_size_t(), c_size_t()
    cu.cuMemGetInfo_v2(byref(free), byref(total))
    return free.value, total.value


# What is used when a scenario starts, if that is not known to be one context of the software driver.
_before: list[int] = []


def used() -> int:
    """What everybody uses of the current device, contexts left out if there is one context only."""
    free, total = info()
    return total - free - (_before[0] if _before else CONTEXT)


def write(address: int, data: bytes) -> None:
    cu.cuMemcpyHtoD_v2(address, data, len(data))


def read(address: int, size: int) -> bytes:
    buffer = ctypes.create_string_buffer(size)
    cu.cuMemcpyDtoH_v2(buffer, address, size)
    return buffer.raw


def integer(name: str, *arguments: Any) -> int:
    result = c_int()
    getattr(cu, name)(byref(result), *arguments)
    return result.value


def say(*words: object) -> None:
    """One line to the test, at once."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")  # in one piece: a forked child may speak at the same time
    sys.stdout.flush()


def wait_line() -> str:
    """One line from the test."""
    return sys.stdin.readline().strip()


def refuses(expected: int, name: str, *arguments: Any) -> None:
    code = cu.code(name, *arguments)
    assert code == expected, f"{name} returned {code}, not {expected}"


def own_pid() -> int:
    return os.getpid()
