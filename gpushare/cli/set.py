"""gpushare set: change a job's budget while it runs."""

from __future__ import annotations

import click

from gpushare.api import Change, JobGpu
from gpushare.cli import complete
from gpushare.cli import output as _output
from gpushare.config import load_settings
from gpushare.env import Setting
from gpushare.job_spec import PRIORITY
from gpushare.locate import find
from gpushare.quantity import format_bytes


@click.command(short_help="Change a job's request, limit or priority while it runs.")
@click.argument("job", shell_complete=complete.jobs)
@click.option("--request", metavar="AMOUNT", help="Memory guaranteed on each of its GPUs.")
@click.option("--limit", metavar="AMOUNT", help="The most on each of its GPUs.")
@click.option("--priority", type=int, metavar="N", help=PRIORITY)
@click.option("--dry-run", is_flag=True, help="Only show what would happen.")
@_output.option("table", "json")
def command(
    *, job: str, request: str | None, limit: str | None, priority: int | None, dry_run: bool, output: str
) -> None:
    """Change the budget of JOB (its id, the beginning of it, its name, or the pid of one of its processes).

    A limit below what is in use stops no job: the job cannot grow, and is the first to give back, whatever its
    priority.
    """
    changes: dict[str, object] = {}
    for key, text in (("request", request), ("limit", limit)):
        if text is not None:
            changes[key] = Setting(text, f"--{key}").quantity().canonical()
    if priority is not None:
        changes["priority"] = priority
    if not changes:
        raise click.UsageError("nothing to change: give --request, --limit or --priority")
    client = find(load_settings()).client()
    change = client.change(client.find_job(job)["id"], {**changes, "dry_run": dry_run})
    if output == "json":
        _output.print_json("set", {"dry_run": dry_run, **change})
    else:
        _print(change, dry_run=dry_run)


def _print(change: Change, *, dry_run: bool) -> None:
    before, after = change["before"], change["after"]
    _output.echo(f"job {after['name']} ({after['id']})" + (" would change" if dry_run else ""))
    if before["priority"] != after["priority"]:
        _output.echo(f"  priority  {before['priority']} → {after['priority']}")
    for old, new in zip(before["gpus"], after["gpus"], strict=False):
        _output.echo(f"  GPU {new['index']}     {_amounts(old, new)}")
    if change["note"]:
        _output.echo(change["note"])


def _amounts(old: JobGpu, new: JobGpu) -> str:
    pairs = (("request", old["request"], new["request"]), ("limit", old["limit"], new["limit"]))
    return "   ".join(
        f"{name} {format_bytes(was)} → {format_bytes(now)}" if was != now else f"{name} {format_bytes(now)}"
        for name, was, now in pairs
    )
