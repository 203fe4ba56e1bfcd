"""The API server as the engine has it: collections that are followed, writes, the lease."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gpushare.cluster.engines.kubernetes import needs
from gpushare.cluster.engines.kubernetes.board import Listed
from gpushare.cluster.engines.kubernetes.cache import Watched
from gpushare.cluster.engines.kubernetes.carriers import Annotations, Claims
from gpushare.cluster.engines.kubernetes.groups import Named
from gpushare.cluster.engines.kubernetes.lease import Leadership
from gpushare.cluster.engines.kubernetes.names import (
    DISK_CLAIMS,
    DISK_CLASSES,
    DISKS,
    NAMESPACES,
    NODES,
    POD_GROUPS,
    PODS,
    QUEUES,
    WORKLOADS,
    Key,
    Thing,
)
from gpushare.cluster.engines.kubernetes.settings import Settings
from gpushare.cluster.engines.kubernetes.starts import FAILURES, Starter
from gpushare.cluster.engines.kubernetes.stepwise import Stepwise
from gpushare.cluster.engines.kubernetes.volumes import Storage
from gpushare.cluster.engines.kubernetes.writes import LONGEST, Gone, Refusal, Writer
from gpushare.cluster.engines.seam import Measure, Unanswered
from gpushare.errors import GpushareError
from gpushare.kubernetes import carried
from gpushare.kubernetes.server import Access, Server

__all__ = ["Api"]

log = logging.getLogger(__name__)
FIRST = 15.0
"""Seconds that the first lists may take."""
AT_ONCE = 8
"""Requests of starts that overlap."""
OF_PODS = (PODS, NODES)
OF_STORAGE = (DISK_CLAIMS, DISKS, DISK_CLASSES)
"""As those of Storage."""
PATHS = (*OF_PODS, *OF_STORAGE)
OF_NODES = ("metadata", "spec", "status")
OF_DISKS = ("accessModes", "capacity", "claimRef", "nodeAffinity", "storageClassName", "volumeMode")


class Api:
    FAILURES = FAILURES
    GONE = Gone
    REFUSAL = Refusal
    LONGEST = LONGEST
    MOST_BEGUN = 2 * AT_ONCE
    """Starts of which a step may wait for a thread, or have one."""

    def __init__(self, settings: Settings, changed: Callable[[], None]) -> None:
        """Raises UsageError where there is no way to the API server."""
        self._settings = settings
        access = Access.of_kubeconfig(Path(settings.kubeconfig)) if settings.kubeconfig else Access.of_pod()
        self.server = Server(access, agent="gpushare-scheduler", connections=len(PATHS) + 9 + AT_ONCE)
        self._changed = changed
        self._carrier: Claims | Annotations | None = None
        self.watched: dict[str, Watched] = {}
        for path in PATHS:
            self.watched[path] = Watched(self.server, path, changed, keep=_keeps(path, settings.scheduler))
        self.watched[QUEUES] = Watched(self.server, QUEUES, changed, optional=True)
        self.watched[WORKLOADS] = Watched(self.server, WORKLOADS, changed, optional=True)
        first, *others = POD_GROUPS
        self.watched[first] = Watched(self.server, first, changed, optional=True, others=others)
        self.watched[NAMESPACES] = Watched(self.server, NAMESPACES, changed, keep=_labelled, optional=True)
        self.write = Writer(self.server, self.watched)
        self.starter = Starter(self.write)
        self.stepwise = Stepwise(AT_ONCE)
        with contextlib.suppress(Unanswered):
            self.carrier()

    def carrier(self) -> Claims | Annotations:
        """Found once. Raises Unanswered as long as the API server does not say."""
        if self._carrier is None:
            try:
                claims = self.server.has_claims()
            except GpushareError as error:
                raise Unanswered(str(error)) from None
            found = Claims() if claims else Annotations(carried.class_of(self._settings.of_class))
            for path in found.paths:
                self.watched[path] = Watched(self.server, path, self._changed)
            log.info("%s", found.told)
            self._carrier = found
        return self._carrier

    def leadership(self, clock: Callable[[], float]) -> Leadership:
        return Leadership(self.server, self._settings.namespace, self._settings.lease, clock)

    def listed(self) -> Listed:
        """Raises Unanswered where one of the collections may not be as it is."""
        deadline, found = time.monotonic() + FIRST, {}
        carrier = self.carrier()
        for path in (*PATHS, *carrier.paths):
            objects, trouble = self.watched[path].objects(max(0.0, deadline - time.monotonic()))
            if trouble:
                raise Unanswered(trouble)
            found[path] = objects
        storage = Storage(*(found[path] for path in OF_STORAGE))
        queues = self.listed_queues()
        named = None if queues is None else {name: one for (_, name), one in queues.items()}
        groups = self._groups(max(0.0, deadline - time.monotonic()))
        claims, classes, slices = carrier.of(found, found[PODS].values())
        namespaces = self._namespaces(max(0.0, deadline - time.monotonic()))
        seen = found[PODS], claims, classes, found[NODES], slices
        return Listed(*seen, storage=storage, queues=named, groups=groups, namespaces=namespaces)

    def _groups(self, within: float) -> Named:
        """Where they cannot be read, pods that name some wait, and the others do not."""
        workloads, pod_groups = self.watched[WORKLOADS], self.watched[POD_GROUPS[0]]
        found = [one.objects(within) for one in (workloads, pod_groups)]
        return Named(
            None if workloads.absent else found[0][0],
            None if pod_groups.absent else found[1][0],
            "; ".join(trouble for _, trouble in found if trouble),
        )

    def _namespaces(self, within: float) -> Mapping[str, Thing] | None:
        """None: they cannot be read. Then pods wait whose queue chooses namespaces by labels, and the others do not."""
        objects, trouble = self.watched[NAMESPACES].objects(within)
        return None if trouble else {name: one for (_, name), one in objects.items()}

    def listed_queues(self) -> dict[Key, Thing] | None:
        """None: the API server does not know the kind. Raises Unanswered."""
        objects, trouble = self.watched[QUEUES].objects(FIRST)
        if trouble:
            raise Unanswered(trouble)
        return None if self.watched[QUEUES].absent else objects

    def measures(self) -> Iterator[Measure]:
        answered: Mapping[tuple[str, ...], float] = {
            (method.lower(), code): count for (method, code), count in self.server.answered.items()
        }
        text = "Requests to the API server, by the status of the answer; none: there was none."
        yield Measure("kubernetes_requests_total", text, ("method", "code"), answered)
        took: Mapping[tuple[str, ...], float] = {
            (method.lower(),): seconds for method, seconds in self.server.seconds.items()
        }
        yield Measure("kubernetes_request_seconds_total", "Time that these took.", ("method",), took)
        watched = {path.rpartition("/")[2]: one for path, one in self.watched.items()}
        for name, text, value in (
            ("kubernetes_watches_total", "Watches that began.", lambda one: one.watches),
            ("kubernetes_lists_total", "How often a collection was listed whole.", lambda one: one.lists),
            ("kubernetes_stale", "1 while what is known of a collection may be old.", lambda one: bool(one.trouble)),
        ):
            yield Measure(name, text, ("resource",), {(kind,): float(value(one)) for kind, one in watched.items()})

    def close(self) -> None:
        self.stepwise.close()
        for one in self.watched.values():
            one.close()
        self.server.close()


def _keeps(path: str, scheduler: str) -> Callable[[dict[str, Any]], Thing]:
    """Of pods that others start, of nodes and volumes, little is worth its memory."""
    if path == PODS:
        return lambda pod: pod if pod["spec"].get("schedulerName") == scheduler else _small(pod)
    if path == DISKS:
        return _disk
    return lambda thing: {name: value for name, value in thing.items() if name in OF_NODES} if path == NODES else thing


def _small(pod: dict[str, Any]) -> Thing:
    meta = {name: pod["metadata"].get(name) for name in ("namespace", "name", "uid", "resourceVersion")}
    spec = {**{name: pod["spec"].get(name) for name in ("schedulerName", "nodeName")}, "needs": needs.of_pod(pod)}
    return {"metadata": meta, "spec": spec, "status": {"phase": (pod.get("status") or {}).get("phase")}}


def _labelled(thing: dict[str, Any]) -> Thing:
    return {"metadata": {name: thing["metadata"].get(name) for name in ("name", "resourceVersion", "labels")}}


def _disk(volume: dict[str, Any]) -> Thing:
    meta = {name: volume["metadata"].get(name) for name in ("name", "resourceVersion", "labels", "deletionTimestamp")}
    spec = {name: value for name, value in (volume.get("spec") or {}).items() if name in OF_DISKS}
    return {"metadata": meta, "spec": spec, "status": {"phase": (volume.get("status") or {}).get("phase")}}
