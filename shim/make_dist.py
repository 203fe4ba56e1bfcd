"""`make dist`: the source archive, and from it a wheel for each kind of processor. What a wheel's name says is checked.

A wheel is named for the oldest C library that it works with. The C libraries choose their symbol versions themselves
(glibc_baseline.h), so any glibc will do to build them; the other processor needs a cross compiler only.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import struct
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from gpushare import glibc  # noqa: E402

BASELINE = (2, 31)
COMPILERS = {"x86_64": "x86_64-linux-gnu-gcc", "aarch64": "aarch64-linux-gnu-gcc"}
PARTS = 7
"""Compiled parts of a wheel: the library and its build with turns, two that load it late, the layout, CUDA, NVML."""
ELF_MACHINES = {"x86_64": 62, "aarch64": 183}
SYSTEM_LIBRARIES = r"libc\.so\.6|libdl\.so\.2|libpthread\.so\.0|ld-linux-(x86-64|aarch64)\.so\.\d"
OURS = r"libcuda\.so\.1|libgpushare-real-(cuda|nvml)\.so\.1"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="directory for the archive and the wheels")
    parser.add_argument("--machine", action="append", choices=COMPILERS, help="only for this processor")
    given = parser.parse_args()
    out = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    archive = make_archive(out)
    print(archive)
    for machine in given.machine or COMPILERS:
        wheel = make_wheel(archive, machine, out)
        problems = check_wheel(wheel, machine)
        if problems:
            wheel.unlink()
            sys.exit("\n".join([f"{wheel.name} is not what its name says:", *problems]))
        print(wheel)


def make_archive(out: Path) -> Path:
    """The source archive of this tree."""
    with tempfile.TemporaryDirectory() as directory:
        _setup(ROOT, "egg_info", "--egg-base", directory, "sdist", "-d", directory)
        (made,) = Path(directory).glob("*.tar.gz")
        return Path(shutil.copy(made, out))


def make_wheel(archive: Path, machine: str, out: Path, flags: str = "") -> Path:
    """A wheel for that processor, from the archive alone."""
    compiler = os.environ.get(f"CC_{machine}", COMPILERS[machine])
    if shutil.which(compiler) is None:
        sys.exit(f"a wheel for {machine} needs {compiler}: apt install gcc-{machine.replace('_', '-')}-linux-gnu")
    platform = f"manylinux_{BASELINE[0]}_{BASELINE[1]}_{machine}"
    with tempfile.TemporaryDirectory() as directory:
        with tarfile.open(archive) as packed:
            packed.extractall(directory, filter="data")
        (tree,) = Path(directory).iterdir()
        environ = {**os.environ, "CC": compiler, "CPATH": str(_headers(Path(directory))), "GPUSHARE_CFLAGS": flags}
        _setup(tree, "bdist_wheel", "--plat-name", platform, "-d", "made", environ=environ)
        (made,) = (tree / "made").glob("*.whl")
        return Path(shutil.copy(made, out))


def _headers(directory: Path) -> Path:
    """Where Python.h of Debian finds the sizes of C's types for the other processor.

    It is the file of this processor: the sizes are the same on both, which _layout asserts when it is compiled.
    """
    found = Path(sysconfig.get_config_h_filename())
    for compiler in COMPILERS.values():
        place = directory / "headers" / compiler.removesuffix("-gcc") / f"python3.{sys.version_info.minor}"
        place.mkdir(parents=True)
        shutil.copy(found, place)
    return directory / "headers"


def _setup(tree: Path, *commands: str, environ: dict[str, str] | None = None) -> None:
    line = [sys.executable, "setup.py", "-q", *commands]
    done = subprocess.run(line, cwd=tree, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}")


def check_wheel(wheel: Path, machine: str) -> list[str]:
    """What in the wheel is not as its name says: other processors, newer symbol versions, other libraries."""
    problems = []
    if not wheel.name.endswith(f"-cp311-abi3-manylinux_{BASELINE[0]}_{BASELINE[1]}_{machine}.whl"):
        problems.append(f"{wheel.name} is not named for {machine} and every Python since 3.11")
    libraries = 0
    with tempfile.TemporaryDirectory() as directory, zipfile.ZipFile(wheel) as packed:
        packed.extractall(directory)
        for path in sorted(Path(directory).rglob("*")):
            if path.is_file() and path.read_bytes()[:4] == b"\x7fELF":
                libraries += 1
                problems += [f"{path.relative_to(directory)} {problem}" for problem in check_library(path, machine)]
    if libraries != PARTS:
        problems.append(f"{libraries} compiled parts, not {PARTS}")
    return problems


def check_library(path: Path, machine: str) -> list[str]:
    """What is wrong with one compiled part."""
    problems = []
    (found,) = struct.unpack_from("<H", path.read_bytes(), 18)
    if found != ELF_MACHINES[machine]:
        problems.append(f"is for another processor (ELF machine {found})")
    needed = glibc.needed(path)
    if needed > BASELINE:
        problems.append(f"needs glibc {glibc.text(needed)}")
    told = subprocess.run(["readelf", "-dW", str(path)], capture_output=True, text=True, check=True).stdout
    for library in re.findall(r"\(NEEDED\).*\[(.*)\]", told):
        if not re.fullmatch(f"{SYSTEM_LIBRARIES}|{OURS}", library):
            problems.append(f"needs {library}")
    for place in re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", told):
        if place != "$ORIGIN":
            problems.append(f"looks for libraries in {place}")
    return problems


if __name__ == "__main__":
    main()
