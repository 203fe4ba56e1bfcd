"""gpushare cluster simulate: scenarios and traces on a simulated clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import click

from gpushare.cli import cluster_views as views
from gpushare.cli import output as _output
from gpushare.cluster import scenario, spec_parser
from gpushare.cluster.recording import Recording
from gpushare.cluster.simulation import Simulation
from gpushare.cluster.yaml_source import load
from gpushare.errors import GpushareError, UsageError
from gpushare.quantity import count
from gpushare.report import file as report_file

Play = Callable[[Path], tuple[views.Played, Recording]]


@click.command("simulate", short_help="Play a scenario or a trace, and check its expectations.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--cluster", type=click.Path(path_type=Path), help="The nodes and queues for a trace.")
@click.option(
    "--plot", type=click.Path(path_type=Path, dir_okay=False), help="Draw GPUs per queue to this .png or .svg."
)
@click.option(
    "--report",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the run to this .html, to look through moment by moment.",
)
@click.option(
    "--beside",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="With --report: another scenario beside it, or for a trace other nodes and queues.",
)
@click.option(
    "--most",
    metavar="N",
    type=click.IntRange(0),
    default=200,
    show_default=True,
    help="Show at most N decisions of a trace.",
)
@_output.option("text", "json")
def command(
    *,
    file: Path,
    cluster: Path | None,
    plot: Path | None,
    report: Path | None,
    beside: Path | None,
    most: int,
    output: str,
) -> int:
    """Play a scenario (.yaml, .json) or a trace (.jsonl, .csv) on a simulated clock: what is decided when, GPUs per
    queue over time, and whether all expectations of the scenario hold (exit status 1 if not).

    \b
    gpushare cluster simulate examples/cluster/university.yaml
    gpushare cluster simulate examples/cluster/a1-netapp.yaml --report netapp.html
    gpushare cluster simulate trace.csv --cluster examples/cluster/cluster.yaml --plot trace.png

    A trace has one job a line: {"at": "90s", "name": "j1", "queue": "a", "gpus": 2, "duration": "1h"}. For all keys see
    `gpushare docs cluster`.
    """
    if plot is not None:
        from gpushare.cluster import plot as drawing

        drawing.check(plot)
    _check_report(report, beside)
    is_trace = file.suffix in (".jsonl", ".csv")
    if is_trace != (cluster is not None):
        if is_trace:
            raise UsageError(f"{file} is a trace: where does it run?", hint="name nodes and queues with --cluster FILE")
        raise UsageError("--cluster is for traces", hint=f"{file} says itself what there is, under `given`")
    if is_trace:
        assert cluster is not None
        play: Play = partial(_trace, file, record=report is not None)
        played, recording = play(cluster)
    else:
        play = partial(_scenario, record=report is not None)
        played, recording = _scenario(file, record=report is not None, text=output == "text")
    if plot is not None:
        drawing.draw(played.simulation.timeline, plot, played.title)
    if report is not None:
        _write(report, [(played, recording), *([play(beside)] if beside is not None else [])])
    if output == "json":
        _output.print_json("cluster.simulation", views.played_json(played))
    else:
        views.print_played(played, most=most if is_trace else 0)
        for written, how in ((plot, "drawn to"), (report, "to look through:")):
            if written is not None:
                _output.echo(f"{how} {written}")
    if played.failures:
        number = count(len(played.failures), "expectation")
        raise GpushareError(
            f"{number} of {file} did not come true",
            facts=[(failure.where, f"step {failure.step}, {failure.message}") for failure in played.failures],
            code="scenario_failed",
        )
    return 0


def _check_report(report: Path | None, beside: Path | None) -> None:
    """Raises UsageError before a long simulation begins."""
    if report is None:
        if beside is not None:
            raise UsageError("--beside is for --report", hint="name the file to write with --report FILE.html")
        return
    if report.suffix.lower() != ".html":
        raise UsageError(f"{report}: this report is HTML", hint=f"name it {report.stem}.html")
    report_file.check(report)


def _write(report: Path, runs: Sequence[tuple[views.Played, Recording]]) -> None:
    from gpushare.report import page, plays

    in_steps = all(recording.steps for _, recording in runs) and any(recording.in_steps for _, recording in runs)
    shown = []
    for played, recording in runs:
        recording.end(played.simulation)
        timeline = played.simulation.timeline
        shown.append(plays.play(played.title, timeline, recording, played.failures, in_steps=in_steps))
    report_file.write(report, page.render(plays.report_of(shown)).encode())


def _scenario(path: Path, *, record: bool, text: bool = False) -> tuple[views.Played, Recording]:
    read, recording = scenario.read(path), Recording()
    if text:
        _output.echo(read.title)
        if read.about:
            _output.echo(f"\n{views.wrapped(read.about)}")
    printer = views.StepPrinter() if text else None

    def on_step(number: int, step: scenario.Step, simulation: Simulation) -> None:
        if record:
            recording.after_step(step, simulation)
        if printer is not None:
            printer(number, step, simulation)

    simulation, failures = scenario.run(read, on_step=on_step, watch=recording.after_decision if record else None)
    return views.Played(read.title, simulation, failures), recording


def _trace(path: Path, cluster: Path, *, record: bool) -> tuple[views.Played, Recording]:
    jobs, recording = spec_parser.trace(path), Recording()
    given = scenario.given(load(cluster))
    simulation = scenario.begin(
        scenario.Scenario(path.stem, "", given, ()), check=False, watch=recording.after_decision if record else None
    )
    simulation.submit(jobs)
    with _output.progress(f"simulating {len(jobs)} jobs") as advance:
        simulation.finish(advance)
    return views.Played(f"{path.name} on {cluster.name}", simulation, []), recording
