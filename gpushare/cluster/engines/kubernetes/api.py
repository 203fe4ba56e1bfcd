"""The API server as the engine has it: collections that are followed, writes, the lease."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpushare.cluster.engines.kubernetes.board import Listed
from gpushare.cluster.engines.kubernetes.cache import Watched
from gpushare.cluster.engines.kubernetes.lease import Leadership
from gpushare.cluster.engines.kubernetes.names import CLAIMS, CLASSES, NODES, PODS, QUEUES, SLICES, Key, Thing
from gpushare.cluster.engines.kubernetes.settings import Settings
from gpushare.cluster.engines.kubernetes.writes import LONGEST, Conflict, Gone, Refusal, Writer
from gpushare.cluster.engines.seam import Unanswered
from gpushare.kubernetes.server import Access, Server

__all__ = ["Api"]

FIRST = 15.0
"""Seconds that the first lists may take."""
PATHS = (PODS, CLAIMS, CLASSES, NODES, SLICES)
"""As the fields of Listed."""
OF_NODES = ("metadata", "spec", "status")


class Api:
    FAILURES = (Conflict, Gone, Refusal)
    GONE = Gone
    REFUSAL = Refusal
    LONGEST = LONGEST

    def __init__(self, settings: Settings, changed: Callable[[], None]) -> None:
        """Raises UsageError where there is no way to the API server."""
        self._settings = settings
        access = Access.of_kubeconfig(Path(settings.kubeconfig)) if settings.kubeconfig else Access.of_pod()
        self.server = Server(access, agent="gpushare-scheduler", connections=len(PATHS) + 3)
        self._kept = {path: _keeps(path, settings.scheduler) for path in PATHS}
        self.watched = {path: Watched(self.server, path, changed, keep=self._kept[path]) for path in PATHS}
        self.watched[QUEUES] = Watched(self.server, QUEUES, changed, optional=True)
        self.write = Writer(self.server, self.watched[PODS], self.watched[CLAIMS])

    def leadership(self, clock: Callable[[], float]) -> Leadership:
        return Leadership(self.server, self._settings.namespace, self._settings.lease, clock)

    def listed(self) -> Listed:
        """Raises Unanswered where one of the collections may not be as it is."""
        deadline, found = time.monotonic() + FIRST, []
        for path in PATHS:
            objects, trouble = self.watched[path].objects(max(0.0, deadline - time.monotonic()))
            if trouble:
                raise Unanswered(trouble)
            found.append(objects)
        return Listed(*found)

    def listed_queues(self) -> dict[Key, Thing] | None:
        """None: the API server does not know the kind. Raises Unanswered."""
        objects, trouble = self.watched[QUEUES].objects(FIRST)
        if trouble:
            raise Unanswered(trouble)
        return None if self.watched[QUEUES].absent else objects

    def close(self) -> None:
        for one in self.watched.values():
            one.close()
        self.server.close()


def _keeps(path: str, scheduler: str) -> Callable[[dict[str, Any]], Thing]:
    """Of pods that others start, and of nodes, little is worth its memory."""
    if path == PODS:
        return lambda pod: pod if pod["spec"].get("schedulerName") == scheduler else _small(pod)
    return lambda thing: {name: value for name, value in thing.items() if name in OF_NODES} if path == NODES else thing


def _small(pod: dict[str, Any]) -> Thing:
    meta = {name: pod["metadata"].get(name) for name in ("namespace", "name", "uid", "resourceVersion")}
    return {"metadata": meta, "spec": {"schedulerName": pod["spec"].get("schedulerName")}, "status": {}}
