"""What is asked of a CUDA driver, NVIDIA's or the software one: behaviour, return codes, sizes of its memory API.

A probe is a generator of (name, value) and runs in a process of its own, with the driver of GPUSHARE_TEST_DRIVER. It
asks what documentation allows to be asked: on a real driver a stale handle is not refused but followed. What depends on
the size of a GPU or on what others use of it is given as a difference. Names are stable: recorded answers are kept.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p, create_string_buffer
from itertools import pairwise
from typing import Any

from simcuda import (
    GI,
    KI,
    MI,
    AccessDesc,
    AllocationProp,
    Array3D,
    Handle64,
    Location,
    PoolProps,
    Requirements,
    alloc,
    cu,
    info,
    pointer,
    start,
    wait_line,
    write,
)

Probe = Callable[[], Iterator[tuple[str, Any]]]
NOWHERE = 0x5A5A00000000  # no driver's address


def free_now() -> int:
    return info()[0]


def taken(action: Callable[[], Any]) -> tuple[int, Any]:
    """By how much an action lowers what is free, and what it returned."""
    before = free_now()
    result = action()
    return before - free_now(), result


def alignment(addresses: list[int]) -> int:
    """The largest power of two, up to 2 MiB, that divides all of them."""
    return min(min(address & -address, 2 * MI) for address in addresses)


# ---- before anything, and contexts -------------------------------------------------------------------


def beginnings() -> Iterator[tuple[str, Any]]:
    yield "alloc before cuInit", cu.code("cuMemAlloc_v2", byref(c_uint64()), KI)
    yield "count before cuInit", cu.code("cuDeviceGetCount", byref(c_int()))
    yield "cuInit with flags", cu.code("cuInit", 1)
    cu.cuInit(0)
    yield "alloc without context", cu.code("cuMemAlloc_v2", byref(c_uint64()), KI)
    yield "info without context", cu.code("cuMemGetInfo_v2", byref(c_size_t()), byref(c_size_t()))
    yield "synchronise without context", cu.code("cuCtxSynchronize")
    yield "device that does not exist", cu.code("cuDeviceGet", byref(c_int()), 999)


def contexts() -> Iterator[tuple[str, Any]]:
    primary = start()
    free, total = info()
    whole = c_size_t()
    cu.cuDeviceTotalMem_v2(byref(whole), 0)
    yield "total is that of the device", total == whole.value
    yield "free is below total", 0 < free < total
    cost, second = taken(lambda: pointer("cuCtxCreate_v2", 0, 0))
    yield "second context takes", cost
    yield (
        "alloc in it returns to the device at its end",
        taken(lambda: alloc(64 * MI))[0] + taken(lambda: cu.cuCtxDestroy_v2(second))[0] in (-cost, 0),
    )
    yield "destroy the primary context", cu.code("cuCtxDestroy_v2", primary)
    cu.cuCtxSetCurrent(primary)
    alloc(64 * MI)
    yield "release while in use", cu.code("cuDevicePrimaryCtxRelease_v2", 0)
    yield "release once too often", cu.code("cuDevicePrimaryCtxRelease_v2", 0)
    yield "reset without users", cu.code("cuDevicePrimaryCtxReset_v2", 0)


# ---- linear, pitched, managed and host memory --------------------------------------------------------

SIZES = (1, 512, 513, 4 * KI, 64 * KI, MI - 1, MI, MI + 1, 2 * MI - 1, 2 * MI, 2 * MI + 1, 3 * MI, 32 * MI + 1)


def linear_sizes() -> Iterator[tuple[str, Any]]:
    start()
    for size in SIZES:
        first, one = taken(lambda size=size: alloc(size))
        eight, more = taken(lambda size=size: [alloc(size) for _ in range(8)])
        yield f"first of {size} takes", first
        yield f"eight more of {size} take", eight
        yield f"alignment of {size}", alignment([one, *more])
        if size < MI:
            yield f"distance of {size}", min(abs(b - a) for a, b in pairwise(sorted([one, *more])))
        back = -taken(lambda all=(one, *more): [cu.cuMemFree_v2(each) for each in all])[0]
        yield f"freeing nine of {size} returns", back


def linear_codes() -> Iterator[tuple[str, Any]]:
    start()
    free, total = info()
    yield "alloc 0", cu.code("cuMemAlloc_v2", byref(c_uint64()), 0)
    yield "alloc to nowhere", cu.code("cuMemAlloc_v2", None, KI)
    yield "alloc more than is free", cu.code("cuMemAlloc_v2", byref(c_uint64()), free + GI)
    yield "alloc more than there is", cu.code("cuMemAlloc_v2", byref(c_uint64()), total * 2)
    yield "alloc 2^60", cu.code("cuMemAlloc_v2", byref(c_uint64()), 1 << 60)
    yield "alloc after a refusal", cu.code("cuMemAlloc_v2", byref(c_uint64()), KI)
    one = alloc(3 * MI)
    yield "free inside", cu.code("cuMemFree_v2", one + 512)
    yield "free 0", cu.code("cuMemFree_v2", 0)
    yield "free nowhere", cu.code("cuMemFree_v2", NOWHERE)
    base, size = c_uint64(), c_size_t()
    cu.cuMemGetAddressRange_v2(byref(base), byref(size), one + 12345)
    yield "range of an inner address", [base.value == one, size.value]
    yield "range of nowhere", cu.code("cuMemGetAddressRange_v2", byref(base), byref(size), NOWHERE)
    yield "range without places", cu.code("cuMemGetAddressRange_v2", None, None, one)
    yield "copy past the end", cu.code("cuMemcpyHtoD_v2", one + 3 * MI - 8, create_string_buffer(64), 64)
    cu.cuMemFree_v2(one)
    yield "free twice", cu.code("cuMemFree_v2", one)
    yield "range of freed memory", cu.code("cuMemGetAddressRange_v2", byref(base), byref(size), one)
    again = alloc(3 * MI)
    yield "the same address again", again == one


def pitches() -> Iterator[tuple[str, Any]]:
    start()
    pitch = c_size_t()
    for width in (1, 100, 511, 512, 513, 1000, 4096, 65537):
        address = c_uint64()
        cu.cuMemAllocPitch_v2(byref(address), byref(pitch), width, 3, 4)
        yield f"pitch of {width}", pitch.value
        size = c_size_t()
        cu.cuMemGetAddressRange_v2(None, byref(size), address)
        yield f"range of 3 rows of {width}", size.value
        cu.cuMemFree_v2(address)
    for element in (0, 1, 2, 3, 8, 16, 32):
        yield f"element of {element}", cu.code("cuMemAllocPitch_v2", byref(c_uint64()), byref(pitch), 100, 3, element)
    yield "width 0", cu.code("cuMemAllocPitch_v2", byref(c_uint64()), byref(pitch), 0, 3, 4)
    yield "height 0", cu.code("cuMemAllocPitch_v2", byref(c_uint64()), byref(pitch), 100, 0, 4)


def managed() -> Iterator[tuple[str, Any]]:
    start()
    for flags in (0, 1, 2, 3, 4):
        yield f"flags {flags}", cu.code("cuMemAllocManaged", byref(c_uint64()), MI, flags)
    cost, one = taken(lambda: pointer("cuMemAllocManaged", 64 * MI, 1))
    yield "64 MiB take before they are touched", cost
    yield "advise part", cu.code("cuMemAdvise", one, 4 * MI, 1, 0)
    value = c_int(99)
    cu.cuMemRangeGetAttribute(byref(value), 4, 1, one, 4 * MI)
    yield "read mostly, of the part", value.value
    cu.cuMemRangeGetAttribute(byref(value), 4, 1, one, 64 * MI)
    yield "read mostly, of all", value.value
    for attribute in (2, 4, 5, 6, 7, 8):
        cu.code("cuMemRangeGetAttribute", byref(value), 4, attribute, one, 64 * MI)
        yield f"range attribute {attribute} at first", value.value
    yield "advise unmanaged", cu.code("cuMemAdvise", alloc(MI), MI, 1, 0)
    yield "advise past the end", cu.code("cuMemAdvise", one, 65 * MI, 1, 0)
    yield "attribute of wrong size", cu.code("cuMemRangeGetAttribute", byref(c_uint64()), 8, 1, one, MI)
    yield "free inside", cu.code("cuMemFree_v2", one + MI)
    yield "free", cu.code("cuMemFree_v2", one)


def host() -> Iterator[tuple[str, Any]]:
    start()
    cost, one = taken(lambda: pointer("cuMemHostAlloc", 16 * MI, 0))
    yield "16 MiB take of the device", cost
    yield "device address is the host's", pointer("cuMemHostGetDevicePointer_v2", one, 0) == one
    flags = c_uint()
    cu.cuMemHostGetFlags(byref(flags), one)
    yield "flags of plain memory", flags.value
    yield "alloc 0", cu.code("cuMemHostAlloc", byref(c_uint64()), 0, 0)
    yield "alloc with wrong flags", cu.code("cuMemHostAlloc", byref(c_uint64()), KI, 0x1000)
    yield "free as device memory", cu.code("cuMemFree_v2", one)
    yield "free inside", cu.code("cuMemFreeHost", one + 4096)
    yield "free", cu.code("cuMemFreeHost", one)
    yield "free twice", cu.code("cuMemFreeHost", one)
    yield "free device memory as host", cu.code("cuMemFreeHost", alloc(MI))
    own = create_string_buffer(64 * KI)
    place = ctypes.addressof(own)
    yield "register", cu.code("cuMemHostRegister_v2", place, 64 * KI, 0)
    yield "register twice", cu.code("cuMemHostRegister_v2", place, 64 * KI, 0)
    yield "unregister", cu.code("cuMemHostUnregister", place)
    yield "unregister twice", cu.code("cuMemHostUnregister", place)
    yield "register 0", cu.code("cuMemHostRegister_v2", place, 0, 0)


# ---- pools -------------------------------------------------------------------------------------------

THRESHOLD, RESERVED, RESERVED_HIGH, USED, USED_HIGH = 4, 5, 6, 7, 8


def of_pool(pool: int, attribute: int) -> int:
    value = c_uint64()
    cu.cuMemPoolGetAttribute(pool, attribute, byref(value))
    return value.value


def plain_pool(**fields: Any) -> PoolProps:
    return PoolProps(**{"type": 1, "location": Location(1, 0), **fields})


def pool_growth() -> Iterator[tuple[str, Any]]:
    start()
    pool = pointer("cuDeviceGetDefaultMemPool", 0)
    yield "the current pool is the default pool", pool == pointer("cuDeviceGetMemPool", 0)
    yield "threshold at first", of_pool(pool, THRESHOLD)
    yield "reserved at first", of_pool(pool, RESERVED)
    for size in (1, 512, MI, 5 * MI, 32 * MI, 33 * MI, 100 * MI):
        one = pointer("cuMemAllocAsync", size, None)
        yield f"reserved for {size}", of_pool(pool, RESERVED)
        yield f"used for {size}", of_pool(pool, USED)
        yield f"alignment of {size}", alignment([one])
        cu.cuMemFreeAsync(one, None)
        yield f"used after the free of {size}", of_pool(pool, USED)
        yield f"reserved after the free of {size}", of_pool(pool, RESERVED)
        cu.cuStreamSynchronize(None)
        yield f"reserved after synchronising, {size}", of_pool(pool, RESERVED)
        cu.cuMemPoolTrimTo(pool, 0)
    several = [pointer("cuMemAllocAsync", 5 * MI, None) for _ in range(8)]
    yield "reserved for 8 x 5 MiB", of_pool(pool, RESERVED)
    cu.cuMemFreeAsync(several[0], None)
    cu.cuCtxSynchronize()
    yield "reserved with one of 8 freed", of_pool(pool, RESERVED)
    yield "free memory agrees with reserved", taken(lambda: cu.cuMemPoolTrimTo(pool, 0))[0]
    for each in several[1:]:
        cu.cuMemFreeAsync(each, None)
    cu.cuCtxSynchronize()
    yield "reserved when all are freed", of_pool(pool, RESERVED)
    yield "used high", of_pool(pool, USED_HIGH) >= 100 * MI
    cu.cuMemPoolSetAttribute(pool, THRESHOLD, byref(c_uint64(1 << 62)))
    cu.cuMemFreeAsync(pointer("cuMemAllocAsync", 100 * MI, None), None)
    cu.cuCtxSynchronize()
    yield "reserved under a high threshold", of_pool(pool, RESERVED)
    cu.cuMemPoolTrimTo(pool, 50 * MI)
    yield "reserved after a trim to 50 MiB", of_pool(pool, RESERVED)
    cu.cuMemPoolTrimTo(pool, 0)
    yield "reserved after a trim to 0", of_pool(pool, RESERVED)


def pool_codes() -> Iterator[tuple[str, Any]]:
    start()
    default = pointer("cuDeviceGetDefaultMemPool", 0)
    yield "destroy the default pool", cu.code("cuMemPoolDestroy", default)
    yield "alloc 0", cu.code("cuMemAllocAsync", byref(c_uint64()), 0, None)
    yield "alloc more than is free", cu.code("cuMemAllocAsync", byref(c_uint64()), free_now() + GI, None)
    yield "free 0", cu.code("cuMemFreeAsync", 0, None)
    yield "free nowhere", cu.code("cuMemFreeAsync", NOWHERE, None)
    one = pointer("cuMemAllocAsync", MI, None)
    yield "free inside", cu.code("cuMemFreeAsync", one + 512, None)
    yield "free by cuMemFree", cu.code("cuMemFree_v2", one)
    yield "free of linear memory by cuMemFreeAsync", cu.code("cuMemFreeAsync", alloc(MI), None)
    yield "raise a high-water mark", cu.code("cuMemPoolSetAttribute", default, USED_HIGH, byref(c_uint64(1)))
    yield "reset a high-water mark", cu.code("cuMemPoolSetAttribute", default, USED_HIGH, byref(c_uint64(0)))
    yield "set what is reserved", cu.code("cuMemPoolSetAttribute", default, RESERVED, byref(c_uint64(0)))
    yield "unknown attribute", cu.code("cuMemPoolGetAttribute", default, 99, byref(c_uint64()))
    for name, fields in (
        ("no type", {"type": 0}),
        ("no place", {"location": Location(0, 0)}),
        ("unknown device", {"location": Location(1, 99)}),
        ("the current NUMA node", {"location": Location(4, 0)}),
        ("host memory", {"location": Location(2, 0)}),
        ("host memory to be shared", {"location": Location(2, 0), "handle_types": 1}),
        ("managed memory", {"type": 2}),
        ("managed memory of no place", {"type": 2, "location": Location(0, 0)}),
    ):
        yield f"create: {name}", cu.code("cuMemPoolCreate", byref(c_uint64()), byref(plain_pool(**fields)))
    private = pointer("cuMemPoolCreate", byref(plain_pool()))
    yield "export a private pool", cu.code("cuMemPoolExportToShareableHandle", byref(c_int()), private, 1, 0)
    yield "shut the own device out", cu.code("cuMemPoolSetAccess", private, byref(AccessDesc(Location(1, 0), 0)), 1)
    flags = c_int(9)
    cu.cuMemPoolGetAccess(byref(flags), private, byref(Location(1, 0)))
    yield "access of the own device", flags.value
    held = pointer("cuMemAllocFromPoolAsync", 3 * MI, private, None)
    yield "destroy with live memory", cu.code("cuMemPoolDestroy", private)
    yield "free from a destroyed pool", cu.code("cuMemFreeAsync", held, None)
    small = pointer("cuMemPoolCreate", byref(plain_pool(max_size=64 * MI)))
    yield "60 MiB of a pool of 64", cu.code("cuMemAllocFromPoolAsync", byref(c_uint64()), 60 * MI, small, None)
    yield "10 MiB more", cu.code("cuMemAllocFromPoolAsync", byref(c_uint64()), 10 * MI, small, None)


# ---- virtual memory management -----------------------------------------------------------------------


def block(size: int, kind: int = 1, handles: int = 0) -> int:
    return pointer("cuMemCreate", size, byref(physical(kind, handles)), 0)


def physical(kind: int = 1, handles: int = 0) -> AllocationProp:
    return AllocationProp(type=1, handle_types=handles, location=Location(kind, 0))


def vmm() -> Iterator[tuple[str, Any]]:
    start()
    for option in (0, 1):
        granularity = c_size_t()
        cu.cuMemGetAllocationGranularity(byref(granularity), byref(physical()), option)
        yield f"granularity {option}", granularity.value
    unit = 2 * MI
    for size in (0, 1, unit - 1, unit + 4096):
        yield f"create of {size}", cu.code("cuMemCreate", byref(c_uint64()), size, byref(physical()), 0)
    yield "create more than there is", cu.code("cuMemCreate", byref(c_uint64()), 1 << 50, byref(physical()), 0)
    yield "create of no type", cu.code("cuMemCreate", byref(c_uint64()), unit, byref(AllocationProp()), 0)
    cost, handle = taken(lambda: block(32 * MI))
    yield "32 MiB take when created", cost
    cost, base = taken(lambda: pointer("cuMemAddressReserve", GI, 0, 0, 0))
    yield "1 GiB of addresses take", cost
    yield "alignment of addresses", alignment([base])
    yield "reserve 0", cu.code("cuMemAddressReserve", byref(c_uint64()), 0, 0, 0, 0)
    yield "reserve an odd size", cu.code("cuMemAddressReserve", byref(c_uint64()), unit + 1, 0, 0, 0)
    yield "map to an odd address", cu.code("cuMemMap", base + 4096, 32 * MI, 0, handle, 0)
    yield "map more than there is", cu.code("cuMemMap", base, 64 * MI, 0, handle, 0)
    yield "map with an offset", cu.code("cuMemMap", base, 16 * MI, 16 * MI, handle, 0)
    cu.code("cuMemUnmap", base, 16 * MI)
    yield "map outside of what is reserved", cu.code("cuMemMap", NOWHERE, 32 * MI, 0, handle, 0)
    yield "map", cu.code("cuMemMap", base, 32 * MI, 0, handle, 0)
    yield "map over it", cu.code("cuMemMap", base, 32 * MI, 0, handle, 0)
    yield "map a second time", cu.code("cuMemMap", base + 64 * MI, 32 * MI, 0, handle, 0)
    yield "copy without access", cu.code("cuMemsetD8_v2", base, 1, 16)
    access = AccessDesc(Location(1, 0), 3)
    yield "access to what is not mapped", cu.code("cuMemSetAccess", base + 128 * MI, 32 * MI, byref(access), 1)
    yield "access to part of it", cu.code("cuMemSetAccess", base, 2 * MI, byref(access), 1)
    yield "access", cu.code("cuMemSetAccess", base, 32 * MI, byref(access), 1)
    yield "copy with access", cu.code("cuMemsetD8_v2", base, 1, 16)
    yield "free as linear memory", cu.code("cuMemFree_v2", base)
    again = c_uint64()
    yield "retain by an inner address", cu.code("cuMemRetainAllocationHandle", byref(again), c_void_p(base + 5 * MI))
    yield "the same handle", again.value == handle
    yield "retain nowhere", cu.code("cuMemRetainAllocationHandle", byref(c_uint64()), c_void_p(NOWHERE))
    told = AllocationProp()
    cu.cuMemGetAllocationPropertiesFromHandle(byref(told), handle)
    yield "properties", [told.type, told.handle_types, told.location.type, told.location.id]
    yield "export what may not be", cu.code("cuMemExportToShareableHandle", byref(c_int()), handle, 1, 0)
    yield "release returns", -taken(lambda: [cu.cuMemRelease(handle), cu.cuMemRelease(handle)])[0]
    yield "unmap part", cu.code("cuMemUnmap", base, 2 * MI)
    yield "free addresses in use", cu.code("cuMemAddressFree", base, GI)
    yield "unmap returns with another mapping", -taken(lambda: cu.cuMemUnmap(base, 32 * MI))[0]
    yield "unmap of the last returns", -taken(lambda: cu.cuMemUnmap(base + 64 * MI, 32 * MI))[0]
    yield "unmap again", cu.code("cuMemUnmap", base, 32 * MI)
    yield "free addresses", cu.code("cuMemAddressFree", base, GI)
    yield "free addresses again", cu.code("cuMemAddressFree", base, GI)
    shared = block(2 * MI, handles=1)
    descriptor = c_int()
    yield "export", cu.code("cuMemExportToShareableHandle", byref(descriptor), shared, 1, 0)
    other = c_uint64()
    yield "import in the same process", cu.code("cuMemImportFromShareableHandle", byref(other), descriptor.value, 1)
    yield "it is the same handle", other.value == shared


# ---- arrays ------------------------------------------------------------------------------------------

U8, FLOAT = 1, 0x20
SHAPES = {
    "64 x 64 x float": Array3D(64, 64, 0, FLOAT, 1, 0),
    "100 x u8": Array3D(100, 0, 0, U8, 1, 0),
    "1000 x 1000 x 4 u8": Array3D(1000, 1000, 0, U8, 4, 0),
    "100 x 100 x 100 x float": Array3D(100, 100, 100, FLOAT, 1, 0),
    "4096 x 4096 x 4 float": Array3D(4096, 4096, 0, FLOAT, 4, 0),
}


def arrays() -> Iterator[tuple[str, Any]]:
    start()
    for name, shape in SHAPES.items():
        cost, array = taken(lambda shape=shape: pointer("cuArray3DCreate_v2", byref(shape)))
        needs = Requirements()
        code = cu.code("cuArrayGetMemoryRequirements", byref(needs), array, 0)
        yield f"takes: {name}", cost
        yield f"requirements: {name}", [code, needs.size, needs.alignment] if code == 0 else [code]
        yield f"returns: {name}", -taken(lambda array=array: cu.cuArrayDestroy(array))[0]
    for name, shape in (
        ("no width", Array3D(0, 64, 0, FLOAT, 1, 0)),
        ("3 channels", Array3D(64, 64, 0, FLOAT, 3, 0)),
        ("unknown format", Array3D(64, 64, 0, 0x77, 1, 0)),
        ("unknown flags", Array3D(64, 64, 0, FLOAT, 1, 0x8000)),
        ("too wide", Array3D(1 << 24, 64, 0, FLOAT, 1, 0)),
    ):
        yield f"create: {name}", cu.code("cuArray3DCreate_v2", byref(c_uint64()), byref(shape))


# ---- graphs ------------------------------------------------------------------------------------------


class AllocNode(ctypes.Structure):
    """CUDA_MEM_ALLOC_NODE_PARAMS"""

    _fields_ = [
        ("props", PoolProps),
        ("descs", c_void_p),
        ("count", c_size_t),
        ("size", c_size_t),
        ("address", c_uint64),
    ]


GRAPH_USED, GRAPH_USED_HIGH, GRAPH_RESERVED, GRAPH_RESERVED_HIGH = range(4)


def of_graphs(attribute: int) -> int:
    value = c_uint64()
    cu.cuDeviceGetGraphMemAttribute(0, attribute, byref(value))
    return value.value


def alloc_node(graph: int, size: int) -> tuple[int, int]:
    params = AllocNode(props=plain_pool(), size=size)
    return pointer("cuGraphAddMemAllocNode", graph, None, 0, byref(params)), params.address


def graphs() -> Iterator[tuple[str, Any]]:
    start()
    stream = pointer("cuStreamCreate", 1)
    for size in (1, MI, 2 * MI + 1, 33 * MI, 100 * MI):
        graph = pointer("cuGraphCreate", 0)
        cost, (node, address) = taken(lambda graph=graph, size=size: alloc_node(graph, size))
        yield f"a node of {size} takes", cost
        pointer("cuGraphAddMemFreeNode", graph, (c_uint64 * 1)(node), 1, address)
        cost, executable = taken(lambda graph=graph: pointer("cuGraphInstantiateWithFlags", graph, 0))
        yield f"instantiating {size} takes", cost
        cu.cuGraphLaunch(executable, stream)
        cu.cuStreamSynchronize(stream)
        yield f"reserved after a launch of {size}", of_graphs(GRAPH_RESERVED)
        yield f"used after a launch of {size}", of_graphs(GRAPH_USED)
        yield f"used at most in a launch of {size}", of_graphs(GRAPH_USED_HIGH)
        yield f"second instance of {size}", cu.code("cuGraphInstantiateWithFlags", byref(c_uint64()), graph, 0)
        yield f"clone of {size}", cu.code("cuGraphClone", byref(c_uint64()), graph)
        cu.cuGraphExecDestroy(executable)
        cu.cuGraphDestroy(graph)
        yield f"reserved at the end of {size}", of_graphs(GRAPH_RESERVED)
        cu.cuDeviceGraphMemTrim(0)
        yield f"reserved after a trim of {size}", of_graphs(GRAPH_RESERVED)
        for attribute in (GRAPH_USED_HIGH, GRAPH_RESERVED_HIGH):
            cu.cuDeviceSetGraphMemAttribute(0, attribute, byref(c_uint64(0)))
    graph = pointer("cuGraphCreate", 0)
    node, address = alloc_node(graph, 4 * MI)
    executable = pointer("cuGraphInstantiateWithFlags", graph, 0)
    cu.cuGraphLaunch(executable, stream)
    cu.cuStreamSynchronize(stream)
    yield "used when a graph leaves memory", of_graphs(GRAPH_USED)
    yield "second launch without a free", cu.code("cuGraphLaunch", executable, stream)
    yield "free of a graph's memory", cu.code("cuMemFreeAsync", address, stream)
    yield "launch after the free", cu.code("cuGraphLaunch", executable, stream)
    yield (
        "alloc node of 0",
        cu.code("cuGraphAddMemAllocNode", byref(c_uint64()), graph, None, 0, byref(AllocNode(props=plain_pool()))),
    )
    yield "free node of nowhere", cu.code("cuGraphAddMemFreeNode", byref(c_uint64()), graph, None, 0, NOWHERE)
    yield "destroy a node beside memory nodes", cu.code("cuGraphDestroyNode", node)
    yield "set what graphs use", cu.code("cuDeviceSetGraphMemAttribute", 0, GRAPH_USED, byref(c_uint64(0)))


def captures() -> Iterator[tuple[str, Any]]:
    start()
    stream, status, graph = pointer("cuStreamCreate", 1), c_int(), c_uint64()
    yield "capture of the legacy stream", cu.code("cuStreamBeginCapture_v2", None, 0)
    cu.cuStreamBeginCapture_v2(stream, 2)
    cost, address = taken(lambda: pointer("cuMemAllocAsync", 5 * MI, stream))
    yield "a captured alloc takes", cost
    yield "alloc beside a relaxed capture", cu.code("cuMemAlloc_v2", byref(c_uint64()), KI)
    cu.cuMemFreeAsync(address, stream)
    yield "end", cu.code("cuStreamEndCapture", stream, byref(graph))
    count = c_size_t()
    cu.cuGraphGetNodes(graph, None, byref(count))
    yield "captured nodes", count.value
    yield "end without a beginning", cu.code("cuStreamEndCapture", stream, byref(c_uint64()))
    cu.cuStreamBeginCapture_v2(stream, 0)
    yield "alloc beside a global capture", cu.code("cuMemAlloc_v2", byref(c_uint64()), KI)
    cu.code("cuStreamIsCapturing", stream, byref(status))
    yield "status after that", status.value
    yield "end after that", cu.code("cuStreamEndCapture", stream, byref(c_uint64()))
    cu.cuStreamBeginCapture_v2(stream, 2)
    yield "synchronise a captured stream", cu.code("cuStreamSynchronize", stream)
    yield "end after a synchronise", cu.code("cuStreamEndCapture", stream, byref(c_uint64()))
    yield "alloc after all that", cu.code("cuMemAlloc_v2", byref(c_uint64()), KI)


# ---- what a pointer is, how functions are found ------------------------------------------------------


def pointers() -> Iterator[tuple[str, Any]]:
    start()
    kinds = {
        "linear": alloc(MI),
        "managed": pointer("cuMemAllocManaged", MI, 1),
        "host": pointer("cuMemHostAlloc", MI, 0),
        "pooled": pointer("cuMemAllocAsync", MI, None),
    }
    for kind, address in kinds.items():
        for name, attribute in (
            ("memory type", 2),
            ("is managed", 8),
            ("ordinal", 9),
            ("is IPC capable", 10),
            ("range size", 12),
            ("is mapped", 13),
            ("handle types", 14),
        ):
            value = c_uint64()
            code = cu.code("cuPointerGetAttribute", byref(value), attribute, address + 100)
            yield f"{kind}: {name}", [code, value.value] if code == 0 else [code]
        start_of = c_uint64()
        cu.cuPointerGetAttribute(byref(start_of), 11, address + 100)
        yield f"{kind}: starts where it was allocated", start_of.value == address
    yield "nowhere", cu.code("cuPointerGetAttribute", byref(c_uint64()), 2, NOWHERE)
    value = c_uint64(99)
    yield (
        "nowhere, among several",
        cu.code("cuPointerGetAttributes", 1, (c_int * 1)(2), (c_void_p * 1)(ctypes.addressof(value)), NOWHERE),
    )
    yield "its answer", value.value


FUNCTIONS = (
    "cuMemAlloc",
    "cuMemFree",
    "cuMemGetInfo",
    "cuCtxCreate",
    "cuMemAllocAsync",
    "cuMemcpyHtoD",
    "cuGraphAddNode",
)
VERSIONS = (2000, 3019, 3020, 7000, 11019, 11020, 12000, 12020, 12030)


def lookups() -> Iterator[tuple[str, Any]]:
    for name in FUNCTIONS:
        for version in VERSIONS:
            for flags in (0, 2):
                result, status = c_void_p(), c_int(-1)
                code = cu.code("cuGetProcAddress_v2", name.encode(), byref(result), version, flags, byref(status))
                symbol = None
                for suffix in ("", "_v2", "_v3", "_v4", "_ptsz", "_v2_ptsz", "_v2_ptds"):
                    known = getattr(cu.library, name + suffix, None)
                    if known is not None and ctypes.cast(known, c_void_p).value == result.value:
                        symbol = name + suffix
                yield f"{name} for {version}, flags {flags}", [code, status.value, symbol]
    yield "a version's own name", cu.code("cuGetProcAddress_v2", b"cuMemAlloc_v2", byref(c_void_p()), 12000, 0, None)
    yield "unknown name, first version", cu.code("cuGetProcAddress", b"cuNoSuch", byref(c_void_p()), 12000, 0)
    yield "unknown flags", cu.code("cuGetProcAddress_v2", b"cuMemAlloc", byref(c_void_p()), 12000, 64, None)


# ---- other processes ---------------------------------------------------------------------------------


def child(role: str, *words: object) -> subprocess.Popen[str]:
    line = [sys.executable, "-c", f"import probes; probes.{role}(*{json.dumps(words)})"]
    return subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def said_by(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def say_json(value: Any) -> None:
    print(json.dumps(value), flush=True)


def holder(size: int) -> None:
    start()
    write(alloc(size), b"held")
    say_json(os.getpid())
    wait_line()


def opener(handle: str) -> None:
    start()
    result = c_uint64()
    before = free_now()
    codes = [cu.code("cuIpcOpenMemHandle_v2", byref(result), Handle64.from_hex(handle), 1)]
    cost = before - free_now()
    again = c_uint64()
    codes.append(cu.code("cuIpcOpenMemHandle_v2", byref(again), Handle64.from_hex(handle), 1))
    same = again.value == result.value
    codes += [cu.code("cuMemFree_v2", result), cu.code("cuIpcCloseMemHandle", result)]
    codes.append(cu.code("cuIpcCloseMemHandle", result))
    say_json([codes, cost, same])


def settled() -> int:
    """What is free, once it has not changed for a while."""
    free, since = free_now(), time.monotonic()
    while time.monotonic() - since < 0.3:
        time.sleep(0.01)
        now = free_now()
        if now != free:
            free, since = now, time.monotonic()
    return free


def processes() -> Iterator[tuple[str, Any]]:
    """Nobody else should use the GPU meanwhile."""
    start()
    empty = settled()
    one = child("holder", 2 * MI)
    said_by(one)
    context = empty - settled() - 2 * MI
    yield "a context of another process takes", context
    one.communicate("\n")
    yield "its exit returns all", settled() == empty
    one = child("holder", 512 * MI)
    said_by(one)
    one.send_signal(signal.SIGKILL)
    began = time.monotonic()
    one.wait()
    while free_now() < empty and time.monotonic() - began < 30:
        time.sleep(0.002)
    yield "milliseconds from a kill to its memory", round((time.monotonic() - began) * 1000)
    yield "a kill returns all", free_now() == empty


def sharing() -> Iterator[tuple[str, Any]]:
    start()
    one, handle = alloc(4 * MI), Handle64()
    yield "handle", cu.code("cuIpcGetMemHandle", byref(handle), one)
    yield "handle of an inner address", cu.code("cuIpcGetMemHandle", byref(Handle64()), one + 512)
    yield "handle of nowhere", cu.code("cuIpcGetMemHandle", byref(Handle64()), NOWHERE)
    yield "handle of host memory", cu.code("cuIpcGetMemHandle", byref(Handle64()), pointer("cuMemHostAlloc", MI, 0))
    yield (
        "handle of pooled memory",
        cu.code("cuIpcGetMemHandle", byref(Handle64()), pointer("cuMemAllocAsync", MI, None)),
    )
    yield (
        "handle of managed memory",
        cu.code("cuIpcGetMemHandle", byref(Handle64()), pointer("cuMemAllocManaged", MI, 1)),
    )
    yield "open in the same process", cu.code("cuIpcOpenMemHandle_v2", byref(c_uint64()), handle, 1)
    yield "open with no flags", cu.code("cuIpcOpenMemHandle_v2", byref(c_uint64()), handle, 0)
    yield "close what was not opened", cu.code("cuIpcCloseMemHandle", one)
    process = child("opener", handle.hex())
    codes, cost, same = said_by(process)
    process.communicate("\n")
    yield "open twice, free, close twice, elsewhere", codes
    yield "an open handle takes", cost
    yield "the second opening has the first's address", same


PROBES: dict[str, Probe] = {
    probe.__name__.replace("_", " "): probe
    for probe in (
        beginnings,
        contexts,
        linear_sizes,
        linear_codes,
        pitches,
        managed,
        host,
        pool_growth,
        pool_codes,
        vmm,
        arrays,
        graphs,
        captures,
        pointers,
        lookups,
        processes,
        sharing,
    )
}


def run(name: str) -> None:
    """One line of JSON an answer, at once: a driver may end the process at the next question."""
    for question, value in PROBES[name]():
        say_json([question, value])
