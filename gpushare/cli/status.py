"""gpushare status: the GPUs of this node, and who has their memory."""

from __future__ import annotations

import os
from dataclasses import replace

import click

from gpushare.api import Gpu, Job, Reservation, Status
from gpushare.cli import output as _output
from gpushare.cli.output import Column
from gpushare.config import load_settings
from gpushare.locate import Node, find, foreign_software_gpus
from gpushare.quantity import count, format_bytes, format_duration

COLUMNS = [
    Column("GPU", right=True),
    Column("NAME", shrink=True),
    Column("TOTAL", right=True, spare=4),
    Column("CAPACITY", right=True, spare=5),
    Column("REQUESTED", right=True, spare=2),
    Column("USAGE", right=True),
    Column("LENT", right=True),
    Column("FREE", right=True),
    Column("UNMANAGED", right=True, spare=3),
    Column("HEALTH"),
    Column("MEMORY", spare=1),
]
WIDE = [Column("RETURNING", right=True), Column("UUID")]
BAR = 24
LEGEND = "# guaranteed  + borrowed  ! outside gpushare  . free"
DRIVERS = {"sim": "software driver", "nvidia": "NVIDIA driver"}


@click.command(short_help="Show the GPUs and who has their memory.")
@_output.option("table", "wide", "json")
def command(output: str) -> None:
    """Show each GPU of this node: what is guaranteed to jobs, in use, lent, free, and used outside gpushare."""
    node = find(load_settings())
    client = node.client()
    status, kept = client.status(), client.reservations()
    if output == "json":
        _output.print_json("status", {**status, "reservations": kept})
        return
    _output.echo(headline(node, status))
    _output.echo()
    wide = output == "wide"
    columns = [*(replace(one, spare=0) for one in COLUMNS), *WIDE] if wide else COLUMNS
    _output.print_table(columns, [_row(gpu, wide=wide) for gpu in status["gpus"]])
    _output.echo(f"\n{LEGEND}")
    if status["jobs"]:
        _output.echo(_jobs(status["jobs"]))
    for one in kept:
        _output.echo(_kept(one))
    ailing = [line for gpu in status["gpus"] for line in ailments(gpu, hints=wide)]
    if ailing:
        _output.echo("\n" + "\n".join(ailing))
    foreign = foreign_software_gpus(node, os.environ)
    if foreign is not None:
        _output.echo(f"\n{foreign.message}")


def headline(node: Node, status: Status) -> str:
    daemon = status["daemon"]
    jobs = count(daemon["jobs"], "job")
    up = format_duration(float(int(daemon["uptime"])))
    return f"gpushared {daemon['version']} ({DRIVERS.get(node.driver, node.driver)}), up {up}, {jobs}"


def _row(gpu: Gpu, *, wide: bool) -> list[str]:
    amounts = [
        gpu["total"],
        gpu["capacity"],
        gpu["requested"],
        gpu["usage"],
        gpu["lent"],
        gpu["free"],
        gpu["unmanaged"],
    ]
    row = [str(gpu["index"]), gpu["name"], *(format_bytes(amount) for amount in amounts)]
    row += [gpu["health"]["state"], bar(gpu)]
    return [*row, format_bytes(gpu["returning"]), gpu["uuid"]] if wide else row


def ailments(gpu: Gpu, *, hints: bool) -> list[str]:
    """The GPU's health issues, a sentence each."""
    lines = []
    for one in gpu["health"]["ailments"]:
        lines.append(f"GPU {gpu['index']} is {one['state']}: {one['text']}")
        if hints or one["state"] != "degraded":
            lines.append(f"  hint: {one['hint']}")
    return lines


def bar(gpu: Gpu, width: int = BAR) -> str:
    """The GPU's memory as a bar. Each part that is not zero has at least one mark."""
    parts = (("#", gpu["usage"] - gpu["lent"]), ("+", gpu["lent"]), ("!", gpu["unmanaged"]))
    strip = ""
    for mark, amount in parts:
        if amount > 0 and gpu["total"] > 0:
            strip += mark * max(1, round(amount / gpu["total"] * width))
    return f"[{strip[:width]:.<{width}}]"


def _kept(one: Reservation) -> str:
    places = ", ".join(f"{format_bytes(gpu['amount'])} on GPU {gpu['index']}" for gpu in one["gpus"])
    until = "until it is released" if one["until"] is None else f"until {_output.clock(one['until'])}"
    return f"reserved: {places} as {one['name']} ({one['user']}), {until}"


def _jobs(jobs: list[Job]) -> str:
    states: dict[str, int] = {}
    for job in jobs:
        states[job["state"]] = states.get(job["state"], 0) + 1
    return "jobs: " + ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
