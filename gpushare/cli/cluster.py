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

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from gpushare.cli import Group, cluster_service, cluster_simulate
from gpushare.cli import cluster_views as views
from gpushare.cli import output as _output
from gpushare.cli.cluster_state import Cluster, Served, opened, stored
from gpushare.cluster import reading, scenario
from gpushare.cluster.allocator import Allocator
from gpushare.cluster.client import find
from gpushare.cluster.codec import plain, read_action, read_reason
from gpushare.cluster.document import FileError, Item, load, parse
from gpushare.cluster.model import (
    Action,
    Code,
    Event,
    Job,
    JobEnded,
    JobSubmitted,
    JobWithdrawn,
    NodeAdded,
    QueueAdded,
    QueueChanged,
    Refuse,
    Start,
)
from gpushare.cluster.store import Store, default_path
from gpushare.errors import NoSuchJob, Refused, UsageError
from gpushare.nearest import did_you_mean
from gpushare.quantity import count, format_bytes

SUBMIT_OPTIONS = ("gpus", "share", "memory", "limit", "tasks", "min", "priority", "min_runtime", "checkpoint_every")


class InOrder(Group):
    """Lists commands in the order of use, not alphabetically."""

    def list_commands(self, _: click.Context) -> list[str]:
        now = ["apply", "queues", "nodes", "jobs", "submit", "end", "cancel", "change", "plan", "explain"]
        return [*now, "cordon", "drain", "uncordon", "hold", "release", "simulate", "compact", "serve"]


@click.group(
    cls=InOrder,
    short_help="Share the GPUs of many nodes between queues: quotas, plans, simulations.",
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
    new = find(store) is None and not path.exists()
    if new:
        events = _differences(wanted, Allocator(wanted.policy))
        with _said_in(file):
            Allocator(wanted.policy).handle(events, time.time())  # refuse before the file is made
        Store.create(path, wanted.policy).close()
    with opened(store, read_only=False) as cluster:
        if "policy" in root and wanted.policy != cluster.policy:
            raise UsageError(
                f"{file}: policy: the cluster was made with another",
                hint="leave `policy` out, or make a new one",
            )
        events = _differences(wanted, cluster.allocator)
        with _said_in(file):
            actions = cluster.append(events, time.time()) if events else []
    kinds = [type(event).__name__ for event in events]
    counts = [
        count(kinds.count("NodeAdded"), "node"),
        count(kinds.count("QueueAdded"), "new queue"),
        count(kinds.count("QueueChanged"), "changed queue"),
    ]
    for line in (*views.lacking(cluster.allocator), *views.broken_promises(cluster.allocator)):
        _output.echo(f"gpushare: {line}", err=True)
    _output.echo(
        f"{'made' if new else 'changed'} {path}: {', '.join(counts)}" if events else f"{path} is as {file} says"
    )
    _print_actions(actions)


@contextlib.contextmanager
def _said_in(file: Path) -> Iterator[None]:
    """Name this file in the allocator's errors."""
    try:
        yield
    except UsageError as error:
        raise FileError(f"{file}: {error.message}", hint=error.hint, code=error.code) from None


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
            near = did_you_mean(queue, allocator.queues)
            raise UsageError(f"no queue {queue!r}", hint=near or f"there are: {', '.join(list(allocator.queues)[:8])}")
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


@command.command(short_help="Submit a job, or the jobs of a file.")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--name", metavar="NAME", help="Name of the job.  [default: the queue's name and a number]")
@click.option("-q", "--queue", metavar="QUEUE", help="The queue whose quota the job uses.")
@click.option("--gpus", metavar="N", help="Whole GPUs of one node, or a part of one: 2, 0.25.  [default: 1]")
@click.option("--share", metavar="PART", help="A part of each of the --gpus: 0.5.")
@click.option("--memory", metavar="AMOUNT", help="Memory of each of the --gpus: 40Gi.")
@click.option("--limit", metavar="AMOUNT", help="The most on each GPU, if others leave it idle; at least the request.")
@click.option("--ladder", metavar="PARTS", help="Parts of a GPU that the job can work with, falling: 1.0,0.7,0.4.")
@click.option("--tasks", metavar="N", help="Number of tasks of this size. All start together.")
@click.option("--min", metavar="N", help="Number of tasks that are enough to start.")
@click.option("--priority", metavar="N", help="Priority within its queue; more is higher.  [default: 50]")
@click.option("--min-runtime", metavar="TIME", help="Do not stop it before it has run this long: 10m.")
@click.option("--not-preemptible", is_flag=True, help="Never stop it for others. It must fit into the quota.")
@click.option("--no-backfill", is_flag=True, help="Never start it on GPUs that are reserved for a gang.")
@click.option("--movable", is_flag=True, help="It loses nothing when it is stopped and started elsewhere.")
@click.option("--checkpoint-every", metavar="TIME", help="A stop loses only the work since its last checkpoint.")
@click.option("--no-wait", is_flag=True, help="Refuse the job if there is no room now.")
@click.option("--pool", metavar="POOL", multiple=True, help="Only on nodes of this pool.")
@click.option("--type", "type_", metavar="TYPE", multiple=True, help="Only on GPUs of this type.")
@click.option("--node", metavar="NODE", multiple=True, help="Only on this node.")
@click.option("--label", multiple=True, metavar="KEY=VALUE", help="Only on nodes with this label.")
@click.option("--dry-run", is_flag=True, help="Show what would follow; submit nothing.")
@_output.option("table", "json")
@stored
def submit(file: Path | None, output: str, store: Path | None, dry_run: bool, **options: Any) -> None:
    """Submit a job and say what follows: where it starts and which jobs it evicts, or what it waits for.

    \b
    gpushare cluster submit --queue research --gpus 2 --name train
    gpushare cluster submit --queue research --gpus 8 --tasks 4 --min 2 --type H100
    gpushare cluster submit --queue students --gpus 0.25 --limit 0.5

    FILE is a list of jobs with the same keys, alone or under `jobs:`

    \b
    - {name: train, queue: research, gpus: 2}
    """
    with opened(store, read_only=dry_run) as cluster:
        if isinstance(cluster, Served) and not dry_run:
            _submit_to_service(cluster, file, options, output)
            return
        if file:
            wanted = _from_file(file, options)
            with _said_in(file):
                actions = _submit(cluster, wanted, dry_run)
        else:
            wanted, actions = _submit_one(cluster, options, dry_run)
        decided = {action.job for action in actions if isinstance(action, Start | Refuse)}
        never = cluster.allocator.never(job for job in wanted if job.id not in decided)
    if output == "json":
        _output.print_json(
            "cluster.submit",
            {
                "jobs": [job.id for job in wanted],
                "dry_run": dry_run,
                "actions": [plain(action) for action in actions],
                "never": {name: plain(reason) for name, reason in never.items()},
            },
        )
    else:
        _print_actions(actions)
    views.print_never(never)
    refused = [action for action in actions if isinstance(action, Refuse)]
    if refused:
        first = refused[0]
        later = f"try again in {first.retry_after:g} s"
        if first.reason.code is Code.NO_NODE:
            later = "ask for less, or for other nodes"
        raise Refused(
            f"{first.job} was refused: {first.reason.message}",
            hint=f"{later}, or leave --no-wait out: then it is queued",
        )


def _submit_to_service(cluster: Served, file: Path | None, options: dict[str, Any], output: str) -> None:
    """It gives the ids, and reads the words by itself."""
    if file:
        said = _said_of_jobs(file, options)
        words = [
            {**{key: value for key, value in entry.plain().items() if key not in reading.SERIES_KEYS}, "name": name}
            for entry in said.entries()
            for _, name in reading.series(entry)
        ]
    else:
        words = [{key: value for key, value in _words(options).items() if value is not None}]
    answers = [cluster.client.submitted({"job": one}) for one in words]
    if output == "json":
        _output.print_json("cluster.submit", {"submitted": answers})
        return
    for answer in answers:
        _output.echo(f"submitted {answer['id']}")
        _print_actions([read_action(action) for action in answer["actions"]])
        views.print_never({name: read_reason(reason) for name, reason in answer["never"].items()})


def _submit(cluster: Cluster, jobs: list[Job], dry_run: bool) -> Sequence[Action]:
    events = [JobSubmitted(job) for job in jobs]
    return cluster.allocator.what_if(events).actions if dry_run else cluster.append(events, time.time())


def _submit_one(cluster: Cluster, options: dict[str, Any], dry_run: bool) -> tuple[list[Job], Sequence[Action]]:
    """Submit under a generated name. If another gpushare takes the name meanwhile, use the next one."""
    while True:
        wanted = [_from_options(options, cluster.allocator)]
        try:
            return wanted, _submit(cluster, wanted, dry_run)
        except UsageError as error:
            if options["name"] or error.code != "duplicate":
                raise


def _said_of_jobs(file: Path, options: dict[str, Any]) -> Item:
    given = [name for name, value in options.items() if value not in (None, False, ())]
    if given:
        raise UsageError(
            f"both a file and --{given[0].rstrip('_').replace('_', '-')}",
            hint="say everything about the jobs in the file",
        )
    root = load(file)
    return root if not root.is_mapping() or "queue" in root else root.only("jobs")["jobs"]


def _from_file(file: Path, options: dict[str, Any]) -> list[Job]:
    said = _said_of_jobs(file, options)
    submissions = list(reading.jobs(said))
    if any(one.at or one.duration is not None for one in submissions):
        said.refuse("`at`, `every` and `duration` belong in simulations", hint="leave them out here")
    return [one.job for one in submissions]


def _from_options(options: dict[str, Any], allocator: Allocator) -> Job:
    """The options as the keys of a file, so that both are read and refused in the same way."""
    queue = options["queue"]
    if not queue:
        names = [name for name in allocator.queues if not views.children(allocator, name)]
        raise UsageError("no queue is named", hint=f"name a queue with --queue: {', '.join(names[:8])}")
    return reading.job(_item(_words(options) | {"name": options["name"] or _new_name(queue, allocator)}))


def _words(options: dict[str, Any]) -> dict[str, Any]:
    """The options as the keys of a file."""
    words: dict[str, Any] = {"queue": options["queue"], "name": options["name"]}
    words |= {name: options[name] for name in SUBMIT_OPTIONS if options[name] is not None}
    if options["ladder"]:
        words["ladder"] = [part.strip() for part in options["ladder"].split(",")]
    words |= {
        key: list(options[name])
        for key, name in (("pool", "pool"), ("type", "type_"), ("node", "node"))
        if options[name]
    }
    if options["label"]:
        pairs = [label.partition("=") for label in options["label"]]
        if not all(sign and key for key, sign, _ in pairs):
            raise UsageError(f"--label {options['label'][0]} has no value", hint="write --label KEY=VALUE")
        words["labels"] = {key: value for key, _, value in pairs}
    words |= {
        "preemptible": not options["not_preemptible"],
        "backfill": not options["no_backfill"],
        "movable": options["movable"],
        "wait": not options["no_wait"],
    }
    return words


def _new_name(queue: str, allocator: Allocator) -> str:
    number = 1 + sum(view.job.queue == queue for view in allocator.jobs.values())
    while f"{queue}-{number}" in allocator.jobs:
        number += 1
    return f"{queue}-{number}"


def _item(value: Any, option: str = "the command line") -> Item:
    if isinstance(value, dict):
        options = {key: "--label" if key == "labels" else f"--{key.replace('_', '-')}" for key in value}
        return Item({key: _item(one, options[key]) for key, one in value.items()}, option)
    if isinstance(value, list):
        return Item([_item(one, option) for one in value], option)
    return Item(value, option)


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
        _print_actions(cluster.append([kind(name) for name in dict.fromkeys(names)], time.time()))
        if isinstance(cluster, Served):
            _output.echo(f"cancelled {', '.join(dict.fromkeys(names))}")


def _known(job: str, allocator: Allocator) -> None:
    if job not in allocator.jobs:
        near = did_you_mean(job, allocator.jobs)
        raise NoSuchJob(f"no job {job!r}", hint=near or "`gpushare cluster jobs` lists them")


def _print_actions(actions: Sequence[Action]) -> None:
    for line in views.action_lines(actions):
        _output.echo(line)


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
        if isinstance(cluster, Served) and job not in allocator.jobs:
            cluster.client.explain(job)  # it knows jobs that have ended, and says so
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


for one in (*cluster_service.COMMANDS, cluster_simulate.command):
    command.add_command(one)
