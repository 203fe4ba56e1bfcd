"""Moments in time as users type them."""

from __future__ import annotations

import contextlib
from datetime import datetime, timedelta
from datetime import time as clock_time

from gpushare.env import Setting
from gpushare.errors import UsageError

__all__ = ["moment"]


def moment(text: str, now: float, option: str) -> float:
    """The time in seconds, as time.time() gives it: so long before `now`, a time of day, or a date. Raises UsageError,
    which names the option."""
    with contextlib.suppress(UsageError):
        return max(0.0, now - Setting(text, option).seconds())
    with contextlib.suppress(ValueError):
        return datetime.fromisoformat(text).timestamp()
    with contextlib.suppress(ValueError):
        today = datetime.fromtimestamp(now)
        found = datetime.combine(today, clock_time.fromisoformat(text)).timestamp()
        return found if found <= now else (datetime.fromtimestamp(found) - timedelta(days=1)).timestamp()
    raise UsageError(
        f"{option}: {text!r} is not a time", hint="write 8h or 2d for so long ago, 22:30, or 2026-11-21 22:30"
    )
