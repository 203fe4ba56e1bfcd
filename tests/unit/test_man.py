"""The man pages are those of the parsers that print --help, and roff takes them."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import click
import pytest

from gpushare.cli import COMMANDS, cli

MAN = Path(__file__).resolve().parents[2] / "docs" / "man"
PAGES = ("gpushare.1", "gpushared.8")


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", MAN / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_of_this_version(generate: ModuleType, page: str) -> None:
    assert (MAN / page).read_text() == generate.pages()[page], "run `python docs/man/generate.py`"


def test_no_environment_changes_them(generate: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    before = generate.pages()
    for name, value in (("COLUMNS", "40"), ("GPUSHARE_LOG", "debug"), ("GPUSHARE_LIMIT", "4Gi"), ("NO_COLOR", "1")):
        monkeypatch.setenv(name, value)
    assert generate.pages() == before


@pytest.mark.parametrize("page", PAGES)
def test_roff_has_nothing_to_say(page: str) -> None:
    groff = shutil.which("groff")
    if groff is None:
        pytest.skip("no groff")
    done = subprocess.run([groff, "-man", "-Tutf8", "-ww", "-rLL=80n", MAN / page], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    shown = re.sub(r"\x1b\[[0-9;]*m|.\x08", "", done.stdout)
    assert "NAME" in shown and "SEE ALSO" in shown


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_is_there(generate: ModuleType, name: str) -> None:
    page = (MAN / "gpushare.1").read_text()
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert (
        f'.SS "{generate.plain(f"gpushare {name}")} ' in page or f'.SS "{generate.plain(f"gpushare {name}")}"' in page
    )
    for param in command.params:
        for option in param.opts if isinstance(param, click.Option) else ():
            assert generate.plain(option) in page


def test_what_roff_would_take_for_its_own_is_plain(generate: ModuleType) -> None:
    assert generate.plain(".so /etc/passwd") == r"\&.so /etc/passwd"
    assert generate.plain("'a -b \\c") == r"\&'a \-b \ec"
