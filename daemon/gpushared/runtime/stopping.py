"""A job that somebody wants to end: `gpushare stop`."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from gpushared.jobs import registry
from gpushared.system.logs import facts, log
from gpushared.system.processes import Sent

if TYPE_CHECKING:
    from gpushared.jobs.registry import JobRecord
    from gpushared.runtime.shell import Shell


def stop_job(shell: Shell, record: JobRecord, by: str, *, now: bool) -> tuple[int, int]:
    """SIGTERM, or SIGKILL if it is to be now, to the job's program and its processes with pages.

    How many were reached, and how many belong to another user by now and are left alone.

    The wrapper is told first, so that it knows why its program ends.
    """
    number = record.stopping = signal.SIGKILL if now else signal.SIGTERM
    record.notify("stopped", f"{by} stops this job with {number.name} (`gpushare stop`)", {"signal": int(number)})
    processes = [client.process for client in shell.clients.of_job(record.id)]
    if record.main is not None and not any(record.main.same(one) for one in processes):
        processes.append(record.main)
    sent = list(registry.stop(record, processes, number).values())
    reached, spared = sent.count(Sent.REACHED), sent.count(Sent.NOT_THEIRS)
    log.info("stopped", extra=facts(job=record.id, name=record.spec.name, by=by, signal=number.name, processes=reached))
    return reached, spared
