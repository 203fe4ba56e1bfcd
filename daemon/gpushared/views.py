"""Jobs and GPUs as the API shows them (gpushare/api.py has the types), read from the core, the pages and the book.

Words are read from the pages at the moment of asking: what the core last saw of them may be a second old.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from gpushare import api
from gpushared import health, waits
from gpushared.core import NodeState
from gpushared.instructions import Record
from gpushared.jobs import Entry
from gpushared.outsiders import outsiders
from gpushared.shell import Shell
from gpushared.state import Gpu, Job, Reservation, Rung, Share


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who looks, and how much of other users' jobs is shown."""

    uid: int
    reveal: str
    admin: bool = False

    def may_see(self, uid: int) -> bool:
        return self.admin or self.uid in (0, uid)


def clock_offset() -> float:
    """From the core's clock to the one on the wall."""
    return time.time() - time.monotonic()


class Views:
    """Renders; changes nothing."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell

    # ---- jobs --------------------------------------------------------------------------------------

    def job(self, entry: Entry, viewer: Viewer, core: NodeState | None = None) -> api.Job:
        """With another core: the job as it would be there (a dry run)."""
        job = (core or self.shell.core).jobs.get(entry.id)
        spec = job.spec if job is not None else entry.spec
        shown: api.Job = {
            "id": entry.id,
            "name": spec.name,
            "user": spec.user,
            "uid": spec.uid,
            "command": list(spec.command),
            "state": self._state(entry, job),
            "since": entry.started,
            "priority": spec.priority,
            "lend": spec.lend,
            "grace": spec.grace,
            "on_reclaim": list(spec.on_reclaim),
            "request_source": spec.request_source,
            "limit_source": spec.limit_source,
            "gpus": [],
            "processes": [],
            "outcome": self.outcome(entry) if entry.state == "ended" else None,
        }
        if job is not None:
            self._fill(shown, entry, job, core or self.shell.core)
            if shown["state"] == "running" and any(gpu["loan"] for gpu in shown["gpus"]):
                shown["state"] = "borrowing"
        elif entry.last_seen is not None:
            shown["gpus"] = entry.last_seen["gpus"]
        return shown if viewer.may_see(spec.uid) else _veil(shown, viewer)

    def remember(self, entry: Entry) -> None:
        """Keep the last picture of a job that the core is about to forget."""
        job = self.shell.core.jobs.get(entry.id)
        if job is not None:
            shown = self.job(entry, Viewer(0, "name"))
            entry.last_seen = {"gpus": shown["gpus"]}

    def outcome(self, entry: Entry) -> api.Outcome:
        alive = sum(self.shell.enforcer.refusals(client.id) for client in self.shell.clients.of_job(entry.id))
        return entry.outcome(alive)  # type: ignore[return-value]

    def jobs(self, viewer: Viewer) -> list[api.Job]:
        return [self.job(entry, viewer) for entry in self.shell.book.live()]

    def _state(self, entry: Entry, job: Job | None) -> str:
        if entry.state != "running" or job is None:
            return entry.state
        if job.reclaims:
            return "asked_back" if any(one.rung > Rung.TRIM for one in job.reclaims.values()) else "trimming"
        claims = any(ask.claim for ask in self.shell.core.state.asks.values() if ask.job == job.id)
        return "waiting" if claims else "running"

    def _fill(self, shown: api.Job, entry: Entry, job: Job, core: NodeState) -> None:
        for id in job.bounds:
            shown["gpus"].append(self._job_on(core.gpus[id], entry, job, core))
        for process in sorted(job.processes):
            found = core.processes[process]
            usage = {gpu: self._used(share) + share.overhead for gpu, share in found.shares.items()}
            shown["processes"].append({"pid": found.pid, "command": found.command, "gpus": usage})

    def _job_on(self, gpu: Gpu, entry: Entry, job: Job, core: NodeState) -> api.JobGpu:
        shares = core.state.shares_of(job, gpu.id)
        used = {share.process: self._used(share) for share in shares}
        accounted, overhead = sum(used.values()), sum(share.overhead for share in shares)
        usage, bounds = accounted + overhead, job.bounds[gpu.id]
        entry.note_peak(gpu.id, usage)
        if len(shares) == 1:
            entry.note_peak(gpu.id, overhead + self.shell.enforcer.peak(shares[0].process, gpu.id))
        published = core.published(gpu.id, [share.process for share in shares])
        grantable = max((one.grantable for one in published.values()), default=0)
        if not shares:
            free = max(0, gpu.free) + sum(core.state.revocable(share) for share in gpu.shares.values())
            grantable = 0 if gpu.health.lost else min(bounds.limit, max(bounds.request, free))
        return {
            "uuid": gpu.id,
            "index": gpu.index,
            "name": gpu.name,
            "total": gpu.total,
            "request": bounds.request,
            "limit": bounds.limit,
            "usage": usage,
            "accounted": accounted,
            "overhead": overhead,
            "loan": max(0, usage - bounds.request),
            "credit": sum(share.credit for share in shares),
            "peak": entry.peak.get(gpu.id, 0),
            "grantable": grantable,
            "health": str(health.condition_of(gpu)),
        }

    def _used(self, share: Share) -> int:
        return self.shell.enforcer.used_by((share.process,), share.gpu).get(share.process, share.used)

    # ---- GPUs --------------------------------------------------------------------------------------

    def gpus(self, viewer: Viewer | None = None) -> list[api.Gpu]:
        """With the processes that are outside of gpushare if somebody looks: they are looked up one by one."""
        found = sorted(self.shell.core.gpus.values(), key=lambda gpu: (gpu.index, gpu.id))
        return [self._gpu(gpu, viewer) for gpu in found]

    def _gpu(self, gpu: Gpu, viewer: Viewer | None) -> api.Gpu:
        state = self.shell.core.state
        used = self.shell.enforcer.used_by(gpu.shares, gpu.id)
        by_job: dict[str, int] = {}
        for share in gpu.shares.values():
            usage_of_share = used.get(share.process, share.used) + share.overhead
            by_job[share.job] = by_job.get(share.job, 0) + usage_of_share
        usage = sum(by_job.values())
        lent = sum(max(0, amount - state.jobs[job].bounds[gpu.id].request) for job, amount in by_job.items())
        returning = gpu.returning_total
        return {
            "uuid": gpu.id,
            "index": gpu.index,
            "name": gpu.name,
            "total": gpu.total,
            "reserve": gpu.reserve,
            "capacity": gpu.capacity,
            "requested": gpu.requested + state.reserved(gpu.id),
            "usage": usage,
            "lent": lent,
            "free": 0 if gpu.health.lost else max(0, gpu.capacity - usage - gpu.unmanaged - returning),
            "unmanaged": gpu.unmanaged,
            "unmanaged_processes": self._outsiders(gpu, viewer) if viewer is not None else [],
            "returning": returning,
            "health": health_of(gpu),
        }

    def _outsiders(self, gpu: Gpu, viewer: Viewer) -> list[api.UnmanagedProcess]:
        sample = self.shell.gpus.samples.get(gpu.id)
        processes = self.shell.core.state.processes
        known = {processes[share.process].pid for share in gpu.shares.values() if share.process > 0}
        known |= {entry.pid for entry in gpu.returning.values()}
        found = outsiders(sample.by_pid if sample is not None else None, known)
        for one in found:
            if not viewer.may_see(one["uid"]):
                one["command"] = "-"
                if viewer.reveal == "none":
                    one["user"], one["uid"] = "-", -1
        return found

    def reservation(self, one: Reservation, viewer: Viewer | None = None) -> api.Reservation:
        state = self.shell.core.state
        offset = clock_offset()
        hidden = viewer is not None and not viewer.may_see(one.spec.uid)
        return {
            "id": one.id,
            "name": "-" if hidden and viewer is not None and viewer.reveal != "name" else one.spec.name,
            "user": "-" if hidden and viewer is not None and viewer.reveal == "none" else one.spec.user,
            "uid": -1 if hidden and viewer is not None and viewer.reveal == "none" else one.spec.uid,
            "since": one.since + offset,
            "until": None if one.until is None else one.until + offset,
            "gpus": [
                {
                    "uuid": gpu,
                    "index": state.gpus[gpu].index,
                    "amount": amount,
                    "remainder": state.remainder(one, gpu),
                }
                for gpu, amount in one.amounts.items()
            ],
            "jobs": [job.id for job in state.jobs.values() if job.spec.reservation == one.id and not hidden],
        }

    # ---- waiting -----------------------------------------------------------------------------------

    def waiting(self, viewer: Viewer, job: str | None = None) -> list[api.Waiting]:
        """What waits, as far as the viewer may read about it; of one job, if one is named."""
        now, offset = time.monotonic(), clock_offset()
        found = waits.all_of(self.shell.core.state, now)
        return [
            {
                "job": one.job,
                "name": one.name,
                "gpu": one.gpu,
                "since": one.since + offset,
                "until": one.until + offset,
                "code": one.reason.code.value,
                "message": one.reason.message,
                "facts": [list(fact) for fact in one.reason.facts],
                "hint": one.reason.hint,
                "data": dict(one.reason.data),
            }
            for one in found
            if job in (None, one.job) and (viewer.reveal == "name" or viewer.may_see(one.uid))
        ]

    def pressure(self) -> list[api.GpuPressure]:
        core, now = self.shell.core, time.monotonic()
        found: list[api.GpuPressure] = []
        for gpu in sorted(core.gpus.values(), key=lambda gpu: (gpu.index, gpu.id)):
            stalls = core.pressure(gpu.id, now)
            found.append({"uuid": gpu.id, "index": gpu.index, **stalls})  # type: ignore[typeddict-item]
        return found

    # ---- records -----------------------------------------------------------------------------------

    def story(self, entry: Entry) -> list[api.Record]:
        """The core forgets a job's story with the job; the node's records outlive it for a while."""
        own = self.shell.core.story(entry.id)
        noted = [one for one in self.shell.core.records if one.job == entry.id]
        before = [one for one in noted if one.time < own[0].time] if own else noted  # it queued
        return _records([*before, *own])

    def records(self, viewer: Viewer) -> list[api.Record]:
        return self.readable(self.shell.core.records, viewer)

    def readable(self, records: Iterable[Record], viewer: Viewer) -> list[api.Record]:
        """Those of these that the viewer may read."""
        return _records(one for one in records if self._may_read(one, viewer))

    def _may_read(self, record: Record, viewer: Viewer) -> bool:
        """Texts name jobs: those of others are read only where names may be seen."""
        return record.uid is None or viewer.reveal == "name" or viewer.may_see(record.uid)


def health_of(gpu: Gpu) -> api.Health:
    shown: list[api.Ailment] = [
        {
            "state": str(one.condition),
            "cause": one.cause,
            "text": one.text,
            "hint": one.hint,
            "facts": dict(one.data),
        }
        for one in health.all_of(gpu)
    ]
    return {"state": str(health.condition_of(gpu)), "shortfall": health.shortfall(gpu), "ailments": shown}


def _records(found: Iterable[Record]) -> list[api.Record]:
    offset = clock_offset()
    return [
        {
            "time": one.time + offset,
            "name": one.name,
            "event": one.event,
            "gpu": one.gpu,
            "job": one.job,
            "text": one.text,
            "facts": dict(one.facts),
        }
        for one in found
    ]


def _veil(shown: api.Job, viewer: Viewer) -> api.Job:
    """Another user's job: how much memory it takes is everybody's business, what it does is not."""
    if viewer.reveal != "name":
        shown["name"] = "-"
    if viewer.reveal == "none":
        shown["user"], shown["uid"] = "-", -1
    shown["command"] = []
    for process in shown["processes"]:
        process["command"] = "-"
    return shown
