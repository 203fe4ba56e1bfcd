"""Programs on numba. They import nothing of this project, and run in the Python that has numba."""

from __future__ import annotations

import numpy
from numba import cuda
from say import main

MIB = 2**20


@cuda.jit
def add_one(values):
    at = cuda.grid(1)
    if at < values.size:
        values[at] += 1


def out_of_memory():
    """To the limit, the driver's error, and on with a kernel."""
    yield "total, MiB", cuda.current_context().get_memory_info().total // MIB
    held = []
    try:
        while len(held) < 1024:
            held.append(cuda.device_array(256 * MIB, dtype=numpy.uint8))
    except Exception as error:
        yield "its usual error is raised", "OUT_OF_MEMORY" in str(error)
        yield "the error", f"{type(error).__name__}: {str(error)[:100]}"
    yield "MiB until then", len(held) * 256
    held.clear()
    values = cuda.to_device(numpy.ones(MIB, dtype=numpy.float32))
    yield "goes on afterwards", float(values.copy_to_host().sum()) == MIB
    try:
        add_one[MIB // 256, 256](values)
        yield "a kernel computes", float(values.copy_to_host().sum()) == 2 * MIB
    except Exception as error:  # its compiler may not be installed
        yield "a kernel computes", f"{type(error).__name__}: {str(error)[:200]}"


main(globals())
