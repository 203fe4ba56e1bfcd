"""What this machine refuses of a submission: a grace that is too long, a user or a directory that it does not know."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

from gpushare.cluster.engines.local import submission
from gpushare.cluster.engines.runner import Record
from gpushare.errors import UsageError
from gpushare.quantity import format_duration

__all__ = ["check"]


def check(record: Record, max_grace: float, *, system: bool) -> None:
    """Raises UsageError. `system`: the service may start programs as other users."""
    launch = submission.read(record.run)
    if launch.grace is not None and launch.grace > max_grace and record.uid != 0:
        most = format_duration(max_grace)
        raise UsageError(
            f"a grace of {format_duration(launch.grace)} is more than {most}, the most here",
            hint=f"--grace {most.replace(' ', '')}, or ask an administrator: `max_grace` in the service's settings",
        )
    if system:
        try:
            pwd.getpwuid(record.uid)
        except KeyError:
            raise UsageError(
                f"this machine knows no user {record.uid}", hint="jobs are started as the user who submits them"
            ) from None
    elif record.uid != os.getuid():
        raise UsageError(
            f"this service runs jobs of user {os.getuid()} only, not of {record.uid}",
            hint="a service of your own: gpushare cluster serve --engine local",
        )
    elif not Path(launch.cwd).is_dir():
        raise UsageError(f"cannot start in {launch.cwd}: there is no such directory", hint="submit from another one")
