"""Runs kernels of so many milliseconds and says what it did: kernels.py MILLISECONDS [QUEUED [PAUSE [CAPTURE]]].

It waits for the GPU after each QUEUED kernels, then PAUSE milliseconds more. After each wait it writes the number of
kernels that are done, and the longest that one launch has taken, in milliseconds, to a line of standard output. It ends
with its wrapper.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time

wrapper = os.getppid()
span, queued, pause = (float(word) for word in [*sys.argv[1:], "1", "0"][:3])
cuda, one = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64
context, module, kernel = one(), one(), one()
assert cuda.cuInit(0) == 0 and cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
assert cuda.cuModuleLoadData(ctypes.byref(module), b".version 8.0\n.visible .entry add() {}\0") == 0
assert cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"add") == 0
blocks = int((span - 0.1) * 100)  # software kernels compute for 0.1 ms and 10 ns a thread
done, longest = 0, 0.0
while os.getppid() == wrapper:
    for _ in range(int(queued)):
        began = time.monotonic()
        assert cuda.cuLaunchKernel(kernel, blocks, 1, 1, 1000, 1, 1, 0, None, None, None) == 0
        longest = max(longest, time.monotonic() - began)
    assert cuda.cuCtxSynchronize() == 0
    done += int(queued)
    print(done, round(longest * 1000, 1), flush=True)
    time.sleep(pause / 1000)
