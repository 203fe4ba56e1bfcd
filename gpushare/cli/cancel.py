"""gpushare cancel: take queued jobs back."""

from __future__ import annotations

import click

from gpushare.cli import complete
from gpushare.cli import output as _output
from gpushare.quantity import count


@click.command(short_help="Take queued jobs back, waiting or running.")
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...", shell_complete=complete.queued)
@click.option("--now", is_flag=True, help="Without grace: SIGKILL at once.")
def command(*, jobs: tuple[str, ...], now: bool) -> None:
    """Take each JOB back: an id, the id of an array (all its jobs), or a name.

    What runs gets SIGTERM, and SIGKILL after its grace.
    """
    from gpushare.cli.queued import service

    client = service()
    for name in jobs:
        of_it = client.cancel(name, now=now)["jobs"]
        _output.echo(f"cancelled {name}" + (f": {count(len(of_it), 'job')}" if len(of_it) > 1 else ""))
