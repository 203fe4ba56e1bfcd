"""Fixtures of the command line's tests: a fake daemon, commands in this process, and `run` as users start it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).parent))

from fake_api import FakeDaemon, starts  # noqa: E402

from gpushare.cli import main  # noqa: E402
from gpushare.paths import SYSTEM_DIR, library  # noqa: E402


@pytest.fixture
def gpushare(capsys):
    """Run a command in this process: (exit code, stdout, stderr)."""

    def gpushare(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(list(arguments))
        return code, *capsys.readouterr()

    return gpushare


@pytest.fixture
def environ(tmp_path, monkeypatch):
    """A clean environment: no settings of the user or the machine reach a test."""
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    for name in list(os.environ):
        if name.startswith(("GPUSHARE_", "CUDA_", "NVIDIA_", "RUNAI_")) or name == "LD_PRELOAD":
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parent / 'standin'}:{ROOT}")
    monkeypatch.setenv("COLUMNS", "200")
    return os.environ


@pytest.fixture
def fake(tmp_path, environ, monkeypatch):
    daemon = FakeDaemon(tmp_path / "fake").start()
    monkeypatch.setenv("GPUSHARE_SOCKET", str(daemon.socket))
    monkeypatch.setenv("GPUSHARE_DRIVER", "sim")  # else `run` announces the software driver each time
    yield daemon
    daemon.stop()


@pytest.fixture
def start(environ):
    """Start `gpushare ...`; whatever is left at the end is killed."""
    if not library().exists():
        pytest.skip(f"{library()} is not built")
    started = []

    def start(*arguments, **options) -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, "-m", "gpushare", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            **options,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)  # the program too: it holds our pipes
        process.communicate()


@pytest.fixture
def run(start):
    """Run `gpushare run ...` to its end: a CompletedProcess. No traceback, ever."""

    def run(*arguments, timeout: float = 20.0, **options) -> subprocess.CompletedProcess:
        process = start("run", *arguments, **options)
        stdout, stderr = process.communicate(timeout=timeout)
        assert "Traceback" not in stderr, stderr
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    return run


@pytest.fixture
def own_daemon(environ):
    """The directory of this user's daemon for the software driver; the stand-in is what gets started there."""
    if SYSTEM_DIR.exists():
        pytest.skip("a system daemon's directory exists on this machine and comes first")
    directory = Path(environ["XDG_RUNTIME_DIR"]) / "gpushare-sim"
    yield directory
    for pid in starts(directory):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 9)
