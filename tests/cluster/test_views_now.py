"""What the allocator shows of jobs, queues and nodes, whole views: a field that says nothing is None or empty."""

from __future__ import annotations

import json
import math

from gpushare.cluster.allocator import Allocator
from gpushare.cluster.answers import JobView, NodeView, QueueView
from gpushare.cluster.codec import plain
from gpushare.cluster.model import (
    ForeignUse,
    Job,
    JobHeld,
    JobSubmitted,
    Node,
    NodeAdded,
    NodeCordoned,
    NodeLost,
    NodeUnknown,
    Policy,
    Queue,
    QueueAdded,
    Start,
    Started,
    StartFailed,
    Tasks,
)
from gpushare.cluster.quantity import MICRO

GIB = 2**30
WIDE = (Tasks(gpus=4),)
"""No node has so many."""


def cluster(*events: object, endings: str = "instant") -> Allocator:
    one = Allocator(Policy(endings=endings))  # type: ignore[arg-type]
    nodes = [NodeAdded(Node("n1", 2, 80 * GIB)), NodeAdded(Node("n2", 1, 40 * GIB))]
    one.handle([*nodes, QueueAdded(Queue("a", quota=2 * MICRO)), QueueAdded(Queue("b", quota=MICRO))], 100.0)
    for event in events:
        one.handle(event, 110.0)
    return one


def submitted(name: str, queue: str = "a", **more: object) -> JobSubmitted:
    return JobSubmitted(Job(name, queue, **more))  # type: ignore[arg-type]


def without_reason(view: JobView) -> dict[str, object]:
    return {name: getattr(view, name) for name in JobView.__slots__ if name != "reason"}


QUIET = {
    "attempt": 0,
    "rung": 0,
    "places": (),
    "charge": 0,
    "backfill": False,
    "unstarted": (),
    "seen": (),
    "evictions": 0,
    "failures": 0,
    "held": False,
    "until": None,
}


def test_a_job_that_runs_one_that_waits_and_one_that_is_held() -> None:
    one = cluster(submitted("runs"), submitted("waits", tasks=WIDE), submitted("held", tasks=WIDE))
    one.handle(JobHeld("held", "by hand"), 120.0)
    views = {name: without_reason(view) for name, view in one.jobs.items()}
    jobs = {name: view.job for name, view in one.jobs.items()}
    places = one.jobs["runs"].places
    assert len(places) == 1 and places[0].charge == MICRO
    assert views["runs"] == {
        **QUIET,
        "job": jobs["runs"],
        "state": "running",
        "attempt": 1,
        "places": places,
        "since": 110.0,
        "charge": MICRO,
    }
    assert views["waits"] == {**QUIET, "job": jobs["waits"], "state": "pending", "since": 110.0}
    held = views["held"]
    assert (held["state"], held["held"], held["until"], held["places"], held["charge"]) == (
        "pending",
        True,
        None,
        (),
        0,
    )
    assert one.jobs["held"].reason.message


def test_a_job_that_rests_after_a_failed_start_does_so_until_then() -> None:
    one = cluster(submitted("fails"))
    one.handle(StartFailed("fails", 1), 120.0)
    view = one.jobs["fails"]
    assert (view.state, view.held, view.failures, view.places, view.attempt) == ("pending", False, 1, (), 1)
    assert view.until is not None and 120.0 < view.until < math.inf
    one.handle(JobHeld("fails", "by hand"), 121.0)
    assert (one.jobs["fails"].held, one.jobs["fails"].until) == (True, None), "it waits for a word, not for a time"


def test_what_is_known_to_run_is_seen() -> None:
    one = cluster(submitted("gang", tasks=(Tasks(least=2),)), endings="reported")
    assert one.jobs["gang"].seen == ()
    one.handle(Started("gang", 1, ((0, 1),)), 120.0)
    assert one.jobs["gang"].seen == ((0, 1),)
    one.handle(Started("gang", 1), 121.0)
    assert one.jobs["gang"].seen == ((0, 0), (0, 1)) and one.jobs["gang"].unstarted == ()


def test_places_that_others_have_not_left_yet() -> None:
    one = cluster(submitted("a1"), submitted("a2"), submitted("a3"), endings="reported")
    one.handle([Started(name, 1) for name in ("a1", "a2", "a3")], 120.0)
    one.handle(submitted("b1", "b"), 130.0)
    view = one.jobs["b1"]
    assert view.state == "starting" and view.unstarted == view.places != ()
    assert [name for name, other in one.jobs.items() if other.evictions] == ["a3"], "it has run for the shortest time"
    evicted = one.jobs["a3"]
    assert (evicted.state, evicted.charge, evicted.seen, evicted.until) == ("pending", 0, (), None)


def test_queues() -> None:
    one = cluster(submitted("runs"), submitted("fixed", preemptible=False), submitted("waits", tasks=(Tasks(gpus=2),)))
    assert one.queues["a"] == QueueView(Queue("a", quota=2 * MICRO), 2 * MICRO, MICRO, 4 * MICRO, 1, 2)
    assert one.queues["b"] == QueueView(Queue("b", quota=MICRO), 0, 0, 0, 0, 0)


def test_nodes() -> None:
    one = cluster(submitted("runs"))
    n1, n2 = one.nodes["n1"].node, one.nodes["n2"].node
    used = [view for view in one.nodes.values() if sum(view.free) < view.node.gpus * view.node.memory]
    assert len(used) == 1 and used[0].free.count(0) == 1
    one.handle(NodeCordoned("n1"), 120.0)
    one.handle(NodeUnknown("n2"), 120.0)
    one.handle(ForeignUse("n1", 1, 4 * GIB), 120.0)
    assert one.nodes["n1"] == NodeView(n1, one.nodes["n1"].free, cordoned=True, foreign=((1, 4 * GIB),))
    assert one.nodes["n2"] == NodeView(n2, one.nodes["n2"].free, unknown=True)
    one.handle(NodeLost("n1"), 130.0)
    assert one.nodes["n1"].free == (0, 0) and not one.nodes["n1"].alive


def test_a_node_that_rests_after_failed_starts_says_until_when() -> None:
    one = cluster()
    assert one.nodes["n2"].until is None
    now = 120.0
    for number in range(12):
        actions = one.handle(submitted(f"j{number}", selector=only("n2")), now)
        start = next((action for action in actions if isinstance(action, Start)), None)
        if start is None:
            break
        one.handle(StartFailed(start.job, start.attempt, (), "n2", "broken"), now)
        now += 1.0
    until = one.nodes["n2"].until
    assert until is not None and now < until < math.inf and one.nodes["n1"].until is None


def only(node: str):
    from gpushare.cluster.model import Selector

    return Selector(nodes=(node,))


def test_every_view_is_plain_json() -> None:
    """Without an infinity, which JSON has not."""
    one = cluster(submitted("runs"), submitted("waits", tasks=WIDE), submitted("held", tasks=WIDE))
    one.handle(JobHeld("held", "by hand"), 120.0)
    for views in (one.jobs, one.queues, one.nodes):
        for view in views.values():
            json.dumps(plain(view), allow_nan=False)
