"""A small CUDA client, imported by the child processes that the tests start with the shim preloaded.

It finds the driver as real clients do (dlopen and dlsym through ctypes, or cuGetProcAddress) and says the result of
each call as the driver's own code, so that a test reads like a program.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from ctypes import byref, c_char, c_int, c_size_t, c_uint, c_uint64, c_ulonglong, c_void_p

SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED, INVALID_CONTEXT = 0, 1, 2, 3, 201
KiB, MiB, GiB = 2**10, 2**20, 2**30
UNIT = 512
BLOCK = 2 * MiB  # what the software driver hands memory out in

DEFAULT, LEGACY_STREAM, PER_THREAD = 0, 1, 2
ATTR_RELEASE_THRESHOLD, ATTR_RESERVED, ATTR_USED = 4, 5, 7


class Location(ctypes.Structure):
    _fields_ = (("type", c_int), ("id", c_int))


class AllocationProp(ctypes.Structure):
    _fields_ = (
        ("type", c_int),
        ("requested", c_int),
        ("location", Location),
        ("metadata", c_void_p),
        ("flags", c_char * 8),
    )


class AccessDesc(ctypes.Structure):
    _fields_ = (("location", Location), ("flags", c_int))


class PoolProps(ctypes.Structure):
    _fields_ = (
        ("type", c_int),
        ("handles", c_int),
        ("location", Location),
        ("security", c_void_p),
        ("max_size", c_size_t),
        ("reserved", c_char * 56),
    )


class ArrayShape(ctypes.Structure):
    _fields_ = (("width", c_size_t), ("height", c_size_t), ("format", c_int), ("channels", c_uint))


class Array3DShape(ctypes.Structure):
    _fields_ = (
        ("width", c_size_t),
        ("height", c_size_t),
        ("depth", c_size_t),
        ("format", c_int),
        ("channels", c_uint),
        ("flags", c_uint),
    )


class NvmlMemory(ctypes.Structure):
    _fields_ = (("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong))


class NvmlMemory2(ctypes.Structure):
    _fields_ = (
        ("version", c_uint),
        ("total", c_ulonglong),
        ("reserved", c_ulonglong),
        ("free", c_ulonglong),
        ("used", c_ulonglong),
    )


class NvmlProcess(ctypes.Structure):
    _fields_ = (("pid", c_uint), ("used", c_ulonglong), ("gi", c_uint), ("ci", c_uint))


class Cuda:
    """libcuda, by the way that `how` says: a look-up of each symbol, or cuGetProcAddress of each base name."""

    def __init__(self, how: str = "dlsym", library: str = "libcuda.so.1", flags: int = DEFAULT) -> None:
        self.how, self.flags = how, flags
        self.lib = ctypes.CDLL(library)
        self._found: dict[str, object] = {}

    def function(self, symbol: str):
        if symbol not in self._found:
            self._found[symbol] = getattr(self.lib, symbol) if self.how == "dlsym" else self._by_address(symbol)
        return self._found[symbol]

    def _by_address(self, symbol: str):
        base = symbol.removesuffix("_ptsz").removesuffix("_v2")
        return ctypes.CFUNCTYPE(c_int)(self.address(base, 13000, self.flags))

    def address(self, base: str, version: int = 13000, flags: int = DEFAULT, resolver: str = "v2") -> int:
        pointer, status = c_void_p(), c_int()
        if resolver == "v2":
            get = self.lib.cuGetProcAddress_v2
            result = get(base.encode(), byref(pointer), version, c_uint64(flags), byref(status))
        else:
            result = self.lib.cuGetProcAddress(base.encode(), byref(pointer), version, c_uint64(flags))
        assert result == SUCCESS, (base, result)
        return pointer.value or 0

    def __getattr__(self, symbol: str):
        if not symbol.startswith("cu"):
            raise AttributeError(symbol)
        return self.function(symbol)

    # ---- what tests do most -------------------------------------------------------------------------

    def start(self, device: int = 0) -> Cuda:
        """Open the primary context of a device and make it current."""
        assert self.cuInit(0) == SUCCESS
        self.primary(device)
        return self

    def primary(self, device: int = 0) -> c_void_p:
        context = c_void_p()
        check(self.cuDevicePrimaryCtxRetain(byref(context), device))
        check(self.cuCtxSetCurrent(context))
        return context

    def create(self, device: int = 0) -> c_void_p:
        context = c_void_p()
        check(self.cuCtxCreate_v2(byref(context), 0, device))
        return context

    def alloc(self, size: int) -> tuple[int, c_ulonglong]:
        pointer = c_ulonglong()
        return self.cuMemAlloc_v2(byref(pointer), c_size_t(size)), pointer

    def must_alloc(self, size: int) -> c_ulonglong:
        result, pointer = self.alloc(size)
        check(result)
        return pointer

    def free(self, pointer: c_ulonglong) -> int:
        return self.cuMemFree_v2(pointer)

    def info(self) -> tuple[int, int]:
        free, total = c_size_t(), c_size_t()
        check(self.cuMemGetInfo_v2(byref(free), byref(total)))
        return free.value, total.value

    def used(self) -> int:
        """What is charged: in standalone mode the limit less what is free."""
        free, total = self.info()
        return total - free

    def total(self, device: int = 0) -> int:
        size = c_size_t()
        check(self.cuDeviceTotalMem_v2(byref(size), device))
        return size.value

    def stream(self) -> c_void_p:
        stream = c_void_p()
        check(self.cuStreamCreate(byref(stream), 1))
        return stream

    def create_block(self, size: int, device: int = 0, kind: int = 1) -> tuple[int, c_ulonglong]:
        handle, prop = c_ulonglong(), AllocationProp(type=1, requested=1, location=Location(kind, device))
        return self.cuMemCreate(byref(handle), c_size_t(size), byref(prop), c_ulonglong(0)), handle

    def reserve(self, size: int) -> c_ulonglong:
        address = c_ulonglong()
        check(self.cuMemAddressReserve(byref(address), c_size_t(size), c_size_t(0), c_ulonglong(0), c_ulonglong(0)))
        return address

    def map(self, address: int, size: int, handle: c_ulonglong, offset: int = 0) -> int:
        return self.cuMemMap(c_ulonglong(address), c_size_t(size), c_size_t(offset), handle, c_ulonglong(0))

    def unmap(self, address: int, size: int) -> int:
        return self.cuMemUnmap(c_ulonglong(address), c_size_t(size))

    def pool(self, device: int = 0, kind: int = 1) -> c_void_p:
        pool, props = c_void_p(), PoolProps(type=1, location=Location(kind, device))
        check(self.cuMemPoolCreate(byref(pool), byref(props)))
        return pool

    def pool_attribute(self, pool: c_void_p, attribute: int) -> int:
        value = c_uint64()
        check(self.cuMemPoolGetAttribute(pool, attribute, byref(value)))
        return value.value


class Nvml:
    def __init__(self) -> None:
        self.lib = ctypes.CDLL("libnvidia-ml.so.1")
        check(self.lib.nvmlInit_v2())

    def device(self, index: int = 0) -> c_void_p:
        device = c_void_p()
        check(self.lib.nvmlDeviceGetHandleByIndex_v2(index, byref(device)))
        return device

    def memory(self, index: int = 0) -> NvmlMemory:
        memory = NvmlMemory()
        check(self.lib.nvmlDeviceGetMemoryInfo(self.device(index), byref(memory)))
        return memory

    def memory2(self, index: int = 0) -> NvmlMemory2:
        memory = NvmlMemory2(version=ctypes.sizeof(NvmlMemory2) | 2 << 24)
        check(self.lib.nvmlDeviceGetMemoryInfo_v2(self.device(index), byref(memory)))
        return memory

    def of_this_process(self, index: int = 0) -> int:
        """Physical bytes that the driver holds for this process: not hooked, so the truth."""
        count, found = c_uint(64), (NvmlProcess * 64)()
        check(self.lib.nvmlDeviceGetComputeRunningProcesses_v3(self.device(index), byref(count), found))
        return sum(one.used for one in found[: count.value] if one.pid == os.getpid())


def check(result: int) -> None:
    if result != SUCCESS:
        raise RuntimeError(f"the driver says {result}")


def say(value: object) -> None:
    """Tell the test something: one line of JSON."""
    print(json.dumps(value), flush=True)


def hear() -> str:
    """Wait for a line from the test."""
    return sys.stdin.readline().strip()
