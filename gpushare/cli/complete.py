"""Shell completion: names of jobs, GPUs, documents.

The user's shell waits for the answer, so there are no messages and no long waits.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gpushare.errors import GpushareError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from gpushare.client import Client
    from gpushare.cluster.client import ClusterClient

__all__ = [
    "choices",
    "gpus",
    "held",
    "jobs",
    "kernels",
    "profiles",
    "program",
    "queued",
    "queues",
    "reservations",
    "subjects",
    "topics",
    "words",
]

ANSWER_WITHIN = 1.0
Answer = TypeVar("Answer")
Complete = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]


def words(*known: str) -> Complete:
    return lambda _, __, incomplete: _items(incomplete, ((word, "") for word in known))


def choices(variable: str) -> Complete:
    """For an option that is also a variable, which is checked elsewhere."""
    from gpushare.env import BY_NAME

    return words(*BY_NAME[variable].choices)


def topics(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from gpushare import manual

    return _items(incomplete, ((topic, manual.title(manual.read(topic))) for topic in manual.topics()))


def jobs(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Jobs by name if the name is unique, else by id."""
    found = _ask(lambda client: client.jobs())
    names = [job["name"] for job in found or ()]
    return _items(
        incomplete,
        (
            (job["name"] if names.count(job["name"]) == 1 and job["name"] != "-" else job["id"], job["state"])
            for job in found or ()
        ),
    )


def queued(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The user's own jobs of the queue: ids, of an array its number, of its jobs once that stands there; names."""
    return _items(incomplete, _queued(incomplete, lambda _: True))


def held(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """What `gpushare release` releases: jobs that are held, and reservations."""
    found = _queued(incomplete, lambda job: job["state"] == "held")
    return [*reservations(context, parameter, incomplete), *_items(incomplete, found)]


def _queued(incomplete: str, wanted: Callable[[dict[str, Any]], bool]) -> list[tuple[str, str]]:
    import getpass

    jobs = _ask_service(lambda client: client.jobs(user=getpass.getuser())) or ()
    found: dict[str, str] = {}
    for job in jobs:
        if not wanted(job):
            continue
        whole = job["array"] is not None and not incomplete.startswith(f"{job['array']}_")
        found.setdefault(job["array"] if whole else job["id"], job["name"] or job["state"])
        if job["name"] and incomplete and not incomplete[0].isdecimal():
            found.setdefault(job["name"], job["state"])
    return list(found.items())


def queues(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Queues of the cluster."""
    found = _ask_service(lambda client: client.queues()["queues"]) or ()
    return _items(incomplete, ((one["queue"]["name"], "") for one in found))


def profiles(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from gpushare.config import load_profiles

    try:
        found = load_profiles()
    except GpushareError:
        return []
    return _items(incomplete, ((one.name, ", ".join(one.options)) for one in found.values()))


def subjects(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """For `explain`: jobs, and codes once some letters are typed, because there are many."""
    from gpushare.message_catalog import meanings

    codes = [(code, "") for code in meanings()] if incomplete else [("-", "messages on standard input")]
    return [*jobs(context, parameter, incomplete), *_items(incomplete, codes)]


def reservations(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    found = _ask(lambda client: client.reservations())
    return _items(incomplete, ((one["name"], one["user"]) for one in found or ()))


def gpus(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    status = _ask(lambda client: client.status())
    found = status["gpus"] if status is not None else []
    numbers = [(str(gpu["index"]), gpu["name"]) for gpu in found]
    return _items(incomplete, numbers if not incomplete.startswith("GPU") else [(gpu["uuid"], "") for gpu in found])


def kernels(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Kernels that gpushare has made."""
    from gpushare import kernelspec

    found = kernelspec.installed(kernelspec.data_dirs(os.environ))
    return _items(incomplete, ((kernel.name, kernel.display_name) for kernel in found))


def program(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """A program from PATH or a path; then its arguments, for which files are offered."""
    if context.params.get(parameter.name or "") or not incomplete or "/" in incomplete:
        return _files(incomplete)
    places = (Path(place) for place in os.environ.get("PATH", "").split(":") if place)
    found = {
        path.name for place in places if place.is_dir() for path in place.glob("*") if path.name.startswith(incomplete)
    }
    return _items(incomplete, ((name, "") for name in sorted(found))) or _files(incomplete)


def _files(incomplete: str) -> list[CompletionItem]:
    """Leave files to the shell."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


def _items(incomplete: str, known: Iterable[tuple[str, str]]) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    return [CompletionItem(word, help=about or None) for word, about in known if word.startswith(incomplete)]


def _ask(question: Callable[[Client], Answer]) -> Answer | None:
    from gpushare.config import load_settings
    from gpushare.locate import find

    try:
        return question(find(load_settings()).client(ANSWER_WITHIN))
    except GpushareError:
        return None


def _ask_service(question: Callable[[ClusterClient], Answer]) -> Answer | None:
    from gpushare.cluster.client import find

    try:
        client = find()
        if client is None:
            return None
        client.timeout = ANSWER_WITHIN
        return question(client)
    except (GpushareError, KeyError):
        return None  # KeyError: this user has no name
