"""A job that is guaranteed its memory and takes it when it needs it: `owner.py 2 5`.

Each number is an allocation in GiB, with --pause seconds between them. Its calls return success however much of
its memory was on loan; they only take longer while it comes back.
"""

from __future__ import annotations

import argparse
import time

from gpu import GIB, open_gpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gib", type=float, nargs="+", help="GiB to take, one allocation after the other")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between them")
    options = parser.parse_args()

    gpu = open_gpu()
    free, total = gpu.memory()
    print(f"my GPU has {total / GIB:.1f} GiB, {free / GIB:.1f} of them free", flush=True)
    for size in options.gib:
        began = time.monotonic()
        gpu.take(int(size * GIB))
        print(f"took {size:.1f} GiB in {time.monotonic() - began:.2f} s", flush=True)
        time.sleep(options.pause)


if __name__ == "__main__":
    main()
