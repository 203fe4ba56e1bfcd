"""The table [kubernetes] of the settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from gpushare.errors import UsageError

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

    @classmethod
    def read(cls, said: Mapping[str, Any]) -> Settings:
        """Raises UsageError."""
        known = [one.name for one in fields(cls)]
        for name, value in said.items():
            if name not in known:
                raise UsageError(f"[kubernetes]: there is no {name!r}", hint=f"known are {', '.join(known)}")
            if not isinstance(value, str) or (not value and name != "kubeconfig"):
                raise UsageError(f"[kubernetes]: {name} must be a text")
        made = cls(**said)
        if made.kubeconfig and not Path(made.kubeconfig).is_absolute():
            raise UsageError("[kubernetes]: kubeconfig must be the absolute path of a file")
        return made
