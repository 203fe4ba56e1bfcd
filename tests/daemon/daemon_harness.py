"""Daemons and programs for tests."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fixed_gpus import FixedGpus
from shim_client import ShimClient

from gpushare import unixhttp
from gpushare.client import Client
from gpushare.errors import DaemonUnreachable
from gpushared import config as configuration
from gpushared.daemon import Daemon
from gpushared.system.runtime_dir import RuntimeDir

GIB = 2**30
GPU = "GPU-00000000-0000-0000-0000-000000000001"
GPU2 = "GPU-00000000-0000-0000-0000-000000000002"
HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PYTHONPATH = f"{ROOT}:{ROOT / 'daemon'}:{HERE}"


def until(condition: Callable[[], Any], seconds: float = 5.0) -> Any:
    """Wait for something to become true."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {condition}")
        time.sleep(0.01)


class InProcess:
    """A daemon on a thread. Its core is validated when it stops."""

    def __init__(self, directory: Path, config: configuration.Config, gpus: FixedGpus, *, system: bool = False) -> None:
        self.directory = directory
        self.system = system
        self.config = config
        self.gpus = gpus
        self.failure: BaseException | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            self.failure = error
        finally:
            self._ready.set()

    async def _main(self) -> None:
        taken = RuntimeDir(self.directory, system=self.system)
        taken.take()
        try:
            self.daemon = Daemon(taken, self.gpus, configuration.Loaded(self.config, None, frozenset()))
            self.loop = asyncio.get_running_loop()
            task = asyncio.create_task(self.daemon.run())
            while not (self.directory / "api.sock").exists() and not task.done():  # noqa: ASYNC110  (a file has no event)
                await asyncio.sleep(0.005)
            if not task.done():
                self._ready.set()
            await task
        finally:
            taken.release()

    def start(self) -> InProcess:
        self._thread.start()
        assert self._ready.wait(10)
        if self.failure is not None:
            raise self.failure
        return self

    def stop(self) -> None:
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.daemon.stop)
        self._thread.join(10)
        assert not self._thread.is_alive()
        if self.failure is not None:
            raise self.failure

    def call(self, function: Callable[[], Any]) -> Any:
        """Run something on the daemon's own thread."""

        async def wrapped() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(wrapped(), self.loop).result(10)

    @property
    def shell(self) -> Any:
        return self.daemon.shell

    @property
    def shim(self) -> Path:
        return self.directory / "shim.sock"

    @property
    def client(self) -> Client:
        return Client(self.directory / "api.sock")

    def connect(self, timeout: float = 10.0) -> ShimClient:
        return ShimClient(self.shim, timeout)

    def http(self, method: str, target: str, body: bytes | None = None) -> tuple[int, bytes]:
        return unixhttp.exchange(self.directory / "api.sock", method, target, body, 10.0)

    def validate(self) -> None:
        self.call(self.shell.core.validate)


class Subprocess:
    """A daemon as a process: `gpushared` on the software driver, or fixed_daemon.py."""

    def __init__(self, directory: Path, environment: dict[str, str], *, fixed: bool) -> None:
        self.directory = directory
        self.environment = {**os.environ, "PYTHONPATH": PYTHONPATH, **environment}
        self.process: subprocess.Popen[bytes] | None = None
        self.log = directory / "test.log"
        self.command = [sys.executable, "-m", "gpushared", "--user", "--driver", "sim", "--dir", str(directory)]
        if fixed:
            self.command = [sys.executable, str(HERE / "fixed_daemon.py"), str(directory)]

    def spawn(self, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen([*self.command, *arguments], env={**self.environment, **environment}, stderr=log)

    def start(self, *arguments: str, **environment: str) -> Subprocess:
        self.process = self.spawn(*arguments, **environment)
        until(self._answers, 10)
        return self

    def _answers(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(f"the daemon ended with {self.process.returncode}:\n{self.log.read_text()}")
        try:
            return bool(self.client.version()["pid"] == self.process.pid)
        except DaemonUnreachable:
            return False

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(10)

    @property
    def client(self) -> Client:
        return Client(self.directory / "api.sock")

    @property
    def shim(self) -> Path:
        return self.directory / "shim.sock"

    def connect(self) -> ShimClient:
        return ShimClient(self.shim)


class Program:
    """program.py as a process: its methods are those of ShimClient, by name."""

    def __init__(self, shim: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "program.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": PYTHONPATH},
            text=True,
        )
        self.call("connect", str(shim))

    @property
    def pid(self) -> int:
        return self.process.pid

    def send(self, *command: Any, **keywords: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([*command, keywords]) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise EOFError(f"the program has ended: {self.process.wait(5)}")
        answer = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def call(self, *command: Any, **keywords: Any) -> Any:
        self.send(*command, **keywords)
        return self.answer()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
