"""Real programs on the software driver: built once a session, a node of its own for each test."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.node import ROOT, Node

HERE = Path(__file__).resolve().parent
SIM = ROOT / "gpushare" / "sim"

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts commands in the background like this, and programs inherit it. Tests interrupt programs.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def puppets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with puppet-dlopen and puppet-linked."""
    directory = tmp_path_factory.mktemp("puppets")
    compiler = [os.environ.get("CC", "cc"), "-Wall", "-Wextra", "-Werror", str(HERE / "puppet.c")]
    subprocess.run([*compiler, "-DBY_DLOPEN", "-o", str(directory / "puppet-dlopen"), "-ldl"], check=True)
    (directory / "libcuda.so").symlink_to(SIM / "libcuda.so.1")
    linked = [*compiler, "-o", str(directory / "puppet-linked"), f"-L{directory}", "-lcuda"]
    subprocess.run(linked, check=True)
    (directory / "libcuda.so").unlink()
    return directory


@pytest.fixture
def node(tmp_path: Path, puppets: Path) -> Iterator[Node]:
    """One software GPU of 16 GiB."""
    with Node(tmp_path, puppets) as one:
        yield one


@pytest.fixture
def two_gpus(tmp_path: Path, puppets: Path) -> Iterator[Node]:
    with Node(tmp_path, puppets, sim="gpus=2,memory=16Gi") as one:
        yield one
