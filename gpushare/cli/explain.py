"""gpushare explain: why memory is short, or what happened to a job."""

from __future__ import annotations

import click

from gpushare.api import Explanation, Record, Story
from gpushare.cli import output as _output
from gpushare.cli.status import ailments
from gpushare.config import load_settings
from gpushare.locate import find
from gpushare.quantity import format_bytes


@click.command(short_help="Say why memory is short, or what happened to a job.")
@click.argument("job", required=False)
@_output.option("table", "json")
def command(job: str | None, output: str) -> None:
    """Without JOB: why memory is short right now. With JOB (id, the beginning of it, name, or a pid): its story."""
    client = find(load_settings()).client()
    if job is None:
        explanation = client.explain()
        if output == "json":
            _output.print_json("explain", dict(explanation))
        else:
            _print_now(explanation)
        return
    story = client.story(client.find_job(job)["id"])
    if output == "json":
        _output.print_json("explain", dict(story))
    else:
        _print_story(story)


def _print_now(explanation: Explanation) -> None:
    for gpu in explanation["gpus"]:
        held = f"{format_bytes(gpu['usage'])} used by jobs ({format_bytes(gpu['lent'])} of it lent)"
        outside = f", {format_bytes(gpu['unmanaged'])} outside gpushare" if gpu["unmanaged"] else ""
        coming = f", {format_bytes(gpu['returning'])} coming back" if gpu["returning"] else ""
        click.echo(
            f"GPU {gpu['index']} ({gpu['name']}): {format_bytes(gpu['free'])} free of"
            f" {format_bytes(gpu['capacity'])}, {held}{outside}{coming}"
        )
        for line in ailments(gpu, hints=True):
            click.echo(f"  {line}")
    _print_records(explanation["records"], "nobody waits for memory", names=True)


def _print_story(story: Story) -> None:
    job = story["job"]
    click.echo(f"job {job['name']} ({job['id']}) of {job['user']}: {job['state']}")
    for gpu in job["gpus"]:
        loan = f", {format_bytes(gpu['loan'])} of it on loan" if gpu["loan"] else ""
        click.echo(
            f"  GPU {gpu['index']}  uses {format_bytes(gpu['usage'])}{loan}; request {format_bytes(gpu['request'])},"
            f" limit {format_bytes(gpu['limit'])}; could get {format_bytes(gpu['grantable'])} more now"
        )
        if gpu["health"] != "ok":
            click.echo(f"  GPU {gpu['index']}  is {gpu['health']}; `gpushare status` says why")
    _print_records(story["story"], "nothing is recorded")


def _print_records(records: list[Record], none: str, *, names: bool = False) -> None:
    click.echo()
    if not records:
        click.echo(none)
    for record in records:
        first, *more = record["text"].splitlines() or [""]
        whose = f"{record['name']}: " if record["name"] and names else ""
        click.echo(f"{_output.clock(record['time'])}  {whose}{first}")
        for line in more:
            click.echo(f"          {line}")
