"""The part of the engine that keeps queues: objects of the kind Queue, which administrators write."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from gpushare.cluster.engines.kubernetes import queue_objects
from gpushare.cluster.engines.kubernetes.names import QUEUES
from gpushare.cluster.engines.seam import QueueTold, Unanswered
from gpushare.cluster.model import Queue

if TYPE_CHECKING:
    from gpushare.cluster.engines.kubernetes.api import Api

__all__ = ["QueueKeeper"]

log = logging.getLogger(__name__)


class QueueKeeper:
    _api: Api

    def queues(self) -> Mapping[str, Queue | str] | None:
        found = self._api.listed_queues()
        return None if found is None else {name: queue_objects.read(one) for (_, name), one in found.items()}

    def tell_queues(self, told: Mapping[str, QueueTold]) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        for (_, name), one in (self._api.listed_queues() or {}).items():
            status = queue_objects.status(one, told[name], now) if name in told else None
            if status is None:
                continue
            try:
                self._api.write.status(f"{QUEUES}/{name}", status, self._api.watched[QUEUES])
            except (*self._api.FAILURES, Unanswered) as error:
                log.warning("queue %s: %s", name, error or type(error).__name__)
