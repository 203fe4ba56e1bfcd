"""Signals to jobs: reclaim steps that the core orders, and `gpushare stop`."""

from __future__ import annotations

import signal
from collections.abc import Mapping

from gpushare.history import Stop
from gpushared.clients.clients import Clients
from gpushared.core import instructions as do
from gpushared.core.events import Event, LeftAlone
from gpushared.core.visibility import OPERATOR
from gpushared.gpus.foreign_processes import open_unhooked
from gpushared.jobs.lifecycle import JobLifecycle
from gpushared.jobs.registry import JobRecord, killed_facts, stop
from gpushared.system.logs import facts, log
from gpushared.system.processes import Process, Sent


class Stopper:
    """Signals all processes of a job, after telling its wrapper why."""

    def __init__(self, jobs: JobLifecycle, clients: Clients) -> None:
        self._jobs = jobs
        self._clients = clients

    def terminate(self, wish: do.Terminate) -> Event | None:
        return self._reclaim(wish, "asked_back", signal.SIGTERM)

    def kill(self, wish: do.Kill) -> Event | None:
        return self._reclaim(wish, "killed", signal.SIGKILL)

    def _reclaim(self, wish: do.Terminate | do.Kill, kind: str, number: signal.Signals) -> Event | None:
        """The notice comes first: the wrapper should know why before its child is gone."""
        record = self._jobs.registry.get(wish.job)
        if record is None:
            return None
        self._jobs.told_to_end(record, Stop(killed_facts(wish.reason), last=number is signal.SIGKILL))
        self._jobs.tell(record, kind, wish.reason, with_facts=True)
        clients = [client for client in map(self._clients.get, wish.processes) if client is not None]
        found = (open_unhooked(-id, record.id, self._jobs.placed) for id in wish.processes if id < 0)
        unhooked = [unhooked for unhooked in found if unhooked is not None]
        ids = {client.process: client.id for client in clients} | {unhooked: -unhooked.pid for unhooked in unhooked}
        # An allocation that waits for a claim would delay the program's signal handler.
        sent = stop(record, list(ids), number)
        for process in unhooked:
            process.close()
        why, reached = OPERATOR.words(wish.reason.message), list(sent.values()).count(Sent.REACHED)
        log.info(kind, extra=facts(**record.who, processes=reached, reason=why))
        left_alone = _left_alone(record, sent, ids)
        if left_alone is not None and not reached:
            self._jobs.told_to_end(record, None)  # its end is not a reclaim's then
        return left_alone

    def stop_job(self, record: JobRecord, by: str, *, now: bool) -> tuple[int, LeftAlone | None]:
        """SIGTERM, or SIGKILL if it is to be now, to the job's program and its processes with pages, because the user
        `by` wants it. Returns how many were reached, and those that belong to another user and were left alone."""
        number = record.ending.stopping = signal.SIGKILL if now else signal.SIGTERM
        record.notices.put(
            "stopped", f"{by} stops this job with {number.name} (`gpushare stop`)", {"signal": int(number)}
        )
        clients = self._clients.of_job(record.id)
        processes = [client.process for client in clients]
        if record.main is not None and not any(record.main.same(one) for one in processes):
            processes.append(record.main)
        sent = stop(record, processes, number)
        reached = list(sent.values()).count(Sent.REACHED)
        log.info(
            "stopped", extra=facts(job=record.id, name=record.spec.name, by=by, signal=number.name, processes=reached)
        )
        return reached, _left_alone(record, sent, {client.process: client.id for client in clients})


def _left_alone(record: JobRecord, sent: Mapping[Process, Sent], ids: Mapping[Process, int]) -> LeftAlone | None:
    """None: nobody was."""
    spared = [process for process, result in sent.items() if result is Sent.NOT_THEIRS]
    if not spared:
        return None
    log.warning("left alone", extra=facts(**record.who, pids=[process.pid for process in spared]))
    return LeftAlone(record.id, {process.pid: ids.get(process) for process in spared})
