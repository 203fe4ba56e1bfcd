"""The driver as a program sees it: libcuda.so.1 through ctypes. Every way to take memory is a pair of functions."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p

OUT_OF_MEMORY = 2


class Properties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", c_int),
        ("handle_types", c_int),
        ("location_type", c_int),
        ("location_id", c_int),
        ("metadata", c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class Driver:
    def __init__(self) -> None:
        self.cuda = cuda = ctypes.CDLL("libcuda.so.1")
        for name, arguments in {
            "cuInit": [c_uint],
            "cuDeviceGet": [POINTER(c_int), c_int],
            "cuDeviceGetCount": [POINTER(c_int)],
            "cuDevicePrimaryCtxRetain": [POINTER(c_void_p), c_int],
            "cuDevicePrimaryCtxRelease_v2": [c_int],
            "cuCtxSetCurrent": [c_void_p],
            "cuMemAlloc_v2": [POINTER(c_uint64), c_size_t],
            "cuMemFree_v2": [c_uint64],
            "cuMemAllocManaged": [POINTER(c_uint64), c_size_t, c_uint],
            "cuMemAllocAsync": [POINTER(c_uint64), c_size_t, c_void_p],
            "cuMemFreeAsync": [c_uint64, c_void_p],
            "cuStreamSynchronize": [c_void_p],
            "cuMemCreate": [POINTER(c_uint64), c_size_t, POINTER(Properties), c_uint64],
            "cuMemRelease": [c_uint64],
            "cuGetErrorName": [c_int, POINTER(c_char_p)],
        }.items():
            getattr(cuda, name).argtypes = arguments
        self.contexts: dict[int, c_void_p] = {}

    def must(self, code: int, what: str) -> None:
        if code != 0:
            raise RuntimeError(f"{what}: CUDA error {code}")

    def start(self) -> int:
        """Initialise; returns the number of GPUs."""
        count = c_int()
        self.must(self.cuda.cuInit(0), "cuInit")
        self.must(self.cuda.cuDeviceGetCount(byref(count)), "cuDeviceGetCount")
        return count.value

    def open(self, gpu: int) -> int:
        """Open the primary context of a GPU; returns the driver's code."""
        context = c_void_p()
        code: int = self.cuda.cuDevicePrimaryCtxRetain(byref(context), gpu)
        if code == 0:
            self.contexts[gpu] = context
        return code

    def shut(self, gpu: int) -> None:
        """End the primary context of a GPU. Nothing may be allocated in it."""
        del self.contexts[gpu]
        self.must(self.cuda.cuDevicePrimaryCtxRelease_v2(gpu), "cuDevicePrimaryCtxRelease")

    def use(self, gpu: int) -> None:
        self.must(self.cuda.cuCtxSetCurrent(self.contexts[gpu]), "cuCtxSetCurrent")

    def take(self, kind: str, gpu: int, size: int) -> tuple[int, int]:
        """Allocate in the current context of this thread; returns the code, and the address or handle."""
        address = c_uint64()
        if kind == "linear":
            code = self.cuda.cuMemAlloc_v2(byref(address), size)
        elif kind == "managed":
            code = self.cuda.cuMemAllocManaged(byref(address), size, 1)
        elif kind == "pool":
            code = self.cuda.cuMemAllocAsync(byref(address), size, None)
        else:
            properties = Properties(type=1, location_type=1, location_id=gpu)
            code = self.cuda.cuMemCreate(byref(address), size, byref(properties), 0)
        return code, address.value

    def give(self, kind: str, address: int) -> None:
        if kind in ("linear", "managed"):
            self.must(self.cuda.cuMemFree_v2(address), "cuMemFree")
        elif kind == "pool":
            self.must(self.cuda.cuMemFreeAsync(address, None), "cuMemFreeAsync")
            self.must(self.cuda.cuStreamSynchronize(None), "cuStreamSynchronize")
        else:
            self.must(self.cuda.cuMemRelease(address), "cuMemRelease")

    def name(self, code: int) -> str:
        text = c_char_p()
        self.cuda.cuGetErrorName(code, byref(text))
        return text.value.decode() if text.value else str(code)
