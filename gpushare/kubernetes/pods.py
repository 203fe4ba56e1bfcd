"""Pods of this node that carry their claims themselves (carried.py): no kubelet asks for these.

The API server is watched for the node's pods. One that the scheduler has given GPUs is prepared as soon as its cgroup
is there; until then its gate is closed, and the kubelet tries its volume again and again. What is wrong is told in an
event of the pod. When the pod is over, or gone, so are its placement and its gate.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import Any

from gpushare.cluster.engines.kubernetes.cache import Watched
from gpushare.errors import GpushareError, NoSuchJob
from gpushare.kubernetes import carried, events
from gpushare.kubernetes.prepare import Preparer, words
from gpushare.kubernetes.server import Server, Unanswered

__all__ = ["Carried", "PodKeeper"]

log = logging.getLogger(__name__)
PODS = "/api/v1/pods"
SOON, LATER = 0.05, 1.0
"""Seconds until what did not go is tried again: a cgroup that is not there yet, and all else."""
YOUNG = 10.0
"""Seconds that a pod's cgroup may take without a word, and its programs to end."""
Claim = Mapping[str, Any]


class Carried:
    """Their claims, as the API server has them."""

    def __init__(self, server: Server, node: str) -> None:
        self.changed = threading.Event()
        selector = f"fieldSelector=spec.nodeName%3D{node}"
        self._watched = Watched(server, PODS, self.changed.set, keep=_claim, selector=selector)

    def read(self, namespace: str, name: str) -> Claim:
        """Raises Unanswered, and NoSuchJob where there is none."""
        if not self._watched.seen:
            raise Unanswered(self._watched.trouble)
        found = self._watched.get((namespace, name))
        if found is None or not carried.is_carried(found):
            raise NoSuchJob(f"there is no pod {namespace}/{name} with a claim of its own")
        return found

    def all(self) -> dict[str, Claim] | None:
        """Those that have GPUs, by the pod's uid; None: they were not listed yet."""
        if not self._watched.seen:
            return None
        objects, _ = self._watched.objects(0.0)
        return {one["metadata"]["uid"]: one for one in objects.values() if (one.get("status") or {}).get("allocation")}

    def close(self) -> None:
        self._watched.close()


class PodKeeper:
    """Its thread looks when a pod changes, and until all is as it should be."""

    def __init__(self, claims: Carried, preparer: Preparer, server: Server) -> None:
        self._claims = claims
        self._preparer = preparer
        self._server = server
        self._since: dict[str, float] = {}
        """When a claim was first due that is not prepared yet, or not unprepared."""
        self._told: dict[str, str] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pods", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._claims.changed.set()
        self._thread.join()
        self._claims.close()

    def _run(self) -> None:
        while not self._ended.is_set():
            self._claims.changed.clear()
            try:
                again = self.look()
            except (GpushareError, OSError) as error:
                log.warning("%s", error)
                again = LATER
            self._claims.changed.wait(again)

    def look(self) -> float | None:
        """Seconds until the next look; None: when something changes."""
        claims = self._claims.all()
        if claims is None:
            return LATER
        done = {record.uid: record.done for record in self._preparer.records if "gate" in record.spec}
        due = [uid for uid in claims if not done.get(uid)]
        over = [uid for uid in done if uid not in claims]
        self._since = {uid: self._since.get(uid, time.monotonic()) for uid in (*due, *over)}
        pauses = [self._prepare(uid, claims[uid]) for uid in due] + [self._unprepare(uid) for uid in over]
        self._told = {uid: text for uid, text in self._told.items() if uid in claims}
        return min((one for one in pauses if one is not None), default=None)

    def _prepare(self, uid: str, claim: Claim) -> float | None:
        meta, since = claim["metadata"], self._since[uid]
        try:
            self._preparer.prepare(uid, meta["namespace"], meta["name"])
        except (GpushareError, OSError) as error:
            young = isinstance(error, GpushareError) and error.code == "no_cgroup" and time.monotonic() < since + YOUNG
            if not young:
                self._tell(uid, meta, error)
            return SOON if young else LATER
        log.info(
            "prepared %s/%s %.0f ms after it came", meta["namespace"], meta["name"], 1000 * (time.monotonic() - since)
        )
        return None

    def _unprepare(self, uid: str) -> float | None:
        """Programs that still run are not waited for: other pods wait for their turn. A pod that is deleted by force is
        gone before they end."""
        try:
            self._preparer.unprepare(uid, within=0.0)
        except (GpushareError, OSError) as error:
            if time.monotonic() < self._since[uid] + YOUNG:
                return SOON
            log.info("a pod is over, and its claim is not: %s", error)
            return LATER
        return None

    def _tell(self, uid: str, meta: Mapping[str, Any], error: Exception) -> None:
        """Once. What the API server does not take now is told at the next try."""
        text = words(error, "it is tried again")
        if self._told.get(uid) == text:
            return
        log.warning("cannot prepare %s/%s: %s", meta["namespace"], meta["name"], text)
        event = events.of_pod(meta, "NotPrepared", text[:1024], events.now(), "Warning")
        try:
            self._server.ask("POST", events.EVENTS.format(meta["namespace"]), event)
        except GpushareError as refused:
            log.warning("%s", refused)
        else:
            self._told[uid] = text


def _claim(pod: dict[str, Any]) -> Claim:
    """Of other pods their names are enough."""
    head = {name: pod["metadata"].get(name) for name in ("namespace", "name", "uid", "resourceVersion")}
    return carried.of_pod(pod) or {"kind": "", "metadata": head}
