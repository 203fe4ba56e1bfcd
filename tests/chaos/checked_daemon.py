"""The real daemon, which holds every invariant of its core against every event; a breach is in its count of errors."""

from __future__ import annotations

import sys

from gpushared.cli import main
from gpushared.core.events import Event
from gpushared.core.instructions import Instruction
from gpushared.core.node import NodeState

handle = NodeState.handle


def handle_and_validate(self: NodeState, event: Event, now: float) -> list[Instruction]:
    instructions = handle(self, event, now)
    self.validate()
    return instructions


if __name__ == "__main__":
    NodeState.handle = handle_and_validate  # type: ignore[method-assign]
    sys.exit(main())
