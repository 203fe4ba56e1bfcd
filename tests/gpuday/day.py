"""What a check has at hand: programs with and without the preload library, a node with a daemon, NVML, its answers.

Everything is below one directory, on one GPU, and ends with the check.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from gpuday.runner import ROOT, Machine
from integration.node import MIB, Node

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE / "programs"
LIBRARY = ROOT / "gpushare" / "lib" / "libgpushare.so"
PATIENCE = 300.0
"""Seconds for one program. The check's own limit ends it before."""

COMPILED = {
    "puppet-dlopen": (ROOT / "tests" / "integration" / "puppet.c", ("-DBY_DLOPEN",)),
    "cost": (PROGRAMS / "cost.c", ("-O2", "-pthread")),
}
"""Small C programs: name -> source and flags."""


class Failed(Exception):
    """A program did not come to its end."""


class Skip(Exception):
    """The rest of a part of a check cannot be asked here. The message says why."""


class Day:
    def __init__(self, directory: Path, machine: Machine) -> None:
        self.directory = directory
        self.machine = machine
        self.cleanup = contextlib.ExitStack()

    def __enter__(self) -> Day:
        return self

    def __exit__(self, *_: object) -> None:
        self.cleanup.close()

    @property
    def real(self) -> bool:
        return self.machine.driver == "nvidia"

    # ---- what is said --------------------------------------------------------------------------------

    def answer(self, name: str, value: Any, side: str = "values") -> None:
        print(json.dumps({"answer": name, "value": value, "side": side}), flush=True)

    def skip(self, part: str, why: str) -> None:
        print(json.dumps({"skip": part, "why": why}), flush=True)

    def part(self, name: str, ask: Callable[[], None]) -> None:
        """A part of a check that may be skipped, by its name."""
        if self.machine.only and name not in self.machine.only:
            self.skip(name, "not asked for")
            return
        try:
            ask()
        except Skip as reason:
            self.skip(name, str(reason))

    def needs_gpu(self, why: str = "it runs kernels") -> None:
        if not self.real:
            raise Skip(f"needs a real GPU: {why}")

    def needs_module(self, *names: str, kernels: bool = True) -> None:
        """One of these, in the Python that has the frameworks. Nothing is imported for the question."""
        if kernels:
            self.needs_gpu()
        if not has_module(self.machine.python, names, self.plain()):
            raise Skip(f"{' or '.join(names)} is not installed for {self.machine.python}")

    def tool(self, name: str) -> str:
        """The path of a command."""
        found = shutil.which(name) or next(
            (place for place in (f"/usr/local/cuda/bin/{name}", f"/usr/bin/{name}") if os.access(place, os.X_OK)), None
        )
        if found is None:
            raise Skip(f"{name} is not installed")
        return found

    # ---- programs ------------------------------------------------------------------------------------

    def plain(self) -> dict[str, str]:
        """The environment of a program that is not ours: no path of ours for Python, but its user's."""
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        theirs = os.environ.get("GPUDAY_PYTHONPATH")
        return environment | ({"PYTHONPATH": theirs} if theirs else {})

    def preloaded(self, limit: str) -> dict[str, str]:
        """Of a program under the preload library alone, without a daemon."""
        return self.plain() | {
            "LD_PRELOAD": str(LIBRARY),
            "GPUSHARE_LIMIT": limit,
            "GPUSHARE_LOG": "error",
            "GPUSHARE_SOCKET": str(self.directory / "no-daemon.sock"),
        }

    def line(self, program: str, *arguments: Any) -> list[str]:
        """The command of FILE.FUNCTION in programs/. Files named with_* run in the Python that has the frameworks."""
        file, _, function = program.partition(".")
        python = self.machine.python if file.startswith("with_") else sys.executable
        return [python, str(PROGRAMS / f"{file}.py"), function, json.dumps(arguments)]

    def ask(self, program: str, *arguments: Any, limit: str | None = None, **environment: str) -> dict[str, Any]:
        """The answers of a program; under the preload library if a limit is given. Raises Failed."""
        env = (self.plain() if limit is None else self.preloaded(limit)) | environment
        return self.answers_of(self.line(program, *arguments), env)

    def answers_of(self, line: list[str], env: dict[str, str], stdin: str = "") -> dict[str, Any]:
        done = subprocess.run(
            line,
            env=env,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            cwd=self.directory,
            check=False,
        )
        answers = dict(json.loads(text) for text in done.stdout.splitlines() if text.startswith('["'))
        if done.returncode != 0:
            raise Failed(
                f"{' '.join(line[1:3])} ended with {done.returncode} after {list(answers)}: {done.stderr[-800:]}"
            )
        return answers

    def both(self, program: str, *arguments: Any, limit: str, **environment: str) -> None:
        """The same program without and with the preload library; its answers are the check's."""
        for side, given in (("bare", None), ("shim", limit)):
            for name, value in self.ask(program, *arguments, limit=given, **environment).items():
                self.answer(name, value, side)

    def compiled(self, name: str) -> Path:
        """One of the small C programs."""
        if self.machine.binaries:
            return Path(self.machine.binaries) / name
        binary = self.directory / "bin" / name
        if not binary.exists():
            binary.parent.mkdir(exist_ok=True)
            compile_program(name, binary)
        return binary

    # ---- a node --------------------------------------------------------------------------------------

    @cached_property
    def node(self) -> Node:
        """With a daemon, as `gpushare run` starts it; its programs share the GPU of this check."""
        node = Node(
            self.directory, self.compiled("puppet-dlopen").parent, sim=self.machine.settings, driver=self.machine.driver
        )
        node.env["PYTHONPATH"] = os.environ["PYTHONPATH"]
        return self.cleanup.enter_context(node)

    def job(self, program: str, *arguments: Any, options: tuple[object, ...] = (), **environment: str) -> Talk:
        """A program of programs/ as a job of the node, going on."""
        line = self.line(program, *arguments)
        env = [f"{key}={value}" for key, value in environment.items()]
        theirs = [f"PYTHONPATH={path}" for path in [os.environ.get("GPUDAY_PYTHONPATH")] if path]
        return Talk(program, self.node.run(*options, "env", "-u", "PYTHONPATH", *theirs, *env, *line))

    @cached_property
    def unit(self) -> int:
        """A sixteenth of what one job may have on the GPU, in bytes: whole blocks."""
        probe = self.node.puppet("probe", "--limit", "max")
        total = int(probe.do("info")[1])
        probe.end()
        return total // 16 // (2 * MIB) * (2 * MIB)

    # ---- NVML ----------------------------------------------------------------------------------------

    @cached_property
    def nvml(self) -> Any:
        """pynvml, initialised in this process, which is not preloaded."""
        import pynvml

        pynvml.nvmlInit()
        self.cleanup.callback(pynvml.nvmlShutdown)
        return pynvml

    def used(self) -> int:
        """Bytes of the GPU that anybody uses."""
        return int(self.nvml.nvmlDeviceGetMemoryInfo(self.nvml.nvmlDeviceGetHandleByIndex(0)).used)

    def by_pid(self) -> dict[int, int]:
        """Bytes by process, as NVML shows them to us. {} where it shows no processes."""
        try:
            found = self.nvml.nvmlDeviceGetComputeRunningProcesses(self.nvml.nvmlDeviceGetHandleByIndex(0))
        except self.nvml.NVMLError:
            return {}
        return {process.pid: int(process.usedGpuMemory or 0) for process in found}

    def settled(self, still: float = 0.3, patience: float = 10.0) -> int:
        """Bytes used, once they have not changed for a while."""
        used, since, end = self.used(), time.monotonic(), time.monotonic() + patience
        while time.monotonic() - since < still and time.monotonic() < end:
            time.sleep(0.02)
            now = self.used()
            if now != used:
                used, since = now, time.monotonic()
        return used

    def holder(self, size: int = 0, limit: str | None = None) -> Talk:
        """A program with a context and so many bytes, until it is told to end. Raises Failed if it cannot start."""
        env = self.plain() if limit is None else self.preloaded(limit)
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            self.line("driver.hold", size), env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True, bufsize=1
        )
        talk = Talk("holder", process)
        talk.expect("holds")
        return talk


class Talk:
    """A program that goes on: its answers one by one, and lines to it."""

    def __init__(self, name: str, process: subprocess.Popen[str]) -> None:
        self.name, self.process = name, process

    @property
    def pid(self) -> int:
        return self.process.pid

    def tell(self, line: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def answers(self) -> Iterator[tuple[str, Any]]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith('["'):
                name, value = json.loads(line)
                yield name, value

    def expect(self, wanted: str) -> Any:
        """The value of the next answer of that name. Raises Failed if the program ends before."""
        for name, value in self.answers():
            if name == wanted:
                return value
        assert self.process.stderr is not None
        raise Failed(f"{self.name} ended with {self.process.wait()}: {self.process.stderr.read()[-800:]}")

    def end(self) -> dict[str, Any]:
        """Tells it to end; its last answers. Raises Failed if it ends badly."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.tell("end")
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()  # what could not be written is still there, and fails once more
        found = dict(self.answers())
        code = self.process.wait(PATIENCE)
        if code != 0:
            assert self.process.stderr is not None
            raise Failed(f"{self.name} ended with {code}: {self.process.stderr.read()[-800:]}")
        return found


def has_module(python: str, names: tuple[str, ...], environment: dict[str, str]) -> bool:
    """Whether one of these modules is installed for that Python."""
    text = f"import importlib.util as i, sys; sys.exit(not any(i.find_spec(name) for name in {names!r}))"
    try:
        done = subprocess.run([python, "-c", text], env=environment, stderr=subprocess.DEVNULL, check=False)
    except OSError:
        return False
    return done.returncode == 0


def compile_program(name: str, target: Path, *flags: str) -> None:
    """Raises Skip where there is no compiler."""
    source, own = COMPILED[name]
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise Skip("no C compiler is installed")
    line = [compiler, "-std=gnu11", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'shim'}", *own, *flags]
    subprocess.run([*line, "-o", str(target), str(source), "-ldl"], check=True)
