"""What a start writes, in which order, and what is undone where a part of it is refused. Starts of different jobs may
overlap, step by step in several threads (stepwise.py): none touches what another does."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpushare.cluster.engines.kubernetes import local_volumes, writes
from gpushare.cluster.engines.kubernetes.board import Due
from gpushare.cluster.engines.kubernetes.mark import Mark
from gpushare.cluster.engines.kubernetes.names import Thing
from gpushare.cluster.engines.seam import Accepted, Answer, Gone, Refused

__all__ = ["FAILURES", "Starter"]

FAILURES = (writes.Conflict, writes.Gone, writes.Refusal)


MADE_WITHIN = 600.0
"""Seconds that its volumes may take."""


def too_few_volumes(due: Sequence[Due]) -> str:
    """A node where the volumes that are there are too few for all of these; "": there is none."""
    wishes: dict[str, list[Sequence[Thing]]] = {}
    for one in due:
        there = [claim.there for claim in one.unmade or () if claim.there is not None]
        wishes.setdefault(one.mark.node, []).extend(there)
    return next((node for node, those in wishes.items() if not local_volumes.enough(those)), "")


@dataclass(frozen=True, slots=True)
class Starter:
    """Each method may raise Unanswered and Deposed."""

    write: writes.Writer
    clock: Callable[[], float] = time.monotonic
    told: dict[tuple[str, int], float] = field(default_factory=dict)
    """When who makes volumes was told the node of a pod's attempt."""

    def start(self, due: Sequence[Due], classes: Mapping[str, Thing]) -> Generator[None, None, Answer]:
        """All marks, then all claims, then all volumes, then all bindings: what a pod of a group lacks is known before
        one is bound, and none is while the volume of another is made. The mark of one alone comes with its binding.
        Unless it is Accepted, those that are not bound hold nothing.

        It stops once, for starts of others: an API server that is asked at once for the next change of a claim has not
        seen the last one in its own cache yet, and does most of its work twice."""
        begun: list[Due] = []
        crowded = too_few_volumes(due)
        if crowded:
            return Refused("too few of its volumes are free there", crowded)
        makes_volumes = any(one.unmade for one in due)
        for one in due:
            try:
                if makes_volumes or len(due) > 1:
                    self.write.mark(one.member, one.mark)
            except writes.Gone:
                return self._undo(begun, Gone())
            except writes.Refusal as error:
                return self._undo(begun, Refused(str(error)))
            begun.append(one)
        steps = [self._protect, lambda one: self._allocate(one, classes), self._make_volumes]
        for step in steps if makes_volumes else [*steps, self._bind]:
            for one in due:
                refused = step(one)
                if refused is not None:
                    return self._undo(begun, refused)
            if step == self._protect:
                yield
        return Accepted()

    def finish(self, one: Due, classes: Mapping[str, Thing]) -> Refused | None:
        """What is left of a start of which the mark is there. Where that is refused, it holds nothing."""
        refused = self._protect(one) or self._allocate(one, classes) or self._make_volumes(one) or self._bind(one)
        if refused is not None and one.member.joins:
            self.write.mark(one.member, Mark(token=one.mark.token))  # the task goes on without it
            self.write.free(one.member)
        elif refused is not None:
            self._fail(one, refused)
        return refused

    def _undo(self, begun: Sequence[Due], answer: Answer) -> Answer:
        """What is bound stays, and is evicted by the loop."""
        why = answer if isinstance(answer, Refused) else Refused("a pod of it is gone")
        for one in begun:
            if one.member.bound:
                continue
            try:
                self._fail(one, why)
            except writes.Gone:
                answer = Gone()
            except FAILURES:
                continue  # the next look finds what is left of it
        return answer

    def _fail(self, one: Due, why: Refused) -> None:
        """Raises Gone if the pod is. It holds nothing then either."""
        self.told.pop((one.member.uid, one.mark.attempt), None)
        try:
            self.write.mark(one.member, replace(one.mark, failed=why.why, blame=why.node is not None))
        except writes.Gone:
            self.write.free(one.member)
            raise
        self.write.free(one.member)

    def _protect(self, one: Due) -> Refused | None:
        if one.devices is None:
            return Refused(f"there is no GPU {one.mark.gpus} on {one.mark.node}", one.mark.node)
        if one.member.asked is None:
            return Refused("one of its claims is gone")
        try:
            self.write.protect(one.member)
        except FAILURES as error:
            return Refused(str(error) or "one of its claims is gone")
        return None

    def _allocate(self, one: Due, classes: Mapping[str, Thing]) -> Refused | None:
        assert one.devices is not None
        try:
            self.write.allocate(one.member, one.mark, classes, one.devices, one.blocks)
        except FAILURES as error:
            return Refused(str(error) or "one of its claims is gone")
        return None

    def _make_volumes(self, one: Due) -> Refused | None:
        """Told once for a start. Who makes volumes takes that back when it cannot: then it is another node's turn."""
        which, now = (one.member.uid, one.mark.attempt), self.clock()
        if not one.fits:
            return Refused(f"its volumes are not where {one.mark.node} is")
        if one.unmade is None:
            return Refused("too few of its volumes are free there", one.mark.node)
        if not one.unmade:
            self.told.pop(which, None)
            return None
        here = all(claim.is_told(one.mark.node) for claim in one.unmade)
        if which in self.told and (not here or now > self.told[which] + MADE_WITHIN):
            return Refused("its volumes cannot be made there", one.mark.node)
        self.told.setdefault(which, now)
        if here:
            return None
        try:
            self.write.make_volumes(one.unmade, one.mark.node)
        except writes.Taken as error:
            return Refused(str(error), one.mark.node)
        except FAILURES as error:
            return Refused(str(error) or "a claim of its volumes is gone")
        return None

    def _bind(self, one: Due) -> Refused | None:
        """It waits for volumes that are made now."""
        if one.unmade:
            return None
        try:
            self.write.bind(one.member, one.mark)
        except FAILURES as error:
            return Refused(str(error) or "it is gone")
        return None
