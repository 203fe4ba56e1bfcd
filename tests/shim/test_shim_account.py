"""The shim's account against the software driver's physical memory, under random calls of all families.

Sizes are multiples of the driver's blocks, so that the two must be the same to the byte: what is charged is what NVML
says this process holds, less its context.
"""

from __future__ import annotations

import pytest

CALLS = """
import random, threading

class Churn:
    def __init__(self, cuda, seed, limit):
        self.cuda, self.chance, self.limit = cuda, random.Random(seed), limit
        self.held, self.codes = [], {}
        self.stream, self.pool = cuda.stream(), cuda.pool()
        self.base = cuda.reserve(4 * GiB).value
        self.free_slots = list(range(0, 4 * GiB, 128 * MiB))

    def size(self):
        return self.chance.choice([1, 1, 2, 3, 8, 33]) * BLOCK

    def step(self):
        if len(self.held) > 60 or (self.held and self.chance.random() < 0.45):
            self.give(self.held.pop(self.chance.randrange(len(self.held))))
        else:
            code = self.chance.choice([self.linear, self.managed, self.pitched, self.array, self.pooled, self.block])()
            self.codes[code] = self.codes.get(code, 0) + 1

    def keep(self, code, *what):
        if code == SUCCESS:
            self.held.append(what)
        return code

    def linear(self):
        code, pointer = self.cuda.alloc(self.size())
        return self.keep(code, "free", pointer)

    def managed(self):
        pointer = c_ulonglong()
        return self.keep(self.cuda.cuMemAllocManaged(byref(pointer), c_size_t(self.size()), 1), "free", pointer)

    def pitched(self):
        pointer, pitch, rows = c_ulonglong(), c_size_t(), self.size() // 1024
        code = self.cuda.cuMemAllocPitch_v2(byref(pointer), byref(pitch), c_size_t(1000), c_size_t(rows), 4)
        return self.keep(code, "free", pointer)

    def array(self):
        array = c_void_p()
        shape = ArrayShape(1024, self.size() // 4096, 0x20, 1)
        return self.keep(self.cuda.cuArrayCreate_v2(byref(array), byref(shape)), "array", array)

    def pooled(self):
        pointer, size = c_ulonglong(), c_size_t(self.size() + self.chance.randrange(5000))
        twin = self.chance.choice(["", "_ptsz"])
        if self.chance.random() < 0.5:
            code = getattr(self.cuda, "cuMemAllocAsync" + twin)(byref(pointer), size, self.stream)
        else:
            code = getattr(self.cuda, "cuMemAllocFromPoolAsync" + twin)(byref(pointer), size, self.pool, self.stream)
        return self.keep(code, self.chance.choice(["free", "async", "async_ptsz"]), pointer)

    def block(self):
        size = self.size()
        code, handle = self.cuda.create_block(size)
        if code != SUCCESS or self.chance.random() < 0.3 or not self.free_slots:
            return self.keep(code, "handle", handle)
        slot = self.free_slots.pop()
        check(self.cuda.map(self.base + slot, size, handle))
        if self.chance.random() < 0.5:
            check(self.cuda.cuMemRelease(handle))
            handle = None
        return self.keep(code, "mapped", slot, size, handle)

    def give(self, what):
        kind, first, *rest = what
        if kind == "free":
            check(self.cuda.free(first))
        elif kind == "array":
            check(self.cuda.cuArrayDestroy(first))
        elif kind == "async":
            check(self.cuda.cuMemFreeAsync(first, self.stream))
        elif kind == "async_ptsz":
            check(self.cuda.cuMemFreeAsync_ptsz(first, self.stream))
        elif kind == "handle":
            check(self.cuda.cuMemRelease(first))
        else:
            size, handle = rest
            if handle is not None and self.chance.random() < 0.5:
                check(self.cuda.cuMemRelease(handle))
                handle = None
            check(self.cuda.unmap(self.base + first, size))
            if handle is not None:
                check(self.cuda.cuMemRelease(handle))
            self.free_slots.append(first)

    def end(self):
        while self.held:
            self.give(self.held.pop())
        check(self.cuda.cuStreamSynchronize(self.stream))
        check(self.cuda.cuMemPoolDestroy(self.pool))
        default = c_void_p()
        check(self.cuda.cuDeviceGetDefaultMemPool(byref(default), 0))
        check(self.cuda.cuMemPoolTrimTo(default, c_size_t(0)))
"""


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_account_is_the_physical_memory(host, seed):
    child = host.python(
        CALLS
        + f"""
cuda, nvml = Cuda().start(), Nvml()
context = nvml.of_this_process()
churn, differences, highest = Churn(cuda, {seed}, 2 * GiB), [], 0
for step in range(4000):
    churn.step()
    if step % 10 == 0:
        check(cuda.cuStreamSynchronize(churn.stream))
        charged, physical = cuda.used(), nvml.of_this_process() - context
        highest = max(highest, charged)
        if charged != physical:
            differences.append([step, charged, physical])
churn.end()
say([differences[:5], highest, churn.codes.get(0, 0), churn.codes.get(2, 0), cuda.used()])
""",
        GPUSHARE_LIMIT="1Gi",
        GPUSHARE_LOG="error",
    )
    differences, highest, good, refused, at_the_end = child.said
    assert differences == []
    assert highest <= 2**30 and good > 1000 and refused > 20, "both sides of the limit were seen"
    assert at_the_end == 0


def test_the_account_with_threads(host):
    child = host.python(
        CALLS
        + """
cuda, nvml = Cuda(), Nvml()
context = cuda.start().primary()
empty = nvml.of_this_process()
churns, errors, physical = [Churn(cuda, seed, GiB) for seed in range(4)], [], []
def work(churn):
    try:
        check(cuda.cuCtxSetCurrent(context))
        for _ in range(1200):
            churn.step()
    except BaseException as error:
        errors.append(repr(error))
threads = [threading.Thread(target=work, args=(churn,)) for churn in churns]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
check(cuda.cuCtxSynchronize())
seen = [cuda.used(), nvml.of_this_process() - empty]
[churn.end() for churn in churns]
check(cuda.cuCtxSynchronize())
say([errors, seen, [cuda.used(), nvml.of_this_process() - empty]])
""",
        GPUSHARE_LIMIT="1Gi",
        GPUSHARE_LOG="error",
        timeout=60,
    )
    errors, (charged, physical), (charged_end, physical_end) = child.said
    assert errors == []
    assert charged == physical > 0
    assert charged_end == physical_end == 0
