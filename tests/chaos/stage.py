"""The stage: a directory, software GPUs, the real daemon, real programs with the real shim; one thread, nothing waits.

A program is a puppet (tests/integration/puppet.c). It is started in one of three ways, as users do: under `gpushare
run`, as a process of a job that somebody else has registered (here: this process, which is that job's wrapper), or with
nothing but the environment. Orders are written to its pipe and answered whenever it gets to them; `pump` hands out
what comes.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from chaos.oracle import Record
from gpushare.errors import GpushareError
from gpushare.unixhttp import Parser, connect, exchange, request_bytes

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = ROOT / "gpushare" / "sim"
PRELOAD = ROOT / "gpushare" / "lib" / "libgpushare.so"
PATIENCE = 30.0
CONFIG = """
[memory]
sample_interval = "200ms"
[reclaim]
claim_timeout = "{claim_timeout}s"
grace = "1s"
hook = "3s"
hook_resume = "3s"
[suspend]
memory = "64Gi"
runs_after = "1s"
[daemon]
idle_exit = "1h"
"""


class Stuck(AssertionError):
    """Something did not come."""


@dataclass(eq=False)
class Program:
    """One puppet process."""

    serial: int
    name: str
    child: subprocess.Popen[bytes]
    log: Path
    wrapped: bool = False
    pid: int = 0
    pidfd: int = -1
    answers: deque[tuple[str, Callable[[list[str]], None]]] = field(default_factory=deque)
    """(order, what to do with its answer) in the order of sending."""
    unasked: Callable[[list[str]], None] | None = None
    """Takes the lines that are no answers."""
    text: bytes = b""
    ended_at: float | None = None
    killed_by_us: bool = False
    doomed_from: float | None = None
    """When we have done what ends it."""

    @property
    def alive(self) -> bool:
        return self.ended_at is None

    def status(self) -> int:
        """As Popen says it: negative for a signal. Of a wrapped program as its wrapper passes it on."""
        code = self.child.wait(PATIENCE)
        return 128 - code if self.wrapped and code > 128 else code


@dataclass(eq=False)
class Helper:
    """A process beside a job, whose lines are read."""

    child: subprocess.Popen[bytes]
    on_line: Callable[[list[str]], None]
    on_end: Callable[[], None] = lambda: None
    text: bytes = b""


class Stage:
    """Everything below one directory; nothing outlives `close`."""

    def __init__(self, directory: Path, puppet: Path, *, gpus: int, memory: str, claim_timeout: float) -> None:
        self.directory = directory
        self.puppet = puppet
        self.runtime = directory / "run"
        self.runtime.mkdir(mode=0o700)
        self.config = directory / "gpushared.toml"
        self.config.write_text(CONFIG.format(claim_timeout=claim_timeout))
        self.sim = f"gpus={gpus},memory={memory},context=300Mi,pool={directory}/pool,checkpoint_rate=40Gi"
        self.teardown = 0
        """Milliseconds that the driver takes to free what a killed program held."""
        left_out = ("GPUSHARE_", "CUDA_", "NVIDIA_", "LD_", "RUNAI_")
        self.env = {key: value for key, value in os.environ.items() if not key.startswith(left_out)}
        self.env |= {"PYTHONPATH": f"{ROOT}:{ROOT / 'daemon'}:{ROOT / 'tests'}", "PYTHONUNBUFFERED": "1"}
        self.env |= {"GPUSHARE_DRIVER": "sim", "GPUSHARE_LOG": "info"}
        self.selector = selectors.DefaultSelector()
        self.programs: dict[int, Program] = {}
        self.helpers: list[Helper] = []
        self.fifos: list[int] = []
        self.serial = 0
        self.records: list[Record] = []
        self.daemon: subprocess.Popen[bytes] | None = None
        self.daemons = 0
        self.names: dict[str, str] = {}
        """Ids of jobs -> names."""
        self.index: dict[str, int] = {}
        """UUIDs -> numbers."""
        self._stream: tuple[socket.socket, Parser, bytearray] | None = None
        self._daemon_since = 0.0
        """When the daemon was started, by the wall clock."""
        self.on_end: Callable[[Program], None] = lambda _: None

    def close(self) -> None:
        for program in list(self.programs.values()):
            with contextlib.suppress(ProcessLookupError):
                if program.pidfd >= 0:
                    signal.pidfd_send_signal(program.pidfd, signal.SIGKILL)
                program.child.kill()
        for program in list(self.programs.values()):
            program.child.wait(PATIENCE)
            self._let_go(program)
        for helper in self.helpers:
            helper.child.kill()
            helper.child.wait(PATIENCE)
            assert helper.child.stdout is not None
            helper.child.stdout.close()
        self._end_stream()
        if self.daemon is not None:
            self.daemon.kill()
            self.daemon.wait(PATIENCE)
        for fifo in self.fifos:
            os.close(fifo)
        self.selector.close()

    # ---- waiting -----------------------------------------------------------------------------------

    def pump(self, until: Callable[[], bool], patience: float, what: str) -> None:
        """Take what comes until the condition holds; Stuck if it does not in time."""
        end = time.monotonic() + patience
        while not until():
            left = end - time.monotonic()
            if left <= 0:
                raise Stuck(f"waited {patience:.0f} s for {what}")
            self.turn(min(left, 0.05))

    def rest(self, seconds: float) -> None:
        """Let time pass, and take what comes."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.turn(left)

    def turn(self, longest: float) -> None:
        for key, _ in self.selector.select(longest):
            if self.selector.get_map().get(key.fd) is key:
                key.data()

    # ---- the daemon --------------------------------------------------------------------------------

    def start_daemon(self) -> None:
        line = [sys.executable, "-m", "chaos.checked_daemon", "--user", "--driver", "sim", "--dir", str(self.runtime)]
        with (self.directory / "daemon.log").open("ab") as log:
            env = self.env | {"GPUSHARE_SIM": self._sim()}
            self._daemon_since = time.time()
            self.daemon = subprocess.Popen([*line, "--config", str(self.config)], env=env, stdout=log, stderr=log)
        self.daemons += 1
        pid = self.daemon.pid
        self.pump(lambda: self.api("GET", "/v1/version").get("pid") == pid, PATIENCE, "the daemon to answer")
        for gpu in self.api("GET", "/v1/status")["gpus"]:
            self.index[gpu["uuid"]] = gpu["index"]
        self._follow()

    def stop_daemon(self, number: signal.Signals) -> None:
        assert self.daemon is not None
        self.daemon.send_signal(number)
        self.pump(lambda: self.daemon is not None and self.daemon.poll() is not None, PATIENCE, "the daemon to be gone")
        self.pump(lambda: self._stream is None, PATIENCE, "the end of its records")

    def daemon_is_well(self) -> bool:
        return self.daemon is not None and self.daemon.poll() is None

    def call(self, method: str, path: str, body: Mapping[str, object] | None = None) -> tuple[int, dict[str, Any]]:
        """(0, {}) when nobody answers."""
        data = None if body is None else json.dumps(body).encode()
        try:
            status, text = exchange(self.runtime / "api.sock", method, path, data, PATIENCE)
        except (OSError, GpushareError):
            return 0, {}
        return status, dict(json.loads(text))

    def api(self, method: str, path: str, body: Mapping[str, object] | None = None) -> dict[str, Any]:
        return self.call(method, path, body)[1]

    def metrics(self) -> dict[str, float]:
        _, text = exchange(self.runtime / "api.sock", "GET", "/metrics", None, PATIENCE)
        lines = (line.rpartition(" ") for line in text.decode().splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in lines}

    # ---- its records -------------------------------------------------------------------------------

    def _follow(self) -> None:
        sock = connect(self.runtime / "api.sock", PATIENCE)
        sock.sendall(request_bytes("GET", "/v1/events?follow=1&last=10000", None))
        sock.setblocking(False)
        self._stream = (sock, Parser(), bytearray())
        self.selector.register(sock, selectors.EVENT_READ, self._read_records)

    def _read_records(self) -> None:
        assert self._stream is not None
        sock, parser, text = self._stream
        try:
            data = sock.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._end_stream()
            return
        text += parser.feed(data)
        offset = time.time() - time.monotonic()
        *lines, rest = bytes(text).split(b"\n")
        text[:] = rest
        for line in filter(None, lines):
            self._note(json.loads(line), offset)

    def _note(self, one: dict[str, Any], offset: float) -> None:
        if one["time"] < self._daemon_since:
            return  # a daemon also tells the records of earlier daemons, which have come from them already
        if one["job"] and one["name"]:
            self.names[one["job"]] = one["name"]
        gpu = self.index.get(one["gpu"], -1)
        job = one["name"] or ""
        self.records.append(Record(one["time"] - offset, one["event"], job, gpu, one["facts"], one["text"]))

    def _end_stream(self) -> None:
        if self._stream is not None:
            self.selector.unregister(self._stream[0])
            self._stream[0].close()
            self._stream = None

    # ---- programs ----------------------------------------------------------------------------------

    def _sim(self) -> str:
        return f"{self.sim},teardown={self.teardown}ms" if self.teardown else self.sim

    def outsider_env(self) -> dict[str, str]:
        return self.env | {"GPUSHARE_SIM": self._sim(), "LD_LIBRARY_PATH": str(LIBRARIES)}

    def program_env(self) -> dict[str, str]:
        """Of a program with the shim: that a job's name and budget are to be added to."""
        socket_path = str(self.runtime / "api.sock")
        return self.outsider_env() | {"LD_PRELOAD": str(PRELOAD), "GPUSHARE_SOCKET": socket_path}

    def run_line(self, *options: object) -> list[str]:
        """`gpushare run` around the puppet; it does not start daemons, that is our part."""
        return [sys.executable, "-m", "gpushare", "run", *map(str, options), str(self.puppet)]

    def spawn(self, name: str, line: list[str], env: Mapping[str, str], *, wrapped: bool = False) -> Program:
        self.serial += 1
        log = self.directory / "programs.log"
        with log.open("ab") as err:
            pipe = subprocess.PIPE
            child = subprocess.Popen(line, env=env, stdin=pipe, stdout=pipe, stderr=err, bufsize=0)
        program = Program(self.serial, name, child, log, wrapped)
        self.programs[program.serial] = program
        assert child.stdout is not None
        os.set_blocking(child.stdout.fileno(), False)
        self.selector.register(child.stdout, selectors.EVENT_READ, lambda: self._read(program))
        if wrapped:
            told: list[str] = []
            self.order(program, "pid", told.extend)
            self.pump(lambda: bool(told) or child.poll() is not None, PATIENCE, f"{name} to start")
            if not told:
                self._ended(program)
                return program
            program.pid = int(told[1])
        else:
            program.pid = child.pid
        program.pidfd = os.pidfd_open(program.pid)
        self.selector.register(program.pidfd, selectors.EVENT_READ, lambda: self._ended(program))
        return program

    def helper(self, line: list[str], env: Mapping[str, str], on_line: Callable[[list[str]], None]) -> Helper:
        with (self.directory / "helpers.log").open("ab") as err:
            child = subprocess.Popen(line, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=err)
        helper = Helper(child, on_line)
        self.helpers.append(helper)
        assert child.stdout is not None
        os.set_blocking(child.stdout.fileno(), False)
        self.selector.register(child.stdout, selectors.EVENT_READ, lambda: self._read_helper(helper))
        return helper

    def _read_helper(self, helper: Helper) -> None:
        assert helper.child.stdout is not None
        try:
            data = os.read(helper.child.stdout.fileno(), 1 << 16)
        except BlockingIOError:
            return
        *lines, helper.text = (helper.text + data).split(b"\n")
        for line in lines:
            helper.on_line(line.decode().split())
        if not data:
            self.selector.unregister(helper.child.stdout)
            helper.child.stdout.close()
            helper.child.wait(PATIENCE)
            self.helpers.remove(helper)
            helper.on_end()

    def read_lines(self, fifo: Path, on_line: Callable[[list[str]], None]) -> None:
        """Each line that anybody writes to it."""
        fd = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
        self.fifos.append(fd)
        self.selector.register(fd, selectors.EVENT_READ, lambda: _each_line(os.read(fd, 1 << 16), on_line))

    def order(self, program: Program, text: str, then: Callable[[list[str]], None] = lambda _: None) -> None:
        """Have it do something; `then` gets the words of its answer, if it lives to give one."""
        program.answers.append((text, then))
        pipe: IO[bytes] | None = program.child.stdin
        assert pipe is not None
        with contextlib.suppress(BrokenPipeError):
            pipe.write(f"{text}\n".encode())

    def ask(self, program: Program, text: str) -> list[str]:
        """The same, and wait. [] if it ended."""
        answer: list[str] = []
        self.order(program, text, answer.extend)
        self.pump(lambda: bool(answer) or not program.alive, PATIENCE, f"{program.name} to {text}")
        return answer

    def _read(self, program: Program) -> None:
        assert program.child.stdout is not None
        try:
            data = os.read(program.child.stdout.fileno(), 1 << 16)
        except BlockingIOError:
            return
        if not data:
            with contextlib.suppress(KeyError):  # the process has ended, and this is what was left to read
                self.selector.unregister(program.child.stdout)
            return
        *lines, program.text = (program.text + data).split(b"\n")
        for line in lines:
            words = line.decode().split()
            if words and words[0] in ("ok", "error") and program.answers:
                program.answers.popleft()[1](words)
            elif program.unasked is not None:
                program.unasked(words)

    def whereabouts(self) -> str:
        """In which system calls the threads of the programs are, for a fault that nobody understands."""
        found = []
        for program in self.programs.values():
            for task in Path(f"/proc/{program.pid}/task").glob("*"):
                with contextlib.suppress(OSError):
                    texts = [(task / name).read_text().strip() for name in ("wchan", "syscall")]
                    found.append(f"{program.name}[{task.name}] {' '.join(texts)}")
        return "; ".join(found)

    def signal(self, program: Program, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(program.pidfd, number)

    def kill(self, program: Program) -> None:
        program.killed_by_us = True
        program.doomed_from = min(program.doomed_from or time.monotonic(), time.monotonic())
        self.signal(program, signal.SIGKILL)

    def _ended(self, program: Program) -> None:
        if program.ended_at is not None:
            return
        self._read(program)
        program.ended_at = time.monotonic()
        self._let_go(program)
        self.programs.pop(program.serial, None)
        self.on_end(program)

    def _let_go(self, program: Program) -> None:
        if program.pidfd >= 0:
            with contextlib.suppress(KeyError):
                self.selector.unregister(program.pidfd)
            os.close(program.pidfd)
            program.pidfd = -1
        for pipe in (program.child.stdin, program.child.stdout):
            if pipe is not None:
                with contextlib.suppress(KeyError, ValueError):
                    self.selector.unregister(pipe)
                pipe.close()


def _each_line(data: bytes, on_line: Callable[[list[str]], None]) -> None:
    """A line that is shorter than PIPE_BUF comes whole."""
    for line in data.splitlines():
        on_line(line.decode().split())
