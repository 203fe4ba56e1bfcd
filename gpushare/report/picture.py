"""A report as PNG, 1200 pixels wide, with the layers and colours of the dashboard's charts. Needs matplotlib, which is
an extra."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any

from gpushare import api
from gpushare.printable import one_line
from gpushare.quantity import format_bytes
from gpushare.report import drawing
from gpushare.report.contents import OUTSIDE, TOTAL, Report
from gpushare.report.drawing import DPI, LONGEST_KEY, LONGEST_TITLE, STACKED, WIDTH, dates, legend, name_of
from gpushare.report.drawing import colour as colour_of

__all__ = ["draw", "render"]

MARKS = {
    "trim": "warn",
    "term": "warn",
    "kill": "bad",
    "relieved": "good",
    "claim_waits": "warn",
    "claim_met": "good",
    "breach": "bad",
    "suspend": "warn",
    "suspended": "warn",
    "not_suspended": "bad",
    "resumed": "good",
    "hook_gave": "warn",
    "hook_failed": "bad",
    "awake": "good",
    "idle_gave": "warn",
}
"""What is marked in a job's chart, and its colour. As in web/src/job.tsx."""
NEAR = 0.012
"""Marks that are nearer than this part of the width are drawn as one."""

Values = list[float]
"""One for each time; NaN where nothing is known."""


def render(report: Report) -> bytes:
    return drawing.png(draw(report))


def draw(report: Report) -> Any:
    """The report as a matplotlib.figure.Figure: a chart for each GPU, one below the other."""
    from matplotlib.figure import Figure

    gpus = sorted(report["state"]["gpus"], key=lambda gpu: gpu["index"])
    height = 0.8 + 2.9 * len(gpus)
    figure = Figure(figsize=(WIDTH, height), dpi=DPI, layout="constrained", facecolor=colour_of("surface"))
    axes = figure.subplots(len(gpus), 1, sharex=True, squeeze=False)[:, 0]
    job = next((one for one in report["state"]["jobs"] if one["id"] == report["job"]), None)
    figure.suptitle(_title(report, job), fontsize=13, color=colour_of("text"), parse_math=False)
    kept: dict[str, int] = {}
    for gpu, place in zip(gpus, axes, strict=True):
        series = [one for one in report["history"]["series"] if one["gpu"] == gpu["uuid"]]
        times = _times(series, report)
        if job is None:
            _draw_stack(place, gpu, series, times, kept)
        else:
            _draw_job(place, report, series, times)
        _dress(place, gpu, report)
    return figure


def _title(report: Report, job: api.Job | None) -> str:
    host = one_line(report["about"]["host"])
    what = host if job is None else f"{name_of(job['name'], LONGEST_TITLE)} ({job['id']}) on {host}"
    return f"{what}, {drawing.span(report['since'], report['until'])}"


def _draw_stack(
    place: Any,
    gpu: api.Gpu,
    series: Sequence[api.HistorySeries],
    times: Values,
    kept: dict[str, int],
) -> None:
    """Memory by job, stacked; all of the GPU is the height. Gaps where nothing is known of the GPU."""
    of = {one["job"]: one for one in series}
    known = _values(of[TOTAL], times, 1) if TOTAL in of else [0.0] * len(times)
    lower = [value * 0 for value in known]  # NaN stays: it is the gap in all layers
    keys = []
    for name, values, highest, colour in _layers(of, times, kept):
        upper = [low + (0.0 if math.isnan(value) else value) for low, value in zip(lower, values, strict=True)]
        _fill(place, times, lower, upper, colour)
        keys.append((_key(name, highest), {"facecolor": colour_of(colour)}))
        lower = upper
    place.set_ylim(0, gpu["total"])
    nothing = "no memory is in use" if series else "nothing is known of that time"
    legend(place, keys or [(nothing, {"facecolor": "none"})])


def _layers(
    of: Mapping[str, api.HistorySeries], times: Values, kept: dict[str, int]
) -> list[tuple[str, Values, Values, str]]:
    """(name, mean usage, highest usage, colour), from the lowest. `kept` has the colour of each job that has one
    already."""
    jobs = [(one, _values(one, times, 1)) for id, one in of.items() if id not in (TOTAL, OUTSIDE)]
    jobs = sorted(((one, values) for one, values in jobs if _most(values) > 0), key=lambda one: -_most(one[1]))
    largest = jobs[: STACKED - 1 if len(jobs) > STACKED else STACKED]
    rest = jobs[len(largest) :]
    taken: set[int] = set()
    for one, _ in sorted(largest, key=lambda one: one[0]["job"] not in kept):
        number = kept.get(one["job"])
        if number is None or number in taken:
            number = min(set(range(STACKED)) - taken)
            kept[one["job"]] = number
        taken.add(number)
    found = [
        (one["name"], values, _values(one, times, 2), f"job{kept[one['job']]}")
        for one, values in sorted(largest, key=lambda one: one[0]["job"])
    ]
    if rest:
        name = f"{len(rest)} other job{'s' if len(rest) > 1 else ''}"
        sums, most = _sums([values for _, values in rest]), _sums([_values(one, times, 2) for one, _ in rest])
        found.append((name, sums, most, "rest"))
    outside = _values(of[OUTSIDE], times, 1) if OUTSIDE in of else []
    if _most(outside) > 0:
        found.append(("outside gpushare", outside, _values(of[OUTSIDE], times, 2), "unmanaged"))
    return found


def _sums(rows: Sequence[Values]) -> Values:
    return [sum(value for value in column if not math.isnan(value)) for column in zip(*rows, strict=True)]


def _draw_job(place: Any, report: Report, series: Sequence[api.HistorySeries], times: Values) -> None:
    """Usage against request and limit, and what happened to the job."""
    found = next((one for one in series if one["job"] == report["job"]), None)
    if found is None:
        return
    usage, most, request, limit = (_values(found, times, column) for column in (1, 2, 3, 4))
    within = [min(used, asked) for used, asked in zip(usage, request, strict=True)]
    moments = dates(times)
    for upper, colour in ((usage, "borrowed"), (within, "guaranteed")):
        _fill(place, times, [0.0] * len(times), upper, f"{colour}-area")
        place.step(moments, upper, where="post", color=colour_of(colour), linewidth=1.5)
    place.step(moments, most, where="post", color=colour_of("muted"), linewidth=0.8)
    place.step(moments, request, where="post", color=colour_of("text"), linewidth=1.3, dashes=(4, 3))
    place.step(moments, limit, where="post", color=colour_of("limit"), linewidth=1.8)
    place.set_ylim(0, max(1.0, _most(limit), _most(most)) * 1.08)
    loans = _values(found, times, 5)
    keys: list[tuple[str, dict[str, Any]]] = [
        (_key("in use", usage), {"facecolor": colour_of("guaranteed-area"), "edgecolor": colour_of("guaranteed")}),
        (_key("borrowed", loans), {"facecolor": colour_of("borrowed-area"), "edgecolor": colour_of("borrowed")}),
        (_key("highest", most), {"color": colour_of("muted"), "linewidth": 0.8}),
        (_key("request", request), {"color": colour_of("text"), "linewidth": 1.3, "dashes": (4, 3)}),
        (_key("limit", limit), {"color": colour_of("limit"), "linewidth": 1.8}),
    ]
    legend(place, keys)
    _draw_marks(place, found["gpu"], report)


def _fill(place: Any, times: Values, lower: Values, upper: Values, colour: str) -> None:
    """The area between two curves of steps. The last value before a gap holds until the gap begins."""
    moments = dates(times)
    for is_gap, run in groupby(range(len(times)), key=lambda at: math.isnan(upper[at])):
        if is_gap:
            continue
        held = list(run)
        until = held[-1] + 1
        if until < len(times):
            held.append(held[-1])
        place.fill_between(
            moments[held[0] : until + 1],
            [lower[at] for at in held],
            [upper[at] for at in held],
            step="post",
            facecolor=colour_of(colour),
        )


def _draw_marks(place: Any, gpu: str, report: Report) -> None:
    near = NEAR * (report["until"] - report["since"])
    marks: list[tuple[float, list[str]]] = []
    for one in report["happenings"]:
        if one["event"] not in MARKS or one["gpu"] not in (None, gpu):
            continue
        if marks and one["time"] - marks[-1][0] <= near:
            if one["event"] not in marks[-1][1]:
                marks[-1][1].append(one["event"])
        else:
            marks.append((one["time"], [one["event"]]))
    severity = ("good", "warn", "bad")
    for number, (at, kinds) in enumerate(marks):
        colour = colour_of(max((MARKS[kind] for kind in kinds), key=severity.index))
        when = datetime.fromtimestamp(at)
        late = at > (report["since"] + report["until"]) / 2
        place.axvline(when, color=colour, linewidth=1, linestyle=":")
        place.annotate(
            ", ".join(kinds).replace("_", " "),
            (when, 1),
            xycoords=("data", "axes fraction"),
            # Three rows, so that texts beside each other can be read; on the side where more room is, so that none
            # runs over the edge.
            xytext=(-2 if late else 2, -10 - 11 * (number % 3)),
            ha="right" if late else "left",
            textcoords="offset points",
            fontsize=8,
            color=colour,
        )


def _dress(place: Any, gpu: api.Gpu, report: Report) -> None:
    text = f"GPU {gpu['index']}  {one_line(gpu['name'])}, {format_bytes(gpu['total'])}"
    place.set_title(text, loc="left", fontsize=11, color=colour_of("text"), parse_math=False)
    amounts = _amounts(place.get_ylim()[1])
    place.set_yticks(amounts, [format_bytes(amount).replace(".0 ", " ") if amount else "0" for amount in amounts])
    drawing.along_time(place, report["since"], report["until"])


def _key(name: str, values: Values) -> str:
    return f"{name_of(name, LONGEST_KEY)}, at most {format_bytes(int(_most(values)))}"


def _times(series: Sequence[api.HistorySeries], report: Report) -> Values:
    """Each time at which something changes, and the ends of the chart."""
    return sorted({report["since"], report["until"], *(point[0] for one in series for point in one["points"])})


def _values(series: api.HistorySeries, times: Values, column: int) -> Values:
    found, at, held = [], 0, math.nan
    points = series["points"]
    for moment in times:
        while at < len(points) and points[at][0] <= moment:
            held = points[at][column] if len(points[at]) > column else math.nan
            at += 1
        found.append(held)
    return found


def _most(values: Values) -> float:
    return max((value for value in values if not math.isnan(value)), default=0.0)


def _amounts(most: float) -> list[int]:
    """Round amounts: powers of two, four or so of them. As in web/src/chart.tsx."""
    step = 2 ** max(20, math.ceil(math.log2(most / 5)))
    if most / step < 2:
        step //= 2
    return list(range(0, int(most) + 1, step))
