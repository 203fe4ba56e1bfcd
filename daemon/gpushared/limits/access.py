"""Access: checks new jobs and changes against the rules of the settings file, and what each user may see.

rules.py decides; this module has the present settings, the users' groups and the GPUs. The API asks it, and the
handshake for programs whose job the environment alone makes. Admitted jobs are not checked again after a reload.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace

from gpushare.job_spec import JobSpec
from gpushare.quantity import Budget, Quantity
from gpushare.reasons import Code, Reason
from gpushared.config import Config
from gpushared.core import rules, turns
from gpushared.core.events import BudgetChanged
from gpushared.core.node import NodeState
from gpushared.core.visibility import Viewer
from gpushared.limits.byte_budget import MOST_OF_JOBS, bytes_of
from gpushared.limits.identities import Identities
from gpushared.limits.user_limits import UserLimits


class Access:
    """Asked once per job and change; nothing here waits."""

    def __init__(
        self,
        core: Callable[[], NodeState],
        config: Callable[[], Config],
        identities: Identities,
        limits: UserLimits,
        *,
        system: bool,
    ) -> None:
        """`core` and `config` return the present ones: both may be replaced while the daemon runs. `system`: it is the
        node's daemon, not a user's own."""
        self._own = os.geteuid() if system else 0
        self._alone = not system
        self._core = core
        self._config = config
        self._identities = identities
        self._limits = limits

    # ---- users -------------------------------------------------------------------------------------

    async def meet(self, uid: int) -> None:
        """Wait until the user's groups are known, if a rule depends on them."""
        if self._needs_groups():
            await self._identities.get(uid)

    def when_met(self, uid: int, then: Callable[[], None]) -> None:
        """The same for callers that cannot wait: `then` is called, mostly at once."""
        if self._needs_groups():
            self._identities.when_known(uid, then)
        else:
            then()

    def _needs_groups(self) -> bool:
        config = self._config()
        return config.rules.need_groups or bool(config.admin_group) or bool(config.engine_group)

    def is_admin(self, uid: int) -> bool:
        """root and members of the administrators' group: they see and change the jobs of all users. So does the
        daemon's own user on a node: the page that it serves is for them."""
        group = self._config().admin_group
        return uid in (0, self._own) or (bool(group) and group in self._identities.known(uid).groups)

    def is_engine(self, uid: int) -> bool:
        """Who may place jobs of all users: root, the group of engines, and in a user's own daemon that user."""
        group = self._config().engine_group
        return uid in (0, os.geteuid()) or (bool(group) and group in self._identities.known(uid).groups)

    def placed_only(self, uid: int) -> bool:
        """This user has no job of its own here: only those that an engine has placed."""
        return self._config().placed_only and not self.is_admin(uid)

    def viewer(self, uid: int) -> Viewer:
        """What this user may read."""
        return Viewer(uid, self._config().reveal, self.is_admin(uid))

    # ---- what --------------------------------------------------------------------------------------

    def budget(self, uid: int, request: Quantity | None, limit: Quantity | None) -> tuple[Budget, str]:
        """A job's budget, and its place in the settings file if the job itself sets none."""
        return rules.budget(self._config().rules, self._identities.known(uid), request, limit)

    def admit(self, spec: JobSpec, own: Sequence[int]) -> JobSpec | Reason:
        """A new job as it is allowed. `own`: bytes of the daemon's memory for each live job of its user."""
        no_turns = turns.refusal(spec, on=self._config().turns, longest=self._config().longest_turn)
        if no_turns is not None:
            return no_turns
        who = self._identities.known(spec.uid)
        full = self._is_full(spec, own)
        if full:
            message = f"{spec.user} has {full}, as many as this daemon can keep of one user"
            return Reason(Code.POLICY, message, hint="end one of them first: `gpushare ps` lists them")
        totals, bound = self._totals(spec.devices), self._limits.is_bound(spec.uid)
        return rules.admit(self._config().rules, who, spec, totals, len(own), bound=bound, own=self._alone)

    def admit_reservation(self, spec: JobSpec) -> JobSpec | Reason:
        """The same for a reservation."""
        own = sum(1 for one in self._core().reservations.values() if one.spec.uid == spec.uid)
        who, totals = self._identities.known(spec.uid), self._totals(spec.devices)
        spec = spec._replace(limit=spec.request)
        return rules.reserve(self._config().rules, who, spec, totals, own, bound=self._limits.is_bound(spec.uid))

    def _is_full(self, spec: JobSpec, own: Sequence[int]) -> str:
        """Why one more job of this user cannot be kept; "": it can."""
        most = self._limits.most_jobs(spec.uid)
        if most is None:
            return ""
        if len(own) >= most:
            return f"{len(own)} jobs"
        if sum(own) + bytes_of(spec) > MOST_OF_JOBS:
            return f"{len(own)} jobs with long commands"
        return ""

    def change(self, spec: JobSpec, event: BudgetChanged) -> BudgetChanged | Reason:
        """A user's change of its own job, as it is allowed. `spec`: as the job was submitted."""
        job = self._core().jobs.get(event.job)
        old = job.spec if job is not None else spec
        new = old._replace(
            request=event.request or old.request,
            limit=event.limit or old.limit,
            priority=old.priority if event.priority is None else event.priority,
        )
        gpus = tuple(job.bounds) if job is not None and job.bounds else None
        allowed = rules.change(self._config().rules, self._identities.known(old.uid), old, new, self._totals(gpus))
        if isinstance(allowed, Reason):
            return allowed
        return replace(event, request=event.request and allowed.request, limit=event.limit and allowed.limit)

    def _totals(self, gpus: tuple[str, ...] | None) -> list[int]:
        known = self._core().gpus
        return [gpu.total for id, gpu in known.items() if gpus is None or id in gpus]
