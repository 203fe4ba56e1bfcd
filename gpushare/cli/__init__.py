"""The command line: its commands, and the one place where an error becomes text and an exit status.

    0 ok · 1 failed · 2 usage · 3 daemon unreachable · 4 not permitted · 5 no such job
    run: the program's own status · 128+n signal n ended it (137 with the cause) · 125 gpushare failed, bad options
         included · 126 not executable · 127 not found

Each command is a module that is imported when it is used, because `gpushare run` may add only 60 ms to a program.
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import re
import sys
from collections.abc import Sequence

import click

from gpushare.errors import GpushareError, render
from gpushare.printable import printable

__all__ = ["cli", "main", "run_group"]

SECTIONS = {
    "Run programs": ("run", "kernel", "profiles"),
    "Watch and explain": ("ps", "status", "top", "dashboard", "report", "events", "explain"),
    "Change what runs": ("set", "stop", "suspend", "resume", "reserve", "release"),
    "Queue jobs": ("submit", "queue", "logs", "attach", "wait", "cancel", "hold", "cluster"),
    "Set up and learn": ("demo", "doctor", "docs", "daemon", "cdi", "shim-path", "completion"),
}
"""The commands in the order of `gpushare --help`. Each is a module of this package with a `command`."""
COMMANDS = tuple(name for names in SECTIONS.values() for name in names)
FAILED_BEFORE_START = 125
INTERRUPTED = 130
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a place that takes no more."""
CLICKS_WORDS = (
    (r"is not a valid integer( range)?", "is not a whole number"),
    (r"is not a valid float( range)?", "is not a number"),
    (r"is not in the range x>=(\S+?)\.?$", r"is less than \1"),
)
"""Click's words, and plainer ones."""


class Group(click.Group):
    """A group of commands that suggests one for an unknown word."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            from gpushare.cli.mistakes import unknown_command

            raise unknown_command(ctx.command_path, args, self.list_commands(ctx))
        return super().resolve_command(ctx, args)


class LazyGroup(Group):
    def list_commands(self, _: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, _: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"gpushare.cli.{cmd_name.replace('-', '_')}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for title, names in SECTIONS.items():
            commands = [(name, self.get_command(ctx, name)) for name in names]
            texts = [(name.ljust(width), one.get_short_help_str(100)) for name, one in commands if one is not None]
            with formatter.section(title):
                formatter.write_dl(texts)


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from gpushare import __version__

        click.echo(f"gpushare {__version__}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Show the version."
)
def cli() -> None:
    """Share NVIDIA GPUs between programs. Each has a guaranteed part of the memory, may borrow what others leave idle,
    and gives it back when they need it.

    \b
    gpushare run --request 4Gi --limit 14Gi python train.py
    """


def main(arguments: Sequence[str] | None = None) -> int:
    if arguments is not None:
        return _main(list(arguments))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a locale may lack a character
    code = _main(sys.argv[1:])
    if sys.argv[1:2] == ["run"]:
        # Nothing is left to clean up, and Python's own cleaning takes a tenth of the time that `run` may add.
        os._exit(code)
    return code


def _main(arguments: list[str]) -> int:
    try:
        result = cli.main(arguments, prog_name="gpushare", standalone_mode=False)
        code = result if isinstance(result, int) else 0
    except GpushareError as error:
        from gpushare.cli.mistakes import hint

        code = _report(render(error.message, error.facts, hint(error, arguments)), error.exit_code, arguments)
    except click.ClickException as error:
        code = _report(_in_our_words(error, arguments), error.exit_code, arguments)
    except (KeyboardInterrupt, click.Abort):
        code = INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # otherwise Python reports an error at exit
        code = 1
    except Exception as error:
        if arguments[:1] == ["run"]:
            # A bug of ours: show its traceback, but do not exit with 1, which would be the program's status.
            sys.excepthook(*sys.exc_info())
            return FAILED_BEFORE_START
        if not isinstance(error, OSError) or error.errno not in FULL:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = _report(render(f"cannot write: {error.strerror}", hint="free some space there"), 1, arguments)
    return code


def run_group(group: click.Group, arguments: Sequence[str], name: str) -> int:
    """Another program's commands, with the same errors and exit statuses. `name`: how it is called."""
    try:
        result = group.main(list(arguments), prog_name=name, standalone_mode=False)
        return result if isinstance(result, int) else 0
    except GpushareError as error:
        return _report(error.render(), error.exit_code, ())
    except click.ClickException as error:
        context: click.Context | None = getattr(error, "ctx", None)
        message = error.format_message()
        if type(error).__name__ != "NoArgsIsHelpError":  # of click 8.2 and later
            message = message[:1].lower() + message[1:].rstrip(".")
            message = render(message, hint=f"`{context.command_path if context else name} --help` says what there is")
        return _report(message, error.exit_code, ())
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # otherwise Python reports an error at exit
        return 1


def _in_our_words(error: click.ClickException, arguments: list[str]) -> str:
    from gpushare.cli.mistakes import hint, option_as_typed

    message = error.format_message()
    if isinstance(error, click.NoSuchOption):  # click's own guesses are poor: it takes --memory for --report
        message = f"No such option {option_as_typed(error.option_name, arguments)!r}"
    if type(error).__name__ == "NoArgsIsHelpError":  # of click 8.2 and later
        return message
    context: click.Context | None = getattr(error, "ctx", None)
    what = "commands" if context and isinstance(context.command, click.Group) else "options"
    listed = f"`{context.command_path if context else _path(arguments)} --help` lists the {what}"
    message = " ".join(message.split())
    for clicks, ours in CLICKS_WORDS:
        message = re.sub(clicks, ours, message)
    return render(message[:1].lower() + message[1:].rstrip("."), hint=hint(error, arguments) or listed)


def _path(arguments: list[str]) -> str:
    """The command of a line, for errors where click does not tell it: an option without its value."""
    words = [word for word in arguments[:2] if not word.startswith("-")]
    group = bool(words) and isinstance(cli.get_command(click.Context(cli), words[0]), click.Group)
    return " ".join(["gpushare", *words[: 2 if group else 1]])


def _report(text: str, code: int, arguments: Sequence[str]) -> int:
    click.echo(printable(text), err=True)
    if arguments[:1] == ["run"] and code < FAILED_BEFORE_START:
        return FAILED_BEFORE_START
    return code
