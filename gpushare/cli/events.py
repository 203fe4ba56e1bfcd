"""gpushare events: what the daemon does, as it does it."""

from __future__ import annotations

import json
import select

import click

from gpushare.api import Record
from gpushare.cli import complete
from gpushare.cli import output as _output
from gpushare.config import load_settings
from gpushare.errors import DaemonUnreachable
from gpushare.locate import find


@click.command(short_help="List what has happened on this node, or follow it.")
@click.option("-f", "--follow", is_flag=True, help="Go on with what happens from now on, until interrupted.")
@click.option(
    "-n", "--last", metavar="N", type=click.IntRange(0), default=20, show_default=True, help="How many before."
)
@click.option("--job", metavar="JOB", shell_complete=complete.jobs, help="Only of this job: its name or id.")
@_output.option("table", "jsonl")
def command(follow: bool, last: int, job: str | None, output: str) -> None:
    """What has happened on this node: who was admitted, who waited, who was asked to give back, by which rung.

    Of other users' jobs you read what the administrator lets you.
    """
    client = find(load_settings()).client()

    def wanted(record: Record) -> bool:
        return job is None or job in (record["name"], record["job"]) or record["event"] == "lost"

    if not follow:
        found = [record for record in client.records() if wanted(record)]
        for record in found[-last:] if last else []:
            _print(record, output)
        if not found and output == "table":
            _output.echo("no events" + (f" of a job {job!r}" if job else ""), err=True)
        return
    stream = client.follow(last)
    try:
        while not stream.ended:
            select.select([stream], [], [])
            for record in stream.read():
                if wanted(record):
                    _print(record, output)
    finally:
        stream.close()
    raise DaemonUnreachable("the daemon has ended this stream", hint="has it been restarted? follow it again")


def _print(record: Record, output: str) -> None:
    if output == "jsonl":
        _output.echo(json.dumps({"schema": "gpushare.event/1", **record}))
        return
    first, *more = record["text"].splitlines() or [""]
    whose = f"{record['name']}: " if record["name"] else ""
    _output.echo(f"{_output.clock(record['time'])}  {record['event']:<10}  {whose}{first}")
    for line in more:
        _output.echo(f"{'':22}{line}")
