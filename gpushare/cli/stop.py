"""gpushare stop: end jobs."""

from __future__ import annotations

import click

from gpushare.api import Job
from gpushare.cli import complete
from gpushare.cli import output as _output
from gpushare.config import load_settings
from gpushare.env import Setting
from gpushare.errors import NoSuchJob
from gpushare.locate import find
from gpushare.quantity import format_duration

GRACE = 10.0
"""Seconds from SIGTERM to SIGKILL for a job without its own grace."""
INSIST = 5.0
IN_HOST_MEMORY = " is suspended: its program can save nothing from its GPU before it runs again (`gpushare resume {}`)"


@click.command(short_help="Stop jobs: SIGTERM, then SIGKILL if they do not end.")
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...", shell_complete=complete.jobs)
@click.option("--now", is_flag=True, help="SIGKILL at once.")
@click.option(
    "--grace", metavar="TIME", help="Time from SIGTERM to SIGKILL: 5s, 2m.  [default: the job's own --grace, else 10s]"
)
def command(*, jobs: tuple[str, ...], now: bool, grace: str | None) -> None:
    """Stop each JOB (its id, the beginning of it, its name, or the pid of one of its processes) and wait for its end.

    Its program gets SIGTERM and may save its work. SIGKILL follows after the grace. A queued job leaves the queue.
    Only a job's user and the node's administrators may stop it.

    The exit status is 0 if all have ended, 5 if there is no such job, 4 if one is not yours, 1 if one does not end.
    """
    from gpushare import stop

    patience = None if grace is None else Setting(grace, "--grace").seconds()
    client = find(load_settings()).client()
    found = [client.find_job(name) for name in jobs]
    for job in found:
        if job["state"] == "ended":
            raise NoSuchJob(f"job {job['name']} ({job['id']}) has ended already", hint="`gpushare ps -a` says how")
    waiting: list[Job] = []
    for job in found:
        stopped = client.stop(job["id"], now=now)
        if stopped["job"]["state"] == "queued":
            _output.echo(f"job {job['name']} ({job['id']}) has left the queue")
        else:
            waiting.append(job)
            if stopped["job"]["state"] == "suspended" and not now:
                _output.echo(f"job {job['name']}{IN_HOST_MEMORY.format(job['id'])}", err=True)
            if stopped["spared"]:
                _output.echo(f"job {job['name']}{stop.left_alone(stopped)}", err=True)
    for job in waiting:
        seconds = patience if patience is not None else job["grace"] if job["grace"] is not None else GRACE
        if stop.stop(client, job["id"], 0.0 if now else seconds, INSIST) and not now:
            _output.echo(f"job {job['name']} did not end within {format_duration(seconds)}: SIGKILL", err=True)
        _output.echo(f"stopped job {job['name']} ({job['id']})")
