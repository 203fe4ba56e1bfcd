"""What a first-time user meets: a demo whose requirements are missing, and a machine without `python`."""

from __future__ import annotations

import sys

import pytest

from gpushare import demo, demo_queue
from gpushare.cli import mistakes
from gpushare.errors import GpushareError


def test_the_demo_of_the_queue_says_at_once_what_is_missing(monkeypatch):
    monkeypatch.setattr(demo_queue, "has_binding", lambda: False)
    with pytest.raises(GpushareError, match="Python binding") as raised:
        demo_queue.main()
    assert "cuda-bindings" in (raised.value.hint or "")


def test_an_empty_package_is_no_binding(tmp_path, monkeypatch):
    """Others keep folders below `cuda`, also after they are removed."""
    (tmp_path / "cuda").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for name in ("cuda", "cuda.bindings", "cupy"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert not demo.has_binding()


@pytest.mark.parametrize("script", [False, True])
def test_python3_is_named_where_there_is_no_python(tmp_path, monkeypatch, script):
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "python3").symlink_to("/bin/true")
    (programs / "python-argcomplete").symlink_to("/bin/true")
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    line = ["run", "train.py"] if script else ["run", "python", "train.py"]
    assert "`gpushare run python3 train.py`" in (mistakes._program_meant(line[1], line) or "")


def test_the_demo_names_a_command_that_can_be_typed(tmp_path, monkeypatch):
    for name in ("python3", "gpushare"):
        (tmp_path / name).symlink_to("/bin/true")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python3"))
    monkeypatch.setenv("PATH", "/nowhere")
    assert demo.typed() == str(tmp_path / "gpushare")
    monkeypatch.chdir(tmp_path.parent)
    assert demo.typed() == f"{tmp_path.name}/gpushare"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert demo.typed() == "gpushare"
