"""Programs on PyTorch. They import nothing of this project, and run in the Python that has PyTorch."""

from __future__ import annotations

import queue
import threading
import time

import torch
from say import main, wait_line

MIB = 2**20


def bytes_of(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def out_of_memory():
    """To the limit, PyTorch's own error, and on."""
    free, total = torch.cuda.mem_get_info()
    yield "total, MiB", total // MIB
    yield "free is within the total", 0 < free <= total
    held = []
    try:
        while len(held) < 1024:
            held.append(bytes_of(256 * MIB))
    except torch.cuda.OutOfMemoryError:
        yield "its usual error is raised", True
    yield "MiB until then", len(held) * 256
    yield "stays within the limit", len(held) * 256 * MIB <= total
    held.clear()
    torch.cuda.empty_cache()
    square = torch.ones(1024, 1024, device="cuda")
    yield "goes on afterwards", float((square @ square).sum()) == 1024.0**3
    held = [bytes_of(256 * MIB) for _ in range(3)]
    yield "takes memory again", len(held) == 3


def cache(size):
    """Keeps a cache until its end; it is trimmed meanwhile."""
    torch.ones(1, device="cuda")
    held = [bytes_of(512 * MIB) for _ in range(size // (512 * MIB))]
    del held
    yield "caches", torch.cuda.memory_reserved() // MIB
    wait_line()
    yield "MiB of its cache afterwards", torch.cuda.memory_reserved() // MIB
    square = torch.ones(1024, 1024, device="cuda")
    yield "computes afterwards", float((square @ square).sum()) == 1024.0**3


def capture_loop(seconds, size):
    """Captures graphs, each with its private pool, while the cache is trimmed."""
    layer = torch.nn.Linear(512, 512).cuda()
    given = torch.ones(64, 512, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        layer(given)
    torch.cuda.current_stream().wait_stream(stream)
    wanted = layer(given)
    held = [bytes_of(256 * MIB) for _ in range(size // (256 * MIB))]
    del held
    yield "caches", torch.cuda.memory_reserved() // MIB
    wrong, different, rounds, end = [], 0, 0, time.monotonic() + seconds
    while time.monotonic() < end:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                out = layer(given)
                time.sleep(0.002)
                out = out + 1
            graph.replay()
            torch.cuda.synchronize()
        except RuntimeError as error:
            wrong.append(str(error)[:200])
            continue
        different += not torch.allclose(out - 1, wanted, atol=1e-3)
        rounds += 1
        del graph, out
    yield "captures that were spoiled", wrong
    yield "results that are wrong", different
    yield "captures", rounds
    yield "the cache afterwards, MiB", torch.cuda.memory_reserved() // MIB


def overhead():
    """Device memory, less what PyTorch's allocator has: after the context, cuBLAS and cuDNN, and over 10 s."""

    def outside():
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        return (total - free - torch.cuda.memory_reserved()) // MIB

    torch.ones(1, device="cuda")
    first = outside()
    yield "MiB outside its allocator, with a context", first
    square = torch.ones(1024, 1024, device="cuda")
    (square @ square).sum().item()
    yield "MiB more with cuBLAS", outside() - first
    image = torch.ones(8, 16, 64, 64, device="cuda")
    torch.nn.functional.conv2d(image, torch.ones(16, 16, 3, 3, device="cuda")).sum().item()
    yield "MiB more with cuDNN", outside() - first
    time.sleep(10)
    yield "MiB more 10 s later", outside() - first


def training(seconds):
    """A training loop as fast as it goes."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(8)]).cuda()
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)
    given = torch.randn(512, 1024, device="cuda")

    def step():
        optimiser.zero_grad()
        model(given).pow(2).mean().backward()
        optimiser.step()

    for _ in range(50):
        step()
    torch.cuda.synchronize()
    steps, began = 0, time.monotonic()
    while time.monotonic() - began < seconds:
        for _ in range(20):
            step()
        torch.cuda.synchronize()
        steps += 20
    yield "steps a second", steps / (time.monotonic() - began)


def works(size):
    """Computes until it is told to end, beside memory that nobody may change. Each other line asks for its steps."""
    held = [torch.full((64 * MIB,), number, dtype=torch.int32, device="cuda") for number in range(size // (256 * MIB))]
    square = torch.ones(1024, 1024, device="cuda")
    lines, wrong, steps = queue.Queue(), 0, 0

    def read():
        line = wait_line()
        while line not in ("end", ""):
            lines.put(line)
            line = wait_line()
        lines.put("end")

    threading.Thread(target=read, daemon=True).start()
    yield "works", len(held) * 256
    while True:
        wrong += float((square @ square).sum()) != 1024.0**3
        steps += 1
        if not lines.empty():
            if lines.get() == "end":
                break
            yield "steps", steps
    yield "results that are wrong", wrong
    yield "steps at its end", steps
    yield "its memory is as it was", all(bool((one == number).all()) for number, one in enumerate(held))


def profiled():
    """PyTorch's profiler, which is CUPTI, sees kernels."""
    from torch.profiler import ProfilerActivity, profile

    square = torch.ones(1024, 1024, device="cuda")
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        (square @ square).sum().item()
    yield "it sees kernels", any("gemm" in event.key or "cutlass" in event.key for event in seen.key_averages())


main(globals())
