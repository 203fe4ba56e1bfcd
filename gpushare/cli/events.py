"""gpushare events: what the daemon has done, and does."""

from __future__ import annotations

import json
import select
import sys
import time

import click
from click.core import ParameterSource

from gpushare.api import Record
from gpushare.cli import complete
from gpushare.cli import output as _output
from gpushare.cli.moment import moment as parse_moment
from gpushare.client import Client
from gpushare.config import load_settings
from gpushare.errors import DaemonUnreachable, UsageError
from gpushare.locate import find
from gpushare.offline_history import OfflineHistory, ask


@click.command(short_help="List what has happened on this node, or follow it.")
@click.option("-f", "--follow", is_flag=True, help="Show new events as they happen, until interrupted.")
@click.option(
    "-n", "--last", metavar="N", type=click.IntRange(0), default=20, show_default=True, help="How many before."
)
@click.option("--since", metavar="TIME", help="Since then: 8h, 2d (ago), 22:30, 2026-11-21 or 2026-11-21 22:30.")
@click.option("--job", metavar="JOB", shell_complete=complete.jobs, help="Only events of this job: its name or id.")
@_output.option("table", "json", "jsonl")
@click.pass_context
def command(
    context: click.Context, *, follow: bool, last: int, since: str | None, job: str | None, output: str
) -> None:
    """What has happened on this node: which jobs were admitted, waited, or were asked to give memory back, and how.

    The administrator decides what you see of other users' jobs. While no daemon runs, you see the history that the last
    one has written.
    """
    moment = None if since is None else parse_moment(since, time.time(), "--since")
    if moment is not None and context.get_parameter_source("last") is not ParameterSource.COMMANDLINE:
        last = sys.maxsize
    if follow and output == "json":
        raise UsageError("-o json is one document, but events that are followed have no end", hint="use -o jsonl")

    def wanted(record: Record) -> bool:
        return job is None or job in (record["name"], record["job"]) or record["event"] == "lost"

    if not follow:
        known = ask(load_settings(), lambda source: _records(source, moment), _output.note)
        found = [record for record in known if wanted(record)]
        shown = found[-last:] if last else []
        if output == "json":
            _output.print_json("events", {"records": shown})
            return
        for record in shown:
            _print(record, output)
        if not found and output == "table":
            _output.echo("no events" + (f" of a job {job!r}" if job else ""), err=True)
        return
    client = find(load_settings()).client()
    stream = client.follow(last if moment is None else 0)
    try:
        known = [] if moment is None else client.records(moment)
        until = known[-1]["time"] if known else 0.0
        for record in known[-last:] if last else []:
            if wanted(record):
                _print(record, output)
        while not stream.ended:
            select.select([stream], [], [])
            for record in stream.read():
                if wanted(record) and record["time"] > until:
                    _print(record, output)
    finally:
        stream.close()
    raise DaemonUnreachable("the daemon has ended this stream", hint="has it been restarted? follow it again")


def _records(source: Client | OfflineHistory, since: float | None) -> list[Record]:
    return source.records() if since is None else source.records(since)


def _print(record: Record, output: str) -> None:
    if output == "jsonl":
        _output.echo(json.dumps({"schema": "gpushare.event/1", **record}))
        return
    first, *more = record["text"].splitlines() or [""]
    whose = f"{record['name']}: " if record["name"] else ""
    _output.echo(f"{_output.clock(record['time'])}  {record['event']:<10}  {whose}{first}")
    for line in more:
        _output.echo(f"{'':22}{line}")
