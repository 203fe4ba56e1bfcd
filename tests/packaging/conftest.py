"""The wheel of this source tree, built once, and installations of it."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of what git knows, as an sdist would be."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    files = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout
    pack = ["tar", "--null", "-cf", "-", "-T", "-"]
    archive = subprocess.run(pack, cwd=ROOT, input=files, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-xf", "-"], cwd=source, input=archive, check=True)
    line = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(out), str(source)]
    # Not optimised: the content of the wheel matters here, and the compiler's time would be most of the test's.
    subprocess.run(line, env={**os.environ, "GPUSHARE_CFLAGS": "-O0"}, check=True, timeout=600)
    return next(out.glob("gpushare_cuda-*.whl"))


@pytest.fixture(scope="session")
def pip_install() -> Callable[[Path, Path], None]:
    """Install a wheel into a virtual environment that has no pip."""

    def pip_install(home: Path, wheel: Path) -> None:
        pip = [sys.executable, "-m", "pip", "--python", str(home / "bin" / "python"), "install", "-q"]
        subprocess.run([*pip, "--no-deps", "--no-compile", str(wheel)], check=True, capture_output=True, timeout=120)

    return pip_install


@pytest.fixture(scope="session")
def installed(wheel: Path, pip_install: Callable[[Path, Path], None], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel, installed by pip. The dependencies are those of the tests' Python."""
    home = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(home, symlinks=True)
    pip_install(home, wheel)
    site = next((home / "lib").glob("python*/site-packages"))
    (site / "dependencies.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    return home
