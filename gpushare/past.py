"""What is known of this node while no daemon runs: what the last ones have left behind (history.py).

It answers the questions that a Client answers about what is over. Histories that this user may not open are named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar, cast

from gpushare import api
from gpushare.client import Client
from gpushare.env import Settings
from gpushare.errors import DaemonUnreachable, NoSuchJob, UsageError
from gpushare.history import History, told
from gpushare.locate import find
from gpushare.nearest import did_you_mean
from gpushare.paths import SYSTEM_HISTORY, Runtime, history_dir

__all__ = ["Past", "ask"]

Answer = TypeVar("Answer")


class Past:
    """Ended jobs and records, of several directories."""

    def __init__(self, directories: Iterable[Path]) -> None:
        self.closed: list[Path] = []
        """There is something, but not for us."""
        self._histories = [History(one) for one in directories if self._is_open(one)]

    def __bool__(self) -> bool:
        return any(history.jobs() or history.records().records for history in self._histories)

    def jobs(self, *, ended: bool = True) -> list[api.Job]:
        """In the order in which they were last heard of. None lives, as far as anybody knows."""
        found = [told(job) for history in self._histories for job in history.jobs()] if ended else []
        return cast("list[api.Job]", found)

    def records(self, since: float = 0.0) -> list[api.Record]:
        """In the order of time."""
        found = [_record(one) for history in self._histories for one in history.records(since).records]
        return sorted(found, key=lambda one: one["time"])

    def find_job(self, name: str) -> api.Job:
        """By id, by name (the latest), or by the beginning of an id. NoSuchJob, or UsageError for several."""
        jobs = self.jobs()
        found = [job for job in jobs if job["id"] == name] or [job for job in jobs if job["name"] == name][-1:]
        if not found and len(name) >= api.LEAST_OF_AN_ID:
            found = [job for job in jobs if job["id"].startswith(name.lower())]
        if len(found) > 1:
            facts = [(job["id"], job["name"]) for job in found[:8]]
            raise UsageError(
                f"{name[:60]!r} fits {len(found)} jobs", code="ambiguous_job", facts=facts, hint="use the id"
            )
        if not found:
            close = did_you_mean(name, [job["name"] for job in jobs])
            raise NoSuchJob(f"no job {name[:60]!r} in the history", hint=close or "see `gpushare ps -a`")
        return found[0]

    def story(self, job: str) -> api.Story:
        """By id."""
        records = [_record(one) for history in self._histories for one in history.records(0.0, job).records]
        return {"job": self.find_job(job), "story": records, "waiting": []}

    def _is_open(self, directory: Path) -> bool:
        try:
            return any(directory.iterdir())
        except PermissionError:
            self.closed.append(directory)
        except OSError:
            pass  # there is none
        return False


def ask(settings: Settings, question: Callable[[Client | Past], Answer], note: Callable[[str], None]) -> Answer:
    """The daemon's answer; while there is no daemon, that of the history, which `note` is told.

    DaemonUnreachable where there is neither, with what is closed to this user.
    """
    try:
        client = find(settings).client()
    except DaemonUnreachable as error:
        past = _past(settings)
        if error.code != "no_daemon":
            raise
        if not past:
            error.hint = _closed(past) or error.hint
            raise
        note("no daemon runs on this node: this is what the last one has written down")
        if past.closed:
            note(str(_closed(past)))
        return question(past)
    return question(client)


def _past(settings: Settings) -> Past:
    named = settings.find("GPUSHARE_SOCKET")
    if named:
        return Past([Runtime.of_socket(named.text).history])
    driver = settings.choice("GPUSHARE_DRIVER")
    drivers = ("nvidia", "sim") if driver == "auto" else (driver,)
    own = (history_dir(one, settings.environ) for one in drivers)
    return Past([SYSTEM_HISTORY, *(one for one in own if one is not None)])


def _closed(past: Past) -> str | None:
    if not past.closed:
        return None
    where = ", ".join(map(str, past.closed))
    return f"what the node's daemon has written down is in {where}, for root only; its daemon tells what concerns you"


def _record(one: dict[str, Any]) -> api.Record:
    record = cast("dict[str, Any]", told(one))
    del record["uid"]
    return cast(api.Record, record)
