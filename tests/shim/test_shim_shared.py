"""Multicast bindings keep memory charged; memory of other APIs is never charged and never credited."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("newer", [False, True], ids=["v1", "v2"])
def test_a_binding_is_one_more_reference(host, newer):
    said = host.python(
        f"""
        newer, suffix = (0,) * {newer}, "_v2" * {newer}
        """
        """
        class Object(ctypes.Structure):
            _fields_ = (("devices", c_uint), ("size", c_size_t), ("handles", c_ulonglong), ("flags", c_ulonglong))
        def bind(offset, memory, at, size):
            part = c_size_t(offset), memory, c_size_t(at), c_size_t(size), c_ulonglong(0)
            return cuda.function("cuMulticastBindMem" + suffix)(one, *newer, *part)
        cuda, nvml = Cuda().start(), Nvml()
        context, one, seen = nvml.of_this_process(), c_ulonglong(), []
        def both():
            charged, physical = cuda.used(), nvml.of_this_process() - context
            assert charged == physical, (charged, physical, seen)
            seen.append(charged // MiB)
        size = 64 * MiB
        check(cuda.cuMulticastCreate(byref(one), byref(Object(1, 4 * size, 0, 0))))
        check(cuda.cuMulticastAddDevice(one, 0)); both()
        first, second, third = (cuda.create_block(size)[1] for _ in range(3)); both()
        check(bind(0, first, 0, size)); check(bind(size, second, 0, size)); both()
        refused = bind(0, third, 0, size)
        for handle in (first, second, third): check(cuda.cuMemRelease(handle))
        both()                                            # two are bound
        check(cuda.cuMulticastUnbind(one, 0, c_size_t(0), c_size_t(size))); both()
        base, fourth = cuda.reserve(size).value, cuda.create_block(size)[1]
        check(cuda.map(base, size, fourth))
        part = c_ulonglong(base + 2 * MiB), c_size_t(2 * MiB)
        check(cuda.function("cuMulticastBindAddr" + suffix)(one, *newer, c_size_t(0), *part, c_ulonglong(0)))
        check(cuda.cuMemRelease(fourth)); check(cuda.unmap(base, size)); both()
        check(cuda.cuMemRelease(one)); both()             # the object's end unbinds
        say([refused, seen])
        """,
        GPUSHARE_LIMIT="1Gi",
    ).said
    assert said == [1, [0, 192, 192, 128, 64, 128, 0]]


def test_memory_of_other_apis_costs_nothing(host):
    said = host.python(
        """
        class Handle(ctypes.Structure):
            _fields_ = (("type", c_int), ("fd", c_ulonglong), ("name", c_ulonglong), ("size", c_ulonglong),
                        ("flags", c_uint), ("reserved", c_uint * 16))
        class Buffer(ctypes.Structure):
            _fields_ = (("offset", c_ulonglong), ("size", c_ulonglong), ("flags", c_uint), ("reserved", c_uint * 16))
        cuda, seen = Cuda().start(), []
        fd = os.memfd_create("other"); os.truncate(fd, 4 * GiB)
        keep, memory, mapped = cuda.must_alloc(BLOCK), c_void_p(), c_ulonglong()
        check(cuda.cuImportExternalMemory(byref(memory), byref(Handle(1, fd, 0, 4 * GiB, 0))))
        check(cuda.cuExternalMemoryGetMappedBuffer(byref(mapped), memory, byref(Buffer(0, 4 * GiB))))
        seen.append(cuda.used())
        check(cuda.free(mapped)); seen.append(cuda.used())
        check(cuda.cuDestroyExternalMemory(memory)); seen.append(cuda.used())
        handle, fd = cuda.create_block(64 * MiB)[1], c_int()
        check(cuda.cuMemExportToShareableHandle(byref(fd), handle, 1, c_ulonglong(0)))
        check(cuda.cuImportExternalMemory(byref(memory), byref(Handle(1, fd.value, 0, 64 * MiB, 0))))
        check(cuda.cuExternalMemoryGetMappedBuffer(byref(mapped), memory, byref(Buffer(0, 64 * MiB))))
        seen.append(cuda.used())
        check(cuda.free(mapped)); check(cuda.cuDestroyExternalMemory(memory)); seen.append(cuda.used())
        check(cuda.cuMemRelease(handle)); check(cuda.free(keep)); seen.append(cuda.used())
        say(seen)
        """,
        GPUSHARE_LIMIT="1Gi",
    ).said
    mib = 2**20
    assert said == [2 * mib, 2 * mib, 2 * mib, 66 * mib, 66 * mib, 0]
