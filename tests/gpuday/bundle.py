"""The day as a folder that runs where nothing can be installed: `python -m gpuday.bundle DIRECTORY`.

    run                   finds a Python and starts the day; `run 1`, `run 2`
    gpushare, daemon ...  this project, with its compiled parts
    bin                   the small C programs of the checks
    packages/any          Python packages that any Python takes; packages/cp312 those for Python 3.12 only

Downloads the packages with pip, and strips what debuggers want from their compiled parts. Nothing is written into the
folder when it runs.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

from gpuday.day import COMPILED, compile_program
from gpuday.runner import ROOT

sys.path.append(str(ROOT / "shim"))

import make_dist

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
MACHINE = "x86_64"
PLATFORMS = ("manylinux_2_28", "manylinux_2_17", "manylinux2014", "manylinux_2_12", "manylinux2010", "manylinux1")
MOST = 50 * 2**20
"""Bytes of all files together."""

TREES = ("gpushare", "daemon", "tests/driver", "tests/gpuday", "tests/integration", "docs", "examples")
FILES = (
    "gpushare_installation.py",
    "LICENSE",
    "README.md",
    "CHANGELOG.md",
    "pyproject.toml",
    "shim/functions.def",
    "tests/functions_def.py",
    "tests/integration/node.py",
)
BUILT = ("gpushare/_layout.abi3.so", "gpushare/lib/*.so", "gpushare/lib/turns/*.so", "gpushare/sim/*.so.1")
NEEDLESS = (".c", ".pyx", ".pxd", ".pyi", ".h", ".hash", ".cpp")
"""Endings of files in packages that no running program reads."""


class CannotBundle(Exception):
    """The message says why."""


def bundle(target: Path, *, packages: bool = True) -> int:
    """Makes the folder; its size in bytes. What was there before goes. Raises CannotBundle."""
    fresh = target.with_name(f".{target.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    _copy_project(fresh)
    _compile_programs(fresh / "bin")
    if packages:
        for python in PYTHONS:
            _unpack(_download(python, fresh / ".wheels" / python), python, fresh / "packages")
        shutil.rmtree(fresh / ".wheels")
        compiled = sorted(map(str, (fresh / "packages").rglob("*.so")))
        subprocess.run(["strip", "--strip-debug", *compiled], check=True)
    shutil.copy(ROOT / "tests" / "gpuday" / "run.sh", fresh / "run")
    (fresh / "run").chmod(0o755)
    size = sum(path.stat().st_size for path in fresh.rglob("*") if path.is_file())
    if size > MOST:
        raise CannotBundle(f"{size / 2**20:.1f} MiB, more than {MOST / 2**20:.0f}")
    shutil.rmtree(target, ignore_errors=True)
    fresh.rename(target)
    return size


def _copy_project(target: Path) -> None:
    listed = subprocess.run(["git", "ls-files", *TREES], cwd=ROOT, capture_output=True, text=True, check=True)
    built = [str(path.relative_to(ROOT)) for pattern in BUILT for path in ROOT.glob(pattern)]
    if len(built) != 7:
        raise CannotBundle(f"{len(built)} compiled parts, not 7: `make build` makes them")
    for name in {*listed.stdout.splitlines(), *FILES, *built}:
        place = target / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, place)
    # The metadata of an installation: doctor looks for them.
    line = [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(target)]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CannotBundle(f"setup.py egg_info: {done.stderr.strip()[-1000:]}")
    problems = [f"{name} {problem}" for name in built for problem in make_dist.check_library(ROOT / name, MACHINE)]
    if problems:
        raise CannotBundle("; ".join(problems))


def _compile_programs(directory: Path) -> None:
    directory.mkdir()
    for name in COMPILED:
        compile_program(name, directory / name, "-include", str(ROOT / "shim" / "glibc_baseline.h"))


# ---- packages ----------------------------------------------------------------------------------------


def requirements() -> list[str]:
    """What the distribution requires, from pyproject.toml."""
    return list(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"])


def _download(python: str, directory: Path) -> list[Path]:
    """The wheels of the requirements and of what these require, for one version of Python."""
    tag = f"cp{python.replace('.', '')}"
    line = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "-d", str(directory)]
    line += ["--only-binary=:all:", "--implementation", "cp", "--python-version", python]
    for abi in (tag, "abi3", "none"):
        line += ["--abi", abi]
    for platform in PLATFORMS:
        line += ["--platform", f"{platform}_{MACHINE}"]
    done = subprocess.run([*line, *requirements()], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CannotBundle(f"pip download for Python {python}: {done.stderr.strip()[-1000:]}")
    return sorted(directory.glob("*.whl"))


def _unpack(wheels: list[Path], python: str, packages: Path) -> None:
    tag = f"cp{python.replace('.', '')}"
    for wheel in wheels:
        place = packages / ("any" if for_any_python(wheel.name) else tag)
        place.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(wheel) as packed:
            for name in packed.namelist():
                if not name.endswith((*NEEDLESS, "/")) and "/tests/" not in name and ".data/" not in name:
                    packed.extract(name, place)


def for_any_python(wheel: str) -> bool:
    """Whether a wheel of that name works with each of the versions of Python: pure ones, and the stable ABI."""
    python, abi, _ = wheel.removesuffix(".whl").split("-")[-3:]
    if abi == "none":
        return True
    oldest = re.fullmatch(r"cp3(\d+)", python)
    return abi == "abi3" and oldest is not None and int(oldest[1]) <= int(PYTHONS[0].removeprefix("3."))


def main() -> None:
    parser = argparse.ArgumentParser(prog="gpuday.bundle", description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path, help="the folder to make")
    parser.add_argument("--no-packages", action="store_true", help="for a machine that has the packages")
    options = parser.parse_args()
    try:
        size = bundle(options.directory.resolve(), packages=not options.no_packages)
    except CannotBundle as error:
        sys.exit(f"gpuday.bundle: {error}")
    print(f"{options.directory}: {size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
