"""gpushare hold: keep queued jobs from starting."""

from __future__ import annotations

import click

from gpushare.cli import complete
from gpushare.cli import output as _output


@click.command(short_help="Keep waiting jobs from starting until `gpushare release`.")
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...", shell_complete=complete.queued)
def command(*, jobs: tuple[str, ...]) -> None:
    """Keep each JOB (an id, the id of an array, or a name) from starting until `gpushare release JOB`. One that runs
    cannot be held."""
    from gpushare.cli.queued import service

    client = service()
    for name in jobs:
        client.hold(name)
        _output.echo(f"held {name}")
