"""gpushare cluster submit: a job by options, or the jobs of a file.

Options become the keys of a file, so that both are read and refused in the same way.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from gpushare.cli import cluster_views as views
from gpushare.cli import output as _output
from gpushare.cli.cluster_state import Cluster, Served, opened, said_in, stored
from gpushare.cluster import spec_parser
from gpushare.cluster.allocator import Allocator
from gpushare.cluster.codec import plain, read_action, read_reason
from gpushare.cluster.model import Action, Code, Job, JobSubmitted, Refuse, Start
from gpushare.cluster.yaml_source import Item, load
from gpushare.errors import Refused, UsageError

SUBMIT_OPTIONS = ("gpus", "share", "memory", "limit", "tasks", "min", "priority", "min_runtime", "checkpoint_every")


@click.command("submit", short_help="Submit a job, or the jobs of a file.")
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
def command(file: Path | None, output: str, store: Path | None, dry_run: bool, **options: Any) -> None:
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
            with said_in(file):
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
        views.print_actions(actions)
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
            {**{key: value for key, value in entry.plain().items() if key not in spec_parser.SERIES_KEYS}, "name": name}
            for entry in said.entries()
            for _, name in spec_parser.series(entry)
        ]
    else:
        words = [{key: value for key, value in _words(options).items() if value is not None}]
    if cluster.client.status()["engine"] == "local":
        raise UsageError(
            "the service on this machine runs programs, and no command is said",
            hint="queue one with `gpushare submit -- COMMAND`",
        )
    answers = [cluster.client.submitted({"job": one}) for one in words]
    if output == "json":
        _output.print_json("cluster.submit", {"submitted": answers})
        return
    for answer in answers:
        _output.echo(f"submitted {answer['id']}")
        views.print_actions([read_action(action) for action in answer["actions"]])
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
    submissions = list(spec_parser.jobs(said))
    if any(one.at or one.duration is not None for one in submissions):
        said.refuse("`at`, `every` and `duration` belong in simulations", hint="leave them out here")
    return [one.job for one in submissions]


def _from_options(options: dict[str, Any], allocator: Allocator) -> Job:
    """The options as the keys of a file, so that both are read and refused in the same way."""
    queue = options["queue"]
    if not queue:
        names = [name for name in allocator.queues if not views.children(allocator, name)]
        raise UsageError("no queue is named", hint=f"name a queue with --queue: {', '.join(names[:8])}")
    return spec_parser.job(_item(_words(options) | {"name": options["name"] or _new_name(queue, allocator)}))


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
