"""gpushare suspend: keep jobs in host memory."""

from __future__ import annotations

import click

from gpushare.cli import complete
from gpushare.cli import output as _output
from gpushare.config import load_settings
from gpushare.locate import find


@click.command(short_help="Keep jobs in host memory until `gpushare resume`.")
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...", shell_complete=complete.jobs)
def command(*, jobs: tuple[str, ...]) -> None:
    """Stop each JOB (its id, the beginning of it, its name, or the pid of one of its processes) and keep the memory of
    its programs in host memory, until `gpushare resume`. Others may use its GPU memory meanwhile.

    It must have been started with --on-reclaim trim,suspend,term,kill, and the driver must be able to do it. Only a
    job's user and the node's administrators may suspend it.

    The exit status is 0 if all are being suspended, 1 if one cannot be, 5 if there is no such job, 4 if one is not
    yours.
    """
    client = find(load_settings()).client()
    for job in [client.find_job(name) for name in jobs]:
        note = client.suspend(job["id"])["note"]
        _output.echo(f"job {job['name']} ({job['id']}): {note}")
