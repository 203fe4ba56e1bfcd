"""Slurm's accounts as queues: the tree, shares and limits that `sacctmgr` shows, where a site has slurmdbd.

An account is a queue below that of its parent. Its fair-share number is the queue's weight, and what GrpTRES allows of
gres/gpu, or of gres/gpumem, its limit. No account has a quota: Slurm knows no guarantee. Only leaves of the tree of
queues take jobs, so an account with accounts below it has one more queue, NAME.users, for the users who submit there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from gpushare.cluster.engines.seam import QueueTold, Unanswered
from gpushare.cluster.engines.slurm.commands import Commands, Refusal
from gpushare.cluster.engines.slurm.listing import COUNTER, UNITS
from gpushare.cluster.model import Queue
from gpushare.cluster.quantity import MICRO
from gpushare.errors import UsageError

__all__ = ["Account", "Accounts", "queues_of", "read"]

log = logging.getLogger(__name__)

FIELDS = ("account", "parentname", "user", "partition", "share", "grptres")
TOP = "root"
USERS = ".users"
NO_SHARE = "parent"
"""A fair share that is that of the account above. Here it counts as one share."""


@dataclass(slots=True)
class Account:
    parent: str
    """ "": it is at the top."""
    share: int
    tres: Mapping[str, str]
    users: list[int] = field(default_factory=list)
    """The shares of those who submit in its name."""


class Accounts:
    """Read again from time to time. What was read last counts while nobody answers."""

    def __init__(self, commands: Commands, every: float, now: Callable[[], float]) -> None:
        """`every`: seconds between two readings; 0: never. `now`: a clock that does not jump."""
        self._commands = commands
        self._every = every
        self._now = now
        self._next = 0.0 if every else inf
        self._known: Mapping[str, Account] | None = None
        self._trouble = ""
        self._wrong: Mapping[str, str] = {}

    @property
    def followed(self) -> bool:
        return self._every > 0

    def queues(self, memory: int) -> Mapping[str, Queue | str] | None:
        """`memory`: MiB of the largest GPU. None: the accounts are not followed, or were never read."""
        if self._now() >= self._next:
            self._next = self._now() + self._every
            try:
                self._known, self._trouble = self._read(), ""
            except (Unanswered, Refusal) as error:
                if str(error) != self._trouble:
                    log.warning("the accounts' shares stay as they were: %s", error)
                self._trouble = str(error)
        return None if self._known is None else dict(queues_of(self._known, memory))

    def _read(self) -> Mapping[str, Account]:
        config = self._commands.run("scontrol", "show", "config")
        name = next((line.split()[-1] for line in config.splitlines() if line.startswith("ClusterName ")), "")
        chosen = [f"cluster={name}", f"format={','.join(FIELDS)}"]
        return read(self._commands.run("sacctmgr", "-nP", "list", "associations", *chosen))

    def queue_of(self, account: str) -> str:
        """In which jobs of the account wait."""
        known = self._known or {}
        return f"{account}{USERS}" if any(one.parent == account for one in known.values()) else account

    def check(self, queue: str, account: str) -> None:
        """UsageError for a job that names another queue than that of its account, so takes another's share."""
        mine = self.queue_of(account)
        if self.followed and queue not in ("", mine):
            hint = "leave queue= out, and name the account with -A"
            raise UsageError(f"a job of account {account or '(none)'} cannot use the queue {queue}", hint=hint)

    def tell(self, told: Mapping[str, QueueTold]) -> None:
        wrong = {name: one.wrong for name, one in told.items() if one.wrong}
        for name, why in wrong.items():
            if self._wrong.get(name) != why:
                log.warning("account %s: %s", name, why)
        self._wrong = wrong


def read(text: str) -> Mapping[str, Account]:
    """Of sacctmgr's lines: ACCOUNT|PARENT|USER|PARTITION|SHARE|GRPTRES."""
    lines = [line.split("|") for line in text.splitlines()]
    found: dict[str, Account] = {}
    for account, parent, user, partition, share, tres in (line for line in lines if len(line) == len(FIELDS)):
        if not user and not partition and account != TOP:
            limits = dict(one.partition("=")[::2] for one in tres.split(",") if "=" in one)
            found[account] = Account("" if parent == TOP else parent, _share(share), limits)
    for account, _, user, partition, share, _ in (line for line in lines if len(line) == len(FIELDS)):
        if user and not partition and account in found:
            found[account].users.append(_share(share))
    return found


def _share(text: str) -> int:
    return 1 if text == NO_SHARE else int(text or 0)


def queues_of(accounts: Mapping[str, Account], memory: int) -> Iterator[tuple[str, Queue]]:
    parents = {one.parent for one in accounts.values()}
    for name, one in accounts.items():
        yield name, _queue(name, one.parent, one.share, limit=_limit(one.tres, memory))
        if name in parents and one.users:
            yield name + USERS, _queue(name + USERS, name, sum(one.users))


def _queue(name: str, parent: str, share: int, limit: int | None = None) -> Queue:
    return Queue(name, parent or None, quota=0, limit=limit, weight=share * MICRO)


def _limit(tres: Mapping[str, str], memory: int) -> int | None:
    """Micro-GPUs. Memory counts as a part of the largest GPU."""
    limits: Sequence[int] = []
    if "gres/gpu" in tres:
        limits = [int(tres["gres/gpu"]) * MICRO]
    if f"gres/{COUNTER}" in tres and memory:
        limits = [*limits, _mib(tres[f"gres/{COUNTER}"]) * MICRO // memory]
    return min(limits, default=None)


def _mib(text: str) -> int:
    """Later versions take a counter of this name for memory, and write 16384 as 16384M or 16G."""
    unit = text[-1:] if text[-1:] in UNITS else "M"
    return int(float(text.removesuffix(unit)) * UNITS[unit] / UNITS["M"])
