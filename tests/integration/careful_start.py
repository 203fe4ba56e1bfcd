"""A server that starts as vLLM does: it plans from the memory that is free, and asserts that this stays."""

from __future__ import annotations

import sys
import time

from integration.engine_server import MIB, Gpu

UTILIZATION = 0.9


def main() -> None:
    gpu = Gpu()
    gpu.use()
    free, total = gpu.memory()
    wanted = int(total * UTILIZATION)
    assert free >= wanted, f"free memory on start-up {free} is less than what is wanted: {wanted}"
    weights = gpu.take(wanted // 4)
    time.sleep(1.0)  # it loads the model, and measures the peak of a first run
    left, _ = gpu.memory()
    assert left <= free, f"free memory has grown while it was measured: {free} before, {left} after"
    assert free - left <= wanted // 4 + 64 * MIB, f"somebody else has taken memory: {free - left} are gone"
    cache = wanted - (free - left)
    held = gpu.take(cache)
    print("serves", flush=True)
    sys.stdin.readline()
    gpu.free(held)
    gpu.free(weights)


if __name__ == "__main__":
    main()
