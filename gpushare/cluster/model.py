"""The interface of the cluster allocator: nodes, queues, jobs; events in, actions out. Data, no decisions.

    nouns.py     what there is       events.py    what happens
    actions.py   what is decided     answers.py   what is said when somebody asks

Interface, version 1 (changes are noted here)::

    allocator = Allocator(Policy())
    actions = allocator.handle(event, now)            # one event, or several that are decided on together
    allocator.explain("job-7")                        # why it waits or runs, and the smallest change that helps
    allocator.what_if([QueueChanged(queue)])          # what would happen; nothing changes
    allocator.shares()                                # each queue's fair share as the sum that it comes from
    allocator.loans()                                 # who borrows from whom
    allocator.limit("job-7", place)                   # bytes that its tasks may use at most
    allocator.next_wake                               # hand in TimePassed() at this time, if nothing comes before
    allocator.validate()                              # raises if an invariant is broken

Since version 1 was written down: Explanation.who and .others, Allocator.limit(), Allocator.now; a JobRestored with a
part of its gang is completed or stopped instead of refused; Code.TAKEN, Code.TAKEN_AND_MOVED and Code.INCOMPLETE; the
events of engines: NodeUnknown, NodeCordoned, NodeDrained, NodeUncordoned, ForeignUse, Started, StartFailed, TasksLost,
StopRefused, JobHeld, JobReleased, Stopped.tasks, Node.uuids, Job.name, and what their jobs and nodes show in the views.

Quantities are integers: micro-GPUs (`quantity.gpus(0.5) == 500_000`) and bytes. Times are seconds of any clock that
does not go back; only their differences matter.

An event that makes no sense raises an error of gpushare.errors that names its place (`queue ml: limit`), and nothing
has changed then.

Two ways to run it, `Policy.endings`:

    "instant"    a job that is told to stop is gone at once: for plans, simulations and tests
    "reported"   a task told to stop holds its GPUs until Stopped(job, attempt) arrives. What it frees belongs from
                 the decision on to the job that it was freed for; that job's Start comes when all of it is free.
"""

from __future__ import annotations

from gpushare.cluster.actions import (
    Action,
    Grow,
    Move,
    Preempt,
    Refuse,
    Shrink,
    Start,
    Stop,
    Wait,
    started,
)
from gpushare.cluster.answers import Explanation, JobView, Loan, NodeView, QueueView, Share, WhatIf
from gpushare.cluster.events import (
    Event,
    ForeignUse,
    GpuHealth,
    JobChanged,
    JobEnded,
    JobHeld,
    JobReleased,
    JobRestored,
    JobSubmitted,
    JobWithdrawn,
    NodeAdded,
    NodeCordoned,
    NodeDrained,
    NodeLost,
    NodeUncordoned,
    NodeUnknown,
    QueueAdded,
    QueueChanged,
    QueueRemoved,
    Started,
    StartFailed,
    Stopped,
    StopRefused,
    TasksLost,
    TimePassed,
)
from gpushare.cluster.nouns import (
    ANYWHERE,
    Job,
    Node,
    Place,
    Policy,
    Queue,
    Selector,
    Tasks,
)
from gpushare.cluster.reasons import Code, Reason
from gpushare.errors import NoSuchJob

__all__ = [
    "ANYWHERE",
    "Action",
    "Code",
    "Event",
    "Explanation",
    "ForeignUse",
    "GpuHealth",
    "Grow",
    "Job",
    "JobChanged",
    "JobEnded",
    "JobHeld",
    "JobReleased",
    "JobRestored",
    "JobSubmitted",
    "JobView",
    "JobWithdrawn",
    "Loan",
    "Move",
    "NoSuchJob",
    "Node",
    "NodeAdded",
    "NodeCordoned",
    "NodeDrained",
    "NodeLost",
    "NodeUncordoned",
    "NodeUnknown",
    "NodeView",
    "Place",
    "Policy",
    "Preempt",
    "Queue",
    "QueueAdded",
    "QueueChanged",
    "QueueRemoved",
    "QueueView",
    "Reason",
    "Refuse",
    "Selector",
    "Share",
    "Shrink",
    "Start",
    "StartFailed",
    "Started",
    "Stop",
    "StopRefused",
    "Stopped",
    "Tasks",
    "TasksLost",
    "TimePassed",
    "Wait",
    "WhatIf",
    "started",
]
