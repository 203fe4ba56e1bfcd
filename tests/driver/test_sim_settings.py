"""What is kept and told, and does nothing: textures, core dumps, the parts of a device, another process's state."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_bool, c_char, c_int, c_size_t, c_ubyte, c_uint, c_uint64, create_string_buffer
from typing import Any

from simcuda import (
    CONTEXT_IS_DESTROYED,
    INVALID_CONTEXT,
    INVALID_HANDLE,
    INVALID_VALUE,
    KI,
    Array3D,
    alloc,
    cu,
    own_pid,
    pointer,
    refuses,
    say,
    start,
    used,
    wait_line,
)

INVALID_RESOURCE_TYPE = 914


class Resource(ctypes.Structure):
    """CUDA_RESOURCE_DESC"""

    _fields_ = [("type", c_int), ("content", c_uint64 * 16), ("flags", c_uint)]


class Sampling(ctypes.Structure):
    """CUDA_TEXTURE_DESC"""

    _fields_ = [("modes", c_int * 3), ("filter", c_int), ("flags", c_uint), ("rest", c_ubyte * 84)]


class View(ctypes.Structure):
    """CUDA_RESOURCE_VIEW_DESC"""

    _fields_ = [("format", c_int), ("extent", c_size_t * 3), ("bounds", c_uint * 4), ("reserved", c_uint * 16)]


def textures() -> None:
    start()
    array = pointer("cuArray3DCreate_v2", byref(Array3D(64, 64, 0, 0x20, 1, 2)))
    before = used()
    resource, sampling = Resource(type=0, content=(array,)), Sampling(modes=(1, 1, 0), filter=1)
    plain = pointer("cuTexObjectCreate", byref(resource), byref(sampling), None)
    viewed = pointer("cuTexObjectCreate", byref(resource), byref(sampling), byref(View(format=7, extent=(64, 64, 0))))
    surface = pointer("cuSurfObjectCreate", byref(resource))
    assert used() == before, "they hold no memory"
    told, how, view = Resource(), Sampling(), View()
    cu.cuTexObjectGetResourceDesc(byref(told), plain)
    cu.cuTexObjectGetTextureDesc(byref(how), plain)
    assert (told.type, told.content[0], bytes(how)) == (0, array, bytes(sampling))
    cu.cuTexObjectGetResourceViewDesc(byref(view), viewed)
    assert (view.format, list(view.extent)) == (7, [64, 64, 0])
    refuses(INVALID_VALUE, "cuTexObjectGetResourceViewDesc", byref(view), plain)
    cu.cuSurfObjectGetResourceDesc(byref(told), surface)
    linear = Resource(type=2, content=(alloc(4 * KI), 0x20 | 1 << 32, 4 * KI))
    whole = pointer("cuTexObjectCreate", byref(linear), byref(sampling), None)
    pitched = Resource(type=3, content=(alloc(4 * KI), 0x20 | 1 << 32, 32, 8, 512))
    pointer("cuTexObjectCreate", byref(pitched), byref(sampling), None)
    refuses(INVALID_VALUE, "cuTexObjectCreate", byref(c_uint64()), byref(linear), byref(sampling), byref(view))
    refuses(INVALID_VALUE, "cuSurfObjectCreate", byref(c_uint64()), byref(linear))
    refuses(INVALID_VALUE, "cuTexObjectCreate", byref(c_uint64()), byref(resource), None, None)
    stale = Resource(type=0, content=(surface,))
    refuses(INVALID_HANDLE, "cuTexObjectCreate", byref(c_uint64()), byref(stale), byref(sampling), None)
    refuses(INVALID_VALUE, "cuTexObjectDestroy", surface)
    cu.cuSurfObjectDestroy(surface)
    for texture in (plain, viewed, whole):
        cu.cuTexObjectDestroy(texture)
    refuses(INVALID_VALUE, "cuTexObjectDestroy", plain)
    cu.cuArrayDestroy(array)


def test_textures_and_surfaces(sim: Any) -> None:
    sim.run(textures)


ON_EXCEPTION, TRIGGER_HOST, FILE, GENERATION = 1, 2, 5, 7


def coredumps() -> None:
    context = start()
    flag, size, text = c_bool(True), c_size_t(1), create_string_buffer(1024)
    for get, put in (
        ("cuCoredumpGetAttribute", "cuCoredumpSetAttribute"),
        ("cuCoredumpGetAttributeGlobal", "cuCoredumpSetAttributeGlobal"),
    ):
        ask, tell = getattr(cu, get), getattr(cu, put)
        ask(ON_EXCEPTION, byref(flag), byref(size))
        assert not flag.value
        ask(TRIGGER_HOST, byref(flag), byref(size))
        assert flag.value
        tell(ON_EXCEPTION, byref(c_bool(True)), byref(size))
        ask(ON_EXCEPTION, byref(flag), byref(size))
        assert flag.value
        long = c_size_t(1024)
        ask(FILE, text, byref(long))
        assert text.value.startswith(b"core.cuda.") and long.value == len(text.value) + 1
        tell(FILE, create_string_buffer(b"elsewhere"), byref(c_size_t(10)))
        long.value = 1024
        ask(FILE, text, byref(long))
        assert (text.value, long.value) == (b"elsewhere", 10)
        refuses(INVALID_VALUE, get, FILE, text, byref(c_size_t(9)))
        long.value = 0
        ask(GENERATION, None, byref(long))
        assert long.value == 4, "without a place it says how much room is needed"
        refuses(INVALID_VALUE, get, 8, text, byref(c_size_t(1024)))
        refuses(INVALID_VALUE, put, GENERATION, byref(c_uint()), byref(c_size_t(2)))
        refuses(INVALID_VALUE, put, FILE, (c_char * 2000)(), byref(c_size_t(2000)))
    cu.cuCtxSetCurrent(None)
    refuses(201, "cuCoredumpGetAttribute", ON_EXCEPTION, byref(flag), byref(size))
    cu.cuCoredumpGetAttributeGlobal(ON_EXCEPTION, byref(flag), byref(size))
    cu.cuCtxSetCurrent(context)


def test_settings_of_core_dumps(sim: Any) -> None:
    sim.run(coredumps)


class DevResource(ctypes.Structure):
    _fields_ = [("type", c_int), ("padding", c_ubyte * 92), ("sm", c_uint * 3), ("rest", c_ubyte * 36)]


def resources() -> None:
    start()
    resource, count = DevResource(), c_int()
    cu.cuDeviceGetDevResource(0, byref(resource), 1)
    cu.cuDeviceGetAttribute(byref(count), 16, 0)
    assert (resource.type, resource.sm[0]) == (1, count.value)
    assert resource.sm[1] > 0 and resource.sm[2] > 0
    refuses(INVALID_RESOURCE_TYPE, "cuDeviceGetDevResource", 0, byref(resource), 9)
    groups, rest, number = (DevResource * 3)(), DevResource(), c_uint()
    cu.cuDevSmResourceSplitByCount(None, byref(number), byref(resource), None, 0, 17)
    assert number.value == count.value // 24
    number.value = 3
    cu.cuDevSmResourceSplitByCount(groups, byref(number), byref(resource), byref(rest), 0, 17)
    assert ([one.sm[0] for one in groups], rest.sm[0]) == ([24] * 3, count.value - 72)
    number.value = 1
    refuses(915, "cuDevSmResourceSplitByCount", groups, byref(number), byref(resource), None, 0, 9999)
    refuses(
        INVALID_RESOURCE_TYPE, "cuDevSmResourceSplitByCount", groups, byref(number), byref(DevResource()), None, 0, 1
    )
    refuses(INVALID_VALUE, "cuFuncGetName", byref(c_uint64()), None)
    refuses(INVALID_VALUE, "cuKernelGetName", byref(c_uint64()), None)


def test_what_a_device_can_be_divided_into(sim: Any) -> None:
    sim.run(resources)


def green_contexts() -> None:
    cu.cuInit(0)
    resource, part, number, active, flags = DevResource(), DevResource(), c_uint(1), c_int(), c_uint()
    cu.cuDeviceGetDevResource(0, byref(resource), 1)
    cu.cuDevSmResourceSplitByCount(byref(part), byref(number), byref(resource), None, 0, 16)
    resources = pointer("cuDevResourceGenerateDesc", byref(part), c_uint(1))
    refuses(INVALID_VALUE, "cuGreenCtxCreate", byref(c_uint64()), 0x1234, 0, 1)
    green, other = (pointer("cuGreenCtxCreate", resources, c_int(0), c_uint(1)) for _ in range(2))
    cu.cuDevicePrimaryCtxGetState(0, byref(flags), byref(active))
    assert active.value == 1, "the primary context is opened"
    cu.cuGreenCtxGetDevResource(green, byref(resource), 1)
    assert (resource.type, resource.sm[0]) == (1, 16)
    ids = c_uint64(), c_uint64()
    cu.cuGreenCtxGetId(green, byref(ids[0]))
    cu.cuGreenCtxGetId(other, byref(ids[1]))
    assert ids[0].value != ids[1].value
    context = pointer("cuCtxFromGreenCtx", green)
    cu.cuCtxSetCurrent(context)
    assert pointer("cuCtxGetCurrent") == context
    address = alloc(KI)
    stream = pointer("cuGreenCtxStreamCreate", green, c_uint(1), c_int(0))
    seen = c_uint64(), c_uint64(), c_uint64()
    cu.cuStreamGetGreenCtx(stream, byref(seen[0]))
    cu.cuStreamGetCtx_v2(stream, byref(seen[1]), byref(seen[2]))
    assert [one.value for one in seen] == [green, context, green]
    refuses(INVALID_CONTEXT, "cuCtxDestroy_v2", context)
    cu.cuGreenCtxDestroy(green)
    refuses(CONTEXT_IS_DESTROYED, "cuMemAlloc_v2", byref(c_uint64()), c_size_t(KI))
    refuses(INVALID_CONTEXT, "cuGreenCtxDestroy", green)
    cu.cuCtxSetCurrent(pointer("cuCtxFromGreenCtx", other))
    cu.cuMemFree_v2(address)  # it was the primary context's
    cu.cuGreenCtxDestroy(other)
    cu.cuDevicePrimaryCtxGetState(0, byref(flags), byref(active))
    assert active.value == 0, "and with the last green one closed"


def test_green_contexts(sim: Any) -> None:
    sim.run(green_contexts)


def is_there() -> None:
    start()
    say(own_pid())
    wait_line()


def states(pid: int) -> None:
    start()
    state = c_int(9)
    for process in (pid, own_pid()):
        cu.cuCheckpointProcessGetState(process, byref(state))
        assert state.value == 0
    for process in (1, 0, -5, 2**30):
        refuses(INVALID_VALUE, "cuCheckpointProcessGetState", process, byref(state))


def test_the_state_of_another_process(sim: Any) -> None:
    other = sim.start(is_there)
    sim.run(states, int(other.line()))
    other.tell()
    other.end()
