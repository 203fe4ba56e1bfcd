"""What a program makes and ends, again and again: the library keeps nothing of it, no memory and no place in a list.

And what goes back shows in the page at once, where the daemon looks.
"""

from __future__ import annotations

import pytest
from test_shim_graph import GRAPHS

LIMIT = {"GPUSHARE_LIMIT": "8Gi", "GPUSHARE_REQUEST": "4Gi"}
MIB = 2**20
SETTING = (
    GRAPHS.partition("cuda, nvml =")[0]
    + """
cuda = Cuda().start()
context, stream = c_void_p(), cuda.stream()
check(cuda.cuCtxGetCurrent(byref(context)))
base = cuda.reserve(64 * MiB).value
FIFO = 1
"""
)
MADE = {
    "pool": (
        600,
        """
pool, pointer = cuda.pool(), c_ulonglong()
check(cuda.cuMemAllocFromPoolAsync(byref(pointer), c_size_t(8 * MiB), pool, stream))
charged = cuda.used()
check(cuda.cuMemFreeAsync(pointer, stream))
check(cuda.cuMemPoolDestroy(pool))
""",
    ),
    "context with a heap": (
        150,
        """
other, usual = cuda.create(), c_size_t()
check(cuda.cuCtxGetLimit(byref(usual), FIFO))
check(cuda.cuCtxSetLimit(FIFO, c_size_t(usual.value + 8 * MiB)))
cuda.must_alloc(2 * MiB)
charged = cuda.used()
check(cuda.cuCtxDestroy_v2(other))
check(cuda.cuCtxSetCurrent(context))
""",
    ),
    "stream": (
        1200,
        """
other, pointer = cuda.stream(), c_ulonglong()
check(cuda.cuMemAllocAsync(byref(pointer), c_size_t(8 * MiB), other))
charged = cuda.used()
check(cuda.cuMemFreeAsync(pointer, other))
check(cuda.cuStreamSynchronize(other))
check(cuda.cuStreamDestroy_v2(other))
""",
    ),
    "capture": (
        200,
        """
graph, pointer = c_void_p(), c_ulonglong()
check(cuda.cuStreamBeginCapture_v2(stream, 2))
check(cuda.cuStreamEndCapture(stream, byref(graph)))
check(cuda.cuGraphDestroy(graph))
check(cuda.cuMemAllocAsync(byref(pointer), c_size_t(8 * MiB), stream))
charged = cuda.used()
check(cuda.cuMemFreeAsync(pointer, stream))
check(cuda.cuStreamSynchronize(stream))
""",
    ),
    "graph": (
        600,
        """
graph = Graph(cuda)
graph.give(graph.alloc(8 * MiB))
check(graph.instantiate().launch(stream))
check(cuda.cuStreamSynchronize(stream))
charged = cuda.used()
graph.end()
check(cuda.cuDeviceGraphMemTrim(0))
""",
    ),
    "handle and mapping": (
        3000,
        """
code, handle = cuda.create_block(8 * MiB)
check(code or cuda.map(base, 8 * MiB, handle))
check(cuda.cuMemRelease(handle))
charged = cuda.used()
check(cuda.unmap(base, 8 * MiB))
""",
    ),
    "array": (
        1000,
        """
array = c_void_p()
check(cuda.cuArrayCreate_v2(byref(array), byref(ArrayShape(1024, 2048, 0x20, 1))))
charged = cuda.used()
check(cuda.cuArrayDestroy(array))
""",
    ),
}


@pytest.mark.parametrize("name", MADE)
def test_the_last_one_is_charged_as_the_first(host, name) -> None:
    times, body = MADE[name]
    indented = "\n".join(f"    {line}" for line in body.splitlines())
    text = f"{SETTING}seen = set()\nfor _ in range({times}):\n{indented}\n    seen.add((charged, cuda.used()))\n"
    said = host.python(text + "say(sorted(seen))", GPUSHARE_LIMIT="8Gi").said
    ((charged, left),) = said
    assert charged >= 8 * MIB
    assert left == 0


KEPT = """
def pooled(pool, size):
    pointer = c_ulonglong()
    check(cuda.cuMemAllocFromPoolAsync(byref(pointer), c_size_t(size), pool, stream))
    return pointer
pool, default = cuda.pool(), c_void_p()
check(cuda.cuDeviceGetDefaultMemPool(byref(default), 0))
for one in (pool, default):
    check(cuda.cuMemPoolSetAttribute(one, ATTR_RELEASE_THRESHOLD, byref(c_uint64(2**63))))
"""
BACK = {
    "a pool is destroyed": (
        KEPT + "check(cuda.cuMemFreeAsync(pooled(pool, 64 * MiB), stream)); check(cuda.cuStreamSynchronize(stream))",
        "check(cuda.cuMemPoolDestroy(pool))",
    ),
    "a pool is trimmed": (
        KEPT + "check(cuda.cuMemFreeAsync(pooled(default, 64 * MiB), stream)); check(cuda.cuStreamSynchronize(stream))",
        "check(cuda.cuMemPoolTrimTo(default, c_size_t(0)))",
    ),
    "a pool is emptied whose last memory goes after it": (
        KEPT + "held = pooled(pool, 64 * MiB); check(cuda.cuMemPoolDestroy(pool))",
        "check(cuda.cuMemFreeAsync(held, stream)); check(cuda.cuStreamSynchronize(stream))",
    ),
    "graphs are trimmed": (
        "graph = Graph(cuda); graph.give(graph.alloc(64 * MiB)); check(graph.instantiate().launch(stream))\n"
        "check(cuda.cuStreamSynchronize(stream))",
        "check(cuda.cuDeviceGraphMemTrim(0))",
    ),
    "a context ends": (
        "other = cuda.create(); cuda.must_alloc(62 * MiB); array = c_void_p()\n"
        "check(cuda.cuArrayCreate_v2(byref(array), byref(ArrayShape(1024, 512, 0x20, 1))))",
        "check(cuda.cuCtxDestroy_v2(other))",
    ),
    "the primary context is reset": ("cuda.must_alloc(64 * MiB)", "check(cuda.cuDevicePrimaryCtxReset_v2(0))"),
    "the last mapping of a handle goes": (
        "code, handle = cuda.create_block(64 * MiB)\n"
        "check(code or cuda.map(base, 64 * MiB, handle) or cuda.cuMemRelease(handle))",
        "check(cuda.unmap(base, 64 * MiB))",
    ),
    "a heap is made smaller": (
        "usual = c_size_t(); check(cuda.cuCtxGetLimit(byref(usual), FIFO))\n"
        "check(cuda.cuCtxSetLimit(FIFO, c_size_t(usual.value + 64 * MiB)))",
        "check(cuda.cuCtxSetLimit(FIFO, usual))",
    ),
}


@pytest.mark.parametrize("way", BACK)
def test_what_goes_back_shows_in_the_page_at_once(host, daemon, way) -> None:
    take, give = BACK[way]
    child = host.start(f"{SETTING}{take}\nsay(1); hear()\n{give}\nsay(2); hear()", **LIMIT)
    assert child.stdout.readline() == "1\n"
    assert daemon.page.word()[0] >= 64 * MIB
    child.stdin.write("go\n")
    child.stdin.flush()
    assert child.stdout.readline() == "2\n"
    assert daemon.page.word()[0] == 0
    _, err = child.communicate("go\n", timeout=20)
    assert (child.returncode, err) == (0, "")
