"""Compilers other than the one that the libraries are made with, and what they make runnable here.

Nothing of this is needed to use gpushare. A test that wants a tool which is not installed skips and says which.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHIM = ROOT / "shim"
PROGRAMS = ROOT / "tests/shim/programs"
SOURCES = ("message", "quantity", "options", "table", "packet", "client", "gate", "account")
CORE = (*(str(SHIM / "preload" / f"{name}.c") for name in SOURCES), str(PROGRAMS / "core_driver.c"))
PORTABLE = ("gpushare.lib.libgpushare", "gpushare.sim.libcuda", "gpushare.sim.libnvml")
SYSROOT = Path("/usr/aarch64-linux-gnu")


def need(*tools: str) -> None:
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")


@functools.cache
def build_script() -> ModuleType:
    known = sys.modules.get("build_shim")
    if known is not None:
        return known
    spec = importlib.util.spec_from_file_location("build_shim", SHIM / "build_shim.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["build_shim"] = module
    spec.loader.exec_module(module)
    return module


def build_libraries(
    directory: Path, compiler: str, flags: str = "", only: Collection[str] = PORTABLE
) -> dict[str, Path]:
    """Libraries by their dotted names, with another compiler."""
    changed = {"CC": compiler, "GPUSHARE_CFLAGS": flags}
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        built = {}
        for library in build_script().LIBRARIES:
            if library.dotted not in only:
                continue
            built[library.dotted] = directory / Path(library.file).name
            library.build(built[library.dotted])
        return built
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def package_libraries(fresh: Path) -> dict[str, Path]:
    """The libraries of the package; those that are missing or older than the sources are built in `fresh`."""
    newest = max(path.stat().st_mtime for path in SHIM.rglob("*.[chS]"))
    newest = max(newest, *(path.stat().st_mtime for path in [*SHIM.glob("*.def"), *SHIM.glob("preload/*.py")]))
    found = {}
    for library in build_script().LIBRARIES:
        built = ROOT / library.file
        if not built.exists() or built.stat().st_mtime < newest:
            built = fresh / "package" / Path(library.file).name
            if not built.exists():
                library.build(built)
        found[library.dotted] = built
    return found


def compile_program(compiler: str, output: Path, *arguments: str | Path) -> Path:
    flags = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", f"-I{SHIM}", f"-I{SHIM / 'preload'}"]
    libraries = [] if "-r" in arguments else ["-ldl", "-pthread"]
    command = [*compiler.split(), *flags, "-o", str(output), *map(str, arguments), *libraries]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return output


def exported(library: Path) -> set[str]:
    """What a library defines for others: not hidden symbols and sections, which some linkers list, too."""
    out = subprocess.run(["readelf", "--dyn-syms", "-W", str(library)], capture_output=True, text=True, check=True)
    rows = [line.split() for line in out.stdout.splitlines()]
    symbols = [row for row in rows if len(row) >= 8 and row[0][:-1].isdigit() and row[3] != "SECTION"]
    return {row[7].split("@")[0] for row in symbols if row[6] != "UND" and row[5] != "HIDDEN"}
