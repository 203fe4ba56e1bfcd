"""What building the C parts needs, checked before anything is built: one line instead of a compiler's or pip's many.

Only the standard library is used: what is missing may be setuptools or cffi.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from importlib import metadata

__all__ = ["BUILDING", "missing"]

BUILDING = {"bdist_wheel", "build", "build_ext", "develop", "dist_info", "editable_wheel", "install"}
"""The commands of setup.py that build the C parts, and `dist_info`, by which pip begins: before any download."""
OLDEST = {"setuptools": 77, "cffi": 1}
PACKAGES = f"gcc libc6-dev python3.{sys.version_info.minor}-dev", "gcc glibc-devel python3-devel"


def missing(commands: Sequence[str], environ: Mapping[str, str] = os.environ) -> str | None:
    """A line that says what is missing for these commands of setup.py and how to install it. None: nothing."""
    if not BUILDING.intersection(commands):
        return None
    for name, oldest in OLDEST.items():
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            found = "0"
        major = re.match(r"\d+", found)
        if major is None or int(major[0]) < oldest:
            return f"gpushare cannot be built: it needs {name} {oldest} or later. `pip install .` brings it"
    compiler = shlex.split(environ.get("CC", "cc"))
    if not compiler or shutil.which(compiler[0], path=environ.get("PATH")) is None:
        return _install(f"there is no C compiler ({shlex.join(compiler)})")
    if not _compiles("#include <stdlib.h>\n", compiler, environ):
        return _install(
            f"the headers of the C library are missing, or the C compiler ({shlex.join(compiler)}) does not work"
        )
    if not _compiles("#include <Python.h>\n", [*compiler, *_python_headers()], environ):
        return _install(f"the headers of Python {sys.version_info.major}.{sys.version_info.minor} are missing")
    return None


def _install(what: str) -> str:
    debian, fedora = PACKAGES
    return f"gpushare cannot be built: {what}. It needs `apt install {debian}`, or `dnf install {fedora}`"


def _compiles(source: str, command: Sequence[str], environ: Mapping[str, str]) -> bool:
    check = [*command, "-fsyntax-only", "-x", "c", "-"]
    try:
        done = subprocess.run(check, input=source.encode(), env=environ, capture_output=True, check=False)
    except OSError:
        return False
    return done.returncode == 0


def _python_headers() -> list[str]:
    paths = sysconfig.get_paths()
    return [f"-I{paths[name]}" for name in ("include", "platinclude")]
