"""A kernel of Triton on PyTorch's memory. Imports nothing of this project."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from say import main

MIB = 2**20


@triton.jit
def add_one(values, count, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(values + at, tl.load(values + at, mask=at < count) + 1, mask=at < count)


def out_of_memory():
    """To the limit by PyTorch, and on with a kernel of Triton."""
    held = []
    try:
        while len(held) < 1024:
            held.append(torch.empty(256 * MIB, dtype=torch.uint8, device="cuda"))
    except torch.cuda.OutOfMemoryError:
        yield "its usual error is raised", True
    yield "MiB until then", len(held) * 256
    held.clear()
    torch.cuda.empty_cache()
    values = torch.zeros(MIB, device="cuda")
    add_one[(MIB // 1024,)](values, MIB, 1024)
    yield "goes on afterwards", float(values.sum()) == MIB


main(globals())
