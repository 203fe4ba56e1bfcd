"""An engine made of a runner, which runs tasks, and of the service's records, which say what jobs there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from gpushare.cluster.engines.runner import Record, Result, Runner
from gpushare.cluster.engines.seam import (
    Answer,
    Evict,
    Gone,
    Observed,
    SeenJob,
    SeenNode,
    SeenTask,
    Start,
    Token,
)
from gpushare.cluster.model import Job

__all__ = ["Hosted", "Jobs", "KnownJob"]


class KnownJob(Protocol):
    """What is read of a job that is not over."""

    @property
    def submitted(self) -> float: ...
    @property
    def held(self) -> bool: ...
    @property
    def after(self) -> tuple[str, ...]: ...
    @property
    def result(self) -> Result | None: ...


class Jobs(Protocol):
    """What is read of the records."""

    @property
    def entries(self) -> Mapping[str, KnownJob]:
        """Jobs that are not over, by id."""
        ...

    @property
    def cordons(self) -> Mapping[str, bool]:
        """Nodes where nothing may start, and whether what runs there is to be stopped."""
        ...

    def job(self, id: str) -> Job: ...

    def record(self, id: str) -> Record | None: ...


class Hosted:
    """An Engine (seam.py). `term` is larger than that of any service before."""

    def __init__(self, runner: Runner, jobs: Jobs, term: int) -> None:
        self.runner = runner
        self.jobs = jobs
        self._term = term
        self.tasks: Mapping[str, Sequence[SeenTask]] = {}
        """As the last look showed them."""

    def lead(self, holder: str, seconds: float) -> int | None:  # noqa: ARG002  the file's lock decides who leads
        return self._term

    def snapshot(self) -> Observed:
        return self._observed(self.jobs.entries)

    def glance(self, uids: Collection[str]) -> Observed:
        return self._observed(uids)

    def watch(self, seconds: float) -> None:
        self.runner.watch(seconds)

    def start(self, command: Start, token: Token) -> Answer:
        entry = self.jobs.entries.get(command.uid)
        record = None if entry is None or entry.result is not None else self.jobs.record(command.uid)
        return Gone() if record is None else self.runner.start(record, command, token)

    def evict(self, command: Evict, token: Token) -> Answer:
        return self.runner.evict(command, token)

    def annotate(self, uid: str, text: str, token: Token) -> None:
        """Nothing to do: the service answers questions with the allocator's reasons."""

    def _observed(self, uids: Iterable[str]) -> Observed:
        self.tasks = tasks = self.runner.tasks()
        entries = self.jobs.entries
        shown = dict.fromkeys(one for one in (*uids, *tasks) if one in entries)
        unknown = {uid: found for uid, found in tasks.items() if uid not in entries}
        return Observed(tuple(self._nodes(unknown)), tuple(self._job(uid) for uid in shown))

    def _nodes(self, unknown: Mapping[str, Sequence[SeenTask]]) -> Iterable[SeenNode]:
        """A task of a job that is not in the records counts as foreign: it is left alone, and nothing starts there."""
        foreign: Counter[tuple[str, int]] = Counter()
        for found in unknown.values():
            for task in found:
                if task.holds:
                    foreign.update({(task.node, gpu): task.amount for gpu in task.gpus})
        for node in self.runner.nodes():
            used = Counter(dict(node.foreign))
            used.update({gpu: amount for (name, gpu), amount in foreign.items() if name == node.node.name})
            draining = self.jobs.cordons.get(node.node.name)
            yield replace(
                node,
                cordoned=draining is not None,
                draining=draining is True,
                foreign=tuple(sorted(used.items())),
            )

    def _job(self, uid: str) -> SeenJob:
        entry, tasks = self.jobs.entries[uid], tuple(self.tasks.get(uid, ()))
        return SeenJob(
            job=self.jobs.job(uid),
            submitted=entry.submitted,
            attempt=max((task.attempt for task in tasks), default=0),
            held=entry.held or bool(entry.after),
            tasks=tasks,
            ended=entry.result is not None,
        )
