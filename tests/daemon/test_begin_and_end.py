"""The first moment of a daemon and its last: what it knows before it admits a job, and what is left of it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from daemon_harness import GIB, GPU, GPU2, InProcess, until
from fixed_gpus import FixedGpus

from gpushared import config as configuration
from gpushared.core.health_issues import reset_required
from gpushared.gpus.inventory import Fault, GpuInfo, Sample
from gpushared.system.dashboard import Dashboard

INFOS = [GpuInfo(GPU, 0, "Test GPU", 16 * GIB), GpuInfo(GPU2, 1, "Test GPU", 16 * GIB)]


def gpus(**issues: Any) -> FixedGpus:
    return FixedGpus(list(INFOS), {GPU: Sample(0, {}), GPU2: Sample(0, {})}, **issues)


def states(daemon: InProcess) -> list[str]:
    return [gpu["health"]["state"] for gpu in daemon.client.status()["gpus"]]


def test_the_health_of_gpus_is_known_before_the_first_job(make_daemon) -> None:
    daemon = make_daemon(gpus(issues={GPU: (reset_required(),)}))
    assert states(daemon) == ["sick", "ok"]


def test_what_the_driver_reports_is_heard_from_the_start(make_daemon) -> None:
    """Long before the GPUs are asked the next time."""
    daemon = make_daemon(gpus())
    assert daemon.config.health_interval == 60.0 and states(daemon) == ["ok", "ok"]
    daemon.gpus.issues[GPU2] = (reset_required(),)
    daemon.gpus.faults.put(Fault((GPU2,), None))
    until(lambda: states(daemon) == ["ok", "sick"])


def descriptors() -> Counter[str]:
    """Those that are open: what they lead to, without the numbers of sockets."""
    found: Counter[str] = Counter()
    for one in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that of the list itself
            found[str(one.readlink()).partition(":[")[0]] += 1
    return found


def test_nothing_of_a_daemon_is_left_after_its_end(directory: Path) -> None:
    """But for its notes. It ends in the same way when something else has embedded it."""
    gc.collect()
    before, threads = descriptors(), set(threading.enumerate())
    driver = gpus()
    closed: list[str] = []
    driver.close = lambda: closed.append("the driver")  # type: ignore[method-assign]
    daemon = InProcess(directory, configuration.Config(idle_exit=3600.0, dashboard_port=0), driver).start()
    with daemon.connect() as shim:
        shim.hello(request=0, limit="max")
        assert shim.attach(GPU).status == 0
        daemon.client.status()
        assert descriptors() != before
        made = set(threading.enumerate()) - threads - {daemon._thread}
        assert made and all(one.daemon for one in made), "one that hangs keeps no process from ending"
        daemon.stop()
        shim.unmap()
    del daemon, shim
    gc.collect()
    assert closed == ["the driver"]
    until(lambda: not set(threading.enumerate()) - threads)
    until(lambda: descriptors() == before or gc.collect() < 0)
    assert sorted(one.name for one in directory.iterdir() if one.is_socket()) == []
    assert (directory / "state.json").exists()


def test_a_dashboard_that_was_stopped_has_ended(directory: Path, monkeypatch) -> None:
    """The daemon goes only then, and its port is free for the next one."""

    async def story() -> None:
        started: list[Any] = []
        start = asyncio.create_subprocess_exec

        async def note(*command: str, **pipes: Any) -> Any:
            started.append(await start("sh", "-c", "echo http://x; cat; sleep 0.2", **pipes))
            return started[-1]

        monkeypatch.setattr("gpushared.system.dashboard.asyncio.create_subprocess_exec", note)
        page = Dashboard(directory, 1, read_only=True)
        await page.stop()
        page.start()
        while page.url is None:  # noqa: ASYNC110  (a line of a pipe has no event)
            await asyncio.sleep(0.01)
        began = time.monotonic()
        await page.stop()
        assert started[0].returncode == 0 and 0.1 < time.monotonic() - began < 2.0
        assert page.url is None and len(started) == 1

    asyncio.run(asyncio.wait_for(story(), 30))


SERVES = """
import gc, sys
from pathlib import Path

from gpushared import cli

with cli._only_what_is_needed():
    assert not gc.isenabled()
from daemon_harness import GIB, GPU, InProcess, until
from fixed_gpus import FixedGpus

from gpushared import config
from gpushared.gpus.inventory import GpuInfo

assert gc.get_freeze_count() == 0
daemon = InProcess(Path(sys.argv[1]), config.Config(), FixedGpus([GpuInfo(GPU, 0, "Test GPU", 16 * GIB)])).start()
until(gc.isenabled)
assert gc.get_freeze_count() > 10_000
daemon.stop()
print("good")
"""


def test_the_collector_is_off_while_modules_are_imported_and_on_while_the_daemon_serves(directory: Path) -> None:
    """And it never visits what was there before the first program. In a process alone: others freeze objects, too."""
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(
        [sys.executable, "-c", SERVES, directory], env=environ, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "good\n"), done.stderr


def test_a_daemon_may_open_as_much_as_it_may(make_daemon) -> None:
    """A client costs three descriptors; what a login gives is for programs that have few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most - 1, hard))
        make_daemon()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (most, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
