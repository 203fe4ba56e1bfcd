"""Graphs: nothing is charged for a node; what the graph pool of the GPU has reserved is, and it is asked for before."""

from __future__ import annotations

import pytest

import switches

LIMIT = {"GPUSHARE_LIMIT": "1Gi"}


def pool(mib: int) -> int:
    """What the driver reserves for graphs that need this: the pool grows in steps (docs/switches.md, `graph_step`)."""
    step = int(switches.chosen("graph_step").removesuffix("Mi"))
    return -(-mib // step) * step


GRAPHS = """
class AllocNode(ctypes.Structure):
    _fields_ = (
        ("props", PoolProps), ("descs", c_void_p), ("count", c_size_t), ("size", c_size_t), ("dptr", c_ulonglong)
    )

class InstantiateParams(ctypes.Structure):
    _fields_ = (("flags", c_uint64), ("stream", c_void_p), ("node", c_void_p), ("result", c_int))

class Graph:
    def __init__(self, cuda, handle=None):
        self.cuda, self.handle, self.tail, self.exec = cuda, handle or c_void_p(), None, c_void_p()
        if handle is None:
            check(cuda.cuGraphCreate(byref(self.handle), 0))

    def before(self):
        return (byref(self.tail), c_size_t(1)) if self.tail else (None, c_size_t(0))

    def alloc(self, size, device=0):
        node = c_void_p()
        params = AllocNode(props=PoolProps(type=1, location=Location(1, device)), size=size)
        check(self.cuda.cuGraphAddMemAllocNode(byref(node), self.handle, *self.before(), byref(params)))
        self.tail = node
        return c_ulonglong(params.dptr)

    def give(self, pointer):
        node = c_void_p()
        check(self.cuda.cuGraphAddMemFreeNode(byref(node), self.handle, *self.before(), pointer))
        self.tail = node

    def instantiate(self, flags=0):
        check(self.cuda.cuGraphInstantiateWithFlags(byref(self.exec), self.handle, c_ulonglong(flags)))
        return self

    def uploaded(self, stream):
        params = InstantiateParams(flags=2, stream=stream)
        return self.cuda.cuGraphInstantiateWithParams(byref(self.exec), self.handle, byref(params))

    def launch(self, stream, twin=""):
        return getattr(self.cuda, "cuGraphLaunch" + twin)(self.exec, stream)

    def end(self):
        check(self.cuda.cuGraphExecDestroy(self.exec))
        check(self.cuda.cuGraphDestroy(self.handle))

def graph_memory(cuda, attribute=2, device=0):
    value = c_uint64()
    check(cuda.cuDeviceGetGraphMemAttribute(device, attribute, byref(value)))
    return value.value

cuda, nvml = Cuda().start(), Nvml()
context, stream, seen = nvml.of_this_process(), cuda.stream(), []
def both():
    charged, physical = cuda.used(), nvml.of_this_process() - context
    seen.append(charged // MiB)
    assert charged == physical, (charged, physical, seen)
"""


@pytest.mark.parametrize("twin", ["", "_ptsz"])
def test_charged_from_launch_to_trim(host, twin):
    said = host.python(
        GRAPHS
        + f"""
graph = Graph(cuda); both()
pointer = graph.alloc(100 * MiB); both()              # a node costs nothing
graph.instantiate(); both()                           # nor does an executable graph
check(graph.launch(stream, {twin!r})); both()
again = graph.launch(stream); both()                  # refused by the driver: it is still held
check(cuda.free(pointer)); both()                     # back to the pool, which keeps it
check(graph.launch(stream)); both()                   # and serves the next launch
check(cuda.cuMemFreeAsync(pointer, stream))
check(cuda.cuDeviceGraphMemTrim(0)); both()
check(graph.launch(stream)); both()                   # taken anew after the trim
check(cuda.free(pointer)); graph.end(); both()
check(cuda.cuDeviceGraphMemTrim(0)); both()
say([again, seen])
""",
        **LIMIT,
    ).said
    one = pool(100)
    assert said == [1, [0, 0, 0, one, one, one, one, 0, one, one, 0]]


def test_over_the_limit_the_driver_is_not_called(host):
    child = host.python(
        GRAPHS
        + """
keep = cuda.must_alloc(600 * MiB)
graph = Graph(cuda); graph.alloc(300 * MiB); graph.alloc(200 * MiB); graph.instantiate()
codes = [graph.launch(stream), graph.launch(stream, "_ptsz"), cuda.cuGraphUpload(graph.exec, stream),
         cuda.cuGraphUpload_ptsz(graph.exec, stream)]
reserved = [graph_memory(cuda, 2), graph_memory(cuda, 3)]
other = Graph(cuda); other.alloc(500 * MiB)
codes.append(other.uploaded(stream)); reserved.append(graph_memory(cuda, 3)); both()
check(cuda.free(keep))
codes += [cuda.cuGraphUpload(graph.exec, stream), graph.launch(stream)]; both()
codes += [other.uploaded(stream)]; both()
say([codes, reserved, seen])
""",
        **LIMIT,
    )
    codes, reserved, seen = child.said
    assert codes == [2, 2, 2, 2, 2, 0, 0, 0]
    assert reserved == [0, 0, 0], "the driver never took a byte for the refused ones"
    assert seen == [600, pool(500), pool(1000)]
    assert f"gpushare: cannot allocate {pool(500)}.0 MiB on CUDA device 0: over this process's limit" in child.err


def test_a_graph_that_runs_again_needs_nothing_more(host):
    """Near the limit: its memory is still there, also while the driver counts it as used, as NVIDIA's does."""
    child = host.python(
        GRAPHS
        + """
graphs = [Graph(cuda) for _ in range(2)]
for graph in graphs:
    graph.give(graph.alloc(200 * MiB)); graph.instantiate()
    check(graph.launch(stream))
both()
keep = cuda.must_alloc(GiB - cuda.used() - 4 * MiB); both()
codes = [graph.launch(stream) for graph in graphs * 3]; both()
check(cuda.cuDeviceGraphMemTrim(0)); both()
more = cuda.must_alloc(GiB - cuda.used() - 4 * MiB); both()
codes += [graph.launch(stream) for graph in graphs]; both()
say([codes, seen])
""",
        **LIMIT,
    )
    codes, seen = child.said
    assert codes == [0] * 6 + [2, 2]
    assert seen[0] in (pool(200), pool(400)), "the second may run in the first's memory"
    assert seen[1:3] == [1020, 1020]
    assert seen[3:] == [1020 - seen[0], 1020, 1020]


def test_a_graph_runs_where_another_one_keeps_what_it_needs(host):
    """The memory of graphs that have run and freed theirs is trimmed for it, if the credit does not suffice."""
    child = host.python(
        GRAPHS
        + """
keep, codes = cuda.must_alloc(GiB - 140 * MiB), []
for size in (100, 33, 64, 120, 1, 100):
    graph = Graph(cuda); graph.give(graph.alloc(size * MiB)); graph.instantiate()
    codes.append(graph.launch(stream)); both()
say([codes, seen])
""",
        **LIMIT,
    )
    codes, seen = child.said
    assert codes == [0] * 6
    assert all(one <= 1024 for one in seen)
    assert "cannot allocate" not in child.err


def test_memory_that_the_graph_pool_keeps_is_trimmed_before_a_refusal(host):
    said = host.python(
        GRAPHS
        + """
graph = Graph(cuda); pointer = graph.alloc(700 * MiB); graph.give(pointer); graph.instantiate()
check(graph.launch(stream)); both()
big = cuda.must_alloc(800 * MiB); both()              # the pool's 700 went back for it
refused = graph.launch(stream); both()
check(cuda.free(big)); check(graph.launch(stream)); both()
wide = Graph(cuda); wide.alloc(900 * MiB); wide.instantiate()
check(wide.launch(stream)); both()                    # 700 of it were there; the rest was reserved
say([refused, seen])
""",
        **LIMIT,
    ).said
    assert said == [2, [pool(700), 800, 800, pool(700), pool(900)]]


def test_captured_allocations(host):
    said = host.python(
        GRAPHS
        + """
check(cuda.cuStreamBeginCapture_v2(stream, 0))
a, b, handle = c_ulonglong(), c_ulonglong(), c_void_p()
check(cuda.cuMemAllocAsync(byref(a), c_size_t(900 * MiB), stream))
check(cuda.cuMemsetD8Async(a, 7, c_size_t(MiB), stream))
check(cuda.cuMemFreeAsync(a, stream))
check(cuda.cuMemAllocAsync_ptsz(byref(b), c_size_t(50 * MiB), stream))
check(cuda.cuStreamEndCapture(stream, byref(handle))); both()
graph = Graph(cuda, handle).instantiate(); both()
code = graph.launch(stream); both()                   # freed before the next: 900 suffice
check(cuda.cuMemFreeAsync(b, stream)); graph.end()
check(cuda.cuDeviceGraphMemTrim(0)); both()
say([code, seen])
""",
        **LIMIT,
    ).said
    assert said == [0, [0, 0, pool(900), 0]]


@pytest.mark.parametrize(
    "instantiate",
    [
        "cuGraphInstantiate(byref(graph.exec), graph.handle, None, None, c_size_t(0))",
        "cuGraphInstantiate_v2(byref(graph.exec), graph.handle, None, None, c_size_t(0))",
        "cuGraphInstantiateWithFlags(byref(graph.exec), graph.handle, c_ulonglong(0))",
        "cuGraphInstantiateWithParams(byref(graph.exec), graph.handle, byref(InstantiateParams()))",
        "cuGraphInstantiateWithParams_ptsz(byref(graph.exec), graph.handle, byref(InstantiateParams()))",
    ],
)
def test_however_a_graph_becomes_one_that_runs_its_memory_is_asked_for(host, instantiate):
    """Of many nodes. Launched again before its memory is free it takes nothing: the driver refuses that."""
    said = host.python(
        GRAPHS
        + f"""
graph = Graph(cuda)
pointers = [graph.alloc(4 * MiB) for _ in range(150)]
check(cuda.{instantiate})
codes = [graph.launch(stream), graph.launch(stream)]; both()
for pointer in pointers:
    check(cuda.free(pointer))
check(cuda.cuStreamSynchronize(stream))
codes += [graph.launch(stream)]; both()
other = Graph(cuda); other.alloc(600 * MiB)
check(cuda.{instantiate.replace("graph.", "other.")})
codes += [other.launch(stream)]
check(cuda.cuGraphExecDestroy(graph.exec))
codes += [other.launch(stream)]
say([codes, seen])
""",
        **LIMIT,
    ).said
    assert said == [[0, 1, 0, 2, 2], [pool(600), pool(600)]]


def test_auto_free_and_child_graphs_and_two_gpus(host):
    said = host.python(
        GRAPHS
        + """
graph = Graph(cuda); graph.alloc(600 * MiB); graph.instantiate(1)
codes = [graph.launch(stream) for _ in range(5)]; both()
check(cuda.cuGraphExecDestroy(graph.exec))
outer, inner, node = Graph(cuda), Graph(cuda), c_void_p()
inner.alloc(500 * MiB)
class NodeParams(ctypes.Structure):
    _fields_ = (
        ("type", c_int), ("reserved", c_int * 3), ("graph", c_void_p), ("ownership", c_int), ("rest", c_char * 228)
    )
assert ctypes.sizeof(NodeParams) == 256
moved = NodeParams(type=4, graph=inner.handle, ownership=1)
check(cuda.cuGraphAddNode_v2(byref(node), outer.handle, None, None, c_size_t(0), byref(moved)))
outer.instantiate()
codes.append(outer.launch(stream)); both()            # 600 are held: 500 more are too many
two = Graph(cuda)
cuda.primary(1); cuda.primary(0)
two.alloc(300 * MiB, 1); two.alloc(200 * MiB, 0); two.instantiate()
codes.append(two.launch(stream)); both()
cuda.primary(1); seen.append(cuda.used() // MiB)
say([codes, seen])
""",
        **LIMIT,
    ).said
    assert said == [[0, 0, 0, 0, 0, 2, 0], [pool(600), pool(600), pool(800), pool(300)]]


def test_a_graph_that_frees_first_counts_on_its_own_memory_only(host):
    said = host.python(
        GRAPHS
        + """
first, second = Graph(cuda), Graph(cuda)
pointer = first.alloc(500 * MiB); second.alloc(500 * MiB)
first.instantiate(1); second.instantiate(1)
codes = [first.launch(stream), first.launch(stream)]; both()
check(cuda.free(pointer))
codes += [second.launch(stream)]; both()              # in the 500 that the first has given back
keep = cuda.must_alloc(400 * MiB)
codes += [first.launch(stream)]; both()               # the 500 in use are not its own
check(cuda.free(keep))
codes += [first.launch(stream), second.launch(stream)]; both()
say([codes, seen])
""",
        **LIMIT,
    ).said
    assert said == [[0, 0, 0, 2, 0, 0], [pool(500), pool(500), pool(500) + 400, pool(1000)]]


def test_a_launch_that_the_driver_fails_leaves_the_account_alone(host):
    said = host.python(
        GRAPHS
        + """
graph = Graph(cuda); graph.alloc(600 * MiB); graph.instantiate()
codes = [graph.launch(stream)]; both()
codes.append(graph.launch(stream)); both()
say([codes, seen])
""",
        **LIMIT,
        GPUSHARE_SIM=host.environment()["GPUSHARE_SIM"] + ",fail=cuGraphLaunch:1:719",
    ).said
    assert said == [[719, 0], [0, pool(600)]]


def test_nothing_forbidden_is_called_while_a_stream_is_captured(host):
    """A refusal in the middle of a capture trims the pools: that must not spoil the capture."""
    said = host.python(
        GRAPHS
        + """
kept = Graph(cuda); kept.give(kept.alloc(500 * MiB)); kept.instantiate()
check(kept.launch(stream))
check(cuda.cuStreamBeginCapture_v2(stream, 0))
codes = [cuda.create_block(700 * MiB)[0], cuda.create_block(700 * MiB)[0]]
pointer, handle = c_ulonglong(), c_void_p()
codes += [cuda.cuMemAllocAsync(byref(pointer), c_size_t(10 * MiB), stream)]
codes += [cuda.cuStreamEndCapture(stream, byref(handle)), cuda.used() // MiB]
say(codes)
""",
        **LIMIT,
    ).said
    if switches.chosen("captures") == "strict":  # the program spoils its capture itself
        assert said == [900, 900, 901, 901, 0]
    else:
        assert said == [0, 2, 0, 0, 700]


def test_threads_that_launch(host):
    said = host.python(
        GRAPHS
        + """
import random, threading
errors, refused, main = [], [], c_void_p()
check(cuda.cuCtxGetCurrent(byref(main)))
def work(seed):
    try:
        chance, own = random.Random(seed), None
        check(cuda.cuCtxSetCurrent(main))
        own = cuda.stream()
        graphs = []
        for size in (150, 250, 330):
            graph = Graph(cuda); graph.give(graph.alloc(size * MiB)); graphs.append(graph.instantiate())
        for _ in range(60):
            code = chance.choice(graphs).launch(own)
            if code == 2: refused.append(1)
            elif code: raise RuntimeError(code)
            if chance.random() < 0.1: check(cuda.cuDeviceGraphMemTrim(0))
        [graph.end() for graph in graphs]
    except BaseException as error:
        errors.append(repr(error))
threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
both()
check(cuda.cuDeviceGraphMemTrim(0)); both()
say([errors, seen[-1], graph_memory(cuda, 3) <= GiB])
""",
        **LIMIT,
        GPUSHARE_LOG="error",
        timeout=60,
    ).said
    assert said == [[], 0, True]


@pytest.mark.parametrize("version", ["", "_v2"])
def test_memory_nodes_of_the_general_kind(host, version):
    """Added by cuGraphAddNode and not by functions of their own; a conditional node beside them changes nothing."""
    said = host.python(
        GRAPHS
        + f"""
class Free(ctypes.Structure):
    _fields_ = (("dptr", c_ulonglong),)
class Conditional(ctypes.Structure):
    _fields_ = (("handle", c_ulonglong), ("type", c_int), ("size", c_uint), ("bodies", c_void_p), ("ctx", c_void_p))
class Union(ctypes.Union):
    _fields_ = (("alloc", AllocNode), ("free", Free), ("conditional", Conditional), ("bytes", c_char * 232))
class Params(ctypes.Structure):
    _fields_ = (("type", c_int), ("reserved", c_int * 3), ("of", Union), ("reserved2", c_ulonglong))
assert ctypes.sizeof(Params) == 256
def add(graph, params, before=None):
    node, edges = c_void_p(), () if {version!r} == "" else (None,)
    nodes = (byref(before), *edges, c_size_t(1)) if before else (None, *edges, c_size_t(0))
    check(cuda.cuGraphAddNode{version}(byref(node), graph.handle, *nodes, byref(params)))
    return node
graph = Graph(cuda)
alloc = Params(type=10)
alloc.of.alloc = AllocNode(props=PoolProps(type=1, location=Location(1, 0)), size=600 * MiB)
first = add(graph, alloc)
free = Params(type=11)
free.of.free.dptr = alloc.of.alloc.dptr
second = add(graph, free, first)
handle, conditional = c_ulonglong(), Params(type=13)
check(cuda.cuGraphConditionalHandleCreate(byref(handle), graph.handle, None, 0, 0))
conditional.of.conditional = Conditional(handle.value, 0, 1)
add(graph, conditional, second)
graph.instantiate(); both()
keep = cuda.must_alloc(500 * MiB)
refused = graph.launch(stream); both()
check(cuda.free(keep))
code = graph.launch(stream); both()
graph.end(); check(cuda.cuDeviceGraphMemTrim(0)); both()
say([refused, code, seen])
""",
        **LIMIT,
    ).said
    assert said == [2, 0, [0, 500, pool(600), 0]]
