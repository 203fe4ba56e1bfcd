"""gpushare release: end a reservation."""

from __future__ import annotations

import click

from gpushare.cli import complete
from gpushare.cli import output as _output
from gpushare.config import load_settings
from gpushare.locate import find
from gpushare.quantity import format_bytes


@click.command(short_help="End a reservation.")
@click.argument("name", shell_complete=complete.reservations)
def command(name: str) -> None:
    """End the reservation NAME (or its id). Jobs that run in it keep their request."""
    gone = find(load_settings()).client().release(name)
    where = ", ".join(f"{format_bytes(gpu['remainder'])} on GPU {gpu['index']}" for gpu in gone["gpus"])
    jobs = len(gone["jobs"])
    still = f"; {jobs} {'job runs' if jobs == 1 else 'jobs run'} on with what it had of it" if jobs else ""
    _output.echo(f"released {where}{still}")
