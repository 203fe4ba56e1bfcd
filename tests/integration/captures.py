"""Captures a kernel into a graph for so many seconds, and writes how long each capture has taken, in milliseconds. Then
it launches the graph once, which may have to wait, writes that time, too, and stays: captures.py SECONDS."""

from __future__ import annotations

import ctypes
import os
import sys
import time

wrapper = os.getppid()
cuda, one = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64
context, module, kernel, stream, graph, exec_ = one(), one(), one(), one(), one(), one()
assert cuda.cuInit(0) == 0 and cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
assert cuda.cuModuleLoadData(ctypes.byref(module), b".version 8.0\n.visible .entry add() {}\0") == 0
assert cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"add") == 0
assert cuda.cuStreamCreate(ctypes.byref(stream), 1) == 0
began = time.monotonic()
print("ready", flush=True)
while time.monotonic() - began < float(sys.argv[1]):
    start = time.monotonic()
    assert cuda.cuStreamBeginCapture_v2(stream, 0) == 0
    assert cuda.cuLaunchKernel(kernel, 100, 1, 1, 1000, 1, 1, 0, stream, None, None) == 0
    assert cuda.cuStreamEndCapture(stream, ctypes.byref(graph)) == 0
    print((time.monotonic() - start) * 1000, flush=True)
    time.sleep(0.01)
assert cuda.cuGraphInstantiateWithFlags(ctypes.byref(exec_), graph, one(0)) == 0
start = time.monotonic()
assert cuda.cuGraphLaunch(exec_, stream) == 0
print("launched", (time.monotonic() - start) * 1000, flush=True)
while os.getppid() == wrapper:
    time.sleep(0.1)
