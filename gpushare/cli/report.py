"""gpushare report: the dashboard's pictures in a file."""

from __future__ import annotations

import time
from pathlib import Path

import click

from gpushare.cli import complete
from gpushare.cli import output as _output
from gpushare.cli.moment import moment
from gpushare.config import load_settings
from gpushare.env import Setting
from gpushare.errors import GpushareError, UsageError
from gpushare.locate import find
from gpushare.report import contents, file, page, picture, table
from gpushare.report.contents import Asked, Report

FORMATS = (".html", ".csv", ".png")
OF_A_NODE = "2h"


@click.command(short_help="Write the usage of a job or of the node over time to a file.")
@click.argument("job", required=False, shell_complete=complete.jobs)
@click.option("--node", is_flag=True, help="Of the whole node, as without JOB.")
@click.option(
    "--since",
    metavar="TIME",
    help="From then on: 8h, 2d (ago), 22:30, 2026-11-21 or 2026-11-21 22:30.  [default: the job's start; 2h]",
)
@click.option("--until", metavar="TIME", help="Up to then.  [default: the job's end, or now]")
@click.option("--step", metavar="TIME", help="Time between two values: 10s, 1m.  [default: what a chart can show]")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file to write; its ending says what: .html, .csv or .png.",
)
def command(
    job: str | None, *, node: bool, since: str | None, until: str | None, step: str | None, output: Path
) -> None:
    """Write a report of JOB (its id, the beginning of it, its name, or a pid), or of the whole node.

    An .html file is the dashboard's page with what was so: it opens from disk, loads nothing and needs no server. A
    .csv file has a row for each time, GPU and job, in bytes. A .png file has the charts; it needs matplotlib.

    It shows what you may see now. Everybody who gets the file sees the same.

    \b
    gpushare report train -o train.html
    gpushare report --since 8h -o night.png
    """
    kind = _kind(output)
    if job is not None and node:
        raise UsageError("a report is of a job or of the node", hint="leave out --node, or the job")
    now = time.time()
    end = now if until is None else min(now, moment(until, now, "--until"))
    start = None if since is None else moment(since, now, "--since")
    seconds = None if step is None else _step(step)
    file.check(output)
    if kind == ".png":
        picture.check()
    client = find(load_settings()).client()
    if job is None:
        start = moment(OF_A_NODE, end, "--since") if start is None else start
        _check_range(start, end)
        report = contents.of_node(client, Asked(start, end, seconds, now))
        what = f"node {report['about']['host']}"
    else:
        found = client.find_job(job)
        start = found["since"] if start is None else start
        end = min(end, contents.end_of(found)) if until is None else end
        _check_range(start, end)
        report = contents.of_job(client, found, Asked(start, end, seconds, now))
        what = f"job {found['name']} ({found['id']})"
    _check_found(report, what, kind)
    file.write(output, _render(report, kind))
    _output.echo(f"report of {what}, {_span(report)}: {output}")
    if report["history"]["cut"]:
        _output.note(
            "the beginning is left out: the daemon tells no more at once; name a later --since or a longer --step"
        )


def _kind(output: Path) -> str:
    kind = output.suffix.lower()
    if kind not in FORMATS:
        raise UsageError(
            f"{output}: a report is HTML, CSV or PNG",
            hint=f"name it {output.stem}.html, {output.stem}.csv or {output.stem}.png",
        )
    return kind


def _step(text: str) -> float:
    seconds = Setting(text, "--step").seconds()
    if seconds < 1:
        raise UsageError(f"--step: {text!r} is less than a second", hint="the history has a value each second")
    return seconds


def _check_range(since: float, until: float) -> None:
    if since >= until:
        raise UsageError(
            f"the report would begin at {_output.clock(since)} and end at {_output.clock(until)}",
            hint="--since is the earlier time, --until the later one",
        )


def _check_found(report: Report, what: str, kind: str) -> None:
    """An HTML report may also be about events alone."""
    if report["history"]["series"] or (kind == ".html" and report["happenings"]):
        return
    raise GpushareError(
        f"nothing is known of the memory of {what}, {_span(report)}",
        hint="the history goes back 30 days, and has nothing of the time while no daemon ran",
    )


def _span(report: Report) -> str:
    return f"{_output.clock(report['since'])} to {_output.clock(report['until'])}"


def _render(report: Report, kind: str) -> bytes:
    if kind == ".png":
        return picture.render(report)
    text = page.render(report) if kind == ".html" else table.render(report)
    return text.encode()
