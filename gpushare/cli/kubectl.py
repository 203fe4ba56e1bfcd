"""`kubectl gpushare` shows queues, pods that wait, and loans.

It reads the API server's objects with the user's own rights, and needs no access to the scheduler's pod."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gpushare.cli import output as _output
from gpushare.cli.output import Column
from gpushare.errors import NoSuchJob, NotPermitted, UsageError

if TYPE_CHECKING:
    from gpushare.cluster.engines.kubernetes.views import Pod
    from gpushare.kubernetes.reader import Reader

__all__ = ["main", "opened"]

Function = TypeVar("Function", bound=Callable[..., Any])

PODS = [
    Column("POD"),
    Column("QUEUE"),
    Column("STATE"),
    Column("GPUS", right=True),
    Column("MEMORY", right=True, spare=2),
    Column("AGE", right=True, spare=1),
    Column("WHERE, OR WHY NOT", wrap=True, least=40),
]
LOANS = [
    Column("NODE"),
    Column("GPU"),
    Column("BORROWER"),
    Column("REQUEST", right=True, spare=1),
    Column("USES", right=True),
    Column("ON LOAN", right=True),
    Column("STATE", spare=2),
    Column("IDLE THERE", wrap=True, least=30),
]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Queues of GPUs, pods that wait for them, and memory on loan. It uses your kubeconfig and your rights.

    \b
    kubectl gpushare queues
    kubectl gpushare explain POD -n NAMESPACE
    """


def access(function: Function) -> Function:
    function = click.option("--context", metavar="NAME", help="Of the kubeconfig; else its current one.")(function)
    return click.option(
        "--kubeconfig", type=click.Path(path_type=Path), metavar="FILE", help="Else as kubectl finds it."
    )(function)


def namespaced(function: Function) -> Function:
    function = click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="Of all namespaces.")(function)
    return click.option("-n", "--namespace", metavar="NAME", help="Else that of the kubeconfig's context.")(function)


def opened(kubeconfig: Path | None, context: str | None) -> Reader:
    """Raises UsageError where there is no way to a cluster."""
    from gpushare.kubernetes.reader import Reader, own_access

    return Reader(own_access(kubeconfig, context))


# ---- queues --------------------------------------------------------------------------------------------


@command.command(short_help="What each queue has, holds and waits for.")
@access
@_output.option("table", "json")
def queues(kubeconfig: Path | None, context: str | None, output: str) -> None:
    """Queues with their quotas, what they hold and what they may hold now."""
    from gpushare.cli.cluster_views import QUEUES
    from gpushare.cluster.engines.kubernetes import views
    from gpushare.cluster.engines.kubernetes.names import QUEUES as PATH
    from gpushare.kubernetes.reader import NotServed

    try:
        found = list(views.queues(opened(kubeconfig, context).all(PATH)))
    except NotServed:
        raise UsageError(
            "this cluster keeps no queues", hint="`kubectl apply -k deploy/kubernetes/scheduler` brings their kind"
        ) from None
    if output == "json":
        names = ("name", "quota", "limit", "priority", "held", "share", "running", "waiting", "wrong")
        shown = [{name: getattr(one, name) for name in names} for one in found]
        _output.print_json("kubectl-queues", {"queues": shown})
        return
    rows = [
        [
            "  " * one.depth + one.name,
            *(one.quota, one.limit, str(one.priority), one.held, one.share, str(one.running), str(one.waiting)),
        ]
        for one in found
    ]
    _output.print_table([one for one in QUEUES if one.title != "ASKED"], rows)
    for one in found:
        if one.wrong:
            _output.note(f"queue {one.name}: {one.wrong}")


# ---- pods ----------------------------------------------------------------------------------------------


@command.command(short_help="Pods that wait for GPUs or have some.")
@access
@namespaced
@click.option("-q", "--queue", metavar="NAME", help="Of that queue alone.")
@_output.option("table", "json")
def queue(namespace: str | None, everywhere: bool, queue: str | None, output: str, **which: Any) -> None:
    """Pods of gpushare's scheduler that are not over: where they run, or why they wait."""
    reader = opened(**which)
    found = list(_pods(reader, None if everywhere else namespace or reader.namespace))
    found = [one for one in found if one.state not in ("done", "failed") and queue in (None, one.queue)]
    found.sort(key=lambda one: (one.state in ("waiting", "held"), one.created or 0.0, one.title))
    if output == "json":
        _output.print_json("kubectl-queue", {"pods": [_as_json(one) for one in found]})
        return
    rows = [
        [
            *(one.title if everywhere else one.name, one.queue, one.state, str(one.gpus) if one.gpus else "-"),
            one.memory or "whole",
            "-" if one.created is None else _output.age(one.created),
            one.where or one.why,
        ]
        for one in found
    ]
    _output.print_table(PODS, rows)


def _pods(reader: Reader, namespace: str | None) -> Iterator[Pod]:
    """Pods of a namespace; None: of all namespaces."""
    from gpushare.cluster.engines.kubernetes import names, views
    from gpushare.kubernetes import fields
    from gpushare.kubernetes.names import SCHEDULER

    claims = {
        (fields.text(one, "metadata/namespace"), fields.text(one, "metadata/name")): one
        for one in _claims(reader, namespace)
    }
    for one in reader.all(_within(names.PODS, namespace)):
        if fields.text(one, "spec/schedulerName") == SCHEDULER:
            yield views.pod(one, claims)


def _claims(reader: Reader, namespace: str | None) -> list[Mapping[str, Any]]:
    """None where the API server has none: pods carry theirs."""
    from gpushare.cluster.engines.kubernetes import names
    from gpushare.kubernetes.reader import NotServed

    try:
        return reader.all(_within(names.CLAIMS, namespace))
    except NotServed:
        return []


def _within(path: str, namespace: str | None) -> str:
    """The path of a collection in this namespace."""
    start, _, kind = path.rpartition("/")
    return path if namespace is None else f"{start}/namespaces/{namespace}/{kind}"


def _as_json(one: Pod) -> dict[str, object]:
    names = ("namespace", "name", "queue", "state", "gpus", "memory", "limit", "node", "where", "why", "created")
    return {name: getattr(one, name) for name in names}


# ---- one pod -------------------------------------------------------------------------------------------


@command.command(short_help="Why a pod waits, or how it runs.")
@access
@click.option("-n", "--namespace", metavar="NAME", help="Else that of the kubeconfig's context.")
@click.argument("pod")
def explain(kubeconfig: Path | None, context: str | None, namespace: str | None, pod: str) -> None:
    """Why a pod waits, or how it runs: its queue, its claims, and what these use. POD may be NAMESPACE/NAME."""
    from gpushare.cluster.engines.kubernetes import names, views

    reader = opened(kubeconfig, context)
    inside, _, name = pod.rpartition("/")
    where = inside or namespace or reader.namespace
    try:
        found = reader.ask(names.POD.format(where, name))
    except NoSuchJob:
        raise NoSuchJob(f"no pod {name!r} in the namespace {where}", hint="-n names another namespace") from None
    claims, lines = {}, []
    for key in views.claims_of(found):
        try:
            claims[key] = reader.ask(names.CLAIM.format(*key))
        except NoSuchJob:
            lines.append((f"claim {key[1]}", "is not there"))
        except NotPermitted as error:
            lines.append((f"claim {key[1]}", error.message))
    shown = views.pod(found, claims)
    lines = [*_of_pod(shown, found), ("queue", _of_queue(reader, shown.queue)), *lines]
    for (_, title), claim in claims.items():
        used = [f"{one.node}, {one.device}: {one.text}" for one in views.uses([claim])]
        allocated = bool((claim.get("status") or {}).get("allocation"))
        lines += [(f"claim {title}", text) for text in used or ["is allocated" if allocated else "is not allocated"]]
    lines += [("uses", text) for text in _of_node(reader, found)]
    width = max(len(label) for label, _ in lines)
    _output.echo(f"pod {shown.title} is {shown.state}{f' on {shown.where}' if shown.where else ''}")
    for label, text in lines:
        _output.echo(f"  {label:<{width}}  {text}")


def _of_pod(shown: Pod, found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    from gpushare.kubernetes import fields
    from gpushare.kubernetes.names import SCHEDULER

    scheduler = fields.text(found, "spec/schedulerName") or "default-scheduler"
    if scheduler != SCHEDULER:
        yield "scheduler", f"{scheduler}: it waits in no queue of gpushare (schedulerName: {SCHEDULER} puts it in one)"
    if shown.why:
        yield "why", shown.why
    if shown.created is not None:
        yield "since", _output.age(shown.created)
    if shown.gpus:
        asks = f"{shown.gpus} GPU{'' if shown.gpus == 1 else 's'}, {shown.memory or 'all'} of each"
        yield "asks", f"{asks}; limit {shown.limit}" if shown.limit else asks


def _of_node(reader: Reader, pod: Mapping[str, Any]) -> Iterator[str]:
    """How a pod that carries its claim uses its GPUs."""
    from gpushare.cluster.engines.kubernetes import views
    from gpushare.kubernetes import carried, fields
    from gpushare.kubernetes.names import NODE_GPUS

    node = fields.text(pod, "spec/nodeName")
    if not node or carried.of_pod(pod) is None or fields.objects(pod, "spec/resourceClaims"):
        return
    name = f"{fields.text(pod, 'metadata/namespace')}/{fields.text(pod, 'metadata/name')}"
    try:
        there = reader.ask(f"{NODE_GPUS}/{node}")
    except (NoSuchJob, NotPermitted) as error:
        yield error.message
        return
    yield from (f"{one.node}, {one.device}: {one.text}" for one in views.uses_of_pods([there]) if one.who == name)


def _of_queue(reader: Reader, name: str) -> str:
    from gpushare.cluster.engines.kubernetes import names, views

    try:
        (one,) = views.queues([reader.ask(f"{names.QUEUES}/{name}")])
    except NoSuchJob:
        return f"{name}, which has no object of its own: no quota, and what others leave"
    except NotPermitted as error:
        return f"{name}; {error.message}"
    text = f"{name} holds {one.held} GPUs and may hold {one.share}, quota {one.quota}, limit {one.limit}"
    wrong = f"; its object does not count: {one.wrong}" if one.wrong else ""
    return f"{text}; {one.running} run, {one.waiting} wait{wrong}"


# ---- loans ---------------------------------------------------------------------------------------------


@command.command(short_help="Who uses memory of GPUs that is on loan.")
@access
@click.option("-n", "--namespace", metavar="NAME", help="What claims of one namespace say; else of all.")
@_output.option("table", "json")
def borrowers(kubeconfig: Path | None, context: str | None, namespace: str | None, output: str) -> None:
    """Who borrows memory of which GPU, and whose request is idle there. The node's plugin says so in claims."""
    from gpushare.cluster.engines.kubernetes import names, views
    from gpushare.kubernetes.names import NODE_GPUS
    from gpushare.kubernetes.reader import NotServed
    from gpushare.quantity import format_bytes

    reader = opened(kubeconfig, context)
    devices: Mapping[tuple[str, str], views.Device] = {}
    try:
        found = list(views.uses(reader.all(_within(names.CLAIMS, namespace))))
        slices = names.SLICES
    except NotServed:
        nodes, slices = reader.all(NODE_GPUS), NODE_GPUS
        found = [use for use in views.uses_of_pods(nodes) if namespace in (None, use.who.partition("/")[0])]
    try:
        devices = views.devices(reader.all(slices))
    except NotPermitted as error:
        _output.note(error.message)
    # Of one namespace nobody knows what others have claimed.
    loans = list(views.loans(found, devices if namespace is None else {}))
    if output == "json":
        _output.print_json("kubectl-borrowers", {"loans": [_loan_as_json(one) for one in loans]})
        return
    rows = []
    for one in loans:
        idle = [f"{who or 'no claim'} {format_bytes(amount)}" for who, amount in one.lenders]
        use = one.use
        amounts = [format_bytes(amount) for amount in (use.request, use.usage, use.loan)]
        there = devices.get((use.node, use.device))
        gpu = there.index if there is not None and there.index else use.device
        rows.append([use.node, gpu, use.who, *amounts, use.state, ", ".join(idle) or "-"])
    _output.print_table(LOANS, rows)
    if not rows:
        _output.note("nobody borrows" if found else "no claim says how it uses its GPUs")


def _loan_as_json(one: Any) -> dict[str, object]:
    names = ("node", "device", "who", "request", "limit", "usage", "loan", "state")
    lenders = [{"who": who, "idle": amount} for who, amount in one.lenders]
    return {**{name: getattr(one.use, name) for name in names}, "idle_there": lenders}


command.add_command(queue, "jobs")


def main(arguments: Sequence[str] | None = None) -> int:
    """The program `kubectl-gpushare`, which kubectl finds by its name."""
    from gpushare.cli import run_group

    return run_group(command, sys.argv[1:] if arguments is None else arguments, "kubectl gpushare")
