"""gpushare resume: let suspended jobs go on."""

from __future__ import annotations

import os

import click

from gpushare.cli import complete
from gpushare.cli import output as _output
from gpushare.config import load_settings
from gpushare.follower import OWN_GPUS, SUSPENDER, KeptFollower
from gpushare.locate import find
from gpushare.spawn import with_driver


@click.command(short_help="Let suspended jobs go on.")
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...", shell_complete=complete.jobs)
def command(*, jobs: tuple[str, ...]) -> None:
    """Let each JOB (its id, the beginning of it, its name, or the pid of one of its processes) go on, as soon as its
    memory fits onto its GPU again. Of several, the one with the highest priority comes first, then the one that was
    suspended first.

    The exit status is 0 if all go on or wait for room, 1 if one is not suspended, 5 if there is no such job, 4 if one
    is not yours.
    """
    node = find(load_settings())
    client = node.client()
    for job in [client.find_job(name) for name in jobs]:
        answer = client.resume(job["id"])
        if not answer["suspender"]:
            environ = with_driver(dict(os.environ), node.driver, node.runtime)
            KeptFollower(SUSPENDER, environ, job["id"], node.runtime.api_socket, OWN_GPUS)
        _output.echo(f"job {job['name']} ({job['id']}): {answer['note']}")
