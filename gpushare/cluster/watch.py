"""What each blocked class waits for.

An Ask (jobs.py) that cannot be met keeps the keys of what could change that:

    LIMIT queue    something is given back below the queue, or its limit or quota is another
    QUEUE leaf     jobs of its own queue start, stop or can be stopped from now on, or the share is another
    FREED          something was given back on a node, and what is free there might be of use
    OVER           a queue above its quota changes, or one of its jobs can be stopped from now on
    ANY            anything: the search for it has spent its steps, so a state that is no better may be searched further
    NEXT           a turn passes: what was given a place in this one can go in the next

Room is not a key: `crowded` lists the shapes that wait for it, for all of their classes at once. They are looked at
when something is freed on their nodes, or others could be moved. Two memories of failures are kept elsewhere: a shape's
`full` and an ask's gate say that there was no place, and `failed` (holes.py) that moves made none, at one version of
the state.

Changes of the ledger are noted as news (`freed`, `dropped`, `changed`, `loose`). news.py publishes them: each key has
its listeners, and these are looked at again. A key may be published too often, which costs time; never too seldom,
which would cost a job its start. Few keys are enough because some changes never help a job that waits: a start takes
room and gives none, and a queue that comes nearer to its share gives no other queue a claim.

This is a cache: an allocator that knows only who runs where looks at all classes, and decides the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from gpushare.cluster.journal import Journal
from gpushare.cluster.space import NodeState

if TYPE_CHECKING:
    from gpushare.cluster.jobs import Ask
    from gpushare.cluster.queues import QueueState
    from gpushare.cluster.shapes import Shape


class About(StrEnum):
    LIMIT = "limit"
    QUEUE = "queue"
    FREED = "freed"
    OVER = "over"
    NEXT = "next"
    ANY = "any"


class Key(NamedTuple):
    about: About
    what: object = None
    """A queue."""


FREED = Key(About.FREED)
OVER = Key(About.OVER)
NEXT = Key(About.NEXT)
ANY = Key(About.ANY)


class Watch:
    __slots__ = (
        "changed",
        "crowded",
        "dropped",
        "freed",
        "journal",
        "keys",
        "leaves",
        "listening",
        "loose",
        "unread",
        "woken",
    )

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.listening: dict[Key, dict[Ask, None]] = {}
        self.keys: dict[Ask, tuple[Key, ...]] = {}
        """The same by ask."""
        self.crowded: dict[Shape, None] = {}
        """Shapes that wait for room, for all of their classes."""
        self.unread = False
        """The state was read from a file: nothing is known about who is blocked."""
        # What follows is empty between turns. To be tried where there is room:
        self.leaves: dict[QueueState, None] = {}
        self.woken: dict[Ask, None] = {}
        """For these room may be made."""
        # News:
        self.freed: list[NodeState] = []
        """Nodes of which something was given back."""
        self.dropped: list[QueueState] = []
        """Leaves that hold less."""
        self.changed: dict[QueueState, None] = {}
        """Leaves whose jobs or share are others."""
        self.loose = False
        """Some job can be moved from now on, or something was freed on a node that has room now."""

    def sleep(self, ask: Ask, keys: tuple[Key, ...]) -> None:
        """It is blocked, and these keys wake it."""
        if self.keys.get(ask) == keys:
            return
        self.forget(ask)
        journal = self.journal
        journal.put(self.keys, ask, keys)
        for key in keys:
            heard = self.listening.get(key)
            if heard is None:
                heard = self.listening[key] = {}
            journal.put(heard, ask, None)

    def forget(self, ask: Ask) -> None:
        """It waits for nothing any more."""
        for key in self.keys.get(ask, ()):
            self.journal.drop(self.listening[key], ask)
        self.journal.drop(self.keys, ask)

    def publish(self, key: Key) -> None:
        heard = self.listening.get(key)
        if heard:
            self.woken.update(heard)

    def publish_all(self) -> None:
        """So much has changed that all are looked at again."""
        self.woken.update(dict.fromkeys(self.keys))
        self.loose = True

    def heard(self, key: Key) -> Iterable[Ask]:
        return self.listening.get(key, ())

    def quiet(self) -> bool:
        """Is there nothing left to be tried, and no news?"""
        return not (self.leaves or self.freed or self.dropped or self.changed or self.woken or self.loose)

    def clear(self) -> None:
        """A turn is undone."""
        for table in (self.leaves, self.woken, self.freed, self.dropped, self.changed):
            table.clear()
        self.loose = False
