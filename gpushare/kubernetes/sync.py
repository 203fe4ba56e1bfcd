"""What is repeated until it is so. Each pass looks at what is there and makes what should be:

* the ResourceSlice has the GPUs and their health as the node daemon sees them;
* each prepared claim has its placement and its CDI file, also after the daemon has lost its notes or somebody ended it;
* a claim that several pods share has the cgroups of all of them: the kubelet prepares it only for the first. So when a
  pod's cgroup appears on this node, claims are asked about at once: its containers come right after it;
* what belongs to no claim any more is gone: placements and CDI files without a record, and records of claims that the
  API server no longer has, once their pods are gone. The kubelet forgets claims if its folder is emptied;
* `status.devices` says how claims use their GPUs, and `status.uses` of the node's object how pods do that carry theirs.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from gpushare.api import Placement
from gpushare.client import Client
from gpushare.errors import DaemonUnreachable, GpushareError, NoSuchJob
from gpushare.kubernetes import cgroups, claim
from gpushare.kubernetes.names import placement_of
from gpushare.kubernetes.prepare import Folders, Preparer
from gpushare.kubernetes.publish import Publisher
from gpushare.kubernetes.records import Record
from gpushare.kubernetes.server import Unanswered

__all__ = ["Sync"]

log = logging.getLogger(__name__)
MOST_TOLD = 8


class Sync:
    """Of one node. A pass that fails is logged once for each cause, and tried again."""

    def __init__(
        self,
        node: str,
        daemon: Callable[[], Client],
        publisher: Publisher,
        preparer: Preparer,
        folders: Folders,
    ) -> None:
        self._node = node
        self._daemon = daemon
        self._publisher = publisher
        self._preparer = preparer
        self._folders = folders
        self._failed: set[str] = set()
        self._whole = True
        self._published: object = None
        self._kubelets: set[str] = set()
        """Its cgroups, once a claim's pod has shown where they are."""
        self._pods: set[str] = set()

    def once(self, *, whole: bool = True) -> None:
        """`whole`: ask the API server about all. Else only what this node can see by itself is looked at."""
        failed: set[str] = set()
        self._whole = whole or bool(self._failed)
        for part in (self._restore, self._sweep, self._publish, self._follow):
            try:
                part()
            except (GpushareError, OSError) as error:
                failed.add(str(error))
        for text in failed - self._failed:
            log.warning("%s", text)
        if self._failed and not failed:
            log.info("all is well again")
        self._failed = failed

    def follow_new_pods(self) -> None:
        """Ask about claims if a pod has come to this node. What fails is left to the next pass."""
        pods = cgroups.below(self._kubelets, self._folders.cgroups)
        came, self._pods = not pods <= self._pods, pods
        if came:
            with contextlib.suppress(GpushareError, OSError):
                self._follow_all()

    def _publish(self) -> None:
        client = self._daemon()
        gpus = client.status()["gpus"]
        seen = [(gpu["uuid"], gpu["index"], gpu["capacity"], gpu["health"]["state"]) for gpu in gpus]
        if self._whole or seen != self._published:
            self._publisher.publish(gpus, client.version()["driver"])
            self._published = seen

    # ---- the node ----------------------------------------------------------------------------------

    def _restore(self) -> None:
        placed = {one["id"] for one in self._daemon().placements()}
        records, handover = list(self._preparer.records), self._preparer.handover
        for one in records:
            self._kubelets |= cgroups.tops(one.body["cgroups"])
        lacking = [one for one in records if one.placement not in placed or handover.lacks(one)]
        self._each(lacking, lambda record: self._preparer.restore(record.uid))

    def _sweep(self) -> None:
        top = placement_of("").rstrip("/")
        ids = [one["id"] for one in self._daemon().placements()]
        placed = {id.split("/")[1] for id in ids if id.startswith(f"{top}/") and id.count("/") == 2}
        for uid in placed.union(self._preparer.handover.uids()):
            self._preparer.sweep(uid)

    # ---- claims ------------------------------------------------------------------------------------

    def _follow(self) -> None:
        if self._whole:
            self._follow_all()

    def _follow_all(self) -> None:
        placements = {one["id"]: one for one in self._daemon().placements()}
        self._publisher.begin()
        try:
            self._each(self._preparer.records, lambda one: self._follow_one(one, placements.get(one.placement)))
        finally:
            self._publisher.end()

    def _each(self, records: Iterable[Record], do: Callable[[Record], None]) -> None:
        """What fails of one is told of all at once, at the end."""
        problems = []
        for record in records:
            try:
                do(record)
            except (Unanswered, DaemonUnreachable):
                raise  # nor for the others
            except (GpushareError, OSError, *claim.MALFORMED) as error:
                name = f"{record.namespace}/{record.name}"
                problems.append(str(error) if name in str(error) else f"claim {name}: {error}")
        if problems:
            raise GpushareError("; ".join(problems[:MOST_TOLD]))

    def _follow_one(self, record: Record, placed: Placement | None) -> None:
        if not record.done:
            return
        found = self._claim(record)
        if found is None:
            self._release(record)
        else:
            self._look(record, found, placed)

    def _claim(self, record: Record) -> Mapping[str, Any] | None:
        """None: the API server has no such claim, or it is allocated elsewhere."""
        try:
            found = self._preparer.read(record.namespace, record.name)
            claim.read(found, self._node)
        except NoSuchJob:
            return None
        except GpushareError as error:
            if error.code == "not_allocated":
                return None
            raise
        return found if found["metadata"]["uid"] == record.uid else None

    def _release(self, record: Record) -> None:
        """The kubelet unprepares it as long as it knows of it, which is when its pods are over."""
        if not any(self._runs(path) for path in record.body["cgroups"]):
            log.info("claim %s/%s is gone, and so are its pods", record.namespace, record.name)
            self._preparer.unprepare(record.uid)

    def _runs(self, cgroup: str) -> bool:
        tops = (self._folders.cgroups, *self._folders.cgroups.glob("*/"))
        return any(Path(f"{top}{cgroup}").is_dir() for top in tops)

    def _look(self, record: Record, found: Mapping[str, Any], placed: Placement | None) -> None:
        with self._preparer.lock(record.uid):
            current = self._preparer.records.get(record.uid)
            if current is not None and current.done:
                self._preparer.follow(current, claim.read(found, self._node).pods)
        if placed is not None:
            self._publisher.tell(found, placed["job"])
