"""Checks of what is installed: the package, its libraries, and whether they fit this machine."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import gpushare_installation
from gpushare import __version__, glibc
from gpushare.doctor.finding import Finding, Surroundings
from gpushare.paths import PACKAGE, library, software_driver_dir
from gpushare.presence import attach_library

__all__ = ["check_glibc", "check_installation", "check_layout", "check_shim_loads", "print_layout"]


def check_installation(_: Surroundings) -> Finding:
    found = gpushare_installation.problems()
    if found:
        fix = dict.fromkeys(line for problem in found for line in problem.fix)
        return Finding("fail", "; ".join(problem.text for problem in found), fix=tuple(fix))
    version = gpushare_installation.distribution()
    return Finding("ok", f"{gpushare_installation.NAME} {__version__}" if version else f"{PACKAGE}, not installed")


def check_glibc(_: Surroundings) -> Finding:
    """The preloaded library and the software driver must load. The other libraries are for gpushare.enable() only."""
    here = glibc.here()
    if here is None:
        return Finding(
            "fail", "the C library is not glibc", "NVIDIA's driver needs glibc too: use an image that has it"
        )
    built = [path for path in (library(), *software_driver_dir().glob("*.so.1")) if path.exists()]
    late = sorted(library().parent.glob("libgpushare-late*.so"))
    try:
        needed = {path.name: glibc.needed(path) for path in (*built, *late)}
    except (OSError, ValueError) as error:
        return Finding("fail", str(error), "reinstall gpushare", gpushare_installation.reinstall())
    wanting = [path.name for path in (*built, *late) if needed[path.name] > here]
    named = wanting or [name for name in (library().name, attach_library().name) if name in needed]
    detail = f"glibc {glibc.text(here)}; " + (
        ", ".join(f"{name} needs {glibc.text(needed[name])}" for name in named) or "no library of gpushare is there"
    )
    if any(path.name in wanting for path in built):
        return Finding("fail", detail, fix=gpushare_installation.reinstall())
    if library() not in built:
        return Finding("fail", detail, fix=gpushare_installation.reinstall())
    if wanting:
        return Finding(
            "warn",
            f"{detail}: gpushare.enable() cannot work here",
            "start notebooks with `gpushare run`, or a kernel made by `gpushare kernel`: these need another library",
            ("gpushare kernel install",),
        )
    return Finding("ok", detail)


def check_shim_loads(surroundings: Surroundings) -> Finding:
    if not library().exists():
        return Finding("fail", f"{library()} is not there", fix=gpushare_installation.reinstall())
    true = shutil.which("true") or "/bin/true"
    for command in ([true], [sys.executable, "-c", "pass"]):
        problem = _preload_problem(command, surroundings.environ)
        if problem:
            return Finding("fail", f"{command[0]}: {problem}", fix=gpushare_installation.reinstall())
    return Finding("ok", f"into {true} and {Path(sys.executable).name}, all symbols bound at once")


def _preload_problem(command: list[str], environ: Mapping[str, str]) -> str | None:
    # If a library cannot be preloaded, the loader says so on stderr and starts the program anyway.
    result = subprocess.run(
        command,
        env={**environ, "LD_PRELOAD": str(library()), "LD_BIND_NOW": "1"},
        capture_output=True,
        errors="replace",
        timeout=30,
        check=False,
    )
    if result.returncode or result.stderr:
        return result.stderr.strip().splitlines()[0] if result.stderr.strip() else f"exit code {result.returncode}"
    return None


def check_layout(_: Surroundings) -> Finding:
    """Run in a child process: loading a truncated library can end a process."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); from gpushare.doctor import compiled; compiled.print_layout()"
    command = [sys.executable, "-P", "-c", code, str(PACKAGE.parent)]
    done = subprocess.run(command, capture_output=True, errors="replace", timeout=30, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines()
        problem = said[-1] if said else f"loading gpushare._layout ended a process with status {done.returncode}"
        return Finding("fail", problem, fix=gpushare_installation.reinstall())
    return Finding("ok", done.stdout.strip())


def print_layout() -> None:
    """Print the versions of the shared layouts, or exit with a text about a wrong size."""
    from gpushare._layout import ffi, lib

    expected = {"struct gs_page": lib.GS_PAGE_BYTES, "struct gs_frame": lib.GS_FRAME_BYTES, "struct gs_line": 128}
    wrong = [
        f"{name} is {ffi.sizeof(name)} bytes, not {size}" for name, size in expected.items() if ffi.sizeof(name) != size
    ]
    if wrong:
        sys.exit(", ".join(wrong))
    print(f"page version {lib.GS_PAGE_VERSION}, frame version {lib.GS_WIRE_VERSION}")
