"""gpushare docs: the documentation, in the terminal."""

from __future__ import annotations

import sys

import click

from gpushare import manual
from gpushare.cli import complete
from gpushare.cli import output as _output
from gpushare.cli.output import Column

READABLE = 100
"""Most columns of a text."""


@click.command(short_help="Read the documentation, also without a network.")
@click.argument("topic", required=False, shell_complete=complete.topics)
def command(topic: str | None) -> None:
    """Read the documentation of this version. Without TOPIC: list the topics. TOPIC may be the beginning of a name.

    In a terminal it uses the pager (PAGER), else it prints Markdown.
    """
    if topic is None:
        rows = [[name, manual.title(manual.read(name))] for name in manual.topics()]
        _output.print_table([Column("TOPIC"), Column("ABOUT", wrap=True)], rows)
        return
    text = manual.read(topic)
    if sys.stdout.isatty():
        click.echo_via_pager(_output.markdown(text, min(_output.terminal_size().columns, READABLE)))
    else:
        _output.echo(text, nl=False)
