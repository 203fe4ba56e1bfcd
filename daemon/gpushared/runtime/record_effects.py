"""Passes the core's records to followers, into the history, and into the daemon's log."""

from __future__ import annotations

import logging
import time

from gpushared.core import instructions as do
from gpushared.core.instructions import Record
from gpushared.core.visibility import OPERATOR
from gpushared.jobs.historian import Historian
from gpushared.limits.backlog import Backlog
from gpushared.limits.identities import user_name
from gpushared.system.logs import Sparingly, facts, log


class RecordEffects:
    """Where records go."""

    def __init__(self, historian: Historian) -> None:
        self.followers: set[Backlog[Record]] = set()
        """Readers of the stream of records."""
        self._historian = historian
        self._sparingly = Sparingly(1.0)

    def log(self, wish: do.Log) -> None:
        """One line a second of each kind and job: a program that asks in a loop must not fill the disk."""
        record = wish.record
        for follower in self.followers:
            follower.put(record)
        self._historian.record(record, time.time())
        left_out = self._sparingly.allow((record.event, record.job, record.gpu))
        if left_out is None or not log.isEnabledFor(logging.INFO):
            return
        numbers = {key: value for key, value in OPERATOR.facts(record.facts).items() if not isinstance(value, dict)}
        user = None if record.uid is None else user_name(record.uid)
        about = {"job": record.job, "name": record.name, "user": user, "gpu": record.gpu}
        where = {key: value for key, value in about.items() if value}
        more = {"more": left_out} if left_out else {}
        log.info(OPERATOR.words(record.text), extra=facts(event=record.event, **{**numbers, **where, **more}))

    def end(self) -> None:
        """The daemon stops: followers should look for the next one."""
        for follower in self.followers:
            follower.end()
