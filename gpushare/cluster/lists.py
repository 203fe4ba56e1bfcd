"""Ordered lists of jobs: by their sequence numbers, or by when they started."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Generic, TypeVar

Run = tuple[float, int, int]
"""When a job started, how often it was evicted (negative), its sequence number: if nothing else counts,
the last of these costs the least to stop."""

Key = TypeVar("Key", int, Run)


class SeqList(Generic[Key]):
    """Sequence numbers, or runs, in rising order; cheap at both ends, where nearly all changes happen."""

    __slots__ = ("head", "items")

    def __init__(self) -> None:
        self.items: list[Key] = []
        self.head = 0

    def __len__(self) -> int:
        return len(self.items) - self.head

    def __iter__(self) -> Iterator[Key]:
        return iter(self.items[self.head :])

    def __bool__(self) -> bool:
        return self.head < len(self.items)

    def __contains__(self, seq: Key) -> bool:
        index = bisect_left(self.items, seq, self.head)
        return index < len(self.items) and self.items[index] == seq

    def newest_first(self) -> Iterator[Key]:
        """Of the list as it was when the iteration began."""
        return iter(self.items[self.head :][::-1]) if len(self) < 64 else self._newest_first()

    def _newest_first(self) -> Iterator[Key]:
        items = self.items
        for index in range(len(items) - 1, self.head - 1, -1):
            yield items[index]

    def falling(self) -> Iterator[Key]:
        """Newest first; the list may change between two, each time."""
        index = len(self.items) - 1
        while index >= self.head:
            seq = self.items[index]
            yield seq
            index = bisect_left(self.items, seq, self.head) - 1

    @property
    def first(self) -> Key:
        return self.items[self.head]

    def add(self, seq: Key) -> None:
        items, head = self.items, self.head
        if head == len(items):
            items.clear()
            items.append(seq)
            self.head = 0
        elif seq > items[-1]:
            items.append(seq)
        elif head and seq < items[head]:
            self.head = head - 1
            items[head - 1] = seq
        else:
            insort(items, seq, head)

    def remove(self, seq: Key) -> None:
        items, head = self.items, self.head
        if items[head] == seq:
            self.head = head + 1
            if self.head > 64 and self.head * 2 > len(items):
                del items[: self.head]
                self.head = 0
        elif items[-1] == seq:
            items.pop()
        else:
            index = bisect_left(items, seq, head)
            assert items[index] == seq
            del items[index]
