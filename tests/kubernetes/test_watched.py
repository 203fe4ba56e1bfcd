"""What is known of a collection while its watch lags behind what this process has written itself."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from gpushare.cluster.engines.kubernetes.cache import Watched

PODS = "/api/v1/pods"
KEY = ("default", "p")
WITHIN = 10.0


class Lagging:
    """An API server of one pod. Its watch tells what the test puts into `events`; None ends it."""

    def __init__(self) -> None:
        self.events: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()

    def ask(self, _method: str, _path: str) -> dict[str, Any]:
        return {"metadata": {"resourceVersion": "5"}, "items": [pod(5)]}

    def stream(self, _path: str, _silence: float) -> Lagging:
        return self

    def objects(self) -> Iterator[dict[str, Any]]:
        yield from iter(self.events.get, None)

    def end(self) -> None:
        self.events.put(None)


def pod(version: int, *, uid: str = "u", **spec: str) -> dict[str, Any]:
    meta = {"namespace": KEY[0], "name": KEY[1], "uid": uid, "resourceVersion": str(version)}
    return {"metadata": meta, "spec": spec}


class Stage:
    def __init__(self) -> None:
        self.server, self.noted = Lagging(), threading.Semaphore(0)
        self.watched = Watched(self.server, PODS, self.noted.release)  # type: ignore[arg-type]
        self.wait()

    def wait(self) -> None:
        assert self.noted.acquire(timeout=WITHIN)

    def tell(self, kind: str, thing: dict[str, Any]) -> None:
        self.server.events.put({"type": kind, "object": thing})
        self.wait()

    def now(self) -> dict[str, Any] | None:
        return self.watched.objects(WITHIN)[0].get(KEY)


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    yield made
    made.watched.close()


def test_what_was_written_outlives_the_watch_that_tells_the_write_before(stage: Stage) -> None:
    """A binding is answered without the object: what it has changed is known under the version of the mark."""
    bound = pod(6, nodeName="n1")
    stage.watched.put(pod(6))
    stage.watched.put(bound)
    stage.tell("MODIFIED", pod(6))
    assert stage.now() is bound


def test_a_later_version_replaces_it(stage: Stage) -> None:
    stage.watched.put(pod(6, nodeName="n1"))
    later = pod(7, nodeName="n2")
    stage.tell("MODIFIED", later)
    assert stage.now() is later


@pytest.mark.parametrize("told", [5, 6])
def test_what_is_known_stays_the_same_object(stage: Stage, told: int) -> None:
    """Who reads an object again only when it is another one has nothing to do."""
    mine = pod(6)
    stage.watched.put(mine)
    stage.tell("MODIFIED", pod(told))
    assert stage.now() is mine


def test_a_pod_that_was_made_again_is_the_new_one(stage: Stage) -> None:
    stage.tell("DELETED", pod(8))
    assert stage.now() is None
    stage.tell("ADDED", pod(9, uid="v"))
    assert stage.now() == pod(9, uid="v")


def test_what_a_write_answers_late_is_not_brought_back(stage: Stage) -> None:
    stage.tell("DELETED", pod(8))
    stage.watched.put(pod(7))
    assert stage.now() is None
