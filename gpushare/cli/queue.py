"""gpushare queue: the jobs that wait and run."""

from __future__ import annotations

import getpass
import time
from typing import Any

import click

from gpushare.cli import complete
from gpushare.cli import output as _output
from gpushare.quantity import format_bytes

COLUMNS = [
    _output.Column("JOB"),
    _output.Column("NAME", shrink=True),
    _output.Column("USER", spare=1),
    _output.Column("QUEUE", shrink=True),
    _output.Column("STATE"),
    _output.Column("GPUS", right=True),
    _output.Column("SINCE", right=True),
    _output.Column("WHERE, OR WHY NOT", wrap=True),
]
SHARES = [
    _output.Column("QUEUE"),
    _output.Column("USES", right=True),
    _output.Column("FAIR SHARE", right=True),
    _output.Column("ASKS FOR", right=True),
]


@click.command(short_help="List the jobs that `gpushare submit` has queued.")
@click.option("-q", "--queue", metavar="QUEUE", shell_complete=complete.queues, help="Only this queue's.")
@click.option("-u", "--user", metavar="USER", help="Only this user's.")
@click.option("-m", "--mine", is_flag=True, help="Only yours.")
@click.option("-a", "--all", "ended", is_flag=True, help="Also those that have ended lately.")
@click.option("-s", "--shares", is_flag=True, help="The queues instead: what each uses, and its fair share.")
@_output.option("table", "json", "jsonl")
def command(*, queue: str | None, user: str | None, mine: bool, ended: bool, shares: bool, output: str) -> None:
    """List queued jobs: where they run, or what they wait for. SINCE is how long ago they were submitted, started
    or ended.

    `gpushare cluster explain JOB` says why a job waits and what would start it.
    """
    from gpushare.cli.queued import service

    client = service()
    if shares:
        _print_shares(client.queues()["queues"], output)
        return
    jobs = client.jobs(ended=ended, queue=queue, user=getpass.getuser() if mine else user)
    if output == "json":
        _output.print_json("queue", {"jobs": jobs})
    elif output == "jsonl":
        _output.jsonl("queue", jobs)
    elif jobs:
        now = time.time()
        _output.print_table(COLUMNS, [_row(job, now) for job in jobs], lambda row: jobs[row]["state"] == "ended")
        if any(job["state"] == "pending" for job in jobs):
            _tell_trouble(client.status())
    else:
        _output.echo("no jobs" if ended else "no jobs; `gpushare queue -a` shows those that have ended", err=True)


def _tell_trouble(status: dict[str, Any]) -> None:
    """What jobs wait for in truth, if their engine does not answer."""
    if status.get("trouble"):
        _output.note(f"nothing starts: the engine {status['engine']} does not answer: {status['trouble']}")


def _row(job: dict[str, Any], now: float) -> list[str]:
    since = job["ended"] or job["started"] or job["submitted"]
    return [
        job["id"],
        job["name"] or "-",
        job["user"],
        job["queue"],
        job["state"],
        " + ".join(_asked(one) for one in job["asks"]),
        _output.lasted(now - since),
        _where(job),
    ]


def _where(job: dict[str, Any]) -> str:
    if job["result"] is not None:
        from gpushare.cli.queued import how

        return how(job)
    if job["tasks"] and job["state"] != "pending":
        gpus = [f"GPU {','.join(map(str, task['gpus']))}" for task in job["tasks"]]
        several = f", stopped {job['evictions']} times before"
        again = {0: "", 1: ", stopped once before"}.get(job["evictions"], several)
        return "; ".join(dict.fromkeys(gpus)) + again
    return str((job["reason"] or {}).get("message", ""))


def _asked(tasks: dict[str, Any]) -> str:
    if tasks["memory"] is not None:
        each = format_bytes(tasks["memory"])
        each = f"{tasks['gpus']} x {each}" if tasks["gpus"] > 1 else each
    else:
        each = _gpus((1_000_000 if tasks["share"] is None else tasks["share"]) * tasks["gpus"])
    count = tasks["most"] or tasks["least"]
    return each if count == 1 else f"{count} x {each}"


def _gpus(micro: int) -> str:
    return f"{micro / 1_000_000:.3f}".rstrip("0").rstrip(".")


def _print_shares(queues: list[dict[str, Any]], output: str) -> None:
    if output == "json":
        _output.print_json("queue.shares", {"queues": queues})
    elif output == "jsonl":
        _output.jsonl("queue.shares", queues)
    else:
        rows = [
            [
                one["queue"]["name"],
                _gpus(one["allocated"]),
                _gpus(one["share"]["share"]),
                _gpus(one["share"]["demand"]),
            ]
            for one in queues
        ]
        _output.print_table(SHARES, rows)
