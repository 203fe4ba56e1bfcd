"""gpushare cluster: queues with quotas over many nodes: who may run where, why, and what-if.

    apply     make a cluster from a file of nodes and queues, or change it
    queues, nodes, jobs     list them
    submit, end, cancel     add jobs, report their end, take them back
    change    any other change, in the words of --what-if
    cordon, drain, uncordon     nodes; hold, release: jobs that wait
    plan      what runs where and what waits for what; with --what-if, what would follow
    explain   why a job waits or runs, and the smallest change that would start it
    simulate  play a scenario or a trace on a simulated clock
    compact   shorten the cluster's file
    serve     run the service, which starts and stops jobs

The state is a file (store.py). Where a service has it, these commands talk to the service. Else they plan and start
nothing on any machine; the system that carries a plan out reports back with `end`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import click

from gpushare.cli import Group, cluster_service, cluster_simulate, cluster_submit
from gpushare.cli import cluster_views as views
from gpushare.cli import output as _output
from gpushare.cli.cluster_state import Served, opened, place, said_in, stored
from gpushare.cluster import scenario
from gpushare.cluster.allocator import Allocator
from gpushare.cluster.client import find
from gpushare.cluster.codec import plain
from gpushare.cluster.model import (
    Event,
    JobEnded,
    JobWithdrawn,
    NodeAdded,
    QueueAdded,
    QueueChanged,
    TimePassed,
)
from gpushare.cluster.store import Store, default_path
from gpushare.cluster.yaml_source import FileError, load, parse
from gpushare.errors import NoSuchJob, UsageError
from gpushare.file_kinds import is_there
from gpushare.nearest import did_you_mean, what_there_is
from gpushare.quantity import count, format_bytes


class InOrder(Group):
    """Lists commands in the order of use, not alphabetically."""

    def list_commands(self, _: click.Context) -> list[str]:
        now = ["apply", "queues", "nodes", "jobs", "submit", "end", "cancel", "change", "plan", "explain"]
        return [*now, "cordon", "drain", "uncordon", "hold", "release", "simulate", "compact", "serve"]


@click.group(
    cls=InOrder,
    short_help="Share the GPUs of many nodes between queues.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
def command() -> None:
    """Share the GPUs of many nodes between queues with quotas: what runs where, what waits for what, and what if.

    \b
    gpushare cluster apply cluster.yaml
    gpushare cluster submit --queue research --gpus 2 --name train
    gpushare cluster plan --what-if 'queue: {name: research, quota: 12}'
    gpushare cluster simulate examples/cluster/a1-netapp.yaml
    """


# ---- what there is ------------------------------------------------------------------------------------


@command.command(short_help="Make a cluster from a file of nodes and queues, or change one.")
@click.argument("file", type=click.Path(path_type=Path))
@stored
def apply(file: Path, store: Path | None) -> None:
    """Make the cluster that FILE describes, or change an existing one: nodes and queues of FILE are added or changed,
    all others stay as they are.

    \b
    nodes:
      - {name: "dgx-{}", count: 2, gpus: 8, memory: 80Gi}
    queues:
      - {name: research, quota: 10}
      - {name: product, quota: 6, limit: 12, priority: 1}
    """
    root = load(file)
    wanted = scenario.given(root)
    path = store or default_path()
    if wanted.jobs is not None:
        wanted.jobs.refuse("a cluster's file has no jobs", hint="submit them: `gpushare cluster submit`")
    new = find(store) is None and not is_there(path)
    if new:
        events = _differences(wanted, Allocator(wanted.policy))
        with said_in(file):
            Allocator(wanted.policy).handle(events, time.time())  # refuse before the file is made
        Store.create(path, wanted.policy).close()
    with opened(store, read_only=False) as cluster:
        if "policy" in root and wanted.policy != cluster.policy:
            raise UsageError(
                f"{file}: policy: the cluster was made with another",
                hint="leave `policy` out, or make a new one",
            )
        events = _differences(wanted, cluster.allocator)
        with said_in(file):
            actions = cluster.append(events, time.time()) if events else []
    kinds = [type(event).__name__ for event in events]
    counts = [
        count(kinds.count("NodeAdded"), "node"),
        count(kinds.count("QueueAdded"), "new queue"),
        count(kinds.count("QueueChanged"), "changed queue"),
    ]
    with opened(store) as changed:
        for line in (*views.lacking(changed.allocator), *views.broken_promises(changed.allocator)):
            _output.echo(f"gpushare: {line}", err=True)
    where = place(store)
    _output.echo(
        f"{'made' if new else 'changed'} {where}: {', '.join(counts)}" if events else f"{where} is as {file} says"
    )
    views.print_actions(actions)


def _differences(wanted: scenario.Given, allocator: Allocator) -> list[Event]:
    events: list[Event] = []
    for node in wanted.nodes:
        known = allocator.nodes.get(node.name)
        if known is None or known.node != node or not known.alive:
            events.append(NodeAdded(node))
    for queue in wanted.queues:
        view = allocator.queues.get(queue.name)
        if view is None:
            events.append(QueueAdded(queue))
        elif view.queue != queue:
            events.append(QueueChanged(queue))
    return events


@command.command(short_help="List queues: quota, fair share, use and loans.")
@_output.option("table", "wide", "json")
@stored
def queues(output: str, store: Path | None) -> None:
    """List the queues: quota, GPUs in use, fair share, and how many jobs run and wait.

    SHARE is the fair share: what the queue could have now if each queue got its part. -o wide shows how it is computed,
    and which queue has borrowed from which.
    """
    with opened(store) as cluster:
        allocator = cluster.allocator
        if output == "json":
            _output.print_json("cluster.queues", views.queues_json(allocator))
            return
        views.print_queues(allocator, wide=output == "wide")


@command.command(short_help="List nodes and their free GPUs.")
@_output.option("table", "json")
@stored
def nodes(output: str, store: Path | None) -> None:
    """List the nodes: their GPUs, how many are free, and the largest free part of a used one."""
    with opened(store) as cluster:
        if output == "json":
            _output.print_json("cluster.nodes", {"nodes": [plain(view) for view in cluster.allocator.nodes.values()]})
            return
        views.print_nodes(cluster.allocator)


@command.command(short_help="List jobs: what runs, and what the others wait for.")
@click.option("-q", "--queue", metavar="QUEUE", help="Only this queue's.")
@_output.option("table", "json", "jsonl")
@stored
def jobs(output: str, queue: str | None, store: Path | None) -> None:
    """List the jobs: what they have and where, or why they wait."""
    with opened(store) as cluster:
        allocator = cluster.allocator
        if queue is not None and queue not in allocator.queues:
            raise UsageError(f"no queue {queue[:60]!r}", hint=what_there_is(queue, allocator.queues))
        chosen = [name for name, view in allocator.jobs.items() if queue in (None, view.job.queue)]
        if output == "json":
            _output.print_json("cluster.jobs", {"jobs": [plain(allocator.jobs[name]) for name in chosen]})
        elif output == "jsonl":
            _output.jsonl("cluster.jobs", [plain(allocator.jobs[name]) for name in chosen])
        elif chosen:
            views.print_jobs(allocator, chosen)
        else:
            _output.echo("no jobs", err=True)


# ---- what happens -------------------------------------------------------------------------------------


@command.command(short_help="Report that jobs have finished.")
@click.argument("names", metavar="JOB...", nargs=-1, required=True)
@stored
def end(names: tuple[str, ...], store: Path | None) -> None:
    """Report that jobs have finished and their GPUs are free."""
    _about(names, store, JobEnded)


@command.command(short_help="Take jobs back, running or waiting.")
@click.argument("names", metavar="JOB...", nargs=-1, required=True)
@stored
def cancel(names: tuple[str, ...], store: Path | None) -> None:
    """Take jobs back: a waiting job is removed, a running job is to be stopped."""
    _about(names, store, JobWithdrawn)


def _about(names: tuple[str, ...], store: Path | None, kind: type[JobEnded] | type[JobWithdrawn]) -> None:
    with opened(store, read_only=False) as cluster:
        if isinstance(cluster, Store):
            for name in names:
                _known(name, cluster.allocator)
        views.print_actions(cluster.append([kind(name) for name in dict.fromkeys(names)], time.time()))
        if isinstance(cluster, Served):
            _output.echo(f"cancelled {', '.join(dict.fromkeys(names))}")


def _known(job: str, allocator: Allocator) -> None:
    if job not in allocator.jobs:
        near = did_you_mean(job, allocator.jobs)
        raise NoSuchJob(f"no job {job!r}", hint=near or "`gpushare cluster jobs` lists them")


@command.command(short_help="Make a change, in the words of --what-if.")
@click.argument("changes", metavar="CHANGE...", nargs=-1, required=True)
@stored
def change(changes: tuple[str, ...], store: Path | None) -> None:
    """Make changes to the cluster, all together. `plan --what-if` shows their effect first.

    \b
    gpushare cluster change 'lose: dgx-1'
    gpushare cluster change 'queue: {name: research, quota: 12}' 'queue: {name: product, quota: 4}'
    gpushare cluster change 'break: {node: dgx-2, gpu: 3}'
    gpushare cluster change 'mend: {node: dgx-2, gpu: 3}'
    gpushare cluster change 'change: {job: train-1, priority: 90}'
    gpushare cluster change 'remove: students'
    """
    with opened(store, read_only=False) as cluster:
        actions = cluster.append(_read_changes(changes, cluster.allocator), time.time())
    _output.echo("\n".join(views.action_lines(actions)) if actions else "changed; no job starts, moves or stops")


def _read_changes(changes: Sequence[str], allocator: Allocator) -> list[Event]:
    events: list[Event] = []
    for text in changes:
        item = parse(text, "the change")
        if not item.is_mapping():
            raise FileError(f"{text!r} is not a change", hint="write 'lose: NODE' or 'end: JOB'")
        events += scenario.read_events(item, allocator.queues)
    for new in (event.queue.name for event in events if isinstance(event, QueueAdded)):
        near = did_you_mean(new, allocator.queues)
        if near:
            _output.echo(f"gpushare: {new} is a new queue: {near}", err=True)
    return events


# ---- why, and what if ---------------------------------------------------------------------------------


@command.command(short_help="Show what runs where, what waits for what, and what-if.")
@click.option(
    "--what-if",
    "changes",
    multiple=True,
    metavar="CHANGE",
    help="A change, in the words of a scenario's `when`: 'lose: dgx-1'. Several are applied together.",
)
@_output.option("table", "json")
@stored
def plan(changes: tuple[str, ...], output: str, store: Path | None) -> None:
    """Show what runs where and what waits for what. With --what-if: show the effect of changes without making them.

    \b
    gpushare cluster plan --what-if 'submit: {name: big, queue: research, gpus: 8}'
    gpushare cluster plan --what-if 'queue: {name: research, quota: 12}' --what-if 'lose: dgx-1'
    gpushare cluster plan --what-if 'end: [train-1, train-2]'
    """
    with opened(store) as cluster:
        allocator = cluster.allocator
        if not changes:
            if output == "json":
                _output.print_json("cluster.plan", views.plan_json(allocator))
            else:
                views.print_plan(allocator)
            return
        outcome = allocator.what_if(_read_changes(changes, allocator))
        if output == "json":
            _output.print_json("cluster.what_if", views.what_if_json(allocator, outcome))
        else:
            views.print_what_if(allocator, outcome)


@command.command(short_help="Say why a job waits or runs, and what would start it.")
@click.argument("job")
@_output.option("table", "json")
@stored
def explain(job: str, output: str, store: Path | None) -> None:
    """Say why a job waits or runs: the constraint, its numbers, and the smallest change that would start it."""
    with opened(store) as cluster:
        allocator = cluster.allocator
        if isinstance(cluster, Served):
            if job not in allocator.jobs:
                job = cluster.client.explain(job)["job"]  # it knows names, and jobs that have ended
            allocator.handle(TimePassed(), cluster.at(time.time()))
        _known(job, allocator)
        explanation = allocator.explain(job)
        never = explanation.state == "pending" and bool(allocator.never([allocator.jobs[job].job]))
        if output == "json":
            _output.print_json("cluster.explain", {**plain(explanation), "never": never})
        else:
            views.print_explanation(allocator, explanation, never, cluster.at(time.time()))


@command.command(short_help="Shorten the cluster's file.")
@stored
def compact(store: Path | None) -> None:
    """Replace the log of past decisions by the present state, and shrink the file.

    Other commands show the same as before. gpushare does this by itself as the log grows, but does not shrink the file.
    Do it by hand before an upgrade: a newer gpushare that decides differently reads a state, but refuses a log. A
    compacted file needs this version or a later one.
    """
    path = store or default_path()
    with Store.open(path) as cluster:
        rows = cluster.compact()
        cluster.shrink()
    _output.echo(f"{count(rows, 'past decision')} forgotten; {path} has {format_bytes(path.stat().st_size)}")


for one in (cluster_submit.command, *cluster_service.COMMANDS, cluster_simulate.command):
    command.add_command(one)
