"""Names and groups of users, for the rules of the settings file.

The account database may be a server that takes seconds to answer, or never does. It is asked on threads, and only if a
rule or the administrators' group depends on groups. An answer is used for a while and then renewed in the background;
a reload of the settings forgets all answers.
"""

from __future__ import annotations

import asyncio
import grp
import os
import pwd
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

from gpushared.core.rules import Who
from gpushared.system.logs import Sparingly, facts, log

FRESH = 300.0
"""Seconds until an answer is asked for again."""
KEPT = 4096
THREADS = 4


@lru_cache(256)
def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def look_up(uid: int) -> Who:
    """Asks the account database; may take its time."""
    try:
        account = pwd.getpwuid(uid)
    except KeyError:
        return Who(uid, str(uid))
    groups = set[str]()
    for gid in os.getgrouplist(account.pw_name, account.pw_gid):
        groups.add(str(gid))
        try:
            groups.add(grp.getgrgid(gid).gr_name)
        except KeyError:
            continue  # a number without a name
    user_name(uid)  # remembers it: the loop will not have to ask
    return Who(uid, account.pw_name, frozenset(groups))


class Identities:
    """The answers so far."""

    def __init__(self, loop: asyncio.AbstractEventLoop, look_up: Callable[[int], Who] = look_up) -> None:
        self._loop = loop
        self._look_up = look_up
        self._known: dict[int, tuple[float, Who]] = {}
        self._asked: dict[int, asyncio.Future[Who]] = {}
        self._threads = ThreadPoolExecutor(THREADS, "accounts")
        self._sparingly = Sparingly()

    def known(self, uid: int) -> Who:
        """What is known so far; an unknown user has a name and no groups."""
        found = self._known.get(uid)
        if found is None:
            return Who(uid, user_name(uid))
        if time.monotonic() - found[0] > FRESH:
            self._ask(uid)
        return found[1]

    def has(self, uid: int) -> bool:
        return uid in self._known

    async def get(self, uid: int) -> Who:
        """Wait until the user is known."""
        while uid not in self._known:
            await asyncio.wait((self._ask(uid),))
        return self.known(uid)

    def when_known(self, uid: int, then: Callable[[], None]) -> None:
        """Call, now or later."""
        if uid in self._known:
            then()
        else:
            self._ask(uid).add_done_callback(lambda done: None if done.cancelled() else self.when_known(uid, then))

    def forget(self) -> None:
        """Groups may have changed. Answers that are on their way are not used later."""
        self._known.clear()
        self._asked.clear()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _ask(self, uid: int) -> asyncio.Future[Who]:
        asked = self._asked.get(uid)
        if asked is not None:
            return asked
        future = self._loop.run_in_executor(self._threads, self._look_up, uid)
        self._asked[uid] = future
        future.add_done_callback(lambda done: self._answered(uid, done))
        return future

    def _answered(self, uid: int, done: asyncio.Future[Who]) -> None:
        if self._asked.get(uid) is not done:
            return
        del self._asked[uid]
        if done.cancelled():
            return
        error = done.exception()
        if error is not None:
            if self._sparingly.allow(uid) is not None:
                log.error("the groups of a user cannot be looked up", extra=facts(uid=uid, error=repr(error)))
            # Better without groups for a while than never: rules about all users hold in any case.
            who = self._known[uid][1] if uid in self._known else Who(uid, str(uid))
        else:
            who = done.result()
        if len(self._known) >= KEPT and uid not in self._known:
            del self._known[min(self._known, key=lambda one: self._known[one][0])]
        self._known[uid] = (time.monotonic(), who)
