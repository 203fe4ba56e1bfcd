"""Multicast objects, and memory of other APIs."""

from __future__ import annotations

import ctypes
import os
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64
from pathlib import Path
from typing import Any

from simcuda import (
    BLOCK,
    INVALID_HANDLE,
    INVALID_VALUE,
    MI,
    NOT_SUPPORTED,
    AllocationProp,
    Location,
    cu,
    pointer,
    read,
    refuses,
    start,
    used,
    write,
)


class Object(ctypes.Structure):
    _fields_ = [("devices", c_uint), ("size", c_size_t), ("handles", c_uint64), ("flags", c_uint64)]


class Handle(ctypes.Structure):
    _fields_ = [
        ("type", c_int),
        ("fd", c_uint64),
        ("name", c_uint64),
        ("size", c_uint64),
        ("flags", c_uint),
        ("reserved", c_uint * 16),
    ]


class Buffer(ctypes.Structure):
    _fields_ = [("offset", c_uint64), ("size", c_uint64), ("flags", c_uint), ("reserved", c_uint * 16)]


def block(size: int, device: int = 0, exported: int = 0) -> int:
    prop = AllocationProp(type=1, handle_types=exported, location=Location(1, device))
    return pointer("cuMemCreate", size, byref(prop), 0)


def multicast() -> None:
    start()
    wanted = Object(2, 8 * BLOCK, 0, 0)
    granularity = c_size_t()
    cu.cuMulticastGetGranularity(byref(granularity), byref(wanted), 0)
    assert granularity.value == BLOCK
    refuses(INVALID_VALUE, "cuMulticastCreate", byref(c_uint64()), byref(Object(3, BLOCK, 0, 0)))
    refuses(INVALID_VALUE, "cuMulticastCreate", byref(c_uint64()), byref(Object(2, 100, 0, 0)))
    one = pointer("cuMulticastCreate", byref(wanted))
    first, second = block(4 * BLOCK), block(4 * BLOCK, 1)
    assert used() == 4 * BLOCK
    cu.cuMulticastAddDevice(one, 0)
    refuses(INVALID_VALUE, "cuMulticastBindMem", one, 0, first, 0, BLOCK, 0)
    refuses(INVALID_VALUE, "cuMulticastAddDevice", one, 0)
    cu.cuMulticastAddDevice(one, 1)
    cu.cuMulticastBindMem(one, 0, first, 0, 2 * BLOCK, 0)
    cu.cuMulticastBindMem(one, 0, second, 0, 4 * BLOCK, 0)
    refuses(INVALID_VALUE, "cuMulticastBindMem", one, BLOCK, first, 2 * BLOCK, BLOCK, 0)
    refuses(INVALID_VALUE, "cuMulticastBindMem", one, 7 * BLOCK, first, 0, 2 * BLOCK, 0)
    address = pointer("cuMemAddressReserve", 4 * BLOCK, 0, 0, 0)
    cu.cuMemMap(address, 4 * BLOCK, 0, first, 0)
    cu.cuMulticastBindAddr(one, 4 * BLOCK, address + BLOCK, BLOCK, 0)
    cu.cuMemUnmap(address, 4 * BLOCK)
    cu.cuMemRelease(first)
    assert used() == 4 * BLOCK, "bound memory lives on"
    cu.cuMulticastUnbind(one, 0, 0, 4 * BLOCK)
    assert used() == 4 * BLOCK
    cu.cuMulticastUnbind(one, 0, 4 * BLOCK, BLOCK)
    assert used() == 0
    cu.cuMemRelease(second)
    cu.cuMemRelease(one)
    refuses(INVALID_VALUE, "cuMulticastAddDevice", one, 1)


def test_multicast(sim: Any) -> None:
    sim.settings = "gpus=2,memory=4Gi"
    sim.run(multicast)


def imported(fd: int, size: int) -> int:
    return pointer("cuImportExternalMemory", byref(Handle(1, fd, 0, size, 0)))


def external() -> None:
    start()
    fd = os.memfd_create("other")
    os.truncate(fd, 4 * MI)
    os.pwrite(fd, b"theirs", MI + 10)
    refuses(NOT_SUPPORTED, "cuImportExternalMemory", byref(c_uint64()), byref(Handle(9, fd, 0, MI, 0)))
    refuses(INVALID_HANDLE, "cuImportExternalMemory", byref(c_uint64()), byref(Handle(1, fd, 0, 5 * MI, 0)))
    view = os.dup(fd)
    memory = imported(fd, 4 * MI)
    refuses(INVALID_VALUE, "cuExternalMemoryGetMappedBuffer", byref(c_uint64()), memory, byref(Buffer(MI, 4 * MI)))
    mapped = pointer("cuExternalMemoryGetMappedBuffer", memory, byref(Buffer(MI, MI)))
    assert read(mapped + 10, 6) == b"theirs" and used() == 0
    write(mapped, b"ours")
    assert os.pread(view, 4, MI) == b"ours"
    cu.cuDestroyExternalMemory(memory)
    refuses(INVALID_HANDLE, "cuDestroyExternalMemory", memory)
    assert not Path(f"/proc/self/fd/{fd}").exists(), "the descriptor was the driver's"
    cu.cuMemFree_v2(mapped)
    refuses(INVALID_VALUE, "cuMemFree_v2", mapped)
    refuses(INVALID_VALUE, "cuMemsetD8_v2", mapped, 0, 1)
    handle, exported = block(BLOCK, exported=1), c_int()
    cu.cuMemExportToShareableHandle(byref(exported), handle, 1, 0)
    memory = imported(exported.value, BLOCK)
    mapped = pointer("cuExternalMemoryGetMappedBuffer", memory, byref(Buffer(0, BLOCK)))
    cu.cuMemsetD8_v2(mapped, 9, BLOCK)
    address = pointer("cuMemAddressReserve", BLOCK, 0, 0, 0)
    cu.cuMemMap(address, BLOCK, 0, handle, 0)
    access = (c_int * 3)(1, 0, 3)
    cu.cuMemSetAccess(address, BLOCK, byref(access), 1)
    assert read(address + 7, 2) == b"\x09\x09" and used() == BLOCK


def test_external_memory(sim: Any) -> None:
    sim.run(external)
