"""gpushare completion: the script for a shell's completion."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from gpushare.cli import output as _output


@click.command(short_help="Print the completion script for a shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the completion script for SHELL.

    \b
    eval "$(gpushare completion bash)"
    """
    from gpushare.cli import cli

    completion = get_completion_class(shell)
    assert completion is not None
    _output.echo(completion(cli, {}, "gpushare", "_GPUSHARE_COMPLETE").source())
