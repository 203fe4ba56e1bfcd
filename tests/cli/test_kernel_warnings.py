"""What `gpushare kernel install` warns of, beside what it prints for programs."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpushare.cli import kernel
from gpushare.errors import DaemonUnreachable


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "own"))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "before"))
    return tmp_path


@pytest.fixture
def install(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[str, str]]:
    def run(*options: str) -> tuple[str, str]:
        asked = options or ("--limit", "4Gi")
        kernel.command.main(["install", "--name", "torch", *asked], standalone_mode=False)
        done = capsys.readouterr()
        return done.out, done.err

    return run


def write_kernel(directory: Path) -> None:
    directory.mkdir(parents=True)
    argv = ["python3", "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (directory / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "T", "language": "python"}))


def test_another_kernel_of_that_name_that_comes_first(data: Path, install) -> None:
    """Notebooks would start that one, without a part of a GPU."""
    hidden = data / "before" / "kernels" / "torch"
    write_kernel(hidden)
    told, warned = install()
    assert f"another kernel of that name comes first: {hidden}" in warned
    assert "comes first" not in told


def test_no_warning_where_it_is_the_only_one_of_its_name(data: Path, install) -> None:
    write_kernel(data / "before" / "kernels" / "other")
    assert "comes first" not in install()[1]
    assert "comes first" not in install()[1], "nor of itself"


def test_a_python_without_ipykernel(data: Path, install, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "ipykernel" else find(name))
    told, warned = install()
    assert "ipykernel is not installed" in warned
    assert "ipykernel" not in told


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node's daemon, with GPUs of 8 and 16 GiB."""
    status = {"gpus": [{"capacity": 8 * 2**30}, {"capacity": 16 * 2**30}]}
    node = SimpleNamespace(client=lambda timeout: SimpleNamespace(status=lambda: status))
    monkeypatch.setattr("gpushare.locate.find", lambda settings: node)


@pytest.mark.parametrize("options", [("--limit", "17Gi"), ("--request", "17Gi", "--limit", "max")])
def test_a_request_that_no_gpu_has(data: Path, install, gpus, options) -> None:
    told, warned = install(*options)
    assert "no GPU of this node has 17.0 GiB: the kernel cannot start here" in warned
    assert "hint: the largest has 16.0 GiB" in warned
    assert "installed torch" in told


@pytest.mark.parametrize(
    "options", [("--limit", "16Gi"), ("--request", "1Gi", "--limit", "900Gi"), ("--limit", "max"), ("--limit", "50%")]
)
def test_no_warning_of_what_may_start(data: Path, install, gpus, options) -> None:
    assert "cannot start here" not in install(*options)[1]


def test_no_warning_where_no_daemon_knows_the_gpus(data: Path, install, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(settings: object) -> None:
        raise DaemonUnreachable("no daemon runs on this node")

    monkeypatch.setattr("gpushare.locate.find", away)
    assert "cannot start here" not in install("--limit", "900Gi")[1]
