"""A second allocator that knows the facts of a first one and nothing else: what there is, who runs where, who waits.

It is built by public events alone. Whatever the first one remembers of searches that found nothing is not handed on.
"""

from __future__ import annotations

from dataclasses import fields, replace

from gpushare.cluster.allocator import Allocator
from gpushare.cluster.model import (
    Action,
    Event,
    JobRestored,
    JobSubmitted,
    JobView,
    NodeAdded,
    NodeLost,
    QueueAdded,
    Wait,
)

OF_A_VIEW = [one.name for one in fields(JobView)]


def told(kind: type, view: JobView, **known: object) -> Event:
    """An event about a job with everything that both the event and the view have, such as its age."""
    shared = {one.name for one in fields(kind)} & set(OF_A_VIEW)
    return kind(**{name: getattr(view, name) for name in shared} | known)


def facts(allocator: Allocator, changed: dict[str, float]) -> tuple[list[Event], list[Event]]:
    """Nodes and queues; and the jobs, the oldest first.

    `changed` is when jobs last shrank or grew, seconds: such a job does not grow for a while.
    """
    views = allocator.nodes.values()
    there: list[Event] = [NodeAdded(view.node) for view in views]
    there += [NodeLost(view.node.name) for view in views if not view.alive]
    queues = [view.queue for view in allocator.queues.values()]
    placed: set[str | None] = {None}
    while queues:  # parents first, siblings in their order
        there += [QueueAdded(queue) for queue in queues if queue.parent in placed]
        placed |= {queue.name for queue in queues if queue.parent in placed}
        queues = [queue for queue in queues if queue.name not in placed]
    jobs: list[Event] = []
    for view in allocator.jobs.values():
        if view.state == "pending":
            waits = replace(view.job, wait=True)  # it was admitted, and has been stopped since
            jobs.append(told(JobSubmitted, view, job=waits))
        else:
            since = max(view.since, changed.get(view.job.id, view.since))
            jobs.append(told(JobRestored, view, since=since))
    return there, jobs


def left_undone(allocator: Allocator, changed: dict[str, float]) -> list[Action]:
    """What an allocator without memory would do now."""
    there, jobs = facts(allocator, changed)
    other = Allocator(allocator.policy)
    other.handle(there, allocator.now)
    return [action for action in other.handle(jobs, allocator.now) if not isinstance(action, Wait)]
