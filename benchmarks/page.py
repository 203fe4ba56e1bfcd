"""What the usage history and an open page of the dashboard cost the daemon, with 100 jobs.

    python benchmarks/page.py [--seconds S] [--jobs N]

The same jobs on two daemons, with a history and without, each at rest and while ten jobs change their limits every
second; then with a page that is open. CPU is of all threads, in per cent of one core; memory is what is resident.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "daemon"), str(ROOT / "tests")]

from daemon_load import cpu_seconds  # noqa: E402
from processes import PROGRAM  # noqa: E402

from gpushare.client import Client  # noqa: E402
from integration.node import Node, wait_for  # noqa: E402

CPU_BAR, MEMORY_BAR = 1.0, 30.0
"""Of history and page together: per cent of a core, MiB."""
CHANGED = 10
WITHOUT = """if 1:
    from gpushared.api.history import HistoryHandler
    HistoryHandler.look = lambda self: 3600.0
    from gpushared.__main__ import main
    raise SystemExit(main())
"""


def resident(pid: int) -> float:
    """MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024


@contextlib.contextmanager
def node(directory: Path, program: Path, jobs: int, *, history: bool) -> Iterator[tuple[Node, int]]:
    """A daemon with so many jobs, each a process with a context; its pid."""
    directory.mkdir()
    with Node(directory, directory, sim="memory=1700Gi,context=1Mi") as one:
        if history:
            pid = one.start_daemon_of_user()
        else:
            one.runtime.mkdir(mode=0o700)
            line = [sys.executable, "-c", WITHOUT, "--user", "--driver", "sim", "--dir", str(one.runtime)]
            pid = subprocess.Popen(line, env=one.env, stderr=subprocess.DEVNULL).pid
            wait_for(lambda: one.api("GET", "/v1/version").get("pid") == pid, "the daemon")
        env = {**one.job_env("first", "--limit", "1Gi"), "GPUSHARE_REQUEST": "1Gi", "GPUSHARE_LIMIT": "2Gi"}
        del env["GPUSHARE_JOB"]  # each is a job of its own
        pipe = subprocess.PIPE
        live = [subprocess.Popen([str(program), "stay"], env=env, stdin=pipe, stdout=pipe) for _ in range(jobs - 1)]
        for process in live:
            assert process.stdout is not None and process.stdout.read(1) == b"."
        try:
            yield one, pid
        finally:
            for process in live:
                process.communicate(b".")


class Page:
    """A page that is visible: it reads what `gpushare dashboard` tells it."""

    def __init__(self, one: Node) -> None:
        self.server = one.spawn([sys.executable, "-m", "gpushare", "dashboard"])
        assert self.server.stdout is not None
        url = self.server.stdout.readline().strip()
        address, _, token = url.removeprefix("http://").partition("/#token=")
        own = {"Origin": f"http://{address}", "Host": address}
        connection = http.client.HTTPConnection(address)
        connection.request("POST", "/session", json.dumps({"token": token}), own)
        answer = connection.getresponse()
        key, cookie = json.load(answer)["key"], answer.headers["Set-Cookie"].partition(";")[0]
        self.live = http.client.HTTPConnection(address)
        self.live.request("GET", "/live", headers={"Host": address, "Cookie": cookie, "X-Gpushare-Key": key})
        self.read = 0
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            for line in self.live.getresponse():
                self.read += len(line)


def measure(one: Node, pid: int, seconds: float, *, changing: bool) -> tuple[float, float]:
    """Per cent of a core, and MiB."""
    client = Client(one.runtime / "api.sock")
    ids = [job["id"] for job in client.jobs()][:CHANGED]
    time.sleep(2)
    before, end, turn = cpu_seconds(pid), time.monotonic() + seconds, 0
    while time.monotonic() < end:
        if changing:
            turn += 1
            for id in ids:
                client.change(id, {"limit": "3Gi" if turn % 2 else "2Gi"})
        time.sleep(min(1.0, max(0.0, end - time.monotonic())))
    return (cpu_seconds(pid) - before) / seconds * 100, resident(pid)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--jobs", type=int, default=100)
    options = parser.parse_args()
    found: dict[str, tuple[float, float]] = {}
    tmpfs = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=tmpfs) as made:
        program = Path(made) / "open"
        program.with_suffix(".c").write_text(PROGRAM)
        subprocess.run(["cc", "-O2", str(program.with_suffix(".c")), "-o", str(program), "-ldl"], check=True)
        for history in (False, True):
            with node(Path(made) / f"node-{history}", program, options.jobs, history=history) as (one, pid):
                kinds = ["history" if history else "neither", *(["history and page"] if history else [])]
                for kind in kinds:
                    page = Page(one) if "page" in kind else None
                    for changing in (False, True):
                        found[f"{kind}, {'changing' if changing else 'rest'}"] = measure(
                            one, pid, options.seconds, changing=changing
                        )
                    if page is not None:
                        told, server = page.read / 2**20, resident(page.server.pid)
                        print(f"the page was told {told:.2f} MiB; its server has {server:.0f} MiB")
    print(f"{options.jobs} jobs; rest, or {CHANGED} of them change each second\n{'':28} {'% of a core':>12} {'MiB':>6}")
    for name, (cpu, memory) in found.items():
        print(f"{name:28} {cpu:12.2f} {memory:6.1f}")
    cpu = found["history and page, rest"][0] - found["neither, rest"][0]
    memory = found["history and page, changing"][1] - found["neither, changing"][1]
    busy = found["history and page, changing"][0] - found["neither, changing"][0]
    print(f"history and page: {cpu:.2f} % at rest, {busy:.2f} % while jobs change (bar {CPU_BAR}), ", end="")
    print(f"{memory:.1f} MiB (bar {MEMORY_BAR:.0f})")
    return 0 if max(cpu, busy) <= CPU_BAR and memory <= MEMORY_BAR else 1


if __name__ == "__main__":
    sys.exit(main())
