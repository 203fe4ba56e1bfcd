"""What `gpushare run` may import: it has 60 ms, and each of these would take a good part of them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import gpushare

ROOT = Path(gpushare.__file__).parents[1]
SLOW = {"rich", "psutil", "aiohttp", "asyncio", "pynvml", "prometheus_client", "cffi", "http", "email", "subprocess"}
SLOW |= {"click.shell_completion", "tomllib", "ctypes", "logging", "difflib", "tempfile", "argparse", "secrets"}


def imported_by(statement: str) -> set[str]:
    """-S -I: what the machine's site packages import at start is not ours; click's place is named by hand."""
    import click

    code = (
        f"import sys; sys.path[:0] = {[str(ROOT), str(Path(click.__file__).parents[1])]!r}; {statement};"
        "import json; print(json.dumps(sorted(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(result.stdout))


def test_run_imports_nothing_slow():
    found = imported_by("import gpushare.cli, gpushare.cli.run, gpushare.launch")
    assert not SLOW & found


def test_importing_the_package_imports_nothing_of_it():
    found = imported_by("import gpushare")
    assert {name for name in found if name.startswith("gpushare")} == {"gpushare"}
    assert "click" not in found


def test_tables_are_the_only_user_of_rich():
    files = (ROOT / "gpushare").rglob("*.py")
    users = [path.name for path in files if re.search(r"(import|from) rich", path.read_text())]
    assert users == ["output.py"]


def test_public_names():
    names = {"Quantity", "__version__", "enable", "errors", "load_ipython_extension", "set_limit", "status"}
    names |= {"checkpoint_signal", "checkpointed", "on_pressure", "pressure"}
    assert set(gpushare.__all__) == names
    for name in gpushare.__all__:
        assert getattr(gpushare, name) is not None
        assert name in dir(gpushare)
    assert gpushare.Quantity.parse("4Gi").value == 2**32
    with pytest.raises(AttributeError, match="nonsense"):
        gpushare.nonsense  # noqa: B018


def test_one_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == gpushare.__version__
