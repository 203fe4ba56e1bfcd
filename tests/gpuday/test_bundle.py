"""The folder that runs where nothing can be installed. Packages need a network: here it has the tests' own."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from gpuday import bundle
from gpuday.runner import ROOT


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    if platform.machine() != bundle.MACHINE:
        pytest.skip(f"bundles are for {bundle.MACHINE}")
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("a bundle is made from a clone")
    target = tmp_path_factory.mktemp("bundle") / "gpu-day"
    size = bundle.bundle(target, packages=False)
    assert 0 < size < bundle.MOST
    return target


def run(folder, *options, cwd, **environment):
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "OUT")} | environment
    line = [str(folder / "run"), *options]
    return subprocess.run(line, env=env, cwd=cwd, capture_output=True, text=True, timeout=110)


def contents(folder):
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_it_runs_from_its_folder_and_writes_nothing_there(folder, tmp_path):
    before = contents(folder)
    options = ("1", "--driver", "sim", "--limit", "60", "--check", "surroundings", "--check", "out-of-memory")
    done = run(folder, *options, cwd=tmp_path, GPUDAY_PYTHON=sys.executable)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(text) for text in (tmp_path / "gpu-day" / "gpu-day-1.jsonl").read_text().splitlines()]
    assert [(line["name"], line["state"]) for line in lines] == [
        ("surroundings", "passed"),
        ("out-of-memory", "passed"),
    ]
    assert contents(folder) == before


def test_it_runs_its_own_files(folder, tmp_path):
    """Not those of the source tree, which the tests' Python would find, too."""
    (folder / "tests" / "gpuday" / "checks" / "look_ups.py").rename(folder / "away.py")
    try:
        options = ("--driver", "sim", "--limit", "60", "--check", "look-ups")
        done = run(folder, *options, cwd=tmp_path, GPUDAY_PYTHON=sys.executable)
    finally:
        (folder / "away.py").rename(folder / "tests" / "gpuday" / "checks" / "look_ups.py")
    assert done.returncode == 1
    assert "No module named 'gpuday.checks.look_ups'" in done.stdout


def test_it_needs_no_compiler(folder, tmp_path):
    options = ("--driver", "sim", "--limit", "60", "--check", "cost", "--scale", "0.05")
    done = run(
        folder, *options, cwd=tmp_path, GPUDAY_PYTHON=sys.executable, CC="/nowhere/cc", OUT=str(tmp_path / "out")
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = (tmp_path / "out" / "gpu-day.jsonl").read_text().splitlines()
    assert "ns, sync pair, 8 threads" in json.loads(line)["shim"]


def test_programs_of_others_keep_their_users_python_path(folder, tmp_path):
    """And see none of ours."""
    (tmp_path / "python").write_text(f'#!/bin/sh\nenv > {tmp_path}/seen\nexec {sys.executable} "$@"\n')
    (tmp_path / "python").chmod(0o755)
    program = (
        "import sys; from pathlib import Path\n"
        "from gpuday.day import Day; from gpuday.runner import Machine\n"
        f"Day(Path({str(tmp_path)!r}), Machine(python={str(tmp_path / 'python')!r})).needs_module('json')"
    )
    (tmp_path / "program.py").write_text(program)
    script = (folder / "run").read_text().replace("-m gpuday", str(tmp_path / "program.py"))
    (folder / "run-this").write_text(script)
    (folder / "run-this").chmod(0o755)
    env = os.environ | {"PYTHONPATH": "/of/theirs", "GPUDAY_PYTHON": sys.executable}
    try:
        subprocess.run([folder / "run-this"], env=env, check=True, timeout=60)
    finally:
        (folder / "run-this").unlink()
    seen = (tmp_path / "seen").read_text().splitlines()
    assert "PYTHONPATH=/of/theirs" in seen


def test_without_a_python_that_fits_it_says_so(folder, tmp_path):
    done = run(folder, cwd=tmp_path, PATH=str(tmp_path), GPUDAY_PYTHON="/bin/false")
    assert done.returncode == 2
    assert "needs Python 3.11 to 3.14" in done.stderr


def test_what_it_carries_is_what_the_distribution_requires():
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert bundle.requirements() == told["dependencies"]
    assert {one.split(">")[0].split("[")[0] for one in told["optional-dependencies"]["gpu"]} >= {
        "cupy-cuda12x",
        "pytest",
    }
    assert bundle.PYTHONS[0] == told["requires-python"].removeprefix(">=")


@pytest.mark.parametrize(
    ("wheel", "any_python"),
    [
        ("click-8.1-py3-none-any.whl", True),
        ("psutil-7.0-cp36-abi3-manylinux_2_17_x86_64.whl", True),
        ("future-1.0-cp312-abi3-manylinux_2_17_x86_64.whl", False),
        ("aiohttp-3.14-cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", False),
    ],
)
def test_which_wheels_are_for_any_python(wheel, any_python):
    assert bundle.for_any_python(wheel) is any_python


def test_a_folder_without_compiled_parts_is_not_made(tmp_path, monkeypatch):
    monkeypatch.setattr(bundle, "BUILT", ("gpushare/lib/*.nothing",))
    with pytest.raises(bundle.CannotBundle, match="0 compiled parts, not 7"):
        bundle.bundle(tmp_path / "gpu-day", packages=False)
    assert not (tmp_path / "gpu-day").exists()


def test_a_folder_that_is_too_large_replaces_nothing(tmp_path, monkeypatch):
    target = tmp_path / "gpu-day"
    target.mkdir()
    (target / "kept").touch()
    monkeypatch.setattr(bundle, "MOST", 1000)
    with pytest.raises(bundle.CannotBundle, match="more than"):
        bundle.bundle(target, packages=False)
    assert [path.name for path in target.iterdir()] == ["kept"]


def test_the_shell_script_is_plain():
    text = Path(bundle.__file__).with_name("run.sh").read_text()
    assert text.startswith("#!/bin/sh\n")
    subprocess.run(["sh", "-n"], input=text, text=True, check=True)
