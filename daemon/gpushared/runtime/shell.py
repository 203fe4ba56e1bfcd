"""The running node: the core's loop, and everything outside the core that its instructions act on.

This file only puts the parts together. core_loop.py feeds events to the core; the *_effects.py files, stopping.py and
jobs/lifecycle.py carry instructions out, a method for each kind.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gpushared.clients.clients import Client, Clients
from gpushared.clients.credit import CreditPages
from gpushared.clients.pages import Pages
from gpushared.clients.turn_words import TurnWords
from gpushared.core import instructions as do
from gpushared.core.events import Event, JobSubmitted, ReservationAsked
from gpushared.core.node import NodeState
from gpushared.gpus.inventory import Inventory
from gpushared.jobs.commits import Commits
from gpushared.jobs.found_state import FoundState
from gpushared.jobs.historian import Historian
from gpushared.jobs.lifecycle import JobLifecycle
from gpushared.jobs.registry import JobRegistry
from gpushared.jobs.state_file import Planned, StateFile
from gpushared.limits.limits import Limits
from gpushared.runtime.asks import INTERNAL
from gpushared.runtime.core_loop import CoreLoop
from gpushared.runtime.credit_effects import CreditEffects
from gpushared.runtime.driver_questions import DriverQuestions
from gpushared.runtime.hook_runners import HookRunners
from gpushared.runtime.process_lifecycle import ProcessLifecycle
from gpushared.runtime.rebuild import Earlier, Outside, rebuild
from gpushared.runtime.record_effects import RecordEffects
from gpushared.runtime.recovery import recover
from gpushared.runtime.stopping import Stopper
from gpushared.runtime.suspenders import Suspenders
from gpushared.runtime.turn_keeper import TurnKeeper
from gpushared.system.epoll import Epoll
from gpushared.system.logs import facts, log


@dataclass(slots=True)
class Traffic:
    """Counts of frames from shims."""

    asks: int = 0
    bad_frames: int = 0


class Shell:
    """The parts of a running node."""

    def __init__(self, core: NodeState, gpus: Inventory, state_file: Path, historian: Historian | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.limits = Limits.make(loop)
        self.epoll = Epoll(loop)
        self.gpus = gpus
        self.historian = historian or Historian()
        self._state_file = StateFile(state_file)
        self.commits = Commits(loop, self._write_state, str(state_file))
        self.credit = CreditPages()
        self.clients = Clients()
        self.registry = JobRegistry(self.epoll, self.limits.bytes)
        self.traffic = Traffic()
        self.core_loop = CoreLoop(core, self._rebuild, self._tell_caller)
        self.jobs = JobLifecycle(self.registry, self.feed, self.historian)
        self.driver = DriverQuestions(
            self.core_loop, gpus, self.credit, self.clients, self.registry, placed=self.jobs.placed
        )
        self.processes = ProcessLifecycle(
            self.core_loop,
            self.credit,
            self.clients,
            jobs=self.jobs,
            driver=self.driver,
            limits=self.limits.users,
            epoll=self.epoll,
        )
        self._credit_effects = CreditEffects(self.core_loop, self.credit, self.clients)
        self._suspenders = Suspenders(self.core_loop, self.credit, self.clients, self.epoll, self.commits.quietly)
        self._credit_effects.host_available = self._suspenders.host_available
        self._turns = TurnKeeper(lambda: self.core, TurnWords(self.credit), self.clients)
        self.stopper = Stopper(self.jobs, self.clients)
        self.records = RecordEffects(self.historian)
        self._hook_runners = HookRunners(self.core_loop, self.epoll, self.commits.quietly)
        self._outside = Outside(gpus, self.jobs, self.clients, self._suspenders, self._hook_runners)
        self.core_loop.effects |= {
            **self._credit_effects.effects(),
            **self._suspenders.effects(),
            **self._hook_runners.effects(),
            do.SampleMemory: self.driver.sample_memory,
            do.JobAdmitted: self.jobs.admitted,
            do.JobRefused: self.jobs.refused,
            do.JobQueued: self.jobs.queued,
            do.JobClosed: self._closed,
            do.Notify: self.jobs.notify,
            do.Terminate: self.stopper.terminate,
            do.Kill: self.stopper.kill,
            do.Persist: self._persist,
            do.Log: self.records.log,
        }

    @property
    def core(self) -> NodeState:
        """The present core. After a failure another one takes its place."""
        return self.core_loop.core

    def feed(self, event: Event) -> None:
        self.core_loop.feed(event)

    def trimmed(self, client: Client) -> None:
        """A process says that it has ended a trim."""
        self._credit_effects.trimmed(client)
        self._suspenders.trimmed(client.job)

    def recover(self, pages: Pages) -> None:
        """Take over what an earlier daemon left. The GPUs must be known already."""
        recover(self.core_loop, self._outside, FoundState(self._state_file.path), pages, self.processes.adopt)
        self._suspenders.open_gates()

    @property
    def outside(self) -> Outside:
        return self._outside

    @property
    def turns(self) -> TurnKeeper:
        """Turns in computing."""
        return self._turns

    def read_words(self, gpus: Iterable[str]) -> None:
        """Tell the core what the words of these GPUs' processes say now."""
        for gpu in gpus:
            self.feed(self._credit_effects.used_seen(gpu))

    def _closed(self, done: do.JobClosed) -> None:
        self._suspenders.end_job(done.job)
        self._hook_runners.end_job(done.job)
        self.jobs.closed(done)

    def end_deserted(self) -> None:
        """End placements that nothing holds any more."""
        for one in self.jobs.placements.deserted(time.monotonic()):
            record = self.registry.get(one.job)
            if record is not None and not self.clients.has_job(one.job):
                log.info("a placement is over: nothing of it lives", extra=facts(placement=one.id, **record.who))
                self.jobs.placements.drop(one.id)
                self.jobs.end(record)

    def end_streams(self) -> None:
        """The daemon goes: followers should look for the next one."""
        self._suspenders.close()
        self._hook_runners.close()
        self.records.end()
        self.registry.end_streams()

    def close(self) -> None:
        """Stop acting. Pages stay where they are, for the next daemon."""
        self.core_loop.close()
        self.commits.close()
        self.processes.close()
        self.registry.close()
        self.epoll.close()
        self.driver.thread.close()

    # ---- the state file ----------------------------------------------------------------------------

    def _persist(self, _: do.Persist) -> None:
        """Soon, not at once: one write for many changes, and no process that starts waits for it."""
        self.commits.soon()

    def _write_state(self, planned: Planned) -> None:
        self._state_file.write(self.core, time.monotonic(), self.registry.live(), planned, self.jobs.placements)

    # ---- failures of the core ----------------------------------------------------------------------

    def _rebuild(self, failed: NodeState) -> None:
        rebuild(self.core_loop, self._outside, Earlier.of(failed))

    def _tell_caller(self, failed: Event | do.Instruction) -> None:
        """Answer a submission with the failure. A reservation that was half made is forgotten: its caller gets no
        answer, which means failure."""
        if isinstance(failed, ReservationAsked | do.ReservationMade):
            self.core.forget_reservation(failed.reservation)
        record = self.registry.get(getattr(failed, "job", ""))
        if isinstance(failed, JobSubmitted | do.JobAdmitted | do.JobRefused) and record is not None:
            record.resolve(INTERNAL)
