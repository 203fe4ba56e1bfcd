"""What to do so that what runs becomes what the allocator has decided. Pure: what is ours, what is observed, what time
it is; events and commands come out. It knows no engine.

    node_facts, job_facts     observed against ours: events for the allocator, each batch by itself
    adoption                  jobs that run already and that the allocator does not know
    commands                  ours against observed: what to start, to evict, to annotate
    learn                     what an answer means for the next round

Level-triggered: everything follows from the two sides as they are. Notes are only about patience: what was answered,
and when to try again. Without them (after a crash) all commands are given again, which changes nothing.

Whatever is observed on a GPU and not on the ledger counts as foreign there until it is gone or adopted, so nothing is
started in its place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

from gpushare.cluster.engines.seam import (
    Accepted,
    Answer,
    Evict,
    Gone,
    Observed,
    Refused,
    SeenJob,
    SeenNode,
    SeenTask,
    Start,
)
from gpushare.cluster.model import (
    Event,
    ForeignUse,
    JobEnded,
    JobHeld,
    JobReleased,
    JobRestored,
    JobSubmitted,
    JobView,
    JobWithdrawn,
    NodeAdded,
    NodeCordoned,
    NodeDrained,
    NodeLost,
    NodeUncordoned,
    NodeUnknown,
    NodeView,
    Place,
    Started,
    StartFailed,
    Stopped,
    StopRefused,
    TasksLost,
)

__all__ = [
    "Command",
    "Notes",
    "Ours",
    "Settings",
    "adoptable",
    "adoption",
    "commands",
    "job_facts",
    "learn",
    "node_facts",
]

Task = tuple[int, int]
"""Group and number."""
Which = tuple[str, int, int, int]
"""A task of an attempt: uid, attempt, group, number."""
Where = tuple[int, int, int, str, tuple[int, ...]]
"""As SeenTask.where."""
BY_ITS_USER = "by its user"


class Ours(Protocol):
    """What is read of the allocator."""

    @property
    def jobs(self) -> Mapping[str, JobView]: ...

    @property
    def nodes(self) -> Mapping[str, NodeView]: ...

    @property
    def leaving(self) -> Mapping[tuple[str, int], tuple[Place, ...]]: ...


@dataclass(frozen=True, slots=True)
class Settings:
    """Seconds."""

    grace: float = 30.0
    """Between being asked to stop and being killed."""
    first_retry: float = 1.0
    """After a command without an answer; twice as long after each further one."""
    last_retry: float = 64.0
    start_within: float = 120.0
    """A start that was accepted and of which nothing is seen for so long has failed."""
    stop_within: float = 60.0
    """After the grace. What has not stopped then is killed, and after as long again said not to stop."""
    annotate_every: float = 10.0


@dataclass(frozen=True, slots=True)
class Note:
    """A word for the job's user."""

    uid: str
    text: str


Command = Start | Evict | Note


@dataclass(slots=True)
class Patience:
    """About one command that is given until its effect is seen."""

    first: float
    """When it was given first, or accepted first."""
    next: float
    tries: int = 0
    accepted: bool = False


@dataclass(slots=True)
class Notes:
    """What a loop remembers from round to round; it may be lost at any time."""

    starts: dict[Which, Patience] = field(default_factory=dict)
    stops: dict[Which, Patience] = field(default_factory=dict)
    annotated: dict[str, float] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    """What answers mean, to be handed in before anything else."""
    unfit: set[str] = field(default_factory=set)
    """Jobs that run and could not be adopted as they do."""
    hurry: set[str] = field(default_factory=set)
    """Jobs whose tasks are killed where they are to stop."""
    wrong: dict[str, tuple[str, float]] = field(default_factory=dict)
    """Jobs that the allocator refuses, why, and when to try again."""


@dataclass(frozen=True)
class Round:
    """The two sides at one moment."""

    ours: Ours
    seen: Observed
    notes: Notes
    now: float
    settings: Settings

    @cached_property
    def there(self) -> dict[str, SeenJob]:
        return {one.job.id: one for one in self.seen.jobs}

    @cached_property
    def ready(self) -> dict[str, bool]:
        """Nodes that there are, and whether they answer."""
        return {one.node.name: one.state == "ready" for one in self.seen.nodes}

    @cached_property
    def on_ledger(self) -> dict[str, set[Where]]:
        """What is on the ledger as running or as told to stop, by uid."""
        found: dict[str, set[Where]] = {}
        for (uid, attempt), places in self.ours.leaving.items():
            found.setdefault(uid, set()).update(_where(attempt, place) for place in places)
        for uid, view in self.ours.jobs.items():
            found.setdefault(uid, set()).update(_where(view.attempt, place) for place in view.places)
        return found

    def strangers(self, job: SeenJob) -> list[SeenTask]:
        """Tasks that hold GPUs and are not on the ledger."""
        known = self.on_ledger.get(job.job.id, set())
        return [task for task in job.tasks if task.holds and task.where not in known]


def _where(attempt: int, place: Place) -> Where:
    return attempt, place.group, place.task, place.node, place.gpus


# ---- nodes -------------------------------------------------------------------------------------------


def node_facts(now: Round) -> Iterator[list[Event]]:
    """What has changed about nodes, and what is on their GPUs that is not on the ledger; a batch for each node."""
    foreign = _foreign(now, frozenset())
    for one in now.seen.nodes:
        batch = [*_node(now.ours, one), *_foreign_on(now.ours, one, foreign)]
        if batch:
            yield batch
    for name, view in now.ours.nodes.items():
        if view.alive and name not in now.ready:
            yield [NodeLost(name)]


def _node(ours: Ours, one: SeenNode) -> Iterator[Event]:
    name, view = one.node.name, ours.nodes.get(one.node.name)
    known = view is not None and view.alive
    if one.state == "lost":
        if known:
            yield NodeLost(name)
        return
    if one.state == "unknown" and view is not None and not known:
        return  # it was lost, and is so until it answers
    if view is None or not known or _differs(view, one):
        yield NodeAdded(one.node)
        known = False
    if one.state == "unknown" and (view is None or not known or not view.unknown):
        yield NodeUnknown(name)
    cordoned = view is not None and view.cordoned
    if one.draining and (not cordoned or any(place.node == name for job in ours.jobs.values() for place in job.places)):
        yield NodeDrained(name)
    elif one.cordoned and not one.draining and not cordoned:
        yield NodeCordoned(name)
    elif cordoned and not one.cordoned and not one.draining:
        yield NodeUncordoned(name)


def _differs(view: NodeView, one: SeenNode) -> bool:
    node = one.node if one.node.uuids else replace(one.node, uuids=view.node.uuids)
    return node != view.node or (view.unknown and one.state == "ready")


def _foreign_on(ours: Ours, one: SeenNode, foreign: Mapping[tuple[str, int], int]) -> Iterator[Event]:
    """Those of its GPUs of which another amount is in use than the ledger says."""
    if one.state == "lost":
        return
    name, view = one.node.name, ours.nodes.get(one.node.name)
    if one.state == "unknown" and view is not None and not view.alive:
        return
    fresh = view is None or not view.alive or (view.node.gpus, view.node.memory) != (one.node.gpus, one.node.memory)
    known = {} if view is None or fresh else dict(view.foreign)
    for gpu in range(one.node.gpus):
        used = min(foreign.get((name, gpu), 0), one.node.memory)
        exchanged = (
            not fresh
            and view is not None
            and bool(one.node.uuids and view.node.uuids)
            and one.node.uuids[gpu] != view.node.uuids[gpu]
        )
        if used != (0 if exchanged else known.get(gpu, 0)):
            yield ForeignUse(name, gpu, used)


def _foreign(now: Round, adopted: frozenset[str]) -> Mapping[tuple[str, int], int]:
    """Bytes of each GPU in use by what is not on the ledger, but for jobs that are being adopted."""
    found: Counter[tuple[str, int]] = Counter()
    for node in now.seen.nodes:
        found.update({(node.node.name, gpu): used for gpu, used in node.foreign})
    for job in now.seen.jobs:
        uid = job.job.id
        kept = _attempt_of(job) if uid in adopted else None
        for task in now.strangers(job):
            if task.attempt != kept:
                found.update({(task.node, gpu): task.amount for gpu in task.gpus})
    return found


# ---- jobs --------------------------------------------------------------------------------------------


def _attempt_of(job: SeenJob) -> int | None:
    """The latest attempt of which something runs."""
    return max((task.attempt for task in job.tasks if task.holds), default=None)


def adoptable(now: Round) -> list[str]:
    """Jobs that run and that the allocator does not know, or knows an earlier attempt of."""
    found = []
    for job in now.seen.jobs:
        view, attempt = now.ours.jobs.get(job.job.id), _attempt_of(job)
        if attempt is None or job.ended or job.job.id in now.notes.unfit:
            continue
        if view is None or attempt > view.attempt:
            found.append(job.job.id)
    return found


def adoption(now: Round, uids: Iterable[str]) -> list[Event]:
    """Take these jobs onto the ledger as they run. What they hold is no longer foreign."""
    adopted = frozenset(uids)
    foreign = _foreign(now, adopted)
    batch: list[Event] = [event for one in now.seen.nodes for event in _foreign_on(now.ours, one, foreign)]
    for job in now.seen.jobs:
        uid = job.job.id
        if uid not in adopted:
            continue
        if uid in now.ours.jobs:
            batch.append(JobEnded(uid))  # that attempt is over, else this one would not have begun
        attempt = _attempt_of(job)
        assert attempt is not None
        places = {
            (task.group, task.task): Place(task.group, task.task, task.node, task.gpus, 0, 0)
            for task in job.tasks
            if task.holds and task.attempt == attempt
        }
        where = tuple(place for _, place in sorted(places.items()))
        batch.append(JobRestored(job.job, where, job.submitted, attempt, job.rung, job.evictions))
    return batch


def job_facts(now: Round) -> Iterator[list[Event]]:
    """What has happened to jobs and tasks that the allocator knows, and jobs that are new and wait."""
    for (uid, attempt), places in now.ours.leaving.items():
        gone = tuple(_gone(now, uid, attempt, places))
        if gone:
            yield [Stopped(uid, attempt, gone)]
    for uid, view in now.ours.jobs.items():
        known = now.there.get(uid)
        if known is None:
            yield [JobWithdrawn(uid)]
        elif known.ended:
            if not any(task.holds for task in known.tasks):
                yield [JobEnded(uid)]
        elif _asks_otherwise(view, known):
            yield [JobEnded(uid)]
            yield _submitted(known, max(view.attempt, known.attempt))
        else:
            for event in _attempt(view, known, now.ready):
                all_lost = isinstance(event, TasksLost) and len(event.tasks) == len(view.places)
                # Else it would have GPUs again at once, for a start that cannot be.
                yield [event, JobHeld(uid, BY_ITS_USER)] if all_lost and known.held else [event]
            if known.held and view.state == "pending" and not view.held:
                yield [JobHeld(uid, BY_ITS_USER)]
            elif not known.held and view.held and view.reason.data.get("why") == BY_ITS_USER:
                yield [JobReleased(uid)]
    for job in now.seen.jobs:
        uid = job.job.id
        if uid in now.ours.jobs or job.ended or now.now < now.notes.wrong.get(uid, ("", now.now))[1]:
            continue
        if _attempt_of(job) is None or uid in now.notes.unfit:
            yield _submitted(job, job.attempt)


def _submitted(job: SeenJob, attempt: int) -> list[Event]:
    held: list[Event] = [JobHeld(job.job.id, BY_ITS_USER)] if job.held else []
    return [JobSubmitted(job.job, job.submitted, attempt, job.evictions), *held]


def _asks_otherwise(view: JobView, job: SeenJob) -> bool:
    """Nothing of it runs, and it asks for something else than the allocator knows. Its priority an administrator may
    have changed."""
    if not job.changes or any(task.holds for task in job.tasks):
        return False
    mine = replace(job.job, name=view.job.name, priority=view.job.priority, preemptible=view.job.preemptible)
    return mine != view.job


def _gone(now: Round, uid: str, attempt: int, places: Iterable[Place]) -> Iterator[Task]:
    """Tasks that were told to stop and do not exist any more, nor will: the engine has said so. What is left of a job
    that is over may be the record of a task that ended by itself just then: nobody evicts it, and it holds nothing."""
    job = now.there.get(uid)
    over = job is None or job.ended
    exist = {task.where for task in job.tasks if task.holds or not over} if job is not None else set()
    for place in places:
        stop = now.notes.stops.get((uid, attempt, place.group, place.task))
        sure = over or (stop is not None and stop.accepted)
        if sure and _where(attempt, place) not in exist and now.ready.get(place.node, True):
            yield place.group, place.task


def _attempt(view: JobView, job: SeenJob, ready: Mapping[str, bool]) -> Iterator[Event]:
    """What the tasks that were to run do."""
    uid, attempt = job.job.id, view.attempt
    exist = {task.where: task for task in job.tasks}
    begun, lost = [], []
    for place in _started(view):
        task = exist.get(_where(attempt, place))
        which = place.group, place.task
        if task is None:
            if which in view.seen and ready.get(place.node, False):
                lost.append(which)
        elif task.phase == "failed":
            if which not in view.seen:
                yield StartFailed(uid, attempt, (which,), place.node if task.node_to_blame else None, task.why)
                return
            lost.append(which)
        elif task.phase in ("running", "done") and which not in view.seen:
            begun.append(which)
    if lost:
        yield TasksLost(uid, attempt, tuple(lost))
    elif begun:
        yield Started(uid, attempt, tuple(begun))


def _started(view: JobView) -> list[Place]:
    """The places where something of it is to run now."""
    waits = {(place.group, place.task) for place in view.unstarted}
    return [place for place in view.places if (place.group, place.task) not in waits]


# ---- commands ----------------------------------------------------------------------------------------


def commands(now: Round) -> Iterator[Command]:
    """What to tell the engine: first what is to stop, then what is to start."""
    _forget(now)
    ours, notes = now.ours, now.notes
    for (uid, attempt), places in ours.leaving.items():
        if uid in now.there and not now.there[uid].ended:
            yield from _evict(now, uid, attempt, [(place.group, place.task) for place in places])
    for job in now.seen.jobs:
        superfluous: dict[int, list[Task]] = {}
        if job.ended or job.job.id in ours.jobs:
            for task in [task for task in job.tasks if task.holds] if job.ended else now.strangers(job):
                superfluous.setdefault(task.attempt, []).append((task.group, task.task))
        for attempt, tasks in superfluous.items():
            yield from _evict(now, job.job.id, attempt, tasks)
    free = _really_free(now)
    for uid, view in ours.jobs.items():
        known = now.there.get(uid)
        if known is not None and not known.ended:
            yield from _start(now, view, known, free)
    for job in now.seen.jobs:
        text = _words(ours, job.job.id, notes)
        if text != job.note and not job.ended and now.now >= notes.annotated.get(job.job.id, now.now):
            notes.annotated[job.job.id] = now.now + now.settings.annotate_every
            yield Note(job.job.id, text)


def _words(ours: Ours, uid: str, notes: Notes) -> str:
    view = ours.jobs.get(uid)
    if view is None:
        return notes.wrong.get(uid, ("", 0.0))[0]
    return view.reason.message if view.state == "pending" else ""


def _evict(now: Round, uid: str, attempt: int, tasks: Iterable[Task]) -> Iterator[Command]:
    settings = now.settings
    due: list[Task] = []
    kill: list[Task] = []
    for task in tasks:
        stop = now.notes.stops.setdefault((uid, attempt, *task), Patience(now.now, now.now))
        if now.now >= stop.next:
            late = uid in now.notes.hurry or (
                stop.accepted and now.now >= stop.first + settings.grace + settings.stop_within
            )
            (kill if late else due).append(task)
    for some, grace in ((due, settings.grace), (kill, 0.0)):
        if some:
            again = uid in now.ours.jobs and not now.there[uid].ended
            yield Evict(uid, attempt, tuple(sorted(some)), grace, again)


def _really_free(now: Round) -> dict[tuple[str, int], int]:
    """Bytes of each GPU that nothing holds, as the engine shows it: what was told to shrink may not have."""
    free = {(one.node.name, gpu): one.node.memory for one in now.seen.nodes for gpu in range(one.node.gpus)}
    for node in now.seen.nodes:
        for gpu, used in node.foreign:
            free[node.node.name, gpu] -= used
    for job in now.seen.jobs:
        for task in job.tasks:
            for gpu in task.gpus if task.holds else ():
                if (task.node, gpu) in free:
                    free[task.node, gpu] -= task.amount
    return free


def _start(now: Round, view: JobView, job: SeenJob, free: dict[tuple[str, int], int]) -> Iterator[Command]:
    """Its tasks that are to run and do not, or with another amount; all of them, or none where one does not fit yet."""
    if now.strangers(job):
        return  # an attempt that is over still runs
    exist = {task.where: task for task in job.tasks}
    due = []
    more: Counter[tuple[str, int]] = Counter()
    for place in _started(view):
        task = exist.get(_where(view.attempt, place))
        which = place.group, place.task
        missing = task is None and which not in view.seen
        resized = task is not None and task.phase in ("starting", "running") and task.amount != place.amount
        if (missing or resized) and now.ready.get(place.node, False):
            start = now.notes.starts.setdefault((job.job.id, view.attempt, *which), Patience(now.now, now.now))
            if now.now >= start.next:
                due.append(place)
                added = place.amount - (task.amount if task is not None else 0)
                more.update({(place.node, gpu): added for gpu in place.gpus})
    if due and all(free.get(gpu, 0) >= amount for gpu, amount in more.items() if amount > 0):
        for gpu, amount in more.items():
            free[gpu] -= max(0, amount)
        yield Start(job.job.id, view.attempt, tuple(due), view.rung)


def _forget(now: Round) -> None:
    """Notes about what is over."""
    ours, notes = now.ours, now.notes
    notes.unfit &= now.there.keys()
    notes.hurry &= now.there.keys()
    notes.wrong = {uid: why for uid, why in notes.wrong.items() if uid in now.there and uid not in ours.jobs}
    waits: dict[Which, bool] = {}
    """Tasks that are to run, and whether they are not known to."""
    for uid, view in ours.jobs.items():
        for one in _started(view):
            waits[uid, view.attempt, one.group, one.task] = (one.group, one.task) not in view.seen
    # A task that was told to stop, and was given a place again in the same attempt, may be told to stop once more.
    exist = {uid for uid, job in now.there.items() if any(task.holds for task in job.tasks)}
    exist |= {uid for uid, _ in ours.leaving}
    notes.stops = {
        which: stop
        for which, stop in notes.stops.items()
        if (which[0] in ours.jobs or which[0] in exist) and not waits.get(which)
    }
    notes.starts = {which: start for which, start in notes.starts.items() if waits.get(which)}
    notes.annotated = {uid: at for uid, at in notes.annotated.items() if uid in ours.jobs or uid in notes.wrong}


# ---- answers -----------------------------------------------------------------------------------------


def learn(notes: Notes, command: Start | Evict, answer: Answer | None, now: float, settings: Settings) -> None:
    """Note what was answered (None: nothing) at that time."""
    if isinstance(command, Start):
        _learn_start(notes, command, answer, now, settings)
    else:
        _learn_stop(notes, command, answer, now, settings)


def _learn_start(notes: Notes, command: Start, answer: Answer | None, now: float, settings: Settings) -> None:
    if isinstance(answer, Refused):
        tasks = tuple((place.group, place.task) for place in command.places)
        notes.events.append(StartFailed(command.uid, command.attempt, tasks, answer.node, answer.why))
        return
    for place in command.places:
        start = notes.starts.setdefault((command.uid, command.attempt, place.group, place.task), Patience(now, now))
        _try_again(start, isinstance(answer, Accepted), now, settings)
        if start.accepted and now >= start.first + settings.start_within:
            why = f"nothing was seen of it {settings.start_within:g} s after its start"
            tasks = ((place.group, place.task),)
            notes.events.append(StartFailed(command.uid, command.attempt, tasks, place.node, why))


def _learn_stop(notes: Notes, command: Evict, answer: Answer | None, now: float, settings: Settings) -> None:
    for group, task in command.tasks:
        stop = notes.stops.setdefault((command.uid, command.attempt, group, task), Patience(now, now))
        if isinstance(answer, Refused):
            stop.next = now + answer.retry_after
        else:
            _try_again(stop, isinstance(answer, Accepted | Gone), now, settings)
    retry_after = answer.retry_after if isinstance(answer, Refused) else settings.last_retry
    late = settings.grace + 2 * settings.stop_within
    which = [notes.stops[command.uid, command.attempt, group, task] for group, task in command.tasks]
    if isinstance(answer, Refused) or any(stop.accepted and now >= stop.first + late for stop in which):
        notes.events.append(StopRefused(command.uid, command.attempt, retry_after))


def _try_again(one: Patience, accepted: bool, now: float, settings: Settings) -> None:
    if accepted and not one.accepted:
        one.accepted, one.first = True, now
    one.next = now + min(settings.first_retry * 2.0 ** min(one.tries, 32), settings.last_retry)
    one.tries += 1
