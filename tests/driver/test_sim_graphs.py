"""Graphs and stream capture."""

from __future__ import annotations

import ctypes
import threading
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

from simcuda import (
    BLOCK,
    HOST,
    INVALID_VALUE,
    KI,
    MI,
    NOT_SUPPORTED,
    OUT_OF_MEMORY,
    Location,
    Memcpy3D,
    PoolProps,
    alloc,
    cu,
    pointer,
    read,
    refuses,
    start,
    used,
    write,
)

UNSUPPORTED, INVALIDATED, UNMATCHED, UNJOINED, ISOLATION, IMPLICIT, CAPTURED_EVENT, WRONG_THREAD = (
    900, 901, 903, 904, 905, 906, 907, 908,
)  # fmt: skip
ILLEGAL_STATE, UPDATE_FAILURE = 401, 910
GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
DEVICE = 2
STEP = 32 * MI  # in which the pool of a device's graphs grows


class Fill(ctypes.Structure):
    _fields_ = [
        ("dst", c_uint64),
        ("pitch", c_size_t),
        ("value", c_uint),
        ("element", c_uint),
        ("width", c_size_t),
        ("height", c_size_t),
    ]


class Alloc(ctypes.Structure):
    _fields_ = [
        ("props", PoolProps),
        ("descs", c_void_p),
        ("count", c_size_t),
        ("size", c_size_t),
        ("dptr", c_uint64),
    ]


HOST_FUNCTION = ctypes.CFUNCTYPE(None, c_void_p)


class HostNode(ctypes.Structure):
    _fields_ = [("fn", HOST_FUNCTION), ("data", c_void_p)]


def copy_to_host(source: int, target: Any, size: int) -> Memcpy3D:
    return Memcpy3D(
        srcType=DEVICE,
        srcDevice=source,
        dstType=HOST,
        dstHost=ctypes.addressof(target),
        width=size,
        height=1,
        depth=1,
    )


def add(kind: str, graph: int, before: list[int], *arguments: Any) -> int:
    nodes = (c_uint64 * len(before))(*before)
    return pointer(f"cuGraphAdd{kind}", graph, nodes, len(before), *arguments)


def add_alloc(graph: int, before: list[int], size: int) -> tuple[int, int]:
    params = Alloc(props=PoolProps(type=1, location=Location(1, 0)), size=size)
    return add("MemAllocNode", graph, before, byref(params)), params.dptr


def instantiate(graph: int, flags: int = 0) -> int:
    return pointer("cuGraphInstantiateWithFlags", graph, flags)


def listed(name: str, handle: int) -> list[int]:
    count = c_size_t()
    getattr(cu, name)(handle, None, byref(count))
    nodes = (c_uint64 * count.value)()
    getattr(cu, name)(handle, nodes, byref(count))
    return list(nodes)


def memory(attribute: int) -> int:
    value = c_uint64(99)
    cu.cuDeviceGetGraphMemAttribute(0, attribute, byref(value))
    return value.value


def runs_nodes() -> None:
    start()
    address, stream = alloc(4096), pointer("cuStreamCreate", 1)
    graph, out, calls = pointer("cuGraphCreate", 0), ctypes.create_string_buffer(8), []
    function = HOST_FUNCTION(lambda data: calls.append((data, out.raw[:4])))
    first = add("MemsetNode", graph, [], byref(Fill(address, 0, 0xAB, 1, 8, 1)), None)
    second = add("MemcpyNode", graph, [first], byref(copy_to_host(address, out, 8)), None)
    third = add("HostNode", graph, [second], byref(HostNode(function, 7)))
    last = add("EmptyNode", graph, [third, first])
    assert listed("cuGraphGetNodes", graph) == [first, second, third, last]
    assert listed("cuGraphGetRootNodes", graph) == [first]
    assert listed("cuGraphNodeGetDependencies", last) == [third, first]
    assert listed("cuGraphNodeGetDependentNodes", first) == [second, last]
    kind = c_int()
    cu.cuGraphNodeGetType(third, byref(kind))
    assert kind.value == 3
    refuses(INVALID_VALUE, "cuGraphAddEmptyNode", byref(c_uint64()), graph, (c_uint64 * 1)(stream), 1)
    executable = instantiate(graph)
    assert out.raw == bytes(8), "a graph is a description"
    cu.cuGraphLaunch(executable, stream)
    cu.cuStreamSynchronize(stream)
    assert out.raw == b"\xab" * 8 and calls == [(7, b"\xab" * 4)]
    cu.cuGraphExecMemsetNodeSetParams(executable, first, byref(Fill(address, 0, 0x01020304, 4, 1, 1)), None)
    cu.cuGraphLaunch_ptsz(executable, stream)
    cu.cuStreamSynchronize(stream)
    assert out.raw[:5] == b"\x04\x03\x02\x01\xab" and len(calls) == 2
    cu.cuGraphNodeSetEnabled(executable, first, 0)
    write(address, b"12345678")
    cu.cuGraphLaunch(executable, stream)
    cu.cuStreamSynchronize(stream)
    assert out.raw == b"12345678"
    cu.cuGraphDestroy(graph)
    cu.cuGraphLaunch(executable, stream)
    cu.cuGraphExecDestroy(executable)
    refuses(INVALID_VALUE, "cuGraphLaunch", executable, stream)
    refuses(INVALID_VALUE, "cuGraphDestroy", graph)


def test_a_launch_does_what_the_nodes_say(sim: Any) -> None:
    sim.run(runs_nodes)


def shapes() -> None:
    start()
    graph = pointer("cuGraphCreate", 0)
    a, b = add("EmptyNode", graph, []), add("EmptyNode", graph, [])
    cu.cuGraphAddDependencies(graph, byref(c_uint64(a)), byref(c_uint64(b)), 1)
    refuses(INVALID_VALUE, "cuGraphAddDependencies", graph, byref(c_uint64(a)), byref(c_uint64(b)), 1)
    cu.cuGraphAddDependencies(graph, byref(c_uint64(b)), byref(c_uint64(a)), 1)
    refuses(INVALID_VALUE, "cuGraphInstantiateWithFlags", byref(c_uint64()), graph, 0)
    cu.cuGraphRemoveDependencies(graph, byref(c_uint64(b)), byref(c_uint64(a)), 1)
    executable = instantiate(graph)
    clone = pointer("cuGraphClone", graph)
    same = pointer("cuGraphNodeFindInClone", b, clone)
    assert listed("cuGraphNodeGetDependencies", same) == [listed("cuGraphGetNodes", clone)[0]]
    cu.cuGraphExecUpdate_v2(executable, clone, byref((c_uint64 * 3)()))
    child = add("ChildGraphNode", graph, [b], clone)
    inner = c_uint64()
    cu.cuGraphChildGraphNodeGetGraph(child, byref(inner))
    assert len(listed("cuGraphGetNodes", inner.value)) == 2 and inner.value != clone
    refuses(INVALID_VALUE, "cuGraphDestroy", inner.value)
    info = (c_int * 6)()
    assert cu.code("cuGraphExecUpdate_v2", executable, graph, byref(info)) == UPDATE_FAILURE and info[0] == 2
    cu.cuGraphDestroyNode(a)
    assert listed("cuGraphNodeGetDependencies", b) == []
    cu.cuGraphDestroy(graph)
    cu.cuGraphDestroy(clone)


def test_shapes_clones_children_and_updates(sim: Any) -> None:
    sim.run(shapes)


def graph_memory() -> None:
    start()
    stream, graph = pointer("cuStreamCreate", 1), pointer("cuGraphCreate", 0)
    node, address = add_alloc(graph, [], 5 * MI)
    filled = add("MemsetNode", graph, [node], byref(Fill(address, 0, 5, 1, 5 * MI, 1)), None)
    params = Alloc()
    cu.cuGraphMemAllocNodeGetParams(node, byref(params))
    assert (params.size, params.dptr) == (5 * MI, address)
    refuses(INVALID_VALUE, "cuMemFree_v2", address)
    refuses(NOT_SUPPORTED, "cuGraphClone", byref(c_uint64()), graph)
    refuses(NOT_SUPPORTED, "cuGraphDestroyNode", filled)
    executable = instantiate(graph)
    refuses(NOT_SUPPORTED, "cuGraphInstantiateWithFlags", byref(c_uint64()), graph, 0)
    assert used() == 0
    cu.cuGraphUpload(executable, stream)
    assert [used(), memory(0), memory(2)] == [STEP, STEP, STEP]
    cu.cuGraphLaunch(executable, stream)
    assert [used(), memory(0), memory(2)] == [STEP, STEP, STEP]
    assert read(address + 5 * MI - 2, 2) == b"\x05\x05"
    refuses(INVALID_VALUE, "cuGraphLaunch", executable, stream)
    cu.cuMemFreeAsync(address, stream)
    refuses(INVALID_VALUE, "cuMemFreeAsync", address, stream)
    refuses(INVALID_VALUE, "cuMemsetD8_v2", address, 0, 1)
    assert [used(), memory(0)] == [STEP, STEP], "the graph may run again"
    cu.cuGraphLaunch(executable, stream)
    assert used() == STEP, "from the pool, at the same address"
    other = pointer("cuGraphCreate", 0)
    add("MemFreeNode", other, [], address)
    cu.cuGraphLaunch(instantiate(other), stream)
    cu.cuDeviceGraphMemTrim(0)
    assert [used(), memory(0), memory(1), memory(2), memory(3)] == [0, 0, STEP, 0, STEP]
    zero = c_uint64(0)
    cu.cuDeviceSetGraphMemAttribute(0, 3, byref(zero))
    refuses(INVALID_VALUE, "cuDeviceSetGraphMemAttribute", 0, 2, byref(zero))
    assert memory(3) == 0
    cu.cuGraphLaunch(executable, stream)
    cu.cuGraphExecDestroy(executable)
    cu.cuGraphDestroy(graph)
    assert read(address, 1) == b"\x05", "unfreed memory outlives its graph"
    cu.cuMemFree_v2(address)
    cu.cuDeviceGraphMemTrim(0)
    assert used() == 0
    huge = pointer("cuGraphCreate", 0)
    add_alloc(huge, [], 1 << 36)
    executable = instantiate(huge)
    refuses(OUT_OF_MEMORY, "cuGraphLaunch", executable, stream)
    assert used() == 0, "nothing of a launch that finds no memory"


def test_graph_memory(sim: Any) -> None:
    sim.run(graph_memory)


def reuse_within_a_graph() -> None:
    start()
    stream, graph = pointer("cuStreamCreate", 1), pointer("cuGraphCreate", 0)
    first, a = add_alloc(graph, [], 8 * BLOCK)
    freed = add("MemFreeNode", graph, [first], a)
    refuses(INVALID_VALUE, "cuGraphAddMemFreeNode", byref(c_uint64()), graph, None, 0, a)
    add_alloc(graph, [freed], 6 * BLOCK)
    executable = instantiate(graph, 1)
    for _ in range(3):
        cu.cuGraphLaunch(executable, stream)
        assert [memory(2), memory(0)] == [STEP, STEP]


def test_memory_freed_in_the_graph_serves_the_next(sim: Any) -> None:
    sim.run(reuse_within_a_graph)


def status(stream: int) -> int:
    value = c_int()
    cu.cuStreamIsCapturing(stream, byref(value))
    return value.value


def captures() -> None:
    start()
    stream, other, event = (
        pointer("cuStreamCreate", 1),
        pointer("cuStreamCreate", 1),
        pointer("cuEventCreate", 2),
    )
    address, out = alloc(64), ctypes.create_string_buffer(16)
    cu.cuStreamBeginCapture_v2(stream, GLOBAL)
    refuses(ILLEGAL_STATE, "cuStreamBeginCapture_v2", stream, GLOBAL)
    assert (status(stream), status(other)) == (1, 0)
    cu.cuMemsetD8Async(address, 3, 16, stream)
    taken = pointer("cuMemAllocAsync", 100, stream)
    cu.cuEventRecord(event, stream)
    refuses(CAPTURED_EVENT, "cuEventSynchronize", event)
    cu.cuStreamWaitEvent(other, event, 0)
    assert status(other) == 1
    cu.cuMemcpyDtoHAsync_v2(out, address, 16, other)
    cu.cuEventRecord(event, other)
    cu.cuStreamWaitEvent_ptsz(stream, event, 0)
    cu.cuMemFreeAsync(taken, stream)
    refuses(INVALID_VALUE, "cuMemFreeAsync", address, stream)
    graph = pointer_of_end(stream)
    assert (status(stream), status(other)) == (0, 0)
    kinds = []
    for node in listed("cuGraphGetNodes", graph):
        kind = c_int()
        cu.cuGraphNodeGetType(node, byref(kind))
        kinds.append(kind.value)
    assert kinds == [2, 10, 1, 11]
    assert len(listed("cuGraphNodeGetDependencies", listed("cuGraphGetNodes", graph)[3])) == 2
    assert out.raw == bytes(16) and used() == BLOCK
    cu.cuGraphLaunch(instantiate(graph), stream)
    assert out.raw == b"\x03" * 16


def pointer_of_end(stream: int) -> int:
    graph = c_uint64()
    cu.cuStreamEndCapture(stream, byref(graph))
    return graph.value


def test_capture_of_two_streams(sim: Any) -> None:
    sim.run(captures)


def recaptures() -> None:
    start()
    target, stream = alloc(4 * KI), pointer("cuStreamCreate", c_uint(1))

    def fill(value: int) -> None:
        cu.cuMemsetD8Async(target, c_uint(value), c_size_t(KI), stream)

    cu.cuStreamBeginCapture_v2(stream, GLOBAL)
    fill(1)
    graph = pointer_of_end(stream)
    (node,) = listed("cuGraphGetNodes", graph)
    cu.cuStreamBeginRecaptureToGraph(stream, GLOBAL, graph, None, None)
    fill(7)
    assert pointer_of_end(stream) == graph and listed("cuGraphGetNodes", graph) == [node]
    cu.cuGraphLaunch(instantiate(graph), stream)
    assert read(target, 2) == bytes([7, 7]), "the node does what was captured last"
    cu.cuStreamBeginRecaptureToGraph(stream, GLOBAL, graph, None, None)
    fill(1)
    fill(2)
    result = c_uint64()
    refuses(910, "cuStreamEndCapture", stream, byref(result))
    assert result.value == 0 and status(stream) == 0
    refuses(INVALID_VALUE, "cuStreamBeginRecaptureToGraph", stream, GLOBAL, 0x1234, None, None)


def test_a_graph_that_is_captured_again(sim: Any) -> None:
    sim.run(recaptures)


def spoils(name: str, code: int, *arguments: Any) -> None:
    """The call fails in a capture, and the capture with it."""
    stream = pointer("cuStreamCreate", 1)
    cu.cuStreamBeginCapture_v2(stream, GLOBAL)
    refuses(code, name, *[stream if argument == "stream" else argument for argument in arguments])
    assert status(stream) == 2
    refuses(INVALIDATED, "cuMemsetD8Async", 4096, 0, 1, stream)
    graph = c_uint64(5)
    refuses(INVALIDATED, "cuStreamEndCapture", stream, byref(graph))
    assert (graph.value, status(stream)) == (0, 0)


def forbidden() -> None:
    start()
    address, event = alloc(64), pointer("cuEventCreate", 0)
    spoils("cuMemAlloc_v2", UNSUPPORTED, byref(c_uint64()), 64)
    spoils("cuMemFree_v2", UNSUPPORTED, address)
    spoils("cuCtxSynchronize", UNSUPPORTED)
    spoils("cuStreamSynchronize", UNSUPPORTED, "stream")
    spoils("cuStreamQuery", UNSUPPORTED, "stream")
    spoils("cuEventQuery", UNSUPPORTED, event)
    other, pool = pointer("cuStreamCreate", 1), pointer("cuDeviceGetDefaultMemPool", 0)
    pooled = pointer("cuMemAllocAsync", 64, other)
    spoils("cuMemAllocAsync", UNSUPPORTED, byref(c_uint64()), 64, other)
    spoils("cuMemAllocFromPoolAsync", UNSUPPORTED, byref(c_uint64()), 64, pool, other)
    spoils("cuMemFreeAsync", UNSUPPORTED, pooled, other)
    spoils("cuMemPoolTrimTo", UNSUPPORTED, pool, c_size_t(0))
    spoils("cuStreamWaitEvent", ISOLATION, "stream", event, 0)
    write(address, b"still there")
    refuses(ILLEGAL_STATE, "cuStreamEndCapture", pointer("cuStreamCreate", 0), byref(c_uint64()))
    refuses(UNSUPPORTED, "cuStreamBeginCapture_v2", None, GLOBAL)
    blocking = pointer("cuStreamCreate", 0)
    cu.cuStreamBeginCapture_v2(blocking, GLOBAL)
    refuses(IMPLICIT, "cuStreamIsCapturing", None, byref(c_int()))
    refuses(IMPLICIT, "cuMemsetD8_v2", address, 0, 1)
    refuses(INVALIDATED, "cuStreamEndCapture", blocking, byref(c_uint64()))
    modes()
    joining()


def in_thread(function: Any) -> Any:
    context, answers = pointer("cuCtxGetCurrent"), []

    def work() -> None:
        cu.cuCtxSetCurrent(context)
        answers.append(function())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return answers[0]


def modes() -> None:
    stream = pointer("cuStreamCreate", 1)
    for mode, here, there in ((GLOBAL, UNSUPPORTED, UNSUPPORTED), (THREAD_LOCAL, UNSUPPORTED, 0), (RELAXED, 0, 0)):
        for elsewhere, expected in ((False, here), (True, there)):
            cu.cuStreamBeginCapture_v2(stream, mode)
            call = lambda: cu.code("cuMemAlloc_v2", byref(c_uint64()), 64)  # noqa: E731
            assert (in_thread(call) if elsewhere else call()) == expected, (mode, elsewhere)
            assert cu.code("cuStreamEndCapture", stream, byref(c_uint64())) == (INVALIDATED if expected else 0)
    cu.cuStreamBeginCapture_v2(stream, GLOBAL)
    relaxed = c_int(RELAXED)
    cu.cuThreadExchangeStreamCaptureMode(byref(relaxed))
    assert relaxed.value == GLOBAL
    alloc(64)
    cu.cuThreadExchangeStreamCaptureMode(byref(relaxed))
    end = lambda: cu.code("cuStreamEndCapture", stream, byref(c_uint64()))  # noqa: E731
    assert in_thread(end) == WRONG_THREAD
    assert end() == INVALIDATED


def joining() -> None:
    stream, other, event = (
        pointer("cuStreamCreate", 1),
        pointer("cuStreamCreate", 1),
        pointer("cuEventCreate", 2),
    )
    address = alloc(64)
    cu.cuStreamBeginCapture_v2(stream, RELAXED)
    cu.cuEventRecord(event, stream)
    cu.cuStreamWaitEvent(other, event, 0)
    cu.cuMemsetD8Async(address, 1, 1, other)
    refuses(UNJOINED, "cuStreamEndCapture", stream, byref(c_uint64()))
    assert (status(stream), status(other)) == (0, 0)
    cu.cuMemsetD8Async(address, 1, 1, other)


def test_what_a_capture_forbids(sim: Any) -> None:
    sim.run(forbidden)
