"""Slurm's accounts as queues: the tree, shares and limits that `sacctmgr` shows, where a site has slurmdbd.

An account is a queue below that of its parent, and each of its users is one below it (seam.queue_of_user). A fair-share
number is the queue's weight, and what GrpTRES allows of gres/gpu, or of gres/gpumem, its limit. None has a quota: Slurm
knows no guarantee.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from gpushare.cluster.engines.seam import QueueTold, Unanswered, queue_of_user
from gpushare.cluster.engines.slurm.commands import Commands, Refusal
from gpushare.cluster.engines.slurm.listing import COUNTER, UNITS
from gpushare.cluster.model import Queue
from gpushare.cluster.quantity import MICRO
from gpushare.errors import UsageError

__all__ = ["Account", "Accounts", "Part", "queues_of", "read"]

log = logging.getLogger(__name__)

FIELDS = ("account", "parentname", "user", "partition", "share", "grptres")
TOP = "root"
NO_SHARE = "parent"
"""A fair share that is that of the account above. Here it counts as one share."""


@dataclass(frozen=True, slots=True)
class Part:
    """What an association says of an account, or of a user in it."""

    share: int
    tres: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Account:
    parent: str
    """ "": it is at the top."""
    part: Part
    users: dict[str, Part] = field(default_factory=dict)
    """Those who submit in its name."""


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

    def check(self, queue: str, account: str, user: str) -> None:
        """UsageError for a job that has no share in its account, or names another queue than its own there."""
        users = self._known[account].users if self._known and account in self._known else {}
        if users and user not in users:
            hint = f"an administrator can give one: sacctmgr add user {user} account={account}"
            raise UsageError(f"{user} has no share in account {account}", hint=hint)
        mine = queue_of_user(account, user) if users else account
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
            found[account] = Account("" if parent == TOP else parent, _part(share, tres))
    for account, _, user, partition, share, tres in (line for line in lines if len(line) == len(FIELDS)):
        if user and account in found and (not partition or user not in found[account].users):
            found[account].users[user] = _part(share, tres)
    return found


def _part(share: str, tres: str) -> Part:
    limits = dict(one.partition("=")[::2] for one in tres.split(",") if "=" in one)
    return Part(1 if share == NO_SHARE else int(share or 0), limits)


def queues_of(accounts: Mapping[str, Account], memory: int) -> Iterator[tuple[str, Queue]]:
    for name, one in accounts.items():
        yield name, _queue(name, one.parent, one.part, memory)
        for user, part in one.users.items():
            below = queue_of_user(name, user)
            yield below, _queue(below, name, part, memory)


def _queue(name: str, parent: str, part: Part, memory: int) -> Queue:
    return Queue(name, parent or None, quota=0, limit=_limit(part.tres, memory), weight=part.share * MICRO)


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
