"""The README's first command, without the virtual environment around it: the demo plays to its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushare.client import Client
from gpushare.demo import Stage
from gpushare.errors import DaemonUnreachable, GpushareError
from integration.node import Node


def test_the_demo_tells_its_story(node: Node) -> None:
    done = node.gpushare("demo", "--sim")
    assert done.returncode == 0, done.stdout + done.stderr
    acts = [line for line in done.stdout.splitlines() if line.startswith("Act ")]
    assert [line.partition(":")[0] for line in acts] == ["Act 1", "Act 2", "Act 3", "Act 4"]
    for line in ("working on with", "was stopped to return borrowed memory", "late never saw an error"):
        assert line in done.stdout
    assert "That went wrong" not in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def refusing(directory: Path, status: int) -> Stage:
    """The demo where `gpushare run` says no and exits with the status."""
    stage = Stage(directory, "auto")
    says = f"echo 'gpushare: limit: 8.0 GiB; at most 2.0 GiB' >&2; echo 'hint: ask' >&2; exit {status}"
    stage.gpushare = lambda *words: ["sh", "-c", says]  # type: ignore[method-assign]
    return stage


def test_a_policy_that_refuses_is_told_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(GpushareError) as caught:
        refusing(tmp_path, 125).gpu_size()
    assert caught.value.message == "the demo wants all of a GPU: limit: 8.0 GiB; at most 2.0 GiB"
    assert caught.value.hint is not None and "`gpushare demo --sim`" in caught.value.hint


def test_a_program_that_fails_says_so_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(GpushareError, match="cannot use a GPU"):
        refusing(tmp_path, 1).gpu_size()
    assert "at most 2.0 GiB" in capsys.readouterr().err


def test_on_software_gpus_the_demo_has_a_daemon_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the node's, whose policy may not allow it."""
    monkeypatch.setenv("GPUSHARE_SOCKET", "/nowhere/api.sock")
    tmp_path.chmod(0o700)
    stage = Stage(tmp_path, "sim")
    stage.start_daemon()
    try:
        assert Path(stage.environment["GPUSHARE_SOCKET"]).is_relative_to(tmp_path)
        version = Client(Path(stage.environment["GPUSHARE_SOCKET"])).version()
        assert (version["driver"], version["scope"]) == ("sim", "user")
        assert stage.gpu_size() > 4
    finally:
        stage.clear()
    with pytest.raises(DaemonUnreachable):
        Client(Path(stage.environment["GPUSHARE_SOCKET"])).version()


def test_a_daemon_that_does_not_start_is_told_at_once(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / "own").mkdir(mode=0o700)
    (tmp_path / "own" / "api.sock").mkdir()
    with pytest.raises(GpushareError):
        Stage(tmp_path, "sim").start_daemon()
