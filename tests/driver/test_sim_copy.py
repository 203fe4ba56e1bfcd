"""Copies and fills, with real bytes, and arrays as their ends."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_uint64
from typing import Any

from simcuda import (
    ARRAY,
    DEVICE,
    HOST,
    INVALID_HANDLE,
    INVALID_VALUE,
    KI,
    MI,
    NOT_SUPPORTED,
    Array3D,
    Memcpy2D,
    Memcpy3D,
    Requirements,
    alloc,
    cu,
    pointer,
    read,
    refuses,
    start,
    used,
    write,
)

FLOAT = 0x20


def straight() -> None:
    start()
    data = bytes(range(256)) * 40
    one, two = alloc(len(data)), alloc(4 * MI)
    stream = pointer("cuStreamCreate", 0)
    write(one, data)
    cu.cuMemcpyDtoD_v2(two, one, len(data))
    assert read(two, len(data)) == data
    for name, extra in (
        ("cuMemcpy", []),
        ("cuMemcpy_ptds", []),
        ("cuMemcpyAsync", [stream]),
        ("cuMemcpyAsync_ptsz", [None]),
    ):
        cu.cuMemsetD8_v2(two, 0, len(data))
        getattr(cu, name)(two, one, len(data), *extra)
        assert read(two, len(data)) == data, name
    back = ctypes.create_string_buffer(len(data))
    cu.cuMemcpy(ctypes.addressof(back), one, len(data))
    assert back.raw == data, "the generic copy knows host memory too"
    ctypes.memset(back, 0, len(data))
    cu.cuMemcpyDtoHAsync_v2_ptsz(back, one, len(data), stream)
    assert back.raw == data
    cu.cuMemcpyHtoDAsync_v2(two + 1000, data, len(data), stream)
    assert read(two + 1000, len(data)) == data
    cu.cuMemcpyHtoD_v2(one, b"", 0)
    for name, arguments in (
        ("cuMemcpyHtoD_v2", (one + 1, data, 16 * KI)),
        ("cuMemcpyHtoD_v2", (0x1000, data, 8)),
        ("cuMemcpyDtoH_v2", (back, two + 4 * MI - 4, 8)),
        ("cuMemcpyDtoD_v2", (two, 0x1000, 8)),
        ("cuMemcpyDtoD_v2", (two, one, (1 << 64) - 1)),
    ):
        refuses(INVALID_VALUE, name, *arguments)
    refuses(INVALID_HANDLE, "cuMemcpyHtoDAsync_v2", one, data, 8, 0x123450)


def test_straight(sim: Any) -> None:
    sim.run(straight)


def fills() -> None:
    start()
    base = alloc(1000)
    cu.cuMemsetD8_v2(base, 0x5A, 1000)
    cu.cuMemsetD16_v2(base + 100, 0x1234, 10)
    cu.cuMemsetD32Async(base + 200, 0xDEADBEEF, 3, None)
    assert read(base, 1) == b"\x5a"
    assert read(base + 100, 22) == b"\x34\x12" * 10 + b"\x5a" * 2
    assert read(base + 200, 13) == b"\xef\xbe\xad\xde" * 3 + b"\x5a"
    cu.cuMemsetD2D8_v2_ptds(base, 100, 1, 10, 10)
    assert read(base + 900, 11) == b"\x01" * 10 + b"\x5a"
    cu.cuMemsetD2D32Async_ptsz(base, 100, 7, 2, 2, None)
    assert read(base + 100, 8) == b"\x07\0\0\0" * 2
    refuses(INVALID_VALUE, "cuMemsetD8_v2", base, 0, 1001)
    refuses(INVALID_VALUE, "cuMemsetD32_v2", base + 2, 0, 1)
    refuses(INVALID_VALUE, "cuMemsetD2D8_v2", base, 10, 0, 20, 2)
    refuses(INVALID_VALUE, "cuMemsetD32_v2", base, 0, 1 << 62)


def test_fills(sim: Any) -> None:
    sim.run(fills)


def boxes() -> None:
    start()
    width, height, depth = 12, 5, 3
    device = alloc(64 * 8 * depth)
    data = bytes(range(width * height * depth))
    source, target = ctypes.create_string_buffer(data, len(data)), ctypes.create_string_buffer(len(data))
    up = Memcpy3D(
        srcType=HOST, srcHost=ctypes.addressof(source), srcPitch=width, srcHeight=height,
        dstType=DEVICE, dstDevice=device, dstX=4, dstY=1, dstPitch=64, dstHeight=8,
        width=width, height=height, depth=depth,
    )  # fmt: skip
    cu.cuMemcpy3D_v2(byref(up))
    assert read(device + 64 + 4, width) == data[:width]
    assert read(device + 64 * 8 + 64 * 2 + 4, width) == data[width * height + width :][:width]
    down = Memcpy3D(
        srcType=DEVICE, srcDevice=device, srcX=4, srcY=1, srcPitch=64, srcHeight=8,
        dstType=HOST, dstHost=ctypes.addressof(target), dstPitch=width, dstHeight=height,
        width=width, height=height, depth=depth,
    )  # fmt: skip
    cu.cuMemcpy3DAsync_v2_ptsz(byref(down), None)
    assert target.raw == data
    flat = Memcpy2D(
        srcType=DEVICE, srcDevice=device, srcX=4, srcY=1, srcPitch=64,
        dstType=HOST, dstHost=ctypes.addressof(target), dstPitch=width, width=width, height=height,
    )  # fmt: skip
    ctypes.memset(target, 0, len(data))
    cu.cuMemcpy2D_v2(byref(flat))
    assert target.raw[: width * height] == data[: width * height]
    flat.srcPitch = 8
    refuses(INVALID_VALUE, "cuMemcpy2D_v2", byref(flat))
    down.depth = 100
    refuses(INVALID_VALUE, "cuMemcpy3D_v2", byref(down))


def test_boxes(sim: Any) -> None:
    sim.run(boxes)


def array(**fields: int) -> Array3D:
    return Array3D(**{"format": FLOAT, "channels": 1, **fields})


def arrays() -> None:
    start()
    before = used()
    one = pointer("cuArray3DCreate_v2", byref(array(width=256, height=256, depth=16, channels=2)))
    assert used() - before == 256 * 256 * 16 * 8, "exactly its bytes, which are whole blocks here"
    got = Array3D()
    cu.cuArray3DGetDescriptor_v2(byref(got), one)
    assert (got.width, got.height, got.depth, got.channels) == (256, 256, 16, 2)
    data = bytes(range(256)) * 4
    cu.cuMemcpyHtoA_v2(one, 64, data, len(data))
    back = ctypes.create_string_buffer(len(data))
    cu.cuMemcpyAtoH_v2(back, one, 64, len(data))
    assert back.raw == data
    out = Memcpy2D(
        srcType=ARRAY, srcArray=one, srcX=64, dstType=HOST, dstHost=ctypes.addressof(back), dstPitch=512,
        width=512, height=1,
    )  # fmt: skip
    ctypes.memset(back, 0, len(data))
    cu.cuMemcpy2D_v2(byref(out))
    assert back.raw[:512] == data[:512]
    out.srcX = 256 * 8 - 100
    refuses(INVALID_VALUE, "cuMemcpy2D_v2", byref(out))
    refuses(INVALID_VALUE, "cuMemcpyAtoH_v2", back, one, 256 * 256 * 16 * 8 - 8, 16)
    refuses(INVALID_VALUE, "cuArrayGetMemoryRequirements", byref(Requirements()), one, 0)
    cu.cuArrayDestroy(one)
    refuses(INVALID_HANDLE, "cuArrayDestroy", one)
    assert used() == before
    refuses(INVALID_VALUE, "cuArray3DCreate_v2", byref(c_uint64()), byref(array(width=0)))
    refuses(INVALID_VALUE, "cuArray3DCreate_v2", byref(c_uint64()), byref(array(width=4, channels=3)))
    refuses(INVALID_VALUE, "cuArray3DCreate_v2", byref(c_uint64()), byref(array(width=4, format=0x91)))
    refuses(NOT_SUPPORTED, "cuArrayGetSparseProperties", byref(Requirements()), one)


def test_arrays(sim: Any) -> None:
    sim.run(arrays)


def arrays_without_memory() -> None:
    start()
    for flag in (0x40, 0x80):
        one = pointer("cuArray3DCreate_v2", byref(array(width=1024, height=1024, flags=flag)))
        assert used() == 0
        refuses(INVALID_VALUE, "cuMemcpyHtoA_v2", one, 0, b"12345678", 8)
        needs = Requirements()
        code = cu.code("cuArrayGetMemoryRequirements", byref(needs), one, 0)
        assert (code, needs.size, needs.alignment) == ((0, 4 * MI, 65536) if flag == 0x80 else (INVALID_VALUE, 0, 0))
        cu.cuArrayDestroy(one)


def test_sparse_and_deferred_arrays_cost_nothing(sim: Any) -> None:
    sim.run(arrays_without_memory)


def mipmaps() -> None:
    start()
    mip = pointer("cuMipmappedArrayCreate", byref(array(width=1024, height=1024)), 3)
    assert used() == 6 * MI, "4 MiB + 1 MiB + 256 KiB in blocks"
    level = pointer("cuMipmappedArrayGetLevel", mip, 1)
    got = Array3D()
    cu.cuArray3DGetDescriptor_v2(byref(got), level)
    assert (got.width, got.height) == (512, 512)
    cu.cuMemcpyHtoA_v2(level, 0, b"level one", 9)
    back = ctypes.create_string_buffer(9)
    cu.cuMemcpyAtoH_v2(back, level, 0, 9)
    assert back.raw == b"level one"
    refuses(INVALID_HANDLE, "cuArrayDestroy", level)
    refuses(INVALID_VALUE, "cuMipmappedArrayGetLevel", byref(c_uint64()), mip, 3)
    cu.cuMipmappedArrayDestroy(mip)
    assert used() == 0
    huge = pointer("cuMipmappedArrayCreate", byref(array(width=4, height=2)), 30)
    refuses(INVALID_VALUE, "cuMipmappedArrayGetLevel", byref(c_uint64()), huge, 3)
    cu.cuMipmappedArrayDestroy(huge)


def test_mipmaps(sim: Any) -> None:
    sim.run(mipmaps)


def context_takes_arrays() -> None:
    cu.cuInit(0)
    first = pointer("cuCtxCreate_v2", 0, 0)
    pointer("cuCtxCreate_v2", 0, 0)
    contexts = used()
    one = pointer("cuArray3DCreate_v2", byref(array(width=1024, height=1024)))
    mip = pointer("cuMipmappedArrayCreate", byref(array(width=1024, height=1024)), 2)
    assert used() == contexts + 4 * MI + 6 * MI
    second = pointer("cuCtxGetCurrent")
    cu.cuCtxDestroy_v2(second)
    assert pointer("cuCtxGetCurrent") == first
    assert used() == 0
    cu.cuArrayDestroy(one)
    cu.cuMipmappedArrayDestroy(mip)
    assert used() == 0


def test_a_context_takes_its_arrays_along(sim: Any) -> None:
    sim.run(context_takes_arrays)
