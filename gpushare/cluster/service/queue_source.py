"""Queues that an engine keeps, as objects of a Kubernetes cluster for instance: the ledger follows them.

Where there are such, they alone say what queues have. A queue of which there is no object, because it was removed or
because a user's first job made it, is as one of a user's own: without a quota.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from gpushare.cluster.engines.seam import KeepsQueues, QueueTold
from gpushare.cluster.model import Event, Queue, QueueAdded, QueueChanged, QueueView
from gpushare.cluster.store import Store
from gpushare.errors import NoSuchJob, UsageError

__all__ = ["QueueSource", "changes"]

TELL_EVERY = 5.0
"""Seconds."""


def changes(
    known: Mapping[str, QueueView], wanted: Mapping[str, Queue], own: Callable[[str], Queue]
) -> Iterator[Event]:
    """What makes the one the other; parents before their children."""
    for name, view in known.items():
        mine = replace(own(name), parent=view.queue.parent)
        if name not in wanted and view.queue != mine:
            yield QueueChanged(mine)
    left, there = dict(wanted), set(known)
    while ready := [one for one in left.values() if one.parent is None or one.parent in there]:
        for queue in ready:
            there.add(queue.name)
            del left[queue.name]
            if queue.name not in known:
                yield QueueAdded(queue)
            elif known[queue.name].queue != queue:
                yield QueueChanged(queue)
    for queue in left.values():  # the ledger says what is wrong with them
        yield QueueChanged(queue) if queue.name in known else QueueAdded(queue)


class QueueSource:
    def __init__(self, engine: KeepsQueues, store: Store, own: Callable[[str], Queue]) -> None:
        """`own`: the queue of a user who has no other."""
        self._engine = engine
        self._store = store
        self._own = own
        self._said: Mapping[str, Queue | str] | None = None
        self._wrong: dict[str, str] = {}
        self._told_at = 0.0

    def follow(self, append: Callable[[Sequence[Event]], object]) -> None:
        """Change the ledger's queues to those that the engine keeps. Raises Unanswered."""
        said = self._engine.queues()
        self._said = said
        if said is None:
            return
        wrong = {name: one for name, one in said.items() if isinstance(one, str)}
        wanted = {name: one for name, one in said.items() if isinstance(one, Queue)}
        known = self._store.allocator.queues
        kept = {name: known[name].queue for name in wrong if name in known}  # until it makes sense again
        for event in changes(known, kept | wanted, self._own):
            try:
                append([event])
            except (UsageError, NoSuchJob) as error:
                assert isinstance(event, QueueAdded | QueueChanged)
                wrong[event.queue.name] = f"{error.message} ({error.hint})" if error.hint else error.message
        self._wrong = wrong

    def tell(self, now: float) -> None:
        """Say how queues are, at most every few seconds. `now`: seconds that may jump."""
        if self._said is None or abs(now - self._told_at) < TELL_EVERY:
            return
        self._told_at = now
        allocator = self._store.allocator
        views, shares = allocator.queues, allocator.shares()
        told = {}
        for name in self._said:
            view, wrong = views.get(name), self._wrong.get(name, "")
            if view is None:
                told[name] = QueueTold(0, 0, 0, 0, wrong)
            else:
                told[name] = QueueTold(view.allocated, shares[name].share, view.pending, view.running, wrong)
        self._engine.tell_queues(told)
