"""Which service leads: a Lease of the API server, which only one can change at a time.

Whether the lease of another has run out is measured by this process's own clock, from when it saw the lease change. So
clocks of machines may differ.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from gpushare.cluster.engines.kubernetes.names import LEASES
from gpushare.cluster.engines.seam import Unanswered
from gpushare.errors import GpushareError, NoSuchJob
from gpushare.kubernetes.server import Answer, Server

__all__ = ["Leadership"]

LONGER = 1.5
"""A lease lasts so many times as long as it was asked for: it is not written in each round."""
RENEW = 0.5
"""It is written again when this part of what was asked for is over."""
CONFLICT = 409


class Leadership:
    def __init__(self, server: Server, namespace: str, name: str, clock: Callable[[], float]) -> None:
        """`clock`: seconds that only go forward."""
        self._server = server
        self._all = LEASES.format(namespace)
        self._name = name
        self._clock = clock
        self._holder = ""
        self._renewed = 0.0
        self._seen: tuple[str, float] = ("", 0.0)
        """The version of the lease, and since when it is so."""
        self.term = 0
        """Of this process; 0: it does not lead."""
        self.newest = 0
        """Of all terms that were seen."""

    def lead(self, holder: str, seconds: float, least: int) -> int | None:
        """Lead for so long, in a term above `least`. None while another leads. Raises Unanswered."""
        now = self._clock()
        if self.term and holder == self._holder and self._renewed <= now < self._renewed + RENEW * seconds:
            return self.term
        try:
            found = self._read()
            spec = {} if found is None else found.get("spec") or {}
            there, transitions = spec.get("holderIdentity") or "", int(spec.get("leaseTransitions") or 0)
            self.newest = max(self.newest, transitions)
            mine = bool(self.term) and (there, transitions, self._holder) == (holder, self.term, holder)
            if there and there != holder and now < self._seen[1] + int(spec.get("leaseDurationSeconds") or 0):
                self.term = 0
                return None
            term = transitions if mine else 1 + max(transitions, least)
            self._write(found, holder, seconds, term, mine=mine)
        except Answer as error:
            if error.status == CONFLICT:
                self.term = 0  # another was faster
                return None
            raise Unanswered(str(error)) from None
        except GpushareError as error:
            raise Unanswered(str(error)) from None
        self.term, self._holder, self._renewed = term, holder, now
        self.newest = max(self.newest, term)
        return term

    def release(self) -> None:
        """Another may lead at once."""
        if not self.term:
            return
        with contextlib.suppress(GpushareError):
            found = self._read()
            spec = {} if found is None else found["spec"]
            if found is not None and (spec.get("holderIdentity"), spec.get("leaseTransitions")) == (
                self._holder,
                self.term,
            ):
                self._put({**found, "spec": {**spec, "holderIdentity": "", "leaseDurationSeconds": 1}})
        self.term = 0

    def _read(self) -> dict[str, Any] | None:
        try:
            found = self._server.ask("GET", f"{self._all}/{self._name}")
        except NoSuchJob:
            return None
        changed = str(found["metadata"]["resourceVersion"])
        if changed != self._seen[0]:
            self._seen = changed, self._clock()
        return found

    def _write(self, found: dict[str, Any] | None, holder: str, seconds: float, term: int, *, mine: bool) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {} if found is None else dict(found.get("spec") or {})
        spec |= {"holderIdentity": holder, "leaseDurationSeconds": math.ceil(LONGER * seconds), "renewTime": now}
        spec |= {"leaseTransitions": term} | ({} if mine else {"acquireTime": now})
        if found is not None:
            self._put({**found, "spec": spec})
            return
        made = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": self._name}, "spec": spec}
        self._note(self._server.ask("POST", self._all, made))

    def _put(self, lease: dict[str, Any]) -> None:
        self._note(self._server.ask("PUT", f"{self._all}/{self._name}", lease))

    def _note(self, written: dict[str, Any]) -> None:
        self._seen = str(written["metadata"]["resourceVersion"]), self._clock()
