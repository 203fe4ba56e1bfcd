"""Writes gpushare.1 and gpushared.8 beside itself, from the parsers that print --help: python docs/man/generate.py

The pages are kept in the source tree, because who builds a wheel has none of the modules that the parsers need; a test
compares them. One page has all of gpushare's commands, as one would search it.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from gpushare import __version__
from gpushare import cli as command_line
from gpushare.env import VARIABLES
from gpushared.cli import parser as daemon_parser

PREFORMATTED = "\b"
"""Click's mark of a paragraph that is not to be filled."""


def pages() -> dict[str, str]:
    """By the name of the file."""
    return {"gpushare.1": "\n".join(gpushare()) + "\n", "gpushared.8": "\n".join(gpushared()) + "\n"}


def gpushare() -> Iterator[str]:
    context = click.Context(command_line.cli, info_name="gpushare")
    yield from head("gpushare", 1, "share NVIDIA GPUs between programs")
    yield from section("SYNOPSIS")
    yield from (".B gpushare", plain(" ".join(usage(command_line.cli, context))))
    yield from section("DESCRIPTION")
    yield from prose(command_line.cli.help or "")
    yield from section("COMMANDS")
    for path, command in commands(command_line.cli, context):
        yield f'.SS "{plain(" ".join([path, *usage(command, context)]))}"'
        yield from prose(command.help or "")
        options = [param for param in command.params if isinstance(param, click.Option)]
        records = [option.get_help_record(click.Context(command)) for option in options]
        yield from definitions(record for record in records if record is not None)
    yield from section("ENVIRONMENT")
    yield from prose("An option on the command line comes first, then the first of these that is set.")
    variables = [([one.name, *(alias.name for alias in one.aliases)], one.help) for one in VARIABLES]
    yield from definitions((", ".join(names), text) for names, text in variables)
    yield from section("EXIT STATUS")
    yield from (".nf", *map(plain, exit_codes()), ".fi")
    yield from section("SEE ALSO")
    yield from prose("gpushared(8). `gpushare docs` has the documentation, `gpushare docs reasons` every message.")


def gpushared() -> Iterator[str]:
    parser = daemon_parser()
    yield from head("gpushared", 8, "the node daemon of gpushare")
    yield from section("SYNOPSIS")
    yield from (".B gpushared", "[OPTION]...")
    yield from section("DESCRIPTION")
    yield from prose(parser.description or "")
    yield from section("OPTIONS")
    actions = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    options = [(f"{', '.join(one.option_strings)} {value(one)}", one.help or "") for one in actions]
    yield from definitions((term.rstrip(), text) for term, text in options)
    yield from section("SEE ALSO")
    yield from prose("gpushare(1). `gpushare docs deploy` has the service, `gpushare docs security` its promises.")


def commands(group: click.Group, context: click.Context, path: str = "gpushare") -> Iterator[tuple[str, click.Command]]:
    """All of them, each with the words that call it."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if not command.hidden:
            yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from commands(command, context, f"{path} {name}")


def usage(command: click.Command, context: click.Context) -> list[str]:
    return command.collect_usage_pieces(context)


def value(action: argparse.Action) -> str:
    """Of an option, as --help shows it."""
    if action.nargs == 0:
        return ""
    choices = "{" + ",".join(map(str, action.choices)) + "}" if action.choices else ""
    return str(action.metavar or choices or action.dest.upper())


def exit_codes() -> list[str]:
    """The block in the docstring of the module that returns them."""
    return [line.strip() for line in (command_line.__doc__ or "").splitlines() if line.startswith("    ")]


# ---- roff ------------------------------------------------------------------------------------------


def head(name: str, number: int, about: str) -> Iterator[str]:
    yield f'.TH "{name.upper()}" "{number}" "" "gpushare {__version__}" "gpushare manual"'
    yield from section("NAME")
    yield plain(f"{name} - {about}")


def section(title: str) -> Iterator[str]:
    yield f".SH {title}"


def prose(text: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        lines = paragraph.splitlines()
        yield ".PP"
        if lines[0].strip() == PREFORMATTED:
            yield from (".nf", *(plain(line.rstrip()) for line in lines[1:]), ".fi")
        else:
            yield plain(" ".join(paragraph.split()))


def definitions(items: Iterable[tuple[str, str]]) -> Iterator[str]:
    for term, text in items:
        yield from (".TP", f"\\fB{plain(term)}\\fR", plain(" ".join(text.split())))


def plain(text: str) -> str:
    """Text that roff takes as it is: a hyphen is typed, and so is not made a dash."""
    text = text.replace("\\", r"\e").replace("-", r"\-").replace('"', r"\(dq")
    return rf"\&{text}" if text[:1] in (".", "'") else text


if __name__ == "__main__":
    for name, text in pages().items():
        Path(__file__).with_name(name).write_text(text, encoding="utf-8")
