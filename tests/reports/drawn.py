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


def described(figure: Any, since: float) -> str:
    """All that is drawn, with its sizes, widths, colours and places: a line for each thing. Times are seconds since
    then. What matplotlib itself chooses (the marks along the time, where the layout puts a chart) is left out."""
    told = [f"{_numbers(figure.get_size_inches())} inches, {figure.dpi:g} dpi, on {_named(figure.get_facecolor())}"]
    head, _, span = figure.get_suptitle().partition(", ")
    told.append(f"title {head!r}{' and a span of time' if span else ''}: {_look(figure._suptitle)}")
    for place in figure.axes:
        told += ["", *_described(place, since)]
    return "\n".join(told)


def _described(place: Any, since: float) -> list[str]:
    title = next(text for text in (place.title, place._left_title, place._right_title) if text.get_text())
    told = [f"chart {title.get_text()!r} {title.get_ha()}: {_look(title)}, on {_named(place.get_facecolor())}"]
    told.append(f"  amounts from {_numbers(place.get_ylim())}; seconds {_numbers(_seconds(place.get_xlim(), since))}")
    told.append(f"  spines {', '.join(f'{n} {_named(s.get_edgecolor())}' for n, s in _shown(place.spines))}")
    for name, axis in (("time", place.xaxis), ("amount", place.yaxis)):
        mark = axis.get_major_ticks()[0]
        grid = mark.gridline
        told.append(
            f"  {name} axis: {_look(mark.label1)}, visible {mark.label1.get_visible()}, {mark.get_pad():g} off, "
            f"marks of {mark.tick1line.get_markersize():g}, grid {_named(grid.get_color())} {grid.get_linewidth():g} "
            f"{grid.get_visible()}, below {place.get_axisbelow()}"
        )
    told += [f"  amount {text.get_text()!r}" for text in place.get_yticklabels() if text.get_text()]
    for area in place.collections:
        box = area.get_paths()[0].get_extents()
        reach = f"{_numbers(_seconds((box.x0, box.x1), since))} x {_numbers((box.y0, box.y1))}"
        told.append(f"  area {_named(area.get_facecolor()[0])} {reach}")
    for line in place.lines:
        told.append(f"  line {_line(line)}: {_numbers(line.get_ydata())}")
    for text in place.texts:
        when = round(text.xy[0].timestamp() - since)
        at = f"at {when}, {text.xy[1]:g} {text.xycoords} {_numbers(text.xyann)} {text.anncoords} {text.get_ha()}"
        told.append(f"  text {text.get_text()!r} {at}: {_look(text)}")
    legend = place.get_legend()
    told.append(f"  keys at {_numbers(legend.get_bbox_to_anchor()._bbox.p0)}, frame {legend.get_frame_on()}")
    for text, handle in zip(legend.get_texts(), legend.legend_handles, strict=True):
        told.append(f"    {text.get_text()!r}: {_look(text)}; {_handle(handle)}")
    return told


def _seconds(days: Sequence[float], since: float) -> list[float]:
    from matplotlib.dates import date2num

    zero = date2num(datetime.fromtimestamp(since))
    return [(one - zero) * 86400 for one in days]


def _shown(spines: Any) -> list[tuple[str, Any]]:
    return [(name, spine) for name, spine in spines.items() if spine.get_visible()]


def _numbers(some: Sequence[float]) -> str:
    return " ".join(f"{float(one):.4g}" for one in some)


def _named(colour: Any) -> str:
    from matplotlib.colors import to_hex

    found: str = to_hex(colour, keep_alpha=True)
    return found.removesuffix("ff") if len(found) == 9 else found


def _look(text: Any) -> str:
    return f"{text.get_fontsize():g} pt {_named(text.get_color())}{'' if text.get_parse_math() is False else ' math'}"


def _line(line: Any) -> str:
    dashes = _numbers(line._unscaled_dash_pattern[1]) if line.is_dashed() else "solid"
    return f"{_named(line.get_color())} {line.get_linewidth():g} {dashes} {line.get_drawstyle()}"


def _handle(handle: Any) -> str:
    from matplotlib.lines import Line2D

    if isinstance(handle, Line2D):
        return f"line {_line(handle)}"
    return f"area {_named(handle.get_facecolor())} edge {_named(handle.get_edgecolor())}"
