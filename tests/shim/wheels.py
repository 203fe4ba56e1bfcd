"""Libraries of NVIDIA and others, from wheels of the package index that tests run against where they are at hand.

No test downloads anything. A wheel counts when its package is installed beside the tests, or when its file lies in the
folder that GPUSHARE_TEST_WHEELS names:

    pip download --no-deps -d FOLDER nvidia-cuda-runtime-cu12==12.8.90 libucx-cu12 ...
"""

from __future__ import annotations

import fnmatch
import os
import sys
import zipfile
from pathlib import Path

import pytest

FOLDER = "GPUSHARE_TEST_WHEELS"


def _unpack(file: Path, into: Path) -> Path:
    target = into / file.stem
    if not target.exists():
        with zipfile.ZipFile(file) as wheel:
            wheel.extractall(target)
    return target


def libraries_of(package: str, pattern: str, scratch: Path) -> list[Path]:
    """Files of a package whose path ends with the pattern: one for each version of the package that is here. A package
    is named as its wheels are: with underscores, and `*` where names differ."""
    named = os.environ.get(FOLDER)
    wheels = sorted(Path(named).glob(f"{package}-*.whl")) if named else []
    places = [_unpack(wheel, scratch) for wheel in wheels]
    places += [Path(place) for place in sys.path if place.endswith("-packages")]
    found = []
    for place in places:
        files = (path for path in place.rglob(Path(pattern).name) if fnmatch.fnmatch(str(path), f"*/{pattern}"))
        found += sorted(files)
    return found


def need(package: str, pattern: str, scratch: Path) -> list[Path]:
    """The same, or a skip that says what is missing."""
    found = libraries_of(package, pattern, scratch)
    if not found:
        pytest.skip(f"no {package}: install it, or name a folder of wheels in {FOLDER}")
    return found
