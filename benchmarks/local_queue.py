"""The queue of one machine with many jobs in it: how long a submission takes, and what the service costs.

python benchmarks/local_queue.py [--jobs 10000] [--submissions 500]

Starts a service of its own with the engine local, on the software driver, in a folder of its own. One job has both
GPUs; all others wait. A submission is `gpushare submit` without the start of Python, which takes longer.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "engines"), str(ROOT), str(ROOT / "daemon")]

from test_queue_commands import Service  # noqa: E402

TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--jobs", type=int, default=10_000)
    made.add_argument("--submissions", type=int, default=500)
    made.add_argument("--idle", type=float, default=60.0, help="seconds without a call")
    options = made.parse_args()
    for name in [name for name in os.environ if name.startswith("GPUSHARE_")]:
        del os.environ[name]
    with tempfile.TemporaryDirectory(prefix="gs-queue-") as folder:
        service = Service(Path(folder))
        os.environ.update(service.environ)
        service.start()
        try:
            measure(service, options)
        finally:
            service("cancel", "--now", "1")
            service("wait", "1")
            service.stop()
            service.log.close()


def measure(service: Service, options: argparse.Namespace) -> None:
    service.submit("--gpus", "2", "--", "sleep", "3600")
    while int(service.submit("--array", "500", "--", "true")) < options.jobs // 500 + 1:
        pass
    print(f"{options.jobs} jobs wait, in arrays of 500", flush=True)
    times = []
    for _ in range(options.submissions):
        began = time.perf_counter()
        service.submit("--", "true")
        times.append((time.perf_counter() - began) * 1000)
    ordered = sorted(times)
    print(
        f"{len(times)} submissions: median {statistics.median(times):.0f} ms,"
        f" p99 {ordered[int(len(times) * 0.99)]:.0f} ms, slowest {ordered[-1]:.0f} ms"
    )
    began = time.perf_counter()
    service("queue")
    print(f"`gpushare queue`: {(time.perf_counter() - began) * 1000:.0f} ms")
    print(f"the service has {resident(service.process.pid)} MiB")
    before = used(service.process.pid)
    time.sleep(options.idle)
    print(f"idle: {(used(service.process.pid) - before) / options.idle:.2%} of a core, over {options.idle:g} s")
    service.stop()
    began = time.perf_counter()
    service.start()
    print(f"a service that starts again answers after {time.perf_counter() - began:.1f} s")


def resident(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmRSS"))


def used(pid: int) -> float:
    """Seconds of a processor."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / TICKS


if __name__ == "__main__":
    main()
