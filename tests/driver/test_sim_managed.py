"""Advice about managed memory: what was said is what is told, part by part."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p
from typing import Any

from simcuda import INVALID_DEVICE, INVALID_VALUE, MI, Location, alloc, cu, pointer, refuses, start

READ_MOSTLY, PREFERRED, ACCESSED_BY, PREFETCHED, PREFERRED_TYPE, PREFERRED_ID, PREFETCHED_TYPE, PREFETCHED_ID = range(
    1, 9
)
SET_READ_MOSTLY, UNSET_READ_MOSTLY, SET_PREFERRED, UNSET_PREFERRED, SET_ACCESSED, UNSET_ACCESSED = range(1, 7)
DEVICE, HOST, NUMA = 1, 2, 3
CPU, NONE = -1, -2


def ask(attribute: int, address: int, size: int, room: int = 1) -> list[int]:
    values = (c_int * room)(*[99] * room)
    cu.cuMemRangeGetAttribute(values, 4 * room, attribute, address, size)
    return list(values)


def one(attribute: int, address: int, size: int) -> int:
    return ask(attribute, address, size)[0]


def keeps_advice() -> None:
    start()
    address = pointer("cuMemAllocManaged", 8 * MI, 1)
    assert one(READ_MOSTLY, address, 8 * MI) == 0
    assert one(PREFERRED, address, 8 * MI) == one(PREFETCHED, address, 8 * MI) == NONE
    assert one(PREFERRED_TYPE, address, 8 * MI) == one(PREFETCHED_TYPE, address, 8 * MI) == 0
    assert ask(ACCESSED_BY, address, 8 * MI, 3) == [NONE] * 3
    cu.cuMemAdvise(address + MI, 2 * MI, SET_READ_MOSTLY, 0)
    assert one(READ_MOSTLY, address + MI, 2 * MI) == 1
    assert one(READ_MOSTLY, address, 2 * MI) == one(READ_MOSTLY, address + 2 * MI, 2 * MI) == 0, "of all pages"
    cu.cuMemAdvise(address, 8 * MI, SET_READ_MOSTLY, 0)
    cu.cuMemAdvise(address, MI, UNSET_READ_MOSTLY, 0)
    assert [one(READ_MOSTLY, address + at * MI, MI) for at in range(8)] == [0] + [1] * 7
    cu.cuMemAdvise(address, 4 * MI, SET_PREFERRED, 1)
    cu.cuMemAdvise(address + 4 * MI, 4 * MI, SET_PREFERRED, CPU)
    assert [one(PREFERRED, address + at * MI, 2 * MI) for at in (0, 2, 3, 4, 6)] == [1, 1, NONE, CPU, CPU]
    cu.cuMemAdvise_v2(address, 8 * MI, SET_PREFERRED, Location(NUMA, 5))
    assert (one(PREFERRED_TYPE, address, 8 * MI), one(PREFERRED_ID, address, 8 * MI)) == (NUMA, 5)
    cu.cuMemAdvise(address, 8 * MI, UNSET_PREFERRED, 0)
    assert one(PREFERRED, address, 8 * MI) == NONE
    for device in (1, CPU, 0):
        cu.cuMemAdvise(address, 8 * MI, SET_ACCESSED, device)
    assert ask(ACCESSED_BY, address, 8 * MI, 4) == [CPU, 0, 1, NONE]
    cu.cuMemAdvise(address + 7 * MI, MI, UNSET_ACCESSED, 0)
    assert ask(ACCESSED_BY, address, 8 * MI, 4) == [CPU, 1, NONE, NONE]
    cu.cuMemPrefetchAsync(address, 2 * MI, 1, None)
    cu.cuMemPrefetchAsync_v2(address + 2 * MI, 6 * MI, Location(HOST, 0), 0, None)
    assert [one(PREFETCHED, address + at * MI, MI) for at in (0, 1, 2, 7)] == [1, 1, CPU, CPU]
    assert one(PREFETCHED, address, 8 * MI) == NONE
    cu.cuMemFree_v2(address)
    refuses(INVALID_VALUE, "cuMemRangeGetAttribute", (c_int * 1)(), 4, READ_MOSTLY, address, MI)
    again = pointer("cuMemAllocManaged", 8 * MI, 1)
    assert one(READ_MOSTLY, again, 8 * MI) == 0, "forgotten with the memory"


def test_advice_is_kept_for_each_part(sim: Any) -> None:
    sim.settings = "gpus=2,memory=1Gi"
    sim.run(keeps_advice)


def several_attributes() -> None:
    start()
    address = pointer("cuMemAllocManaged", 2 * MI, 1)
    cu.cuMemAdvise(address, 2 * MI, SET_READ_MOSTLY, 0)
    cu.cuMemAdvise(address, 2 * MI, SET_ACCESSED, 0)
    first, second = (c_int * 1)(), (c_int * 2)()
    places = (c_void_p * 2)(ctypes.addressof(first), ctypes.addressof(second))
    cu.cuMemRangeGetAttributes(places, (c_size_t * 2)(4, 8), (c_int * 2)(READ_MOSTLY, ACCESSED_BY), 2, address, 2 * MI)
    assert (list(first), list(second)) == ([1], [0, NONE])
    for size, attribute in ((8, READ_MOSTLY), (0, READ_MOSTLY), (6, ACCESSED_BY), (4, 9), (4, 0)):
        refuses(INVALID_VALUE, "cuMemRangeGetAttribute", (c_int * 2)(), size, attribute, address, MI)
    refuses(INVALID_VALUE, "cuMemRangeGetAttribute", (c_int * 1)(), 4, READ_MOSTLY, address, 3 * MI)
    refuses(INVALID_VALUE, "cuMemRangeGetAttribute", (c_int * 1)(), 4, READ_MOSTLY, alloc(MI), MI)
    refuses(INVALID_VALUE, "cuMemAdvise", address, MI, 7, 0)
    refuses(INVALID_DEVICE, "cuMemAdvise", address, MI, SET_PREFERRED, 5)
    refuses(INVALID_VALUE, "cuMemAdvise", alloc(MI), MI, SET_READ_MOSTLY, 0)


def test_several_attributes_and_wrong_ones(sim: Any) -> None:
    sim.run(several_attributes)


def batches() -> None:
    start()
    a, b, c = (pointer("cuMemAllocManaged", 2 * MI, 1) for _ in range(3))
    pointers, sizes = (c_uint64 * 3)(a, b, c), (c_size_t * 3)(2 * MI, MI, 2 * MI)
    places, starts = (Location * 2)(Location(HOST, 0), Location(DEVICE, 0)), (c_size_t * 2)(0, 2)
    cu.cuMemPrefetchBatchAsync(pointers, sizes, 3, places, starts, 2, 0, None)
    assert [one(PREFETCHED, at, MI) for at in (a, b, c)] == [CPU, CPU, 0]
    assert one(PREFETCHED, b + MI, MI) == NONE
    cu.cuMemDiscardBatchAsync(pointers, sizes, 3, 0, None)
    cu.cuMemDiscardAndPrefetchBatchAsync(pointers, sizes, 3, byref(Location(DEVICE, 0)), (c_size_t * 1)(0), 1, 0, None)
    assert [one(PREFETCHED, at, MI) for at in (a, b, c)] == [0, 0, 0]
    refuses(INVALID_VALUE, "cuMemPrefetchBatchAsync", pointers, sizes, 3, places, (c_size_t * 2)(1, 2), 2, 0, None)
    refuses(INVALID_VALUE, "cuMemPrefetchBatchAsync", pointers, sizes, 3, places, (c_size_t * 2)(0, 3), 2, 0, None)
    refuses(INVALID_VALUE, "cuMemDiscardBatchAsync", (c_uint64 * 1)(alloc(MI)), sizes, 1, 0, None)
    refuses(INVALID_VALUE, "cuMemDiscardBatchAsync", pointers, sizes, 0, 0, None)


def test_batches(sim: Any) -> None:
    sim.run(batches)
