"""A report of queues as PNG: GPUs by queue, stacked, and each queue against its quota and its fair share."""

from __future__ import annotations

from typing import Any

from gpushare.cluster.quantity import MICRO
from gpushare.report.drawing import (
    DPI,
    LONGEST_KEY,
    LONGEST_TITLE,
    STACKED,
    WIDTH,
    along_time,
    colour,
    dates,
    legend,
    name_of,
    png,
    span,
)
from gpushare.report.queues import ALL, QueueReport, series_of

__all__ = ["draw", "render"]

Values = list[float]
Points = list[list[float]]
Keys = list[tuple[str, dict[str, Any]]]


def render(report: QueueReport) -> bytes:
    return png(draw(report))


def draw(report: QueueReport) -> Any:
    """As a matplotlib.figure.Figure."""
    from matplotlib.figure import Figure

    series = series_of(report)
    shown = dict(list(series.items())[:STACKED])
    figure = Figure(figsize=(WIDTH, 3.6 + 2.0 * len(shown)), dpi=DPI, layout="constrained", facecolor=colour("surface"))
    axes = figure.subplots(1 + len(shown), 1, sharex=True, squeeze=False, height_ratios=[1.6, *[1] * len(shown)])[:, 0]
    what = "queues" if report["queue"] is None else f"queue {name_of(report['queue'], LONGEST_TITLE)}"
    figure.suptitle(
        f"{what}, {span(report['since'], report['until'])}",
        fontsize=13,
        color=colour("text"),
        parse_math=False,
    )
    whole: Points = next((one["points"] for one in report["history"]["series"] if one["queue"] == ALL), [])
    _draw_stack(axes[0], report, series, whole)
    for number, (place, (queue, points)) in enumerate(zip(axes[1:], shown.items(), strict=True)):
        _draw_queue(place, report, queue, points, f"job{number}")
    return figure


def _draw_stack(
    place: Any, report: QueueReport, series: dict[str, list[list[float]]], whole: list[list[float]]
) -> None:
    every = sorted({report["since"], report["until"], *(point[0] for points in series.values() for point in points)})
    lower = [0.0] * len(every)
    keys: Keys = []
    for number, (queue, points) in enumerate(series.items()):
        name = f"job{number}" if number < STACKED else "rest"
        upper = [below + held for below, held in zip(lower, _values(points, every, 1), strict=True)]
        place.fill_between(dates(every), lower, upper, step="post", facecolor=colour(name))
        lower = upper
        if number < STACKED:
            keys.append((name_of(queue, LONGEST_KEY), {"facecolor": colour(name)}))
    others = len(series) - STACKED
    if others > 0:
        keys.append((f"{others} other{'s' if others > 1 else ''}", {"facecolor": colour("rest")}))
    capacity = _values(whole, every, 4)
    place.step(dates(every), capacity, where="post", color=colour("text"), linewidth=1.3)
    keys.append(("all GPUs", {"color": colour("text"), "linewidth": 1.3}))
    place.set_ylim(0, max([1.0, *capacity, *lower]) * 1.06)
    _dress(place, report, "GPUs by queue", keys)


def _draw_queue(place: Any, report: QueueReport, queue: str, points: Points, name: str) -> None:
    every = sorted({report["since"], report["until"], *(point[0] for point in points)})
    held, share, quota = (_values(points, every, column) for column in (1, 3, 4))
    place.fill_between(dates(every), [0.0] * len(every), held, step="post", facecolor=colour(name))
    place.step(dates(every), share, where="post", color=colour("good"), linewidth=1.6)
    place.step(dates(every), quota, where="post", color=colour("text"), linewidth=1.3, dashes=(4, 3))
    place.set_ylim(0, max([1.0, *held, *share, *quota]) * 1.15)
    keys: Keys = [
        ("held", {"facecolor": colour(name)}),
        ("fair share", {"color": colour("good"), "linewidth": 1.6}),
        ("quota", {"color": colour("text"), "linewidth": 1.3, "dashes": (4, 3)}),
    ]
    _dress(place, report, name_of(queue, LONGEST_TITLE), keys)


def _dress(place: Any, report: QueueReport, title: str, keys: Keys) -> None:
    place.set_title(title, loc="left", fontsize=11, color=colour("text"), parse_math=False)
    place.yaxis.get_major_locator().set_params(integer=True)
    along_time(place, report["since"], report["until"])
    legend(place, keys)


def _values(points: Points, times: list[float], column: int) -> Values:
    """GPUs at each of these times; 0 where nothing is known."""
    found, at, now = [], 0, 0.0
    for time in times:
        while at < len(points) and points[at][0] <= time:
            now = points[at][column] / MICRO if len(points[at]) > column else 0.0
            at += 1
        found.append(now)
    return found
