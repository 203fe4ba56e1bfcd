"""The allocator in a world made of events: jobs arrive, run for their duration and end, and time passes.

Nothing here decides anything. Simulated time is seconds from 0; what happens at one moment is handed to the allocator
together. A job that is stopped before its end starts from its beginning when it runs again.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from gpushare.cluster.allocator import Allocator
from gpushare.cluster.amounts import capacity
from gpushare.cluster.model import (
    Action,
    Code,
    Event,
    GpuHealth,
    Grow,
    JobEnded,
    JobRestored,
    JobSubmitted,
    JobWithdrawn,
    Move,
    NodeAdded,
    NodeLost,
    Policy,
    Preempt,
    QueueAdded,
    Reason,
    Refuse,
    Shrink,
    Start,
    Stop,
    Stopped,
    TimePassed,
    Wait,
)
from gpushare.cluster.quantity import format_gpus
from gpushare.cluster.spec_parser import Submission
from gpushare.cluster.timeline import Happening, Timeline
from gpushare.errors import GpushareError
from gpushare.quantity import count

__all__ = ["VERBS", "Simulation", "describe"]

VERBS: dict[type[Action], str] = {
    Start: "start",
    Preempt: "evict",
    Move: "move",
    Shrink: "shrink",
    Grow: "grow",
    Stop: "stop",
    Wait: "wait",
    Refuse: "refuse",
}
MOST_WAKES_AT_ONCE = 1000


def describe(action: Action) -> str:
    """An action in a few words, without the verb and the job."""
    match action:
        case Start(places=places) | Stop(places=places):
            return f"{_where(places)}: {action.reason.message}" if places else action.reason.message
        case Preempt(places=places, whole=whole):
            part = "" if whole else f"{len(places)} of its tasks, "
            return f"{part}for {action.for_job}: {action.reason.message}"
        case Move(places=places, to=to):
            return f"{_where(places)} -> {_where(to)}, for {action.for_job}"
        case Shrink(places=places) | Grow(places=places):
            return f"to {format_gpus(sum(place.charge for place in places))}: {action.reason.message}"
        case Refuse(reason=Reason(code=Code.NO_NODE)):
            return action.reason.message
        case Refuse():
            return f"{action.reason.message}; try again in {action.retry_after:g} s"
        case _:
            return action.reason.message


def _where(places: Iterable[tuple[int, int, str, tuple[int, ...], int, int]]) -> str:
    nodes = Counter(place[2] for place in places)
    shown = [node if tasks == 1 else f"{node} x{tasks}" for node, tasks in list(nodes.items())[:4]]
    return ", ".join(shown) + (f" and {count(len(nodes) - 4, 'more node')}" if len(nodes) > 4 else "")


@dataclass(order=True, slots=True)
class _Due:
    time: float
    number: int
    events: tuple[Event, ...] = field(compare=False)
    attempt: int | None = field(compare=False, default=None)
    """An ending of this attempt of the job; stale when it was stopped in between."""


@dataclass(slots=True)
class Run:
    """What a simulation knows about a job besides the allocator."""

    queue: str
    duration: float | None = None
    attempt: int = 0
    """The one whose end is planned."""
    stopping: int = 0
    """The attempt that was last told to stop."""


class Simulation:
    """A cluster and its clock."""

    def __init__(
        self,
        policy: Policy | None = None,
        *,
        check: bool = False,
        keep: bool = True,
        watch: Callable[[Simulation], None] | None = None,
    ) -> None:
        """`watch` is called after all decisions about what was handed in together."""
        self.allocator = Allocator(policy)
        self.now = 0.0
        self.timeline = Timeline()
        self.actions: list[tuple[float, Action]] = []
        self.refused: list[tuple[float, str, GpushareError]] = []
        """Jobs whose submission made no sense."""
        self.runs: dict[str, Run] = {}
        self.decided = 0
        """Events that were handed in."""
        self._check = check
        self._keep = keep
        self._watch = watch
        self._due: list[_Due] = []
        self._number = 0
        self._capacity = 0
        self._above: set[str | None] = set()
        """Queues that have others below them."""

    # ---- what comes -----------------------------------------------------------------------------

    def hand(self, *events: Event) -> None:
        """Hand events in, together, now."""
        for event in events:
            if isinstance(event, JobSubmitted | JobRestored):
                self.runs.setdefault(event.job.id, Run(event.job.queue)).queue = event.job.queue
        actions = self.allocator.handle(list(events), self.now)
        self.decided += len(events)
        for event in events:
            if isinstance(event, JobEnded | JobWithdrawn):
                self._note("end" if isinstance(event, JobEnded) else "withdraw", event.job, "")
            elif isinstance(event, JobRestored):
                self._note("runs", event.job.id, _where(event.places))
                self._plan_end(event.job.id, event.attempt, self.now)
        for action in actions:
            self._carry_out(action)
        if self._keep:
            self._record(events, actions)
        if self._check:
            self.allocator.validate()
        if self._watch is not None:
            self._watch(self)

    def submit(self, submissions: Iterable[Submission]) -> None:
        """Submit those whose time has come, together, and keep the others for theirs (counted from now)."""
        at_once: list[Submission] = []
        for submission in submissions:
            if submission.duration is not None or submission.job.id not in self.runs:
                self.runs[submission.job.id] = Run(submission.job.queue, submission.duration)
            if submission.at <= 0:
                at_once.append(submission)
            else:
                self.later(self.now + submission.at, JobSubmitted(submission.job))
        self._submit_now([JobSubmitted(one.job) for one in at_once])

    def later(self, time: float, *events: Event) -> None:
        self._push(time, events, None)

    # ---- time -----------------------------------------------------------------------------------

    def advance(self, until: float) -> None:
        """Let time pass up to and including that moment."""
        wakes = 0
        while True:
            time = self._next()
            if time is None or time > until:
                break
            wakes = wakes + 1 if time == self.now else 0
            if wakes > MOST_WAKES_AT_ONCE:
                raise AssertionError(f"the allocator asks to be woken at {time} again and again")
            self.now = max(self.now, time)
            self._happen()
        self.now = max(self.now, until)
        self.timeline.reach(self.now)

    def finish(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Let everything end that will: until no arrival and no planned end is left."""
        while self._due:
            self.advance(self._due[0].time)
            if progress is not None:
                progress(self.decided, self.decided + len(self._due))

    # ---- inside ---------------------------------------------------------------------------------

    def _next(self) -> float | None:
        wake = self.allocator.next_wake
        due = self._due[0].time if self._due else None
        return min((time for time in (wake, due) if time is not None), default=None)

    def _happen(self) -> None:
        """Everything that is due now: ends first, so that arrivals find the room."""
        events: list[Event] = []
        arrivals: list[JobSubmitted] = []
        while self._due and self._due[0].time <= self.now:
            due = heapq.heappop(self._due)
            for event in due.events:
                if isinstance(event, JobSubmitted):
                    arrivals.append(event)
                elif due.attempt is None or self._still_runs(event, due.attempt):
                    events.append(event)
        if events or not arrivals:
            self.hand(*(events or [TimePassed()]))
        self._submit_now(arrivals)

    def _submit_now(self, arrivals: list[JobSubmitted]) -> None:
        if not arrivals:
            return
        try:
            self.hand(*arrivals)
        except GpushareError:
            for arrival in arrivals:  # one bad job must not keep the others out
                try:
                    self.hand(arrival)
                except GpushareError as error:
                    self.refused.append((self.now, arrival.job.id, error))
                    self._note("refuse", arrival.job.id, error.message)

    def _still_runs(self, event: Event, attempt: int) -> bool:
        if not isinstance(event, JobEnded):
            return True
        view = self.allocator.jobs.get(event.job)
        return view is not None and view.state == "running" and self.runs[event.job].attempt == attempt

    def _record(self, events: tuple[Event, ...], actions: list[Action]) -> None:
        """What the queues hold now whose jobs these were about. A queue with queues below it has no jobs of its own."""
        touched = {self.runs[action.job].queue: None for action in actions}
        for event in events:
            match event:
                case JobRestored(job=job):
                    touched[job.queue] = None
                case JobEnded(job=name) | JobWithdrawn(job=name) | Stopped(job=name):
                    touched[self.runs[name].queue] = None
                case QueueAdded(queue=queue):
                    self._above.add(queue.parent)
                    touched[queue.name] = None
                case NodeAdded() | NodeLost() | GpuHealth():
                    self._capacity = capacity(self.allocator)
                case _:
                    pass
        views = self.allocator.queues
        held = {name: views[name].allocated for name in touched if name not in self._above and name in views}
        self.timeline.record(self.now, held, self._capacity)

    def _carry_out(self, action: Action) -> None:
        if self._keep:
            self.actions.append((self.now, action))
        self._note(VERBS[type(action)], action.job, describe(action) if self._keep else "")
        run = self.runs.setdefault(action.job, Run(""))
        match action:
            case Start(attempt=attempt):
                self._plan_end(action.job, attempt, self.now)
            case Preempt(attempt=attempt, whole=whole):
                run.stopping = attempt
                run.attempt = 0 if whole else run.attempt
            case Move(attempt=attempt):
                run.stopping = attempt
            case Stop(attempt=attempt):
                run.stopping, run.attempt = attempt, 0
            case _:
                pass

    def _plan_end(self, job: str, attempt: int, start: float) -> None:
        run = self.runs[job]
        if run.duration is not None and run.attempt != attempt:
            run.attempt = attempt
            self._push(start + run.duration, (JobEnded(job),), attempt)

    def stopped(self, job: str) -> Stopped:
        """The report that what was last told to stop is gone."""
        return Stopped(job, self.runs[job].stopping)

    def _push(self, time: float, events: tuple[Event, ...], attempt: int | None) -> None:
        self._number += 1
        heapq.heappush(self._due, _Due(time, self._number, events, attempt))

    def _note(self, verb: str, job: str, text: str) -> None:
        if self._keep:
            self.timeline.note(Happening(self.now, verb, job, self.runs[job].queue if job in self.runs else "", text))
