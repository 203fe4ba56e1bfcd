"""What Slurm shows: its jobs that are ours, its nodes, and who leads. Each look reads all of it again; a command that
changes a job changes it here, too, until the next look."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from gpushare.cluster.engines.seam import Deposed, SeenJob, SeenNode, Token
from gpushare.cluster.engines.slurm import mark as marks
from gpushare.cluster.engines.slurm import request
from gpushare.cluster.engines.slurm.accounts import Accounts
from gpushare.cluster.engines.slurm.commands import Commands, NoJob, Refusal
from gpushare.cluster.engines.slurm.lease import Lease, found
from gpushare.cluster.engines.slurm.listing import Listed, ListedNode, jobs, nodes
from gpushare.cluster.engines.slurm.mark import Mark
from gpushare.cluster.engines.slurm.request import Asked
from gpushare.cluster.engines.slurm.seen import (
    RUNS,
    is_over,
    node_of,
    phase_of,
    selector_of,
    tasks_of,
    used_by_others,
    waits,
)
from gpushare.cluster.model import Job
from gpushare.errors import UsageError

__all__ = ["Known", "Look"]


@dataclass(slots=True)
class Known:
    """A job of ours, as the last look showed it and as commands have changed it since."""

    listed: Listed
    asked: Asked
    mark: Mark
    job: Job


class Look:
    def __init__(self, commands: Commands, accounts: Accounts, clock: Callable[[], float]) -> None:
        self._commands = commands
        self._accounts = accounts
        self._clock = clock
        self.lease, self.where = Lease(), ""
        """And the node that it is at."""
        self.highest = 0
        """Of the terms in the marks."""
        self.jobs: dict[str, Known] = {}
        self.nodes: dict[str, SeenNode] = {}
        self.used: Counter[tuple[str, int]] = Counter()
        """Bytes of each GPU that jobs of ours hold."""
        self.wrong: dict[str, str] = {}
        """Why a job's words make no sense."""
        self._read: dict[str, tuple[object, Job]] = {}
        """What was made of a job's words, and of what."""

    def take(self) -> None:
        """Raises Unanswered."""
        listed = list(jobs(self._commands.jobs()))
        there = list(nodes(self._commands.nodes()))
        known: dict[str, Known] = {}
        self.wrong.clear()
        for one in listed:
            asked = request.read(one.admin_comment)
            if asked is None:
                continue
            mark = marks.read(one.comment)
            self.highest = max(self.highest, mark.token[0])
            job = self._job_of(one, asked, mark, there)
            if job is not None:
                known[one.id] = Known(one, asked, mark, job)
        self._read = {id: read for id, read in self._read.items() if id in known}
        self.lease, self.where = found([node for node in there if node.counters])
        others = used_by_others(listed, known.keys(), there)
        shown = (node_of(node, others) for node in there)
        self.nodes = {one.node.name: one for one in shown if one is not None}
        self.jobs = known
        self.used = Counter()
        for held in known.values():
            if phase_of(held.listed, held.mark) in ("starting", "running", "stopping"):
                self.count(held.mark)

    def _job_of(self, listed: Listed, asked: Asked, mark: Mark, there: list[ListedNode]) -> Job | None:
        """None: its words make no sense, which it is told."""
        key = (listed.admin_comment, listed.partition, listed.excluded, listed.name, len(there), listed.account)
        found = self._read.get(listed.id)
        if found is not None and found[0] == key:
            return found[1]
        try:
            job = request.job_of(listed.id, asked, listed.name, selector_of(listed, asked, there))
            self._accounts.check(job.queue, listed.account, listed.user)
        except UsageError as error:
            words = f"{error.message} ({error.hint})" if error.hint else error.message
            if not is_over(listed):
                self.wrong[listed.id] = words
                if mark.why != words:
                    with contextlib.suppress(NoJob, Refusal):
                        self.note(listed, replace(mark, why=words))
            return None
        self._read[listed.id] = key, job
        return job

    def seen(self, known: Known) -> SeenJob:
        listed, mark = known.listed, known.mark
        by_hand = listed.state in RUNS and phase_of(listed, mark) is None  # an operator has started it
        return SeenJob(
            job=known.job,
            submitted=listed.submitted,
            attempt=mark.attempt,
            evictions=mark.evictions,
            rung=mark.rung,
            held=mark.held or waits(listed, self._clock()),
            tasks=tuple(tasks_of(listed, mark)) if not is_over(listed) else (),
            ended=is_over(listed) or by_hand,
            note=mark.why or mark.stopped,
            user=listed.user,
            account=listed.account,
            started=listed.started if listed.state in RUNS else None,
        )

    def is_closed(self, name: str) -> bool:
        """Slurm starts nothing there now."""
        node = self.nodes.get(name)
        return node is None or node.cordoned or node.state == "lost"

    def check_term(self, token: Token) -> None:
        newest = max(self.lease.term, self.highest)
        if newest > token[0]:
            raise Deposed(f"term {token[0]} is over: another service began term {newest}")

    def note(self, listed: Listed, mark: Mark) -> None:
        self._commands.update(listed.id, [("Comment", mark.text())])

    def count(self, mark: Mark) -> None:
        for spot in mark.place:
            self.used.update({(spot.node, gpu): spot.request for gpu in spot.gpus})
