"""gpushare logs: the output of queued jobs."""

from __future__ import annotations

import sys
from typing import Any

import click

from gpushare.cli import complete
from gpushare.cli import output as _output
from gpushare.errors import UsageError


@click.command(short_help="Show the output of a queued job.")
@click.argument("job", shell_complete=complete.queued)
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended.")
@click.option("-n", "--lines", metavar="N", type=click.IntRange(0), help="Only the last N lines of what is there.")
def command(*, job: str, follow: bool, lines: int | None) -> None:
    """Show what JOB (its id or its name) has written, as it is: with its own control characters.

    Of long output the last 32 to 64 MiB are kept.
    """
    show(job, follow=follow, last=lines)


def show(name: str, *, follow: bool, last: int | None) -> dict[str, Any]:
    """Show the output. Returns the job as it is at the end."""
    from gpushare.cli import queued

    client = queued.service()
    found = queued.named(client, name)
    if len(found) > 1:
        ids = ", ".join(one["id"] for one in found[:8])
        raise UsageError(f"{name} is {len(found)} jobs", hint=f"name one of them: {ids}")
    (job,) = found
    tails = [queued.Tail(path, last) for path in queued.log_files(job)]
    if not follow:
        data = b"".join(tail.read() for tail in tails)
        if not data and job["result"] is None and not job["tasks"]:
            _output.note(queued.away(job))
        _write(data)
        return job
    said = False

    def meanwhile() -> None:
        for tail in tails:
            _write(tail.read())

    for now in queued.until(client, job["id"], meanwhile):
        job = now
        meanwhile()
        if job["state"] == "ended":
            break
        if not said and not job["tasks"]:
            _output.note(queued.away(job))
        said = True
    return job


def _write(data: bytes) -> None:
    """Write the output as it is: it is the user's own."""
    if data:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
