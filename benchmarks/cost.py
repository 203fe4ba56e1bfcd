"""What the shim adds to the calls that it hooks, over a driver whose calls cost nothing.

With and without the shim in turn, several times, in one run: what counts is the difference, and that both sides saw
the same machine. Prints the least (the cost itself) and the median (with the machine's noise) of each.

    python benchmarks/cost.py [--rounds N] [--runs N]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HERE = ROOT / "benchmarks"
BARS = {
    "alloc+free pair, 0 live": 40.0,
    "alloc+free pair, 4000 live": 40.0,
    "alloc+free pair, 50000 live": 40.0,
    "cuMemGetInfo": 30.0,
    "cuLaunchKernel": 0.5,
}


def compile_parts(out: Path) -> tuple[Path, Path]:
    """The null driver in a directory of its own, and the benchmark."""
    driver = out / "driver"
    driver.mkdir()
    flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'shim'}"]
    compiler = os.environ.get("CC", "cc")
    shared = ["-shared", "-fPIC", "-Wl,-Bsymbolic", "-Wl,-soname,libcuda.so.1"]
    subprocess.run(
        [compiler, *flags, *shared, str(HERE / "null_driver.c"), "-o", str(driver / "libcuda.so.1")], check=True
    )
    subprocess.run([compiler, *flags, str(HERE / "bench_cost.c"), "-o", str(out / "bench"), "-ldl"], check=True)
    return driver, out / "bench"


def measure(bench: Path, driver: Path, rounds: int, shim: Path | None) -> dict[str, float]:
    environ = {"LD_LIBRARY_PATH": str(driver), "PATH": os.environ.get("PATH", "")}
    if shim is not None:
        # No daemon: its page and one of our own cost the same, and nothing else is measured here.
        environ |= {"LD_PRELOAD": str(shim), "GPUSHARE_LIMIT": "60Gi", "GPUSHARE_LOG": "error"}
        environ["GPUSHARE_SOCKET"] = str(bench.parent / "api.sock")
    done = subprocess.run([str(bench), str(rounds)], env=environ, capture_output=True, text=True, check=True)
    return {name: float(value) for name, value in (line.split("\t") for line in done.stdout.splitlines())}


def compare(shim: Path, rounds: int, runs: int) -> dict[str, tuple[list[float], list[float]]]:
    """Case -> nanoseconds of each run, bare and with the shim."""
    found: dict[str, tuple[list[float], list[float]]] = {}
    with tempfile.TemporaryDirectory() as directory:
        driver, bench = compile_parts(Path(directory))
        for _ in range(runs):
            bare = measure(bench, driver, rounds, None)
            hooked = measure(bench, driver, rounds, shim)
            for name in bare:
                sides = found.setdefault(name, ([], []))
                sides[0].append(bare[name])
                sides[1].append(hooked[name])
    return found


def table(found: dict[str, tuple[list[float], list[float]]]) -> tuple[str, bool]:
    """The table, and whether every bar is met (by the least of the runs)."""
    lines = [f"{'ns per operation':34} {'bare':>8} {'shim':>8} {'added':>8} {'median':>8} {'bar':>6}"]
    good = True
    for name, (bare, hooked) in found.items():
        added = min(hooked) - min(bare)
        median = statistics.median(hooked) - statistics.median(bare)
        bar = BARS.get(name)
        good = good and (bar is None or added <= bar)
        shown = "" if bar is None else f"{bar:g}"
        lines.append(f"{name:34} {min(bare):8.1f} {min(hooked):8.1f} {added:8.1f} {median:8.1f} {shown:>6}")
    return "\n".join(lines), good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=500_000)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--shim", type=Path, default=ROOT / "gpushare" / "lib" / "libgpushare.so")
    options = parser.parse_args()
    text, good = table(compare(options.shim, options.rounds, options.runs))
    print(text)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
