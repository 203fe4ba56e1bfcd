"""A job that uses whatever memory is idle, and gives it back when it is asked to: `borrower.py 12 --keep 4`.

It takes GIB GiB, one at a time, then works. When the owner of borrowed memory wants it back, gpushare sends
SIGTERM: a polite job saves its work and frees memory (here: all but --keep) and runs on; one that does nothing
(--stubborn) is killed when its grace is over.
"""

from __future__ import annotations

import argparse
import signal
import time

from gpu import GIB, OutOfMemoryError, open_gpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gib", type=float, help="GiB to take")
    parser.add_argument("--block", type=float, default=1.0, help="GiB of one allocation")
    parser.add_argument("--keep", type=float, default=4.0, help="GiB to keep when asked to give back")
    parser.add_argument("--stubborn", action="store_true", help="do nothing when asked")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to work")
    options = parser.parse_args()

    asked = False

    def on_sigterm(_signal: int, _frame: object) -> None:
        nonlocal asked
        asked = True

    signal.signal(signal.SIGTERM, on_sigterm)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback

    gpu = open_gpu()
    _, total = gpu.memory()
    print(f"my GPU has {total / GIB:.1f} GiB", flush=True)

    blocks: list[int] = []
    try:
        for _ in range(round(options.gib / options.block)):
            blocks.append(gpu.take(int(options.block * GIB)))
    except OutOfMemoryError:
        print("out of memory: I work with what I have", flush=True)
    print(f"working with {len(blocks) * options.block:.1f} GiB", flush=True)

    end = time.monotonic() + options.seconds
    while time.monotonic() < end:
        time.sleep(0.05)  # a training step
        if asked and not options.stubborn:
            asked = False
            print("SIGTERM: saving a checkpoint, giving back what I borrowed", flush=True)
            while len(blocks) > options.keep / options.block:
                gpu.give_back(blocks.pop())
            print(f"working on with {len(blocks) * options.block:.1f} GiB", flush=True)
        elif asked:
            asked = False
            print("SIGTERM: I do not care", flush=True)
    print("done", flush=True)


if __name__ == "__main__":
    main()
