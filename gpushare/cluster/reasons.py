"""Why the cluster allocator did what it did: a code and numbers first, a sentence last.

A Reason is made for every action, a hundred thousand of them in a busy second, so it only holds the numbers; the
sentence is put together when somebody asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from gpushare.cluster.quantity import format_gpus
from gpushare.quantity import count, format_bytes, format_duration


class Code(StrEnum):
    """Stable names: scripts read them. Each has its sentence in SENTENCES."""

    FREE = "free"
    """Started: there was room."""
    MOVED = "moved"
    """Room was made by moving others."""
    SHRUNK = "shrunk"
    """Room was made by shrinking elastic jobs."""
    TAKEN = "taken"
    """Room was made by stopping others."""
    TAKEN_AND_MOVED = "taken_and_moved"
    """Room was made by stopping some and moving others."""
    RECLAIM = "reclaim"
    """A queue below its share takes back what others have above theirs."""
    PREEMPT = "preempt"
    """A job of higher priority in the same queue."""
    BACKFILL_OVER = "backfill_over"
    """The gang that the GPUs were reserved for is complete."""
    GROWN = "grown"
    """An elastic job gets back what it gave."""
    NODE_LOST = "node_lost"
    INCOMPLETE = "incomplete"
    """A part of a gang was found running."""
    WITHDRAWN = "withdrawn"
    DRAINED = "drained"
    """Stopped: its node is to be empty."""
    START_FAILED = "start_failed"
    """Stopped: the engine could not start all of it."""
    TASKS_LOST = "tasks_lost"
    """Stopped: some of its tasks are gone."""
    CROWDED_OUT = "crowded_out"
    """Not started: its node was closed, or programs outside of gpushare are on its GPUs."""
    STOP_REFUSED = "stop_refused"
    """Runs on, or waits again, because a task that was told to stop does not."""

    LIMIT = "limit"
    """Waits: a queue's limit would be broken."""
    QUOTA = "quota"
    """Waits: non-preemptible jobs live within the quota."""
    NO_SPACE = "no_space"
    """Waits: nowhere is there a block that large, and the queue may not, or cannot, take from others."""
    NO_NODE = "no_node"
    """Waits for a node: none that is there matches, or none that does could hold it even if empty."""
    RESERVED = "reserved"
    """Waits: there is room, but it is kept for a gang that has waited long enough."""
    ENDING = "ending"
    """Placed; starts when those whose GPUs it gets have ended."""
    HELD = "held"
    """Waits until it is released."""
    RESTS = "rests"
    """Waits for a while after a failed start."""
    NOT_WAITING = "not_waiting"
    """Could run, and runs or was never asked about."""


SENTENCES: Mapping[Code, str | tuple[str, ...]] = {
    Code.FREE: "there is room",
    Code.MOVED: "room was made by moving {moves:running task}",
    Code.SHRUNK: "room was made by shrinking {shrunk}",
    Code.TAKEN: "room was made by stopping {victims}",
    Code.TAKEN_AND_MOVED: "room was made by stopping {victims} and moving {moves:running task}",
    Code.RECLAIM: "{for_queue} is below its share and takes back what {queue} has above its own",
    Code.PREEMPT: "{for_job} has a higher priority ({for_priority} above {priority}) in {queue}",
    Code.BACKFILL_OVER: "{for_job}, for which these GPUs were reserved, can start",
    Code.GROWN: "there is room again for {share:GPU}",
    Code.NODE_LOST: "node {node} was lost",
    Code.INCOMPLETE: "only a part of the gang was running",
    Code.WITHDRAWN: "it was withdrawn",
    Code.DRAINED: "node {node} is drained",
    Code.START_FAILED: ("attempt {attempt} did not start on {node}: {why}", "attempt {attempt} did not start: {why}"),
    Code.TASKS_LOST: "{tasks:task|tasks} of attempt {attempt} ended without being told to",
    Code.CROWDED_OUT: (
        "programs outside of gpushare are on GPU {gpu} of {node}",
        "nothing may start on {node} now",
    ),
    Code.STOP_REFUSED: "attempt {attempt} of {job} was told to stop and runs on",
    Code.LIMIT: "the limit of {queue} is {limit}, {allocated:is|are} in use and {need:more is|more are} needed",
    Code.QUOTA: "the quota of {queue} is {quota}, non-preemptible jobs hold {allocated} and need {need} more",
    Code.NO_SPACE: (
        "{free:whole GPU is|whole GPUs are} free, the largest part of another is {part}, {asked} is needed",
        "{none} is free, {tasks:block} of {need} are needed",
        "{none} is free, {need:is|are} needed",
        "{free:GPU is|GPUs are} free, the largest block is {largest}, {tasks:block} of {need} are needed",
        "{free:GPU is|GPUs are} free, the largest block is {largest}, {need:is|are} needed",
    ),
    Code.NO_NODE: (
        "no node that is there can hold it: {need} needed, the largest that matches: {largest}",
        "no node that is there matches {selects}: {need} needed",
        "there is no node: {need} needed",
    ),
    Code.RESERVED: "there is room, but it is reserved for {for_job}",
    Code.ENDING: "starts when the GPUs of {waits_for} are free",
    Code.HELD: ("it is held: {why}", "it is held"),
    Code.RESTS: "it did not start ({why}) and is tried again later, {failures:time|times} so far",
    Code.NOT_WAITING: "it does not wait",
}

"""A field with words, `{moves:task}` or `{need:more is|more are}`, is a number and the words for one or for many. Of
several sentences it is the first whose fields are all known."""

AMOUNTS = frozenset({"limit", "quota", "allocated", "need", "share", "free", "largest", "over", "part", "victim_share"})
"""Names of numbers that are micro-GPUs, for people shown as GPUs."""
SECONDS = frozenset({"until", "waited"})
MOST_NAMES = 8
"""Of more than these the rest is counted."""


@dataclass(frozen=True, slots=True)
class Reason:
    code: Code
    data: Mapping[str, Any] = field(default_factory=dict)
    """The numbers (micro-GPU, seconds) and names, by stable names."""

    @property
    def message(self) -> str:
        """One line, no full stop."""
        shown = {name: _Shown(text) for name, text in self._texts()}
        if "part" in shown:
            shown["asked"] = _Shown(_asked(self.data))
        if self.data.get("free") == 0:
            shown["none"] = _Shown("no GPU")
        sentences = SENTENCES[self.code]
        for sentence in (sentences,) if isinstance(sentences, str) else sentences:
            try:
                return sentence.format(**shown) + self._aside()
            except KeyError:
                pass  # a state that an older version has written may lack a number
        return self.code.value.replace("_", " ")

    def _aside(self) -> str:
        """Of what is missing: that it is there, and closed."""
        closed = self.data.get("closed", 0)
        return f"; nothing may start on {count(closed, 'node')} now" if closed else ""

    @property
    def facts(self) -> tuple[tuple[str, str], ...]:
        """All numbers as (label, text), in the order in which they were found."""
        return tuple((name.replace("_", " "), text) for name, text in self._texts())

    def _texts(self) -> Iterator[tuple[str, str]]:
        in_bytes = "bytes" in self.data
        for name, value in self.data.items():
            yield name, format_bytes(value) if name == "bytes" or (in_bytes and name == "part") else show(name, value)


class _Shown(str):
    """A number or name of a sentence; with a format specification the words that go with one or with many."""

    __slots__ = ()

    def __format__(self, words: str) -> str:
        if not words:
            return str(self)
        one, _, many = words.partition("|")
        return f"{self} {one if self == '1' else many or f'{one}s'}"


def _asked(data: Mapping[str, Any]) -> str:
    """What a job that shares GPUs needs: 0.3 of a GPU, 4 times 40.0 GiB of each of 2 GPUs."""
    amount = format_bytes(data["bytes"]) if "bytes" in data else show("share", data["share"])
    gpus = show("need", data["need"])
    times = f"{data['tasks']} times " if "tasks" in data else ""
    return f"{times}{amount} of {'a GPU' if gpus == '1' else f'each of {gpus} GPUs'}"


def show(name: str, value: Any) -> str:
    """A number of a reason as people read it."""
    if name in AMOUNTS and isinstance(value, int):
        return format_gpus(value)
    if name in SECONDS and isinstance(value, (int, float)):
        return format_duration(float(value))
    if isinstance(value, (tuple, list)):
        names = [str(one) for one in value[:MOST_NAMES]]
        return ", ".join(names) + (f" and {len(value) - MOST_NAMES} more" if len(value) > MOST_NAMES else "")
    return str(value)


THERE_IS_ROOM = Reason(Code.FREE)
"""The reason of most starts, made once."""
