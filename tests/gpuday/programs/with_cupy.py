"""Programs on CuPy. They import nothing of this project, and run in the Python that has CuPy."""

from __future__ import annotations

import cupy
from say import main, wait_line

MIB = 2**20


def out_of_memory():
    """To the limit, CuPy's own error, and on."""
    yield "total, MiB", cupy.cuda.runtime.memGetInfo()[1] // MIB
    held = []
    try:
        while len(held) < 1024:
            held.append(cupy.zeros(256 * MIB, dtype=cupy.uint8))
    except cupy.cuda.memory.OutOfMemoryError:
        yield "its usual error is raised", True
    yield "MiB until then", len(held) * 256
    held.clear()
    cupy.get_default_memory_pool().free_all_blocks()
    yield "goes on afterwards", float(cupy.ones(MIB, dtype=cupy.float32).sum()) == MIB


def cache(size):
    """Keeps a cache until its end; it is trimmed meanwhile."""
    pool = cupy.get_default_memory_pool()
    held = [cupy.zeros(512 * MIB, dtype=cupy.uint8) for _ in range(size // (512 * MIB))]
    held.clear()
    yield "caches", pool.total_bytes() // MIB
    wait_line()
    yield "MiB of its cache afterwards", pool.total_bytes() // MIB
    yield "computes afterwards", float(cupy.ones(MIB, dtype=cupy.float32).sum()) == MIB


main(globals())
