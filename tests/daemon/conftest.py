"""Fixtures: see daemon_harness.py."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from daemon_harness import GIB, GPU, GPU2, InProcess, Program, Subprocess
from fixed_gpus import FixedGpus

from gpushare.paths import software_driver_dir
from gpushared import config as configuration
from gpushared.gpus.inventory import GpuInfo


@pytest.fixture
def directory() -> Iterator[Path]:
    """Short: the name of a socket has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="gs-") as made:
        yield Path(made)


@pytest.fixture
def make_daemon(directory: Path) -> Iterator[Callable[..., InProcess]]:
    made: list[InProcess] = []

    def make(gpus: FixedGpus | None = None, *, system: bool = False, **settings: Any) -> InProcess:
        settings = {"idle_exit": 3600.0, "sample_interval": 0.2, "grace": 0.3, "claim_timeout": 3.0} | settings
        infos = [GpuInfo(GPU, 0, "Test GPU", 16 * GIB), GpuInfo(GPU2, 1, "Test GPU", 16 * GIB)]
        if system:
            directory.chmod(0o711)  # what it is for other users
        daemon = InProcess(directory, configuration.Config(**settings), gpus or FixedGpus(infos), system=system)
        made.append(daemon)
        return daemon.start()

    yield make
    for daemon in made:
        if daemon.failure is None and daemon._thread.is_alive():
            daemon.validate()
            errors = daemon.shell.core_loop.errors
            daemon.stop()
            assert errors == 0, "the daemon met a bug of its own; its log has it"


@pytest.fixture
def daemon(make_daemon: Callable[..., InProcess]) -> InProcess:
    return make_daemon()


@pytest.fixture
def quiet_loop(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No callback of a loop raises: asyncio would log that, and the test would go on."""
    yield
    raised = [one for one in caplog.get_records("call") if one.name == "asyncio" and one.levelno >= logging.ERROR]
    assert [one.getMessage() for one in raised] == []


@pytest.fixture
def program(request: pytest.FixtureRequest) -> Iterator[Callable[[Path], Program]]:
    made: list[Program] = []

    def make(shim: Path) -> Program:
        made.append(Program(shim))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def node(directory: Path) -> Iterator[Subprocess]:
    """A daemon that can be killed."""
    node = Subprocess(directory, {}, fixed=True)
    yield node
    if node.process is not None and node.process.poll() is None:
        node.kill()


@pytest.fixture
def gpushared(directory: Path) -> Iterator[Subprocess]:
    """The real command on the software driver."""
    if not (software_driver_dir() / "libnvidia-ml.so.1").exists():
        pytest.skip("the software driver is not built")
    with tempfile.TemporaryDirectory(prefix="gs-pool-", dir="/dev/shm") as pool:
        node = Subprocess(directory, {"GPUSHARE_SIM": f"gpus=2,memory=16Gi,pool={pool}"}, fixed=False)
        yield node
        if node.process is not None and node.process.poll() is None:
            node.kill()
