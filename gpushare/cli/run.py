"""gpushare run: start a program as a job."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from gpushare.cli import complete
from gpushare.cli.job_options import JobOptions, flags_of
from gpushare.env import HOOKS, Setting
from gpushare.errors import QuantityError, UsageError
from gpushare.quantity import parse_duration

FOREVER = "forever"


class RunCommand(click.Command):
    """Adds to click: `--wait` may come without a value, and options after the program belong to the program."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        left = super().parse_args(ctx, self._complete_wait(list(args)))
        quiet = ctx.params.get("quiet") or ctx.params.get("container")  # an engine has options of its own
        if not quiet and not ctx.resilient_parsing:
            self._warn_of_misplaced(args, ctx.params.get("command_line") or ())
        return left

    def _warn_of_misplaced(self, args: list[str], command: tuple[str, ...]) -> None:
        """Stops at --, after which all words belong to the program."""
        before = args[: len(args) - len(command)]
        if before[-1:] != ["--"] and any(word.startswith("--") for word in command):
            from gpushare.cli import output as _output
            from gpushare.cli.mistakes import misplaced

            warning = misplaced(before, command)
            if warning:
                _output.echo(warning, err=True)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """For completion: after the program's name there are no options of ours."""
        params = super().get_params(ctx)
        if ctx.resilient_parsing and ctx.params.get("command_line"):
            return [param for param in params if isinstance(param, click.Argument)]
        return params

    def format_epilog(self, _: click.Context, formatter: click.HelpFormatter) -> None:
        from gpushare.env import VARIABLES

        with formatter.section("Environment (an option on the command line comes first)"):
            formatter.write_dl(
                [(", ".join([item.name, *(alias.name for alias in item.aliases)]), item.help) for item in VARIABLES]
            )

    def _complete_wait(self, args: list[str]) -> list[str]:
        takes_value = {
            name: not (param.is_flag or param.count)
            for param in self.params
            if isinstance(param, click.Option)
            for name in param.opts
        }
        index = 0
        while index < len(args) and args[index].startswith("-") and args[index] != "--":
            if args[index] == "--wait" and not _is_duration(args[index + 1 : index + 2]):
                args[index] = f"--wait={FOREVER}"
            index += 2 if takes_value.get(args[index], False) else 1
        return args


def _is_duration(words: list[str]) -> bool:
    try:
        return words == [FOREVER] or parse_duration(words[0]) >= 0
    except (QuantityError, IndexError):
        return False


def _wait(_: click.Context, __: click.Parameter, text: str | None) -> float | None:
    if text is None or text == FOREVER:
        return None if text is None else float("inf")
    return Setting(text, "--wait").seconds()


def _one_gpu_each(_: click.Context, __: click.Parameter, devices: tuple[str, ...]) -> tuple[str, ...]:
    from gpushare.cli.mistakes import not_one_gpu

    for device in devices:
        if hint := not_one_gpu(device):
            raise UsageError(f"--gpu: {device!r} does not name one GPU", hint=hint)
    return devices


own = JobOptions()


def _hook_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for hook, kind, text in reversed(HOOKS):
        metavar = {"cmd": "COMMAND", "url": "URL"}[kind]
        command = click.option(f"--{hook}-{kind}", metavar=metavar, help=f"{text[0].upper()}{text[1:]}.")(command)
    return command


@click.command(
    cls=RunCommand,
    context_settings={"allow_interspersed_args": False, "max_content_width": 100},
    short_help="Start a program with its part of a GPU.",
    options_metavar="[OPTIONS]",
)
@click.option(
    "--profile",
    metavar="NAME",
    shell_complete=complete.profiles,
    help="Start with a named set of options; `gpushare profiles` lists them. Options on this line come first.",
)
@own.options("request", "limit")
@click.option("--gpus", metavar="N", type=click.IntRange(1), help="How many GPUs.  [default: 1, or those of --gpu]")
@click.option(
    "--gpu",
    "devices",
    metavar="GPU",
    multiple=True,
    callback=_one_gpu_each,
    shell_complete=complete.gpus,
    help="The GPU: its number in `gpushare status`, or its UUID. Give the option several times for several GPUs.",
)
@own.options("name", "priority", "grace", "on_reclaim", "min_run_time")
@click.option(
    "--wait",
    metavar="[TIME]",
    callback=_wait,
    help="If the request does not fit now, wait: forever, or at most TIME.",
)
@click.option("--no-wait", is_flag=True, help="Fail at once if the request does not fit now (the default).")
@_hook_options
@own.options("reservation", "lend")
@own.others()
@click.option(
    "--driver",
    metavar="NAME",
    shell_complete=complete.choices("GPUSHARE_DRIVER"),
    help="auto, nvidia, or sim: the software driver.  [default: auto]",
)
@click.option(
    "--visible",
    metavar="WHAT",
    shell_complete=complete.choices("GPUSHARE_VISIBLE"),
    help="What the program sees as the GPU's size: limit or request.",
)
@click.option(
    "--for",
    "framework",
    metavar="NAME",
    shell_complete=complete.choices("GPUSHARE_FOR"),
    help="The program's framework: vllm, sglang, ollama, jax, tensorflow, torch. Sets what it needs.",
)
@click.option(
    "--mode",
    metavar="MODE",
    shell_complete=complete.choices("GPUSHARE_MODE"),
    help="enforce; observe: no budget, only watch what it uses (ps, --report); off: run it without gpushare.",
)
@click.option("--container", is_flag=True, help="COMMAND is `podman run` or `docker run`: the job is in the container.")
@click.option("--exec", "replace", is_flag=True, help="Become the program, do not stay as its parent.")
@click.option("--report", metavar="FILE", type=click.Path(path_type=Path), help="Write how the program ended, as JSON.")
@click.option(
    "--require-daemon/--no-require-daemon",
    default=None,
    help="Fail instead of running without a daemon.  [default: GPUSHARE_REQUIRE_DAEMON or a configuration file]",
)
@click.option("-v", "--verbose", count=True, help="Show where the budget comes from, and what the daemon does.")
@click.option("-q", "--quiet", is_flag=True, help="Show only errors.")
@click.argument(
    "command_line",
    metavar="COMMAND [ARG]...",
    nargs=-1,
    required=True,
    type=click.UNPROCESSED,
    shell_complete=complete.program,
)
def command(
    *,
    command_line: tuple[str, ...],
    profile: str | None,
    gpus: int | None,
    devices: tuple[str, ...],
    wait: float | None,
    no_wait: bool,
    driver: str | None,
    container: bool,
    replace: bool,
    report: Path | None,
    require_daemon: bool | None,
    verbose: int,
    quiet: bool,
    **options: Any,
) -> int:
    """Start COMMAND as a job with a budget of GPU memory. The first word that is no option begins the command.

    With --limit alone the job has that much for itself, and never more. With --request below --limit it may borrow
    what others leave idle. When they need it, the job is asked to give it back, and stopped if that takes longer than
    its grace. With neither option, everything is borrowed.

    The exit status is the program's own; 128+n if signal n ended it; 137 with the cause if it was stopped to return
    borrowed memory; 125 if gpushare failed before the start, 126 if the program cannot be executed, 127 if it does
    not exist.

    With --exec gpushare does not stay as the parent, so signals and job control go to the program alone. Then there are
    no messages when memory is asked back, no cause behind exit status 137, no --report, and no restart of your daemon.
    """
    from gpushare.launch import Options, run

    if wait is not None and no_wait:
        raise click.UsageError("--wait and --no-wait contradict each other")
    flags = {
        "GPUSHARE_PROFILE": profile,
        **flags_of(options),
        **{f"GPUSHARE_{hook.upper()}_{kind.upper()}": options[f"{hook}_{kind}"] for hook, kind, _ in HOOKS},
        "GPUSHARE_DRIVER": driver,
        "GPUSHARE_VISIBLE": options["visible"],
        "GPUSHARE_FOR": options["framework"],
        "GPUSHARE_MODE": options["mode"],
        "GPUSHARE_REQUIRE_DAEMON": None if require_daemon is None else str(int(require_daemon)),
    }
    return run(
        Options(
            command=list(command_line),
            flags=flags,
            gpus=gpus or len(devices) or 1,
            devices=devices,
            wait=wait,
            lend=options["lend"],
            reservation=options["reservation"],
            container=container,
            replace=replace,
            report=report,
            verbosity=-1 if quiet else verbose,
        )
    )
