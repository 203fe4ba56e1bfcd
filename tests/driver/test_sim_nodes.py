"""Nodes without work of their own (events, semaphores, conditions), objects that graphs keep alive, drawings."""

from __future__ import annotations

import ctypes
import os
import threading
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_ulonglong, c_void_p, create_string_buffer
from pathlib import Path
from typing import Any

import pytest
from simcuda import INVALID_HANDLE, INVALID_VALUE, KI, NOT_SUPPORTED, alloc, cu, pointer, read, refuses, start
from test_sim_graphs import UNJOINED, Fill, HostNode, add, add_alloc, instantiate, listed, memory

HOST_FUNCTION = ctypes.CFUNCTYPE(None, c_void_p)
KERNEL, MEMSET, HOST, EMPTY, WAIT_EVENT, EVENT_RECORD, SIGNAL, WAIT, CONDITIONAL = 0, 2, 3, 5, 6, 7, 8, 9, 13
IF, WHILE, SWITCH = 0, 1, 2
NO_SYNC, MOVE = 1, 1


class Handle(ctypes.Structure):
    """CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC"""

    _fields_ = [
        ("type", c_int),
        ("fd", c_int),
        ("more", c_void_p * 1),
        ("rest", c_void_p),
        ("flags", c_uint),
        ("reserved", c_uint * 16),
    ]


class Params(ctypes.Structure):
    """Of a signal or a wait: both have the value first and are as long."""

    _fields_ = [("value", c_ulonglong), ("rest", c_uint * 16), ("flags", c_uint), ("reserved", c_uint * 16)]


class Semaphores(ctypes.Structure):
    _fields_ = [("array", c_void_p), ("params", c_void_p), ("count", c_uint)]


class Conditional(ctypes.Structure):
    _fields_ = [("handle", c_uint64), ("type", c_int), ("size", c_uint), ("graphs", c_void_p), ("context", c_void_p)]


class Node(ctypes.Structure):
    """CUgraphNodeParams"""

    _fields_ = [
        ("type", c_int),
        ("reserved", c_int * 3),
        ("body", ctypes.c_char * 232),
        ("end", ctypes.c_longlong),
    ]

    def holding(self, body: ctypes.Structure) -> Node:
        ctypes.memmove(ctypes.addressof(self) + 16, byref(body), ctypes.sizeof(body))
        return self


def kind_of(node: int) -> int:
    kind = c_int()
    cu.cuGraphNodeGetType(node, byref(kind))
    return kind.value


# ---- user objects ------------------------------------------------------------------------------------


class Ended:
    """What destructors were called with; they run on a thread of the driver's."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.arrived = threading.Condition()
        self.function = HOST_FUNCTION(self.note)

    def note(self, data: int) -> None:
        with self.arrived:
            self.seen.append(data)
            self.arrived.notify()

    def wait_for(self, *expected: int) -> None:
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.seen) >= len(expected), 10), self.seen
        assert self.seen == list(expected)

    def object(self, data: int, references: int = 1) -> int:
        return pointer("cuUserObjectCreate", data, self.function, references, NO_SYNC)


def counts_references() -> None:
    start()
    ended = Ended()
    graph = pointer("cuGraphCreate", 0)
    one = ended.object(1, 2)
    cu.cuUserObjectRelease(one, 1)
    cu.cuUserObjectRetain(one, 3)
    cu.cuUserObjectRelease(one, 3)
    cu.cuGraphRetainUserObject(graph, one, 2, 0)
    cu.cuUserObjectRelease(one, 1)
    cu.cuGraphReleaseUserObject(graph, one, 1)
    refuses(INVALID_VALUE, "cuGraphReleaseUserObject", graph, one, 2)
    assert ended.seen == []
    cu.cuGraphReleaseUserObject(graph, one, 1)
    ended.wait_for(1)
    refuses(INVALID_VALUE, "cuUserObjectRetain", one, 1)
    two = ended.object(2)
    cu.cuGraphRetainUserObject(graph, two, 1, MOVE)
    executable = instantiate(graph)
    clone = pointer("cuGraphClone", graph)
    cu.cuGraphDestroy(graph)
    cu.cuGraphDestroy(clone)
    assert ended.seen == [1], "the executable graph has a reference of its own"
    cu.cuGraphExecDestroy(executable)
    ended.wait_for(1, 2)
    refuses(INVALID_VALUE, "cuUserObjectCreate", byref(c_uint64()), 3, ended.function, 1, 0)
    refuses(INVALID_VALUE, "cuUserObjectCreate", byref(c_uint64()), 3, ended.function, 0, NO_SYNC)
    refuses(INVALID_VALUE, "cuUserObjectCreate", byref(c_uint64()), 3, None, 1, NO_SYNC)


def test_the_last_reference_calls_the_destructor(sim: Any) -> None:
    sim.run(counts_references)


def follows_children_and_updates() -> None:
    start()
    ended = Ended()
    child, graph, fresh = (pointer("cuGraphCreate", 0) for _ in range(3))
    cu.cuGraphRetainUserObject(child, ended.object(1), 1, MOVE)
    add("ChildGraphNode", graph, [], child)
    cu.cuGraphDestroy(child)
    executable = instantiate(graph)
    cu.cuGraphDestroy(graph)
    assert ended.seen == [], "the child's objects are the executable graph's too"
    cu.cuGraphRetainUserObject(fresh, ended.object(2), 1, MOVE)
    refuses(0, "cuGraphExecUpdate_v2", executable, fresh, byref((c_uint64 * 3)()))
    ended.wait_for(1)
    cu.cuGraphDestroy(fresh)
    cu.cuGraphExecDestroy(executable)
    ended.wait_for(1, 2)


def test_objects_of_child_graphs_and_of_updates(sim: Any) -> None:
    sim.run(follows_children_and_updates)


def a_destructor_that_waits() -> None:
    """A thread that holds a lock which the destructor takes may still synchronise."""
    start()
    lock, done = threading.Lock(), threading.Event()

    def end(_data: int) -> None:
        with lock:
            done.set()

    function = HOST_FUNCTION(end)
    with lock:
        cu.cuUserObjectRelease(pointer("cuUserObjectCreate", 1, function, 1, NO_SYNC), 1)
        cu.cuCtxSynchronize()
        cu.cuStreamSynchronize(None)
    assert done.wait(10)


def test_nothing_waits_for_a_destructor(sim: Any) -> None:
    sim.run(a_destructor_that_waits)


# ---- events and semaphores ---------------------------------------------------------------------------


def event_nodes() -> None:
    start()
    stream, graph = pointer("cuStreamCreate", 1), pointer("cuGraphCreate", 0)
    one, other = pointer("cuEventCreate", 0), pointer("cuEventCreate", 0)
    recorded = add("EventRecordNode", graph, [], one)
    waited = add("EventWaitNode", graph, [recorded], one)
    assert (kind_of(recorded), kind_of(waited)) == (EVENT_RECORD, WAIT_EVENT)
    assert pointer("cuEventCreate", 0)
    result = c_uint64()
    cu.cuGraphEventRecordNodeGetEvent(recorded, byref(result))
    assert result.value == one
    cu.cuGraphEventWaitNodeSetEvent(waited, other)
    cu.cuGraphEventWaitNodeGetEvent(waited, byref(result))
    assert result.value == other
    refuses(INVALID_VALUE, "cuGraphEventRecordNodeGetEvent", waited, byref(result))
    refuses(INVALID_VALUE, "cuGraphAddEventRecordNode", byref(result), graph, None, 0, stream)
    executable = instantiate(graph)
    began = pointer("cuEventCreate", 0)
    cu.cuEventRecord(began, stream)
    refuses(INVALID_HANDLE, "cuEventElapsedTime", byref(ctypes.c_float()), began, one)
    cu.cuGraphLaunch(executable, stream)
    passed = ctypes.c_float(-1)
    cu.cuEventElapsedTime(byref(passed), began, one)
    assert passed.value >= 0, "the launch recorded it"
    cu.cuGraphExecEventRecordNodeSetEvent(executable, recorded, other)
    cu.cuGraphLaunch(executable, stream)
    cu.cuEventElapsedTime(byref(passed), one, other)
    assert passed.value >= 0
    cu.cuGraphExecEventWaitNodeSetEvent(executable, waited, one)
    cu.cuEventDestroy_v2(other)
    refuses(INVALID_HANDLE, "cuGraphLaunch", executable, stream)


def test_event_nodes(sim: Any) -> None:
    sim.run(event_nodes)


def external_events_in_a_capture() -> None:
    start()
    stream, event = pointer("cuStreamCreate", 1), pointer("cuEventCreate", 0)
    cu.cuStreamBeginCapture_v2(stream, 2)
    cu.cuEventRecordWithFlags(event, stream, 1)
    cu.cuStreamWaitEvent(stream, event, 1)
    graph = c_uint64()
    cu.cuStreamEndCapture(stream, byref(graph))
    assert [kind_of(node) for node in listed("cuGraphGetNodes", graph.value)] == [EVENT_RECORD, WAIT_EVENT]
    cu.cuEventQuery(event)


def forks_that_go(join: bool) -> None:
    """A stream that took part in a capture is destroyed before its end."""
    start()
    origin, side = pointer("cuStreamCreate", 1), pointer("cuStreamCreate", 1)
    event, address, graph = pointer("cuEventCreate", 2), alloc(KI), c_uint64()
    cu.cuStreamBeginCapture_v2(origin, 2)
    cu.cuMemsetD8Async(address, 1, KI, origin)
    cu.cuEventRecord(event, origin)
    cu.cuStreamWaitEvent(side, event, 0)
    cu.cuMemsetD8Async(address, 2, KI, side)
    cu.cuEventRecord(event, side)
    if join:
        cu.cuStreamWaitEvent(origin, event, 0)
    cu.cuStreamDestroy_v2(side)
    cu.cuMemsetD8Async(address, 3, KI, origin)
    refuses(0 if join else UNJOINED, "cuStreamEndCapture", origin, byref(graph))
    assert not join or len(listed("cuGraphGetNodes", graph.value)) == 3


@pytest.mark.parametrize("join", [True, False])
def test_a_stream_that_took_part_in_a_capture_may_go_once_it_is_joined(sim: Any, join: bool) -> None:
    sim.run(forks_that_go, join)


def launches_from_kernels() -> None:
    start()
    graph, memory_graph = pointer("cuGraphCreate", 0), pointer("cuGraphCreate", 0)
    add("MemsetNode", graph, [], byref(Fill(alloc(KI), 0, 1, 1, 4, 1)), None)
    assert instantiate(graph, 4)
    add_alloc(memory_graph, [], KI)
    refuses(NOT_SUPPORTED, "cuGraphInstantiateWithFlags", byref(c_uint64()), memory_graph, 4)


def test_what_a_kernel_could_launch_is_instantiated_for_that(sim: Any) -> None:
    sim.run(launches_from_kernels)


def test_external_events_become_nodes_of_a_capture(sim: Any) -> None:
    sim.run(external_events_in_a_capture)


def semaphore(descriptor: int, kind: int = 9) -> int:
    return pointer("cuImportExternalSemaphore", byref(Handle(type=kind, more=(c_void_p * 1)(descriptor))))


def semaphores() -> None:
    start()
    stream, graph = pointer("cuStreamCreate", 1), pointer("cuGraphCreate", 0)
    descriptor = os.memfd_create("semaphore")
    handle = semaphore(descriptor)
    array = (c_uint64 * 1)(handle)
    five = Params(value=5)
    cu.cuSignalExternalSemaphoresAsync(array, byref(five), 1, stream)
    cu.cuWaitExternalSemaphoresAsync_ptsz(array, byref(five), 1, stream)
    refuses(INVALID_VALUE, "cuSignalExternalSemaphoresAsync", array, byref(five), 0, stream)
    refuses(INVALID_HANDLE, "cuWaitExternalSemaphoresAsync", (c_uint64 * 1)(stream), byref(five), 1, stream)
    content = Semaphores(ctypes.addressof(array), ctypes.addressof(five), 1)
    signal = add("ExternalSemaphoresSignalNode", graph, [], byref(content))
    wait = add("ExternalSemaphoresWaitNode", graph, [signal], byref(content))
    assert (kind_of(signal), kind_of(wait)) == (SIGNAL, WAIT)
    executable = instantiate(graph)
    cu.cuGraphLaunch(executable, stream)
    five.value = 6
    told = Semaphores()
    cu.cuGraphExternalSemaphoresSignalNodeGetParams(signal, byref(told))
    assert told.count == 1 and c_uint64.from_address(told.array).value == handle
    assert Params.from_address(told.params).value == 5, "the node has a copy"
    cu.cuGraphExternalSemaphoresWaitNodeSetParams(wait, byref(content))
    cu.cuGraphExternalSemaphoresWaitNodeGetParams(wait, byref(told))
    assert Params.from_address(told.params).value == 6
    cu.cuGraphExecExternalSemaphoresSignalNodeSetParams(executable, signal, byref(content))
    refuses(INVALID_VALUE, "cuGraphExecExternalSemaphoresSignalNodeSetParams", executable, wait, byref(content))
    cu.cuGraphDestroy(graph)
    cu.cuGraphLaunch(executable, stream)
    cu.cuStreamBeginCapture_v2(stream, 2)
    cu.cuSignalExternalSemaphoresAsync(array, byref(five), 1, stream)
    cu.cuGraphLaunch(executable, stream)
    captured = c_uint64()
    cu.cuStreamEndCapture(stream, byref(captured))
    assert [kind_of(node) for node in listed("cuGraphGetNodes", captured.value)] == [SIGNAL, SIGNAL, WAIT]
    cu.cuGraphExecDestroy(executable)
    cu.cuGraphDestroy(captured.value)
    cu.cuDestroyExternalSemaphore(handle)
    refuses(INVALID_HANDLE, "cuDestroyExternalSemaphore", handle)
    refuses(
        INVALID_HANDLE, "cuImportExternalSemaphore", byref(c_uint64()), byref(Handle(type=1, more=(c_void_p * 1)(999)))
    )
    refuses(NOT_SUPPORTED, "cuImportExternalSemaphore", byref(c_uint64()), byref(Handle(type=4)))
    try:
        os.fstat(descriptor)
    except OSError:
        return
    raise AssertionError("the descriptor was the driver's")


def test_semaphores_of_other_apis(sim: Any) -> None:
    sim.run(semaphores)


# ---- conditions --------------------------------------------------------------------------------------


def condition(graph: int, context: int, kind: int = IF, size: int = 1) -> tuple[int, list[int]]:
    handle = pointer("cuGraphConditionalHandleCreate", graph, context, 1, 1)
    params = Node(type=CONDITIONAL).holding(Conditional(handle, kind, size, None, context))
    node = pointer("cuGraphAddNode_v2", graph, None, None, 0, byref(params))
    graphs = Conditional.from_buffer_copy(bytes(params)[16:48]).graphs
    return node, list((c_uint64 * size).from_address(graphs))


def conditional_nodes() -> None:
    context = start()
    graph, stream, calls = pointer("cuGraphCreate", 0), pointer("cuStreamCreate", 1), []
    node, (body, otherwise) = condition(graph, context, IF, 2)
    assert kind_of(node) == CONDITIONAL
    address = alloc(4096)
    cu.cuMemsetD8_v2(address, 0, 8)
    add("MemsetNode", body, [], byref(Fill(address, 0, 7, 1, 8, 1)), None)
    inner, (deep,) = condition(body, context, WHILE)
    assert kind_of(inner) == CONDITIONAL and deep not in (body, otherwise)
    assert len(listed("cuGraphGetNodes", body)) == 2 and listed("cuGraphGetNodes", graph) == [node]
    executable = instantiate(graph)
    refuses(NOT_SUPPORTED, "cuGraphInstantiateWithFlags", byref(c_uint64()), graph, 0)
    refuses(NOT_SUPPORTED, "cuGraphClone", byref(c_uint64()), graph)
    refuses(INVALID_VALUE, "cuGraphDestroy", body)
    refuses(INVALID_VALUE, "cuGraphAddChildGraphNode", byref(c_uint64()), pointer("cuGraphCreate", 0), None, 0, graph)
    cu.cuGraphLaunch(executable, stream)
    assert read(address, 8) == bytes(8), "no body runs"
    cu.cuGraphExecDestroy(executable)
    function = HOST_FUNCTION(calls.append)
    add("HostNode", otherwise, [], byref(HostNode(function, 1)))
    refuses(INVALID_VALUE, "cuGraphInstantiateWithFlags", byref(c_uint64()), graph, 0)
    cu.cuGraphDestroy(graph)
    refuses(INVALID_VALUE, "cuGraphGetNodes", body, None, byref(c_size_t()))
    assert calls == []


def test_conditional_nodes_are_structure(sim: Any) -> None:
    sim.run(conditional_nodes)


def conditional_misuse() -> None:
    context = start()
    graph, other = pointer("cuGraphCreate", 0), pointer("cuGraphCreate", 0)
    for kind, size in ((IF, 0), (IF, 3), (WHILE, 2), (SWITCH, 0), (7, 1)):
        handle = pointer("cuGraphConditionalHandleCreate", graph, context, 0, 0)
        params = Node(type=CONDITIONAL).holding(Conditional(handle, kind, size, None, context))
        refuses(INVALID_VALUE, "cuGraphAddNode_v2", byref(c_uint64()), graph, None, None, 0, byref(params))
    handle = pointer("cuGraphConditionalHandleCreate", graph, context, 0, 0)
    params = Node(type=CONDITIONAL).holding(Conditional(handle, SWITCH, 5, None, context))
    refuses(INVALID_VALUE, "cuGraphAddNode_v2", byref(c_uint64()), other, None, None, 0, byref(params))
    cu.cuGraphAddNode_v2(byref(c_uint64()), graph, None, None, 0, byref(params))
    refuses(INVALID_VALUE, "cuGraphAddNode_v2", byref(c_uint64()), graph, None, None, 0, byref(params))
    refuses(INVALID_VALUE, "cuGraphConditionalHandleCreate", byref(c_uint64()), graph, context, 0, 2)
    refuses(201, "cuGraphConditionalHandleCreate", byref(c_uint64()), graph, graph, 0, 0)
    graph = pointer("cuGraphCreate", 0)
    _, (body,) = condition(graph, context)
    add_alloc(body, [], 4096)
    refuses(INVALID_VALUE, "cuGraphInstantiateWithFlags", byref(c_uint64()), graph, 0)
    assert memory(2) == 0


def test_conditional_nodes_misused(sim: Any) -> None:
    sim.run(conditional_misuse)


# ---- one function for all kinds ----------------------------------------------------------------------


class Filled(ctypes.Structure):
    """CUDA_MEMSET_NODE_PARAMS_v2"""

    _fields_ = [("fill", Fill), ("context", c_void_p)]


def sets_parameters() -> None:
    start()
    address, stream, graph = alloc(4096), pointer("cuStreamCreate", 1), pointer("cuGraphCreate", 0)
    node = add("MemsetNode", graph, [], byref(Fill(address, 0, 1, 1, 4, 1)), None)
    two = Node(type=MEMSET).holding(Filled(Fill(address, 0, 2, 1, 4, 1), None))
    three = Node(type=MEMSET).holding(Filled(Fill(address, 0, 3, 1, 4, 1), None))
    cu.cuGraphNodeSetParams(node, byref(two))
    executable = instantiate(graph)
    cu.cuGraphLaunch(executable, stream)
    assert read(address, 4) == b"\2" * 4
    cu.cuGraphExecNodeSetParams(executable, node, byref(three))
    cu.cuGraphLaunch(executable, stream)
    assert read(address, 4) == b"\3" * 4
    function = HOST_FUNCTION(lambda _data: None)
    refuses(INVALID_VALUE, "cuGraphNodeSetParams", node, byref(Node(type=HOST).holding(HostNode(function, 1))))
    refuses(INVALID_VALUE, "cuGraphExecNodeSetParams", executable, graph, byref(two))
    refuses(NOT_SUPPORTED, "cuGraphNodeSetParams", node, byref(Node(type=EMPTY)))
    refuses(INVALID_VALUE, "cuGraphNodeSetParams", node, None)
    event = pointer("cuEventCreate", 0)
    made = pointer("cuGraphAddNode", graph, None, 0, byref(Node(type=EVENT_RECORD).holding((c_uint64 * 1)(event))))
    assert kind_of(made) == EVENT_RECORD


def test_parameters_of_any_node(sim: Any) -> None:
    sim.run(sets_parameters)


# ---- drawings ----------------------------------------------------------------------------------------


def draws(path: str) -> None:
    context = start()
    graph = pointer("cuGraphCreate", 0)
    first, _ = add_alloc(graph, [], 12345)
    last = add("EmptyNode", graph, [first])
    condition(graph, context, SWITCH, 3)
    cu.cuGraphDebugDotPrint(graph, create_string_buffer(path.encode()), 1)
    refuses(304, "cuGraphDebugDotPrint", graph, create_string_buffer(b"/nowhere/at/all"), 0)
    refuses(INVALID_VALUE, "cuGraphDebugDotPrint", last, create_string_buffer(path.encode()), 0)


def test_a_graph_is_drawn(sim: Any, tmp_path: Path) -> None:
    sim.run(draws, str(tmp_path / "graph.dot"))
    text = (tmp_path / "graph.dot").read_text()
    assert text.startswith("digraph dot {") and text.count("{") == text.count("}")
    assert '"graph_0_node_0" -> "graph_0_node_1";' in text
    assert text.count("subgraph") == 4 and "12345 bytes" in text
