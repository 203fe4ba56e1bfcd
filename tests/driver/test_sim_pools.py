"""Stream-ordered memory: what a pool reserves and uses, and when it gives back."""

from __future__ import annotations

import ctypes
import itertools
import os
from ctypes import byref, c_int, c_uint64
from typing import Any

from simcuda import (
    GI,
    INVALID_DEVICE,
    INVALID_VALUE,
    KI,
    MI,
    NOT_SUPPORTED,
    OUT_OF_MEMORY,
    AccessDesc,
    Handle64,
    Location,
    PoolProps,
    alloc,
    cu,
    own_pid,
    pointer,
    read,
    refuses,
    say,
    start,
    used,
    wait_line,
    write,
)

THRESHOLD, RESERVED, RESERVED_HIGH, USED, USED_HIGH = 4, 5, 6, 7, 8


def attribute(pool: int, number: int) -> int:
    value = c_uint64()
    cu.cuMemPoolGetAttribute(pool, number, byref(value))
    return value.value


def properties(**fields: int) -> PoolProps:
    return PoolProps(**{"type": 1, "location": Location(1, 0), **fields})


def default_pool() -> None:
    start()
    pool = pointer("cuDeviceGetDefaultMemPool", 0)
    assert pool == pointer("cuDeviceGetMemPool", 0)
    one = pointer("cuMemAllocAsync", 5 * MI, None)
    assert (attribute(pool, USED), attribute(pool, RESERVED), used()) == (5 * MI, 32 * MI, 32 * MI)
    two = pointer("cuMemAllocAsync_ptsz", 20 * MI, None)
    assert attribute(pool, RESERVED) == 32 * MI
    three = pointer("cuMemAllocAsync", 40 * MI, None)
    assert attribute(pool, RESERVED) == 96 * MI, "grows in steps of 32 MiB"
    write(three + 39 * MI, b"tail")
    assert read(three + 39 * MI, 4) == b"tail"
    cu.cuMemFreeAsync(one, None)
    cu.cuMemFree_v2(two)
    cu.cuMemFreeAsync_ptsz(three, None)
    assert (attribute(pool, USED), attribute(pool, RESERVED), used()) == (0, 96 * MI, 96 * MI)
    cu.cuStreamSynchronize(None)
    assert (attribute(pool, RESERVED), used()) == (0, 0), "the threshold is 0 by default"
    assert (attribute(pool, RESERVED_HIGH), attribute(pool, USED_HIGH)) == (96 * MI, 65 * MI)
    cu.cuMemPoolSetAttribute(pool, USED_HIGH, byref(c_uint64(0)))
    assert attribute(pool, USED_HIGH) == 0
    refuses(INVALID_VALUE, "cuMemPoolSetAttribute", pool, USED_HIGH, byref(c_uint64(5)))
    refuses(INVALID_VALUE, "cuMemPoolDestroy", pool)
    refuses(INVALID_VALUE, "cuMemFreeAsync", one, None)
    refuses(OUT_OF_MEMORY, "cuMemAllocAsync", byref(c_uint64()), 17 * GI, None)
    refuses(INVALID_DEVICE, "cuDeviceGetDefaultMemPool", byref(c_uint64()), 5)


def test_default_pool(sim: Any) -> None:
    sim.run(default_pool)


def threshold_and_trim() -> None:
    start()
    pool = pointer("cuDeviceGetDefaultMemPool", 0)
    cu.cuMemPoolSetAttribute(pool, THRESHOLD, byref(c_uint64(64 * MI)))
    live = [pointer("cuMemAllocAsync", 30 * MI, None) for _ in range(4)]
    assert attribute(pool, RESERVED) == 128 * MI
    for address in live[1:]:
        cu.cuMemFreeAsync(address, None)
    cu.cuCtxSynchronize()
    assert attribute(pool, RESERVED) == 64 * MI
    cu.cuMemPoolTrimTo(pool, 0)
    assert attribute(pool, RESERVED) == 32 * MI, "one step is in use"
    cu.cuMemFreeAsync(live[0], None)
    event = pointer("cuEventCreate", 0)
    cu.cuEventRecord(event, None)
    cu.cuEventSynchronize(event)
    assert attribute(pool, RESERVED) == 32 * MI, "below the threshold"
    cu.cuMemPoolTrimTo(pool, 0)
    assert used() == 0


def test_threshold_and_trim(sim: Any) -> None:
    sim.run(threshold_and_trim)


def own_pools() -> None:
    start()
    pool = pointer("cuMemPoolCreate", byref(properties()))
    one = pointer("cuMemAllocFromPoolAsync", MI, pool, None)
    two = pointer("cuMemAllocFromPoolAsync_ptsz", MI, pool, None)
    cu.cuMemFreeAsync(two, None)
    cu.cuMemPoolDestroy(pool)
    assert used() == 32 * MI, "a destroyed pool keeps what is live"
    write(one, b"still there")
    assert read(one, 11) == b"still there"
    refuses(INVALID_VALUE, "cuMemAllocFromPoolAsync", byref(c_uint64()), MI, pool, None)
    cu.cuMemFree_v2(one)
    assert used() == 0
    standing = pointer("cuDeviceGetDefaultMemPool", 0)
    mine = pointer("cuMemPoolCreate", byref(properties(max_size=64 * MI)))
    cu.cuDeviceSetMemPool(0, mine)
    assert pointer("cuDeviceGetMemPool", 0) == mine
    three = pointer("cuMemAllocAsync", 60 * MI, None)
    assert attribute(mine, RESERVED) == 64 * MI
    refuses(OUT_OF_MEMORY, "cuMemAllocAsync", byref(c_uint64()), 10 * MI, None)
    cu.cuMemFreeAsync(three, None)
    cu.cuMemPoolDestroy(mine)
    assert pointer("cuDeviceGetMemPool", 0) == standing
    assert used() == 0
    refuses(NOT_SUPPORTED, "cuMemPoolCreate", byref(c_uint64()), byref(properties(handle_types=8)))
    flags = c_int()
    cu.cuMemPoolGetAccess(byref(flags), standing, byref(Location(1, 0)))
    assert flags.value == 3
    assert pointer("cuMemGetDefaultMemPool", byref(Location(1, 0)), 1) == standing


def test_own_pools(sim: Any) -> None:
    sim.run(own_pools)


def outlives_context() -> None:
    cu.cuInit(0)
    pointer("cuCtxCreate_v2", 0, 0)
    pointer("cuCtxCreate_v2", 0, 0)
    one = pointer("cuMemAllocAsync", MI, None)
    alloc(8 * MI)
    cu.cuCtxDestroy_v2(pointer("cuCtxGetCurrent"))
    assert used() == 32 * MI, "a pool belongs to the device"
    cu.cuMemFree_v2(one)
    cu.cuCtxSynchronize()
    assert used() == 0


def test_a_pool_outlives_its_context(sim: Any) -> None:
    sim.run(outlives_context)


def churn() -> None:
    """Sizes at random, many live: nothing overlaps and all of it comes back."""
    import random

    start()
    pool = pointer("cuDeviceGetDefaultMemPool", 0)
    random.seed(7)
    live: dict[int, int] = {}
    for _ in range(20_000):
        if live and random.random() < 0.48:
            address = random.choice(list(live)[:64])
            cu.cuMemFreeAsync(address, None)
            del live[address]
        else:
            size = random.choice([1, 100, 4 * KI, 70 * KI, 3 * MI])
            live[pointer("cuMemAllocAsync", size, None)] = size
    ends = sorted((address, address + size) for address, size in live.items())
    assert all(low[1] <= high[0] for low, high in itertools.pairwise(ends))
    rounded = sum((size + 511) // 512 * 512 for size in live.values())
    assert attribute(pool, USED) == rounded
    assert attribute(pool, RESERVED) == used()
    for address in live:
        cu.cuMemFreeAsync(address, None)
    cu.cuCtxSynchronize()
    assert used() == 0


def test_churn(sim: Any) -> None:
    sim.run(churn)


def exporter() -> None:
    start()
    pool = pointer("cuMemPoolCreate", byref(properties(handle_types=1)))
    handle = c_int()
    cu.cuMemPoolExportToShareableHandle(byref(handle), pool, 1, 0)
    one = pointer("cuMemAllocFromPoolAsync", 100, pool, None)
    two = pointer("cuMemAllocFromPoolAsync", 3 * MI, pool, None)
    data = [Handle64(), Handle64()]
    cu.cuMemPoolExportPointer(byref(data[0]), one)
    cu.cuMemPoolExportPointer(byref(data[1]), two)
    write(two, b"from the exporter")
    say(os.getpid(), handle.value, data[0].hex(), data[1].hex())
    assert wait_line() == "written"
    assert read(two, 17) == b"from the importer"
    assert used() == 32 * MI + 300 * MI, "both contexts and one pool: the importer paid nothing"


def importer(pid: int, handle: int, one: str, two: str) -> None:
    start()
    fd = os.open(f"/proc/{pid}/fd/{handle}", os.O_RDWR)
    pool = pointer("cuMemPoolImportFromShareableHandle", fd, 1, 0)
    os.close(fd)
    data = Handle64.from_hex(two)
    address = pointer("cuMemPoolImportPointer", pool, byref(data))
    assert read(address, 17) == b"from the exporter"
    write(address, b"from the importer")
    refuses(NOT_SUPPORTED, "cuMemAllocFromPoolAsync", byref(c_uint64()), MI, pool, None)
    cu.cuMemFreeAsync(pointer("cuMemPoolImportPointer", pool, byref(Handle64.from_hex(one))), None)
    cu.cuMemFree_v2(address)
    cu.cuMemPoolDestroy(pool)
    refuses(
        INVALID_VALUE, "cuMemPoolImportFromShareableHandle", byref(c_uint64()), os.open("/dev/null", os.O_RDWR), 1, 0
    )
    say("done")
    wait_line()


def test_export(sim: Any) -> None:
    one = sim.start(exporter)
    pid, handle, first, second = one.line().split()
    two = sim.start(importer, int(pid), int(handle), first, second)
    assert two.line() == "done"
    one.tell("written")
    one.end()
    two.end()


# ---- places other than a device's own memory ---------------------------------------------------------

DEVICE, HOST, NUMA, NUMA_CURRENT, PINNED, MANAGED = 1, 2, 3, 4, 1, 2
MEMORY_TYPE, IS_MANAGED, POOL_HANDLE = 2, 8, 17


def pointer_attribute(address: int, number: int) -> int:
    value = c_uint64()
    cu.cuPointerGetAttribute(byref(value), number, address)
    return value.value


def host_pools() -> None:
    start()
    for location in (Location(HOST, 0), Location(NUMA, 0)):
        pool = pointer("cuMemPoolCreate", byref(properties(location=location)))
        before = used()
        one = pointer("cuMemAllocFromPoolAsync", 5 * MI, pool, None)
        assert used() == before, "host memory is charged to no GPU"
        assert (attribute(pool, USED), attribute(pool, RESERVED)) == (5 * MI, 32 * MI)
        assert (pointer_attribute(one, MEMORY_TYPE), pointer_attribute(one, IS_MANAGED)) == (1, 0)
        assert pointer_attribute(one, POOL_HANDLE) == pool
        write(one, b"on the host")
        assert ctypes.string_at(one, 11) == b"on the host" == read(one, 11)
        flags = c_int()
        for place, expected in ((Location(HOST, 0), 3), (Location(DEVICE, 0), 0)):
            cu.cuMemPoolGetAccess(byref(flags), pool, byref(place))
            assert flags.value == expected
        cu.cuMemPoolSetAccess(pool, byref(AccessDesc(Location(DEVICE, 0), 3)), 1)
        cu.cuMemPoolGetAccess(byref(flags), pool, byref(Location(DEVICE, 0)))
        assert flags.value == 3
        cu.cuMemFreeAsync(one, None)
        cu.cuCtxSynchronize()
        assert attribute(pool, RESERVED) == 0
        cu.cuMemPoolDestroy(pool)
    refuses(INVALID_VALUE, "cuMemPoolCreate", byref(c_uint64()), byref(properties(location=Location(NUMA_CURRENT, 0))))
    refuses(
        INVALID_VALUE,
        "cuMemPoolCreate",
        byref(c_uint64()),
        byref(properties(location=Location(HOST, 0), handle_types=1)),
    )
    refuses(INVALID_VALUE, "cuMemPoolCreate", byref(c_uint64()), byref(properties(location=Location(0, 0))))


def test_pools_of_host_memory(sim: Any) -> None:
    sim.run(host_pools)


def managed_pools() -> None:
    start()
    for location in (Location(DEVICE, 0), Location(HOST, 0), Location(NUMA, 0), Location(0, 0)):
        pool = pointer("cuMemPoolCreate", byref(properties(type=MANAGED, location=location)))
        one = pointer("cuMemAllocFromPoolAsync", 5 * MI, pool, None)
        assert used() == 32 * MI, "charged in full, wherever it would rather be"
        assert (pointer_attribute(one, MEMORY_TYPE), pointer_attribute(one, IS_MANAGED)) == (2, 1)
        cu.cuMemAdvise_v2(one, 5 * MI, 1, Location(0, 0))
        write(one, b"x")
        assert ctypes.string_at(one, 1) == b"x"
        cu.cuMemFree_v2(one)
        cu.cuMemPoolDestroy(pool)
        assert used() == 0
    refuses(
        INVALID_VALUE,
        "cuMemPoolCreate",
        byref(c_uint64()),
        byref(properties(type=MANAGED, location=Location(DEVICE, 0), handle_types=1)),
    )


def test_pools_of_managed_memory(sim: Any) -> None:
    sim.run(managed_pools)


def pools_of_places() -> None:
    start()
    standing = {}
    for location, kind in (
        (1, PINNED),
        (1, MANAGED),
        (2, PINNED),
        (2, MANAGED),
        (3, PINNED),
        (3, MANAGED),
        (0, MANAGED),
    ):
        place = Location(location, 0)
        pool = pointer("cuMemGetDefaultMemPool", byref(place), kind)
        assert pool == pointer("cuMemGetMemPool", byref(place), kind)
        refuses(INVALID_VALUE, "cuMemPoolDestroy", pool)
        own = pointer("cuMemPoolCreate", byref(properties(type=kind, location=place)))
        cu.cuMemSetMemPool(byref(place), kind, own)
        assert pointer("cuMemGetMemPool", byref(place), kind) == own
        cu.cuMemPoolDestroy(own)
        assert pointer("cuMemGetMemPool", byref(place), kind) == pool
        standing[location, kind] = pool
    assert len(set(standing.values())) == 7
    assert standing[1, PINNED] == pointer("cuDeviceGetDefaultMemPool", 0)
    refuses(INVALID_VALUE, "cuMemSetMemPool", byref(Location(1, 0)), MANAGED, standing[1, PINNED])
    refuses(INVALID_VALUE, "cuMemSetMemPool", byref(Location(2, 0)), PINNED, standing[3, PINNED])
    refuses(INVALID_VALUE, "cuDeviceSetMemPool", 0, standing[1, MANAGED])
    refuses(INVALID_VALUE, "cuMemGetMemPool", byref(c_uint64()), byref(Location(0, 0)), PINNED)
    refuses(INVALID_VALUE, "cuMemGetMemPool", byref(c_uint64()), byref(Location(1, 0)), 0)
    refuses(INVALID_DEVICE, "cuMemGetMemPool", byref(c_uint64()), byref(Location(1, 7)), MANAGED)


def test_every_place_has_a_default_and_a_current_pool(sim: Any) -> None:
    sim.run(pools_of_places)


def exports_host_pool() -> None:
    start()
    pool = pointer("cuMemPoolCreate", byref(properties(location=Location(NUMA, 0), handle_types=1)))
    one = pointer("cuMemAllocFromPoolAsync", MI, pool, None)
    write(one, b"from the exporter")
    descriptor, data = c_int(), Handle64()
    cu.cuMemPoolExportToShareableHandle(byref(descriptor), pool, 1, 0)
    cu.cuMemPoolExportPointer(byref(data), one)
    say(own_pid(), descriptor.value, data.hex())
    wait_line()


def imports_host_pool(pid: int, number: int, data: str) -> None:
    start()
    descriptor = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR)
    pool = pointer("cuMemPoolImportFromShareableHandle", descriptor, 1, 0)
    one = pointer("cuMemPoolImportPointer", pool, byref(Handle64.from_hex(data)))
    assert read(one, 17) == b"from the exporter"
    assert pointer_attribute(one, MEMORY_TYPE) == 1
    cu.cuMemFreeAsync(one, None)


def test_a_pool_of_host_memory_in_another_process(sim: Any) -> None:
    exporter = sim.start(exports_host_pool)
    pid, descriptor, data = exporter.line().split()
    sim.run(imports_host_pool, int(pid), int(descriptor), data)
    exporter.tell()
    exporter.end()


def peers_of_a_pool() -> None:
    start()
    pool, flags = pointer("cuMemPoolCreate", byref(properties())), c_int()
    for given in (0, 3, 1, 0):
        cu.cuMemPoolSetAccess(pool, byref(AccessDesc(Location(DEVICE, 1), given)), 1)
        cu.cuMemPoolGetAccess(byref(flags), pool, byref(Location(DEVICE, 1)))
        assert (flags.value != 0) == (given != 0)
    refuses(INVALID_VALUE, "cuMemPoolSetAccess", pool, byref(AccessDesc(Location(DEVICE, 0), 0)), 1)
    refuses(INVALID_VALUE, "cuMemPoolSetAccess", pool, byref(AccessDesc(Location(DEVICE, 2), 3)), 1)
    refuses(INVALID_VALUE, "cuMemPoolSetAccess", pool, byref(AccessDesc(Location(HOST, 0), 3)), 1)


def test_access_of_peers_is_told_as_it_was_given(sim: Any) -> None:
    sim.settings = "gpus=2,memory=1Gi"
    sim.run(peers_of_a_pool)
