"""No command takes a number that is none, or that no clock can wait for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import click
import pytest

from gpushare.cli import cli
from gpushare.client import Client
from gpushare.kubernetes.__main__ import command as plugin
from gpushare.kubernetes.webhook.__main__ import command as webhook


def options(command: click.Command, path: str) -> Iterator[tuple[str, click.Option]]:
    for one in command.params:
        if isinstance(one, click.Option):
            yield f"{path} {one.opts[0]}", one
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from options(found, f"{path} {name}")


FOUND = [*options(cli, "gpushare"), *options(plugin, "plugin"), *options(webhook, "webhook")]
NUMBERS = {name: one for name, one in FOUND if isinstance(one.type, click.types.FloatParamType)}


def test_they_are_found() -> None:
    assert {"gpushare top -i", "plugin --every"} <= NUMBERS.keys() and len(FOUND) > 100


@pytest.mark.parametrize("text", ["nan", "-nan", "inf", "-inf", "1e10", "1e400", "-1", "0"])
@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_that_no_clock_can_wait_for_is_refused(name: str, text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not in the range"):
        NUMBERS[name].type.convert(text, NUMBERS[name], None)
    assert NUMBERS[name].type.convert("2.5", NUMBERS[name], None) == 2.5


@pytest.mark.parametrize("step", [1.0, 60.0, 12 * 86400.0, 30 * 86400.0, 1234567.5])
def test_a_long_step_arrives_as_it_was_asked_for(monkeypatch: pytest.MonkeyPatch, step: float) -> None:
    """In a URL a plus is a space."""
    asked: list[str] = []
    monkeypatch.setattr(Client, "_call", lambda _self, _method, target, *_more: asked.append(target))
    Client(Path("/nonexistent")).history(1e9, 2e9, step)
    (found,) = parse_qs(urlsplit(asked[0]).query)["step"]
    assert float(found) == step
