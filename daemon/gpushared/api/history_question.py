"""A question about the past, from the query of its request: ?since&until&step, in seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from gpushare.errors import UsageError
from gpushared.history.levels import LEVELS, WHOLE, Found, Point, level_for
from gpushared.system.processes import printable

if TYPE_CHECKING:
    from gpushared.history.file import File  # SQLite is for the history's thread

__all__ = ["QUERY", "HistoryQuestion", "moment", "point"]

RANGE = 600.0
"""Seconds, unless the query says otherwise."""
QUERY = {
    "since": "Seconds since 1970; default: 600 before `until`.",
    "until": "Seconds since 1970; default: now.",
    "step": "Seconds between two points, at least as fine as that if it is still kept; default 1.",
    "follow": "1: the present and each change, one a line.",
}
"""What a question may say."""
LONGEST = 400 * 24 * 3600.0


class HistoryQuestion:
    """Asks for all series, or for those of one job or GPU. Raises UsageError for a query that makes no sense."""

    def __init__(self, request: web.Request, now: float, *, job: str | None = None, gpu: str | None = None) -> None:
        self._until = moment(request, "until", now)
        self._since = moment(request, "since", max(0.0, self._until - RANGE))
        if not 0.0 <= self._until - self._since <= LONGEST:
            raise UsageError("since is after until, or too long before it", code="bad_request")
        self._level = level_for(moment(request, "step", 1.0), max(0.0, now - self._since))
        self._job, self._gpu = job, gpu

    @property
    def step(self) -> int:
        """Seconds between two points of the answer, at least."""
        return LEVELS[self._level].step

    def read(self, file: File) -> tuple[list[Found], bool]:
        """On the history's thread."""
        return file.read(self._level, int(self._since * 1000), int(self._until * 1000), self._job, self._gpu)


def moment(request: web.Request, name: str, default: float) -> float:
    """A number of the query that is not negative: seconds, or seconds since 1970."""
    text = request.query.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value < 1e12:  # nan is not, either
        raise UsageError(f"{name}={printable(text, 20)} is not a number", code="bad_request")
    return value


def point(one: Point) -> list[float | None]:
    """[time, usage, most, request, limit, loan, computing]; only the time if there is no value from then on."""
    if one.amounts is None:
        return [one.time / 1000]
    usage, request, limit, loan, computing = one.amounts
    return [one.time / 1000, usage, one.most, request, limit, loan, computing / WHOLE]
