"""%load_ext gpushare: the budget of this notebook, in words and plain text.

    %gpushare                 how much is used, guaranteed and allowed, on each GPU
    %gpushare set 12Gi        another limit (or: set --request 4Gi --limit 12Gi), while it runs
    %gpushare explain         what happened to this job, and why it does not get more

`set` and `explain` are the commands of the same names; what is said here and not there is whether gpushare is in this
process at all. A notebook that shows a limit which nobody keeps would be worse than none.
"""

from __future__ import annotations

import os
import shlex
from typing import Any

import click

from gpushare import locate
from gpushare.api import Job, JobGpu
from gpushare.config import load_settings
from gpushare.errors import DaemonUnreachable, GpushareError, NoSuchJob, UsageError, render
from gpushare.presence import Presence, loaded_driver, presence
from gpushare.quantity import format_bytes

__all__ = ["bar", "load", "magic"]

WIDTH = 40
USAGE = "write %gpushare, %gpushare set 12Gi, %gpushare set --request 4Gi, or %gpushare explain"
LATER = "restart the kernel, and call gpushare.enable(limit=...) in its first cell; or `gpushare kernel install`"


def load(shell: Any) -> None:
    """What IPython calls for `%load_ext gpushare`."""
    shell.register_magic_function(magic, magic_kind="line", magic_name="gpushare")


def magic(line: str) -> None:
    """%gpushare: this notebook's part of the GPU: used, request, limit. `set 12Gi`, `set --request 4Gi`, `explain`."""
    try:
        _do(shlex.split(line))
    except GpushareError as error:
        print(error.render())
    except click.ClickException as error:
        print(UsageError(error.format_message(), hint=USAGE).render())
    except ValueError as error:  # an open quote
        print(UsageError(f"cannot read {line!r}: {error}", hint=USAGE).render())


def _do(words: list[str]) -> None:
    match words:
        case []:
            print(_status())
        case ["explain"]:
            _command("explain", _job()["id"])
        case ["set", amount] if not amount.startswith("-"):
            _command("set", _job()["id"], "--limit", amount)
        case ["set", _, _, *_]:
            _command("set", _job()["id"], *words[1:])
        case _:
            raise UsageError(f"%gpushare {' '.join(words)} is not understood", hint=USAGE)


def _status() -> str:
    if presence() is Presence.ABSENT:
        return _absent().render()
    if not _has_budget():
        return render("loaded into this process, but without a budget: nothing is limited", hint=LATER)
    try:
        return show(_job())
    except DaemonUnreachable as error:
        return render(
            f"{error.message}: the limit holds for this process by itself, and nothing is lent",
            [("limit", os.environ.get("GPUSHARE_LIMIT") or "see the environment")],
        )
    except NoSuchJob:
        return render("this process has not used a GPU yet, so the daemon does not know it", [("limit", _limit())])


def _absent() -> GpushareError:
    """Plainly: whatever the environment says, nobody counts in here."""
    early = loaded_driver() is None
    return GpushareError(
        "not in this process: what it allocates is neither limited nor guaranteed",
        hint='gpushare.enable(limit="8Gi") before CUDA starts' if early else LATER,
    )


def _has_budget() -> bool:
    settings = load_settings()
    return any(settings.find(name) for name in ("GPUSHARE_REQUEST", "GPUSHARE_LIMIT"))


def _limit() -> str:
    setting = load_settings().find("GPUSHARE_LIMIT")
    return f"{setting.text} (from {setting.source})" if setting else "the request"


def _job() -> Job:
    """This process's job: the one it was started as, or the one it has become by using a GPU."""
    if presence() is Presence.ABSENT:
        raise _absent()
    client = locate.find(load_settings()).client()
    return client.find_job(os.environ.get("GPUSHARE_JOB") or str(os.getpid()))


def _command(*words: str) -> None:
    """A command of the command line; it prints, and raises what went wrong."""
    from gpushare.cli import cli

    cli.main(list(words), prog_name="gpushare", standalone_mode=False)


def show(job: Job) -> str:
    """A job as a few lines of text."""
    lines = [f"job {job['name']} ({job['id']}): {job['state'].replace('_', ' ')}"]
    for gpu in job["gpus"]:
        loan = f" ({format_bytes(gpu['loan'])} of it on loan)" if gpu["loan"] else ""
        lines += [
            f"GPU {gpu['index']}  {bar(gpu)}  used {format_bytes(gpu['usage'])}{loan} | request"
            f" {format_bytes(gpu['request'])} | limit {format_bytes(gpu['limit'])}"
        ]
    return "\n".join(lines)


def bar(gpu: JobGpu, width: int = WIDTH) -> str:
    """[#####...|.......]: all of it is the limit, # is used, | is where the request ends and loans begin."""
    limit = max(gpu["limit"], 1)
    used = min(width, -(-gpu["usage"] * width // limit))
    cells = ["#"] * used + ["."] * (width - used)
    if gpu["request"] < gpu["limit"]:
        cells.insert(gpu["request"] * width // limit, "|")
    return f"[{''.join(cells)}]"
