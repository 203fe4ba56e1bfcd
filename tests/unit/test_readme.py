"""The README and its first pages cannot rot: set-up commands are make targets, and every command shown exists."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from gpushare.cli import cli

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").glob("*.md"))]
README = "\n".join((ROOT / page).read_text() for page in ("README.md", "docs/running.md", "docs/notebooks.md"))


def blocks() -> list[str]:
    """The commands of all console blocks."""
    return [line for block in re.findall(r"```console\n(.*?)```", README, re.DOTALL) for line in block.splitlines()]


def test_the_two_set_up_commands() -> None:
    assert blocks() == ["make demo", "make test"]


@pytest.mark.parametrize("target", ["demo", "test", "bench", "property"])
def test_make_targets_exist(target: str) -> None:
    done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def shown_commands() -> list[str]:
    return sorted(set(re.findall(r"`gpushare ([a-z-]+)", README)) | set(re.findall(r"\$ gpushare ([a-z-]+)", README)))


@pytest.mark.parametrize("command", shown_commands())
def test_commands_exist(command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gpushare", command, "--help"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def options_of(command: click.Command) -> set[str]:
    """Of the command and of all below it."""
    found = {name for param in command.params for name in param.opts}
    context = click.Context(command)
    for name in command.list_commands(context) if isinstance(command, click.Group) else ():
        below = command.get_command(context, name)
        assert below is not None
        found |= options_of(below)
    return found


def test_options_exist() -> None:
    service = subprocess.run([sys.executable, "-m", "gpushared.cluster", "--help"], capture_output=True, text=True)
    known = options_of(cli) | set(re.findall(r"--[a-z-]+", service.stdout))  # serve's
    known |= {"--check-config", "--device", "--env", "--format"}  # of gpushared, podman, nvidia-ctk
    for option in set(re.findall(r"(?<![-|\w])(--[a-z][a-z-]*)", README)):
        assert option in known, option


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)[^):]*\)", page.read_text()):
        assert (page.resolve().parent / target).exists(), target


def test_files_named_in_the_architecture_exist() -> None:
    places = ["", "daemon/gpushared/"]
    named = re.findall(r"`([\w/.*-]+/[\w.*-]*)`", (ROOT / "ARCHITECTURE.md").read_text())
    assert len(named) > 40
    for path in named:
        assert any(any(ROOT.glob(place + path.rstrip("/"))) for place in places), path


def test_the_ci_script_calls_the_readmes_command() -> None:
    assert "make test" in (ROOT / ".ci" / "run").read_text()
