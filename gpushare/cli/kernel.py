"""gpushare kernel: Jupyter kernels that start as jobs."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from gpushare import __version__, kernelspec, locate
from gpushare.cli import Group, complete
from gpushare.cli import output as _output
from gpushare.cli.job_options import JobOptions, flags_of
from gpushare.config import load_settings
from gpushare.env import BY_NAME, Settings
from gpushare.errors import GpushareError, render
from gpushare.job_spec import plain_options
from gpushare.quantity import Kind, format_bytes

own = JobOptions(for_kernels=True)
ASK_WITHIN = 3.0
"""Seconds."""


def _places(prefix: Path | None, sys_prefix: bool) -> list[Path]:
    """The data directories of a command."""
    if prefix is not None and sys_prefix:
        raise click.UsageError("--prefix and --sys-prefix contradict each other")
    if prefix is not None or sys_prefix:
        return [(prefix or Path(sys.prefix)).absolute() / kernelspec.SHARE]
    return kernelspec.data_dirs(os.environ)


def _target(prefix: Path | None, sys_prefix: bool) -> Path:
    return _places(prefix, sys_prefix)[0] if prefix is not None or sys_prefix else kernelspec.user_data(os.environ)


prefix_option = click.option(
    "--prefix", metavar="DIR", type=click.Path(path_type=Path), help="Use DIR/share/jupyter, as for an environment."
)
sys_prefix_option = click.option("--sys-prefix", is_flag=True, help="Use the environment where gpushare is installed.")


@click.group("kernel", cls=Group, short_help="Jupyter kernels with a part of a GPU: install, list, remove.")
def command() -> None:
    """Jupyter kernels that start with their part of a GPU.

    \b
    gpushare kernel install --name torch-8g --limit 8Gi
    """


@command.command(short_help="Install a kernel with its part of a GPU.")
@click.option("--name", default="gpushare", show_default=True, metavar="NAME", help="Name of the kernel and its jobs.")
@click.option("--display-name", metavar="TEXT", help="Name in notebooks.  [default: the base's, with the budget]")
@click.option(
    "--base",
    metavar="KERNEL",
    shell_complete=complete.kernels,
    help="An installed kernel to wrap.  [default: ipykernel of this Python]",
)
@own.options("request", "limit")
@click.option("--gpus", metavar="N", type=click.IntRange(1), default=1, show_default=True, help="How many GPUs.")
@own.options("priority", "grace")
@click.option("--visible", metavar="WHAT", help="What the kernel sees as the GPU's size: limit or request.")
@click.option("--driver", metavar="NAME", help="auto, nvidia, or sim: the software driver.")
@own.others()
@prefix_option
@sys_prefix_option
def install(
    *,
    name: str,
    display_name: str | None,
    base: str | None,
    gpus: int,
    lend: bool,
    prefix: Path | None,
    sys_prefix: bool,
    visible: str | None,
    driver: str | None,
    **options: str | None,
) -> None:
    """Install a kernel that runs under `gpushare run --exec` with these options.

    Notebooks list it beside the others. Each start of it is a job of its own. Interrupt and restart work as without
    gpushare.
    """
    flags = {**flags_of(options), "GPUSHARE_VISIBLE": visible, "GPUSHARE_DRIVER": driver}
    kernel_name = kernelspec.check_name(name)
    wrapped = kernelspec.base_kernel(base, kernelspec.data_dirs(os.environ)) if base else kernelspec.own_kernel()
    tells = kernelspec.can_tell(wrapped)
    plan = kernelspec.Plan(
        name=kernel_name,
        base=wrapped,
        options=_options(flags, gpus, lend=lend),
        budget=_check(flags) + (f" on each of {gpus}" if gpus > 1 else ""),
        display_name=display_name,
        tells=bool(tells),
    )
    kernel, replaced = kernelspec.install(plan, _target(prefix, sys_prefix), __version__)
    _output.echo(f"{'replaced' if replaced else 'installed'} {kernel.name}: {kernel.display_name}")
    _output.echo(kernel.directory)
    _warn(plan, kernel, cannot_tell=tells is False)
    _warn_of_size(flags)


def _check(flags: Mapping[str, str | None]) -> str:
    """Check the options as each start would. Returns the budget as text for the display name.

    The environment and the files are read when the kernel starts, not now.
    """
    settings = Settings(flags, {}, ())
    budget, _, _ = settings.budget()
    for name, option in plain_options().items():
        if option.variable:
            settings.of_job(name)
    for variable in ("GPUSHARE_DRIVER", "GPUSHARE_VISIBLE"):
        settings.choice(variable)
    shown = "no limit" if budget.limit.kind is Kind.MAX else f"limit {budget.limit}"
    return shown if budget.request == budget.limit else f"request {budget.request}, {shown}"


def _options(flags: Mapping[str, str | None], gpus: int, *, lend: bool) -> list[str]:
    """The options as they are in the kernel's argv."""
    options = []
    for name, text in flags.items():
        if text is not None:
            options += [BY_NAME[name].option, text]
    if gpus > 1:
        options += ["--gpus", str(gpus)]
    return options if lend else [*options, "--no-lend"]


def _warn_of_size(flags: Mapping[str, str | None]) -> None:
    """Of a request that no GPU of this node has, where a daemon runs that knows them."""
    request = Settings(flags, {}, ()).budget()[0].request
    if request.kind is not Kind.BYTES:
        return
    try:
        gpus = (
            locate.find(load_settings({"GPUSHARE_DRIVER": flags["GPUSHARE_DRIVER"]}))
            .client(ASK_WITHIN)
            .status()["gpus"]
        )
    except GpushareError:
        return
    largest = max((gpu["capacity"] for gpu in gpus), default=0)
    if request.value > largest:
        note = render(
            f"no GPU of this node has {format_bytes(request.value)}: the kernel cannot start here",
            hint=f"the largest has {format_bytes(largest)}; without --request, --limit is the request",
        )
        _output.echo(note, err=True)


def _warn(plan: kernelspec.Plan, kernel: kernelspec.Kernel, *, cannot_tell: bool) -> None:
    if plan.base.name == "ipykernel" and importlib.util.find_spec("ipykernel") is None:
        note = render(
            f"ipykernel is not installed in {sys.prefix}: the kernel cannot start",
            hint=f"{sys.executable} -m pip install ipykernel, or wrap another kernel with --base",
        )
        _output.echo(note, err=True)
    if cannot_tell:
        note = render(
            f"its cells say nothing when memory is wanted back: {plan.base.content['argv'][0]} has no gpushare",
            hint="install it there too, and install this kernel once more",
        )
        _output.echo(note, err=True)
    first = kernelspec.find(kernel.name, kernelspec.data_dirs(os.environ))
    if first is not None and first.directory != kernel.directory:
        _output.echo(render(f"another kernel of that name comes first: {first.directory}"), err=True)


@command.command("list", short_help="List gpushare's kernels.")
@prefix_option
@sys_prefix_option
@_output.option("table", "json")
def list_kernels(*, prefix: Path | None, sys_prefix: bool, output: str) -> None:
    """List the kernels that `gpushare kernel install` has made, where Jupyter looks for them."""
    kernels = kernelspec.installed(_places(prefix, sys_prefix))
    if output == "json":
        _output.print_json("kernels", {"kernels": [_as_json(kernel) for kernel in kernels]})
    elif not kernels:
        _output.echo("no kernel of gpushare is installed here", err=True)
    else:
        titles = ("NAME", "BUDGET", "BASE", "DISPLAY NAME", "DIRECTORY")
        rows = [_row(kernel) for kernel in kernels]
        _output.print_table([_output.Column(title, shrink=title == "DIRECTORY") for title in titles], rows)


def _row(kernel: kernelspec.Kernel) -> list[str]:
    budget, base = (str((kernel.mark or {}).get(key, "?")) for key in ("budget", "base"))
    return [kernel.name, budget, base, kernel.display_name, str(kernel.directory)]


def _as_json(kernel: kernelspec.Kernel) -> dict[str, object]:
    return {
        "name": kernel.name,
        "display_name": kernel.display_name,
        "directory": str(kernel.directory),
        "argv": kernel.content["argv"],
        **dict(kernel.mark or {}),
    }


@command.command("remove", short_help="Remove one of gpushare's kernels.")
@click.argument("name", shell_complete=complete.kernels)
@prefix_option
@sys_prefix_option
def remove_kernel(*, name: str, prefix: Path | None, sys_prefix: bool) -> None:
    """Remove the kernel NAME, if it is one of gpushare's."""
    _output.echo(f"removed {kernelspec.remove(name, _places(prefix, sys_prefix))}")
