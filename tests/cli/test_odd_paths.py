"""Paths that no file can have, or that nobody may look at, are answered in a line like any other mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushare import file_kinds
from gpushare.cli import main
from gpushare.launch import default_name

LONG = "a" * 300
"""More than a file system takes. Asking for it fails as asking in a closed directory does, for root, too."""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> None:
    """Without a daemon, a service and a state."""
    monkeypatch.chdir(tmp_path)
    for name in ("HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("GPUSHARE_CLUSTER_SOCKET", str(tmp_path / "none.sock"))


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["submit", "--log", LONG, "--", "true"], 2, "File name too long"),
        (["submit", "--log", f"{LONG}/x", "--", "true"], 2, "cannot be written"),
        (["submit", "--", "sh", f"{LONG}.sh"], 3, f"there is no {LONG}.sh here now"),
        ([LONG], 2, "No such command"),
        (["run", "--report", f"{LONG}/x", "true"], 125, "its directory must be there"),
    ],
)
def test_a_name_that_is_too_long(capfd, arguments, code, said) -> None:
    assert main(arguments) == code
    assert said.lower() in capfd.readouterr().err.lower()


def test_a_runtime_directory_that_cannot_be_is_none(capfd, monkeypatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", f"/{LONG}")
    assert main(["ps"]) != 0
    assert "no daemon" in capfd.readouterr().err


def test_a_script_with_a_long_name_gives_its_job_a_name_that_fits() -> None:
    assert default_name(["python", f"/data/{LONG}.py"]) == "a" * 256


def test_programs_are_looked_for_in_the_places_that_are_there(capfd, monkeypatch, tmp_path) -> None:
    (tmp_path / "trainer").write_text("#!/bin/sh\n")
    (tmp_path / "trainer").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'trainer'}:{tmp_path / 'gone'}:{tmp_path}")
    assert main(["run", "trainr"]) == 127
    assert "trainer" in capfd.readouterr().err


def test_what_a_path_is(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "nowhere").symlink_to("gone")
    found = {
        name: (file_kinds.is_there(path), file_kinds.is_file(path), file_kinds.is_directory(path))
        for name in ("file", "link", "nowhere", "gone", LONG, "a\0b", ".")
        if (path := tmp_path / name)
    }
    nothing = (False, False, False)
    assert found == {
        "file": (True, True, False),
        "link": (True, True, False),
        ".": (True, False, True),
        **dict.fromkeys(("nowhere", "gone", LONG, "a\0b"), nothing),
    }
