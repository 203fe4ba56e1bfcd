"""A driver that hangs: the daemon serves everybody, claims are met, and it can be stopped."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from daemon_harness import GIB, GPU, GPU2, PYTHONPATH, InProcess, Program, until
from fixed_gpus import FixedGpus

from gpushare._layout import lib
from gpushared.gpus.inventory import Examination, GpuInfo, Sample

# Numbers, not the daemon's own names for them: that they stay is a part of what is tested.
SILENT_AFTER = 1.0

ANSWERS_WITHIN = 0.5
"""Seconds; the driver hangs for as long as the test wants."""
UNKNOWN_GPU = "GPU-ffffffff-0000-0000-0000-000000000001"


class Hanging(FixedGpus):
    """Any call may hang until it is let go. One at a time, as in Nvml."""

    def __init__(self) -> None:
        super().__init__([GpuInfo(GPU, 0, "Test GPU", 16 * GIB), GpuInfo(GPU2, 1, "Test GPU", 16 * GIB)])
        self.hanging: set[str] = set()
        self.free = threading.Event()
        self.met = threading.Event()
        self._lock = threading.Lock()

    def _call(self, name: str) -> None:
        with self._lock:
            if name in self.hanging:
                self.met.set()
                self.free.wait(60)

    def list(self) -> list[GpuInfo]:
        self._call("list")
        return super().list()

    def sample(self, uuid: str) -> Sample | None:
        self._call("sample")
        return super().sample(uuid)

    def examine(self, uuid: str) -> Examination:
        self._call("examine")
        return super().examine(uuid)


@pytest.fixture
def gpus() -> Iterator[Hanging]:
    made = Hanging()
    yield made
    made.free.set()


@pytest.fixture
def daemon(make_daemon: Callable[..., InProcess], gpus: Hanging) -> Iterator[InProcess]:
    # A claim with time for the driver's silence, a borrower's grace and its end: none of them is cut.
    made = make_daemon(gpus, sample_interval=0.05, health_interval=0.1, claim_timeout=10.0)
    made.client.register({"name": "a", "command": ["a"], "request": "1Mi", "limit": "1Mi", "gpus": 1})  # it samples
    yield made
    gpus.free.set()


def slowest(daemon: InProcess, seconds: float) -> float:
    """The longest that an ask, a newcomer or a question to the API waits."""
    worst, until = 0.0, time.monotonic() + seconds
    with daemon.connect() as shim:
        assert shim.hello(request=2 * GIB, limit=2 * GIB).status == lib.GS_OK
        assert shim.attach(GPU2).status == lib.GS_OK
        while time.monotonic() < until:
            for call in (daemon.client.version, daemon.client.status, lambda: shim.ask(4096), lambda: join(daemon)):
                started = time.monotonic()
                call()
                worst = max(worst, time.monotonic() - started)
    return worst


def join(daemon: InProcess) -> None:
    """A small one: its memory counts as returned only when the driver says so."""
    with daemon.connect() as shim:
        assert shim.hello(request=2**20, limit=2**20).status == lib.GS_OK
        assert shim.attach(GPU).status == lib.GS_OK


@pytest.mark.parametrize("call", ["sample", "examine", "list"])
def test_everybody_is_served_while_it_hangs(daemon: InProcess, gpus: Hanging, call: str) -> None:
    gpus.hanging.add(call)
    assert gpus.met.wait(5)
    assert slowest(daemon, 1.5) < ANSWERS_WITHIN


def test_a_program_that_opens_an_unknown_gpu_stops_nobody_else(daemon: InProcess, gpus: Hanging) -> None:
    gpus.hanging.add("list")
    with daemon.connect() as unlucky:
        unlucky.hello(request=GIB, limit=GIB)
        answers: list[Any] = []
        started = time.monotonic()
        thread = threading.Thread(target=lambda: answers.append((unlucky.attach(UNKNOWN_GPU), time.monotonic())))
        thread.start()
        assert slowest(daemon, 0.5) < ANSWERS_WITHIN
        thread.join(10)
        ((answer, answered),) = answers
        assert answer.status == lib.GS_UNKNOWN and "does not know this GPU" in answer.text
        assert answered - started < SILENT_AFTER + ANSWERS_WITHIN


def test_a_gpu_that_has_appeared_is_found_when_a_program_opens_it(
    make_daemon: Callable[..., InProcess], gpus: Hanging
) -> None:
    daemon = make_daemon(gpus, health_interval=3600.0)
    gpus.infos = [*gpus.infos, GpuInfo(UNKNOWN_GPU, 2, "Test GPU", 16 * GIB)]
    with daemon.connect() as shim:
        shim.hello(request=GIB, limit=GIB)
        assert shim.attach(UNKNOWN_GPU).status == lib.GS_OK


def test_who_leaves_before_the_driver_has_said_what_there_is_gets_no_answer(daemon: InProcess, gpus: Hanging) -> None:
    gpus.hanging.add("list")
    assert gpus.met.wait(5)
    with daemon.connect() as shim:
        shim.hello(request=GIB, limit=GIB)
        shim.send_attach(UNKNOWN_GPU)
    time.sleep(SILENT_AFTER + 0.2)
    assert slowest(daemon, 0.1) < ANSWERS_WITHIN


def test_a_claim_is_met_while_it_hangs(daemon: InProcess, gpus: Hanging, program: Callable[..., Program]) -> None:
    """The borrower gives back when it is asked; nothing of that needs the driver's figures."""
    borrower = program(daemon.shim)
    borrower.call("hello", request=0, limit=14 * GIB, grace_ms=1000)
    borrower.call("attach", GPU)
    assert borrower.call("allocate", 12 * GIB)["status"] == lib.GS_OK
    borrower.call("free_on_sigterm", 12 * GIB)
    gpus.hanging.add("sample")
    assert gpus.met.wait(5)
    with daemon.connect() as owner:
        assert owner.hello(request=12 * GIB, limit=12 * GIB).status == lib.GS_OK
        assert owner.attach(GPU).status == lib.GS_OK
        started = time.monotonic()
        assert owner.ask(11 * GIB).status == lib.GS_OK
        assert time.monotonic() - started < SILENT_AFTER + 1.5
    assert borrower.process.poll() is None, "it has given back, and is not stopped"
    assert daemon.shell.core.counters.violations == {}


def test_figures_count_again_when_it_answers(daemon: InProcess, gpus: Hanging) -> None:
    gpus.hanging.add("sample")
    assert gpus.met.wait(5)
    time.sleep(SILENT_AFTER + 0.1)
    gpus.hanging.clear()
    gpus.samples[GPU] = Sample(5 * GIB, {4_000_000: 5 * GIB})
    gpus.free.set()
    until(lambda: daemon.client.status()["gpus"][0]["unmanaged"] == 5 * GIB)


def test_a_hanging_driver_does_not_hold_the_daemon_at_its_end(tmp_path: Any) -> None:
    program = (
        "import asyncio, time\n"
        "from gpushared.gpus.driver_thread import DriverThread\n"
        "async def main():\n"
        "    questions = DriverThread(asyncio.get_running_loop())\n"
        "    print(await questions.ask(lambda: 6 * 7), flush=True)\n"
        "    hanging, waiting = questions.ask(lambda: time.sleep(60)), questions.ask(lambda: print('asked'))\n"
        "    await asyncio.sleep(0.1)\n"
        "    questions.close()\n"
        "    assert waiting.cancelled() and not hanging.done()\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": PYTHONPATH}, capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stdout) == (0, "42\n"), done.stderr
