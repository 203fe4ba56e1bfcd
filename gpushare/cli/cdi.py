"""gpushare cdi: devices with a budget that container engines know by name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from gpushare.cli import complete
from gpushare.cli import output as _output
from gpushare.cli.job_options import JobOptions, flags_of
from gpushare.cli.output import Column
from gpushare.env import HOOKS, Settings
from gpushare.errors import NotPermitted, UsageError
from gpushare.reclaim_steps import OF_THE_WRAPPER, parse_steps

COLUMNS = [Column("DEVICE"), Column("GPU"), Column("REQUEST", right=True), Column("LIMIT", right=True)]
ONLY_RUN = "is only for `gpushare run`, and not for a device"
FOLDER = click.Path(path_type=Path)
own = JobOptions()


@click.command(short_help="Give a part of a GPU a name for Podman and Docker.", options_metavar="[OPTIONS]")
@click.argument("name", metavar="[NAME]", required=False)
@click.option("--profile", metavar="NAME", shell_complete=complete.profiles, help="Start with a named set of options.")
@own.options("request", "limit")
@click.option(
    "--gpu",
    "devices",
    metavar="GPU",
    multiple=True,
    shell_complete=complete.gpus,
    help="The GPU: its number in `gpushare status`, or its UUID; may be repeated.  [default: the only one]",
)
@own.options("priority", "grace", "on_reclaim", "min_run_time", "lend")
@click.option("--visible", metavar="WHAT", help="What programs see as the GPU's size: limit or request.")
@click.option(
    "--for",
    "framework",
    metavar="NAME",
    shell_complete=complete.choices("GPUSHARE_FOR"),
    help="The programs' framework: vllm, sglang, ollama, jax, tensorflow, torch. Sets what it needs.",
)
@click.option("--remove", is_flag=True, help="Take the device away. Containers that run keep it.")
@click.option("--folder", metavar="DIR", type=FOLDER, default="/etc/cdi", show_default=True, help="Of the files.")
@_output.option("table", "json")
def command(
    *, name: str | None, devices: tuple[str, ...], remove: bool, folder: Path, output: str, **options: Any
) -> None:
    """Make the device gpushare.dev/gpu=NAME. Each container that is started with it is a job with this budget:

    \b
    gpushare cdi small --request 4Gi --limit 16Gi
    podman run --device gpushare.dev/gpu=small my/training
    docker run --device gpushare.dev/gpu=small my/training

    Without NAME: list the devices. The node daemon runs as a service, and you are root or one of its engines.
    """
    from gpushare import cdi

    if name is None:
        if remove or devices or any(value for key, value in options.items() if key != "lend"):
            raise click.UsageError("say the NAME of the device")
        _list(cdi.devices(folder), output)
        return
    try:
        if remove:
            cdi.remove(name, folder)
            return
        cdi.write_file(cdi.file_of(name, folder), _content(name, devices, options), 0o644)
    except PermissionError as error:
        raise NotPermitted(f"cannot write {folder}: {error.strerror}", hint="root may; or name a --folder") from None
    _output.echo(f"made {cdi.KIND}={name}; start a container with --device {cdi.KIND}={name}")


def _content(name: str, devices: tuple[str, ...], options: dict[str, Any]) -> dict[str, Any]:
    from gpushare import cdi, container
    from gpushare.config import load_settings
    from gpushare.locate import find
    from gpushare.paths import library
    from gpushare.quantity import Kind

    own_names = {"GPUSHARE_PROFILE": "profile", "GPUSHARE_VISIBLE": "visible", "GPUSHARE_FOR": "framework"}
    flags = {**{name: options[option] for name, option in own_names.items()}, **flags_of(options)}
    settings = load_settings(flags, os.environ)
    _check(settings)
    budget, _, _ = settings.budget()
    if budget.request.kind is Kind.NONE:
        raise UsageError("a device has a request, or a limit for itself alone", hint="--request 4Gi --limit 16Gi")
    node = find(settings)
    gpus = _chosen(devices, node.client().status()["gpus"])
    body = {
        "attempt": 1,
        "uid": 0,
        "gpus": [gpu["uuid"] for gpu in gpus],
        "request": budget.request.canonical(),
        "limit": budget.limit.canonical(),
        "name": name,
        "lend": options["lend"],
        **settings.options_of_job(),
    }
    framework, visible = settings.framework(), settings.find("GPUSHARE_VISIBLE")
    more = dict(framework.variables) if framework is not None else {}
    if visible is not None:
        more["GPUSHARE_VISIBLE"] = settings.choice("GPUSHARE_VISIBLE")
    inside = container.inside(node, library(), os.environ)
    of_gpus = cdi.described(gpus, container.DESCRIBED) if node.driver == "nvidia" else {}
    return cdi.spec(body, inside, node.runtime.api_socket.resolve(), more=more, of_gpus=of_gpus)


def _check(settings: Settings) -> None:
    """No wrapper is beside a container, and none of its launches has a hook."""
    steps = [one for one in parse_steps(settings.text("GPUSHARE_ON_RECLAIM") or "") if one in OF_THE_WRAPPER]
    if steps:
        raise UsageError(f"the reclaim step {steps[0]} {ONLY_RUN}", hint="write --on-reclaim trim,term")
    hooks = [f"GPUSHARE_{hook}_{kind}".upper() for hook, kind, _ in HOOKS]
    for what, names in (("a hook", hooks), ("a turn in computing", ["GPUSHARE_COMPUTE", "GPUSHARE_EXCLUSIVE"])):
        found = [setting for name in names if (setting := settings.find(name))]
        if found:
            raise UsageError(f"{what} {ONLY_RUN}", hint=f"leave out {found[0].source}")
    mode = settings.choice("GPUSHARE_MODE")
    if mode != "enforce":
        raise UsageError(f"the mode {mode} {ONLY_RUN}", hint="containers without the device have no limit")


def _chosen(devices: tuple[str, ...], gpus: list[Any]) -> list[Any]:
    if not devices:
        if len(gpus) != 1:
            raise UsageError(f"this node has {len(gpus)} GPUs", hint="say which: --gpu 0")
        return gpus
    known = {name: gpu for gpu in gpus for name in (gpu["uuid"], str(gpu["index"]))}
    lacking = [name for name in devices if name not in known]
    if lacking:
        raise UsageError(f"no GPU {lacking[0]} on this node", code="no_such_gpu", hint="`gpushare status` lists them")
    return list({known[name]["uuid"]: known[name] for name in devices}.values())


def _list(found: Any, output: str) -> None:
    from gpushare import cdi

    if output == "json":
        _output.print_json("cdi", {"devices": [{**body, "name": name} for name, body in found.items()]})
    elif found:
        rows = [
            [f"{cdi.KIND}={name}", ", ".join(one["gpus"]), one["request"], one["limit"]] for name, one in found.items()
        ]
        _output.print_table(COLUMNS, rows)
    else:
        _output.echo("no devices: `gpushare cdi --help` shows how to make one", err=True)
