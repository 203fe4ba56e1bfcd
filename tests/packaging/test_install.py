"""A wheel and an sdist hold all that is needed, and what is installed from them works far from the source tree."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
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
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(out), str(source)], check=True, timeout=300
    )
    return next(out.glob("gpushare_cuda-*.whl"))


def test_the_wheel_is_for_every_python_and_holds_everything(wheel: Path) -> None:
    assert "-abi3-" in wheel.name
    names = set(zipfile.ZipFile(wheel).namelist())
    for name in (
        "gpushare/_layout.abi3.so",
        "gpushare/lib/libgpushare.so",
        "gpushare/sim/libcuda.so.1",
        "gpushare/sim/libnvidia-ml.so.1",
        "gpushare/py.typed",
        "gpushared/core/node.py",
        "gpushare_examples/borrower.py",
    ):
        assert name in names
    for name in ("man1/gpushare.1", "man8/gpushared.8"):
        assert any(found.endswith(f".data/data/share/man/{name}") for found in names)
    archive = zipfile.ZipFile(wheel)
    for path in (ROOT / "docs").glob("*.md"):
        assert archive.read(f"gpushare_docs/{path.name}").decode() == path.read_text(), path
    for name in ("gpushared.service", "gpushared.sysusers", "gpushared.toml"):
        assert any(found.endswith(f"share/gpushare/{name}") for found in names)
    assert not [name for name in names if name.startswith(("tests", "daemon/", "shim/"))]


def test_what_is_installed_works(wheel: Path, tmp_path: Path) -> None:
    home = tmp_path / "venv"
    venv.create(home, symlinks=True)
    site = next((home / "lib").glob("python*/site-packages"))
    zipfile.ZipFile(wheel).extractall(site)
    # The dependencies are those of the Python that runs the tests.
    (site / "dependencies.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    python = str(home / "bin" / "python")
    env = {"PATH": os.environ["PATH"], "XDG_RUNTIME_DIR": str(tmp_path), "GPUSHARE_SIM": f"pool={tmp_path}/pool"}
    tmp_path.chmod(0o700)
    docs = subprocess.run([python, "-m", "gpushare", "docs", "reasons"], env=env, capture_output=True, text=True)
    assert docs.stdout == (ROOT / "docs" / "reasons.md").read_text(), docs.stderr
    line = [python, "-m", "gpushare", "run", "--limit", "2Gi", "sh", "-c", "echo $GPUSHARE_LIMIT"]
    done = subprocess.run(line, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout == "2Gi\n", done.stderr
    shim = site / "gpushare/lib/libgpushare.so"
    bound = subprocess.run(["/bin/true"], env={"LD_PRELOAD": str(shim), "LD_BIND_NOW": "1"}, capture_output=True)
    assert (bound.returncode, bound.stdout, bound.stderr) == (0, b"", b"")
    subprocess.run([python, "-m", "gpushare", "daemon", "stop"], env=env, cwd=tmp_path, check=True, capture_output=True)
