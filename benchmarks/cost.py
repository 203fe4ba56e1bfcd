"""What the shim adds to the calls that it hooks, over a driver whose calls cost nothing.

In floors: the processor time of three compare-and-swaps and one atomic addition, measured in the same run with as many
threads. That is what an account that takes and gives back has to pay for one pair of calls. It differs by a factor of
five between processors, and what is not atomic differs less: compare floors on one kind of processor. With and without
the shim in turn, several times: what counts is the difference of the least.

    python benchmarks/cost.py [--rounds N] [--runs N] [--before SHIM]

`--before` measures another library beside it, in the same run. The exit status is 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HERE = ROOT / "benchmarks"
FLOOR, ASYNC = "floor", "async pair"
BARS = {
    "sync pair, 0 live": 1.7,
    "sync pair, 4000 live": 1.7,
    "sync pair, 50000 live": 1.7,
    "VMM pair": 2.5,
    "cuMemGetInfo": 0.6,
    "cuLaunchKernel": 0.05,
}
"""In floors, on one thread and on eight."""
ASYNC_BAR = 2.5
"""In what the sync pair adds with nothing else live, on as many threads."""
BARRED_THREADS = (1, 8)

Case = tuple[str, int]
"""What was measured, and on how many threads."""
Times = dict[Case, float]
"""Nanoseconds of one operation."""


@dataclass(frozen=True)
class Row:
    case: Case
    bare: float  # ns
    added: float  # ns
    floors: float
    bar: float | None  # floors

    @property
    def good(self) -> bool:
        return self.bar is None or self.floors <= self.bar


def compile_parts(out: Path) -> tuple[Path, Path]:
    """The null driver in a directory of its own, and the benchmark."""
    driver = out / "driver"
    driver.mkdir()
    flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{ROOT / 'shim'}"]
    compiler = os.environ.get("CC", "cc")
    shared = ["-shared", "-fPIC", "-Wl,-Bsymbolic", "-Wl,-soname,libcuda.so.1"]
    subprocess.run(
        [compiler, *flags, *shared, str(HERE / "null_driver.c"), "-o", str(driver / "libcuda.so.1")], check=True
    )
    subprocess.run([compiler, *flags, str(HERE / "bench_cost.c"), "-o", str(out / "bench"), "-ldl"], check=True)
    return driver, out / "bench"


def measure(bench: Path, driver: Path, rounds: int, shim: Path | None) -> Times:
    environ = {"LD_LIBRARY_PATH": str(driver), "PATH": os.environ.get("PATH", "")}
    if shim is not None:
        # No daemon: its page and one of our own cost the same, and nothing else is measured here.
        environ |= {"LD_PRELOAD": str(shim), "GPUSHARE_LIMIT": "60Gi", "GPUSHARE_LOG": "error"}
        environ["GPUSHARE_SOCKET"] = str(bench.parent / "api.sock")
    done = subprocess.run([str(bench), str(rounds)], env=environ, capture_output=True, text=True, check=True)
    rows = (line.split("\t") for line in done.stdout.splitlines())
    return {(name, int(threads)): float(value) for name, threads, value in rows}


def least(runs: list[Times]) -> Times:
    return {case: min(run[case] for run in runs) for case in runs[0]}


def run_all(shims: list[Path | None], rounds: int, runs: int) -> list[Times]:
    """The least of several runs for each library; None: without any."""
    found: list[list[Times]] = [[] for _ in shims]
    with tempfile.TemporaryDirectory() as directory:
        driver, bench = compile_parts(Path(directory))
        for _ in range(runs):
            for times, shim in zip(found, shims, strict=True):
                times.append(measure(bench, driver, rounds, shim))
    return [least(times) for times in found]


def compare(bare: Times, hooked: Times) -> list[Row]:
    """What the library adds to each case; the floors are the least that either side has seen."""
    rows = []
    for case, before in bare.items():
        name, threads = case
        if name == FLOOR:
            continue
        floor = min(bare[FLOOR, threads], hooked[FLOOR, threads])
        added = hooked[case] - before
        bar = BARS.get(name)
        if name == ASYNC:
            sync = ("sync pair, 0 live", threads)
            bar = ASYNC_BAR * (hooked[sync] - bare[sync]) / floor
        rows.append(Row(case, before, added, added / floor, bar if threads in BARRED_THREADS else None))
    return rows


def table(rows: list[Row], others: list[Row]) -> str:
    """As text; `others`, if there are any, are those of the library before."""
    before = {row.case: row.floors for row in others}
    lines = [f"{'':30} {'threads':>7} {'bare ns':>8} {'added ns':>8} {'floors':>7} {'bar':>6}{'before':>8}"]
    for row in rows:
        bar = f"{row.bar:.2f}" if row.bar is not None else ""
        was = f"{before[row.case]:8.2f}" if row.case in before else f"{'':8}"
        missed = "" if row.good else "   missed"
        name, threads = row.case
        lines.append(f"{name:30} {threads:7} {row.bare:8.1f} {row.added:8.1f} {row.floors:7.2f} {bar:>6}{was}{missed}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=800_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--shim", type=Path, default=ROOT / "gpushare" / "lib" / "libgpushare.so")
    parser.add_argument("--before", type=Path)
    options = parser.parse_args()
    shims = [None, options.shim, *([options.before] if options.before else [])]
    bare, hooked, *earlier = run_all(shims, options.rounds, options.runs)
    rows = compare(bare, hooked)
    floors = ", ".join(f"{value:.1f} ns on {threads}" for (name, threads), value in bare.items() if name == FLOOR)
    print(f"one floor: {floors} threads")
    print(table(rows, [row for times in earlier for row in compare(bare, times)]))
    return 0 if all(row.good for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
