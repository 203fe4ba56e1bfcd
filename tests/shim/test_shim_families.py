"""Each family of functions: what is charged, what is given back, what the program is told.

In standalone mode the account can be read by the program itself (limit less free), and NVML, whose list of processes
is not hooked, says what the driver really holds.
"""

from __future__ import annotations

import pytest

import switches

LIMIT = {"GPUSHARE_LIMIT": "4Gi"}


def test_linear_memory_is_charged_and_given_back(host):
    said = host.python(
        """
        cuda = Cuda().start()
        seen = [cuda.used()]
        a, b = cuda.must_alloc(GiB), cuda.must_alloc(300 * MiB + 1)
        seen.append(cuda.used())
        check(cuda.free(a))
        seen.append(cuda.used())
        check(cuda.free(b))
        seen.append(cuda.used())
        say(seen)
        """,
        **LIMIT,
    ).said
    gib, odd = 2**30, 302 * 2**20  # in whole blocks
    assert said == [0, gib + odd, odd, 0]


def test_over_the_limit_is_out_of_memory_and_one_line(host):
    child = host.python(
        """
        cuda = Cuda().start()
        a = cuda.must_alloc(3 * GiB)
        say([cuda.alloc(GiB + 1)[0], cuda.alloc(2**60)[0], cuda.alloc(GiB)[0], cuda.used()])
        """,
        **LIMIT,
    )
    assert child.said == [2, 2, 0, 4 * 2**30]
    lines = child.err.splitlines()
    assert "gpushare: cannot allocate 1.0 GiB on CUDA device 0: over this process's limit" in lines
    assert "  limit   4.0 GiB   from GPUSHARE_LIMIT=4Gi" in lines
    assert "  in use  3.0 GiB" in lines
    assert "hint: raise the limit, or free memory first" in lines
    assert sum("cannot allocate" in line for line in lines) == 1, "at most one a second"


def test_failures_of_the_driver_leave_the_account_alone(host):
    said = host.python(
        """
        cuda = Cuda().start()
        wrong = c_ulonglong(0x1234)
        codes = [cuda.alloc(0)[0], cuda.free(wrong), cuda.free(c_ulonglong(0))]
        codes.append(cuda.cuMemAlloc_v2(None, c_size_t(4096)))
        pointer = cuda.must_alloc(MiB)
        check(cuda.free(pointer))
        codes.append(cuda.free(pointer))
        say([codes, cuda.used()])
        """,
        **LIMIT,
    ).said
    codes, used = said
    assert used == 0
    assert codes[0] == 1 and codes[1] != 0 and codes[2] == 0 and codes[3] != 0 and codes[4] != 0


def test_a_driver_that_fails_after_the_reservation(host):
    said = host.python(
        """
        cuda = Cuda().start()
        say([cuda.alloc(BLOCK)[0], cuda.alloc(BLOCK)[0], cuda.used()])
        """,
        **LIMIT,
        GPUSHARE_SIM=host.environment()["GPUSHARE_SIM"] + ",fail=cuMemAlloc_v2:1:2",
    ).said
    assert said == [2, 0, 2**21]


def test_a_free_that_fails_keeps_the_charge(host):
    said = host.python(
        """
        cuda = Cuda().start()
        pointer = cuda.must_alloc(BLOCK)
        seen = [cuda.free(pointer), cuda.used(), cuda.free(pointer), cuda.used()]
        say(seen)
        """,
        **LIMIT,
        GPUSHARE_SIM=host.environment()["GPUSHARE_SIM"] + ",fail=cuMemFree_v2:1:700",
    ).said
    assert said == [700, 2**21, 0, 0]


def test_without_a_context_the_driver_answers(host):
    said = host.python(
        """
        cuda = Cuda()
        codes = [cuda.alloc(4096)[0]]
        cuda.cuInit(0)
        codes.append(cuda.alloc(4096)[0])
        say(codes)
        """,
        **LIMIT,
    ).said
    assert said == [3, 201]


def test_pitch_is_charged_by_rows(host):
    said = host.python(
        """
        cuda = Cuda().start()
        pointer, pitch = c_ulonglong(), c_size_t()
        check(cuda.cuMemAllocPitch_v2(byref(pointer), byref(pitch), c_size_t(1000), c_size_t(333), 4))
        seen = [pitch.value * 333, cuda.used()]
        check(cuda.free(pointer))
        say([*seen, cuda.used()])
        """,
        **LIMIT,
    ).said
    assert said[0] == said[1] and said[2] == 0


def test_managed_memory_is_charged_in_full(host):
    said = host.python(
        """
        cuda = Cuda().start()
        pointer = c_ulonglong()
        check(cuda.cuMemAllocManaged(byref(pointer), c_size_t(GiB), 1))
        seen = [cuda.used(), cuda.cuMemAllocManaged(byref(c_ulonglong()), c_size_t(4 * GiB), 1)]
        check(cuda.free(pointer))
        say([*seen, cuda.used()])
        """,
        **LIMIT,
    ).said
    assert said == [2**30, 2, 0]


def test_pools_are_charged_by_what_they_reserve(host):
    said = host.python(
        """
        cuda, nvml = Cuda().start(), Nvml()
        context = nvml.of_this_process()
        stream, seen = cuda.stream(), []
        def both():
            seen.append([cuda.used(), nvml.of_this_process() - context])
        a, b = c_ulonglong(), c_ulonglong()
        check(cuda.cuMemAllocAsync(byref(a), c_size_t(5 * MiB), stream)); both()
        check(cuda.cuMemAllocAsync(byref(b), c_size_t(100 * MiB), stream)); both()
        check(cuda.cuMemFreeAsync(a, stream)); check(cuda.cuStreamSynchronize(stream)); both()
        check(cuda.free(b)); check(cuda.cuStreamSynchronize(stream)); both()
        pool = c_void_p()
        check(cuda.cuDeviceGetDefaultMemPool(byref(pool), 0))
        check(cuda.cuMemPoolTrimTo(pool, c_size_t(0))); both()
        say(seen)
        """,
        **LIMIT,
    ).said
    assert all(charged == physical for charged, physical in said), said
    assert said[0][0] >= 5 * 2**20 and said[1][0] >= 105 * 2**20 and said[-1][0] == 0


@pytest.mark.parametrize("suffix", ["", "_ptsz"])
@pytest.mark.parametrize("free", ["cuMemFree_v2", "cuMemFreeAsync", "cuMemFreeAsync_ptsz"])
def test_pools_of_ones_own_whoever_frees(host, suffix, free):
    said = host.python(
        f"""
        cuda, nvml = Cuda().start(), Nvml()
        context, stream = nvml.of_this_process(), cuda.stream()
        pool, pointers, seen = cuda.pool(), [], []
        for size in (GiB, 64 * MiB, 1):
            pointers.append(c_ulonglong())
            check(cuda.cuMemAllocFromPoolAsync{suffix}(byref(pointers[-1]), c_size_t(size), pool, stream))
        seen.append([cuda.used(), nvml.of_this_process() - context])
        huge = cuda.cuMemAllocFromPoolAsync{suffix}(byref(c_ulonglong()), c_size_t(4 * GiB), pool, stream)
        for pointer in pointers:
            check(cuda.{free}(pointer{"" if free == "cuMemFree_v2" else ", stream"}))
        check(cuda.cuStreamSynchronize(stream))
        check(cuda.cuMemPoolDestroy(pool))
        seen.append([cuda.used(), nvml.of_this_process() - context])
        say([huge, seen])
        """,
        **LIMIT,
    ).said
    huge, seen = said
    assert huge == 2
    assert seen[0][0] == seen[0][1] >= 2**30 + 64 * 2**20
    assert seen[1] == [0, 0]


@pytest.mark.parametrize("place", ["device", "host", "numa", "none"])
@pytest.mark.parametrize("standing", [False, True], ids=["created", "default"])
def test_pools_of_managed_memory_are_charged_in_full_wherever_they_prefer_to_be(host, place, standing):
    said = host.python(
        f"""
        cuda, nvml = Cuda().start(), Nvml()
        context, stream = nvml.of_this_process(), None
        location = (c_int * 2)(dict(none=0, device=1, host=2, numa=3)["{place}"], 0)
        properties, pool = (c_uint * 22)(2, 0, *location), c_void_p()  # CUmemPoolProps
        if {standing}:
            check(cuda.cuMemGetDefaultMemPool(byref(pool), location, 2))
        else:
            check(cuda.cuMemPoolCreate(byref(pool), properties))
        pointer, seen = c_ulonglong(), []
        check(cuda.cuMemAllocFromPoolAsync(byref(pointer), c_size_t(GiB), pool, stream))
        seen.append([cuda.used(), nvml.of_this_process() - context])
        huge = cuda.cuMemAllocFromPoolAsync(byref(c_ulonglong()), c_size_t(4 * GiB), pool, stream)
        check(cuda.free(pointer))
        check(cuda.cuCtxSynchronize())
        seen.append([cuda.used(), nvml.of_this_process() - context])
        say([huge, seen])
        """,
        **LIMIT,
    ).said
    kept = 2**30 if switches.chosen("pool_drop") == "trim" else 0
    assert said == [2, [[2**30, 2**30], [kept, kept]]]


def test_pools_hand_out_nothing_for_nothing(host):
    """Thousands of allocations of no bytes, all at one address, leave no trace in the account."""
    said = host.python(
        """
        cuda, pointer, real = Cuda().start(), c_ulonglong(), c_ulonglong()
        check(cuda.cuMemAllocAsync(byref(real), c_size_t(64 * MiB), None))
        before = cuda.used()
        codes = {cuda.cuMemAllocAsync(byref(pointer), c_size_t(0), None) for _ in range(5000)}
        check(cuda.cuMemFreeAsync(real, None))
        check(cuda.cuCtxSynchronize())
        say([sorted(codes), before, cuda.used()])
        """,
        **LIMIT,
    ).said
    kept = 64 * 2**20 if switches.chosen("pool_drop") == "trim" else 0
    assert said == [[0], 64 * 2**20, kept]


@pytest.mark.parametrize("place", [2, 3], ids=["host", "numa"])
@pytest.mark.parametrize("standing", [False, True], ids=["created", "default"])
def test_pools_of_host_memory_cost_nothing(host, place, standing):
    said = host.python(
        f"""
        cuda, pointer, pool = Cuda().start(), c_ulonglong(), c_void_p()
        if {standing}:
            check(cuda.cuMemGetMemPool(byref(pool), (c_int * 2)({place}, 0), 1))
        else:
            check(cuda.cuMemPoolCreate(byref(pool), (c_uint * 22)(1, 0, {place}, 0)))
        check(cuda.cuMemAllocFromPoolAsync(byref(pointer), c_size_t(6 * GiB), pool, None))
        used = cuda.used()
        check(cuda.cuMemFreeAsync(pointer, None))
        say([used, cuda.used()])
        """,
        **LIMIT,
    ).said
    assert said == [0, 0], "6 GiB under a limit of 4"


def test_a_pool_destroyed_with_live_memory_is_charged_until_it_is_freed(host):
    said = host.python(
        """
        cuda, stream = Cuda().start(), None
        pool, pointer = cuda.pool(), c_ulonglong()
        check(cuda.cuMemAllocFromPoolAsync(byref(pointer), c_size_t(GiB), pool, stream))
        check(cuda.cuMemPoolDestroy(pool))
        seen = [cuda.used()]
        check(cuda.cuMemFreeAsync(pointer, stream))
        check(cuda.cuCtxSynchronize())
        say([*seen, cuda.used()])
        """,
        **LIMIT,
    ).said
    assert said == [2**30, 0]


def test_memory_that_a_pool_keeps_does_not_refuse_a_program(host):
    """A pool with a high threshold keeps all it ever had: it is trimmed before anything else is refused."""
    said = host.python(
        """
        cuda, pool, stream = Cuda().start(), c_void_p(), None
        check(cuda.cuDeviceGetDefaultMemPool(byref(pool), 0))
        check(cuda.cuMemPoolSetAttribute(pool, ATTR_RELEASE_THRESHOLD, byref(c_uint64(2**60))))
        pointer = c_ulonglong()
        check(cuda.cuMemAllocAsync(byref(pointer), c_size_t(3 * GiB), stream))
        check(cuda.cuMemFreeAsync(pointer, stream))
        check(cuda.cuCtxSynchronize())
        kept = cuda.used()
        cuda.must_alloc(3 * GiB)
        say([kept, cuda.used(), cuda.alloc(2 * GiB)[0]])
        """,
        **LIMIT,
    ).said
    assert said == [3 * 2**30, 3 * 2**30, 2]


def test_vmm_handles_live_until_last_release_and_last_unmap(host):
    said = host.python(
        """
        cuda, nvml = Cuda().start(), Nvml()
        context, seen = nvml.of_this_process(), []
        def both():
            seen.append([cuda.used() // MiB, (nvml.of_this_process() - context) // MiB])
        size = 64 * MiB
        result, handle = cuda.create_block(size); check(result); both()
        base = cuda.reserve(4 * size).value
        check(cuda.map(base, size, handle))
        check(cuda.cuMemRelease(handle)); both()          # still mapped
        again = c_ulonglong()
        check(cuda.cuMemRetainAllocationHandle(byref(again), c_void_p(base + 5 * MiB))); both()
        check(cuda.unmap(base, size)); both()             # still retained
        check(cuda.cuMemRelease(again)); both()
        first, second = cuda.create_block(size)[1], cuda.create_block(2 * size)[1]
        check(cuda.map(base, size, first)); check(cuda.map(base + size, 2 * size, second)); both()
        check(cuda.cuMemRelease(first)); check(cuda.cuMemRelease(second)); both()
        check(cuda.unmap(base, 3 * size)); both()         # two mappings at once
        say([seen, cuda.create_block(5 * GiB)[0], cuda.create_block(size, kind=2)[0], cuda.used()])
        """,
        **LIMIT,
    ).said
    seen, too_large, on_host, used = said
    assert [charged for charged, _ in seen] == [64, 64, 64, 64, 0, 192, 192, 0]
    assert all(charged == physical for charged, physical in seen), seen
    assert too_large == 2
    assert used == 0, "host memory is free of charge"
    assert on_host in (0, 1, 101, 801)


def test_unmapping_many_blocks_at_once_costs_the_program_no_memory(host):
    """As allocators with growing segments do: what the library notes of a range's mappings goes after the call."""
    before, after, used = host.python(
        """
        cuda, size, count = Cuda().start(), 2 * MiB, 40
        blocks = []
        for _ in range(count):
            result, handle = cuda.create_block(size); check(result)
            blocks.append(handle)
        base = cuda.reserve(count * size).value
        def rounds(number):
            for _ in range(number):
                for at, handle in enumerate(blocks):
                    check(cuda.map(base + at * size, size, handle))
                check(cuda.unmap(base, count * size))
            kib = next(line for line in open("/proc/self/status") if line.startswith("VmSize"))
            return int(kib.split()[1])
        before, after = rounds(20), rounds(300)
        for handle in blocks:
            check(cuda.cuMemRelease(handle))
        say([before, after, cuda.used()])
        """,
        **LIMIT,
    ).said
    assert after - before < 300, "KiB, of which every round could leave 4"
    assert used == 0


def test_a_part_of_a_device_is_memory_of_it(host):
    """A locality domain (CUDA 13.5): its number and the device's share what is elsewhere the device's place."""
    said = host.python(
        """
        cuda, stream, pool, pointer = Cuda().start(1), None, c_void_p(), c_ulonglong()
        part = 2 << 8 | 1                                 # the second part of device 1
        result, handle = cuda.create_block(GiB, device=part, kind=6); check(result)
        seen = [cuda.used(), cuda.create_block(4 * GiB, device=part, kind=6)[0]]
        pool = cuda.pool(device=part, kind=6)
        check(cuda.cuMemAllocFromPoolAsync(byref(pointer), c_size_t(GiB), pool, stream))
        say([*seen, cuda.used()])
        """,
        **LIMIT,
        GPUSHARE_SIM=host.environment()["GPUSHARE_SIM"] + ",driver_version=13050",
    ).said
    assert said == [2**30, 2, 2 * 2**30]


def test_vmm_is_charged_to_the_device_that_it_is_on(host):
    said = host.python(
        """
        cuda = Cuda().start(1)
        cuda.primary(0)
        result, handle = cuda.create_block(GiB, device=1); check(result)
        on_zero = cuda.used()
        cuda.primary(1)
        say([on_zero, cuda.used()])
        """,
        **LIMIT,
    ).said
    assert said == [0, 2**30]


def test_arrays_are_charged_exactly(host):
    said = host.python(
        """
        cuda, nvml = Cuda().start(), Nvml()
        context, seen = nvml.of_this_process(), []
        def both():
            seen.append([cuda.used(), nvml.of_this_process() - context])
        flat, deep, mip = c_void_p(), c_void_p(), c_void_p()
        check(cuda.cuArrayCreate_v2(byref(flat), byref(ArrayShape(4096, 4096, 0x20, 2)))); both()
        check(cuda.cuArray3DCreate_v2(byref(deep), byref(Array3DShape(512, 512, 64, 0x01, 4, 0)))); both()
        check(cuda.cuMipmappedArrayCreate(byref(mip), byref(Array3DShape(2048, 2048, 0, 0x10, 4, 0)), 12)); both()
        check(cuda.cuArrayDestroy(flat)); check(cuda.cuArrayDestroy(deep))
        check(cuda.cuMipmappedArrayDestroy(mip)); both()
        say([seen, cuda.cuArrayCreate_v2(byref(flat), byref(ArrayShape(65536, 32768, 0x20, 4)))])
        """,
        **LIMIT,
    ).said
    seen, too_large = said
    assert too_large == 2
    assert seen[-1] == [0, 0]
    for charged, physical in seen[:-1]:
        assert abs(charged - physical) <= 3 * 2 * 2**20, "but for the rounding to blocks"
    assert seen[0][0] >= 4096 * 4096 * 8


def test_the_end_of_a_context_credits_what_was_in_it(host):
    said = host.python(
        """
        cuda = Cuda().start()
        keep = cuda.must_alloc(BLOCK)
        context = cuda.create()
        cuda.must_alloc(GiB)
        cuda.must_alloc(7 * MiB)
        check(cuda.cuArrayCreate_v2(byref(c_void_p()), byref(ArrayShape(1024, 1024, 0x20, 4))))
        result, handle = cuda.create_block(64 * MiB); check(result)
        before = cuda.used()
        check(cuda.cuCtxDestroy_v2(context))
        cuda.primary()
        seen = [before > GiB + 7 * MiB, cuda.used()]
        check(cuda.cuMemRelease(handle))
        check(cuda.free(keep))
        say([*seen, cuda.used()])
        """,
        **LIMIT,
    ).said
    assert said == [True, 66 * 2**20, 0]


@pytest.mark.parametrize("ending", ["cuDevicePrimaryCtxReset_v2", "cuDevicePrimaryCtxRelease_v2"])
def test_the_end_of_a_primary_context(host, ending):
    said = host.python(
        f"""
        cuda = Cuda().start()
        second = c_void_p()
        check(cuda.cuDevicePrimaryCtxRetain(byref(second), 0))
        cuda.must_alloc(GiB)
        check(cuda.cuDevicePrimaryCtxRelease_v2(0))       # one reference is left
        seen = [cuda.used()]
        check(cuda.{ending}(0))
        cuda.primary()
        say([*seen, cuda.used(), cuda.alloc(4 * GiB)[0]])
        """,
        **LIMIT,
    ).said
    assert said == [2**30, 0, 0]


def test_what_the_program_is_told_agrees(host):
    child = host.python(
        """
        nvml = Nvml()
        early = nvml.memory()
        cuda = Cuda()
        cuda.cuInit(0)
        total = cuda.total()
        cuda.start()
        cuda.must_alloc(GiB)
        free, whole = cuda.info()
        v1, v2 = nvml.memory(), nvml.memory2()
        say([[early.total, total, whole, v1.total, v2.total], [free, v1.free, v2.free], v1.used, v2.used, v2.reserved])
        old_free, old_total = c_uint(), c_uint()
        check(cuda.cuMemGetInfo(byref(old_free), byref(old_total)))
        say([cuda.cuMemGetInfo_v2(None, None), cuda.cuMemGetInfo_v2(byref(c_size_t()), None), old_free.value])
        """,
        **LIMIT,
    )
    (totals, frees, used1, used2, reserved), (none, half, old) = child.said
    gib = 2**30
    assert set(totals) == {4 * gib}
    assert set(frees) == {3 * gib}
    assert (used1, used2, reserved) == (gib, gib, 0)
    assert none in (0, 1) and half in (0, 1), "a NULL is the driver's business, and no crash"
    assert old == 3 * gib


def test_visible_request(host):
    said = host.python(
        """
        cuda = Cuda().start()
        seen = [cuda.info(), cuda.total()]
        cuda.must_alloc(2 * GiB)
        say([*seen, cuda.info()])
        """,
        GPUSHARE_LIMIT="4Gi",
        GPUSHARE_REQUEST="1Gi",
        GPUSHARE_VISIBLE="request",
    ).said
    gib = 2**30
    assert said == [[gib, gib], gib, [0, gib]], "more may be used than is shown, and nothing is negative"


def test_a_share_is_of_the_gpu(host):
    said = host.python("cuda = Cuda().start(); say(cuda.info())", RUNAI_GPU_MEMORY_LIMIT="0.25").said
    assert said == [4 * 2**30, 4 * 2**30]


def test_each_gpu_has_the_budget(host):
    said = host.python(
        """
        cuda = Cuda().start(0)
        cuda.must_alloc(3 * GiB)
        first = cuda.used()
        cuda.primary(1)
        cuda.must_alloc(2 * GiB)
        say([first, cuda.used(), cuda.alloc(3 * GiB)[0]])
        """,
        **LIMIT,
    ).said
    assert said == [3 * 2**30, 2 * 2**30, 2]


def test_what_cannot_be_suspended_is_counted(host, daemon):
    said = host.python(
        """
        cuda = Cuda().start()
        pointer, managed = cuda.must_alloc(4 * MiB), c_ulonglong()
        check(cuda.cuMemAllocManaged(byref(managed), c_size_t(MiB), 1))
        check(cuda.cuIpcGetMemHandle((c_char * 64)(), pointer))
        handle, fd = cuda.create_block(2 * MiB)[1], c_int()
        check(cuda.cuMemExportToShareableHandle(byref(fd), handle, 1, c_ulonglong(0)))
        say(0); hear_nothing = cuda.free(managed)
        """,
        **LIMIT,
    )
    assert said.said == 0
    counts = daemon.page.counts()
    assert (counts["managed"], counts["ipc"], counts["vmm_export"], counts["contexts"]) == (0, 1, 1, 1)
