"""A report as PNG, 1200 pixels wide, with the layers and colours of the dashboard's charts. Needs matplotlib, which is
an extra."""

from __future__ import annotations

import io
import math
import re
import time
import warnings
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from itertools import groupby
from typing import Any

import gpushare_installation
from gpushare import api
from gpushare.errors import GpushareError
from gpushare.printable import one_line
from gpushare.quantity import format_bytes
from gpushare.report.contents import OUTSIDE, TOTAL, Report
from gpushare.report.page import STATIC

__all__ = ["check", "draw", "render"]

WIDTH, DPI = 12.0, 100
"""Inches, and pixels of an inch."""
STACKED = 8
"""Colours that can be told apart; smaller jobs are drawn as one. As in web/src/node.tsx."""
LONGEST_NAME = 24
MARKS = {
    "trim": "warn",
    "term": "warn",
    "kill": "bad",
    "relieved": "good",
    "claim_waits": "warn",
    "claim_met": "good",
    "breach": "bad",
}
"""What is marked in a job's chart, and its colour. As in web/src/job.tsx."""
NEAR = 0.012
"""Marks that are nearer than this part of the width are drawn as one."""

Values = list[float]
"""One for each time; NaN where nothing is known."""


def check() -> None:
    """Raises GpushareError where matplotlib is missing, before anything long begins."""
    try:
        import matplotlib.figure  # noqa: F401
    except ModuleNotFoundError:
        raise GpushareError(
            "a PNG needs matplotlib, which is not installed",
            hint=f"{gpushare_installation.install_extra('plot')}, or write .html or .csv",
        ) from None


def render(report: Report) -> bytes:
    out = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a name may have characters that the font lacks: they are drawn as boxes
        draw(report).savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()


def draw(report: Report) -> Any:
    """As a matplotlib.figure.Figure: below each other a chart for each GPU."""
    from matplotlib.figure import Figure

    gpus = sorted(report["state"]["gpus"], key=lambda gpu: gpu["index"])
    height = 0.8 + 2.9 * len(gpus)
    figure = Figure(figsize=(WIDTH, height), dpi=DPI, layout="constrained", facecolor=_colour("surface"))
    axes = figure.subplots(len(gpus), 1, sharex=True, squeeze=False)[:, 0]
    job = next((one for one in report["state"]["jobs"] if one["id"] == report["job"]), None)
    figure.suptitle(_title(report, job), fontsize=13, color=_colour("text"), parse_math=False)
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
    since, until = (time.strftime("%Y-%m-%d %H:%M", time.localtime(report[end])) for end in ("since", "until"))
    what = report["about"]["host"] if job is None else f"{job['name']} ({job['id']}) on {report['about']['host']}"
    return f"{one_line(what)}, {since} to {until} ({time.strftime('%Z', time.localtime(report['until']))})"


def _draw_stack(
    place: Any,
    gpu: api.Gpu,
    series: Sequence[api.HistorySeries],
    times: Values,
    kept: dict[str, int],
) -> None:
    """Memory by job, one upon the other; all of the GPU is the height. Gaps where nothing is known of the GPU."""
    of = {one["job"]: one for one in series}
    known = _values(of[TOTAL], times, 1) if TOTAL in of else [0.0] * len(times)
    lower = [value * 0 for value in known]  # NaN stays: it is the gap in all layers
    keys = []
    for name, values, colour in _layers(of, times, kept):
        upper = [low + (0.0 if math.isnan(value) else value) for low, value in zip(lower, values, strict=True)]
        _fill(place, times, lower, upper, colour)
        keys.append((_key(name, values), {"facecolor": _colour(colour)}))
        lower = upper
    place.set_ylim(0, gpu["total"])
    nothing = "no memory is in use" if series else "nothing is known of that time"
    _legend(place, keys or [(nothing, {"facecolor": "none"})])


def _layers(of: Mapping[str, api.HistorySeries], times: Values, kept: dict[str, int]) -> list[tuple[str, Values, str]]:
    """(name, values, colour), from the lowest. `kept` has the colour of each job that has one already."""
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
        (one["name"], values, f"job{kept[one['job']]}")
        for one, values in sorted(largest, key=lambda one: one[0]["job"])
    ]
    if rest:
        sums = [
            sum(value for value in column if not math.isnan(value))
            for column in zip(*(v for _, v in rest), strict=True)
        ]
        found.append((f"{len(rest)} other job{'s' if len(rest) > 1 else ''}", sums, "rest"))
    outside = _values(of[OUTSIDE], times, 1) if OUTSIDE in of else []
    if _most(outside) > 0:
        found.append(("outside gpushare", outside, "unmanaged"))
    return found


def _draw_job(place: Any, report: Report, series: Sequence[api.HistorySeries], times: Values) -> None:
    """Usage against request and limit, and what happened to the job."""
    found = next((one for one in series if one["job"] == report["job"]), None)
    if found is None:
        return
    usage, most, request, limit = (_values(found, times, column) for column in (1, 2, 3, 4))
    within = [min(used, asked) for used, asked in zip(usage, request, strict=True)]
    dates = _dates(times)
    for upper, colour in ((usage, "borrowed"), (within, "guaranteed")):
        _fill(place, times, [0.0] * len(times), upper, f"{colour}-area")
        place.step(dates, upper, where="post", color=_colour(colour), linewidth=1.5)
    place.step(dates, most, where="post", color=_colour("muted"), linewidth=0.8)
    place.step(dates, request, where="post", color=_colour("text"), linewidth=1.3, dashes=(4, 3))
    place.step(dates, limit, where="post", color=_colour("limit"), linewidth=1.8)
    place.set_ylim(0, max(1.0, _most(limit), _most(most)) * 1.08)
    loans = _values(found, times, 5)
    keys: list[tuple[str, dict[str, Any]]] = [
        (_key("in use", usage), {"facecolor": _colour("guaranteed-area"), "edgecolor": _colour("guaranteed")}),
        (_key("borrowed", loans), {"facecolor": _colour("borrowed-area"), "edgecolor": _colour("borrowed")}),
        (_key("highest", most), {"color": _colour("muted"), "linewidth": 0.8}),
        (_key("request", request), {"color": _colour("text"), "linewidth": 1.3, "dashes": (4, 3)}),
        (_key("limit", limit), {"color": _colour("limit"), "linewidth": 1.8}),
    ]
    _legend(place, keys)
    _draw_marks(place, found["gpu"], report)


def _fill(place: Any, times: Values, lower: Values, upper: Values, colour: str) -> None:
    """The area between two curves of steps. What is known last before a gap is so until the gap begins."""
    dates = _dates(times)
    for is_gap, run in groupby(range(len(times)), key=lambda at: math.isnan(upper[at])):
        if is_gap:
            continue
        held = list(run)
        until = held[-1] + 1
        if until < len(times):
            held.append(held[-1])
        place.fill_between(
            dates[held[0] : until + 1],
            [lower[at] for at in held],
            [upper[at] for at in held],
            step="post",
            facecolor=_colour(colour),
            linewidth=0,
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
        colour = _colour(max((MARKS[kind] for kind in kinds), key=severity.index))
        when = datetime.fromtimestamp(at)
        place.axvline(when, color=colour, linewidth=1, linestyle=":")
        place.annotate(
            ", ".join(kinds).replace("_", " "),
            (when, 1),
            xycoords=("data", "axes fraction"),
            xytext=(2, -10 - 11 * (number % 3)),  # three rows, so that texts beside each other can be read
            textcoords="offset points",
            fontsize=8,
            color=colour,
        )


def _dress(place: Any, gpu: api.Gpu, report: Report) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator()  # type: ignore[no-untyped-call]
    place.set_facecolor(_colour("surface"))
    text = f"GPU {gpu['index']}  {one_line(gpu['name'])}, {format_bytes(gpu['total'])}"
    place.set_title(text, loc="left", fontsize=11, color=_colour("text"), parse_math=False)
    place.xaxis.set_major_locator(locator)
    place.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    place.xaxis.set_tick_params(labelbottom=True)
    place.set_xlim(*_dates([report["since"], report["until"]]))
    amounts = _amounts(place.get_ylim()[1])
    place.set_yticks(amounts, [format_bytes(amount).replace(".0 ", " ") if amount else "0" for amount in amounts])
    place.tick_params(labelsize=10, colors=_colour("muted"), length=0)
    place.tick_params(axis="x", pad=8)
    place.grid(visible=True, color=_colour("grid"), linewidth=0.8)
    place.set_axisbelow(True)
    place.spines[["top", "right"]].set_visible(False)
    place.spines[["left", "bottom"]].set_color(_colour("border"))


def _legend(place: Any, keys: Sequence[tuple[str, dict[str, Any]]]) -> None:
    """Beside the chart. The texts are set afterwards: a legend leaves out names that begin with an underscore."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles = [Patch(**style) if "facecolor" in style else Line2D([], [], **style) for _, style in keys]
    made = place.legend(
        handles,
        ["-"] * len(keys),
        loc="upper left",
        bbox_to_anchor=(1.005, 1.02),
        frameon=False,
        fontsize=9.5,
        labelcolor=_colour("text"),
    )
    for text, (name, _) in zip(made.get_texts(), keys, strict=True):
        text.set_parse_math(False)
        text.set_text(name)


def _key(name: str, values: Values) -> str:
    shown = one_line(name)
    if len(shown) > LONGEST_NAME:
        shown = f"{shown[: LONGEST_NAME - 1]}…"
    return f"{shown}, at most {format_bytes(int(_most(values)))}"


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


def _dates(times: Values) -> list[datetime]:
    return [datetime.fromtimestamp(moment) for moment in times]


def _amounts(most: float) -> list[int]:
    """Round amounts: powers of two, four or so of them. As in web/src/chart.tsx."""
    step = 2 ** max(20, math.ceil(math.log2(most / 5)))
    if most / step < 2:
        step //= 2
    return list(range(0, int(most) + 1, step))


def _colour(name: str) -> str:
    return _colours()[name]


@cache
def _colours() -> dict[str, str]:
    """The page's colours, in its light theme."""
    rules = re.search(r":root\{([^}]*)\}", (STATIC / "app.css").read_text(encoding="utf-8"))
    return dict(re.findall(r"--([\w-]+): *(#[0-9a-f]+)", rules[1] if rules else ""))
