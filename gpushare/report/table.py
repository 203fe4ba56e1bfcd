"""A report as CSV: a row for each time, GPU and job."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator
from datetime import UTC, datetime

from gpushare.api import HistorySeries
from gpushare.printable import one_line
from gpushare.report.contents import OUTSIDE, TOTAL, Report

__all__ = ["COLUMNS", "cell", "render", "times"]

COLUMNS = (
    "time",
    "gpu",
    "uuid",
    "job",
    "name",
    "user",
    "usage_mean",
    "usage_highest",
    "request",
    "limit",
    "loan",
    "computing",
)
FORMULA = ("=", "+", "-", "@")


def render(report: Report) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(_rows(report))
    return out.getvalue()


def _rows(report: Report) -> Iterator[list[object]]:
    indexes = {gpu["uuid"]: gpu["index"] for gpu in report["state"]["gpus"]}
    series = [_Cursor(one) for one in report["history"]["series"] if one["job"] != TOTAL]
    series.sort(key=lambda one: (indexes.get(one.of["gpu"], math.inf), one.of["job"]))
    for time in times(report["since"], report["until"], report["history"]["step"]):
        moment = datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        for one in series:
            point = one.at(time)
            amounts: list[object] = [int(amount) for amount in point[:5]]
            computing = f"{point[5]:.3f}" if len(point) > 5 else ""
            if not amounts or (one.of["job"] == OUTSIDE and amounts[0] == 0):
                continue
            gpu, job = one.of["gpu"], one.of["job"]
            yield [
                moment,
                indexes.get(gpu, ""),
                gpu,
                job,
                cell(one.of["name"]),
                cell(one.of["user"]),
                *amounts,
                computing,
            ]


def times(since: float, until: float, step: float) -> list[float]:
    """The beginnings of the history's steps in a report, which may begin within the first. The history leaves out those
    without a change."""
    first, last = math.floor(since / step) + 1, math.ceil(until / step)
    return [since, *(float(number * step) for number in range(first, last))]


class _Cursor:
    """The values of a series, at times that ascend."""

    def __init__(self, series: HistorySeries) -> None:
        self.of = series
        self._next = 0
        self._held: list[float] = []

    def at(self, time: float) -> list[float]:
        """Mean usage, highest usage, request, limit, loan, computing; nothing where nothing is known."""
        points = self.of["points"]
        while self._next < len(points) and points[self._next][0] <= time:
            self._held = points[self._next][1:]
            self._next += 1
        return self._held


def cell(text: str) -> str:
    """A spreadsheet takes a cell that begins like a formula as one; an apostrophe before it makes it text. A single
    character is no formula: `-` is a name that this user may not see."""
    shown = one_line(text)
    return f"'{shown}" if len(shown) > 1 and shown.startswith(FORMULA) else shown
