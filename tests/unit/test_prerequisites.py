"""What is missing for a build is said in one line, before the build."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "shim"))

import prerequisites  # noqa: E402


@pytest.fixture
def compiler(monkeypatch, tmp_path):
    """A compiler that takes only sources without the given header."""
    monkeypatch.setattr(metadata, "version", lambda name: "99.1")

    def compiler(refused: str) -> dict[str, str]:
        path = tmp_path / "fake-cc"
        path.write_text(f'#!/bin/sh\nif [ -n "{refused}" ]; then ! grep -q "{refused}"; fi\n')
        path.chmod(0o755)
        return {"PATH": f"{tmp_path}:{os.environ['PATH']}", "CC": "fake-cc -flag"}

    return compiler


@pytest.mark.parametrize("command", sorted(prerequisites.BUILDING))
def test_no_compiler(compiler, command):
    said = prerequisites.missing([command], {**compiler(""), "CC": "nonesuch -m64"})
    assert said is not None and "\n" not in said
    assert "there is no C compiler (nonesuch -m64)" in said
    assert f"apt install gcc libc6-dev python3.{sys.version_info.minor}-dev" in said and "dnf install" in said


def test_headers_of_the_c_library(compiler):
    said = prerequisites.missing(["bdist_wheel"], compiler("stdlib.h"))
    assert said is not None and "headers of the C library are missing" in said and "fake-cc" in said


def test_headers_of_python(compiler):
    said = prerequisites.missing(["build_ext"], compiler("Python.h"))
    assert said is not None and f"headers of Python 3.{sys.version_info.minor} are missing" in said


def test_the_headers_are_looked_for_where_python_says(compiler, monkeypatch, tmp_path):
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": str(tmp_path), "platinclude": str(tmp_path)})
    environ = {**compiler(""), "CC": "gcc"}
    assert "headers of Python" in (prerequisites.missing(["build_ext"], environ) or "")
    (tmp_path / "Python.h").touch()
    assert prerequisites.missing(["build_ext"], environ) is None


@pytest.mark.parametrize("version", ["65.5.0", "0", ""])
def test_old_tools(compiler, monkeypatch, version):
    monkeypatch.setattr(metadata, "version", lambda name: version if name == "setuptools" else "9")
    said = prerequisites.missing(["build_ext"], compiler(""))
    assert said is not None and "it needs setuptools 77 or later" in said and "pip install ." in said


def test_no_tools(compiler, monkeypatch):
    def version(name):
        if name == "cffi":
            raise metadata.PackageNotFoundError(name)
        return "77.0"

    monkeypatch.setattr(metadata, "version", version)
    assert "it needs cffi 1 or later" in (prerequisites.missing(["build_ext"], compiler("")) or "")


def test_nothing_is_missing(compiler):
    assert prerequisites.missing(["build_ext"], compiler("")) is None


def test_what_builds_nothing_needs_nothing(compiler):
    assert prerequisites.missing(["sdist", "egg_info", "clean"], {**compiler(""), "CC": "nonesuch"}) is None


def test_setup_says_it_and_nothing_else(tmp_path):
    line = [sys.executable, str(ROOT / "setup.py"), "build_ext", "--build-lib", str(tmp_path)]
    done = subprocess.run(line, cwd=ROOT, env={**os.environ, "CC": "nonesuch"}, capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("gpushare cannot be built: ")
