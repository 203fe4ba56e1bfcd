"""The allocator: `Allocator.handle(event, now)` returns actions. The interface; what is behind it follows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpushare.cluster.model import (
    Action,
    Event,
    Explanation,
    JobView,
    Loan,
    NodeView,
    Policy,
    QueueView,
    Share,
    WhatIf,
)

__all__ = ["Allocator"]


class Allocator:
    """One cluster. See model.py for what goes in and comes out."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.policy = policy or Policy()

    def handle(self, event: Event | Iterable[Event], now: float) -> list[Action]:
        """What follows from the event, or from several that come together; all or nothing."""
        raise NotImplementedError

    def explain(self, job: str) -> Explanation:
        """Why a job waits or runs. NoSuchJob if it is unknown."""
        raise NotImplementedError

    def what_if(self, changes: Iterable[Event]) -> WhatIf:
        """What would happen after these events; the state is as before."""
        raise NotImplementedError

    def shares(self) -> dict[str, Share]:
        """By queue, in the order in which the queues came."""
        raise NotImplementedError

    def loans(self) -> list[Loan]:
        """Who borrows from whom."""
        raise NotImplementedError

    @property
    def next_wake(self) -> float | None:
        """When time alone changes something: a protection or a hold ends, a job has waited long enough."""
        raise NotImplementedError

    def validate(self) -> None:
        """Raise AssertionError if the state contradicts itself or an invariant."""
        raise NotImplementedError

    def dump(self) -> dict[str, Any]:
        """The whole state as plain sorted data: equal states give equal dumps."""
        raise NotImplementedError

    @property
    def jobs(self) -> Mapping[str, JobView]:
        raise NotImplementedError

    @property
    def queues(self) -> Mapping[str, QueueView]:
        raise NotImplementedError

    @property
    def nodes(self) -> Mapping[str, NodeView]:
        raise NotImplementedError
