"""gpushare cluster simulate: scenarios and traces on a simulated clock."""

from __future__ import annotations

from pathlib import Path

import click

from gpushare.cli import cluster_views as views
from gpushare.cli import output as _output
from gpushare.cluster import reading, scenario
from gpushare.cluster.document import load
from gpushare.errors import GpushareError, UsageError
from gpushare.quantity import count


@click.command("simulate", short_help="Play a scenario or a trace, and check its expectations.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--cluster", type=click.Path(path_type=Path), help="The nodes and queues for a trace.")
@click.option(
    "--plot", type=click.Path(path_type=Path, dir_okay=False), help="Draw GPUs per queue to this .png or .svg."
)
@click.option(
    "--most",
    type=click.IntRange(0),
    default=200,
    show_default=True,
    help="At most this many decisions of a trace.",
)
@_output.option("text", "json")
def command(file: Path, cluster: Path | None, plot: Path | None, most: int, output: str) -> int:
    """Play a scenario (.yaml, .json) or a trace (.jsonl, .csv) on a simulated clock: what is decided when, GPUs per
    queue over time, and whether all expectations of the scenario hold (exit status 1 if not).

    \b
    gpushare cluster simulate examples/cluster/university.yaml
    gpushare cluster simulate trace.csv --cluster examples/cluster/cluster.yaml --plot trace.png

    A trace has one job a line: {"at": "90s", "name": "j1", "queue": "a", "gpus": 2, "duration": "1h"}. For all keys see
    `gpushare docs cluster`.
    """
    if plot is not None:
        from gpushare.cluster import plot as drawing

        drawing.check(plot)
    is_trace = file.suffix in (".jsonl", ".csv")
    if is_trace != (cluster is not None):
        if is_trace:
            raise UsageError(f"{file} is a trace: where does it run?", hint="name nodes and queues with --cluster FILE")
        raise UsageError("--cluster is for traces", hint=f"{file} says itself what there is, under `given`")
    if is_trace:
        assert cluster is not None
        played = _trace(file, cluster)
    else:
        played = _scenario(file, text=output == "text")
    if plot is not None:
        drawing.draw(played.simulation.timeline, plot, played.title)
    if output == "json":
        _output.print_json("cluster.simulation", views.played_json(played))
    else:
        views.print_played(played, most=most if is_trace else 0)
        if plot is not None:
            _output.echo(f"drawn to {plot}")
    if played.failures:
        number = count(len(played.failures), "thing")
        raise GpushareError(
            f"{number} did not follow as {file} says",
            facts=[(failure.where, f"step {failure.step}, {failure.message}") for failure in played.failures],
            code="scenario_failed",
        )
    return 0


def _scenario(file: Path, *, text: bool) -> views.Played:
    read = scenario.read(file)
    if text:
        _output.echo(read.title)
        if read.about:
            _output.echo(f"\n{views.wrapped(read.about)}")
    on_step = views.StepPrinter() if text else None
    simulation, failures = scenario.run(read, on_step=on_step)
    return views.Played(read.title, simulation, failures)


def _trace(file: Path, cluster: Path) -> views.Played:
    jobs = reading.trace(file)
    given = scenario.given(load(cluster))
    simulation = scenario.begin(scenario.Scenario(file.stem, "", given, ()), check=False)
    simulation.submit(jobs)
    with _output.progress(f"simulating {len(jobs)} jobs") as advance:
        simulation.finish(advance)
    return views.Played(f"{file.name} on {cluster.name}", simulation, [])
