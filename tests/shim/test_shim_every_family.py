"""What holds for each function that takes memory, in each of its versions, and for each that gives it back: a table.

The driver's failures are made by the software driver's setting `fail` (docs/switches.md), which counts the calls that
reach it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import fake_daemon as wire
import pytest

LIMIT = {"GPUSHARE_LIMIT": "1Gi"}
MIB = 2**20
WANTED, BLOCK = 64 * MIB, 2 * MIB
FAILED_AGAIN = 2
"""The flag of an ask (wire.h)."""


@dataclass(frozen=True)
class Family:
    """How a program takes memory of one kind, and gives it back."""

    take: str
    """The driver's function, called with `size`; an expression in which `it` is where the answer goes."""
    call: str
    give: str
    back: str
    it: str = "c_ulonglong()"
    before: str = ""
    no_place: tuple[str, ...] = ()
    """Calls that the driver refuses, for want of a place for the answer."""
    ever: bool = True
    """Whether the software driver ever succeeds."""


def linear(take: str, arguments: str, it: str = "c_ulonglong()") -> Family:
    call = f"cuda.{take}(byref(it), {arguments})"
    return Family(take, call, "cuMemFree_v2", "cuda.free(it)", it, no_place=(call.replace("byref(it)", "None"),))


def first(take: str, arguments: str) -> Family:
    """With addresses of 32 bits, of which the software driver has none."""
    return replace(linear(take, arguments, "c_uint()"), ever=False)


PITCH_2 = "byref(c_size_t()), c_size_t(1024), c_size_t(size // 1024), 4"
PITCH_1 = "byref(c_uint()), c_uint(1024), c_uint(size // 1024), 4"
PLANE = "size // 4096, 0x20, 1"
FAMILIES = {
    "linear": linear("cuMemAlloc_v2", "c_size_t(size)"),
    "linear, first version": first("cuMemAlloc", "c_uint(size)"),
    "pitch": linear("cuMemAllocPitch_v2", PITCH_2),
    "pitch, first version": first("cuMemAllocPitch", PITCH_1),
    "managed": linear("cuMemAllocManaged", "c_size_t(size), 1"),
}
for version, shape in (("", "(c_uint * 4)"), ("_v2", "ArrayShape")):
    call = f"cuda.cuArrayCreate{version}(byref(it), byref({shape}(1024, {PLANE})))"
    FAMILIES[f"array{version}"] = Family(
        f"cuArrayCreate{version}",
        call,
        "cuArrayDestroy",
        "cuda.cuArrayDestroy(it)",
        "c_void_p()",
        no_place=(call.replace("byref(it)", "None"), f"cuda.cuArrayCreate{version}(byref(it), None)"),
    )
for version, shape in (("", "(c_uint * 6)"), ("_v2", "Array3DShape")):
    call = f"cuda.cuArray3DCreate{version}(byref(it), byref({shape}(1024, 64, size // 262144, 0x20, 1, 0)))"
    FAMILIES[f"3D array{version}"] = Family(
        f"cuArray3DCreate{version}",
        call,
        "cuArrayDestroy",
        "cuda.cuArrayDestroy(it)",
        "c_void_p()",
        no_place=(call.replace("byref(it)", "None"), f"cuda.cuArray3DCreate{version}(byref(it), None)"),
    )
FAMILIES["mipmap"] = Family(
    "cuMipmappedArrayCreate",
    "cuda.cuMipmappedArrayCreate(byref(it), byref(Array3DShape(1024, size // 4096, 0, 0x20, 1, 0)), 1)",
    "cuMipmappedArrayDestroy",
    "cuda.cuMipmappedArrayDestroy(it)",
    "c_void_p()",
    no_place=("cuda.cuMipmappedArrayCreate(byref(it), None, 1)",),
)
FAMILIES["block"] = Family(
    "cuMemCreate",
    "cuda.cuMemCreate(byref(it), c_size_t(size), byref(prop), c_ulonglong(0))",
    "cuMemRelease",
    "cuda.cuMemRelease(it)",
    before="prop = AllocationProp(type=1, requested=1, location=Location(1, 0))",
    no_place=(
        "cuda.cuMemCreate(None, c_size_t(size), byref(prop), c_ulonglong(0))",
        "cuda.cuMemCreate(byref(it), c_size_t(size), None, c_ulonglong(0))",
    ),
)
for twin in ("", "_ptsz"):
    FAMILIES[f"pool{twin}"] = Family(
        f"cuMemAllocAsync{twin}",
        f"cuda.cuMemAllocAsync{twin}(byref(it), c_size_t(size), stream)",
        f"cuMemFreeAsync{twin}",
        f"cuda.cuMemFreeAsync{twin}(it, stream) or cuda.cuStreamSynchronize(stream)",
        before="stream = cuda.stream()",
        no_place=(f"cuda.cuMemAllocAsync{twin}(None, c_size_t(size), stream)",),
    )
    FAMILIES[f"named pool{twin}"] = Family(
        f"cuMemAllocFromPoolAsync{twin}",
        f"cuda.cuMemAllocFromPoolAsync{twin}(byref(it), c_size_t(size), pool, stream)",
        f"cuMemFreeAsync{twin}",
        f"cuda.cuMemFreeAsync{twin}(it, stream) or cuda.cuStreamSynchronize(stream)",
        before="stream, pool = cuda.stream(), cuda.pool()",
        no_place=(
            f"cuda.cuMemAllocFromPoolAsync{twin}(None, c_size_t(size), pool, stream)",
            f"cuda.cuMemAllocFromPoolAsync{twin}(byref(it), c_size_t(size), None, stream)",
        ),
    )

START = """
cuda, nvml = Cuda().start(), Nvml()
context, it = nvml.of_this_process(), {one.it}
{one.before}
def take(size):
    return {one.call}
def give():
    return {one.back}
def held():
    charged, physical = cuda.used(), nvml.of_this_process() - context
    assert charged == physical, (charged, physical)
    return charged
"""


def script(one: Family, body: str) -> str:
    return START.format(one=one) + body


def failing(host, *faults: str) -> dict[str, str]:
    return {**LIMIT, "GPUSHARE_SIM": host.environment()["GPUSHARE_SIM"] + ",fail=" + ";".join(faults)}


EVER = [name for name, one in FAMILIES.items() if one.ever]


@pytest.mark.parametrize("name", EVER)
def test_the_account_follows_the_driver_and_not_the_program(host, name) -> None:
    """A call that the driver fails takes nothing and a free that it fails gives nothing back; what is over the limit
    does not reach it, for its third call is the program's fourth. The program hears what the driver has said."""
    one = FAMILIES[name]
    text = f"""
said = [take({WANTED}), held(), take({WANTED}), held(), give(), held(), give(), held()]
say([*said, take(2 << 30), held(), take({WANTED}), held(), take({WANTED}), held()])
"""
    said = host.python(
        script(one, text), **failing(host, f"{one.take}:1:719", f"{one.take}:3:717", f"{one.give}:1:700")
    ).said
    assert said == [719, 0, 0, WANTED, 700, WANTED, 0, 0, 2, 0, 717, 0, 0, WANTED]


@pytest.mark.parametrize("name", [name for name, one in FAMILIES.items() if not one.ever])
def test_where_the_driver_never_succeeds_nothing_is_taken_either(host, name) -> None:
    one = FAMILIES[name]
    text = f"say([take({WANTED}), held(), take({WANTED}), held(), take(2 << 30), take({WANTED}), held()])"
    said = host.python(script(one, text), **failing(host, f"{one.take}:1:719", f"{one.take}:3:717")).said
    assert said == [719, 0, 2, 0, 2, 717, 0]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_gpu_that_is_full_is_told_to_the_daemon_and_tried_once_more(host, daemon, name) -> None:
    one = FAMILIES[name]
    faults = f"{one.take}:1:2", f"{one.take}:3+:2"
    said = host.python(script(one, f"say([take({WANTED}), take({WANTED})])"), **failing(host, *faults)).said
    told = [(ask.flags, ask.bytes) for ask in daemon.asks() if ask.flags]
    once, again = (wire.DRIVER_FAILED, WANTED), (wire.DRIVER_FAILED | FAILED_AGAIN, WANTED)
    if not one.ever:
        assert (said, told, daemon.page.word()[0]) == ([2, 2], [once, again, once, again], 0)
        return
    assert said == [0, 2]
    assert told == ([once, once] if "pool" in name else [once, once, again])
    assert daemon.page.word()[0] == WANTED


@pytest.mark.parametrize("name", FAMILIES)
def test_a_call_without_a_place_for_the_answer_is_the_drivers_to_refuse(host, name) -> None:
    one = FAMILIES[name]
    text = script(one, f"size = {WANTED}\nsay([{', '.join(one.no_place)}])\nassert cuda.alloc(MiB)[0] == 0")
    limited, alone = host.python(text, **LIMIT).said, host.python(text).said
    assert limited == alone
    assert 0 not in alone


NOTED_ALONE = [name for name in EVER if "pool" not in name and name != "block"]
"""What the software driver itself needs no address space for."""


@pytest.mark.parametrize("name", NOTED_ALONE)
def test_memory_that_there_is_no_room_to_note_is_given_back(host, name) -> None:
    """A process that may have no more address space: it is out of memory, and the driver holds what is charged."""
    one = FAMILIES[name]
    text = f"""
import resource
size, good = {BLOCK}, 0
held()
hoard = [bytearray(60000) for _ in range(200)]; del hoard[::2]  # so that malloc has some
has = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (has, -1))
while good < 4000:
    it = {one.it}
    code = take(size)
    if code:
        break
    good += 1
resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
say([code, good, held() // size, take(size), held() // size])
"""
    code, good, held, after, then = host.python(script(one, text), GPUSHARE_LIMIT="12Gi").said
    assert (code, after) == (2, 0)
    assert 0 < good < 4000
    assert (held, then) == (good, good + 1)


CONTEXTS = {
    "cuDevicePrimaryCtxRetain": "byref(it), 0",
    "cuCtxCreate": "byref(it), 0, 0",
    "cuCtxCreate_v2": "byref(it), 0, 0",
    "cuCtxCreate_v3": "byref(it), None, 0, 0, 0",
    "cuCtxCreate_v4": "byref(it), None, 0, 0",
    "cuGreenCtxCreate": "byref(it), desc, 0, 1",
}
OPEN = """
cuda, it, resource, desc = Cuda(), c_void_p(), (c_char * 144)(), c_void_p()
check(cuda.cuInit(0))
check(cuda.cuDeviceGetDevResource(0, resource, 1))
check(cuda.cuDevResourceGenerateDesc(byref(desc), resource, 1))
"""


@pytest.mark.parametrize("name", CONTEXTS)
def test_a_context_is_tried_once_more_and_its_gpu_is_left_if_it_does_not_open(host, daemon, name) -> None:
    daemon.policy.overhead = 300 * MIB
    call = f"cuda.{name}({CONTEXTS[name]})"
    said = host.python(
        OPEN + f"say([{call}, {call}, {call}, {call.replace('byref(it)', 'None')}])",
        **failing(host, f"{name}:1:2", f"{name}:2:2", f"{name}:3:719", f"{name}:4:2"),
    ).said
    assert said[:3] == [2, 719, 0]
    assert said[3] not in (0, 2)
    assert [(ask.flags, ask.bytes) for ask in daemon.asks()] == [(wire.DRIVER_FAILED, 300 * MIB)] * 2
    assert len(daemon.asks(wire.DETACH)) == 2
    assert daemon.page.counts()["contexts"] == 1
