"""What a picture of a run shows: the units of time, the bands, the colours, the size; and how a cost grows."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushare.cluster import plot
from gpushare.cluster.quantity import MICRO
from gpushare.cluster.timeline import Timeline
from gpushare.errors import GpushareError, UsageError


@pytest.mark.parametrize(
    ("seconds", "unit"),
    [
        (0, ("seconds", 1)),
        (179.9, ("seconds", 1)),
        (180, ("minutes", 60)),
        (7199, ("minutes", 60)),
        (7200, ("hours", 3600)),
        (172_799, ("hours", 3600)),
        (172_800, ("days", 86400)),
        (10**9, ("days", 86400)),
    ],
)
def test_the_unit_leaves_two_or_more(seconds, unit) -> None:
    assert plot._unit(seconds) == unit


def many(queues: int) -> Timeline:
    """Queue n holds n GPUs from 1 s on, and the time is 2 s."""
    run = Timeline()
    run.record(0, {f"q{n}": 0 for n in range(queues)}, 1000 * MICRO)
    run.record(1, {f"q{n}": n * MICRO for n in range(queues)}, 1000 * MICRO)
    run.reach(2)
    return run


@pytest.mark.parametrize("queues", [1, 2, 19, 20])
def test_so_many_queues_have_a_band_each(queues) -> None:
    bands = plot._bands(many(queues), [0, 1, 2])
    assert bands == [(f"q{n}", [0, n, n]) for n in range(queues)]


@pytest.mark.parametrize("queues", [21, 30])
def test_of_more_the_largest_have_one_and_all_others_one(queues) -> None:
    bands = plot._bands(many(queues), [0, 1, 2])
    left = queues - 19
    assert bands[:-1] == [(f"q{n}", [0, n, n]) for n in range(left, queues)], "in the order of the queues"
    rest = left * (left - 1) / 2
    assert bands[-1] == (f"{left} others", [0, rest, rest])


def test_a_path_for_a_picture(tmp_path) -> None:
    for name in ("x.png", "x.svg"):
        plot.check(tmp_path / name)
    with pytest.raises(UsageError) as caught:
        plot.check(tmp_path / "run.1.pdf")
    assert caught.value.message == f"{tmp_path}/run.1.pdf: a picture is PNG or SVG"
    assert caught.value.hint == "name it run.1.png or run.1.svg"
    with pytest.raises(UsageError) as caught:
        plot.check(tmp_path / "none" / "x.png")
    assert caught.value.message == f"{tmp_path}/none is not a directory"
    assert caught.value.hint == "make it first, or write elsewhere"


def test_a_run_without_queues_has_no_picture(tmp_path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(GpushareError) as caught:
        plot.draw(Timeline(), tmp_path / "x.png", "none")
    assert (caught.value.message, caught.value.hint) == ("there is nothing to draw", "the scenario has no queues")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def drawn(monkeypatch):
    """The figures that would be written, to be looked at."""
    pytest.importorskip("matplotlib")
    figures = []
    monkeypatch.setattr(plot, "_save", lambda _plt, figure, path: figures.append((figure, path)))
    yield figures
    for figure, _ in figures:
        plot._pyplot().close(figure)


def colours(axes: object) -> list[tuple]:
    return [tuple(round(part, 3) for part in band.get_facecolor()[0]) for band in axes.collections]


def test_a_run_in_bands(drawn) -> None:
    run = Timeline()
    run.record(0, {"a": 3 * MICRO, "b": 0}, 4 * MICRO)
    run.record(600, {"a": MICRO, "b": 2 * MICRO}, 6 * MICRO)
    run.reach(1200)
    plot.draw(run, Path("x.png"), "two queues")
    ((figure, path),) = drawn
    assert path == Path("x.png")
    assert tuple(figure.get_size_inches()) == (9, 4.5)
    (axes,) = figure.axes
    assert (axes.get_title(), axes.get_xlabel(), axes.get_ylabel()) == ("two queues", "minutes", "GPUs")
    assert axes.get_xlim() == (0, 20)
    assert axes.get_ylim() == pytest.approx((0, 6.3))
    assert len(set(colours(axes))) == 2
    (capacity,) = axes.lines
    assert list(capacity.get_xdata()) == [0, 10, 20]
    assert list(capacity.get_ydata()) == [4, 6, 6]
    assert (capacity.get_color(), capacity.get_linewidth(), capacity.get_label()) == ("black", 1, "all GPUs")
    lower, upper = (band.get_paths()[0].vertices for band in axes.collections)
    assert max(y for x, y in lower if x < 9) == 3
    assert max(y for x, y in lower if x > 11) == 1
    assert max(y for x, y in upper if x > 11) == 3
    assert all(float(tick).is_integer() for tick in axes.get_yticks())
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["a", "b", "all GPUs"]
    assert legend.get_frame_on() is False


def test_twenty_one_queues_have_no_two_colours_alike_beside_each_other(drawn) -> None:
    plot.draw(many(21), Path("x.png"), "many")
    found = colours(drawn[0][0].axes[0])
    assert len(found) == 20
    assert len(set(found)) == 20


def test_no_gpus_at_all_is_a_picture_too(drawn) -> None:
    run = Timeline()
    run.record(0, {"a": 0}, 0)
    run.reach(10)
    plot.draw(run, Path("x.png"), "none")
    assert drawn[0][0].axes[0].get_ylim() == (0, 1)


def test_without_time_each_queue_has_a_bar(drawn) -> None:
    run = Timeline()
    run.record(5, {"a": 3 * MICRO, "b": MICRO // 2}, 4 * MICRO)
    plot.draw(run, Path("x.png"), "at once")
    (axes,) = drawn[0][0].axes
    assert [bar.get_height() for bar in axes.patches] == [3, 0.5]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a", "b"]
    assert len({bar.get_facecolor() for bar in axes.patches}) == 2
    assert (axes.get_title(), axes.get_ylabel()) == ("at once", "GPUs")
    assert axes.get_xlabel() == "queues, in the end, on 4 GPUs"
    assert all(float(tick).is_integer() for tick in axes.get_yticks())
    assert axes.lines[:] == []


def test_how_a_cost_grows(drawn) -> None:
    plot.curve(Path("x.svg"), "cost", [1, 10, 100], {"a": [1, 2, 3], "b": [4, 5, 6]}, ("jobs", "ms"))
    ((figure, path),) = drawn
    assert path == Path("x.svg")
    (axes,) = figure.axes
    assert (axes.get_title(), axes.get_xlabel(), axes.get_ylabel()) == ("cost", "jobs", "ms")
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert [(line.get_label(), list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines] == [
        ("a", [1, 10, 100], [1, 2, 3]),
        ("b", [1, 10, 100], [4, 5, 6]),
    ]
    assert {line.get_marker() for line in axes.lines} == {"o"}
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a", "b"]
    assert axes.get_legend().get_frame_on() is False
    assert axes.xaxis.get_gridlines()[0].get_visible()
    assert axes.xaxis.get_minorticklines() and axes.xaxis.get_minor_ticks()[0].gridline.get_visible()
    assert tuple(figure.get_size_inches()) == (7, 4.5)


def test_a_picture_is_the_same_each_time_and_closed(tmp_path) -> None:
    pytest.importorskip("matplotlib")
    plt = plot._pyplot()
    before = plt.get_fignums()
    for name in ("a", "b"):
        for suffix in plot.FORMATS:
            plot.curve(tmp_path / f"{name}{suffix}", "cost", [1, 10], {"a": [1, 2]}, ("jobs", "ms"))
    assert plt.get_fignums() == before
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a.png", "a.svg", "b.png", "b.svg"]
    for suffix in plot.FORMATS:
        assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()
    text = (tmp_path / "a.svg").read_text()
    assert ">cost</text>" in text, "words are words in it, not outlines"
    assert "<dc:date>" not in text
    png = (tmp_path / "a.png").read_bytes()
    assert b"Software" not in png
    assert (int.from_bytes(png[16:20], "big"), int.from_bytes(png[20:24], "big")) == (840, 540)


def test_a_place_that_may_not_be_written_is_said() -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(GpushareError, match=r"^cannot write /proc/x\.png: ") as caught:
        plot.curve(Path("/proc/x.png"), "cost", [1], {"a": [1]}, ("jobs", "ms"))
    assert caught.value.hint == "name another file"
