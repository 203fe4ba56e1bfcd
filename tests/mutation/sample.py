"""Which changes are tried: places at random, the same for the same seed and sources."""

from __future__ import annotations

import random
from collections.abc import Iterator

from mutation import c_changes, python_changes
from mutation.change import Change
from mutation.groups import ROOT, Group


def find(path: str, source: bytes) -> list[Change]:
    """All changes of one source."""
    return (python_changes if path.endswith(".py") else c_changes).changes(path, source)


def every(group: Group) -> Iterator[Change]:
    """All changes that could be drawn."""
    for path in group.files():
        yield from find(path, (ROOT / path).read_bytes())


def draw(group: Group, seed: int) -> Iterator[Change]:
    """Every line that can be changed, in random order, with one change for each."""
    sources = {path: (ROOT / path).read_bytes() for path in group.files()}
    by_line: dict[tuple[str, int], list[Change]] = {}
    for change in every(group):
        by_line.setdefault((change.path, change.line_number(sources[change.path])), []).append(change)
    chance = random.Random(f"{seed} {group.name}")
    places = sorted(by_line)
    chance.shuffle(places)
    for place in places:
        yield chance.choice(by_line[place])
