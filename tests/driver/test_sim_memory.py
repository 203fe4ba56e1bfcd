"""Linear, pitched and managed memory, host memory, what is free, what a pointer is; contexts that own memory."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

from simcuda import (
    CONTEXT,
    CONTEXT_IS_DESTROYED,
    DEVICE,
    GI,
    HOST,
    INVALID_CONTEXT,
    INVALID_VALUE,
    KI,
    MI,
    NOT_FOUND,
    OUT_OF_MEMORY,
    alloc,
    cu,
    info,
    pointer,
    read,
    refuses,
    start,
    used,
    write,
)


def linear() -> None:
    start()
    free, total = info()
    assert (total, total - free) == (16 * GI, CONTEXT)
    big = alloc(5 * MI)
    assert used() == 6 * MI, "rounded up to blocks"
    small = [alloc(512 * KI) for _ in range(4)]
    assert used() == 8 * MI, "four of 512 KiB share a block"
    assert all(address % 512 == 0 for address in small)
    extra = alloc(1)
    assert used() == 10 * MI
    for address in [*small, extra, big]:
        cu.cuMemFree_v2(address)
    assert used() == 0
    cu.cuMemFree_v2(0)
    refuses(INVALID_VALUE, "cuMemFree_v2", big)
    refuses(INVALID_VALUE, "cuMemAlloc_v2", byref(c_uint64()), 0)
    refuses(INVALID_VALUE, "cuMemAlloc_v2", None, 10)
    refuses(OUT_OF_MEMORY, "cuMemAlloc_v2", byref(c_uint64()), 16 * GI)
    refuses(OUT_OF_MEMORY, "cuMemAlloc_v2", byref(c_uint64()), (1 << 64) - 1)
    whole = alloc(16 * GI - CONTEXT)
    assert info()[0] == 0
    refuses(OUT_OF_MEMORY, "cuMemAlloc_v2", byref(c_uint64()), 1)
    cu.cuMemFree_v2(whole)
    assert used() == 0


def test_linear(sim: Any) -> None:
    sim.run(linear)


def addresses() -> None:
    start()
    base = alloc(3 * MI)
    small = alloc(1000)
    found, size = c_uint64(), c_size_t()
    cu.cuMemGetAddressRange_v2(byref(found), byref(size), base + MI)
    assert (found.value, size.value) == (base, 3 * MI)
    cu.cuMemGetAddressRange_v2(byref(found), byref(size), small + 999)
    assert (found.value, size.value) == (small, 1000)
    refuses(NOT_FOUND, "cuMemGetAddressRange_v2", byref(found), byref(size), small + 1000)
    refuses(INVALID_VALUE, "cuMemFree_v2", base + 512)
    kind, ordinal, context = c_uint(), c_int(), c_void_p()
    cu.cuPointerGetAttribute(byref(kind), 2, base + 7)
    cu.cuPointerGetAttribute(byref(ordinal), 9, base)
    cu.cuPointerGetAttribute(byref(context), 1, base)
    assert (kind.value, ordinal.value) == (DEVICE, 0)
    assert context.value == pointer("cuCtxGetCurrent")
    refuses(INVALID_VALUE, "cuPointerGetAttribute", byref(kind), 2, 0x1000)
    refuses(INVALID_VALUE, "cuPointerGetAttribute", byref(kind), 99, base)
    ordinal.value = kind.value = 77
    numbers = (c_int * 2)(9, 2)
    places = (c_void_p * 2)(ctypes.addressof(ordinal), ctypes.addressof(kind))
    cu.cuPointerGetAttributes(2, numbers, places, 0x1000)
    assert (ordinal.value, kind.value) == (-2, 0), "an unknown pointer is no error here"
    one, other = c_uint64(), c_uint64()
    cu.cuPointerGetAttribute(byref(one), 7, small)
    cu.cuMemFree_v2(small)
    again = alloc(1000)
    cu.cuPointerGetAttribute(byref(other), 7, again)
    assert again == small
    assert other.value != one.value, "a buffer id is never used twice"


def test_addresses(sim: Any) -> None:
    sim.run(addresses)


def pitched() -> None:
    start()
    pitch = c_size_t()
    base = pointer("cuMemAllocPitch_v2", byref(pitch), 1000, 3000, 4)
    assert pitch.value == 1024
    assert used() == 4 * MI, "1024 x 3000 in blocks"
    cu.cuMemFree_v2(base)
    refuses(INVALID_VALUE, "cuMemAllocPitch_v2", byref(c_uint64()), byref(pitch), 1000, 3000, 3)
    refuses(OUT_OF_MEMORY, "cuMemAllocPitch_v2", byref(c_uint64()), byref(pitch), 1 << 40, 1 << 40, 4)
    assert used() == 0


def test_pitched(sim: Any) -> None:
    sim.run(pitched)


def managed() -> None:
    start()
    base = pointer("cuMemAllocManaged", 4 * MI, 1)
    assert used() == 4 * MI
    flag, location = c_uint(), c_int()
    cu.cuPointerGetAttribute(byref(flag), 8, base)
    assert flag.value == 1
    ctypes.memset(base, 5, 10)
    assert read(base, 10) == bytes([5]) * 10, "host and device see one memory"
    cu.cuMemAdvise(base, MI, 1, 0)
    cu.cuMemPrefetchAsync(base, MI, 0, None)
    cu.cuMemPrefetchAsync_ptsz(base, MI, -1 & 0xFFFFFFFF, None)
    cu.cuMemRangeGetAttribute(byref(location), 4, 2, base, MI)
    assert location.value == -2
    refuses(INVALID_VALUE, "cuMemAdvise", base, 5 * MI, 1, 0)
    refuses(INVALID_VALUE, "cuMemAllocManaged", byref(c_uint64()), MI, 7)
    cu.cuMemFree_v2(base)
    assert used() == 0


def test_managed(sim: Any) -> None:
    sim.run(managed)


def first_versions() -> None:
    """32-bit addresses exist nowhere, so nothing is given and nothing is kept."""
    start()
    narrow, pitch = c_uint(), c_uint()
    refuses(OUT_OF_MEMORY, "cuMemAlloc", byref(narrow), 4096)
    refuses(OUT_OF_MEMORY, "cuMemAllocPitch", byref(narrow), byref(pitch), 100, 100, 4)
    free, total = c_uint(), c_uint()
    cu.cuMemGetInfo(byref(free), byref(total))
    assert total.value == 0xFFFFFFFF
    cu.cuDeviceTotalMem(byref(total), 0)
    assert total.value == 0xFFFFFFFF
    assert used() == 0
    cu.cuMemFree(0)


def test_first_versions(sim: Any) -> None:
    sim.run(first_versions)


def host_memory() -> None:
    start()
    place = pointer("cuMemHostAlloc", 10000, 1)
    flags, kind = c_uint(), c_uint()
    cu.cuMemHostGetFlags(byref(flags), place)
    assert flags.value & 1
    device = pointer("cuMemHostGetDevicePointer_v2", place + 100, 0)
    assert device == place + 100
    cu.cuPointerGetAttribute(byref(kind), 2, place)
    assert kind.value == HOST
    assert used() == 0
    cu.cuMemFreeHost(place)
    refuses(INVALID_VALUE, "cuMemFreeHost", place)
    buffer = ctypes.create_string_buffer(8192)
    cu.cuMemHostRegister_v2(buffer, 8192, 0)
    refuses(712, "cuMemHostRegister_v2", buffer, 8192, 0)
    cu.cuMemHostUnregister(buffer)
    refuses(713, "cuMemHostUnregister", buffer)
    cu.cuMemFreeHost(pointer("cuMemAllocHost_v2", 4096))


def test_host_memory(sim: Any) -> None:
    sim.run(host_memory)


def contexts() -> None:
    cu.cuInit(0)
    refuses(INVALID_CONTEXT, "cuMemAlloc_v2", byref(c_uint64()), 100)
    refuses(INVALID_CONTEXT, "cuMemGetInfo_v2", byref(c_size_t()), byref(c_size_t()))
    refuses(INVALID_CONTEXT, "cuCtxPopCurrent_v2", byref(c_uint64()))
    first = pointer("cuCtxCreate_v2", 0, 0)
    assert info()[1] - info()[0] == CONTEXT
    second = pointer("cuCtxCreate_v4", None, 0, 0)
    assert info()[1] - info()[0] == 2 * CONTEXT, "each has its overhead"
    in_second = alloc(8 * MI)
    alloc(100)
    assert used() == CONTEXT + 10 * MI
    cu.cuCtxDestroy_v2(second)
    assert pointer("cuCtxGetCurrent") == first
    assert used() == 0, "its memory went with it"
    refuses(INVALID_VALUE, "cuMemFree_v2", in_second)
    refuses(CONTEXT_IS_DESTROYED, "cuCtxPushCurrent_v2", second)
    refuses(INVALID_CONTEXT, "cuCtxPushCurrent_v2", 0x1234560)
    cu.cuCtxPopCurrent_v2(byref(c_uint64()))
    assert pointer("cuCtxGetCurrent") == 0
    cu.cuCtxDestroy_v2(first)


def test_contexts(sim: Any) -> None:
    sim.run(contexts)


def primary() -> None:
    cu.cuInit(0)
    flags, active = c_uint(), c_int()
    cu.cuDevicePrimaryCtxSetFlags_v2(0, 4)
    cu.cuDevicePrimaryCtxGetState(0, byref(flags), byref(active))
    assert (flags.value, active.value) == (4, 0)
    context = pointer("cuDevicePrimaryCtxRetain", 0)
    assert pointer("cuDevicePrimaryCtxRetain", 0) == context
    cu.cuCtxSetCurrent(context)
    alloc(4 * MI)
    cu.cuDevicePrimaryCtxRelease_v2(0)
    assert used() == 4 * MI
    cu.cuDevicePrimaryCtxRelease_v2(0)
    refuses(CONTEXT_IS_DESTROYED, "cuMemAlloc_v2", byref(c_uint64()), 100)
    refuses(INVALID_CONTEXT, "cuDevicePrimaryCtxRelease_v2", 0)
    refuses(INVALID_CONTEXT, "cuCtxDestroy_v2", context)
    assert pointer("cuDevicePrimaryCtxRetain", 0) == context
    assert used() == 0
    alloc(4 * MI)
    cu.cuDevicePrimaryCtxReset_v2(0)
    cu.cuDevicePrimaryCtxGetState(0, byref(flags), byref(active))
    assert active.value == 0
    other = pointer("cuCtxCreate_v2", 0, 0)
    assert info()[1] - info()[0] == CONTEXT, "all that the reset left"
    limit, least, greatest = c_size_t(), c_int(), c_int()
    cu.cuCtxSetLimit(0, 4096)
    cu.cuCtxGetLimit(byref(limit), 0)
    cu.cuCtxGetStreamPriorityRange(byref(least), byref(greatest))
    assert (limit.value, least.value, greatest.value) == (4096, 0, -5)
    device, version = c_int(), c_uint()
    cu.cuCtxGetDevice(byref(device))
    cu.cuCtxGetDevice_v2(byref(device), other)
    cu.cuCtxGetApiVersion(other, byref(version))
    assert (device.value, version.value) == (0, 3020)
    cu.cuCtxSynchronize()
    cu.cuCtxSynchronize_v2(other)


def test_primary(sim: Any) -> None:
    sim.run(primary)


def overhead_does_not_fit() -> None:
    cu.cuInit(0)
    refuses(OUT_OF_MEMORY, "cuDevicePrimaryCtxRetain", byref(c_uint64()), 0)
    refuses(OUT_OF_MEMORY, "cuCtxCreate_v2", byref(c_uint64()), 0, 0)


def test_overhead_does_not_fit(sim: Any) -> None:
    sim.settings = "memory=200Mi,context=300Mi"
    sim.run(overhead_does_not_fit)


def many() -> None:
    start()
    live = [alloc(100 * (1 + index % 50)) for index in range(50_000)]
    assert len(set(live)) == 50_000
    before = used()
    assert before <= 2 * sum(100 * (1 + index % 50) for index in range(50_000))
    for address in live[::2]:
        cu.cuMemFree_v2(address)
    live = live[1::2] + [alloc(700) for _ in range(25_000)]
    for address in live:
        cu.cuMemFree_v2(address)
    assert used() == 0


def test_fifty_thousand_live_allocations(sim: Any) -> None:
    sim.run(many)


def memory_returns() -> None:
    """What is freed costs no host memory any more."""
    from pathlib import Path

    def shared_kilobytes() -> int:
        text = Path("/proc/self/status").read_text()
        return int(text.split("RssShmem:")[1].split()[0])

    start()
    before = shared_kilobytes()
    base = alloc(64 * MI)
    cu.cuMemsetD8_v2(base, 7, 64 * MI)
    assert shared_kilobytes() - before >= 64 * KI
    cu.cuMemFree_v2(base)
    assert shared_kilobytes() - before < KI
    again = alloc(64 * MI)
    assert again == base
    assert read(again, 16) == bytes(16)


def test_memory_returns(sim: Any) -> None:
    sim.run(memory_returns)


def two_gpus() -> None:
    first = start(0)
    one = alloc(8 * MI)
    second = start(1)
    assert first != second
    assert info()[1] == 24 * GI
    assert used() == 0
    two = alloc(4 * MI)
    write(one, b"across devices")
    cu.cuMemcpyPeer(two, second, one, first, 14)
    assert read(two, 14) == b"across devices"
    cu.cuCtxSetCurrent(first)
    assert used() == 8 * MI
    can = c_int()
    cu.cuDeviceCanAccessPeer(byref(can), 0, 1)
    assert can.value == 1
    cu.cuCtxEnablePeerAccess(second, 0)
    refuses(704, "cuCtxEnablePeerAccess", second, 0)
    cu.cuCtxDisablePeerAccess(second)
    refuses(705, "cuCtxDisablePeerAccess", second)


def test_two_gpus(sim: Any) -> None:
    sim.settings = "gpus=2,memory=16Gi/24Gi"
    sim.run(two_gpus)
