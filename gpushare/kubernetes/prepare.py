"""What the kubelet asks for: prepare a claim, so that containers can use it; unprepare it, when they are over.

Both can be repeated, and either may be cut off at any point: a claim's record is there before anything else of it, and
after all else of it.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpushare.api import Gpu
from gpushare.client import Client
from gpushare.container import Inside, nvidia_devices
from gpushare.errors import DaemonUnreachable, GpushareError, NoSuchJob, Refused, UsageError
from gpushare.kubernetes import attach, cdi, cgroups, claim
from gpushare.kubernetes.carried import GATES
from gpushare.kubernetes.cdi import CDI
from gpushare.kubernetes.cgroups import CGROUPS
from gpushare.kubernetes.claim import Allocated
from gpushare.kubernetes.handover import Handover
from gpushare.kubernetes.names import placement_of
from gpushare.kubernetes.records import Record, Records, is_uid

__all__ = ["Folders", "Preparer", "words"]

log = logging.getLogger(__name__)
LEAVES_WITHIN = 3.0
"""Seconds that programs of a pod which is over may take to be gone."""
AGAIN = 0.05
LOCKS = 64

Read = Callable[[str, str], Mapping[str, Any]]
"""A claim's object, by namespace and name. Raises GpushareError; NoSuchJob: there is none."""
Others = Callable[[], Iterable[Mapping[str, Any]]]
"""The ResourceSlices of NVIDIA's driver on this node. Raises GpushareError."""


@dataclass(frozen=True, slots=True)
class Folders:
    """On the node."""

    cdi: Path = CDI
    nvidia: Sequence[Path] = (Path("/etc/cdi"), CDI)
    """Where NVIDIA's toolkit describes GPUs."""
    cgroups: Path = CGROUPS
    gates: Path = Path(GATES)


class Preparer:
    """Of one node. Its methods may be called by several threads."""

    def __init__(
        self,
        node: str,
        daemon: Callable[[], Client],
        read: Read,
        records: Records,
        *,
        inside: Inside,
        folders: Folders,
        others: Others = list,
    ) -> None:
        self.records = records
        self.read = read
        self.handover = Handover(inside, folders.cdi, folders.gates)
        self._node = node
        self._daemon = daemon
        self._others = others
        self._inside = inside
        self._folders = folders
        self._locks = tuple(threading.Lock() for _ in range(LOCKS))

    def prepare(self, uid: str, namespace: str, name: str) -> Sequence[Mapping[str, Any]]:
        """The claim's devices, as the kubelet is told. Raises GpushareError or OSError."""
        if not self._inside.library.exists():
            raise GpushareError(f"{self._inside.library} is gone", hint="restart gpushare-dra: it makes it again")
        with self.lock(uid):
            return self._make(uid, namespace, name, self.records.get(uid)).devices

    def restore(self, uid: str) -> None:
        """Make again what is gone of a claim that is prepared: its placement, its CDI file. A container that starts
        again needs both, and the kubelet does not ask then. Raises GpushareError or OSError."""
        with self.lock(uid):
            record = self.records.get(uid)
            if record is not None and record.done:
                self._make(uid, record.namespace, record.name, record)

    def unprepare(self, uid: str, within: float = LEAVES_WITHIN) -> None:
        """Nothing of the claim is left when this returns. Raises GpushareError, also while programs of it still run
        after so many seconds."""
        if is_uid(uid):
            with self.lock(uid):
                self._remove(uid, within)

    def sweep(self, uid: str) -> None:
        """The same, if it is not known as prepared. Raises GpushareError."""
        with self.lock(uid):
            if self.records.get(uid) is None:
                log.info("claim %s is no longer prepared: what is left of it is removed", uid)
                self._remove(uid)

    def _make(self, uid: str, namespace: str, name: str, record: Record | None) -> Record:
        """All that belongs to the claim is there when this returns. `record`: what is known of it."""
        if record is None or not self._is_placed(record):
            record = self._begin(uid, namespace, name, known=record)
            if not self._is_placed(record):
                raise Refused(f"{record.placement} was ended meanwhile", code="stale_attempt")
        self.handover.give(record)
        return record if record.done else self.records.finish(record)

    def _is_placed(self, record: Record) -> bool:
        """Place it, or say it again. False: this placement has been ended, by an unprepare that went on no further or
        by somebody at the node daemon, and is taken no more. Raises GpushareError."""
        try:
            self.place(record)
        except DaemonUnreachable:
            raise  # it may have placed it
        except GpushareError as error:
            if error.code == "stale_attempt":
                return False
            if not record.done:
                self.records.drop(record.uid)
            raise
        return True

    def place(self, record: Record) -> None:
        """Place it, or say it again. Raises GpushareError."""
        self._daemon().place(record.placement, record.body)

    def lock(self, uid: str) -> threading.Lock:
        """Held while something of the claim is made or removed."""
        return self._locks[hash(uid) % LOCKS]

    def follow(self, record: Record, pods: Sequence[str]) -> None:
        """Other pods have the claim now. Raises GpushareError or OSError."""
        paths = sorted(cgroups.of_pods(pods, self._folders.cgroups).values())
        if paths and paths != record.body["cgroups"]:
            record = replace(record, body={**record.body, "cgroups": paths})
            self.place(record)
            self.records.put(record)

    # ---- the first time --------------------------------------------------------------------------------

    def _begin(self, uid: str, namespace: str, name: str, *, known: Record | None) -> Record:
        """Its first record, or another one in place of the known one, whose placement is over."""
        if not is_uid(uid):
            raise UsageError(f"{uid[:60]!r} is not the uid of a claim")
        found = self.read(namespace, name)
        if found["metadata"]["uid"] != uid:
            raise NoSuchJob(f"claim {namespace}/{name} is another one now: its uid is not {uid}", code="no_such_claim")
        allocated = claim.read(found, self._node)
        every = self._daemon().status()["gpus"]
        held = attach.with_gpus(allocated, self._others(), every) if allocated.attaches else allocated
        gpus = claim.gpus_of(held, every)
        body = {**claim.body(held, gpus), "job": self.handover.job(found), "cgroups": self._cgroups(allocated)}
        record = replace(self._record(found, allocated, gpus, body), done=known is not None and known.done)
        self._free(uid)  # if its record was lost
        self.records.put(record)
        return record

    def _record(self, found: Mapping[str, Any], one: Allocated, gpus: Sequence[Gpu], body: Mapping[str, Any]) -> Record:
        more = {} if one.budget.visible is None else {"GPUSHARE_VISIBLE": one.budget.visible}
        ours = self._inside.driver == "nvidia" and not one.attaches  # else nobody or NVIDIA's driver brings the files
        nvidia = nvidia_devices(gpus, self._folders.nvidia) if ours else []
        if nvidia is None:
            more["NVIDIA_VISIBLE_DEVICES"] = ",".join(body["gpus"])
        theirs = dict(zip((device.name for device in one.devices), nvidia or (), strict=False))
        devices = [
            {
                "request": device.request,
                "pool": device.pool,
                "device": device.name,
                "cdi": [*([theirs[device.name]] if device.name in theirs else []), cdi.device_id(one.uid)],
            }
            for device in one.devices
        ]
        return Record(
            uid=one.uid,
            namespace=one.namespace,
            name=one.name,
            placement=f"{placement_of(one.uid)}{secrets.token_hex(4)}",
            body=body,
            spec=self.handover.spec(found, one.uid, body, more),
            devices=devices,
        )

    def _cgroups(self, one: Allocated) -> list[str]:
        found = cgroups.of_pods(one.pods, self._folders.cgroups)
        if not found:
            raise UsageError(
                f"{one}: no cgroup of its pod is on this node",
                code="no_cgroup",
                hint="the kubelet needs cgroupsPerQOS: true, and gpushare-dra the host's /sys/fs/cgroup",
            )
        return sorted(found.values())

    # ---- the end ---------------------------------------------------------------------------------------

    def _remove(self, uid: str, within: float = LEAVES_WITHIN) -> None:
        self._free(uid, within)
        self.handover.take(uid)
        self.records.drop(uid)

    def _free(self, uid: str, within: float = LEAVES_WITHIN) -> None:
        """No placement of the claim is left."""
        for placed in self._daemon().placements():
            if placed["id"].startswith(placement_of(uid)):
                self._displace(placed["id"], placed["attempt"], within)

    def _displace(self, id: str, attempt: int, within: float) -> None:
        deadline, pause = time.monotonic() + within, 0.002
        while True:
            try:
                placed = self._daemon().displace(id, attempt)
            except NoSuchJob:
                return
            if time.monotonic() > deadline:
                pids = ", ".join(map(str, placed["pids"][:8])) or "unknown"
                raise Refused(f"programs of {id} still run (pids: {pids})", code="attempt_runs")
            time.sleep(pause)
            pause = min(2 * pause, AGAIN)


def words(error: Exception, again: str) -> str:
    """In one line, as the pod's events show it. `again`: what follows where there was no room."""
    if isinstance(error, OSError):
        return str(error)
    if not isinstance(error, GpushareError):
        return f"gpushare-dra failed ({type(error).__name__}); its log says more"
    facts = ", ".join(f"{label}: {text}" for label, text in error.facts)
    hint = again if error.code == "not_admitted" else error.hint
    return "; ".join(filter(None, (error.message, facts, hint)))
