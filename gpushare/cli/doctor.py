"""gpushare doctor: check this installation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpushare.cli import output as _output
from gpushare.cli.output import Column

if TYPE_CHECKING:
    from gpushare.doctor import Check, Finding


@click.command(short_help="Check this installation and say what to repair.")
@click.option("--cluster", is_flag=True, help="Check the installation on a Kubernetes cluster instead.")
@click.option("--kubeconfig", type=click.Path(path_type=Path), metavar="FILE", help="Else as kubectl finds it.")
@click.option("--context", metavar="NAME", help="Of the kubeconfig; else its current one.")
@click.option("--fix-hints", is_flag=True, help="Print the commands that repair what was found, for you to type.")
@_output.option("table", "json")
def command(fix_hints: bool, output: str, cluster: bool, **which: Any) -> int:
    """Check the driver, the library, the daemon and the environment. Exits 1 if something does not work.

    With --cluster: the API server, the nodes with GPUs, the plugin, the scheduler, queues, rights.
    """
    found = list(_of_cluster(**which) if cluster or any(which.values()) else _of_machine())
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


def _of_machine() -> Iterator[tuple[Check, Finding]]:
    from gpushare.doctor import Surroundings, examine

    return examine(Surroundings())


def _of_cluster(kubeconfig: Path | None, context: str | None) -> Iterator[tuple[Check, Finding]]:
    from gpushare.cli.kubectl import opened
    from gpushare.doctor import examine
    from gpushare.doctor.cluster import CHECKS, Cluster

    return examine(Cluster(opened(kubeconfig, context)), CHECKS)


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
        _output.echo("nothing to repair", err=True)
    for check, finding in found:
        _output.echo(f"# {check.id} {finding.state}, {check.title}: {finding.detail}".replace("\n", " "))
        for command in finding.fix:
            _output.echo(command)
        if not finding.fix:
            _output.echo(f"#   no command repairs it: {finding.hint}".replace("\n", " "))
