"""The table [kubernetes] of the settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from gpushare.errors import UsageError
from gpushare.kubernetes import budget as budgets
from gpushare.kubernetes import fields as fields_of
from gpushare.kubernetes.names import API, BUDGET
from gpushare.kubernetes.webhook import limits
from gpushare.kubernetes.webhook.limits import INTERACTIVE, Rules

__all__ = ["Settings"]


@dataclass(frozen=True, slots=True)
class Settings:
    kubeconfig: str = ""
    """The path of a file; "": the service account of the pod that this is."""
    namespace: str = "gpushare"
    """Of the lease."""
    lease: str = "gpushare-scheduler"
    scheduler: str = "gpushare"
    """`schedulerName` of the pods that are started."""
    default_limit: str = ""
    """For the whole cluster, as a queue says it: a part of a GPU. "": nothing is said."""
    interactive_limit: str = ""
    max_limit: str = ""
    interactive: str = ",".join(INTERACTIVE)
    """Priority classes of interactive pods."""
    open_queues: str = "true"
    """A queue of which no namespaces are said is for all; "false": for the namespace of its name."""
    budget: str = ""
    """On a server without claims: what a DeviceClass says elsewhere, as JSON: {"priority": 10, "grace": "30s"}."""

    @property
    def of_class(self) -> Mapping[str, Any]:
        """What `budget` says. Raises UsageError."""
        said = fields_of.json_object(self.budget or "{}")
        if said is None:
            raise UsageError("[kubernetes]: budget is not an object of JSON", hint='write {"priority": 10}')
        try:
            budgets.read({"apiVersion": API, "kind": BUDGET, **said})
        except UsageError as error:
            raise UsageError(f"[kubernetes]: budget: {error.message}", hint=error.hint) from None
        return said

    @property
    def rules(self) -> Rules:
        """Raises UsageError."""
        said = {name: getattr(self, option) or None for name, option in limits.OPTIONS.items()}
        classes = tuple(one.strip() for one in self.interactive.split(","))
        return Rules(limits.read(said, limits.NONE.whose, "[kubernetes]: "), classes)

    @property
    def has_open_queues(self) -> bool:
        """Raises UsageError."""
        if self.open_queues not in ("true", "false"):
            raise UsageError(f"[kubernetes]: open_queues is {self.open_queues!r}", hint='write "true" or "false"')
        return self.open_queues == "true"

    @classmethod
    def read(cls, said: Mapping[str, Any]) -> Settings:
        """Raises UsageError."""
        known = [one.name for one in fields(cls)]
        for name, value in said.items():
            if name not in known:
                raise UsageError(f"[kubernetes]: there is no {name!r}", hint=f"known are {', '.join(known)}")
            if not isinstance(value, str) or (not value and getattr(cls(), name)):
                raise UsageError(f"[kubernetes]: {name} must be a text")
        made = cls(**said)
        if made.kubeconfig and not Path(made.kubeconfig).is_absolute():
            raise UsageError("[kubernetes]: kubeconfig must be the absolute path of a file")
        made.rules, made.of_class, made.has_open_queues  # noqa: B018  these raise for what makes no sense
        return made
