"""The shell: feeds events to the core and does what it answers. All that is decided is decided in core/.

One event at a time. What an instruction asks back (LookUsed, SampleMemory, Revoke) is handed in before the next
event is taken, so the core never sees the world move between its question and the answer. Nothing here waits:
a slow driver is asked on a thread, and its answer comes as an event of its own.

A core that fails in the middle of an event may be half changed, and nothing may be lent on its sums. The shell discards
it and makes another from what stands outside it: the pages and their ledger, the registry of jobs, the asks without an
answer (rebuild.py). A daemon that starts does the same with the same events (recovery.py). Every program stays
connected meanwhile. A program that makes the core fail harms only itself: its own ask is answered with the failure. If
the new core is wrong too, the daemon ends at once, as if killed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from gpushare import api
from gpushare._layout import lib
from gpushare.reasons import Code, Reason
from gpushared.clients.clients import Client, Clients
from gpushared.clients.credit import CreditPages
from gpushared.clients.ledger import Terms
from gpushared.core import instructions as do
from gpushared.core.events import (
    AttachAsked,
    BudgetChanged,
    CreditAsked,
    Detached,
    Event,
    GpuFound,
    JobEnded,
    JobSubmitted,
    JobWithdrawn,
    LeftAlone,
    MemorySampled,
    ProcessGone,
    ReservationAsked,
    Revoked,
    Stray,
    TimePassed,
    Unmet,
    UsedSeen,
)
from gpushared.core.instructions import Record
from gpushared.core.node import NodeState
from gpushared.core.visibility import OPERATOR, Viewer
from gpushared.gpus.driver_thread import DriverThread
from gpushared.gpus.foreign_processes import StrayFinder, open_stray
from gpushared.gpus.inventory import GpuInfo, Inventory, Sample
from gpushared.jobs.commits import Commits
from gpushared.jobs.historian import Historian
from gpushared.jobs.registry import JobRecord, JobRegistry, killed_facts, stop
from gpushared.jobs.state_file import Planned, StateFile
from gpushared.limits.backlog import Backlog
from gpushared.limits.byte_budget import ByteBudget
from gpushared.limits.fair_share import FairShare
from gpushared.limits.identities import user_name
from gpushared.limits.user_limits import UserLimits
from gpushared.runtime import rebuild
from gpushared.system.descriptors import DescriptorCloser
from gpushared.system.epoll import Epoll
from gpushared.system.logs import Sparingly, facts, log
from gpushared.system.processes import Sent

PUBLISH_EVERY = 0.005
"""Pages show what could be granted at most this late: a burst of asks costs one round of publishing ..."""
PUBLISH_SHARE = 0.05
"""... or later, for rounds over hundreds of processes are to take no more of the daemon's time than this ..."""
PUBLISH_AT_ONCE = 32
"""... and so many processes in a row, so that nobody's answer waits for a whole round."""

PER_CLIENT = 2
"""Descriptors: a page and a pidfd."""

SILENT_AFTER = 1.0
"""Seconds for which the driver is waited for; what waits for its figures goes on without them."""
WAKE_MARGIN = 0.0005
"""asyncio's clock may be early by its resolution."""

INTERNAL = Reason(
    Code.NOT_FREE, "the daemon failed on this request", hint="this is a bug of gpushare; its log has the details"
)

WITHDRAWN = Reason(Code.NOT_ADMITTED, "the job was withdrawn while it waited for room")

Answered = TypeVar("Answered")
Answer = Callable[[do.Attached | do.Granted | do.Denied, int | None], None]
"""Takes the core's answer to an ask and the number of the line in the page."""


ONLY_TELL = (do.Log, do.Notify, do.JobQueued, do.Publish, do.Persist)
"""Instructions that change nothing the core counts on: where one fails, the core is as right as before."""

ASKS = (AttachAsked, CreditAsked, JobSubmitted, ReservationAsked, BudgetChanged)
"""Events that somebody waits for: who has made the core fail is told so."""

NOT_RETOLD = (*ASKS, UsedSeen, Revoked, MemorySampled, TimePassed)
"""A new core is not told of these again: it looks for itself. It is told of all else that has happened."""

FAILURES = 2
"""An ask that was there at so many failures which were not plainly another's is refused: it may be what the core fails
on."""

PAUSE_AFTER_FAILURE = 1.0
"""Seconds: a core that fails whenever time passes does not keep the daemon from serving."""

SOFTWARE_ERROR = os.EX_SOFTWARE


@dataclass(slots=True)
class Asked:
    """An ask that is not answered."""

    event: AttachAsked | CreditAsked
    answer: Answer
    at: float
    failures: int = 0


@dataclass(slots=True)
class Traffic:
    """What came over the shims' socket."""

    asks: int = 0
    bad_frames: int = 0


class Shell:
    """The core and its hands."""

    def __init__(self, core: NodeState, gpus: Inventory, state_file: Path, historian: Historian | None = None) -> None:
        self.core = core
        self.gpus = gpus
        self.state_file = StateFile(state_file)
        self.loop = asyncio.get_running_loop()
        self.historian = historian or Historian()
        self.epoll = Epoll(self.loop)
        self.credit = CreditPages()
        self.clients = Clients()
        self.registry = JobRegistry()
        self.user_limits, self.fair_share, self.descriptors = UserLimits(), FairShare(self.loop), DescriptorCloser()
        self.byte_budget = ByteBudget(self.user_limits.is_bound)
        self.registry.byte_budget = self.byte_budget
        self.registry.on_wrapper_end = self._wrapper_ended
        self.asked: dict[int, Asked] = {}
        self.traffic = Traffic()
        self.viewer_of: Callable[[int], Viewer] = lambda uid: Viewer(uid, "none")
        """What a user may read; access.py knows."""
        self.picture_of: Callable[[JobRecord], api.Job | None] = lambda _: None
        """How the API shows a job to its user, but for the mentions in its outcome; views.py knows."""
        self.on_silence: Callable[[str], None] = lambda _: None
        """Called with a GPU for which the driver did not answer."""
        self.closing = False
        """The daemon stops: calls that end now are not given up by their callers."""
        self.followers: set[Backlog[Record]] = set()
        """Who wants to hear of each record as it is made."""
        self._stray_finder = StrayFinder()
        self._sparingly = Sparingly(1.0)
        self.errors = 0
        """Events that the core could not handle, instructions that could not be done, callbacks that raised: bugs."""
        self.loop.set_exception_handler(self._note_error)
        self._next_ask = 0
        self._events: deque[Event] = deque()
        self._busy = False
        self._beginning_anew = False
        self._retold: Event | None = None
        self._no_wake_before = 0.0
        self._publish: set[str] = set()
        self._publishing = False
        self._publish_next = 0.0
        self._to_publish: deque[tuple[str, list[int]]] = deque()
        self._publish_cost = 0.0
        self.commits = Commits(self.loop, self._write_notes, str(state_file))
        self._wake: asyncio.TimerHandle | None = None
        self._at_once: do.Instruction | None = None
        self._sampling: set[str] = set()
        self._broken = int(lib.gs_pages_broken())
        self._silent: set[str] = set()
        """Of those the ones for which the driver has not answered for a while."""
        self.driver_thread = DriverThread(self.loop)
        self._hands: dict[type, Callable[[Any], Event | None]] = {
            do.JobAdmitted: self._job_admitted,
            do.JobRefused: self._job_refused,
            do.JobQueued: self._job_queued,
            do.JobClosed: self._job_closed,
            do.Attached: self._attached,
            do.Granted: self._granted,
            do.Denied: self._denied,
            do.Revoke: self._revoke,
            do.LookUsed: self._look_used,
            do.SampleMemory: self._sample_memory,
            do.Publish: self._note_publish,
            do.Trim: self._trim,
            do.Terminate: self._terminate,
            do.Kill: self._kill,
            do.Notify: self._notify,
            do.ReservationMade: self._answered_at_once,
            do.ReservationRefused: self._answered_at_once,
            do.BudgetSet: self._budget_set,
            do.BudgetRefused: self._answered_at_once,
            do.Persist: self._persist_soon,
            do.Log: self._log,
            do.WakeAt: self._wake_at,
        }

    # ---- events ------------------------------------------------------------------------------------

    def feed(self, event: Event) -> None:
        """Hand an event to the core and do what follows from it, now or as soon as the present one is done."""
        if self._busy:
            self._events.append(event)
            return
        self._busy = True
        try:
            self._handle(event)
            while self._events:
                self._handle(self._events.popleft())
        finally:
            self._busy = False

    def _note_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Of a callback: the loop logs it, and goes on."""
        self.errors += "exception" in context
        loop.default_exception_handler(context)

    def restore(self, event: Event) -> None:
        """One of those that a core is made of: at once, before all others."""
        self._handle(event)

    def _handle(self, event: Event) -> None:
        todo = [event]  # it grows while it is worked off
        for one in todo:
            try:
                instructions = self.core.handle(one, time.monotonic())
            except Exception:
                log.exception("the core failed on an event", extra=facts(event=repr(one)[:500]))
                self._begin_anew(one)
                return
            failed: do.Instruction | None = None
            for instruction in instructions:
                try:
                    answer = self._hands[type(instruction)](instruction)
                except Exception:
                    log.exception("an instruction failed", extra=facts(instruction=repr(instruction)[:500]))
                    if isinstance(instruction, ONLY_TELL):
                        self.errors += 1
                    else:
                        failed = instruction  # the others of this turn are right by themselves
                    continue
                if answer is not None:
                    todo.append(answer)
            if failed is not None:
                self._begin_anew(failed)
                return

    # ---- after a failure ---------------------------------------------------------------------------

    def check(self) -> None:
        """Whether the core's sums are right. They always are, or there is a bug: better found than lent on."""
        if self._busy:
            return
        try:
            self.core.validate()
        except Exception:
            log.exception("the core contradicts itself")
            self._busy = True
            try:
                self._begin_anew(None)
                while self._events:
                    self._handle(self._events.popleft())
            finally:
                self._busy = False

    def _begin_anew(self, failed: Event | do.Instruction | None) -> None:
        """Another core in the place of one that has failed on this; None: that was found to be wrong."""
        self.errors += 1
        if self._beginning_anew:
            self._give_up()
        self._beginning_anew = True
        try:
            told = failed is not None and self._tell_of_failure(failed)
            for asked in () if told else self.asked.values():
                asked.failures += 1
            earlier, self.core = self.core, NodeState(self.core.state.policy)
            rebuild.rebuild(self, earlier)
            self.core.validate()
        except Exception:
            log.exception("another core cannot be made")
            self._give_up()
        self._beginning_anew = False
        self._no_wake_before = time.monotonic() + PAUSE_AFTER_FAILURE
        self._tell_again(failed)
        log.warning("the state was rebuilt", extra=facts(jobs=len(self.core.jobs), processes=len(self.core.processes)))

    def _tell_of_failure(self, failed: Event | do.Instruction) -> bool:
        """Whoever waits for just this hears that it has failed. False: nobody does."""
        asked = self.asked.pop(getattr(failed, "ask", 0), None)
        if asked is not None:
            self._refuse_ask(asked)
        if isinstance(failed, ReservationAsked | do.ReservationMade):
            self.core.state.reservations.pop(failed.reservation, None)  # ask_core() will say that there is none
        record = self.registry.get(getattr(failed, "job", ""))
        if isinstance(failed, JobSubmitted | do.JobAdmitted | do.JobRefused) and record is not None:
            _resolve(record, INTERNAL)
        return asked is not None or isinstance(failed, ASKS)

    def _tell_again(self, failed: Event | do.Instruction | None) -> None:
        """What has happened all the same, and the asks: with the time for which they have waited."""
        now = time.monotonic()
        queued = [event for event in self._events if not isinstance(event, AttachAsked | CreditAsked)]
        again: list[Event] = []
        if isinstance(failed, Event) and not isinstance(failed, NOT_RETOLD) and failed is not self._retold:
            self._retold = failed
            again.append(failed)
        for ask, asked in list(self.asked.items()):
            if asked.failures >= FAILURES:
                del self.asked[ask]
                self._refuse_ask(asked)
            else:
                again.append(replace(asked.event, waited=asked.event.waited + now - asked.at))
        self._events = deque([*again, *queued])

    def _refuse_ask(self, asked: Asked) -> None:
        event = asked.event
        try:
            asked.answer(do.Denied(event.ask, event.process, event.gpu, INTERNAL), None)
        except Exception:
            log.exception("an ask could not be answered", extra=facts(event=repr(event)[:500]))

    def _give_up(self) -> None:
        """At once, as if killed: nothing is lent on wrong sums. Who has started this daemon starts the next one; until
        then programs keep what they have."""
        log.critical("the daemon ends: its state cannot be rebuilt")
        os._exit(SOFTWARE_ERROR)

    # ---- asks --------------------------------------------------------------------------------------

    def next_ask(self) -> int:
        self._next_ask += 1
        return self._next_ask

    def ask(self, event: AttachAsked | CreditAsked, answer: Answer) -> None:
        """Feed it, and have its answer called with the core's."""
        self.asked[event.ask] = Asked(event, answer, time.monotonic())
        self.feed(event)

    def _attached(self, done: do.Attached) -> None:
        line = None
        if done.process in self.credit.pages:
            line = self.credit.open_share(done.process, done.gpu, done.credit, done.overhead)
            self._publish_now(done.gpu, (done.process,))
        self._answer(done, line)

    def _granted(self, done: do.Granted) -> None:
        self.credit.grant(done.process, done.gpu, done.size, done.figures)
        self._answer(done, None)

    def _denied(self, done: do.Denied) -> None:
        self._answer(done, None)

    def _answer(self, done: do.Attached | do.Granted | do.Denied, line: int | None) -> None:
        asked = self.asked.get(done.ask)
        if asked is not None:
            asked.answer(done, line)
            self.asked.pop(done.ask, None)

    # ---- words and samples -------------------------------------------------------------------------

    def _revoke(self, wish: do.Revoke) -> Event:
        taken, used = self.credit.revoke(wish.process, wish.gpu, wish.size)
        return Revoked(wish.process, wish.gpu, taken, used)

    def _look_used(self, wish: do.LookUsed) -> Event:
        return self._used_seen(wish.gpu)

    def _used_seen(self, gpu: str) -> UsedSeen:
        shares = self.core.gpus[gpu].shares
        watched = self.core.watched(gpu)
        before = self.credit.stamps(watched, gpu)
        # First who is asking, then what is used: a call that takes its credit in between is seen to have done so.
        asking = self.credit.asking(shares, gpu)
        used = self._used_on(gpu)
        after = self.credit.stamps(watched, gpu)
        moving = frozenset(process for process in watched if before.get(process) != after.get(process))
        clients = (self.clients.get(process) for process in watched)
        ending = frozenset(client.id for client in clients if client is not None and client.process.is_ending())
        return UsedSeen(gpu, used, self.credit.trims_of(shares), asking, ending, moving)

    def _trim(self, wish: do.Trim) -> None:
        for process in wish.processes:
            self.credit.trim(process, wish.gpu, wish.size, wish.within)

    def trimmed(self, client: Client) -> None:
        """The process has ended a trim: whoever waits for its memory should not have to wait for the next look."""
        for gpu in client.page.gpus:
            if gpu in self.core.gpus and self.core.gpus[gpu].asks:
                self.feed(self._used_seen(gpu))

    def _used_on(self, gpu: str) -> dict[int, int]:
        return self.credit.used_by(self.core.gpus[gpu].shares, gpu)

    def _sample_memory(self, wish: do.SampleMemory) -> Event | None:
        """Never here: a driver that hangs would stop all of the daemon."""
        self.sample_soon(wish.gpu)
        return None

    def sample_soon(self, gpu: str) -> None:
        """Ask the driver on a thread; the answer becomes an event. One question per GPU at a time."""
        if gpu in self._silent:
            self._go_on_without(gpu)
        if gpu in self._sampling or gpu not in self.core.gpus:
            return
        self._sampling.add(gpu)
        begun, before = time.monotonic(), self._stamps_on(gpu)
        silence = self.loop.call_later(SILENT_AFTER, self._no_sample_yet, gpu)

        def done(future: asyncio.Future[Sample | None]) -> None:
            silence.cancel()
            self._silent.discard(gpu)
            self._sampling.discard(gpu)
            if future.cancelled() or self.loop.is_closed():
                return
            if future.exception() is not None:
                log.error("sampling failed", extra=facts(gpu=gpu, error=repr(future.exception())))
                return
            self.feed(self._sampled(gpu, begun, before, future.result()))

        self.on_thread(lambda: self.gpus.sample(gpu)).add_done_callback(done)

    def _no_sample_yet(self, gpu: str) -> None:
        self._silent.add(gpu)
        log.warning("the driver does not answer", extra=facts(gpu=gpu, seconds=SILENT_AFTER))
        self._go_on_without(gpu)

    def _go_on_without(self, gpu: str) -> None:
        """Claims do not wait for a driver that hangs."""
        self.feed(self._unsampled(gpu))

    def _unsampled(self, gpu: str) -> Event:
        """It corrects nothing, and ends the wait for a sample."""
        return MemorySampled(gpu, None, None, {})

    def on_thread(self, question: Callable[[], Answered]) -> asyncio.Future[Answered]:
        """Ask the driver something: one question after the other."""
        return self.driver_thread.ask(question)

    def _stamps_on(self, gpu: str) -> dict[int, tuple[int, int]]:
        return self.credit.stamps(self.core.gpus[gpu].shares, gpu)

    def _sampled(self, gpu: str, begun: float, before: dict[int, tuple[int, int]], sample: Sample | None) -> Event:
        if sample is None:
            self.on_silence(gpu)
            return self._unsampled(gpu)
        after = self._stamps_on(gpu)
        for process in after:
            self._tell_unmet(process)
        steady = {process: stamp[0] for process, stamp in after.items() if before.get(process) == stamp}
        self._note_peaks(gpu, {process: used for process, (used, _) in after.items()})
        sample = self.gpus.named(gpu, sample, {self.core.processes[one].pid: used for one, used in steady.items()})
        strays = self._stray_finder.among(gpu, sample.by_pid, self.clients, self.core.jobs)
        self._note_observed(gpu, strays, sample.by_pid or {})
        return MemorySampled(gpu, sample.used, sample.by_pid, steady, strays, sample.busy, begun)

    def _tell_unmet(self, process: int) -> None:
        for gpu, count in self.credit.take_unmet(process).items():
            self.feed(Unmet(process, gpu, count))

    def _note_peaks(self, gpu: str, used: dict[int, int]) -> None:
        """Of a job with one process the page has the exact peak; of several, what the samples meet."""
        shares = self.core.gpus[gpu].shares
        by_job: dict[str, list[int]] = {}
        for process, share in shares.items():
            usage = share.overhead + used.get(process, share.used)
            by_job.setdefault(share.job, []).append(usage)
        for process, share in shares.items():
            if len(by_job[share.job]) == 1:
                by_job[share.job] = [share.overhead + self.credit.peak(process, gpu)]
        for job, amounts in by_job.items():
            record = self.registry.get(job)
            if record is not None:
                record.note_peak(gpu, sum(amounts))

    def _note_observed(self, gpu: str, strays: Mapping[int, Stray], by_pid: Mapping[int, int]) -> None:
        """What NVML shows is all that there is of a job that is only observed."""
        amounts: dict[str, int] = {}
        for pid, stray in strays.items():
            if self.core.jobs[stray.job].spec.observe:
                amounts[stray.job] = amounts.get(stray.job, 0) + by_pid.get(pid, 0)
        for job, amount in amounts.items():
            record = self.registry.get(job)
            if record is not None:
                record.note_peak(gpu, amount)

    # ---- pages -------------------------------------------------------------------------------------

    def _note_publish(self, wish: do.Publish) -> None:
        self._publish.add(wish.gpu)
        if not self._publishing:
            self._publishing = True
            # Not at once: many may ask in the same moment, and the last of them should not wait for this.
            self.loop.call_at(max(self._publish_next, self.loop.time() + PUBLISH_EVERY), self._publish_all)

    def _publish_all(self) -> None:
        """Begin a round."""
        gpus, self._publish = self._publish, set()
        self._publish_cost = 0.0
        for gpu in gpus:
            processes = list(self.core.gpus[gpu].shares)
            for start in range(0, len(processes), PUBLISH_AT_ONCE):
                self._to_publish.append((gpu, processes[start : start + PUBLISH_AT_ONCE]))
        self._publish_some()

    def _publish_some(self) -> None:
        """Go on with it; what is asked for meanwhile is for the next."""
        started = self.loop.time()
        try:
            if self._to_publish:
                self._publish_now(*self._to_publish.popleft())
        finally:
            ended = self.loop.time()
            self._publish_cost += ended - started
            if self._to_publish:
                self.loop.call_soon(self._publish_some)
            else:
                self._publishing = False
                self._publish_next = ended + self._publish_cost / PUBLISH_SHARE
                for gpu in self._publish:
                    self._note_publish(do.Publish(gpu))

    def _publish_now(self, gpu: str, processes: Sequence[int]) -> None:
        for process, figures in self.core.published(gpu, processes).items():
            self.credit.publish(process, gpu, figures)

    # ---- jobs --------------------------------------------------------------------------------------

    def _job_admitted(self, done: do.JobAdmitted) -> None:
        record = self.registry.get(done.job)
        if record is not None:
            record.state = "running"
            self._note_in_history(record)
            _resolve(record, None)

    def _job_refused(self, done: do.JobRefused) -> None:
        record = self.registry.get(done.job)
        if record is not None:
            _resolve(record, done.reason)

    def _job_queued(self, done: do.JobQueued) -> None:
        record = self.registry.get(done.job)
        if record is not None:
            record.queued = True
            self._tell(record, "waiting", done.reason)

    def _job_closed(self, done: do.JobClosed) -> None:
        record = self.registry.get(done.job)
        if record is not None:
            self.registry.end(record)
            self._note_in_history(record)

    def _note_in_history(self, record: JobRecord) -> None:
        picture = self.picture_of(record)
        if picture is not None:
            self.historian.job(record.spec.uid, picture, time.time())

    def _wrapper_ended(self, record: JobRecord) -> None:
        if record.state == "queued":
            self.withdraw(record)
        else:
            self.end_job(record)

    def end_job(self, record: JobRecord) -> None:
        """Its wrapper has said so, or is no more."""
        record.over = True
        picture = self.picture_of(record)
        if picture is not None and picture["gpus"]:
            record.last_seen = {"gpus": picture["gpus"]}  # the core is about to forget it
        self.feed(JobEnded(record.id))

    def withdraw(self, record: JobRecord) -> None:
        """Nobody wants the queued job any more; a submitter that still waits is told."""
        self.feed(JobWithdrawn(record.id))
        self.registry.forget(record)
        _resolve(record, WITHDRAWN)

    def _terminate(self, wish: do.Terminate) -> Event | None:
        return self._stop(wish, "asked_back", signal.SIGTERM)

    def _kill(self, wish: do.Kill) -> Event | None:
        return self._stop(wish, "killed", signal.SIGKILL)

    def _stop(self, wish: do.Terminate | do.Kill, kind: str, number: signal.Signals) -> Event | None:
        """The notice first: the wrapper should know why before its child is gone."""
        record = self.registry.get(wish.job)
        if record is None:
            return None
        record.reclaim = killed_facts(wish.reason)
        self._tell(record, kind, wish.reason, with_facts=True)
        clients = [client for client in map(self.clients.get, wish.processes) if client is not None]
        found = (open_stray(-id, record.id) for id in wish.processes if id < 0)
        strays = [stray for stray in found if stray is not None]
        ids = {client.process: client.id for client in clients} | {stray: -stray.pid for stray in strays}
        # An allocation that waits for a claim of its own would hold the program's signal handler up.
        sent = stop(record, list(ids), number)
        for stray in strays:
            stray.close()
        why, reached = OPERATOR.words(wish.reason.message), list(sent.values()).count(Sent.REACHED)
        log.info(kind, extra=facts(**record.who, processes=reached, reason=why))
        spared = [process for process, result in sent.items() if result is Sent.NOT_THEIRS]
        if not spared:
            return None
        if not reached:
            record.reclaim = None  # however it ends, that is not our doing
        return LeftAlone(wish.job, {process.pid: ids.get(process) for process in spared})

    def _notify(self, wish: do.Notify) -> None:
        record = self.registry.get(wish.job)
        if record is None:
            return
        if wish.kind == "relieved":
            record.reclaim = None
        self._tell(record, wish.kind, wish.reason)

    def _tell(self, record: JobRecord, kind: str, reason: Reason, *, with_facts: bool = False) -> None:
        """In the words that the job's user may read."""
        told = self.viewer_of(record.spec.uid).told(reason)
        more = {"facts": [list(one) for one in told.facts]} if with_facts else {}
        record.notify(kind, told.render(), {**told.data, **more})

    def _answered_at_once(self, done: do.Instruction) -> None:
        self._at_once = done

    def _budget_set(self, done: do.BudgetSet) -> None:
        """In the pages before anybody is told: whoever changes a job and then asks it must find the change there."""
        terms = Terms.of(self.core.jobs[done.job].spec)
        for process in self.core.jobs[done.job].processes:
            client = self.clients.get(process)
            if client is not None and client.page.account is not None:
                client.page.account.set_terms(terms)
            for gpu in self.core.processes[process].shares:
                self._publish_now(gpu, (process,))
        self._answered_at_once(done)

    def ask_core(self, event: BudgetChanged | ReservationAsked) -> do.Instruction | None:
        """Feed one that the core answers within the same call; None: it has failed."""
        self._at_once = None
        self.feed(event)
        return self._at_once

    # ---- processes ---------------------------------------------------------------------------------

    def adopt(self, client: Client) -> None:
        """A process has a page: know it until it has gone."""
        self.clients.add(client)
        self.credit.pages[client.id] = client.page
        self.user_limits.enter(client.uid, PER_CLIENT)
        client.process.watch(self.epoll, lambda: self.process_gone(client))

    def process_gone(self, client: Client) -> None:
        """It has ended, or has become another program."""
        if self.clients.get(client.id) is not client:
            return
        record = self.registry.get(client.job)
        if client.page.broken:
            who = record.who if record is not None else {"job": client.job, "user": user_name(client.uid)}
            log.warning(
                "a process has cut its credit page short, and is outside of gpushare from now on",
                extra=facts(pid=client.process.pid, command=client.command, **who),
            )
        if client.connection is not None:
            client.connection.close()
        if record is not None:
            record.refusals += self.credit.refusals(client.id)
            self._note_last_peak(client, record)
        self._tell_unmet(client.id)
        self.clients.remove(client)
        self.feed(ProcessGone(client.id, {} if client.page.broken else client.page.used()))
        self.credit.pages.pop(client.id, None)
        self.user_limits.leave(client.uid, PER_CLIENT)
        client.process.close()
        client.page.close(remove=True)
        if record is not None and record.wrapper is None and not self.clients.has_job(client.job):
            self.end_job(record)

    def give_up_broken(self) -> None:
        """Processes that have cut their page short: nothing that they use is known any more."""
        broken = int(lib.gs_pages_broken())
        if broken == self._broken:
            return
        self._broken = broken
        for client in self.clients:
            if client.page.broken:
                self.process_gone(client)

    def _note_last_peak(self, client: Client, record: JobRecord) -> None:
        process = self.core.processes.get(client.id)
        if process is None:
            return
        job = self.core.jobs[client.job]
        for gpu, share in process.shares.items():
            used = client.page.used().get(gpu, share.used)
            record.note_peak(gpu, job.usage[gpu] + used - share.used)
            record.note_peak(gpu, share.overhead + self.credit.peak(client.id, gpu))  # the job had as much, then

    def detached(self, client: Client, gpu: str) -> None:
        self.feed(Detached(client.id, gpu, client.page.used().get(gpu, 0)))
        self.credit.close_share(client.id, gpu)

    # ---- the rest ----------------------------------------------------------------------------------

    def find_gpus(self) -> None:
        """At the start: there is nothing else to do yet."""
        self.take_in_gpus(self.gpus.driver.list())

    def take_in_gpus(self, found: list[GpuInfo]) -> None:
        for info in self.gpus.note(found):
            self.feed(GpuFound(info.uuid, info.index, info.name, info.total, info.reserved))

    def look_for_gpus(self, then: Callable[[], None]) -> None:
        """Calls `then` when the driver has said what GPUs there are, or has said nothing for a while."""
        answered = False

        def go_on(future: asyncio.Future[list[GpuInfo]] | None = None) -> None:
            nonlocal answered
            if self.loop.is_closed():
                return
            if future is not None and not future.cancelled() and future.exception() is None:
                self.take_in_gpus(future.result())
            if not answered:
                answered = True
                then()

        self.loop.call_later(SILENT_AFTER, go_on)
        self.on_thread(self.gpus.driver.list).add_done_callback(go_on)

    def _wake_at(self, wish: do.WakeAt) -> None:
        """One wish at a time; it counts once, so a hair too late is right and a hair too early is not."""
        if self._wake is not None:
            self._wake.cancel()
        self._wake = self.loop.call_at(max(wish.time, self._no_wake_before) + WAKE_MARGIN, self.feed, TimePassed())

    def _log(self, wish: do.Log) -> None:
        """One line a second of each kind and job: a program that asks in a loop must not fill the disk."""
        record = wish.record
        for follower in self.followers:
            follower.put(record)
        self.historian.record(record, time.time())
        left_out = self._sparingly.allow((record.event, record.job, record.gpu))
        if left_out is None or not log.isEnabledFor(logging.INFO):
            return
        numbers = {key: value for key, value in OPERATOR.facts(record.facts).items() if not isinstance(value, dict)}
        user = None if record.uid is None else user_name(record.uid)
        about = {"job": record.job, "name": record.name, "user": user, "gpu": record.gpu}
        where = {key: value for key, value in about.items() if value}
        more = {"more": left_out} if left_out else {}
        log.info(OPERATOR.words(record.text), extra=facts(event=record.event, **{**numbers, **where, **more}))

    def _persist_soon(self, _: do.Persist) -> None:
        """Once for all changes of a while, and not while a process that starts waits for its next answer."""
        self.commits.soon()

    def _write_notes(self, planned: Planned) -> None:
        """The wrappers are in them: their end is the end of their jobs."""
        self.state_file.write(self.core.state, time.monotonic(), self.registry.live(), planned)

    def end_streams(self) -> None:
        """The daemon goes: whoever follows should look for the next one."""
        for follower in self.followers:
            follower.end()
        self.registry.end_streams()

    def close(self) -> None:
        """Stop acting. Pages stay where they are, for the next daemon."""
        if self._wake is not None:
            self._wake.cancel()
        self.commits.close()
        for client in self.clients:
            client.process.close()
            client.page.close(remove=False)
        self.credit.pages.clear()
        self.registry.close()
        self.epoll.close()
        self.driver_thread.close()


def _resolve(record: JobRecord, reason: Reason | None) -> None:
    if record.admission is not None and not record.admission.done():
        record.admission.set_result(reason)
