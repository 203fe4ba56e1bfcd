"""A wheel holds all that is needed and named, and what is installed from it works far from the source tree."""

from __future__ import annotations

import os
import re
import subprocess
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "daemon/deploy/README.md"]
SOURCE_ONLY = (
    ".venv/",
    "shim/",
    "gpushare/",
    "daemon/gpushared",
    "tests/",
    "benchmarks/cost",
    "benchmarks/kubernetes",
    "benchmarks/slurm",
)
"""What only those who read the code need."""
pytestmark = pytest.mark.timeout(600)  # a wheel is built first
SHARED = "gpushare_cuda-0.1.0.data/data/share/gpushare/"


def test_the_wheel_is_for_every_python_and_holds_everything(wheel: Path) -> None:
    assert wheel.name.startswith("gpushare_cuda-") and "-abi3-" in wheel.name
    names = set(zipfile.ZipFile(wheel).namelist())
    for name in (
        "gpushare/_layout.abi3.so",
        "gpushare/lib/libgpushare.so",
        "gpushare/sim/libcuda.so.1",
        "gpushare/sim/libnvidia-ml.so.1",
        "gpushare/dashboard/static/index.html",
        "gpushare/dashboard/static/app.js",
        "gpushare/dashboard/static/app.css",
        "gpushare/dashboard/static/LICENSES.txt",
        "gpushare/py.typed",
        "gpushare_installation.py",
        "gpushared/core/node.py",
        "gpushare_examples/borrower.py",
    ):
        assert name in names
    for name in ("man1/gpushare.1", "man8/gpushared.8"):
        assert any(found.endswith(f".data/data/share/man/{name}") for found in names)
    archive = zipfile.ZipFile(wheel)
    for path in (ROOT / "docs").glob("*.md"):
        assert archive.read(f"gpushare_docs/{path.name}").decode() == path.read_text(), path
    assert not [name for name in names if name.startswith(("tests", "daemon/", "shim/"))]


def named(page: Path) -> set[str]:
    """The files and directories of the source tree that a page names: in links, and in what it shows to type."""
    text = page.read_text()
    links = [match.split("#")[0] for match in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in match]
    found = {os.path.relpath((page.resolve().parent / link).resolve(), ROOT) for link in links if link}
    found |= set(re.findall(r"(?<![\w/.~-])[\w.-]+(?:/[\w.*-]+)+", text))
    return {name for name in found if (ROOT / name).exists() or any(ROOT.glob(name))}


def test_the_wheel_has_what_readme_and_docs_name(wheel: Path) -> None:
    inside = zipfile.ZipFile(wheel).namelist()
    wanted = {name for page in PAGES for name in named(page) if not name.startswith(SOURCE_ONLY)}
    assert {"examples", "examples/cluster/cluster.yaml", "daemon/deploy/gpushared.service"} <= wanted
    files = {path for name in wanted for path in ROOT.glob(name) if not path.is_dir()}
    folders = ("examples", "examples/cluster", "daemon/deploy")
    files |= {path for folder in folders for path in (ROOT / folder).glob("*.*")}
    missing = [str(path) for path in sorted(files) if SHARED + str(path.relative_to(ROOT)) not in inside]
    assert not missing
    for path in files:
        assert zipfile.ZipFile(wheel).read(SHARED + str(path.relative_to(ROOT))) == path.read_bytes()


@pytest.fixture
def env(installed: Path, tmp_path: Path) -> dict[str, str]:
    tmp_path.chmod(0o700)
    return {
        "PATH": f"{installed}/bin:{os.environ['PATH']}",
        "XDG_RUNTIME_DIR": str(tmp_path),
        "XDG_STATE_HOME": str(tmp_path),
        "GPUSHARE_SIM": f"pool={tmp_path}/pool",
    }


def test_what_is_installed_works(installed: Path, env: dict[str, str], tmp_path: Path) -> None:
    docs = subprocess.run(["gpushare", "docs", "reasons"], env=env, capture_output=True, text=True)
    assert docs.stdout == (ROOT / "docs" / "reasons.md").read_text(), docs.stderr
    line = ["gpushare", "run", "--limit", "2Gi", "sh", "-c", "echo $GPUSHARE_LIMIT"]
    done = subprocess.run(line, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout == "2Gi\n", done.stderr
    (shim,) = installed.glob("lib/python*/site-packages/gpushare/lib/libgpushare.so")
    bound = subprocess.run(["/bin/true"], env={"LD_PRELOAD": str(shim), "LD_BIND_NOW": "1"}, capture_output=True)
    assert (bound.returncode, bound.stdout, bound.stderr) == (0, b"", b"")
    subprocess.run(["gpushare", "daemon", "stop"], env=env, cwd=tmp_path, check=True, capture_output=True)


def test_the_commands_of_the_documents_work_in_the_shared_folder(installed: Path, env: dict[str, str]) -> None:
    shared = installed / "share" / "gpushare"
    page = (shared / "docs" / "cluster.md").read_text()
    commands = re.findall(r"^gpushare cluster (?:apply|simulate) examples/\S+", page, re.MULTILINE)
    assert len(commands) >= 3
    for command in commands:
        done = subprocess.run(["sh", "-c", command], cwd=shared, env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and done.stdout, (command, done.stderr)


def test_man_finds_the_pages_of_an_environment_on_the_path(installed: Path) -> None:
    for page in ("man1/gpushare.1", "man8/gpushared.8"):
        assert (installed / "share" / "man" / page).read_text() == (ROOT / "docs" / "man" / Path(page).name).read_text()
