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
from gpushare.locate import for_history
from gpushare.report import contents, drawing, file, page, picture, table
from gpushare.report.contents import Asked, Report

FORMATS = (".html", ".csv", ".png")
OF_A_NODE = "2h"
ALL = ""
"""--queue without a name."""


@click.command(short_help="Write the usage of a job, the node or queues into a file.")
@click.argument("job", required=False, shell_complete=complete.jobs)
@click.option("--node", is_flag=True, help="Of the whole node, as without JOB.")
@click.option("--queue", metavar="[NAME]", is_flag=False, flag_value=ALL, help="Of a cluster's queue, or of all.")
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
    *,
    job: str | None,
    node: bool,
    queue: str | None,
    since: str | None,
    until: str | None,
    step: str | None,
    output: Path,
) -> None:
    """Write a report of JOB (its id, the beginning of it, its name, or a pid), of the whole node, or with --queue of
    the cluster whose service runs here.

    An .html file is the dashboard's page with what was so: it opens from disk, loads nothing and needs no server. A
    .csv file has a row for each time, GPU and job, in bytes (for each time and queue, in GPUs). A .png file has the
    charts; it needs matplotlib.

    It shows what you may see now. Everybody who gets the file sees the same.

    \b
    gpushare report train -o train.html
    gpushare report --since 8h -o night.png
    gpushare report --queue --since 2d -o queues.html
    """
    kind = _kind(output)
    if sum((job is not None, node, queue is not None)) > 1:
        raise UsageError("a report is of a job, of the node or of queues", hint="leave out --node, --queue, or the job")
    now = time.time()
    end = now if until is None else min(now, moment(until, now, "--until"))
    start = None if since is None else moment(since, now, "--since")
    seconds = None if step is None else _step(step)
    file.check(output)
    if kind == ".png":
        drawing.check()
    if queue is not None:
        asked = Asked(moment(OF_A_NODE, end, "--since") if start is None else start, end, seconds, now)
        _of_queues(queue or None, asked, output)
        return
    client = for_history(load_settings()).client()
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
    _written(output, _render(report, kind), f"{what}, {_span(report)}", cut=report["history"]["cut"])


def _of_queues(queue: str | None, asked: Asked, output: Path) -> None:
    from gpushare.cli.queued import service
    from gpushare.report import queue_picture, queue_table, queues

    _check_range(asked.since, asked.until)
    report = queues.of_queues(service(), queue, asked)
    what = f"{'queues' if queue is None else f'queue {queue}'}, {_clocks(asked.since, asked.until)}"
    if not queues.series_of(report):
        raise GpushareError(
            f"nothing is known of {what}",
            hint="the history goes back 30 days, and has nothing of the time while no service ran",
        )
    kind = _kind(output)
    if kind == ".png":
        content = queue_picture.render(report)
    else:
        content = (page.render(report) if kind == ".html" else queue_table.render(report)).encode()
    _written(output, content, what, cut=report["history"]["cut"])


def _written(output: Path, content: bytes, what: str, *, cut: bool) -> None:
    file.write(output, content)
    _output.echo(f"report of {what}: {output}")
    if cut:
        _output.note("the beginning is left out: no more is told at once; name a later --since or a longer --step")


def _kind(output: Path) -> str:
    kind = output.suffix.lower()
    if kind not in FORMATS:
        raise UsageError(
            f"{output}: a report is HTML, CSV or PNG",
            hint=f"name it {output.stem}.html, {output.stem}.csv or {output.stem}.png",
        )
    return kind


KEPT = 30 * 86400.0


def _step(text: str) -> float:
    seconds = Setting(text, "--step").seconds()
    if seconds < 1:
        raise UsageError(f"--step: {text!r} is less than a second", hint="the history has a value each second")
    if seconds > KEPT:
        raise UsageError(f"--step: {text!r} is more than 30 days", hint="the history goes no further back")
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
        hint="the history has a value each second, for 30 days: none of a shorter job, nor of times without a daemon",
    )


def _span(report: Report) -> str:
    return _clocks(report["since"], report["until"])


def _clocks(since: float, until: float) -> str:
    return f"{_output.clock(since)} to {_output.clock(until)}"


def _render(report: Report, kind: str) -> bytes:
    if kind == ".png":
        return picture.render(report)
    text = page.render(report) if kind == ".html" else table.render(report)
    return text.encode()
