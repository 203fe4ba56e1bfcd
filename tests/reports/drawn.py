"""What a matplotlib figure shows, as a reader sees it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from gpushare.report import page


def colour(name: str) -> str:
    """Of the page's light theme."""
    found = re.search(rf"--{name}: *(#[0-9a-f]{{6}})", (page.STATIC / "app.css").read_text())
    assert found is not None
    return found[1]


def covered(place: Any, time: float, unit: float = 1.0, most: int = 60) -> dict[str, tuple[int, int]]:
    """By colour, from how many units to how many an area reaches at this time."""
    from matplotlib.colors import to_hex
    from matplotlib.dates import date2num

    found: dict[str, tuple[int, int]] = {}
    when = date2num(datetime.fromtimestamp(time))
    for one in place.collections:
        inside = [
            amount
            for amount in range(most)
            if any(path.contains_point((when, (amount + 0.5) * unit)) for path in one.get_paths())
        ]
        if inside:
            name = to_hex(one.get_facecolor()[0])
            assert inside == list(range(inside[0], inside[-1] + 1)), name
            found[name] = (inside[0], inside[-1] + 1)
    return found


def line(place: Any, name: str, since: float, unit: float = 1.0) -> list[tuple[float, float]]:
    """The line of this colour: seconds since then, and amounts."""
    from matplotlib.colors import to_hex

    (found,) = [one for one in place.lines if to_hex(one.get_color()) == colour(name)]
    assert found.get_drawstyle() == "steps-post", "an amount holds until the next one"
    times: Sequence[datetime] = found.get_xdata()
    amounts = [float(amount) / unit for amount in found.get_ydata()]
    return [(time.timestamp() - since, amount) for time, amount in zip(times, amounts, strict=True)]


def dashed(lines: Sequence[Any]) -> list[str]:
    """The colours of those that are."""
    from matplotlib.colors import to_hex
    from matplotlib.lines import Line2D

    return [to_hex(one.get_color()) for one in lines if isinstance(one, Line2D) and one.is_dashed()]


def keys(place: Any) -> list[tuple[str, str]]:
    """Texts beside the chart, with the colours that they explain."""
    from matplotlib.colors import to_hex
    from matplotlib.lines import Line2D

    legend = place.get_legend()
    shown = [one.get_color() if isinstance(one, Line2D) else one.get_facecolor() for one in legend.legend_handles]
    return list(zip((text.get_text() for text in legend.get_texts()), map(to_hex, shown), strict=True))


def laid_out(figure: Any) -> Any:
    """Its canvas. Without one that draws, all boxes are as they were before the layout."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return canvas


def in_a_dark_style(render: Callable[[], bytes]) -> bytes:
    """As for a user whose own settings of matplotlib make its figures dark."""
    from matplotlib import style

    with style.context("dark_background"):
        return render()


def lines_explained(place: Any) -> set[tuple[str, float, bool]]:
    """The lines beside the chart, as they look. Each is asserted to look so in the chart, too."""
    from matplotlib.colors import to_hex
    from matplotlib.lines import Line2D

    def look(some: Sequence[Any]) -> set[tuple[str, float, bool]]:
        lines = [one for one in some if isinstance(one, Line2D)]
        return {(to_hex(one.get_color()), one.get_linewidth(), one.is_dashed()) for one in lines}

    explained = look(place.get_legend().legend_handles)
    assert explained <= look(place.lines)
    return explained
