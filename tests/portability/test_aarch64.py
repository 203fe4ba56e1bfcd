"""64-bit ARM: everything is cross-compiled, and run by an emulator.

That proves the assembly, the layouts and the system calls. It does not prove the memory ordering of the atomic
operations: the emulator runs on a processor that orders memory more strictly than ARM does.
"""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from fake_daemon import FakeDaemon
from toolchain import (
    CORE,
    PROGRAMS,
    ROOT,
    SHIM,
    SYSROOT,
    build_libraries,
    compile_program,
    exported,
    need,
    package_libraries,
)

from gpushare.quantity import Kind

COMPILER = "aarch64-linux-gnu-gcc"
EMULATOR = "qemu-aarch64"
GIB = 2**30


@dataclass(frozen=True)
class Arm:
    directory: Path
    shim: Path
    driver_dir: Path

    def compile(self, target: str, *arguments: str | Path) -> Path:
        output = self.directory / target
        return output if output.exists() else compile_program(COMPILER, output, *arguments)

    def core(self, name: str) -> Path:
        return self.compile(name, PROGRAMS / f"{name}.c", *CORE)

    def run(self, program: Path, *arguments: str, text: str | None = None, **environ: str) -> str:
        """With the variables in the program's environment, not in the emulator's own."""
        variables = [part for name, value in environ.items() for part in ("-E", f"{name}={value}")]
        command = [EMULATOR, "-L", str(SYSROOT), *variables, str(program), *arguments]
        done = subprocess.run(command, env={}, input=text, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
        return done.stdout

    def preloaded(self, program: Path, *arguments: str, pool: Path, preload: str = "", **environ: str) -> str:
        return self.run(
            program,
            *arguments,
            LD_PRELOAD=preload or str(self.shim),
            LD_LIBRARY_PATH=str(self.driver_dir),
            GPUSHARE_DRIVER="sim",
            GPUSHARE_SOCKET=str(pool / "api.sock"),
            GPUSHARE_SIM=f"memory=16Gi,context=256Mi,pool={pool / 'pool'}",
            **environ,
        )


@pytest.fixture(scope="module")
def arm(tmp_path_factory: pytest.TempPathFactory) -> Arm:
    need(COMPILER, EMULATOR)
    directory = tmp_path_factory.mktemp("aarch64")
    driver_dir = directory / "driver"
    driver_dir.mkdir()
    shim, driver = ("gpushare.lib.libgpushare",), ("gpushare.sim.libcuda", "gpushare.sim.libnvml")
    # The driver is a tool here: what matters is the library, as it is shipped.
    built = build_libraries(directory, COMPILER, only=shim) | build_libraries(directory, COMPILER, "-O0", only=driver)
    for dotted in ("gpushare.sim.libcuda", "gpushare.sim.libnvml"):
        name = built[dotted].name
        for link in (name, name.removesuffix(".1")):
            (driver_dir / link).symlink_to(built[dotted])
    return Arm(directory, built["gpushare.lib.libgpushare"], driver_dir)


def test_exports_the_same(arm, tmp_path):
    here = package_libraries(tmp_path)
    assert exported(arm.shim) == exported(here["gpushare.lib.libgpushare"])
    assert exported(arm.driver_dir / "libcuda.so") == exported(here["gpushare.sim.libcuda"])
    assert exported(arm.driver_dir / "libnvidia-ml.so") == exported(here["gpushare.sim.libnvml"])


@pytest.mark.parametrize("name", ["core_word", "core_table"])
def test_core_with_threads(arm, name):
    assert arm.run(arm.core(name)) == "good\n"


def test_quantities(arm):
    vectors = json.loads((ROOT / "tests/vectors/quantities.json").read_text())
    questions = "".join(f"{one['dialect']} x{one['text'].encode().hex()}\n" for one in vectors)
    answers = [line.split() for line in arm.run(arm.core("core_quantity"), text=questions).splitlines()]
    assert [(kind, int(value)) for kind, value in answers] == [(one["kind"], one["value"]) for one in vectors]
    assert {one["kind"] for one in vectors} >= {kind.value for kind in Kind}


def test_options(arm):
    found = json.loads(arm.run(arm.core("core_options"), GPUSHARE_LIMIT="4Gi", GPUSHARE_PRIORITY="-7"))
    assert found["limit"] == [1, 4 * GIB] and found["priority"] == -7
    assert found["sockets"][0] == "/run/gpushare/shim.sock"


def test_account_and_client_against_a_daemon(arm, tmp_path):
    """Frames, a descriptor that is passed, futexes, and a word that another architecture's process changes too."""
    ops = compile_program("gcc", tmp_path / "page_ops.so", PROGRAMS / "page_ops.c", "-shared", "-fPIC")
    daemon = FakeDaemon(tmp_path, ctypes.CDLL(str(ops))).start()
    daemon.policy.chunk, daemon.policy.limit = 2**26, 2**31
    environ = {"GPUSHARE_LIMIT": "2Gi", "GPUSHARE_SOCKET": str(tmp_path / "api.sock"), "GPUSHARE_LOG": "error"}
    try:
        assert json.loads(arm.run(arm.core("core_account"), **environ)) == [0, 0]
    finally:
        daemon.stop()
    assert len(daemon.asks()) > 20


@pytest.mark.parametrize("bind", ["", "1"])
def test_lookups(arm, tmp_path, bind):
    program = arm.compile("lookups", PROGRAMS / "lookups.c", "-rdynamic")
    hook, plain = arm.preloaded(program, pool=tmp_path, GPUSHARE_LIMIT="4Gi", LD_BIND_NOW=bind).splitlines()
    assert (Path(hook).name, Path(plain).name) == ("libgpushare.so", "libcuda.so.1")
    inert = arm.preloaded(program, "inert", pool=tmp_path, LD_BIND_NOW=bind)
    assert {Path(line).name for line in inert.splitlines()} == {"libcuda.so.1"}


@pytest.mark.parametrize("level", ["-O0", "-O2"])
@pytest.mark.parametrize("order", ["before", "after"])
def test_a_second_interposer(arm, tmp_path, level, order):
    """RTLD_NEXT is answered by return address: our door must have jumped, not called."""
    wrapper = arm.compile(f"interposer{level}.so", PROGRAMS / "interposer.c", "-shared", "-fPIC", level)
    program = arm.compile("interposed", PROGRAMS / "interposed.c", f"-L{arm.driver_dir}", "-lcuda", "-rdynamic")
    preload = f"{wrapper}:{arm.shim}" if order == "before" else f"{arm.shim}:{wrapper}"
    said = arm.preloaded(program, pool=tmp_path, preload=preload, GPUSHARE_LIMIT="4Gi")
    assert json.loads(said) == [1, 2, 0, 4 * GIB]


def test_a_linked_program_has_its_limit(arm, tmp_path):
    program = arm.compile("linked", PROGRAMS / "linked.c", f"-L{arm.driver_dir}", "-lcuda")
    said = json.loads(arm.preloaded(program, pool=tmp_path, GPUSHARE_LIMIT="4Gi"))
    assert said == [0, 0, 0, 2, 4 * GIB, 2**21]


def test_the_doors_are_twins():
    """Both assembly files make the same doors, to the same routes."""
    doors = {
        path.name: re.findall(r"^\s+door\s+(\w+), (\w+)$", path.read_text(), re.M)
        for path in (SHIM / "preload").glob("dlsym_*.S")
    }
    assert doors["dlsym_x86_64.S"] == doors["dlsym_aarch64.S"] != []
