"""Runs so many kernels of 50 ms on a GPU every 0.1 s, until the wrapper has gone: computes.py KERNELS."""

from __future__ import annotations

import ctypes
import os
import sys
import time

wrapper = os.getppid()
cuda, one = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64
context, module, kernel = one(), one(), one()
assert cuda.cuInit(0) == 0 and cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
assert cuda.cuModuleLoadData(ctypes.byref(module), b".version 8.0\n.visible .entry add() {}\0") == 0
assert cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"add") == 0
while os.getppid() == wrapper:
    for _ in range(int(sys.argv[1])):
        # Software kernels compute for 10 ns a thread.
        assert cuda.cuLaunchKernel(kernel, 5000, 1, 1, 1000, 1, 1, 0, None, None, None) == 0
    time.sleep(0.1)
