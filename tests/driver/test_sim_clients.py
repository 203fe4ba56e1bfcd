"""Real programs on the software driver, unchanged: numba-cuda, cuda.core, cuda.bindings, programs in C."""

from __future__ import annotations

import importlib.util
import subprocess
from typing import Any

import pytest
from simcuda import CONTEXT, MI, say


def needs(*modules: str) -> pytest.MarkDecorator:
    def missing(name: str) -> bool:
        try:
            return importlib.util.find_spec(name) is None
        except ModuleNotFoundError:
            return True

    absent = [name for name in modules if missing(name)]
    return pytest.mark.skipif(bool(absent), reason=f"not installed: {', '.join(absent)}")


def numba_program() -> None:
    import numpy as np
    from numba import cuda

    data = np.arange(1_000_000, dtype=np.float32)
    on_device = cuda.to_device(data)
    other = cuda.device_array_like(on_device)
    other.copy_to_device(on_device)
    assert (other.copy_to_host() == data).all()
    assert (other[1000:2000].copy_to_host() == data[1000:2000]).all()
    free, total = cuda.current_context().get_memory_info()
    say(total // MI, (total - free - CONTEXT) // MI)
    pinned = cuda.pinned_array(100, dtype=np.int32)
    pinned[:] = 7
    stream = cuda.stream()
    moved = cuda.to_device(pinned, stream=stream)
    stream.synchronize()
    assert (moved.copy_to_host() == 7).all()
    managed = cuda.managed_array(10, dtype=np.int64)
    managed[:] = 3
    assert managed.sum() == 30
    del on_device, other, moved, managed
    cuda.current_context().memory_manager.deallocations.clear()
    free, total = cuda.current_context().get_memory_info()
    assert total - free == CONTEXT
    with pytest.raises(cuda.cudadrv.driver.CudaAPIError):
        cuda.device_array(20 << 30, dtype=np.uint8)
    cuda.close()


@needs("numba.cuda", "numpy")
def test_numba_cuda(sim: Any) -> None:
    assert sim.run(numba_program, NUMBA_CUDA_ENABLE_PYNVJITLINK=None) == "16384 8\n"


def core_program() -> None:
    from cuda.core import Device

    device = Device()
    device.set_current()
    say(device.name, device.compute_capability)
    stream = device.create_stream()
    buffer = device.allocate(10 * MI, stream=stream)
    other = device.allocate(10 * MI, stream=stream)
    buffer.fill(b"\x07", stream=stream)
    buffer.copy_to(other, stream=stream)
    stream.sync()
    assert other.size == 10 * MI
    event = stream.record()
    event.sync()
    buffer.close()
    other.close()
    stream.sync()
    # Device.sync() asks NVIDIA's runtime library, which does not work on a driver that is not NVIDIA's.


@needs("cuda.core")
def test_cuda_core(sim: Any) -> None:
    lines = sim.run(core_program).splitlines()
    assert lines == ["gpushare software GPU ComputeCapability(major=9, minor=0)"]


def bindings_program() -> None:
    from cuda.bindings import driver

    def check(answer: tuple[Any, ...]) -> Any:
        assert answer[0] == driver.CUresult.CUDA_SUCCESS, answer
        return answer[1] if len(answer) == 2 else answer[1:]

    check(driver.cuInit(0))
    device = check(driver.cuDeviceGet(0))
    context = check(driver.cuCtxCreate(None, 0, device))
    pointer = check(driver.cuMemAlloc(4 * MI))
    free, total = check(driver.cuMemGetInfo())
    assert total - free == CONTEXT + 4 * MI
    check(driver.cuMemcpyHtoD(pointer, b"hello", 5))
    back = bytearray(5)
    check(driver.cuMemcpyDtoH(back, pointer, 5))
    assert back == b"hello"
    check(driver.cuMemFree(pointer))
    assert driver.cuMemAlloc(1 << 40)[0] == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    properties = driver.CUmemAllocationProp()
    properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    handle = check(driver.cuMemCreate(4 * MI, properties, 0))
    check(driver.cuMemRelease(handle))
    check(driver.cuCtxDestroy(context))


@needs("cuda.bindings.driver")
def test_cuda_bindings(sim: Any) -> None:
    sim.run(bindings_program)


PROGRAM = r"""
#include "cuda_abi.h"
#include <stdio.h>
#include <string.h>
#ifdef BY_NAME
#include <dlfcn.h>
#define CALL(name) ((__typeof__(name) *)dlsym(library, #name))
#else
#define CALL(name) name
#endif

int main(void) {
    CUcontext context;
    CUdeviceptr pointer;
    char text[6] = "";
    size_t free_bytes, total;
#ifdef BY_NAME
    void *library = dlopen(BY_NAME, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        return 2;
    }
#endif
    if (CALL(cuInit)(0) || CALL(cuCtxCreate_v2)(&context, 0, 0) || CALL(cuMemAlloc_v2)(&pointer, 4 << 20) ||
        CALL(cuMemcpyHtoD_v2)(pointer, "hello", 6) || CALL(cuMemcpyDtoH_v2)(text, pointer, 6) ||
        CALL(cuMemGetInfo_v2)(&free_bytes, &total)) {
        return 1;
    }
    printf("%s %zu\n", text, (total - free_bytes) >> 20);
    return CALL(cuMemFree_v2)(pointer) || CALL(cuCtxDestroy_v2)(context);
}
"""


@pytest.mark.parametrize("way", ["linked", "libcuda.so.1", "libcuda.so"])
def test_programs_in_c(sim: Any, compile_c: Any, way: str) -> None:
    if way == "linked":
        program = compile_c("linked", PROGRAM, f"-L{sim.libraries}", "-lcuda")
    else:
        program = compile_c(f"by-{way}", PROGRAM, f'-DBY_NAME="{way}"', "-ldl")
    done = subprocess.run([program], env=sim.environment(), capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "hello 304\n"), done.stderr
