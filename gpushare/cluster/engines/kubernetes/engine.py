"""An Engine (seam.py) over the API server of Kubernetes: pods of `schedulerName: gpushare` wait, and are started.

A start: the pod's claims get exactly its GPUs, and the pod is bound to the node. Its binding brings the mark (mark.py),
the only record of what was decided; where several pods start together, or volumes are made first, the marks are written
before all else, and a service that starts again goes on from there. What a pod has without such a mark and without a
node is given back. The node's plugin then makes a budget of each claim (gpushare/kubernetes/). On a server without
claims these are in annotations of the pod (carriers.py), which come with its binding, too.

An eviction is one of the API server's: budgets of disruption are obeyed, and the pod is gone for good. The pod that its
owner makes instead takes its seat (seats.py).
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace

from gpushare.cluster.engines.kubernetes.api import Api
from gpushare.cluster.engines.kubernetes.board import Board, Due, Listed
from gpushare.cluster.engines.kubernetes.fitting import told
from gpushare.cluster.engines.kubernetes.mark import UNSAID, Mark
from gpushare.cluster.engines.kubernetes.member import Member
from gpushare.cluster.engines.kubernetes.names import Thing
from gpushare.cluster.engines.kubernetes.queue_keeper import QueueKeeper
from gpushare.cluster.engines.kubernetes.room import Room
from gpushare.cluster.engines.kubernetes.settings import Settings
from gpushare.cluster.engines.runner import Context
from gpushare.cluster.engines.seam import (
    Accepted,
    Answer,
    Busy,
    Deposed,
    Evict,
    Gone,
    Measure,
    Observed,
    Refused,
    Start,
    Token,
    Unanswered,
)
from gpushare.cluster.model import Place

__all__ = ["CANNOT", "Kubernetes", "make"]

CANNOT = {
    "hasten": "a kubelet that stops a pod does not hear of a shorter grace",
    "resize": "Kubernetes cannot change what a claim has",
}

log = logging.getLogger(__name__)

POD_GONE = "the pod of that attempt is gone"
USUAL_RETRY = 60.0
"""Seconds until an eviction is tried again that the API server refuses without a time."""
LOOK_EVERY = 5.0
"""Seconds: whoever leads asks for that again before another may."""
MOST_NOTES = 50
"""Of annotate() in one round: each takes two requests."""


def make(context: Context) -> Kubernetes:
    """Raises UsageError for settings that make no sense."""
    settings = Settings.read(context.settings)
    woken = threading.Event()
    return Kubernetes(Api(settings, woken.set), settings, woken)


class Kubernetes(QueueKeeper):
    hints: Mapping[str, str] = {
        "submit": "kubectl apply -f FILE, with schedulerName: gpushare in the pod",
        "cancel": "kubectl delete pod NAME, or what owns the pod",
        "wrong": "kubectl describe pod NAME; change the pod, or what it names",
        "hold": "kubectl annotate pod NAME gpushare.dev/hold=true",
        "release": "kubectl annotate pod NAME gpushare.dev/hold-",
        "cordon": "kubectl cordon {node}",
        "drain": "kubectl drain {node} --ignore-daemonsets",
        "uncordon": "kubectl uncordon {node}",
    }

    def __init__(
        self, api: Api, settings: Settings, woken: threading.Event, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`woken` is set by `api` when something has changed. `clock`: seconds that only go forward."""
        self._api = api
        self._woken = woken
        self._clock = clock
        self._board = Board(settings.scheduler, settings.rules, open_queues=settings.has_open_queues)
        self._classes: Mapping[str, Thing] = {}
        self._room = Room(self._board)
        self._notes = 0
        self._newest: Token = (0, 0)
        """The newest command to start something."""
        self._leadership = api.leadership(clock)

    def close(self) -> None:
        """Another service may lead at once."""
        self.wake()
        self._leadership.release()
        self._api.close()

    def measures(self) -> Iterator[Measure]:
        return self._api.measures()

    # ---- the leader ------------------------------------------------------------------------------------

    def lead(self, holder: str, seconds: float) -> int | None:
        return self._leadership.lead(holder, seconds, self._board.newest)

    def _check_term(self, token: Token) -> None:
        newest = max(self._board.newest, self._leadership.newest)
        if newest > token[0]:
            raise Deposed(f"term {token[0]} is over: another service began term {newest}")

    @property
    def _leads(self) -> bool:
        return bool(self._leadership.term) and self._leadership.term >= self._board.newest

    # ---- looking ---------------------------------------------------------------------------------------

    def snapshot(self) -> Observed:
        self._look()
        self._notes = 0
        if self._leads:
            self._give_back_kept()
            for member in list(self._board.members.values()):
                self._tend(member)
        board = self._board
        nodes = tuple(kept.seen(board.foreign) for kept in board.nodes.values())
        waits = ((one, why) for one in board.members.values() if (why := board.why_not(one)))
        wrong = {name: why for one, why in waits for name in (one.uid, one.title)}
        return Observed(nodes, tuple(board.seen_jobs()), wrong)

    def glance(self, uids: Collection[str]) -> Observed:  # noqa: ARG002  what has not changed costs nothing
        return self.snapshot()

    def watch(self, seconds: float) -> None:
        self._woken.wait(min(seconds, LOOK_EVERY))
        self._woken.clear()

    def wake(self) -> None:
        self._woken.set()

    def _look(self) -> None:
        listed: Listed = self._api.listed()
        self._classes = {name: one for (_, name), one in listed.classes.items()}
        self._board.look(listed, self._clock())
        self._room.look()

    def _give_back_kept(self) -> None:
        """The pod is written to first, so that a binding that is still on its way comes too late."""
        kept = [one for one in self._board.members.values() if one.keeps]
        for member in kept:
            newest = max((self._leadership.term, 0), self._newest, member.mark.token)
            with self._logged(member):
                self._api.write.mark(member, replace(member.mark, token=newest))
                self._api.write.free(member)
        if kept:
            self._look()

    @contextlib.contextmanager
    def _logged(self, member: Member) -> Iterator[None]:
        try:
            yield
        except (*self._api.FAILURES, Deposed, Unanswered) as error:
            log.warning("pod %s: %s", member.title, error or type(error).__name__)

    def _tend(self, member: Member) -> None:
        """Finish what was begun: a start of which the mark is there."""
        with self._logged(member):
            why = self._board.why_not(member)
            if why:
                self._tell(member, why)
            elif member.follows is not None and not member.held:
                self._join(member, member.follows)
            elif member.phase == "starting" and not member.bound:
                self._go_on(member)

    def _go_on(self, member: Member) -> None:
        mark, board = member.mark, self._board
        if member.asked is not None and not member.asked.unmade and board.waits_for_volumes(member):
            return
        if self._api.starter.finish(board.due(member, mark), self._classes) is not None and not member.joins:
            self._room.give_back(mark)

    def _join(self, member: Member, first: Member) -> None:
        """Start it beside the pod that has its claim, as a part of the same task."""
        self._api.write.mark(member, replace(first.mark, failed="", blame=False))
        member.joins = True
        self._go_on(member)

    # ---- start -----------------------------------------------------------------------------------------

    def start(self, command: Start, token: Token) -> Answer:
        if command.uid not in self._board.jobs:
            self._look()  # it may be new
        found = self._prepare(command, token)
        if not isinstance(found, list):
            return found
        answer = self._begin(found).result()
        self._give_back(found, answer)
        return answer

    def start_all(self, commands: Iterable[tuple[Start, Token]]) -> Iterator[tuple[Start, Answer | None]]:
        """What is known and what is taken changes in this thread alone; the others only write."""
        begun: deque[tuple[Start, list[Due], Future[Answer]]] = deque()
        try:
            for command, token in commands:
                found = self._prepare(command, token)
                if not isinstance(found, list):
                    yield command, found
                    continue
                if len(begun) == self._api.MOST_BEGUN:
                    yield self._end(*begun.popleft())
                begun.append((command, found, self._begin(found)))
            while begun:
                yield self._end(*begun.popleft())
        finally:
            wait([future for _, _, future in begun])

    def _begin(self, due: Sequence[Due]) -> Future[Answer]:
        return self._api.stepwise.begin(self._api.starter.start(due, self._classes))

    def _end(self, command: Start, due: Sequence[Due], future: Future[Answer]) -> tuple[Start, Answer | None]:
        try:
            answer = future.result()
        except Unanswered as error:
            log.warning("no answer to the start of %s: %s", command.uid, error)
            return command, None
        self._give_back(due, answer)
        return command, answer

    def _prepare(self, command: Start, token: Token) -> Answer | list[Due]:
        """The pods that are due, whose room is taken; else the answer."""
        self._check_term(token)
        self._newest = max(self._newest, token)
        if command.uid not in self._board.jobs:
            return Gone()
        due: list[tuple[Member, Place]] = []
        for place in command.places:
            answer = self._startable(command, place, token, due)
            if answer is not None:
                return answer
        refusal = self._room.take(due)
        if refusal is not None:
            return refusal
        return [
            self._board.due(member, self._mark(member, place, command, token)) for member, place in due
        ] or Accepted()

    def _give_back(self, due: Sequence[Due], answer: Answer) -> None:
        """The room of those that did not start after all."""
        for one in due if not isinstance(answer, Accepted) else ():
            if not one.member.bound:
                self._room.give_back(one.mark)

    def _startable(self, command: Start, place: Place, token: Token, due: list[tuple[Member, Place]]) -> Answer | None:
        """None: its pod is in `due`, or nothing is to be done about it."""
        board = self._board
        members = board.jobs[command.uid].at(place.task, board.seats.taken)
        for one in members:
            task = board.task_of(one)
            if task is None or task.phase == "failed":
                continue
            if token <= one.mark.token:
                return Accepted()
            if command.attempt < one.mark.attempt:
                return Refused("a later attempt is known")
            if task.phase == "done":
                return Gone()
            if command.attempt != one.mark.attempt or task.phase == "stopping":
                return Busy()
            if (task.node, task.gpus) != (place.node, place.gpus):
                return Refused("it runs elsewhere")
            return None if task.amount == place.amount else Refused(CANNOT["resize"])
        fresh = [one for one in members if one.phase in (None, "failed") and not one.leaves and not one.bound]
        if not fresh or fresh[-1].asked is None:
            free = [seat for seat in board.seats.free if (seat.job, seat.task) == (command.uid, place.task)]
            over = any(command.attempt <= seat.attempt for seat in free)
            return Refused(POD_GONE) if over else Busy()  # its owner has not made it yet
        member = fresh[-1]
        seat = board.seats.taken[member.uid]
        if token <= max(seat.token, member.mark.token):
            return Accepted()
        if command.attempt < seat.attempt:
            return Refused("a later attempt is known")
        grows_back = seat.stopped and member.group.least < member.group.size
        if command.attempt == seat.attempt and not member.mark.attempt and not grows_back:
            return Refused(POD_GONE)
        due.append((member, place))
        return None

    def _mark(self, member: Member, place: Place, command: Start, token: Token) -> Mark:
        seat = self._board.seats.taken[member.uid]
        return Mark(
            job=command.uid,
            task=place.task,
            attempt=command.attempt,
            node=place.node,
            gpus=place.gpus,
            amount=place.amount,
            token=token,
            rung=command.rung,
            evictions=seat.evictions,
            since=seat.since,
            size=seat.size if member.group.open else 0,
            queue=member.queue or UNSAID,
        )

    # ---- stop ------------------------------------------------------------------------------------------

    def evict(self, command: Evict, token: Token) -> Answer:
        self._check_term(token)
        known = self._board.jobs.get(command.uid)
        answers: list[Answer] = []
        for _, task in command.tasks if known is not None else ():
            members = known.at(task, self._board.seats.taken) if known is not None else []
            answers += [self._evict(one, command, token) for one in members]
        refused = [one for one in answers if isinstance(one, Refused)]
        if refused:
            return refused[0]
        return Accepted() if any(isinstance(one, Accepted) for one in answers) else Gone()

    def _evict(self, member: Member, command: Evict, token: Token) -> Answer:
        mark, phase = member.mark, member.phase
        if phase is None or mark.attempt != command.attempt:
            return Gone()
        if token <= mark.token or phase == "done":
            return Accepted()
        write, leaves = self._api.write, bool(member.pod["metadata"].get("deletionTimestamp"))
        stopped = replace(mark, stop=True, failed="", token=token, evictions=mark.evictions + (not leaves))
        try:
            if not member.bound:
                write.mark(member, replace(stopped, evictions=mark.evictions + (phase == "starting")))
                write.free(member)
            else:
                write.evict(member, member.grace(command.grace))
                if not leaves:
                    self._board.seats.evicted(member.uid, token)
                write.mark(member, stopped)
        except self._api.GONE:
            return Accepted() if member.bound else Gone()
        except self._api.REFUSAL as error:
            return Refused(str(error), retry_after=error.retry_after or USUAL_RETRY)
        return Accepted()

    # ---- words -----------------------------------------------------------------------------------------

    def annotate(self, uid: str, text: str, token: Token) -> None:
        self._check_term(token)
        known = self._board.jobs.get(uid)
        for member in known.members if known is not None and text else ():
            if not member.bound and not member.leaves:
                with contextlib.suppress(*self._api.FAILURES):
                    self._tell(member, self._in_full(member, text))

    def _in_full(self, member: Member, text: str) -> str:
        if member.asked is None:
            return text
        return told(text, *self._room.short(member.asked.wants.needs))

    def _tell(self, member: Member, text: str) -> None:
        """Only what its users have not been told yet."""
        text = text[: self._api.LONGEST].encode(errors="replace").decode()  # as the API server stores it
        if member.told != text and self._notes < MOST_NOTES:
            self._notes += 1
            self._api.write.tell(member, text)
