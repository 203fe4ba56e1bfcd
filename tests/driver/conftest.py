"""Runs scenarios on the software driver, each in a process of its own and on a pool of its own.

A scenario is a function of a test module; `sim.run(scenario)` calls it in a fresh interpreter with the driver in front
of its library path, because a process initialises CUDA once. The libraries are those that the build made, unless the
sources are newer: then they are compiled here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from simbuild import SHIM, libraries

import switches


@pytest.fixture(scope="session")
def sim_libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with both libraries under both of the names that programs open."""
    return libraries(tmp_path_factory.mktemp("sim"))


class Child:
    """A scenario that is still running: it talks in lines."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pid = process.pid

    def line(self) -> str:
        assert self.process.stdout is not None
        text = self.process.stdout.readline()
        assert text, f"the scenario ended: {self.process.wait()}"
        return text.strip()

    def tell(self, text: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(30) == 0
        self._close()

    def kill(self, reap: bool = True) -> None:
        self.process.kill()
        if reap:
            self.process.wait(30)
            self._close()

    def _close(self) -> None:
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


class Sim:
    """The driver with one pool."""

    def __init__(self, libraries: Path, pool: Path) -> None:
        self.libraries = libraries
        self.pool = pool
        self.settings = "gpus=1,memory=16Gi"
        self.children: list[Child] = []

    def environment(self, **changes: str | None) -> dict[str, str]:
        environment = {k: v for k, v in os.environ.items() if k not in ("CUDA_VISIBLE_DEVICES", "LD_PRELOAD")}
        environment["LD_LIBRARY_PATH"] = str(self.libraries)
        environment["PYTHONPATH"] = f"{Path(__file__).parent}:{Path(__file__).parents[1]}"
        environment["GPUSHARE_SIM"] = f"{self.settings},pool={self.pool}"
        for name, value in changes.items():
            if value is None:
                environment.pop(name, None)
            else:
                environment[name] = value
        if "GPUSHARE_SIM" in environment:
            environment["GPUSHARE_SIM"] = switches.added(environment["GPUSHARE_SIM"], switches.of_this_run())
        return environment

    def command(self, scenario: Callable[..., None], *arguments: Any) -> list[str]:
        module, name = scenario.__module__.rpartition(".")[2], scenario.__name__
        text = f"import json, sys, {module}; {module}.{name}(*json.loads(sys.argv[1]))"
        return [sys.executable, "-c", text, json.dumps(arguments)]

    def run(self, scenario: Callable[..., None], *arguments: Any, **changes: str | None) -> str:
        """Runs to the end; what it printed. Its failure is the test's."""
        done = self.result(scenario, *arguments, **changes)
        assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def result(
        self, scenario: Callable[..., None], *arguments: Any, **changes: str | None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(scenario, *arguments),
            env=self.environment(**changes),
            capture_output=True,
            text=True,
            timeout=60,
        )

    def start(self, scenario: Callable[..., None], *arguments: Any, **changes: str | None) -> Child:
        process = subprocess.Popen(
            self.command(scenario, *arguments),
            env=self.environment(**changes),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        child = Child(process)
        self.children.append(child)
        return child


@pytest.fixture
def sim(sim_libraries: Path, tmp_path: Path) -> Iterator[Sim]:
    one = Sim(sim_libraries, tmp_path / "pool")
    yield one
    for child in one.children:
        child.kill()  # one that has just ended by itself has pipes that are open, too


@pytest.fixture(scope="session")
def compile_c(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Compiles a small C program against our own declarations."""
    directory = tmp_path_factory.mktemp("programs")

    def compile_program(name: str, source: str, *flags: str) -> Path:
        file = directory / f"{name}.c"
        file.write_text(source)
        command = [os.environ.get("CC", "cc"), "-std=gnu11", "-O1", "-Wall", "-Wextra", f"-I{SHIM}"]
        subprocess.run([*command, "-o", directory / name, file, *flags], check=True)
        return directory / name

    return compile_program
