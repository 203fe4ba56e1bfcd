"""What all PNG reports are drawn with: the page's colours, an axis of time, a legend beside the chart.

Needs matplotlib, which is an extra."""

from __future__ import annotations

import io
import re
import time
import warnings
from collections.abc import Sequence
from datetime import datetime
from functools import cache
from typing import Any

import gpushare_installation
from gpushare.errors import GpushareError
from gpushare.printable import one_line
from gpushare.report.page import STATIC

__all__ = ["DPI", "STACKED", "WIDTH", "along_time", "check", "colour", "dates", "legend", "name_of", "png", "span"]

WIDTH, DPI = 12.0, 100
"""Inches, and pixels of an inch."""
STACKED = 8
"""Colours that can be told apart; smaller jobs and queues are drawn as one. As in web/src/node.tsx."""
LONGEST_KEY, LONGEST_TITLE = 24, 48
"""Characters of a name beside a chart, and above one. A longer name would take the chart's place."""


def check() -> None:
    """Raise GpushareError if matplotlib is missing, before anything long begins."""
    try:
        import matplotlib.figure  # noqa: F401
    except ModuleNotFoundError:
        raise GpushareError(
            "a PNG needs matplotlib, which is not installed",
            hint=f"{gpushare_installation.install_extra('plot')}, or write .html or .csv",
        ) from None


def png(figure: Any) -> bytes:
    out = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a name may have characters that the font lacks: they are drawn as boxes
        figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()


def span(since: float, until: float) -> str:
    first, last = (time.strftime("%Y-%m-%d %H:%M", time.localtime(end)) for end in (since, until))
    return f"{first} to {last} ({time.strftime('%Z', time.localtime(until))})"


def along_time(place: Any, since: float, until: float) -> None:
    """The chart's axes and their colours; the horizontal one is from one time to the other."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator()  # type: ignore[no-untyped-call]
    place.set_facecolor(colour("surface"))
    place.xaxis.set_major_locator(locator)
    place.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    place.xaxis.set_tick_params(labelbottom=True)
    place.set_xlim(*dates([since, until]))
    place.tick_params(labelsize=10, colors=colour("muted"), length=0)
    place.tick_params(axis="x", pad=8)
    place.grid(visible=True, color=colour("grid"), linewidth=0.8)
    place.set_axisbelow(True)
    place.spines[["top", "right"]].set_visible(False)
    place.spines[["left", "bottom"]].set_color(colour("border"))


def legend(place: Any, keys: Sequence[tuple[str, dict[str, Any]]]) -> None:
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
        labelcolor=colour("text"),
    )
    for text, (name, _) in zip(made.get_texts(), keys, strict=True):
        text.set_parse_math(False)
        text.set_text(name)


def name_of(text: str, most: int) -> str:
    """A name that users chose, as text of at most so many characters."""
    shown = one_line(text)
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def dates(times: Sequence[float]) -> list[datetime]:
    return [datetime.fromtimestamp(moment) for moment in times]


def colour(name: str) -> str:
    return _colours()[name]


@cache
def _colours() -> dict[str, str]:
    """The page's colours, in its light theme."""
    rules = re.search(r":root\{([^}]*)\}", (STATIC / "app.css").read_text(encoding="utf-8"))
    return dict(re.findall(r"--([\w-]+): *(#[0-9a-f]+)", rules[1] if rules else ""))
