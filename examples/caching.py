"""A job that keeps what it has freed, as PyTorch and others do, and lets go of it under pressure: `caching.py 2 10`.

It works with WORKING GiB and has, from an earlier phase, CACHED GiB more in its cache: free for its own next use, and
lost to everybody else. When the owner of borrowed memory wants it back, gpushare calls shrink(), and nobody is stopped.
With --silent nothing is registered: gpushare knows the caches of the frameworks, but not this one, so the job is asked
to stop.
"""

from __future__ import annotations

import argparse
import signal
import threading
import time
from collections import defaultdict

from gpu import GIB, Gpu, open_gpu

try:
    import gpushare
except ImportError:  # the program runs without it just as well
    gpushare = None  # type: ignore[assignment]


class CachingAllocator:
    """Blocks by size: what is freed is kept for the next allocation of its size."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.kept: dict[int, list[int]] = defaultdict(list)
        self.lock = threading.Lock()  # shrink() comes on another thread

    def take(self, size: int) -> int:
        with self.lock:
            if self.kept[size]:
                return self.kept[size].pop()
        return self.gpu.take(size)

    def give_back(self, size: int, pointer: int) -> None:
        with self.lock:
            self.kept[size].append(pointer)

    def shrink(self, wanted: int) -> int:
        """Free kept blocks, until `wanted` bytes are free or nothing is kept; how many bytes were freed."""
        freed = 0
        with self.lock:
            for size, pointers in self.kept.items():
                while pointers and freed < wanted:
                    self.gpu.give_back(pointers.pop())
                    freed += size
        return freed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("working", type=float, help="GiB to work with")
    parser.add_argument("cached", type=float, help="GiB to keep without using them")
    parser.add_argument("--block", type=float, default=0.5, help="GiB of one allocation")
    parser.add_argument("--silent", action="store_true", help="tell gpushare nothing")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to work")
    options = parser.parse_args()

    asked = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked.set())
    signal.signal(signal.SIGINT, signal.SIG_DFL)

    allocator, size = CachingAllocator(open_gpu()), int(options.block * GIB)
    held = [allocator.take(size) for _ in range(round((options.working + options.cached) / options.block))]
    while len(held) > options.working / options.block:
        allocator.give_back(size, held.pop())
    print(f"working with {options.working:.1f} GiB, keeping {options.cached:.1f} GiB", flush=True)

    if gpushare is not None and not options.silent:

        @gpushare.on_pressure
        def shrink(pressure: gpushare.pressure_hooks.Pressure) -> int:
            freed = allocator.shrink(pressure.wanted)
            print(f"{pressure.wanted / GIB:.1f} GiB are wanted back: gave {freed / GIB:.1f} GiB", flush=True)
            return freed

    end = time.monotonic() + options.seconds
    steps = 0
    while time.monotonic() < end and not asked.is_set():
        scratch = allocator.take(size)  # a training step
        time.sleep(0.01)
        allocator.give_back(size, scratch)
        steps += 1
    if asked.is_set():
        print(f"SIGTERM after {steps} steps: saving a checkpoint and leaving", flush=True)
    else:
        print(f"done, {steps} steps", flush=True)


if __name__ == "__main__":
    main()
