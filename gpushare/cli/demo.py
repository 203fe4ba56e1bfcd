"""gpushare demo: a borrower and an owner share a GPU on this machine, or two queues two of them."""

from __future__ import annotations

import importlib

import click

import gpushare_installation
from gpushare.errors import GpushareError


@click.command(
    short_help="Watch a borrower use an owner's idle memory and give it back.",
    context_settings={"ignore_unknown_options": True},
)
@click.option("--queue", is_flag=True, help="Watch the queue instead: two queues share two software GPUs.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(*, arguments: tuple[str, ...], queue: bool) -> int:
    """Watch a borrower use an owner's idle memory and give it back. Without a GPU it uses the software driver."""
    if queue:
        from gpushare.demo_queue import main

        return main()
    try:
        demo = importlib.import_module("gpushare.demo")
    except ModuleNotFoundError as error:
        raise GpushareError(f"the demo cannot run: {error}", hint=gpushare_installation.install_extra("demo")) from None
    status: int = demo.main(arguments)
    return status
