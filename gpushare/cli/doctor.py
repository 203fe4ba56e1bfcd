"""gpushare doctor: check this installation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpushare.cli import output as _output
from gpushare.cli.output import Column

if TYPE_CHECKING:
    from gpushare.doctor import Check, Finding


@click.command(short_help="Check this installation and say what to repair.")
@click.option("--fix-hints", is_flag=True, help="Print the commands that repair what was found, for you to type.")
@_output.option("table", "json")
def command(fix_hints: bool, output: str) -> int:
    """Check the driver, the library, the daemon and the environment. Exits 1 if something does not work."""
    from gpushare.doctor import Surroundings, examine

    found = list(examine(Surroundings()))
    if output == "json":
        _output.print_json("doctor", {"checks": [_as_json(check, finding) for check, finding in found]})
    elif fix_hints:
        _print_fixes([(check, finding) for check, finding in found if finding.state in ("warn", "fail")])
    else:
        rows = [[check.id, finding.state, check.title, finding.detail] for check, finding in found]
        columns = [Column("ID"), Column("STATE"), Column("CHECK"), Column("FOUND", wrap=True)]
        _output.print_table(columns, rows)
        _print_hints([(check.id, finding.hint) for check, finding in found if finding.hint])
    return 1 if any(finding.state == "fail" for _, finding in found) else 0


def _as_json(check: Check, finding: Finding) -> dict[str, object]:
    return {
        "id": check.id,
        "title": check.title,
        "state": finding.state,
        "detail": finding.detail,
        "hint": finding.hint,
        "fix": finding.fix,
    }


def _print_hints(hints: list[tuple[str, str]]) -> None:
    if hints:
        _output.echo()
    for identity, hint in hints:
        _output.echo(f"hint: {identity}: {hint}")


def _print_fixes(found: list[tuple[Check, Finding]]) -> None:
    """Commands for a shell, with comments that say what they are for."""
    if not found:
        _output.echo("nothing to mend", err=True)
    for check, finding in found:
        _output.echo(f"# {check.id} {finding.state}, {check.title}: {finding.detail}".replace("\n", " "))
        for command in finding.fix:
            _output.echo(command)
        if not finding.fix:
            _output.echo(f"#   no command mends it: {finding.hint}".replace("\n", " "))
