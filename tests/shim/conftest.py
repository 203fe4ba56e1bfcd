"""What the tests of the shim need: the libraries, small C programs, children with the shim preloaded."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from fake_daemon import FakeDaemon
from shim_tree import ROOT, SHIM

import switches

HERE = Path(__file__).resolve().parent
CFLAGS = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", f"-I{SHIM}", f"-I{SHIM / 'preload'}"]


def _build_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_shim", SHIM / "build_shim.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["build_shim"] = module
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class Libraries:
    shim: Path
    late: Path
    driver_dir: Path


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Libraries:
    """The built libraries of the package; those that are missing or older than their sources are built here."""
    build, fresh = _build_script(), tmp_path_factory.mktemp("libraries")
    found: dict[str, Path] = {}
    for library in build.LIBRARIES:
        built = ROOT / library.file
        headers = [
            *SHIM.glob("*.h"),
            *SHIM.glob("*.def"),
            *library.sources(),
            *SHIM.glob("preload/*.h"),
            *SHIM.glob("preload/*.py"),
        ]
        newest = max(path.stat().st_mtime for path in [*headers, *SHIM.glob("sim/*.h")])
        if not built.exists() or built.stat().st_mtime < newest:
            built = fresh / library.file
            library.build(built)
        found[library.dotted] = built
    driver_dir = fresh / "driver"
    driver_dir.mkdir()
    for dotted, names in (
        ("gpushare.sim.libcuda", ("libcuda.so.1", "libcuda.so")),
        ("gpushare.sim.libnvml", ("libnvidia-ml.so.1", "libnvidia-ml.so")),
    ):
        for name in names:
            (driver_dir / name).symlink_to(found[dotted])
    return Libraries(found["gpushare.lib.libgpushare"], found["gpushare.lib.libgpushare_late"], driver_dir)


@pytest.fixture(scope="session")
def compile_c(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Compile a program (or, with -shared among the flags, a library) of tests/shim/programs."""
    out = tmp_path_factory.mktemp("programs")

    def compile_one(name: str, *flags: str, sources: tuple[str, ...] = (), target: str = "") -> Path:
        output = out / (target or Path(name).stem)
        command = [
            "gcc",
            *CFLAGS,
            str(HERE / "programs" / name),
            *sources,
            "-o",
            str(output),
            *flags,
            "-ldl",
            "-pthread",
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return output

    return compile_one


@pytest.fixture(scope="session")
def page_ops(compile_c: Any) -> ctypes.CDLL:
    return ctypes.CDLL(str(compile_c("page_ops.c", "-shared", "-fPIC", target="page_ops.so")))


@dataclass
class Child:
    """A finished process."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> Any:
        """What it told with say(): the value, or the list of them."""
        values = [json.loads(line) for line in self.out.splitlines()]
        return values[0] if len(values) == 1 else values


@dataclass
class Host:
    """Starts programs with the shim preloaded, over the software driver."""

    libraries: Libraries
    directory: Path
    settings: dict[str, str] = field(default_factory=dict)
    switches: str = field(default_factory=switches.of_this_run)

    def environment(self, **more: str | None) -> dict[str, str]:
        environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.directory),
            "PYTHONPATH": str(HERE),
            "LD_PRELOAD": str(self.libraries.shim),
            "LD_LIBRARY_PATH": str(self.libraries.driver_dir),
            "GPUSHARE_DRIVER": "sim",
            "GPUSHARE_SOCKET": str(self.directory / "api.sock"),
            "GPUSHARE_SIM": f"gpus=2,memory=16Gi,context=256Mi,pool={self.directory / 'pool'}",
            **self.settings,
            **more,
        }
        if environ["GPUSHARE_SIM"] is not None:
            environ["GPUSHARE_SIM"] = switches.added(environ["GPUSHARE_SIM"], self.switches)
        return {name: value for name, value in environ.items() if value is not None}

    def run(self, command: list[str | Path], timeout: float = 30, **more: str | None) -> Child:
        done = subprocess.run(
            [str(part) for part in command],
            env=self.environment(**more),
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        return Child(done.returncode, done.stdout, done.stderr)

    def script(self, body: str) -> list[str]:
        return [sys.executable, "-c", "from cuda_client import *\n" + textwrap.dedent(body)]

    def python(self, body: str, timeout: float = 30, **more: str | None) -> Child:
        """Run a script with cuda_client in it; it must end well."""
        child = self.run(self.script(body), timeout, **more)
        assert child.code == 0, child.err
        return child

    def start(self, body: str, **more: str | None) -> subprocess.Popen[str]:
        """Start a script that talks with the test by hear() and say()."""
        pipe = subprocess.PIPE
        return subprocess.Popen(
            self.script(body), env=self.environment(**more), stdin=pipe, stdout=pipe, stderr=pipe, text=True
        )


@pytest.fixture
def host(libraries: Libraries, tmp_path: Path) -> Host:
    """Without a daemon; a test that sets no budget gets an inert shim."""
    return Host(libraries, tmp_path)


@pytest.fixture
def daemon(tmp_path: Path, page_ops: ctypes.CDLL) -> Iterator[FakeDaemon]:
    fake = FakeDaemon(tmp_path, page_ops).start()
    yield fake
    fake.stop()
