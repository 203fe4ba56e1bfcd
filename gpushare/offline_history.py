"""The history of this node while no daemon runs, from the files that earlier daemons wrote (history.py).

It answers the questions of a Client about ended jobs. It names histories that this user may not open.
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
from gpushare.printable import kept

__all__ = ["OfflineHistory", "ask"]

Answer = TypeVar("Answer")


class OfflineHistory:
    """Ended jobs and records from several directories."""

    def __init__(self, directories: Iterable[Path]) -> None:
        self.closed: list[Path] = []
        """Directories that exist but that this user may not open."""
        self._histories = [History(one) for one in directories if self._is_open(one)]

    def __bool__(self) -> bool:
        return any(history.jobs() or history.records().records for history in self._histories)

    def jobs(self, *, ended: bool = True) -> list[api.Job]:
        """Jobs in the order of their last record. All of them have ended, as far as is known."""
        found = [told(job) for history in self._histories for job in history.jobs()] if ended else []
        return cast("list[api.Job]", found)

    def records(self, since: float = 0.0) -> list[api.Record]:
        """The records in the order of time."""
        found = [_record(one) for history in self._histories for one in history.records(since).records]
        return sorted(found, key=lambda one: one["time"])

    def find_job(self, name: str) -> api.Job:
        """The job with this id, name (the latest), or beginning of an id. Raises NoSuchJob or UsageError (several)."""
        jobs = self.jobs()
        name = kept(name)
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
        """The story of the job with this id."""
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


def ask(
    settings: Settings, question: Callable[[Client | OfflineHistory], Answer], note: Callable[[str], None]
) -> Answer:
    """The daemon's answer; without a daemon, the history's, after a call of `note`.

    Raises DaemonUnreachable if there is neither; its hint names histories that are closed to this user.
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


def _past(settings: Settings) -> OfflineHistory:
    named = settings.find("GPUSHARE_SOCKET")
    if named:
        return OfflineHistory([Runtime.of_socket(named.text).history])
    driver = settings.choice("GPUSHARE_DRIVER")
    drivers = ("nvidia", "sim") if driver == "auto" else (driver,)
    own = (history_dir(one, settings.environ) for one in drivers)
    return OfflineHistory([SYSTEM_HISTORY, *(one for one in own if one is not None)])


def _closed(past: OfflineHistory) -> str | None:
    if not past.closed:
        return None
    where = ", ".join(map(str, past.closed))
    return f"what the node's daemon has written down is in {where}, for root only; its daemon tells what concerns you"


def _record(one: dict[str, Any]) -> api.Record:
    record = cast("dict[str, Any]", told(one))
    del record["uid"]
    return cast(api.Record, record)
