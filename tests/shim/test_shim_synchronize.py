"""What a pool gives back at a synchronisation is no longer charged when the call returns.

The program then waits for a line: it makes no further call that could notice. The test reads its page. A driver may
give back at each free, or only when a pool is trimmed (docs/switches.md, `pool_drop`): then what it keeps is charged.
"""

from __future__ import annotations

import pytest
from test_shim_trim import finish, heard, tell

import switches

GIB, MIB = 2**30, 2**20
LIMIT = {"GPUSHARE_LIMIT": "8Gi"}
DROP = switches.chosen("pool_drop")
ONLY_TRIMS = DROP == "trim"
"""A synchronisation gives nothing back."""

START = """
cuda, nvml = Cuda().start(), Nvml()
stream, default, empty = cuda.stream(), c_void_p(), nvml.of_this_process()
check(cuda.cuDeviceGetDefaultMemPool(byref(default), 0))

def pooled(size, pool=default, stream=stream):
    pointer = c_ulonglong()
    check(cuda.cuMemAllocFromPoolAsync(byref(pointer), c_size_t(size), pool, stream))
    return pointer

def give(pointer, stream=stream):
    check(cuda.cuMemFreeAsync(pointer, stream))

def threshold(size):
    check(cuda.cuMemPoolSetAttribute(default, ATTR_RELEASE_THRESHOLD, byref(c_uint64(size))))

def event():
    event = c_void_p()
    check(cuda.cuEventCreate(byref(event), 0))
    check(cuda.cuEventRecord(event, stream))
    return event

def context():
    context = c_void_p()
    check(cuda.cuCtxGetCurrent(byref(context)))
    return context

def wait():
    say(nvml.of_this_process() - empty)
    hear()
"""

CALLS = {
    "stream": "cuda.cuStreamSynchronize(stream)",
    "stream, per thread": "cuda.cuStreamSynchronize_ptsz(stream)",
    "event": "cuda.cuEventSynchronize(event())",
    "context": "cuda.cuCtxSynchronize()",
    "context, by name": "cuda.cuCtxSynchronize_v2(context())",
}


@pytest.fixture
def charged(host, daemon):
    """Runs a script; what is charged on the first GPU, or on all that it opened, each time that it waits. On the first
    it is never less than what the driver holds for the program."""

    def run(script, times, lines=(0,)):
        child = host.start(START + script, **LIMIT)
        seen = []
        try:
            for _ in range(times):
                held = int(heard(child))
                seen.append([daemon.page.word(line)[0] for line in lines])
                assert seen[-1][0] >= held
                tell(child)
            finish(child)
        finally:
            child.kill()
            child.communicate()
        return seen if len(lines) > 1 else [line for (line,) in seen]

    return run


@pytest.mark.parametrize("way", CALLS)
def test_what_went_back_is_not_charged(charged, way):
    seen = charged(
        f"held = pooled(512 * MiB); give(pooled(2 * GiB)); wait(); check({CALLS[way]}); wait()\n"
        f"give(held); check({CALLS[way]}); wait()",
        3,
    )
    both = 512 * MIB + 2 * GIB
    assert seen == ([both, both, both] if ONLY_TRIMS else [both, 512 * MIB, 0])


@pytest.mark.parametrize("query", ["cuStreamQuery(stream)", "cuEventQuery(event())"])
def test_a_query_gives_nothing_back(host, query):
    said = host.python(
        START
        + f"""
before = nvml.of_this_process()
give(pooled(2 * GiB))
check(cuda.{query})
say([nvml.of_this_process() - before, cuda.used()])
""",
        **LIMIT,
    ).said
    assert said == ([0, 0] if DROP == "free" else [2 * GIB, 2 * GIB])


@pytest.mark.parametrize("way", CALLS)
def test_what_the_pool_keeps_stays_charged_until_a_lower_threshold(charged, way):
    seen = charged(
        f"threshold(2**60); give(pooled(GiB)); check({CALLS[way]}); wait()\n"
        f"threshold(0); wait(); check({CALLS[way]}); wait()",
        3,
    )
    assert seen == [GIB, GIB, GIB if ONLY_TRIMS else 0]


def test_pools_of_which_only_some_gave_back(charged):
    """Those of the other GPU keep theirs, are looked at again, and are found at their own synchronisation."""
    seen = charged(
        """
pools = [cuda.pool(), cuda.pool()]
cuda.primary(1)
other, far = cuda.stream(), cuda.pool(device=1)
[give(pooled(GiB, pool)) for pool in pools]
give(pooled(GiB, far, other), other)
wait(); check(cuda.cuStreamSynchronize(other))
wait(); check(cuda.cuStreamSynchronize(stream))
wait()
""",
        3,
        lines=(0, 1),
    )
    kept = {  # on the two GPUs; each pool's next call shows what a driver has dropped before
        "sync": [[2 * GIB, GIB], [2 * GIB, 0], [0, 0]],
        "free": [[GIB, GIB], [0, 0], [0, 0]],
        "trim": [[2 * GIB, GIB]] * 3,
    }
    assert seen == kept[DROP]


def test_pools_that_end_with_what_they_kept(charged):
    """The next pool in their place is found, too."""
    seen = charged(
        """
kept = cuda.pool()
for number in range(3):
    ended = cuda.pool()
    give(pooled(GiB, ended))
    check(cuda.cuMemPoolDestroy(ended))
give(pooled(MiB * 512, kept))
wait(); check(cuda.cuCtxSynchronize())
wait()
last = cuda.pool()
give(pooled(GiB, last))
wait(); check(cuda.cuCtxSynchronize())
wait()
""",
        4,
    )
    half = 512 * MIB
    assert seen == ([half, half, half + GIB, half + GIB] if ONLY_TRIMS else [half, 0, GIB, 0])


def test_while_a_stream_is_captured_the_answers_are_the_drivers(host, charged):
    """The capture is not spoilt, and what another stream's synchronisation gave back is found after the capture."""
    script = """
other = cuda.stream()
give(pooled(GiB))
check(cuda.cuStreamBeginCapture_v2(other, 2))
check(cuda.cuStreamSynchronize(stream)); wait()
graph = c_void_p()
check(cuda.cuStreamEndCapture(other, byref(graph)))
check(cuda.cuStreamSynchronize(stream)); wait()
"""
    assert charged(script, 2) == [GIB, GIB if ONLY_TRIMS else 0]
    errors = """
give(pooled(GiB))
told = [cuda.cuStreamSynchronize(c_void_p(0x1000)), cuda.cuEventSynchronize(c_void_p(0x1000))]
told += [cuda.cuCtxSynchronize_v2(c_void_p(0x1000))]
check(cuda.cuStreamBeginCapture_v2(stream, 0))
told += [cuda.cuStreamSynchronize(stream), cuda.cuStreamSynchronize_ptsz(stream), cuda.cuCtxSynchronize()]
graph = c_void_p()
say([*told, cuda.cuStreamEndCapture(stream, byref(graph))])
"""
    limited, unlimited = host.python(START + errors, **LIMIT).said, host.python(START + errors).said
    assert limited == unlimited and 0 not in limited
