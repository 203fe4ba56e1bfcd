"""gpushare reserve: keep memory for later jobs."""

from __future__ import annotations

import os

import click

from gpushare.api import Reservation
from gpushare.cli import output as _output
from gpushare.cli.output import Column
from gpushare.config import load_settings
from gpushare.env import Setting
from gpushare.errors import QuantityError, UsageError
from gpushare.launch import visible_devices
from gpushare.locate import find, for_run
from gpushare.quantity import format_bytes, format_duration, hint_for_something

COLUMNS = [
    Column("GPU", right=True),
    Column("NAME"),
    Column("USER"),
    Column("AGE", right=True),
    Column("RESERVED", right=True),
    Column("LEFT", right=True),
    Column("UNTIL"),
    Column("JOBS", right=True),
]


@click.command(short_help="Keep memory for later jobs.")
@click.argument("amount", metavar="[AMOUNT]", required=False)
@click.option("--name", metavar="NAME", default="reserved", show_default=True, help="The name for `run --reservation`.")
@click.option("--gpus", metavar="N", type=click.IntRange(1), default=1, show_default=True, help="How many GPUs.")
@click.option("--for", "lasting", metavar="TIME", help="How long: 30m, 8h.  [default: until it is released]")
@click.option("--list", "list_", is_flag=True, help="List all reservations instead.")
@_output.option("table", "json")
def command(*, amount: str | None, name: str, gpus: int, lasting: str | None, list_: bool, output: str) -> None:
    """Keep AMOUNT of memory (4Gi, 0.25) on a GPU for jobs that start in the reservation:

    \b
    gpushare reserve 8Gi --name mine --for 8h
    gpushare run --reservation mine --request 8Gi python train.py
    gpushare release mine

    Until a job requests the memory, it is lent like any idle memory, and taken back when a job needs it.
    """
    if list_:
        found = find(load_settings()).client().reservations()
        if output == "json":
            _output.print_json("reservations", {"reservations": found})
        else:
            _print(found)
        return
    if amount is None:
        raise click.UsageError("say how much to reserve, or --list")
    seconds = None if lasting is None else Setting(lasting, "--for").seconds()
    if seconds == 0:
        raise UsageError("--for 0s reserves nothing", hint="write 30m or 8h, or leave it out: until it is released")
    body = {
        "request": _amount(amount),
        "name": name,
        "gpus": gpus,
        "devices": visible_devices(os.environ),
        "lasting": seconds,
    }
    made = for_run(load_settings()).client().reserve(body)
    if output == "json":
        _output.print_json("reservation", dict(made))
        return
    where = ", ".join(f"{format_bytes(gpu['amount'])} on GPU {gpu['index']}" for gpu in made["gpus"])
    until = "until it is released" if seconds is None else f"for {format_duration(seconds)}"
    _output.echo(f"reserved {where} as {made['name']}, {until}")


def _amount(text: str) -> str:
    try:
        return Setting(text, "AMOUNT").quantity().canonical()
    except QuantityError as error:
        error.hint = hint_for_something(error)
        raise


def _print(found: list[Reservation]) -> None:
    if not found:
        _output.echo("no reservations", err=True)
        return
    rows = [
        [
            str(gpu["index"]),
            one["name"],
            one["user"],
            _output.age(one["since"]),
            format_bytes(gpu["amount"]),
            format_bytes(gpu["remainder"]),
            _output.clock(one["until"]) if one["until"] is not None else "released",
            str(len(one["jobs"])),
        ]
        for one in found
        for gpu in one["gpus"]
    ]
    uids = [one["uid"] for one in found for _ in one["gpus"]]
    _output.print_table(COLUMNS, rows, dim=lambda index: uids[index] != os.getuid())
