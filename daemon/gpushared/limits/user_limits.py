"""How many of the daemon's descriptors one user may take, and how many jobs.

The daemon's own user and root are not bound: only that user can connect to a user's daemon, and root must always be
able to connect to a node's.
"""

from __future__ import annotations

import os
import resource

OWN_SHARE = 4
"""A user gets at most a fourth of the descriptors."""
KEPT_BACK = 8
"""The last eighth of the descriptors is for the daemon itself and its own user."""
API_CONNECTIONS = 1024
"""Connections of one user. Each `gpushare run` has one open."""
JOBS = 1024
"""Jobs of one user at once, unless the settings say otherwise. Each costs descriptors and time."""
JOBS_SHARE = 16
"""A user gets at most one job for so many descriptors."""


class UserLimits:
    """Descriptors by user."""

    def __init__(self, limit: int | None = None) -> None:
        soft = limit if limit is not None else resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self.limit = 2**20 if soft == resource.RLIM_INFINITY else soft
        self._own = {os.geteuid(), 0}
        self._used: dict[int, int] = {}
        self._total = 0

    def is_bound(self, uid: int) -> bool:
        """Whether bounds hold for this user."""
        return uid not in self._own

    def has_room(self, uid: int, descriptors: int) -> bool:
        if not self.is_bound(uid):
            return True
        mine, all_of_them = self._used.get(uid, 0) + descriptors, self._total + descriptors
        return mine <= self.limit // OWN_SHARE and all_of_them <= self.limit - self.limit // KEPT_BACK

    def enter(self, uid: int, descriptors: int) -> None:
        self._used[uid] = self._used.get(uid, 0) + descriptors
        self._total += descriptors

    def leave(self, uid: int, descriptors: int) -> None:
        self._total -= descriptors
        left = self._used.get(uid, 0) - descriptors
        if left > 0:
            self._used[uid] = left
        else:
            self._used.pop(uid, None)

    def most_jobs(self, uid: int) -> int | None:
        """None: no bound."""
        return min(JOBS, self.limit // JOBS_SHARE) if self.is_bound(uid) else None

    def most_api_connections(self, uid: int) -> int | None:
        return min(API_CONNECTIONS, self.limit // OWN_SHARE) if self.is_bound(uid) else None
