"""What events about attempts mean: that tasks run, did not start, are gone, are held; and that a task does not stop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpushare.cluster import ageing
from gpushare.cluster.claimed import unclaim
from gpushare.cluster.jobs import NOTHING_SEEN, JobState, Stall
from gpushare.cluster.losses import drop, forget_leaving, give_up, lose_places
from gpushare.cluster.model import Code, Place, Reason, Started, StartFailed, Stopped, StopRefused, TasksLost
from gpushare.cluster.nodes import rest
from gpushare.cluster.sizes import note_sizes
from gpushare.cluster.space import FOREVER
from gpushare.cluster.state import State
from gpushare.cluster.turn import Turn

MOST_DOUBLINGS = 6
"""Of a rest after a failed start."""

Tasks = Sequence[tuple[int, int]]


def _meant(state: State, name: str, attempt: int, tasks: Tasks) -> tuple[JobState | None, list[Place]]:
    """The job and those of the places that this attempt was told to start; none if that is over."""
    job = state.jobs.get(name)
    if job is None or job.attempt != attempt:
        return None, []
    started = [place for place in job.ordered if (place.group, place.task) not in job.unstarted]
    return job, [place for place in started if not tasks or (place.group, place.task) in tasks]


def started(turn: Turn, event: Started) -> None:
    state = turn.state
    job, places = _meant(state, event.job, event.attempt, event.tasks)
    if job is None or not places:
        return
    if job.seen is NOTHING_SEEN:
        state.journal.set(job, "seen", {})
    for place in places:
        state.journal.put(job.seen, (place.group, place.task), None)
        state.journal.set(state.space.by_name[place.node], "failures", 0)
    if len(job.seen) == len(job.places):
        state.journal.set(job, "failures", 0)
        if job.stall is not None and turn.now >= job.stall.until:
            state.journal.set(job, "stall", None)


def start_failed(turn: Turn, event: StartFailed) -> None:
    state = turn.state
    job, meant = _meant(state, event.job, event.attempt, event.tasks)
    places = [place for place in meant if job is not None and (place.group, place.task) not in job.seen]
    if job is None or not places:
        return
    why = event.why or "it did not say why"
    data = {"attempt": event.attempt, "why": why}
    reason = Reason(Code.START_FAILED, data if event.node is None else {**data, "node": event.node})
    give_up(turn, job, places, reason)
    if event.node is not None:
        _rest_node(turn, event.node, f"job {event.job}: {why}")
    elif job.places:
        _stall(turn, job, why)
    else:
        _retire(turn, job, why)


def _rest_node(turn: Turn, name: str, why: str) -> None:
    state = turn.state
    node = state.space.by_name.get(name)
    if node is not None and node.alive:
        until = turn.now + _pause(state, node.failures)
        state.journal.set(node, "failures", node.failures + 1)
        state.journal.set(node, "trouble", why)
        if until > turn.now:
            rest(turn, node, until)


def _stall(turn: Turn, job: JobState, why: str) -> None:
    """Further tasks of it did not start, by their own fault: it runs on, and gets no others for a while."""
    state = turn.state
    failures = 0 if job.stall is None else job.stall.failures
    until = turn.now + _pause(state, failures)
    state.journal.set(job, "stall", Stall(until, failures + 1, why))
    if until > turn.now:
        state.journal.put(state.stalled, job.seq, None)
        note_sizes(state, job)
        state.open(job.cls)  # another is its first now


def go_on(turn: Turn, job: JobState) -> None:
    """It may have further tasks again."""
    state = turn.state
    if job.seq in state.stalled:
        state.journal.drop(state.stalled, job.seq)
        note_sizes(state, job)
        state.open(job.cls)


def _pause(state: State, failures: int) -> float:
    """Seconds after a failed start, if so many failed before it."""
    return state.policy.back_off * 2.0 ** min(failures, MOST_DOUBLINGS)


def _retire(turn: Turn, job: JobState, why: str) -> None:
    """It did not start, by its own fault: it rests, and after some tries it is held."""
    state = turn.state
    until = turn.now + _pause(state, job.failures)
    state.journal.set(job, "failures", job.failures + 1)
    if job.failures >= state.policy.start_tries:
        times = "once" if job.failures == 1 else f"{job.failures} times in a row"
        park(turn, job, FOREVER, Reason(Code.HELD, {"why": f"it did not start {times}: {why}"}))
    elif until > turn.now:
        park(turn, job, until, Reason(Code.RESTS, {"why": why, "failures": job.failures}))


def tasks_lost(turn: Turn, event: TasksLost) -> None:
    job, places = _meant(turn.state, event.job, event.attempt, event.tasks)
    if job is not None and places:
        lose_places(turn, job, places, Reason(Code.TASKS_LOST, {"attempt": event.attempt, "tasks": len(places)}))
        turn.start_claimed()


def stopped(turn: Turn, event: Stopped) -> None:
    state = turn.state
    key = (event.job, event.attempt)
    gone = [one for one in state.leaving.get(key, ()) if not event.tasks or (one.group, one.task) in event.tasks]
    if gone:
        forget_leaving(state, key, tuple(gone))
        turn.start_claimed()


# ---- held and at rest --------------------------------------------------------------------------------


def park(turn: Turn, job: JobState, until: float, reason: Reason) -> None:
    """It waits, and is not looked at before that time. It asks for nothing meanwhile."""
    state, cls = turn.state, job.cls
    state.journal.set(job, "until", until)
    state.journal.set(job, "reason", reason)
    if job.seq in state.parked:
        return
    state.delist(cls.pending, job.seq)
    state.ask(job, -job.demand)
    state.journal.put(state.parked, job.seq, None)
    state.journal.set(cls, "parked", cls.parked + 1)
    if cls.pending:
        state.open(cls)  # another is its first now
    if state.reserver is job:
        ageing.release(turn)


def unpark(turn: Turn, job: JobState) -> None:
    """It waits as others do."""
    state, cls = turn.state, job.cls
    forget_parked(state, job)
    state.ask(job, cls.shape.demand(state.space))
    state.enlist(cls.pending, job.seq)
    state.open(cls)


def forget_parked(state: State, job: JobState) -> None:
    """If it is held or rests: no longer, and it is in no list."""
    if job.seq in state.parked:
        state.journal.drop(state.parked, job.seq)
        state.journal.set(job.cls, "parked", job.cls.parked - 1)
        state.journal.set(job, "until", -FOREVER)


def wake(turn: Turn) -> None:
    """Jobs and nodes whose rest is over, also that of jobs that run and could grow."""
    state = turn.state
    for seq in [seq for seq in state.parked if state.by_seq[seq].until <= turn.now]:
        unpark(turn, state.by_seq[seq])
    for number in [number for number in state.resting if state.space.nodes[number].until <= turn.now]:
        rest(turn, state.space.nodes[number], -FOREVER)
    for job in [state.by_seq[seq] for seq in state.stalled]:
        if job.stall is not None and job.stall.until <= turn.now:
            go_on(turn, job)


# ---- a stop that is refused --------------------------------------------------------------------------


def stop_refused(turn: Turn, event: StopRefused) -> None:
    """The attempt has its places again. Where it cannot be, it stays told to stop."""
    state = turn.state
    key = (event.job, event.attempt)
    places, job = state.leaving.get(key, ()), state.jobs.get(event.job)
    if job is None or not places:
        return
    reason = Reason(Code.STOP_REFUSED, {"job": event.job, "attempt": event.attempt})
    mark, length = state.mark(), len(turn.out)
    _make_way(turn, job, places, reason)
    forget_leaving(state, key, places)
    if not _put_back(turn, job, event.attempt, places, reason):
        state.undo(mark)
        turn.take_back(length)
        return
    state.journal.set(job, "spared", turn.now + max(0.0, event.retry_after))
    turn.guard(job)
    turn.start_claimed()


def _make_way(turn: Turn, job: JobState, places: Iterable[Place], reason: Reason) -> None:
    """Give up starts of other jobs in these places, and starts of this job anywhere."""
    state = turn.state
    gpus = {(place.node, gpu) for place in places for gpu in place.gpus}
    for seq in sorted(state.waiting):
        other = state.by_seq[seq]
        claimed = list(other.unstarted.values())
        if other is not job:
            claimed = [one for one in claimed if any((one.node, gpu) in gpus for gpu in one.gpus)]
        elif len(claimed) < len(job.places):  # the rest of it runs on: what it lacks is about to come back
            drop(turn, job, claimed)
            continue
        give_up(turn, other, claimed, reason)
    if job.seq in state.parked:
        unpark(turn, job)


def _put_back(turn: Turn, job: JobState, attempt: int, places: tuple[Place, ...], reason: Reason) -> bool:
    """Into the ledger again, as they were; False where something else is there by now, or too few of the gang."""
    state, shape = turn.state, job.shape
    rungs = [job.rung] if job.places else range(shape.rungs)
    rung = next((rung for rung in rungs if all(_as_on(state, job, place, rung) for place in places)), None)
    if rung is None:
        return False
    for place in places:
        free = state.space.by_name[place.node].free
        if any(free[gpu] < place.amount for gpu in place.gpus):
            return False
        state.occupy(job, place)
    length = len(turn.out)
    if len(job.places) == len(places):
        turn.begin(job, places, rung, reason)
        job.attempt = attempt
    else:
        turn.extend(job, places, reason)
    unclaim(turn.state, job, places)  # they run already
    turn.take_back(length)
    return job.complete


def _as_on(state: State, job: JobState, place: Place, rung: int) -> bool:
    node = state.space.by_name[place.node]
    need = job.shape.groups[place.group].needs[rung]
    return (place.amount, place.charge) == (need.on(node.memory), need.charge(node.memory))
