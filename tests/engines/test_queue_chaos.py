"""The queue of one machine while its service, node daemon, keepers and programs are killed, in any order and at once.

It is judged from outside: each job has an end, what was killed by nobody has not failed, nothing ran twice at once, no
process and no placement is left, and a job gets all GPUs.

    GPUSHARE_QUEUE_CHAOS="7 8 9" GPUSHARE_QUEUE_CHAOS_ROUNDS=40 pytest tests/engines/test_queue_chaos.py -n 0
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cuda_program import OPENED
from test_queue_commands import WITHIN, Service

from gpushare.client import Client
from gpushare.errors import GpushareError
from gpushare.paths import SYSTEM_DIR, library

SEEDS = os.environ.get("GPUSHARE_QUEUE_CHAOS", "1").split()
ROUNDS = int(os.environ.get("GPUSHARE_QUEUE_CHAOS_ROUNDS", "6"))
PROGRAM = f"""{OPENED}
assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(64 << 20)) == 0
"""
JOB = f"""exec 9>lock.$GPUSHARE_QUEUE_JOB
flock -n 9 || echo $GPUSHARE_QUEUE_JOB >> twice
sleep $1; {sys.executable} opens.py 9>&- || exit 1
sleep $2 9>&-
"""
KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
MOST_LIVING = 7


class World:
    """A service, and all processes that follow from it."""

    def __init__(self, service: Service, seed: str) -> None:
        self.service = service
        self.random = random.Random(seed)
        self.cancelled: set[str] = set()
        self.submitted: list[str] = []
        self.story: list[str] = []
        (service.directory / "job.sh").write_text(JOB)
        (service.directory / "opens.py").write_text(PROGRAM)

    # ---- what there is ---------------------------------------------------------------------------------

    def processes(self, belongs: Callable[[Path], bool]) -> list[int]:
        found = []
        for one in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if one.name.isdigit() and int(one.name) != os.getpid() and belongs(one):
                    found.append(int(one.name))
        return found

    def daemons(self) -> list[int]:
        mark = f"XDG_RUNTIME_DIR={self.service.environ['XDG_RUNTIME_DIR']}".encode()
        return self.processes(
            lambda one: mark in (one / "environ").read_bytes() and b"\0gpushared\0" in (one / "cmdline").read_bytes()
        )

    def keepers(self) -> list[int]:
        home = str(self.service.directory)
        return self.processes(
            lambda one: (
                b"/local/keeper.py" in (one / "cmdline").read_bytes() and str((one / "cwd").readlink()).startswith(home)
            )
        )

    def programs(self, job: str = "") -> list[int]:
        """Of this job, or of all."""
        home = f"HOME={self.service.directory}".encode()
        mark = f"GPUSHARED_TASK={job}".encode()

        def belongs(one: Path) -> bool:
            said = (one / "environ").read_bytes().split(b"\0")
            return home in said and any(word.startswith(mark) for word in said)

        return self.processes(belongs)

    def jobs(self) -> list[dict]:
        done = self.service("queue", "-a", "--json")
        return json.loads(done.stdout)["jobs"] if done.returncode == 0 else []

    def placements(self) -> list[dict]:
        for path in Path(self.service.environ["XDG_RUNTIME_DIR"]).glob("*/api.sock"):
            with contextlib.suppress(GpushareError):
                return Client(path).placements()
        return []

    # ---- what happens ----------------------------------------------------------------------------------

    def submit(self) -> None:
        living = sum(job["state"] != "ended" for job in self.jobs())
        for _ in range(min(3, MOST_LIVING - living)):
            times = [f"{self.random.uniform(0, 1.5):.2f}" for _ in range(2)]
            done = self.service("submit", "--request", "25%", "--grace", "1", "--", "sh", "job.sh", *times)
            if done.returncode == 0:
                self.submitted.append(done.stdout.strip())

    def cancel(self) -> None:
        id = self.random.choice(self.submitted)
        if self.service("cancel", *self.random.choice([[], ["--now"]]), id).returncode == 0:
            self.cancelled.add(id)

    def kill(self) -> None:
        kinds = ["service", "daemon", "keepers", "programs"]
        chosen = self.random.sample(kinds, self.random.randint(1, 4))
        if "programs" in chosen:  # alone it would be an end that the job's user sees
            chosen = [one for one in chosen if one not in ("keepers", "programs")] + ["keepers", "programs"]
        for kind in chosen:
            pause = self.random.choice([0, 0, 0.1, 0.5])
            self.story.append(f"kill {kind}, wait {pause}")
            self._kill(kind)
            time.sleep(pause)
        if "service" in chosen:
            self.service.start()

    def _kill(self, kind: str) -> None:
        if kind == "service":
            self.service.stop(signal.SIGKILL)
            return
        for pid in {"daemon": self.daemons, "keepers": self.keepers, "programs": self.programs}[kind]():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def round(self) -> None:
        self.submit()
        time.sleep(self.random.choice([0, 0.2, 0.6, 1.2]))
        self.kill()
        if self.random.random() < 0.3:
            self.cancel()

    # ---- the judge -------------------------------------------------------------------------------------

    def judge(self) -> None:
        deadline = time.monotonic() + WITHIN + 30.0
        while [job for job in self.jobs() if job["state"] != "ended"]:
            assert time.monotonic() < deadline, self.facts()
            time.sleep(0.5)
        for job in self.jobs():
            how = job["result"]["how"]
            expected = how == "done" or (how == "failed" and job["result"]["exit"] in KILLED)
            assert expected or (how == "cancelled" and job["id"] in self.cancelled), (job, self.facts())
            assert job["attempt"] >= 1 or how == "cancelled", (job, self.facts())
        assert not (self.service.directory / "twice").exists(), self.facts()
        while self.programs() or self.keepers() or self.placements():
            assert time.monotonic() < deadline, self.facts()
            time.sleep(0.2)
        last = self.service.submit("--gpus", "2", "--", "true")
        assert self.service.until(last, "ended")["result"]["how"] == "done", self.facts()

    def facts(self) -> str:
        left = [job for job in self.jobs() if job["state"] != "ended" or job["result"]["how"] != "done"]
        logs = "".join(f"{path.name}: {path.read_text()[-400:]}\n" for path in self.logs(left))
        running = {"programs": self.programs(), "keepers": self.keepers(), "placements": self.placements()}
        return "\n".join([*self.story, json.dumps(left, indent=1), str(running), logs, self.service.said()[-3000:]])

    def logs(self, jobs: list[dict]) -> list[Path]:
        folder = self.service.directory / "state" / "gpushare" / "logs"
        return [path for job in jobs if (path := folder / f"{job['id']}.log").exists()]


@pytest.fixture
def service(monkeypatch) -> Iterator[Service]:
    if not library().exists():
        pytest.skip(f"{library()} is not built")
    if SYSTEM_DIR.exists():
        pytest.skip("a system daemon's directory exists on this machine and comes first")
    for name in [name for name in os.environ if name.startswith("GPUSHARE_")]:
        monkeypatch.delenv(name)
    with tempfile.TemporaryDirectory(prefix="gs-") as made:  # short: the name of a socket has at most 107 bytes
        service = Service(Path(made))
        for name, value in service.environ.items():
            monkeypatch.setenv(name, value)
        service.start()
        yield service
        service.stop(signal.SIGKILL)
        world = World(service, "")
        for pid in [*world.keepers(), *world.programs(), *world.daemons()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        service.log.close()


@pytest.mark.timeout(3600 if len(SEEDS) > 1 or ROUNDS > 6 else 300)
@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_is_killed_each_job_has_an_end_and_all_gpus_come_back(service, seed) -> None:
    world = World(service, seed)
    for _ in range(ROUNDS):
        world.round()
    world.judge()
