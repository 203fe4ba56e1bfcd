"""The answers of one driver to all probes, as data: name -> value, with what the driver is and when it was asked.

A file of such answers is JSON: {"driver": {...}, "observations": {name: value}}. One that was recorded on a machine
with a GPU can be compared on any other.
"""

from __future__ import annotations

import ctypes
import datetime
import json
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probes import PROBES
from simcuda import DRIVER, MEASURED

HERE = Path(__file__).resolve().parent
PATIENCE = 120.0

# Scenarios of the software driver's own tests that ask for nothing that only it could know. The answer to one is
# "passes", or why it does not.
SCENARIOS = {
    "test_sim_copy": ("straight", "fills", "boxes", "arrays", "mipmaps"),
    "test_sim_graphs": ("runs_nodes", "shapes", "captures", "forbidden"),
    "test_sim_managed": ("several_attributes", "batches"),
    "test_sim_memory": ("addresses", "host_memory", "memory_returns"),
    "test_sim_nodes": ("counts_references", "follows_children_and_updates", "a_destructor_that_waits", "event_nodes"),
    "test_sim_pools": ("pools_of_places",),
    "test_sim_streams": ("streams", "events", "callbacks"),
    "test_sim_vmm": ("every_order", "refusals"),
}


@dataclass
class Observations:
    driver: dict[str, str]
    values: dict[str, Any]

    def save(self, file: Path) -> None:
        text = json.dumps({"driver": self.driver, "observations": self.values}, indent=1, sort_keys=True)
        file.write_text(text + "\n")

    @classmethod
    def load(cls, file: Path) -> Observations:
        data = json.loads(file.read_text())
        return cls(driver=data["driver"], values=data["observations"])

    def title(self) -> str:
        return "{library} for CUDA {version} on {gpu}, {date}".format(**self.driver)


def why_no_real_driver() -> str | None:
    if not Path("/dev/nvidiactl").exists():
        return "no NVIDIA driver is loaded (/dev/nvidiactl is missing)"
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"libcuda.so.1 cannot be opened: {error}"
    code = driver.cuInit(0)
    return None if code == 0 else f"cuInit answers {code}"


IDENTITY = """
import json
from ctypes import byref, c_int, create_string_buffer
from simcuda import cu, integer
cu.cuInit(0)
name = create_string_buffer(100)
cu.cuDeviceGetName(name, 100, 0)
print(json.dumps({"version": str(integer("cuDriverGetVersion")), "gpu": name.value.decode()}))
"""


class Driver:
    """One to ask: a path or name of a library, and what its programs need in their environment."""

    def __init__(self, library: str, *, environment: dict[str, str] | None = None) -> None:
        self.library = library
        kept = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "CUDA_VISIBLE_DEVICES")}
        self.environment = kept | {DRIVER: library, MEASURED: "1", "PYTHONPATH": str(HERE)} | (environment or {})

    def python(self, text: str) -> subprocess.CompletedProcess[str]:
        """A program that does not end in time is killed; what it had said until then is kept."""
        line = [sys.executable, "-c", text]
        pipe = subprocess.PIPE
        with subprocess.Popen(line, env=self.environment, stdout=pipe, stderr=pipe, text=True) as process:
            try:
                out, errors = process.communicate(timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                out, errors = process.communicate()
        return subprocess.CompletedProcess(line, process.returncode, out, errors)

    def identity(self) -> dict[str, str]:
        done = self.python(IDENTITY)
        if done.returncode != 0:
            raise RuntimeError(f"{self.library} does not start: {(done.stderr.splitlines() or ['no reason'])[-1]}")
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        return {"library": Path(self.library).name, "kernel": platform.release(), "date": today} | json.loads(
            done.stdout
        )

    def ask(self, probe: str) -> dict[str, Any]:
        done = self.python(f"import probes; probes.run({probe!r})")
        answers = {f"{probe}: {question}": value for question, value in map(json.loads, done.stdout.splitlines())}
        return answers | {f"{probe}: to its end": how_it_ended(done)}

    def play(self, module: str, scenario: str) -> dict[str, Any]:
        done = self.python(f"import {module}; {module}.{scenario}()")
        return {f"scenario {module.removeprefix('test_sim_')}.{scenario}": how_it_ended(done)}

    def observe(self) -> Observations:
        driver, values = self.identity(), {}
        for probe in PROBES:
            values |= self.ask(probe)
        for module, scenarios in SCENARIOS.items():
            for scenario in scenarios:
                values |= self.play(module, scenario)
        return Observations(driver, values)


def how_it_ended(done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode == 0:
        return "passes"
    if done.returncode < 0:
        return f"signal {-done.returncode}"
    return (done.stderr.splitlines() or [f"exit {done.returncode}"])[-1]
