"""The account where NVIDIA's driver may do otherwise than the software driver usually does: see docs/switches.md.

Every switch alone and all together, with some random calls; and for each what the account rests on. `make switches`
runs the whole folder under each of them.
"""

from __future__ import annotations

import pytest
from test_shim_differential import compare_in_one_thread
from test_shim_graph import GRAPHS

import switches

LIMIT = {"GPUSHARE_LIMIT": "1Gi", "GPUSHARE_LOG": "error"}

START = """
cuda, nvml = Cuda().start(), Nvml()
empty = nvml.of_this_process()
def physical(): return nvml.of_this_process() - empty
def async_alloc(size, stream=None, pool=None):
    pointer = c_ulonglong()
    if pool is None:
        return cuda.cuMemAllocAsync(byref(pointer), c_size_t(size), stream), pointer
    return cuda.cuMemAllocFromPoolAsync(byref(pointer), c_size_t(size), pool, stream), pointer
def async_free(pointer, stream=None): check(cuda.cuMemFreeAsync(pointer, stream))
def default_pool(device=0):
    pool = c_void_p()
    check(cuda.cuDeviceGetDefaultMemPool(byref(pool), device))
    return pool
def set_limit(value, which=2): return cuda.cuCtxSetLimit(which, c_size_t(value))
"""


def run(host, switch, body, **more):
    host.switches = switch
    return host.python(START + body, **{**LIMIT, **more}).said


@pytest.mark.parametrize("setting", switches.settings())
def test_random_calls_under_each_switch(host, setting):
    host.switches = setting
    compare_in_one_thread(host, 400, limit="150Mi")


# ---- blocks


@pytest.mark.parametrize("blocks", ["own", "packed"])
def test_more_than_half_a_block_is_charged_in_whole_blocks(host, blocks):
    """As NVIDIA's driver does: two of half a block share one."""
    charged, taken, next_to_it, refused = run(
        host,
        f"blocks={blocks}",
        """
held = [cuda.must_alloc(size) for size in (3 * MiB, MiB) for _ in range(50)]
charged, taken = cuda.used(), physical()
[check(cuda.free(one)) for one in held]
held = [cuda.must_alloc(MiB - 512)]
next_to_it = cuda.used()
while True:
    code, pointer = cuda.alloc(MiB + 1)
    if code: break
    held.append(pointer)
say([charged, taken, next_to_it, [code, len(held), physical() <= GiB]])
""",
    )
    assert charged == 250 * 2**20 >= taken
    assert (blocks == "own") == (charged == taken)
    assert next_to_it == 2**20 - 512
    assert refused == [2, 512, True]


@pytest.mark.parametrize("kind", ["managed", "pitched", "array", "mipmap"])
def test_other_kinds_are_charged_in_whole_blocks_too(host, kind):
    charged, taken, after = run(
        host,
        "",
        f"""
kind, size, pointer, array = "{kind}", 3 * MiB + 4096, c_ulonglong(), c_void_p()
if kind == "managed":
    check(cuda.cuMemAllocManaged(byref(pointer), c_size_t(size), 1))
elif kind == "pitched":
    check(cuda.cuMemAllocPitch_v2(byref(pointer), byref(c_size_t()), c_size_t(512), c_size_t(size // 512), 4))
elif kind == "array":
    check(cuda.cuArrayCreate_v2(byref(array), byref(ArrayShape(1024, size // 4096, 0x20, 1))))
else:
    shape = Array3DShape(1024, size // 4096, 0, 0x20, 1, 0)
    check(cuda.cuMipmappedArrayCreate(byref(array), byref(shape), 1))
charged, taken = cuda.used(), physical()
end = dict(array="cuArrayDestroy", mipmap="cuMipmappedArrayDestroy").get(kind, "")
check(getattr(cuda, end)(array) if end else cuda.free(pointer))
say([charged, taken, cuda.used()])
""",
    )
    assert charged == taken == 4 * 2**20
    assert after == 0


def test_a_size_near_the_end_of_all_numbers_is_refused(host):
    assert run(host, "", "say([cuda.alloc(2**64 - 1)[0], cuda.alloc(2**64 - BLOCK)[0], cuda.used()])") == [2, 2, 0]


# ---- pools


@pytest.mark.parametrize("drop", ["sync", "free", "trim"])
@pytest.mark.parametrize("step", ["2Mi", "32Mi", "64Mi"])
def test_a_refused_step_of_a_pool_goes_back(host, step, drop):
    """However the pool grows, and whenever it gives back: the GPU holds no more for it than the limit."""
    most, seen, after = run(
        host,
        f"pool_step={step},pool_drop={drop}",
        """
stream, held, most, seen = cuda.stream(), [], 0, [0, 0]
room = cuda.must_alloc(GiB - 150 * MiB)
for size in [1, 40, 3, 70, 20, 5, 60, 2, 2, 30, 9, 1, 1] * 3:
    code, pointer = async_alloc(size * MiB, stream)
    seen[code != 0] += 1
    assert code in (0, 2), code
    if code == 0:
        held.append(pointer)
    most = max(most, physical())
    assert cuda.used() >= physical(), (size, cuda.used(), physical())
    if len(held) > 3:
        async_free(held.pop(0), stream)
while held:
    async_free(held.pop(), stream)
check(cuda.cuStreamSynchronize(stream))
check(cuda.cuMemPoolTrimTo(default_pool(), c_size_t(0)))
say([most, seen, [cuda.used(), physical()]])
""",
    )
    assert most <= 2**30
    assert all(seen), "some fitted and some did not"
    assert after[0] == after[1] == 2**30 - 150 * 2**20


def test_what_fits_after_a_trim_is_not_refused(host):
    """The pool holds a step that nothing is in, too small for what is asked; beside it another does not fit."""
    code, charged, taken = run(
        host,
        "pool_drop=trim",
        """
stream = cuda.stream()
room = cuda.must_alloc(GiB - 96 * MiB)
small, large = [check_pointer for check_pointer in (async_alloc(20 * MiB, stream)[1], async_alloc(30 * MiB, stream)[1])]
async_free(large, stream)
code, pointer = async_alloc(40 * MiB, stream)
say([code, cuda.used() - GiB + 96 * MiB, physical() - GiB + 96 * MiB])
""",
    )
    assert code == 0
    assert charged == taken == 96 * 2**20


def test_what_another_pool_gives_back_is_taken_without_a_word(host):
    """A step for one small allocation takes just what the other pool has kept: nothing is refused."""
    host.switches = "pool_step=32Mi,pool_drop=trim"
    child = host.python(
        """
        cuda, stream, other, pointer = Cuda().start(), None, None, c_ulonglong()
        other = cuda.pool()
        check(cuda.cuMemPoolSetAttribute(other, ATTR_RELEASE_THRESHOLD, byref(c_uint64(2**60))))
        check(cuda.cuMemAllocFromPoolAsync(byref(pointer), c_size_t(MiB), other, stream))
        check(cuda.cuMemFreeAsync(pointer, stream))
        check(cuda.cuStreamSynchronize(stream))
        kept = cuda.used()
        room = cuda.must_alloc(GiB - 36 * MiB)
        code = cuda.cuMemAllocAsync(byref(pointer), c_size_t(MiB), stream)
        say([kept, code, cuda.used()])
        """,
        GPUSHARE_LIMIT="1Gi",
    )
    assert child.said == [32 * 2**20, 0, 2**30 - 4 * 2**20]
    assert "cannot allocate" not in child.err


def test_a_pool_that_is_destroyed_is_charged_for_what_it_keeps(host):
    """One small allocation keeps a whole step of it."""
    before, destroyed, taken, after = run(
        host,
        "",
        """
stream, pool = cuda.stream(), cuda.pool()
one, two = async_alloc(MiB, stream, pool)[1], async_alloc(20 * MiB, stream, pool)[1]
before = cuda.used()
check(cuda.cuMemPoolDestroy(pool))
async_free(two, stream)
check(cuda.cuStreamSynchronize(stream))
destroyed, taken = cuda.used(), physical()
async_free(one, stream)
check(cuda.cuStreamSynchronize(stream))
say([before, destroyed, taken, cuda.used()])
""",
    )
    assert before == destroyed == taken == 32 * 2**20
    assert after == 0


def test_the_current_pool_is_followed(host):
    """What is remembered of a device's current pool ends when the program chooses another, or destroys it."""
    seen = run(
        host,
        "",
        """
stream, pool, seen = cuda.stream(), cuda.pool(), []
def taken_from(chosen): return [cuda.pool_attribute(one, ATTR_USED) != 0 for one in (default_pool(), chosen)]
def note(chosen, of_stream=stream):
    code, pointer = async_alloc(3 * MiB, of_stream)
    check(code)
    seen.append([*taken_from(chosen), cuda.used() == physical()])
    async_free(pointer, of_stream)
    check(cuda.cuStreamSynchronize(of_stream))
note(pool)
check(cuda.cuDeviceSetMemPool(0, pool))
note(pool)
check(cuda.cuMemSetMemPool(byref(Location(1, 0)), 1, default_pool()))
note(pool)
check(cuda.cuDeviceSetMemPool(0, pool))
note(pool)
check(cuda.cuMemPoolDestroy(pool))
check(cuda.cuDeviceSetMemPool(0, default_pool()))
other = cuda.pool()
note(other)
note(other, None)
say(seen)
""",
    )
    default, chosen = [True, False, True], [False, True, True]
    assert seen == [default, chosen, default, chosen, default, default]


def test_streams_are_followed_to_their_devices(host):
    """A stream of one device, used while a context of another is current; ended; and ended with its context."""
    seen = run(
        host,
        "",
        """
seen = []
first = cuda.primary(0)
second = cuda.primary(1)
def held(device):
    check(cuda.cuCtxSetCurrent([first, second][device]))
    return cuda.used()
def note(stream):
    held(0)
    before = [held(0), held(1)]
    check(cuda.cuCtxSetCurrent(first))
    code, pointer = async_alloc(MiB, stream)
    check(code)
    seen.append([held(device) - before[device] for device in (0, 1)])
    check(cuda.cuCtxSetCurrent(first))
    async_free(pointer, stream)
    check(cuda.cuStreamSynchronize(stream))
theirs = cuda.stream()
note(theirs)
note(theirs)
for ending in range(3):
    if ending == 1:
        check(cuda.cuStreamDestroy_v2(theirs))
    elif ending == 2:
        check(cuda.cuDevicePrimaryCtxReset_v2(1))
        second = cuda.primary(1)
    for device in (0, 1):
        check(cuda.cuCtxSetCurrent([first, second][device]))
        many = [cuda.stream() for _ in range(4)]
        note(many[0])
        note(many[3])
        [check(cuda.cuStreamDestroy_v2(one)) for one in many]
say(seen)
""",
    )
    step = 32 * 2**20
    own, other = [step, 0], [0, step]
    assert seen == [other, other] + [own, own, other, other] * 3


# ---- graphs


@pytest.mark.parametrize("step, fits", [("32Mi", [0, 2, 2, 2]), ("2Mi", [0, 0, 0, 2])])
def test_a_graph_pool_stays_within_the_limit_with_each_step(host, step, fits):
    """What a step holds beyond a graph's memory counts as that graph's."""
    host.switches = f"graph_step={step}"
    seen = host.python(
        GRAPHS
        + """
room, seen = cuda.must_alloc(GiB - 40 * MiB), []
graphs = [Graph(cuda) for _ in range(4)]
for graph in graphs:
    graph.alloc(12 * MiB)
    graph.instantiate()
    code = graph.launch(stream)
    check(cuda.cuStreamSynchronize(stream))
    seen.append([code, cuda.used() >= nvml.of_this_process() - context, nvml.of_this_process() - context <= GiB])
say(seen)
""",
        **LIMIT,
    ).said
    assert all(covered and within for _, covered, within in seen)
    assert [code for code, _, _ in seen] == fits


# ---- look-ups


@pytest.mark.parametrize("flags", [0, 1, 2])
def test_another_address_of_the_same_function_is_hooked(host, flags):
    found, charged, async_charged, refused = run(
        host,
        "procaddr=other",
        f"""
flags = {flags}
plain = Cuda()
cuda = Cuda("address", flags=flags).start()
same = sum(cuda.address(name, flags=flags) == ctypes.cast(plain.function(symbol), c_void_p).value for name, symbol in
           [("cuMemAlloc", "cuMemAlloc_v2"), ("cuMemFree", "cuMemFree_v2"), ("cuMemGetInfo", "cuMemGetInfo_v2")])
pointer = cuda.must_alloc(64 * MiB)
charged = plain.used()
code, pointer = c_int(), c_ulonglong()
alloc = ctypes.CFUNCTYPE(c_int)(cuda.address("cuMemAllocAsync", flags=flags))
check(alloc(byref(pointer), c_size_t(MiB), None))
say([same, charged, plain.used() - charged, cuda.alloc(GiB)[0]])
""",
    )
    assert found == 3
    assert charged == 64 * 2**20
    assert async_charged == 32 * 2**20
    assert refused == 2


def test_each_version_of_a_function_finds_its_own_hook(host):
    """The hooks of cuCtxCreate differ in their arguments: the wrong one would crash."""
    found = run(
        host,
        "procaddr=other",
        """
lib, out = ctypes.CDLL("libcuda.so.1"), []
for version in (2000, 3020, 11040, 12050):
    symbol = {2000: "cuCtxCreate", 3020: "cuCtxCreate_v2", 11040: "cuCtxCreate_v3", 12050: "cuCtxCreate_v4"}[version]
    out.append(cuda.address("cuCtxCreate", version) == ctypes.cast(getattr(lib, symbol), c_void_p).value)
for flags, symbol in ((0, "cuMemAllocAsync"), (1, "cuMemAllocAsync"), (2, "cuMemAllocAsync_ptsz")):
    for resolver in ("v1", "v2"):
        out.append(cuda.address("cuMemAllocAsync", flags=flags, resolver=resolver)
                   == ctypes.cast(getattr(lib, symbol), c_void_p).value)
say(out)
""",
    )
    assert found == [True] * 10


# ---- resets


@pytest.mark.parametrize("reset", ["keeps", "virtual", "all"])
def test_a_reset_that_ends_what_belongs_to_the_device(host, reset):
    mapped, pooled, again, freed = run(
        host,
        f"reset={reset}",
        """
stream, base = cuda.stream(), cuda.reserve(64 * MiB).value
code, handle = cuda.create_block(8 * MiB)
check(cuda.map(base, 8 * MiB, handle))
check(cuda.cuMemRelease(handle))
pool = cuda.pool()
code, pointer = async_alloc(5 * MiB, stream, pool)
check(cuda.cuDevicePrimaryCtxReset_v2(0))
cuda.primary()
empty_now = physical()
reserved = cuda.pool_attribute(pool, ATTR_RESERVED)
mapped, pooled = [cuda.used() - reserved, empty_now - reserved], reserved
again = []
for _ in range(3):
    check(async_alloc(5 * MiB, None, pool)[0])
    check(cuda.cuCtxSynchronize())
    again.append(cuda.used() - physical())
freed = cuda.cuMemUnmap(c_ulonglong(base), c_size_t(8 * MiB))
say([mapped, pooled, again, [freed, cuda.used() - physical()]])
""",
    )
    assert mapped == ([8 * 2**20] * 2 if reset == "keeps" else [0, 0])
    assert pooled == (0 if reset == "all" else 32 * 2**20)
    assert again == [0, 0, 0]
    assert freed == [0 if reset == "keeps" else 1, 0]


def test_a_handle_that_a_reset_ended_stays_charged_until_its_number_is_anothers(host):
    charged, taken, after = run(
        host,
        "reset=virtual",
        """
handles = [cuda.create_block(8 * MiB)[1].value for _ in range(4)]
check(cuda.cuDevicePrimaryCtxReset_v2(0))
cuda.primary()
charged, taken = cuda.used(), physical()
fresh = []
while len(fresh) < 200 and not set(handles) <= {one.value for one in fresh}:
    fresh.append(cuda.create_block(2 * MiB)[1])
again = {one.value for one in fresh} & set(handles)
say([charged, taken, [cuda.used() - physical(), (4 - len(again)) * 8 * MiB]])
""",
    )
    assert charged == 32 * 2**20 and taken == 0, "too much rather than too little"
    assert after[0] == after[1]


# ---- limits of a context


@pytest.mark.parametrize("heaps", ["none", "set", "launch"])
@pytest.mark.parametrize("which", [1, 2])
def test_heaps_are_charged(host, heaps, which):
    seen = run(
        host,
        f"heaps={heaps}",
        f"""
which, seen, value = {which}, [], c_size_t()
check(cuda.cuCtxGetLimit(byref(value), which))
usual = value.value
def note(code):
    check(cuda.cuCtxGetLimit(byref(value), which))
    seen.append([code, cuda.used(), cuda.used() >= physical(), value.value])
note(set_limit(100 * MiB + usual, which))
note(set_limit(300 * MiB + usual, which))
note(set_limit(2 * GiB, which))
note(set_limit(51 * MiB + usual, which))
note(set_limit(usual // 2, which))
note(set_limit(8 * MiB + usual, which))
check(cuda.cuDevicePrimaryCtxReset_v2(0))
cuda.primary()
note(0)
alone, of_one = empty, physical()
context = cuda.create()
empty += physical() - of_one
note(set_limit(20 * MiB + usual, which))
check(cuda.cuCtxDestroy_v2(context))
empty = alone
cuda.primary()
note(set_limit(4 * MiB + usual, which))
say([usual, seen])
""",
    )
    usual, notes = seen
    mib = 2**20
    assert [code for code, *_ in notes] == [0, 0, 2, 0, 0, 0, 0, 0, 0]
    assert [charged // mib for _, charged, _, _ in notes] == [100, 300, 300, 52, 0, 8, 0, 20, 4]
    assert all(covered for _, _, covered, _ in notes)
    assert notes[2][3] == 300 * mib + usual, "the driver was not asked for what was refused"


def test_other_limits_cost_nothing_and_a_driver_that_refuses_neither(host):
    seen = run(
        host,
        "heaps=set",
        """
seen = [set_limit(64 * KiB, 0), set_limit(16, 3), set_limit(9, 77), cuda.used()]
check(cuda.cuCtxSetCurrent(None))
seen.append(set_limit(64 * MiB))
cuda.primary()
say([*seen, cuda.used()])
""",
        GPUSHARE_SIM=f"gpus=1,memory=16Gi,context=256Mi,pool={host.directory / 'pool'}",
    )
    assert seen == [0, 0, 215, 0, 201, 0]


def test_a_heap_that_the_driver_cannot_take_is_not_charged(host):
    code, charged = run(
        host,
        "heaps=set",
        "say([set_limit(700 * MiB), cuda.used()])",
        GPUSHARE_SIM=f"gpus=1,memory=800Mi,context=256Mi,pool={host.directory / 'pool'}",
    )
    assert (code, charged) == (2, 0)


# ---- captures

CAPTURES = (
    GRAPHS.partition("cuda, nvml =")[0]
    + """
import threading
cuda = Cuda().start()
context = c_void_p()
check(cuda.cuCtxGetCurrent(byref(context)))
GLOBAL, OF_THREAD, RELAXED = 0, 1, 2

def sync():
    code, pointer = cuda.alloc(4 * MiB)
    codes = [code, cuda.cuMemAllocManaged(byref(c_ulonglong()), c_size_t(4 * MiB), 1)]
    return [*codes, cuda.free(pointer) if code == 0 else None]

def stream_ordered(twin=""):
    pointer = c_ulonglong()
    codes = [getattr(cuda, "cuMemAllocAsync" + twin)(byref(pointer), c_size_t(40 * MiB), other)]
    codes.append(getattr(cuda, "cuMemFreeAsync" + twin)(pointer, other) if codes[0] == 0 else None)
    return codes

def pools():
    fresh, pointer = c_void_p(), c_ulonglong()
    codes = [cuda.cuMemAllocFromPoolAsync(byref(pointer), c_size_t(40 * MiB), pool, another)]
    codes += [cuda.cuMemFreeAsync_ptsz(pointer, another), cuda.cuMemPoolTrimTo(pool, c_size_t(0))]
    return codes + [cuda.cuStreamSynchronize(another), cuda.cuEventSynchronize(event)]

def virtual():
    code, handle = cuda.create_block(4 * MiB)
    if code:
        return [code]
    codes = [cuda.map(base, 4 * MiB, handle), cuda.cuMemRelease(handle)]
    return codes + [cuda.unmap(base, 4 * MiB)]

def arrays():
    array, levels = c_void_p(), c_void_p()
    codes = [cuda.cuArrayCreate_v2(byref(array), byref(ArrayShape(1024, 1024, 0x20, 1)))]
    codes += [cuda.cuMipmappedArrayCreate(byref(levels), byref(Array3DShape(1024, 1024, 0, 0x20, 1, 0)), 2)]
    return codes + [cuda.cuArrayDestroy(array) if codes[0] == 0 else None]

def graphs():
    one = Graph(cuda)
    pointer = one.alloc(4 * MiB)
    one.give(pointer)
    one.instantiate()
    return [cuda.cuGraphUpload(one.exec, other), one.launch(other), cuda.cuGraphExecDestroy(one.exec)]

def looks():
    free, total, limit, stream = c_size_t(), c_size_t(), c_size_t(), c_void_p()
    codes = [cuda.cuMemGetInfo_v2(byref(free), byref(total)), cuda.cuCtxSetLimit(2, c_size_t(20 * MiB))]
    codes += [cuda.cuDeviceTotalMem_v2(byref(total), 1), cuda.cuStreamCreate(byref(stream), 1)]
    codes += [cuda.cuStreamBeginCapture_v2(stream, 2), cuda.cuStreamEndCapture(stream, byref(c_void_p()))]
    return codes + [cuda.cuStreamDestroy_v2(stream)]

def elsewhere(work):
    codes = []
    def run():
        check(cuda.cuCtxSetCurrent(context))
        codes.extend(work())
    thread = threading.Thread(target=run)
    thread.start(); thread.join()
    return codes

seen = {}
for name, mode, where in [("of another thread", GLOBAL, elsewhere), ("of another thread alone", OF_THREAD, elsewhere),
                          ("relaxed", RELAXED, elsewhere), ("of the same thread", GLOBAL, lambda work: work())]:
    for work in (sync, stream_ordered, pools, virtual, arrays, graphs, looks):
        other, another, stream, graph = cuda.stream(), cuda.stream(), cuda.stream(), c_void_p()
        event, pool, base = c_void_p(), cuda.pool(), cuda.reserve(4 * MiB).value
        check(cuda.cuEventCreate(byref(event), 2)); check(cuda.cuEventRecord(event, other))
        check(cuda.cuMemPoolSetAttribute(pool, ATTR_RELEASE_THRESHOLD, byref(c_uint64(2**40))))
        check(cuda.cuStreamBeginCapture_v2(stream, mode))
        codes = where(work)
        ended = cuda.cuStreamEndCapture(stream, byref(graph))
        seen[f"{work.__name__} in a capture {name}"] = [codes, ended]
say(seen)
"""
)


@pytest.mark.parametrize("captures", ["listed", "strict"])
def test_no_call_of_ours_spoils_a_capture(host, captures):
    """28 cases: what the program is told, and what becomes of the capture, is the same with the library and without."""
    host.switches = f"captures={captures}"
    bare = host.python(CAPTURES, LD_PRELOAD=None).said
    ours = host.python(CAPTURES, **LIMIT).said
    assert len(bare) == 28
    assert {case: ours[case] for case in bare if ours[case] != bare[case]} == {}
    spoilt = [case for case, (_, ended) in bare.items() if ended != 0]
    whole = [case for case, (_, ended) in bare.items() if ended == 0]
    for work in ("sync", "stream_ordered", "pools"):
        assert {f"{work} in a capture of another thread", f"{work} in a capture of the same thread"} <= set(spoilt)
        assert {f"{work} in a capture of another thread alone", f"{work} in a capture relaxed"} <= set(whole)
    assert ("virtual in a capture of another thread" in spoilt) == (captures == "strict")


def test_a_capture_that_begins_during_a_call_of_ours_is_not_spoilt(host):
    """A thread is in the driver, asking for a pool's figures, when another begins a capture and ends it."""
    beside, ended, after = run(
        host,
        "captures=strict",
        """
import threading, time
context = c_void_p()
check(cuda.cuCtxGetCurrent(byref(context)))
stream, other, graph = cuda.stream(), cuda.stream(), c_void_p()
def allocate():
    check(cuda.cuCtxSetCurrent(context))
    check(async_alloc(40 * MiB, other)[0])
    check(async_alloc(40 * MiB, other)[0])
thread = threading.Thread(target=allocate)
thread.start()
time.sleep(0.3)
check(cuda.cuStreamBeginCapture_v2(stream, 0))
beside = thread.is_alive()
time.sleep(1.5)
ended = cuda.cuStreamEndCapture(stream, byref(graph))
thread.join()
say([beside, ended, cuda.used()])
""",
        GPUSHARE_SIM=f"gpus=1,memory=16Gi,pool={host.directory / 'pool'},latency=cuMemPoolGetAttribute:1s",
    )
    assert beside
    assert ended == 0
    assert after >= 80 << 20
