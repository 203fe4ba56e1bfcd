"""Jobs and GPUs as the API shows them (gpushare/api.py has the types), read from the core, the pages and the registry.

Words are read from the pages for each request: the core's figures may be a second old.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator

from gpushare import api, job_spec
from gpushare.printable import shortened
from gpushare.reclaim_steps import ReclaimStep
from gpushared.core import health
from gpushared.core.instructions import Record
from gpushared.core.model import Gpu, Job, Reservation, Share, Submission
from gpushared.core.node import NodeState
from gpushared.core.suspension import SuspendState
from gpushared.core.visibility import OPERATOR, Viewer
from gpushared.gpus.foreign_processes import foreign_processes
from gpushared.jobs.registry import JobRecord, JobState
from gpushared.runtime.shell import Shell
from gpushared.system.processes import is_stopped

COMMAND = 1000
"""Characters of a command line in the history."""


def clock_offset() -> float:
    """Seconds to add to the core's clock for the system's time."""
    return time.time() - time.monotonic()


USUAL_CONTEXT = 300 * 2**20
"""Bytes. The least that a CUDA context takes on a data-centre GPU, shown until one has been measured."""


class Views:
    """Renders; changes nothing."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell

    # ---- jobs --------------------------------------------------------------------------------------

    def job(self, record: JobRecord, viewer: Viewer) -> api.Job:
        job = self.shell.core.jobs.get(record.id)
        spec = job.spec if job is not None else record.spec
        shown: api.Job = {
            "id": record.id,
            **job_spec.view(spec),  # type: ignore[typeddict-item]
            "state": self._state(record, job),
            "since": record.started,
            "turns": self.shell.turns.on,
            "longest_grace": self.shell.core.policy.longest_grace,
            "longest_protection": self.shell.core.policy.longest_protection,
            "gpus": [],
            "processes": [],
            "outcome": self.outcome(record, viewer) if record.state is JobState.ENDED else None,
        }
        if job is not None:
            self._fill(shown, record, job, self.shell.core)
            if shown["state"] == "running" and any(gpu["loan"] for gpu in shown["gpus"]):
                shown["state"] = "borrowing"
            if shown["state"] in ("running", "borrowing") and self._is_stopped(record, shown):
                shown["state"] = "stopped"
        elif record.ending.last_seen is not None:
            gpus: list[api.JobGpu] = record.ending.last_seen["gpus"]
            shown["gpus"] = [{**gpu, "peak": record.totals.peak.get(gpu["uuid"], 0)} for gpu in gpus]
        return shown if viewer.may_see(spec.uid) else _veil(shown, viewer)

    def picture(self, record: JobRecord) -> api.Job:
        """The job for the history: as its user sees it, but with the mentions in its outcome."""
        shown = self.job(record, OPERATOR)
        shown["command"] = shortened(shown["command"], COMMAND)
        if shown["outcome"] is not None:
            shown["outcome"] = record.outcome(0)  # type: ignore[typeddict-item]
        return shown

    def outcome(self, record: JobRecord, viewer: Viewer) -> api.Outcome:
        alive = sum(self.shell.credit.refusals(client.id) for client in self.shell.clients.of_job(record.id))
        return viewer.facts(record.outcome(alive))  # type: ignore[return-value]

    def jobs(self, viewer: Viewer, *, ended: bool = False, only: Collection[str] | None = None) -> Iterator[api.Job]:
        """Each as it is when it is taken from the iterator. `only`: those with these ids."""
        found = self.shell.registry.all() if ended else self.shell.registry.live()
        return (self.job(record, viewer) for record in found if only is None or record.id in only)

    def _state(self, record: JobRecord, job: Job | None) -> str:
        if record.state is not JobState.RUNNING or job is None:
            return record.state
        if job.suspension is not None:
            return "asked_back" if job.suspension.state is SuspendState.STUCK else job.suspension.state
        if job.sleep is not None:
            return job.sleep.state
        if job.reclaims:
            return "asked_back" if any(one.step > ReclaimStep.HOOK for one in job.reclaims.values()) else "trimming"
        if job.spec.observe:
            return "observed"
        if self.shell.core.has_claim(job.id):
            return "waiting"
        return "running" if job.aside is None else "idle"

    def _is_stopped(self, record: JobRecord, shown: api.Job) -> bool:
        """Whether all its processes that have opened a GPU are stopped (SIGSTOP); if none has, its program."""
        pids = [one["pid"] for one in shown["processes"]]
        if not pids and record.main is not None:
            pids = [record.main.pid]
        return bool(pids) and all(map(is_stopped, pids))

    def _fill(self, shown: api.Job, record: JobRecord, job: Job, core: NodeState) -> None:
        for id in job.bounds:
            shown["gpus"].append(self._job_on(core.gpus[id], record, job, core))
        for process in sorted(job.processes):
            found = core.processes[process]
            usage = {gpu: self._used(share) + share.overhead for gpu, share in found.shares.items()}
            client = self.shell.clients.get(process)
            copies = client.page.driver_copies() if client is not None else 0
            shown["processes"].append(
                {"pid": found.pid, "command": found.command, "gpus": usage, "driver_copies": copies}
            )

    def _job_on(self, gpu: Gpu, record: JobRecord, job: Job, core: NodeState) -> api.JobGpu:
        shares = core.shares_of(job, gpu.id)
        used = {share.process: self._used(share) for share in shares}
        accounted, overhead = sum(used.values()), sum(share.overhead for share in shares)
        usage, bounds = accounted + overhead + job.observed.get(gpu.id, 0), job.bounds[gpu.id]
        guessed = sum(map(core.guessed, shares))
        record.totals.note_peak(gpu.id, usage - guessed)
        if len(shares) == 1:
            record.totals.note_peak(gpu.id, self.shell.credit.peak(shares[0]) - guessed)
        published = core.published(gpu.id, [share.process for share in shares])
        own = {share.process: 0 if share.parked else max(0, share.credit - used[share.process]) for share in shares}
        grantable = 0 if gpu.health.lost else max((published[one].grantable + own[one] for one in published), default=0)
        if not shares:
            free = max(0, gpu.free) + core.revocable_on(gpu)
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
            "loan": 0 if job.spec.observe else max(0, usage - bounds.request),
            "credit": sum(share.credit for share in shares),
            "peak": record.totals.peak.get(gpu.id, 0),
            "grantable": grantable,
            "context": core.context_cost(gpu, USUAL_CONTEXT),
            "suspended": sum(one.used + one.overhead for one in (share.parked for share in shares) if one is not None),
            "gpu_time": record.totals.gpu_time.get(gpu.id, 0.0),
            "turn": self.shell.turns.turn_of(job, gpu.id),
            "turn_time": self.shell.turns.time_of(job.id, gpu.id),
            "computing": record.totals.computing.get(gpu.id) if shares or gpu.id in job.observed else None,
            "health": str(health.condition_of(gpu)),
        }

    def _used(self, share: Share) -> int:
        if share.parked is not None:
            return share.used  # the page has what it will use again
        return self.shell.credit.used_by((share.process,), share.gpu).get(share.process, share.used)

    # ---- GPUs --------------------------------------------------------------------------------------

    def gpus(self, viewer: Viewer | None = None) -> list[api.Gpu]:
        """All GPUs. With a viewer also their foreign processes, which are looked up one by one."""
        found = sorted(self.shell.core.gpus.values(), key=lambda gpu: (gpu.index, gpu.id))
        return [self._gpu(gpu, viewer) for gpu in found]

    def _gpu(self, gpu: Gpu, viewer: Viewer | None) -> api.Gpu:
        core = self.shell.core
        by_job = self.shell.credit.usage_by_job(gpu)
        usage = sum(by_job.values())
        lent = sum(max(0, amount - core.jobs[job].bounds[gpu.id].request) for job, amount in by_job.items())
        returning = gpu.returning_total
        return {
            "uuid": gpu.id,
            "index": gpu.index,
            "name": gpu.name,
            "total": gpu.total,
            "reserve": gpu.reserve,
            "capacity": gpu.capacity,
            "requested": core.requested(gpu),
            "usage": usage,
            "lent": lent,
            "free": 0 if gpu.health.lost else max(0, gpu.capacity - usage - gpu.unmanaged - returning),
            "unmanaged": gpu.unmanaged,
            "unmanaged_processes": self._foreign_processes(gpu, viewer) if viewer is not None else [],
            "returning": returning,
            "health": health_of(gpu),
        }

    def _foreign_processes(self, gpu: Gpu, viewer: Viewer) -> list[api.UnmanagedProcess]:
        sample = self.shell.gpus.samples.get(gpu.id)
        processes = self.shell.core.processes
        known = {processes[share.process].pid for share in gpu.shares.values() if share.process > 0}
        known |= {record.pid for record in gpu.returning.values()}
        found = foreign_processes(sample.by_pid if sample is not None else None, known)
        for one in found:
            job = None if one["job"] is None else self.shell.core.jobs.get(one["job"])
            if job is not None and job.spec.observe and job.spec.uid == one["uid"]:
                one["reason"] = "observed"
            if not viewer.may_see(one["uid"]):
                one["command"] = "-"
            if not viewer.sees_user(one["uid"]):
                one["user"], one["uid"] = "-", -1
        return found

    def reservation(self, one: Reservation, viewer: Viewer) -> api.Reservation:
        core = self.shell.core
        offset = clock_offset()
        uid = one.spec.uid
        return {
            "id": one.id,
            "name": one.spec.name if viewer.sees_name(uid) else "-",
            "user": one.spec.user if viewer.sees_user(uid) else "-",
            "uid": uid if viewer.sees_user(uid) else -1,
            "since": one.since + offset,
            "until": None if one.until is None else one.until + offset,
            "gpus": [
                {
                    "uuid": gpu,
                    "index": core.gpus[gpu].index,
                    "amount": amount,
                    "remainder": core.remainder(one, gpu),
                }
                for gpu, amount in one.amounts.items()
            ],
            "jobs": [job.id for job in core.jobs.values() if job.spec.reservation == one.id and viewer.may_see(uid)],
        }

    # ---- waiting -----------------------------------------------------------------------------------

    def waiting(self, viewer: Viewer, job: str | None = None) -> Iterator[api.Waiting]:
        """What waits, as far as the viewer may see it; of one job, if one is named."""
        now, offset = time.monotonic(), clock_offset()

        def wanted(one: Job | Submission) -> bool:
            id = one.id if isinstance(one, Job) else one.job
            return job in (None, id) and viewer.sees_name(one.spec.uid)

        found = self.shell.core.waits(now, wanted)
        return (
            {
                "job": one.job,
                "name": one.name,
                "gpu": one.gpu,
                "since": one.since + offset,
                "until": one.until + offset,
                "code": told.code.value,
                "message": told.message,
                "facts": [list(fact) for fact in told.facts],
                "hint": told.hint,
                "data": dict(told.data),
            }
            for one, told in ((one, viewer.told(one.reason)) for one in found)
        )

    def pressure(self) -> list[api.GpuPressure]:
        core, now = self.shell.core, time.monotonic()
        found: list[api.GpuPressure] = []
        for gpu in sorted(core.gpus.values(), key=lambda gpu: (gpu.index, gpu.id)):
            stalls = core.pressure(gpu.id, now)
            found.append({"uuid": gpu.id, "index": gpu.index, **stalls})  # type: ignore[typeddict-item]
        return found

    # ---- records -----------------------------------------------------------------------------------

    def story(self, record: JobRecord, viewer: Viewer) -> Iterator[api.Record]:
        """The core forgets a job's story with the job; the node's records outlive it for a while."""
        own = self.shell.core.story(record.id)
        noted = [one for one in self.shell.core.records if one.job == record.id]
        before = [one for one in noted if one.time < own[0].time] if own else noted  # it queued
        return _records([*before, *own], viewer)

    def may_read(self, viewer: Viewer) -> Callable[[Record], bool]:
        """Only records of jobs whose names the viewer may see: records tell what happens in a job."""
        return lambda one: one.uid is None or viewer.sees_name(one.uid)

    def readable(self, viewer: Viewer, last: int | None = None) -> list[Record]:
        found = list(filter(self.may_read(viewer), self.shell.core.records))
        return found if last is None else found[len(found) - min(last, len(found)) :]

    def records(self, viewer: Viewer, found: Iterable[Record]) -> Iterator[api.Record]:
        return _records(found, viewer)


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


def _records(found: Iterable[Record], viewer: Viewer) -> Iterator[api.Record]:
    offset = clock_offset()
    return (
        {
            "time": one.time + offset,
            "name": one.name,
            "event": one.event,
            "gpu": one.gpu,
            "job": one.job,
            "text": viewer.words(one.text),
            "facts": viewer.facts(one.facts),
        }
        for one in found
    )


def _veil(shown: api.Job, viewer: Viewer) -> api.Job:
    """Another user's job: its memory is shown, what it does is not."""
    uid = shown["uid"]
    if not viewer.sees_name(uid):
        shown["name"] = "-"
    if not viewer.sees_user(uid):
        shown["user"], shown["uid"] = "-", -1
    if shown["outcome"] is not None and not viewer.sees_name(uid):
        shown["outcome"] |= {
            "exit_code": None,
            "signal": None,
            "killed": None,
        }  # as its records, hidden too
    shown["command"] = []
    for process in shown["processes"]:
        process["command"] = "-"
    return shown
