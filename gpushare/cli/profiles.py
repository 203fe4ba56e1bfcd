"""gpushare profiles: the named sets of options that `gpushare run --profile` takes."""

from __future__ import annotations

import click

from gpushare.cli import output as _output
from gpushare.cli.output import Column
from gpushare.config import load_profiles

COLUMNS = [Column("PROFILE"), Column("OPTIONS", wrap=True, least=20), Column("FROM", shrink=True, spare=1)]


@click.command(short_help="List the sets of options that `gpushare run --profile` takes.")
@_output.option("table", "json")
def command(output: str) -> None:
    """List the profiles of ~/.config/gpushare/config.toml and /etc/gpushare/config.toml, which look like this:

    \b
    [profiles.small]
    request = "1Gi"
    limit = "2Gi"

    The keys are those of the file: request, limit, priority, grace, on_reclaim, min_run_time, mode, visible and others.
    An option on the command line comes before the profile's, and the profile's before environment variables.
    """
    found = [profile for _, profile in sorted(load_profiles().items())]
    if output == "json":
        keys = ("name", "path", "line", "options")
        _output.print_json("profiles", {"profiles": [dict(zip(keys, one, strict=True)) for one in found]})
    elif found:
        rows = [
            [one.name, " ".join(f"{key}={text}" for key, text in one.options.items()), f"{one.path}:{one.line}"]
            for one in found
        ]
        _output.print_table(COLUMNS, rows)
    else:
        _output.echo("no profiles: `gpushare profiles --help` shows how to write one", err=True)
