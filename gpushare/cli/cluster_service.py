"""The commands of `gpushare cluster` that run the service, and that are about nodes and jobs as it sees them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click

from gpushare.cli import cluster_views as views
from gpushare.cli import output as _output
from gpushare.cli.cluster_state import Served, opened, stored
from gpushare.cluster.model import Event, JobHeld, JobReleased, NodeCordoned, NodeDrained, NodeUncordoned

__all__ = ["COMMANDS"]


@click.command(
    short_help="Run jobs: the service behind `gpushare submit`.",
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def serve(arguments: tuple[str, ...]) -> None:
    """Run the service that decides who may run where, starts and stops jobs, and answers these commands.

    \b
    gpushare cluster serve --engine local            for yourself, on this machine
    gpushare cluster serve --engine local --system   for all users, as root
    gpushare cluster serve --engine memory           nothing runs; to try things out

    `gpushare cluster serve --help` lists its options. What runs goes on when the service ends, and the next one finds
    it.
    """
    os.execv(sys.executable, [sys.executable, "-P", "-m", "gpushared.cluster", *arguments])


@click.command(short_help="Start nothing more on nodes.")
@click.argument("nodes", metavar="NODE...", nargs=-1, required=True)
@stored
def cordon(nodes: tuple[str, ...], store: Path | None) -> None:
    """Start nothing more on these nodes. What runs there stays."""
    _tell([NodeCordoned(node) for node in nodes], store, f"cordoned {', '.join(nodes)}")


@click.command(short_help="Start nothing more on nodes, and stop what runs there.")
@click.argument("nodes", metavar="NODE...", nargs=-1, required=True)
@stored
def drain(nodes: tuple[str, ...], store: Path | None) -> None:
    """Start nothing more on these nodes, and stop what runs there. The jobs wait again, and start elsewhere."""
    _tell([NodeDrained(node) for node in nodes], store, f"drained {', '.join(nodes)}")


@click.command(short_help="Let jobs start on nodes again.")
@click.argument("nodes", metavar="NODE...", nargs=-1, required=True)
@stored
def uncordon(nodes: tuple[str, ...], store: Path | None) -> None:
    """Let jobs start on these nodes again, after `cordon` or `drain`."""
    _tell([NodeUncordoned(node) for node in nodes], store, f"open again: {', '.join(nodes)}")


@click.command(short_help="Do not start jobs that wait.")
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True)
@stored
def hold(jobs: tuple[str, ...], store: Path | None) -> None:
    """Do not start these jobs, which wait, before they are released."""
    _tell([JobHeld(job, "by its user") for job in jobs], store, f"held {', '.join(jobs)}")


@click.command(short_help="Let jobs start that were held.")
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True)
@stored
def release(jobs: tuple[str, ...], store: Path | None) -> None:
    """Let these jobs start, whether `hold` or failed starts have held them back."""
    _tell([JobReleased(job) for job in jobs], store, f"released {', '.join(jobs)}")


def _tell(events: Sequence[Event], store: Path | None, done: str) -> None:
    with opened(store, read_only=False) as cluster:
        actions = cluster.append(events, time.time())
    _output.echo(done)
    if not isinstance(cluster, Served):
        for line in views.action_lines(actions):
            _output.echo(line)


COMMANDS = (serve, cordon, drain, uncordon, hold, release)
