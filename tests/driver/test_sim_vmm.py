"""Virtual memory management: who keeps physical memory alive, and through which addresses it is reached."""

from __future__ import annotations

import itertools
import os
from ctypes import byref, c_int, c_size_t, c_uint64, c_ulonglong
from typing import Any

import pytest
from simcuda import (
    ALREADY_MAPPED,
    GI,
    INVALID_DEVICE,
    INVALID_VALUE,
    KI,
    MI,
    OUT_OF_MEMORY,
    AccessDesc,
    AllocationProp,
    Location,
    cu,
    pointer,
    read,
    refuses,
    say,
    start,
    used,
    wait_line,
    write,
)


def device_memory(**fields: Any) -> AllocationProp:
    return AllocationProp(**{"type": 1, "location": Location(1, 0), **fields})


def allow(address: int, size: int, flags: int = 3) -> None:
    cu.cuMemSetAccess(address, size, byref(AccessDesc(Location(1, 0), flags)), 1)


def one_handle(handle_types: int) -> None:
    start()
    step = c_size_t()
    cu.cuMemGetAllocationGranularity(byref(step), byref(device_memory()), 0)
    assert step.value == 2 * MI
    address = pointer("cuMemAddressReserve", 8 * MI, 0, 0, 0)
    assert used() == 0, "addresses cost nothing"
    handle = pointer("cuMemCreate", 4 * MI, byref(device_memory(handle_types=handle_types)), 0)
    assert used() == 4 * MI
    cu.cuMemMap(address, 4 * MI, 0, handle, 0)
    refuses(INVALID_VALUE, "cuMemsetD8_v2", address, 0, 10)
    allow(address, 4 * MI)
    write(address + 3 * MI, b"mapped")
    assert read(address + 3 * MI, 6) == b"mapped"
    refuses(ALREADY_MAPPED, "cuMemMap", address, 4 * MI, 0, handle, 0)
    cu.cuMemMap(address + 4 * MI, 2 * MI, 2 * MI, handle, 0)
    allow(address + 4 * MI, 2 * MI)
    assert read(address + 5 * MI, 6) == b"mapped", "two windows on one memory"
    flags = c_ulonglong()
    cu.cuMemGetAccess(byref(flags), byref(Location(1, 0)), address)
    assert flags.value == 3
    cu.cuMemRelease(handle)
    assert used() == 4 * MI, "mapped, though released"
    refuses(INVALID_VALUE, "cuMemMap", address + 6 * MI, 2 * MI, 0, handle, 0)
    again = pointer("cuMemRetainAllocationHandle", address + 100)
    refuses(INVALID_VALUE, "cuMemUnmap", address, 2 * MI)
    refuses(INVALID_VALUE, "cuMemAddressFree", address, 8 * MI)
    cu.cuMemUnmap(address, 6 * MI)
    assert used() == 4 * MI, "unmapped, but retained"
    got = AllocationProp()
    cu.cuMemGetAllocationPropertiesFromHandle(byref(got), again)
    assert (got.location.type, got.handle_types) == (1, handle_types)
    cu.cuMemRelease(again)
    assert used() == 0
    refuses(INVALID_VALUE, "cuMemRelease", again)
    refuses(INVALID_VALUE, "cuMemsetD8_v2", address, 0, 10)
    cu.cuMemAddressFree(address, 8 * MI)
    refuses(INVALID_VALUE, "cuMemAddressFree", address, 8 * MI)


@pytest.mark.parametrize("handle_types", [0, 1])
def test_one_handle(sim: Any, handle_types: int) -> None:
    sim.run(one_handle, handle_types)


def every_order() -> None:
    """Release, two unmaps and the release of a second reference, in every order."""
    start()
    address = pointer("cuMemAddressReserve", 4 * MI, 0, 0, 0)
    for order in itertools.permutations(range(4)):
        handle = pointer("cuMemCreate", 2 * MI, byref(device_memory()), 0)
        cu.cuMemMap(address, 2 * MI, 0, handle, 0)
        cu.cuMemMap(address + 2 * MI, 2 * MI, 0, handle, 0)
        second = pointer("cuMemRetainAllocationHandle", address)
        steps = [
            lambda h=handle: cu.cuMemRelease(h),
            lambda h=second: cu.cuMemRelease(h),
            lambda: cu.cuMemUnmap(address, 2 * MI),
            lambda: cu.cuMemUnmap(address + 2 * MI, 2 * MI),
        ]
        for number in order:
            assert used() == 2 * MI
            steps[number]()
        assert used() == 0


def test_every_order(sim: Any) -> None:
    sim.run(every_order)


def refusals() -> None:
    start()
    handle, address = c_uint64(), c_uint64()
    refuses(INVALID_VALUE, "cuMemCreate", byref(handle), 3 * MI, byref(device_memory()), 0)
    refuses(INVALID_VALUE, "cuMemCreate", byref(handle), 0, byref(device_memory()), 0)
    refuses(INVALID_DEVICE, "cuMemCreate", byref(handle), 2 * MI, byref(device_memory(location=Location(1, 9))), 0)
    refuses(INVALID_VALUE, "cuMemCreate", byref(handle), 2 * MI, byref(device_memory(type=0)), 0)
    refuses(OUT_OF_MEMORY, "cuMemCreate", byref(handle), 16 * GI, byref(device_memory()), 0)
    refuses(INVALID_VALUE, "cuMemAddressReserve", byref(address), 100, 0, 0, 0)
    own = pointer("cuMemCreate", 2 * MI, byref(device_memory()), 0)
    base = pointer("cuMemAddressReserve", 4 * MI, 4 * MI, 0, 0)
    assert base % (4 * MI) == 0
    refuses(INVALID_VALUE, "cuMemMap", base, 4 * MI, 0, own, 0)
    refuses(INVALID_VALUE, "cuMemMap", base + 4 * KI, 2 * MI, 0, own, 0)
    refuses(INVALID_VALUE, "cuMemMap", base + 4 * MI, 2 * MI, 0, own, 0)
    refuses(INVALID_VALUE, "cuMemMap", base, 2 * MI, 0, 0x1234560, 0)
    refuses(INVALID_VALUE, "cuMemSetAccess", base, 2 * MI, byref(AccessDesc(Location(1, 0), 3)), 1)
    refuses(INVALID_VALUE, "cuMemExportToShareableHandle", byref(c_int()), own, 1, 0)
    assert pointer("cuMemAddressReserve", 2 * MI, 0, base + 64 * MI, 0) != 0
    cu.cuMemRelease(own)
    host = pointer("cuMemCreate", 2 * MI, byref(device_memory(location=Location(2, 0))), 0)
    assert used() == 0, "host memory is not the GPU's"
    cu.cuMemRelease(host)


def test_refusals(sim: Any) -> None:
    sim.run(refusals)


def many_handles() -> None:
    """Expandable segments: thousands of handles do not need thousands of descriptors."""
    start()
    count = 3000
    base = pointer("cuMemAddressReserve", count * 2 * MI, 0, 0, 0)
    handles = [pointer("cuMemCreate", 2 * MI, byref(device_memory()), 0) for _ in range(count)]
    for index, handle in enumerate(handles):
        cu.cuMemMap(base + index * 2 * MI, 2 * MI, 0, handle, 0)
        cu.cuMemRelease(handle)
    allow(base, count * 2 * MI)
    write(base + 2 * MI - 4, b"over an edge")
    assert read(base + 2 * MI - 4, 12) == b"over an edge", "a copy may run over several mappings"
    assert used() == count * 2 * MI
    assert len(os.listdir("/proc/self/fd")) < 50  # noqa: PTH208
    cu.cuMemUnmap(base, count * 2 * MI)
    assert used() == 0


def test_many_handles(sim: Any) -> None:
    sim.run(many_handles)


def exporter() -> None:
    start()
    handle = pointer("cuMemCreate", 2 * MI, byref(device_memory(handle_types=1)), 0)
    base = pointer("cuMemAddressReserve", 2 * MI, 0, 0, 0)
    cu.cuMemMap(base, 2 * MI, 0, handle, 0)
    allow(base, 2 * MI)
    write(base, b"exported")
    fd = c_int()
    cu.cuMemExportToShareableHandle(byref(fd), handle, 1, 0)
    say(os.getpid(), fd.value)
    assert wait_line() == "opened"
    assert read(base, 8) == b"imported"
    assert used() == 2 * MI + 300 * MI, "one memory, two contexts"


def importer(pid: int, fd: int) -> None:
    start()
    handle = pointer("cuMemImportFromShareableHandle", os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR), 1)
    base = pointer("cuMemAddressReserve", 2 * MI, 0, 0, 0)
    cu.cuMemMap(base, 2 * MI, 0, handle, 0)
    cu.cuMemRelease(handle)
    allow(base, 2 * MI)
    assert read(base, 8) == b"exported"
    write(base, b"imported")
    say("opened")
    wait_line()
    cu.cuMemUnmap(base, 2 * MI)
    refuses(INVALID_VALUE, "cuMemImportFromShareableHandle", byref(c_uint64()), os.open("/dev/null", os.O_RDWR), 1)


def test_export(sim: Any) -> None:
    one = sim.start(exporter)
    two = sim.start(importer, *map(int, one.line().split()))
    one.tell(two.line())
    one.end()
    two.end()
