"""What the shim adds to the start of a process: one that never uses CUDA, and one that opens a context.

Each with and without it in turn, over the software driver, while 0, 100 and 300 processes of the same job live.
Prints the least of each side and the median of what was added: it must be small, and the same with many processes
as with none.

    python benchmarks/processes.py [--runs N] [--processes N,N,...]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "daemon"), str(ROOT / "tests")]

from integration.node import Node  # noqa: E402  (a node in a temporary directory, for tests and benchmarks)

BAR_MS = 1.0

PROGRAM = """
#include <dlfcn.h>
#include <unistd.h>
int main(int count, char **words) {
    void *context, *library = dlopen("libcuda.so.1", RTLD_NOW);
    char byte = '.';
    if (((int (*)(int))dlsym(library, "cuInit"))(0) ||
        ((int (*)(void **, int))dlsym(library, "cuDevicePrimaryCtxRetain"))(&context, 0))
        return 1;
    (void)words;
    return count > 1 && (write(1, &byte, 1) != 1 || read(0, &byte, 1) < 0);
}
"""


def milliseconds(program: str, env: dict[str, str]) -> float:
    began = time.perf_counter()
    pid = os.posix_spawn(program, [program], env)
    _, status = os.waitpid(pid, 0)
    took = (time.perf_counter() - began) * 1e3
    if status:
        raise SystemExit(f"{program} failed: {status}")
    return took


def added(program: str, bare: dict[str, str], job: dict[str, str], runs: int) -> tuple[float, float, float]:
    """The least bare and in the job, and the median of the differences of neighbours."""
    pairs = []
    for _ in range(runs):
        time.sleep(0.03)  # the daemon is done with the one before: its end is no part of the start of the next
        pairs.append((milliseconds(program, bare), milliseconds(program, job)))
    return (
        min(one for one, _ in pairs),
        min(two for _, two in pairs),
        statistics.median(two - one for one, two in pairs),
    )


def measure(node: Node, program: Path, counts: list[int], runs: int) -> bool:
    node.start_daemon()
    job = node.job_env("many", "--limit", "380Gi")
    bare = {name: value for name, value in job.items() if name != "LD_PRELOAD" and not name.startswith("GPUSHARE_L")}
    live: list[subprocess.Popen[bytes]] = []
    good = True
    print(f"{'ms, ' + str(runs) + ' runs':44} {'bare':>8} {'job':>8} {'added':>8} {'median':>8} {'bar':>6}")
    for count in counts:
        while len(live) < count:
            pipe = subprocess.PIPE
            live.append(subprocess.Popen([str(program), "stay"], env=job, stdin=pipe, stdout=pipe))
            assert live[-1].stdout is not None and live[-1].stdout.read(1) == b"."
        for name, path in (("never uses CUDA", "/bin/true"), ("opens a context", str(program))):
            for env in (bare, job):
                milliseconds(path, env)
            least, under, more = added(path, bare, job, runs)
            good = good and under - least <= BAR_MS
            figures = f"{least:8.2f} {under:8.2f} {under - least:8.2f} {more:8.2f} {BAR_MS:6.1f}"
            print(f"{f'{name}, {count} others live':44} {figures}")
    for one in live:
        one.communicate(b".")
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--processes", default="0,100,300")
    options = parser.parse_args()
    # Runtime directories are on tmpfs (/run): pages on a disk would be measured too.
    tmpfs = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=tmpfs) as directory:
        path = Path(directory)
        (path / "open.c").write_text(PROGRAM)
        program = path / "open"
        compiler = os.environ.get("CC", "cc")
        subprocess.run([compiler, "-O2", str(path / "open.c"), "-o", str(program), "-ldl"], check=True)
        with Node(path, path, sim="memory=400Gi,context=1Mi") as node:
            good = measure(node, program, [int(one) for one in options.processes.split(",")], options.runs)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
