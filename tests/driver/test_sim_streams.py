"""Streams, events, callbacks; code that is accepted and not executed."""

from __future__ import annotations

import time
from ctypes import CFUNCTYPE, byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_ulonglong, c_void_p
from typing import Any

from simcuda import (
    INVALID_CONTEXT,
    INVALID_HANDLE,
    INVALID_VALUE,
    MI,
    NOT_FOUND,
    NOT_READY,
    alloc,
    cu,
    integer,
    pointer,
    read,
    refuses,
    start,
    used,
    write,
)

PTX = b"""
.version 8.0
.target sm_90
.address_size 64
.global .align 4 .b8 table[4096];
.visible .global .align 8 .f64 factor = 0d3FF0000000000000;
.const .align 16 .v4 .f32 corner[2];
.visible .entry add(.param .u64 a) { ret; }
.visible .entry multiply(.param .u64 a) { ret; }
"""


def streams() -> None:
    context = start()
    stream = pointer("cuStreamCreateWithPriority", 1, -99)
    flags, device, identity = c_uint(), c_int(), c_ulonglong()
    cu.cuStreamGetFlags(stream, byref(flags))
    cu.cuStreamGetDevice(stream, byref(device))
    cu.cuStreamGetId(stream, byref(identity))
    priority, found = c_int(), c_uint64()
    cu.cuStreamGetPriority(stream, byref(priority))
    cu.cuStreamGetCtx(stream, byref(found))
    assert (flags.value, device.value, priority.value, found.value) == (1, 0, -5, context)
    assert identity.value > 2
    status = c_int(9)
    cu.cuStreamIsCapturing(stream, byref(status))
    assert status.value == 0
    cu.cuStreamGetCaptureInfo_v2(stream, byref(status), None, None, None, None)
    for standing in (None, 1, 2):
        cu.cuStreamQuery(standing)
        cu.cuStreamSynchronize_ptsz(standing)
    cu.cuStreamDestroy_v2(stream)
    refuses(INVALID_HANDLE, "cuStreamSynchronize", stream)
    refuses(INVALID_HANDLE, "cuStreamDestroy_v2", stream)
    refuses(INVALID_VALUE, "cuStreamCreate", byref(c_uint64()), 8)
    other = pointer("cuCtxCreate_v2", 0, 0)
    ended = pointer("cuStreamCreate", 0)
    cu.cuCtxDestroy_v2(other)
    refuses(INVALID_HANDLE, "cuStreamQuery", ended)


def test_streams(sim: Any) -> None:
    sim.run(streams)


def events() -> None:
    start()
    first, second, silent = (pointer("cuEventCreate", flags) for flags in (0, 0, 2))
    took = c_float()
    refuses(INVALID_HANDLE, "cuEventElapsedTime", byref(took), first, second)
    cu.cuEventRecord(first, None)
    time.sleep(0.02)
    cu.cuEventRecord_ptsz(second, None)
    cu.cuEventRecord(silent, None)
    cu.cuEventElapsedTime_v2(byref(took), first, second)
    assert 20 <= took.value < 2000
    refuses(INVALID_HANDLE, "cuEventElapsedTime", byref(took), first, silent)
    cu.cuStreamWaitEvent(None, second, 0)
    cu.cuEventQuery(second)
    cu.cuEventSynchronize(second)
    cu.cuEventDestroy_v2(first)
    refuses(INVALID_HANDLE, "cuEventQuery", first)
    refuses(INVALID_VALUE, "cuEventCreate", byref(c_uint64()), 4)


def test_events(sim: Any) -> None:
    sim.run(events)


def an_event_beside_a_callback() -> None:
    import threading

    start()
    busy, stream = pointer("cuStreamCreate", 1), pointer("cuStreamCreate", 1)
    event = pointer("cuEventCreate", 0)
    gate, ended = threading.Event(), threading.Event()

    @CFUNCTYPE(None, c_void_p)
    def function(_: int) -> None:
        gate.wait(10)
        ended.set()

    cu.cuLaunchHostFunc(busy, function, 0)
    cu.cuEventRecord(event, stream)
    cu.cuEventQuery(event)
    cu.cuEventSynchronize(event)
    assert not ended.is_set(), "it waits for nothing in other streams"
    gate.set()
    cu.cuEventRecord(event, busy)
    assert ended.is_set(), "it waits for what is before it in its own"


def test_an_event_waits_for_its_own_stream_only(sim: Any) -> None:
    sim.run(an_event_beside_a_callback)


def callbacks() -> None:
    import threading

    start()
    stream, other = pointer("cuStreamCreate", 0), pointer("cuStreamCreate", 0)
    device = alloc(4)
    write(device, b"old!")
    gate = threading.Event()
    order: list[Any] = []
    codes: list[int] = []

    @CFUNCTYPE(None, c_void_p)
    def function(data: int) -> None:
        gate.wait(10)
        codes.append(cu.code("cuStreamSynchronize", stream))
        order.append((data, threading.get_ident() != main))

    @CFUNCTYPE(None, c_void_p, c_int, c_void_p)
    def callback(of: int, status: int, data: int) -> None:
        order.append((of == stream, status, data))

    main = threading.get_ident()
    cu.cuLaunchHostFunc(stream, function, 5)
    cu.cuStreamAddCallback(stream, callback, 6, 0)
    refuses(NOT_READY, "cuStreamQuery", stream)
    assert order == []
    cu.cuStreamSynchronize(other)
    threading.Timer(0.05, gate.set).start()
    cu.cuMemcpyHtoDAsync_v2(device, b"new!", 4, stream)
    assert order == [(5, True), (True, 0, 6)], "the copy waited for what was put in before it"
    assert read(device, 4) == b"new!"
    assert codes != [0], "a callback cannot wait for itself"
    cu.cuStreamQuery(stream)


def test_callbacks(sim: Any) -> None:
    sim.run(callbacks)


def modules() -> None:
    start()
    module = pointer("cuModuleLoadData", PTX)
    add = pointer("cuModuleGetFunction", module, b"add")
    assert pointer("cuModuleGetFunction", module, b"add") == add
    refuses(NOT_FOUND, "cuModuleGetFunction", byref(c_uint64()), module, b"divide")
    assert integer("cuModuleGetFunctionCount", module) == 2
    size = c_size_t()
    address = pointer("cuModuleGetGlobal_v2", byref(size), module, b"table")
    assert (size.value, used()) == (4096, 2 * MI)
    assert read(address, 8) == bytes(8)
    write(address, b"constant")
    refuses(INVALID_VALUE, "cuMemFree_v2", address)
    sizes = []
    for name in (b"factor", b"corner"):
        cu.cuModuleGetGlobal_v2(byref(c_uint64()), byref(size), module, name)
        sizes.append(size.value)
    assert sizes == [8, 32]
    refuses(NOT_FOUND, "cuModuleGetGlobal_v2", byref(c_uint64()), byref(size), module, b"nothing")
    cu.cuLaunchKernel(add, 10, 1, 1, 256, 1, 1, 1024, None, None, None)
    cu.cuLaunchKernel_ptsz(add, 10, 1, 1, 256, 1, 1, 0, None, None, None)
    cu.cuLaunchCooperativeKernel(add, 1, 1, 1, 1, 1, 1, 0, None, None)
    refuses(INVALID_VALUE, "cuLaunchKernel", add, 0, 1, 1, 256, 1, 1, 0, None, None, None)
    refuses(INVALID_VALUE, "cuLaunchKernel", add, 1, 1, 1, 2048, 1, 1, 0, None, None, None)
    refuses(INVALID_VALUE, "cuLaunchKernel", add, 1, 1, 1, 1, 1, 1, 100_000, None, None, None)
    refuses(INVALID_HANDLE, "cuLaunchKernel", 0x1230, 1, 1, 1, 1, 1, 1, 0, None, None, None)
    cu.cuFuncSetAttribute(add, 8, 100_000)
    cu.cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 100_000, None, None, None)
    assert integer("cuFuncGetAttribute", 8, add) == 100_000
    refuses(INVALID_VALUE, "cuFuncSetAttribute", add, 4, 1)
    name = c_char_p()
    cu.cuFuncGetName(byref(name), add)
    assert name.value == b"add"
    assert integer("cuOccupancyMaxActiveBlocksPerMultiprocessor", add, 256, 0) == 8
    grid, block = c_int(), c_int()
    cu.cuOccupancyMaxPotentialBlockSize(byref(grid), byref(block), add, None, 0, 0)
    assert (grid.value, block.value) == (264, 1024)
    cu.cuModuleUnload(module)
    assert used() == 0
    refuses(INVALID_HANDLE, "cuLaunchKernel", add, 1, 1, 1, 1, 1, 1, 0, None, None, None)
    refuses(200, "cuModuleLoadData", byref(c_uint64()), b"")
    refuses(301, "cuModuleLoad", byref(c_uint64()), b"/does/not/exist")
    binary = pointer("cuModuleLoadData", b"\x7fELF binary of which nothing is known")
    assert pointer("cuModuleGetFunction", binary, b"anything")


def test_modules(sim: Any) -> None:
    sim.run(modules)


def libraries() -> None:
    cu.cuInit(0)
    library = pointer("cuLibraryLoadData", PTX, None, None, 0, None, None, 0)
    kernel = pointer("cuLibraryGetKernel", library, b"multiply")
    assert integer("cuLibraryGetKernelCount", library) == 2
    kernels = (c_uint64 * 2)()
    cu.cuLibraryEnumerateKernels(kernels, 2, library)
    assert kernel in list(kernels)
    refuses(INVALID_CONTEXT, "cuKernelGetFunction", byref(c_uint64()), kernel)
    context = pointer("cuCtxCreate_v2", 0, 0)
    function = pointer("cuKernelGetFunction", kernel)
    module = pointer("cuLibraryGetModule", library)
    found = c_uint64()
    cu.cuFuncGetModule(byref(found), function)
    assert found.value == module
    cu.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, None, None, None)
    size = c_size_t()
    cu.cuLibraryGetGlobal(byref(found), byref(size), library, b"table")
    assert size.value == 4096
    assert integer("cuKernelGetAttribute", 0, kernel, 0) == 1024
    refuses(INVALID_HANDLE, "cuModuleUnload", module)
    cu.cuCtxDestroy_v2(context)
    refuses(INVALID_CONTEXT, "cuLaunchKernel", kernel, 1, 1, 1, 32, 1, 1, 0, None, None, None)
    pointer("cuCtxCreate_v2", 0, 0)
    assert used() == 0, "the ended context took its copy of the variables"
    cu.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, None, None, None)
    cu.cuLibraryUnload(library)
    refuses(INVALID_HANDLE, "cuLaunchKernel", kernel, 1, 1, 1, 32, 1, 1, 0, None, None, None)


def test_libraries(sim: Any) -> None:
    sim.run(libraries)


def linker() -> None:
    start()
    state = c_uint64()
    cu.cuLinkCreate_v2(0, None, None, byref(state))
    cu.cuLinkAddData_v2(state.value, 1, PTX, len(PTX) + 1, b"one", 0, None, None)
    cu.cuLinkAddData_v2(state.value, 1, b".version 8.0\n.visible .entry third() { ret; }", 46, b"two", 0, None, None)
    image, size = c_void_p(), c_size_t()
    cu.cuLinkComplete(state.value, byref(image), byref(size))
    assert size.value > len(PTX)
    module = pointer("cuModuleLoadData", image.value)
    cu.cuLinkDestroy(state.value)
    for name in (b"add", b"multiply", b"third"):
        assert pointer("cuModuleGetFunction", module, name)
    refuses(INVALID_HANDLE, "cuLinkDestroy", state.value)


def test_linker(sim: Any) -> None:
    sim.run(linker)
