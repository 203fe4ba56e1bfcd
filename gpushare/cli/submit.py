"""gpushare submit: queue a program; it is started when there is room for it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from gpushare.cli import complete
from gpushare.cli import output as _output
from gpushare.env import Setting
from gpushare.errors import CommandNotFound, QuantityError, UsageError
from gpushare.file_kinds import is_directory, is_file, is_there
from gpushare.quantity import Kind, Quantity

AMOUNTS = "write 25%, 20Gi or max"


@click.command(
    context_settings={"allow_interspersed_args": False, "max_content_width": 100},
    short_help="Queue a program: it starts when there is room, in fair shares.",
    options_metavar="[OPTIONS]",
)
@click.option(
    "-q",
    "--queue",
    metavar="QUEUE",
    shell_complete=complete.queues,
    help="The queue whose share it uses.  [default: your own]",
)
@click.option("--gpus", metavar="N", type=click.IntRange(1), default=1, help="How many GPUs.  [default: 1]")
@click.option(
    "--request", metavar="AMOUNT", help="Memory guaranteed on each GPU: 25%, 20Gi.  [default: --limit, else whole GPUs]"
)
@click.option("--limit", metavar="AMOUNT", help="The most on each GPU. What it uses above its request is borrowed.")
@click.option("--array", metavar="N", type=click.IntRange(1), help="So many jobs; GPUSHARE_ARRAY_INDEX is 0, 1, ...")
@click.option(
    "--after",
    metavar="JOB",
    multiple=True,
    shell_complete=complete.queued,
    help="Start only after JOB has ended well. May be repeated.",
)
@click.option("--time", "limit_time", metavar="TIME", help="Stop it when it has run this long: 8h.")
@click.option(
    "--requeue/--no-requeue",
    default=None,
    help="When it is stopped for others: wait again, or end.  [default: wait]",
)
@click.option("--name", metavar="NAME", help="Its name in lists.  [default: the program's]")
@click.option("--priority", metavar="N", type=int, help="Within its queue; more is higher.  [default: 50]")
@click.option("--min-run-time", metavar="TIME", help="It is not stopped for others before it has run this long.")
@click.option("--grace", metavar="TIME", help="Time from SIGTERM to SIGKILL when it is stopped.  [default: 30s]")
@click.option("--hold", is_flag=True, help="Do not start it before `gpushare release`.")
@click.option(
    "--log", metavar="FILE", help="Where its output goes; %j is its id, %a its number.  [default: for `gpushare logs`]"
)
@click.argument("command_line", metavar="COMMAND [ARG]...", nargs=-1, required=True, type=click.UNPROCESSED)
def command(*, command_line: tuple[str, ...], **options: Any) -> None:
    """Queue COMMAND and print the job's id. It starts when there is room, with this environment, directory, umask and
    these resource limits, and with exactly the GPUs and the memory that it was given.

    \b
    gpushare submit -- python train.py
    gpushare submit --request 25% --limit 80% --time 8h -- python train.py
    id=$(gpushare submit --array 20 -- ./sweep.sh)
    gpushare submit --after $id -- ./report.sh

    `gpushare queue` lists jobs, `gpushare logs` shows their output. What others leave idle is used too; a job that has
    more than the share of its queue may be stopped for them: it gets SIGTERM, and waits again.
    """
    from gpushare.cli.queued import service

    body = submission(command_line, options, os.environ)
    client = service()
    answer = client.submitted(body)
    _output.echo(answer["id"])
    for reason in answer["never"].values():
        _output.note(
            f"as it is it can never start: {reason['message']}; take it back: `gpushare cancel {answer['id']}`"
        )


def submission(command: tuple[str, ...], options: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """The body of POST /v1/jobs. UsageError for what could not start, found before anything is queued."""
    from gpushare import spawn
    from gpushare.cluster.engines.local.submission import check_environment, limits_now

    env = dict(environ)
    check_environment(env, command)
    try:
        spawn.find_program(command[0], env)
    except CommandNotFound as error:
        if command[0].endswith((".yaml", ".yml", ".jsonl")):
            error.hint = f"jobs of a file are submitted with `gpushare cluster submit {command[0]}`"
        raise
    _warn_of_script(command)
    cwd = _directory()
    job: dict[str, Any] = {"gpus": options["gpus"], "name": options["name"] or _name_of(command)}
    request, limit = _amounts(options["request"], options["limit"])
    named = {"queue": options["queue"], "request": request, "limit": limit, "priority": options["priority"]}
    job |= {name: value for name, value in named.items() if value is not None}
    if options["min_run_time"] is not None:
        job["min_runtime"] = options["min_run_time"]
    umask = os.umask(0o077)
    os.umask(umask)
    run = {
        "command": list(command),
        "cwd": cwd,
        "env": env,
        "umask": umask,
        "rlimits": limits_now(),
        "time": _seconds(options["limit_time"], "--time"),
        "grace": _seconds(options["grace"], "--grace"),
        "output": _log(options["log"], cwd, environ),
    }
    return {
        "job": job,
        "array": options["array"],
        "after": list(options["after"]),
        "hold": options["hold"],
        "requeue": options["requeue"],
        "run": run,
    }


def _amounts(request: str | None, limit: str | None) -> tuple[str | None, str | None]:
    """The request and the limit in one unit, a part of a GPU or bytes. None: whole GPUs, as without the option."""
    kinds = {}
    for option, text in (("--request", request), ("--limit", limit)):
        if text is not None:
            kinds[option] = _kind(option, text)
    if limit is not None and kinds["--limit"] is Kind.MAX:
        if kinds.get("--request") is Kind.BYTES:
            hint = "write the limit in bytes, too, or the request as a part of a GPU: 25%"
            raise UsageError(f"--limit max beside --request {request}: they have different units", hint=hint)
        limit = "100%"
    if request is not None and kinds["--request"] is Kind.MAX:
        request = "100%"
        kinds["--request"] = Kind.SHARE
    if request is None:
        request = limit
    elif limit is not None and len({Kind.SHARE if one is Kind.MAX else one for one in kinds.values()}) > 1:
        raise UsageError(
            f"--request {request} and --limit {limit} have different units",
            hint="write both as parts of a GPU (25%, 80%) or both in bytes (4Gi, 12Gi)",
        )
    return request, limit


def _kind(option: str, text: str) -> Kind:
    """In which unit this is said. UsageError for what is no amount."""
    try:
        kind = Quantity.parse(text).kind
    except QuantityError as error:
        hint = error.hint if "none" not in (error.hint or "") else AMOUNTS
        raise UsageError(f"{option}: {error.message}", hint=hint) from None
    if kind is Kind.NONE:
        raise UsageError(f"{option}: a job of the queue needs memory", hint=AMOUNTS)
    return kind


def _name_of(command: tuple[str, ...]) -> str:
    """The program's, in letters that a job's name may have."""
    from gpushare.launch import default_name

    letters = (letter if letter.isprintable() and not letter.isspace() else "_" for letter in default_name(command))
    return "".join(letters)[:200]


def _seconds(text: str | None, option: str) -> float | None:
    return None if text is None else Setting(text, option).seconds()


def _directory() -> str:
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        raise UsageError("the current directory does not exist any more", hint="submit from another one") from None


def _warn_of_script(command: tuple[str, ...]) -> None:
    """`python tarin.py`: the program is there, its script is not."""
    if Path(command[0]).name.startswith(("python", "bash", "sh")) and len(command) > 1:
        script = command[1]
        if script.endswith((".py", ".sh")) and not is_there(Path(script)):
            _output.note(f"there is no {script} here now; it must be there when the job starts")


def _check_log(path: Path) -> None:
    """What would fail when the job starts: its log is opened without following links, and with its user's rights."""
    if os.path.lexists(path) and (path.is_symlink() or not is_file(path)):
        raise UsageError(f"--log: {path} is no regular file", hint="name another file")
    there = next(place for place in (path, *path.parents) if is_there(place))
    why = "is no directory" if there != path and not is_directory(there) else "is not yours to write to"
    if why == "is no directory" or not os.access(there, os.W_OK):
        raise UsageError(f"--log: {path} cannot be written: {there} {why}", hint="name another file")
    try:
        path.lstat()
    except FileNotFoundError:
        pass  # it is made then
    except OSError as error:
        raise UsageError(f"--log: {path} cannot be written: {error.strerror}", hint="name another file") from None


def _log(wanted: str | None, cwd: str, environ: Mapping[str, str]) -> str:
    """The file for its output, with %j and %a in it."""
    if wanted is not None:
        if not wanted:
            raise UsageError("--log: the name of the file is empty", hint="write --log run-%j.log")
        path = Path(cwd, wanted)
        if is_directory(path):
            raise UsageError(f"--log: {path} is a directory", hint=f"name a file in it: --log {wanted}/%j.log")
        _check_log(path)
        return str(path)
    state, home = environ.get("XDG_STATE_HOME", ""), environ.get("HOME", "")
    away = f"your home directory {home} is not there" if home else "you have no home directory (HOME is not set)"
    if not state.startswith("/"):
        if not home.startswith("/") or not is_directory(Path(home)):
            raise UsageError(f"no place for its output: {away}", hint="name one: --log /scratch/logs/%j.log")
        state = f"{home}/.local/state"
    folder = Path(state, "gpushare", "logs")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"no place for its output: cannot make {folder}: {error.strerror}",
            hint="name one: --log /scratch/logs/%j.log",
        ) from None
    if not os.access(folder, os.W_OK):
        raise UsageError(f"no place for its output: {folder} is not yours to write to", hint="name one with --log")
    return str(folder / "%j.log")
