"""%gpushare: show and change the budget of this notebook from a cell.

`set` and `explain` are the commands of the same names. The magic also says whether gpushare is in this process: a
notebook must not show a limit that is not enforced.
"""

from __future__ import annotations

import inspect
import os
import shlex
import time

import click

from gpushare import locate
from gpushare.api import Job
from gpushare.client import Client
from gpushare.config import load_settings
from gpushare.errors import DaemonUnreachable, GpushareError, NoSuchJob, UsageError, render
from gpushare.notebook.view import Past, View
from gpushare.presence import Presence, loaded_driver, presence

__all__ = ["magic"]

USAGE = "%gpushare, %gpushare set 12Gi, %gpushare set --request 4Gi or %gpushare explain; %gpushare? says more"
MINUTES = 10
"""Of the past that is drawn."""
LATER = "restart the kernel, and call gpushare.enable(limit=...) in its first cell; or `gpushare kernel install`"


def magic(line: str) -> None:
    """This notebook's part of the GPU: what it uses, what is guaranteed, and how much it may borrow.

    %gpushare                       usage, request, limit and loan on each GPU; the last minutes; who waits for memory
    %gpushare set 12Gi              another limit, while it runs; the same as: set --limit 12Gi
    %gpushare set --request 4Gi     another request; with --limit both at once
    %gpushare explain               what happened to this job, and why it does not get more
    %gpushare help                  this text

    In the bar, # is used, and | is where the request ends: memory right of it is borrowed. When its owner wants it
    back, the running cell (or the last one) says so, the caches of PyTorch, CuPy and Numba are emptied, and callbacks
    of gpushare.on_pressure are called. A kernel that still has a loan after the grace is stopped.
    """
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
            _show()
        case ["help" | "--help" | "-h" | "?"]:
            print(inspect.cleandoc(magic.__doc__ or ""))
        case ["explain"]:
            _command("explain", _job(_client())["id"])
        case ["set", amount] if not amount.startswith("-"):
            _command("set", _job(_client())["id"], "--limit", amount)
        case ["set", _, *_]:
            _command("set", _job(_client())["id"], *words[1:])
        case _:
            raise UsageError(f"%gpushare {' '.join(words)} is not understood", hint=USAGE)


def _show() -> None:
    from IPython.display import display

    found = _status()
    if isinstance(found, View):
        display(found)  # type: ignore[no-untyped-call]
    else:
        print(found)


def _status() -> View | str:
    if presence() is Presence.ABSENT:
        return _absent().render()
    if not _has_budget():
        return render("loaded into this process, but without a budget: nothing is limited", hint=LATER)
    try:
        client = _client()
        job = _job(client)
        return View(job, client.explain()["waiting"], _past(client, job))
    except DaemonUnreachable as error:
        return render(
            f"{error.message}: the limit holds for this process by itself, and nothing is lent",
            [("limit", os.environ.get("GPUSHARE_LIMIT") or "see the environment")],
        )
    except NoSuchJob:
        return render("this process has not used a GPU yet, so the daemon does not know it", [("limit", _limit())])


def _past(client: Client, job: Job) -> Past | None:
    """None where the daemon has no history, or is an older one."""
    until = time.time()
    try:
        found = client.history(until - MINUTES * 60, until, 1.0, job["id"])
    except GpushareError:
        return None
    return Past(until - MINUTES * 60, until, {one["gpu"]: one["points"] for one in found["series"]})


def _absent() -> GpushareError:
    """The text if gpushare is not in this process, whatever the environment says."""
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


def _client() -> Client:
    if presence() is Presence.ABSENT:
        raise _absent()
    return locate.find(load_settings()).client()


def _job(client: Client) -> Job:
    """This process's job: it was started as one, or became one when it used a GPU."""
    return client.find_job(os.environ.get("GPUSHARE_JOB") or str(os.getpid()))


def _command(*words: str) -> None:
    """Run a command of the command line. It prints, and raises its errors."""
    from gpushare.cli import cli

    cli.main(list(words), prog_name="gpushare", standalone_mode=False)
