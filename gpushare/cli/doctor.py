"""gpushare doctor: check this installation."""

from __future__ import annotations

import click

from gpushare.cli import output as _output
from gpushare.cli.output import Column


@click.command(short_help="Check this installation and say what to mend.")
@_output.option("table", "json")
def command(output: str) -> int:
    """Check the driver, the shim, the daemon and the environment. Exits 1 if something does not work."""
    from gpushare.doctor import Surroundings, examine

    found = list(examine(Surroundings()))
    if output == "json":
        checks = [
            {
                "id": check.id,
                "title": check.title,
                "state": finding.state,
                "detail": finding.detail,
                "hint": finding.hint,
            }
            for check, finding in found
        ]
        _output.print_json("doctor", {"checks": checks})
    else:
        rows = [[check.id, finding.state, check.title, finding.detail] for check, finding in found]
        columns = [Column("ID"), Column("STATE"), Column("CHECK"), Column("FOUND", wrap=True)]
        _output.print_table(columns, rows)
        _print_hints([(check.id, finding.hint) for check, finding in found if finding.hint])
    return 1 if any(finding.state == "fail" for _, finding in found) else 0


def _print_hints(hints: list[tuple[str, str]]) -> None:
    if hints:
        click.echo()
    for identity, hint in hints:
        click.echo(f"hint: {identity}: {hint}")
