"""The undo journal: every change of the allocator's state leaves here how to take it back.

There are no snapshots. A search changes the state in place, looks, and undoes; a what-if is a whole turn that is
undone. Entries are (function, arguments...) that restore what was before, newest last. Undoing never depends on
positions in containers, only on names and numbers, and nothing is ever decided by a container's order of insertion:
so a state that was changed and restored decides the same as one that was not touched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

MISSING = object()


class Journal:
    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries: list[tuple[Any, ...]] = []

    def mark(self) -> int:
        return len(self.entries)

    def undo(self, mark: int) -> None:
        entries = self.entries
        while len(entries) > mark:
            function, *arguments = entries.pop()
            function(*arguments)

    def clear(self) -> None:
        self.entries.clear()

    def note(self, function: Callable[..., object], *arguments: Any) -> None:
        self.entries.append((function, *arguments))

    def set(self, thing: Any, name: str, value: Any) -> None:
        """thing.name = value"""
        self.entries.append((setattr, thing, name, getattr(thing, name)))
        setattr(thing, name, value)

    def put(self, table: dict[Any, Any], key: Any, value: Any) -> None:
        """table[key] = value"""
        old = table.get(key, MISSING)
        self.entries.append((table.pop, key) if old is MISSING else (table.__setitem__, key, old))
        table[key] = value

    def drop(self, table: dict[Any, Any], key: Any) -> None:
        """del table[key], if it is there"""
        if key in table:
            self.entries.append((table.__setitem__, key, table.pop(key)))
