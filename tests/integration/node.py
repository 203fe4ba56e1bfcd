"""A node of one's own for a test: a directory, a software GPU, the real daemon, real programs under `gpushare run`."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gpushare.errors import GpushareError
from gpushare.unixhttp import exchange

ROOT = Path(__file__).resolve().parents[2]
GIB = 2**30
MIB = 2**20
PATIENCE = 30.0


class Node:
    """Everything below one temporary directory. Used as a context manager: nothing outlives it."""

    def __init__(self, directory: Path, puppets: Path, *, sim: str = "memory=16Gi", driver: str = "sim") -> None:
        self.directory = directory
        self.puppets = puppets
        self.driver = driver
        self.runtime = directory / ("gpushare-sim" if driver == "sim" else "gpushare")
        self.drivers = self.runtime / "drivers"
        self.children: list[subprocess.Popen[str]] = []
        self.env = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("GPUSHARE_", "CUDA_", "NVIDIA_", "LD_", "RUNAI_"))
        }
        self.env |= {
            "XDG_RUNTIME_DIR": str(directory),
            "XDG_CONFIG_HOME": str(directory / "config"),
            "XDG_STATE_HOME": str(directory / "state"),
            "GPUSHARE_SIM": f"{sim},pool={directory}/pool",
            "PYTHONPATH": f"{ROOT}:{ROOT / 'daemon'}",
            "PYTHONUNBUFFERED": "1",
            "GPUSHARE_DRIVER": driver,
        }

    def __enter__(self) -> Node:
        self.directory.chmod(0o700)
        return self

    def __exit__(self, *_: object) -> None:
        for child in self.children:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
        for child in self.children:
            child.wait(PATIENCE)
            for stream in (child.stdin, child.stdout, child.stderr):
                if stream is not None:
                    stream.close()
        with contextlib.suppress(OSError, KeyError):
            os.kill(self.daemon_pid(), signal.SIGKILL)

    # ---- programs ------------------------------------------------------------------------------

    def gpushare(self, *words: object, **env: str) -> subprocess.CompletedProcess[str]:
        """A command, to its end."""
        line = [sys.executable, "-m", "gpushare", *map(str, words)]
        return subprocess.run(line, env=self.env | env, capture_output=True, text=True, timeout=60, check=False)

    def put_commands_on_path(self) -> None:
        """`gpushare` and `python`, for lines of a shell."""
        bin = self.directory / "bin"
        bin.mkdir()
        for name, module in (("gpushare", "-m gpushare"), ("python", "")):
            (bin / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {module} "$@"\n')
            (bin / name).chmod(0o755)
        self.env["PATH"] = f"{bin}:{self.env['PATH']}"

    def spawn(self, line: list[str], **env: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        child = subprocess.Popen(line, env=self.env | env, stdin=pipe, stdout=pipe, stderr=pipe, text=True, bufsize=1)
        self.children.append(child)
        return child

    def run(self, *words: object, **env: str) -> subprocess.Popen[str]:
        """`gpushare run` with these words, going on."""
        return self.spawn([sys.executable, "-m", "gpushare", "run", *map(str, words)], **env)

    def puppet(self, name: str, *options: object, binary: str = "puppet-dlopen", **env: str) -> Puppet:
        """A puppet as a job of its own, with a context on GPU 0."""
        program = Puppet(name, self.run("--name", name, *options, self.puppets / binary, **env))
        program.do("open 0")
        return program

    def job_env(self, name: str, *options: object) -> dict[str, str]:
        """The environment of a job that lives as long as the node: for programs started without a wrapper each."""
        file = self.directory / f"{name}.env"
        self.run("--name", name, *options, "sh", "-c", f"env -0 > {file}.new; mv {file}.new {file}; exec sleep 1000")
        wait_for(file.exists, "the job to start")
        return dict(pair.split("=", 1) for pair in file.read_text().split("\0") if "=" in pair)

    # ---- the daemon ----------------------------------------------------------------------------

    def start_daemon(self, config: str = "", *options: object) -> int:
        """In the background, as `gpushare run` would have started it, with these settings (TOML); its pid."""
        self.runtime.mkdir(mode=0o700, exist_ok=True)
        line = [sys.executable, "-m", "gpushared", "--user", "--driver", self.driver, "--dir", str(self.runtime)]
        log = (self.directory / "daemon.log").open("a")
        if config:
            settings = self.directory / "gpushared.toml"
            settings.write_text(config)
            line += ["--config", str(settings)]
        line += map(str, options)
        child = subprocess.Popen(line, env=self.env, stdout=log, stderr=log, text=True)
        log.close()
        self.children.append(child)
        wait_for(lambda: self.api("GET", "/v1/version").get("pid") == child.pid, "the daemon to answer")
        return child.pid

    def start_daemon_of_user(self, settings: str = "") -> int:
        """The one that `gpushare run` starts by itself, with a history; it stays."""
        history = self.directory / "state" / "gpushare" / "history-sim" / os.uname().nodename
        return self.start_daemon(f"[daemon]\nidle_exit = 3600\n{settings}", "--history", history)

    def daemon_pid(self) -> int:
        return int(self.api("GET", "/v1/version")["pid"])

    def kill_daemon(self) -> None:
        pid = self.daemon_pid()
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: gone(pid), "the daemon to be gone")

    def api(self, method: str, path: str) -> dict[str, Any]:
        """{} when nobody answers."""
        try:
            _, body = exchange(self.runtime / "api.sock", method, path, None, PATIENCE)
        except (OSError, GpushareError):
            return {}
        return dict(json.loads(body))

    def metrics(self) -> str:
        """In Prometheus's text format."""
        _, body = exchange(self.runtime / "api.sock", "GET", "/metrics", None, PATIENCE)
        return body.decode()

    def gpu(self, index: int = 0) -> dict[str, Any]:
        return dict(self.api("GET", "/v1/status")["gpus"][index])

    def job(self, name: str) -> dict[str, Any]:
        return dict(self.api("GET", f"/v1/jobs/{name}"))

    def log(self) -> str:
        found = [*self.directory.glob("daemon.log"), *self.runtime.glob("daemon.log")]
        return "".join(path.read_text() for path in found)


class Puppet:
    """A puppet program and the wrapper around it."""

    def __init__(self, name: str, wrapper: subprocess.Popen[str]) -> None:
        self.name, self.wrapper = name, wrapper

    def send(self, order: str) -> None:
        assert self.wrapper.stdin is not None
        self.wrapper.stdin.write(f"{order}\n")

    def answer(self) -> list[str]:
        assert self.wrapper.stdout is not None
        line = self.wrapper.stdout.readline()
        if not line:
            raise AssertionError(f"{self.name} has ended: {self.wrapper.wait(PATIENCE)}\n{self.errors()}")
        return line.split()

    def try_(self, order: str) -> list[str]:
        self.send(order)
        return self.answer()

    def do(self, order: str) -> list[str]:
        """What it answers, which must begin with ok."""
        answer = self.try_(order)
        assert answer[0] == "ok", f"{self.name}: {order}: {answer}"
        return answer[1:]

    def alloc(self, size: float) -> float:
        """Milliseconds."""
        return float(self.do(f"alloc {int(size)}")[1])

    def pid(self) -> int:
        """Of the program itself, a child of the wrapper."""
        children = Path(f"/proc/{self.wrapper.pid}/task/{self.wrapper.pid}/children").read_text().split()
        return next(int(child) for child in children if "puppet" in Path(f"/proc/{child}/comm").read_text())

    def end(self) -> int:
        if self.wrapper.poll() is None:
            with contextlib.suppress(BrokenPipeError):
                self.send("quit")
        return self.wrapper.wait(PATIENCE)

    def wait(self) -> int:
        return self.wrapper.wait(PATIENCE)

    def errors(self) -> str:
        """What it and its wrapper wrote to standard error; after the end."""
        assert self.wrapper.stderr is not None
        return self.wrapper.stderr.read()


def wait_for(condition: Callable[[], bool], what: str, patience: float = PATIENCE) -> None:
    """Until it holds; looks again every 10 ms."""
    for _ in _ticks(patience):
        try:
            if condition():
                return
        except (KeyError, IndexError, ValueError):
            pass
    raise AssertionError(f"waited {patience} s for {what}")


def _ticks(patience: float) -> Iterator[None]:
    end = time.monotonic() + patience
    while time.monotonic() < end:
        yield
        time.sleep(0.01)


def gone(pid: int) -> bool:
    """No such process, or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] in "ZX"
