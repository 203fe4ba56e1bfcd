"""Where a daemon has its directory and its history, by its options and its environment."""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from gpushare.paths import SYSTEM_DIR, history_dir, user_dir
from gpushared import cli
from gpushared.cli import SYSTEM_HISTORY

STATE = {"STATE_DIRECTORY": "/var/lib/own:/var/lib/other", "XDG_STATE_HOME": "/s", "HOME": "/h"}
USERS = {"XDG_STATE_HOME": "/s", "HOME": "/h"}


def options(**said: Any) -> Namespace:
    paths = {name: Path(value) for name, value in said.items() if name != "system"}
    return Namespace(**{"dir": None, "history": None, "system": said.get("system", False), **paths})


@pytest.mark.parametrize(
    ("said", "environ", "place"),
    [
        ({"history": "/h/own", "dir": "/d", "system": True}, STATE, Path("/h/own")),
        ({"dir": "/d", "system": True}, STATE, Path("/d/history")),
        ({"dir": "/d"}, STATE, Path("/d/history")),
        ({"system": True}, STATE, Path("/var/lib/own/history")),
        ({"system": True}, {"STATE_DIRECTORY": ""}, SYSTEM_HISTORY),
        ({"system": True}, USERS, SYSTEM_HISTORY),
        ({}, STATE, history_dir("sim", USERS)),
        ({}, {}, None),
    ],
)
def test_where_the_history_lies(said: dict[str, Any], environ: dict[str, str], place: Path | None) -> None:
    assert cli._history(options(**said), "sim", environ) == place


def test_where_the_sockets_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli._directory(options(dir="run", system=True), "sim") == tmp_path / "run"
    assert cli._history(options(history="kept"), "sim", {}) == tmp_path / "kept"
    assert cli._directory(options(system=True), "nvidia") == SYSTEM_DIR
    assert cli._directory(options(), "sim") == user_dir("sim", os.environ)


class Replaced(Exception):
    pass


@pytest.mark.parametrize(
    ("preload", "becomes"),
    [
        ("/opt/lib/libgpushare.so", ""),
        ("/a/libother.so:/opt/libgpushare.so", "/a/libother.so"),
        ("/a/x.so /opt/libgpushare.so /b/y.so", "/a/x.so:/b/y.so"),
        ("/a/libother.so", None),
        ("", None),
    ],
)
def test_the_daemon_starts_again_without_the_library(
    monkeypatch: pytest.MonkeyPatch, preload: str, becomes: str | None
) -> None:
    """It must see the real GPUs."""
    called: list[list[str]] = []

    def execv(_path: str, words: list[str]) -> None:
        called.append(words)
        raise Replaced

    monkeypatch.setattr(os, "execv", execv)
    monkeypatch.setenv("LD_PRELOAD", preload)
    monkeypatch.setattr(cli.sys, "argv", ["gpushared", "--user", "--dir", "/d"])
    if becomes is None:
        cli._without_preload()
        assert called == [] and os.environ["LD_PRELOAD"] == preload
        return
    with pytest.raises(Replaced):
        cli._without_preload()
    assert os.environ["LD_PRELOAD"] == becomes
    assert called[0][1:] == ["-m", "gpushared", "--user", "--dir", "/d"]
