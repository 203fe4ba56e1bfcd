"""A report of queues as PNG: what is drawn where, of numbers that a test has put down."""

from __future__ import annotations

import itertools
import re
from typing import Any, cast

import pytest

from gpushare.cluster.quantity import MICRO
from gpushare.report import queue_picture
from gpushare.report.drawing import STACKED
from gpushare.report.queues import ALL, QueueReport
from reports.drawn import colour, covered, dashed, in_a_dark_style, keys, laid_out, line, lines_explained
from reports.recorded import SINCE, UNTIL

pytest.importorskip("matplotlib")
import numpy
from matplotlib.colors import to_hex
from matplotlib.dates import num2date

Series = dict[str, list[list[float]]]

MIDDLE = SINCE + 3600
BEFORE, AFTER = MIDDLE - 60, MIDDLE + 60


def at(time: float, held: float, share: float = 0, quota: float = 0) -> list[float]:
    """A point of the history, of amounts in GPUs. The highest amount and the demand are not drawn."""
    return [time, held * MICRO, 90 * MICRO, share * MICRO, quota * MICRO, 80 * MICRO]


LAB = [at(SINCE, 1, share=3, quota=2), at(MIDDLE, 3, share=4, quota=2)]
WEB = [at(MIDDLE, 2, share=2, quota=5)]
WHOLE = [at(SINCE, 1, quota=6), at(MIDDLE, 5, quota=8)]


def report(series: Series, whole: list[list[float]] = WHOLE, queue: str | None = None) -> QueueReport:
    queues = [{"name": name, "parent": None} for name in series]
    history = [{"queue": name, "points": points} for name, points in {ALL: whole, **series}.items()]
    found = {"since": SINCE, "until": UNTIL, "queue": queue, "cluster": {"queues": queues}}
    return cast(QueueReport, {**found, "history": {"series": history}})


def drawn(series: Series, **how: Any) -> Any:
    return queue_picture.draw(report(series, **how))


def test_queues_are_stacked() -> None:
    stack = drawn({"lab": LAB, "web": WEB}).axes[0]
    assert covered(stack, BEFORE) == {colour("job0"): (0, 1)}, "web holds nothing yet"
    assert covered(stack, AFTER) == {colour("job0"): (0, 3), colour("job1"): (3, 5)}
    assert covered(stack, UNTIL - 1) == covered(stack, AFTER)
    assert line(stack, "text", SINCE) == [(0, 6), (3600, 8), (7200, 8)], "all GPUs that there are"
    assert keys(stack) == [("lab", colour("job0")), ("web", colour("job1")), ("all GPUs", colour("text"))]
    assert len(lines_explained(stack)) == 1
    assert stack.get_title("left") == "GPUs by queue"


def test_each_queue_has_a_chart_with_its_share_and_its_quota() -> None:
    _, lab, web = drawn({"lab": LAB, "web": WEB}).axes
    assert [one.get_title("left") for one in (lab, web)] == ["lab", "web"]
    assert (covered(lab, BEFORE), covered(lab, AFTER)) == ({colour("job0"): (0, 1)}, {colour("job0"): (0, 3)})
    assert (covered(web, BEFORE), covered(web, AFTER)) == ({}, {colour("job1"): (0, 2)})
    assert line(lab, "good", SINCE) == [(0, 3), (3600, 4), (7200, 4)]
    assert line(lab, "text", SINCE) == [(0, 2), (3600, 2), (7200, 2)]
    assert line(web, "text", SINCE) == [(0, 0), (3600, 5), (7200, 5)], "of the time before nothing is known"
    explained = [("held", colour("job1")), ("fair share", colour("good")), ("quota", colour("text"))]
    assert keys(web) == explained
    assert len(lines_explained(web)) == 2
    for lines in (web.lines, web.get_legend().legend_handles):
        assert dashed(lines) == [colour("text")], "a quota and a fair share are told apart without colours, too"


def test_all_that_is_drawn_has_room() -> None:
    """Up to the highest of held, fair share, quota and all GPUs, and not much above it."""
    high = [at(SINCE, 1), at(MIDDLE, 20)]
    for series, whole, tops in (
        ({"lab": LAB}, WHOLE, (8, 4)),
        ({"web": WEB}, WHOLE, (8, 5)),
        ({"high": high}, WHOLE, (20, 20)),
        ({"high": high, "too": high}, WHOLE, (40, 20, 20)),
        ({"none": [[SINCE]]}, [], (1, 1)),
    ):
        for place, top in zip(drawn(series, whole=whole).axes, tops, strict=True):
            low, high_end = place.get_ylim()
            assert low == 0 and top * 1.02 < high_end < top * 1.2
            assert all(float(tick).is_integer() for tick in place.get_yticks()), "whole GPUs"


def test_time_goes_from_the_beginning_to_the_end_in_all_charts() -> None:
    figure = drawn({"lab": LAB, "web": WEB})
    for place in figure.axes:
        assert [round(num2date(end).timestamp()) for end in place.get_xlim()] == [SINCE, UNTIL]
        assert to_hex(place.get_facecolor()) == colour("surface") == to_hex(figure.get_facecolor())
    for place in figure.axes:
        assert [text.get_text() for text in place.get_xticklabels() if text.get_visible()]


def test_a_time_of_which_nothing_is_known_has_no_gpus() -> None:
    """A point of one number: no service ran, or there was no such queue yet."""
    stack, gone = drawn({"gone": [at(SINCE, 2, 2, 2), [MIDDLE]]}, whole=[at(SINCE, 2, quota=4), [MIDDLE]]).axes
    assert (covered(stack, BEFORE), covered(stack, AFTER)) == ({colour("job0"): (0, 2)}, {})
    assert line(gone, "good", SINCE) == line(gone, "text", SINCE) == [(0, 2), (3600, 0), (7200, 0)]
    assert line(stack, "text", SINCE) == [(0, 4), (3600, 0), (7200, 0)]


@pytest.mark.parametrize(("more", "said"), [(0, []), (1, ["1 other"]), (3, ["3 others"])])
def test_queues_beyond_those_with_colours_are_drawn_as_others(more: int, said: list[str]) -> None:
    series = {f"q{number}": [at(SINCE, 1)] for number in range(STACKED + more)}
    figure = drawn(series)
    stack, *each = figure.axes
    assert [one.get_title("left") for one in each] == [f"q{number}" for number in range(STACKED)]
    tops = [to_hex(one.get_facecolor()[0]) for one in stack.collections]
    assert tops == [colour(f"job{number}") for number in range(STACKED)] + [colour("rest")] * more
    others = [(text, colour("rest")) for text in said]
    assert keys(stack)[STACKED:] == [*others, ("all GPUs", colour("text"))]
    assert stack.collections[-1].get_paths()[0].get_extents().y1 == STACKED + more, "the others are above"


def test_it_is_wide_and_grows_with_its_queues() -> None:
    one, two = drawn({"lab": LAB}), drawn({"lab": LAB, "web": WEB})
    assert [figure.get_size_inches()[0] * figure.dpi for figure in (one, two)] == [1200, 1200]
    assert 1.5 < two.get_size_inches()[1] - one.get_size_inches()[1] < 3


LONG = "research-" * 28


@pytest.mark.parametrize("queue", [None, LONG])
def test_its_text_can_be_read(queue: str | None) -> None:
    """Even where a name is so long that it would take all the width."""
    figure = drawn({LONG: LAB, "web": WEB}, queue=queue)
    laid_out(figure)
    boxes = [place.get_window_extent() for place in figure.axes]
    assert all(above.y0 > below.y1 for above, below in itertools.pairwise(boxes))
    heights = [box.height for box in boxes]
    assert all(1.3 < heights[0] / each < 2 for each in heights[1:]), "the chart of all queues is the largest"
    for place, box in zip(figure.axes, boxes, strict=True):
        legend = place.get_legend().get_window_extent()
        assert box.x0 < 100 and box.width > 500, "the chart has nearly half of the width"
        assert box.x1 <= legend.x0 and legend.x1 <= 1201, "beside the chart, and in the picture"
        assert place._left_title.get_window_extent().x1 <= 1201
    title = figure._suptitle.get_window_extent()
    assert title.x0 >= 0 and title.x1 <= 1201


def test_what_holds_nothing_shows_no_colour() -> None:
    """Not even a line at the edge of the area below it."""
    figure = drawn({"lab": LAB, "web": WEB})
    pixels = numpy.asarray(laid_out(figure).buffer_rgba())[::-1, :, :3]
    wanted = [int(colour("job1")[at : at + 2], 16) for at in (1, 3, 5)]
    stack, _, web = figure.axes
    for place in (stack, web):
        box = place.get_window_extent()
        x0, x1, y0, y1 = (int(end) for end in (box.x0, box.x1, box.y0, box.y1))
        seen = numpy.nonzero((pixels[y0:y1, x0:x1] == wanted).all(axis=2))[1]
        assert seen.size and seen.min() >= (x1 - x0) / 2 - 2, "web begins in the middle"


def test_its_colours_are_not_the_users() -> None:
    made = report({"lab": LAB})
    assert in_a_dark_style(lambda: queue_picture.render(made)) == queue_picture.render(made)


@pytest.mark.parametrize(
    ("queue", "title"),
    [(None, "queues, 2026-09-2"), ("lab", "queue lab, 2026-09-2"), ("$x\n$", "queue $x\\n$, 2026-09-2")],
)
def test_the_title_says_of_what_and_when(queue: str | None, title: str) -> None:
    figure = drawn({"lab": LAB, "web": WEB, "$x\n$": LAB}, queue=queue)
    shown = figure.get_suptitle()
    assert not figure._suptitle.get_parse_math(), "dollars are no formula"
    assert shown.startswith(title) and re.search(r" \d\d:\d4 to 2026-09-2\d \d\d:\d4 \(\S+\)$", shown)
    assert len(figure.axes) == (4 if queue is None else 2), "the one queue that it is about"


@pytest.mark.parametrize("name", ["_hidden", "$\\frac{", "日本", "a\nb"])
def test_names_are_text(name: str) -> None:
    """A legend leaves out what begins with an underscore, and takes dollars for formulas."""
    made = report({name: LAB})
    stack, own = queue_picture.draw(made).axes
    shown = name.replace("\n", "\\n")
    assert keys(stack)[0][0] == own.get_title("left") == shown
    assert queue_picture.render(made).startswith(b"\x89PNG\r\n\x1a\n")
