"""gpushare wait: until queued jobs have ended."""

from __future__ import annotations

import time

import click

from gpushare.cli import complete
from gpushare.cli import output as _output
from gpushare.env import Setting


@click.command(short_help="Wait until queued jobs have ended.")
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...", shell_complete=complete.queued)
@click.option("--time", "most", metavar="TIME", help="Wait at most this long: 10m.")
@click.option("-q", "--quiet", is_flag=True, help="Do not say how they ended.")
def command(*, jobs: tuple[str, ...], most: str | None, quiet: bool) -> int:
    """Wait until each JOB (an id, the id of an array, or a name) has ended, and say how.

    The exit status is that of the first that did not end well: its own, 128+n if signal n ended it, 1 if it was
    cancelled. It is 124 if --time is over before. A job that is held is named: somebody has to release it.
    """
    from gpushare.cli.queued import ending, exit_status, named, service, until

    deadline = None if most is None else time.monotonic() + Setting(most, "--time").seconds()
    client, status = service(), 0
    found = [job for name in jobs for job in named(client, name)]
    for job in found:
        held = ""
        for now in until(client, job["id"]):
            if now["state"] == "held" and now["reason"]["message"] != held and not quiet:
                held = now["reason"]["message"]
                hint = f"`gpushare release {job['id']}`, or `gpushare cancel {job['id']}`"
                _output.note(f"job {job['id']} does not start by itself: {held}; {hint}")
            if now["state"] == "ended":
                status = status or exit_status(now)
                if not quiet:
                    _output.echo(ending(now))
                break
            if deadline is not None and time.monotonic() >= deadline:
                _output.note(f"job {job['id']} has not ended: it is {now['state']}")
                return 124
    return status
