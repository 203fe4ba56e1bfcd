"""`make dist`: what a wheel's name promises is checked, and a wheel that breaks the promise is not made."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "shim"))

sys.path.insert(0, str(Path(__file__).parent))

import try_wheels  # noqa: E402

import make_dist  # noqa: E402

pytestmark = pytest.mark.timeout(900)  # compilers run
SOURCE = "#include <sys/stat.h>\nint f(void) { struct stat s; return fstat(0, &s); }\n"


def library(directory: Path, *flags: str, source: str = "int f(void) { return 0; }\n") -> Path:
    path = directory / "library.so"
    line = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path), *flags]
    subprocess.run(line, input=source, text=True, check=True)
    return path


@pytest.fixture
def this_machine() -> str:
    import platform

    if platform.machine() not in make_dist.ELF_MACHINES:
        pytest.skip(f"no wheels are made for {platform.machine()}")
    return platform.machine()


def test_a_library_that_keeps_the_promise(tmp_path, this_machine):
    assert make_dist.check_library(library(tmp_path), this_machine) == []
    assert make_dist.check_library(library(tmp_path, "-Wl,-rpath,$ORIGIN"), this_machine) == []


def test_another_processor(tmp_path, this_machine):
    (other,) = set(make_dist.ELF_MACHINES) - {this_machine}
    (problem,) = make_dist.check_library(library(tmp_path), other)
    assert problem == f"is for another processor (ELF machine {make_dist.ELF_MACHINES[this_machine]})"


def test_a_newer_c_library(tmp_path, this_machine, monkeypatch):
    path = library(tmp_path, source=SOURCE)
    needed = make_dist.glibc.needed(path)
    monkeypatch.setattr(make_dist, "BASELINE", needed)
    assert make_dist.check_library(path, this_machine) == []
    monkeypatch.setattr(make_dist, "BASELINE", (needed[0], needed[1] - 1))
    assert make_dist.check_library(path, this_machine) == [f"needs glibc {'.'.join(map(str, needed))}"]


def test_other_libraries_and_places(tmp_path, this_machine):
    path = library(tmp_path, "-Wl,--no-as-needed", "-lm", "-Wl,-rpath,/home/builder/lib")
    assert make_dist.check_library(path, this_machine) == [
        "needs libm.so.6",
        "looks for libraries in /home/builder/lib",
    ]


def test_the_name_is_part_of_the_promise(tmp_path, wheel, this_machine):
    right = f"gpushare_cuda-0.1.0-cp311-abi3-manylinux_2_31_{this_machine}.whl"
    for name, problems in ((right, 0), (right.replace("abi3", "cp311"), 1), (right.replace("2_31", "2_17"), 1)):
        copy = Path(shutil.copy(wheel, tmp_path / name))
        assert len(make_dist.check_wheel(copy, this_machine)) == problems, name


def test_a_wheel_without_a_compiled_part_is_refused(tmp_path, wheel, this_machine):
    path = tmp_path / f"gpushare_cuda-0.1.0-cp311-abi3-manylinux_2_31_{this_machine}.whl"
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(path, "w") as less:
        for name in whole.namelist():
            if not name.endswith("_layout.abi3.so"):
                less.writestr(name, whole.read(name))
    assert make_dist.check_wheel(path, this_machine) == ["6 compiled parts, not 7"]


@pytest.mark.slow
def test_the_wheel_for_arm_is_made_from_the_archive(tmp_path):
    """Not optimised, which takes a compiler ten seconds."""
    if shutil.which(make_dist.COMPILERS["aarch64"]) is None:
        pytest.skip(f"not installed: {make_dist.COMPILERS['aarch64']}")
    archive = make_dist.make_archive(tmp_path)
    made = make_dist.make_wheel(archive, "aarch64", tmp_path, flags="-O0")
    assert made.name == "gpushare_cuda-0.1.0-cp311-abi3-manylinux_2_31_aarch64.whl"
    assert make_dist.check_wheel(made, "aarch64") == []
    assert len(make_dist.check_wheel(made, "x86_64")) == 1 + make_dist.PARTS, "each part, and the name"


@pytest.mark.slow
@pytest.mark.parametrize("machine", make_dist.COMPILERS)
def test_a_wheel_works_in_a_bare_debian(tmp_path, machine):
    """As `make dist-try`, where somebody has made the Debians before: it takes minutes and the network else."""
    roots = Path(os.environ.get("GPUSHARE_TEST_ROOTS", "/nonexistent"))
    if not roots.is_dir() or os.getuid() != 0:
        pytest.skip("needs root, and GPUSHARE_TEST_ROOTS: the directory that `make dist-try` keeps in build/roots")
    made = make_dist.make_wheel(make_dist.make_archive(tmp_path), machine, tmp_path, flags="-O0")
    assert try_wheels.attempt(made, machine, roots).endswith("\nall done\n")
