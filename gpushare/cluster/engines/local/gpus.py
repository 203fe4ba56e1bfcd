"""The GPUs of this machine as nodes of the cluster, as the node daemon shows them.

GPUs of one kind and size make a node: the allocator takes the GPUs of a node to be alike. On most machines that is one
node, with the machine's name; where there are several, the kind is added to the name.
"""

from __future__ import annotations

import re
import socket
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from gpushare import api, locate
from gpushare.client import Client, Events
from gpushare.cluster.engines.seam import SeenNode, Unanswered
from gpushare.cluster.model import Node
from gpushare.config import load_settings
from gpushare.errors import DaemonUnreachable, GpushareError

__all__ = ["Daemon", "Look", "nodes_of", "seen"]

USABLE = ("ok", "degraded")
"""The health of GPUs on which jobs may start."""


class Look(NamedTuple):
    """What the daemon showed."""

    gpus: Sequence[api.Gpu]
    jobs: Sequence[api.Job]
    kept: Mapping[str, int]
    """Bytes of each GPU, by UUID, that reservations keep and no job has requested."""


def nodes_of(gpus: Iterable[api.Gpu], host: str) -> list[Node]:
    kinds: dict[tuple[str, int], list[api.Gpu]] = {}
    for gpu in sorted(gpus, key=lambda gpu: gpu["index"]):
        kinds.setdefault((gpu["name"], gpu["total"]), []).append(gpu)
    found: list[Node] = []
    for (kind, total), alike in kinds.items():
        name = host if len(kinds) == 1 else f"{host}-{_slug(kind)}"
        if any(node.name == name for node in found):
            name = f"{name}-{total // 2**30}g"  # the same model with another size of memory
        broken = frozenset(place for place, gpu in enumerate(alike) if gpu["health"]["state"] not in USABLE)
        found.append(
            Node(
                name=name,
                gpus=len(alike),
                memory=min(gpu["capacity"] for gpu in alike),
                type=kind,
                broken=broken,
                uuids=tuple(gpu["uuid"] for gpu in alike),
            )
        )
    return found


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def seen(nodes: Iterable[Node], look: Look, ours: Collection[str]) -> Iterator[SeenNode]:
    """With what is in use on each GPU by others than the jobs with the ids `ours`."""
    used: Counter[str] = Counter({gpu["uuid"]: gpu["unmanaged"] for gpu in look.gpus})
    used.update(look.kept)
    for job in look.jobs:
        if job["id"] not in ours:
            used.update({gpu["uuid"]: gpu["request"] for gpu in job["gpus"]})
    for node in nodes:
        foreign = tuple((place, used[uuid]) for place, uuid in enumerate(node.uuids) if used[uuid])
        yield SeenNode(node, foreign=foreign)


class Daemon:
    """The node daemon that tasks are started under. In a user's own engine it is started if there is none."""

    def __init__(self, environ: Mapping[str, str], *, start: bool) -> None:
        self.settings = load_settings({}, environ)
        self._start = start
        self._host = socket.gethostname().split(".")[0] or "localhost"
        self._node: locate.Node | None = None
        self.events: Events[api.Record] | None = None
        """Tells that something has changed. While it is open, a daemon of this user's own does not end for idleness."""
        self._last: list[Node] = []

    def nodes(self, ours: Collection[str]) -> list[SeenNode]:
        """The nodes as they are; in state unknown while the daemon does not answer. Unanswered if it never has."""
        try:
            look = self._look()
        except GpushareError as error:
            self._forget()
            if not self._last:
                raise Unanswered(error.message) from None
            return [SeenNode(node, "unknown") for node in self._last]
        self._last = nodes_of(look.gpus, self._host)
        return list(seen(self._last, look, ours))

    def uuids(self, node: str, gpus: Iterable[int]) -> tuple[str, ...] | None:
        """None: there is no such node, or no such GPU there."""
        found = next((one for one in self._last if one.name == node), None)
        places = tuple(gpus)
        if found is None or not all(0 <= place < found.gpus for place in places):
            return None
        return tuple(found.uuids[place] for place in places)

    def memory(self, node: str) -> int:
        """Bytes of one GPU."""
        return next((one.memory for one in self._last if one.name == node), 0)

    def place(self) -> locate.Node:
        """Where the daemon is. Raises GpushareError."""
        if self._node is None:
            find = locate.for_run if self._start else locate.find
            self._node = find(self.settings)
        return self._node

    def client(self) -> Client:
        return self.place().client()

    def close(self) -> None:
        self._forget()

    def _look(self) -> Look:
        try:
            return self._ask()
        except DaemonUnreachable:
            self._forget()  # it may have been replaced by another, elsewhere
            return self._ask()

    def _ask(self) -> Look:
        client = self.client()
        if self.events is None or self.events.ended:
            self._forget_events()
            self.events = client.follow(0)
        status = client.status()
        kept: Counter[str] = Counter()
        for one in client.reservations():
            kept.update({gpu["uuid"]: gpu["remainder"] for gpu in one["gpus"]})
        return Look(status["gpus"], [job for job in status["jobs"] if job["state"] != "queued"], kept)

    def _forget(self) -> None:
        self._node = None
        self._forget_events()

    def _forget_events(self) -> None:
        if self.events is not None:
            self.events.close()
        self.events = None
