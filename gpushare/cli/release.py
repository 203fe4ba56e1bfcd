"""gpushare release: end a reservation, or let a queued job start that is held."""

from __future__ import annotations

import click

from gpushare.cli import complete
from gpushare.cli import output as _output
from gpushare.config import load_settings
from gpushare.errors import DaemonUnreachable, GpushareError, NoSuchJob
from gpushare.locate import find
from gpushare.quantity import format_bytes


@click.command(short_help="End a reservation, or let a held job start.")
@click.argument("name", shell_complete=complete.held)
def command(name: str) -> None:
    """End the reservation NAME (or its id). Jobs that run in it keep their request.

    If there is none and NAME is a job of `gpushare submit` (an id, the id of an array, or a name), it may start: after
    `gpushare hold`, or after starts that have failed.
    """
    try:
        gone = find(load_settings()).client().release(name)
    except GpushareError as error:
        if _release_job(name, error):
            _output.echo(f"released {name}")
            return
        raise
    where = ", ".join(f"{format_bytes(gpu['remainder'])} on GPU {gpu['index']}" for gpu in gone["gpus"])
    jobs = len(gone["jobs"])
    still = f"; {jobs} {'job runs' if jobs == 1 else 'jobs run'} on with what it had of it" if jobs else ""
    _output.echo(f"released {where}{still}")


def _release_job(name: str, error: GpushareError) -> bool:
    """Whether it is a queued job, which may start now. Other errors than "there is no such reservation" stay."""
    if error.exit_code in (2, 4):
        return False
    from gpushare.cluster.client import find as find_service

    service = find_service()
    if service is None:
        return False
    try:
        service.release(name)
    except (DaemonUnreachable, NoSuchJob) as of_service:
        if name.replace("_", "", 1).isdecimal() and not isinstance(of_service, DaemonUnreachable):
            raise
        return False
    return True
