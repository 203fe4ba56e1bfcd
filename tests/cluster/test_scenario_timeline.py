"""A run as text and as a picture."""

from __future__ import annotations

import builtins
import errno
import os
from pathlib import Path

import pytest

from gpushare.cluster import plot
from gpushare.cluster.quantity import MICRO
from gpushare.cluster.timeline import Happening, Timeline, moment_text
from gpushare.errors import GpushareError, UsageError


def line(*, end: int = 10) -> Timeline:
    """a holds 2 of 4 for half of the time, then b all of them."""
    run = Timeline()
    run.record(0, {"a": 2 * MICRO, "b": 0}, 4 * MICRO)
    run.note(Happening(0, "start", "a-1", "a", "on n1"))
    run.note(Happening(0, "start", "a-2", "a", ""))
    run.record(5, {"a": 0, "b": 4 * MICRO}, 4 * MICRO)
    run.note(Happening(5, "evict", "a-1", "a", "for b-1"))
    run.record(end, {"a": 0, "b": 0}, 4 * MICRO)
    return run


def test_use_and_means() -> None:
    run = line()
    assert run.used() == pytest.approx((2 * 5 + 4 * 5) / 40)
    assert run.mean("a") == pytest.approx(1)
    assert run.mean("b") == pytest.approx(2)


def test_what_is_held_in_the_end_is_shown_as_long_as_it_was_held() -> None:
    """After the last decision time goes on: the chart does, too."""
    run = Timeline()
    run.record(0, {"a": 0}, 4 * MICRO)
    run.record(30, {"a": 4 * MICRO}, 4 * MICRO)
    run.reach(40)
    run.reach(35)
    assert (run.end, run.passed) == (40, 40)
    assert run.mean("a") == pytest.approx(1)
    assert run.used() == pytest.approx(0.25)
    assert next(run.strips(plain=True)).split("|")[1][-1] == "@"


def test_only_changes_are_kept() -> None:
    run = Timeline()
    run.record(0, {"a": 1, "b": 2}, 4)
    run.record(7, {"a": 1}, 4)
    run.record(9, {"a": 2}, 4)
    run.record(9, {"a": 3}, 4)
    assert (run.queues["a"].times, run.queues["a"].values) == ([0, 9], [1, 3])
    assert [run.held("idle", time) for time in (0, 8, 9, 100)] == [1, 1, -1, -1]
    assert [run.held("b", time) for time in (-1, 0, 50)] == [0, 2, 2]


def test_the_decisions_one_a_line() -> None:
    assert list(line().lines()) == [
        "0s  start     a-1  on n1",
        "    start     a-2",
        "5s  evict     a-1  for b-1",
    ]
    assert list(line().lines(most=1))[-1].endswith("... and 2 more")


def test_one_long_name_does_not_move_the_column_of_all_others_away() -> None:
    run = line()
    run.note(Happening(6, "start", "n" * 50, "b", "on n2"))
    assert list(run.lines()) == [
        f"0s  start     {'a-1':<32}  on n1",
        "    start     a-2",
        f"5s  evict     {'a-1':<32}  for b-1",
        f"6s  start     {'n' * 50}  on n2",
    ]


def test_a_strip_for_each_queue() -> None:
    strips = list(line().strips(plain=True))
    assert strips[0] == "a     |" + "=" * 24 + " " * 24 + "|  0"
    assert strips[1] == "b     |" + " " * 24 + "@" * 24 + "|  0"
    assert strips[2] == "idle  |" + "=" * 24 + " " * 24 + "|  4"
    assert strips[3].split() == ["0s", "10s", "GPUs", "in", "the", "end"]


def test_a_little_shows() -> None:
    run = Timeline()
    run.record(0, {"a": 1}, 100 * MICRO)
    run.record(1, {"a": 0}, 100 * MICRO)
    assert "." in next(run.strips(plain=True))
    assert list(Timeline().strips()) == []
    assert Timeline().used() == 0


def test_moments() -> None:
    assert [moment_text(n) for n in (0, 0.0015, 90, 3600)] == ["0s", "2ms", "1m30s", "1h"]


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_picture(tmp_path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    first, second = tmp_path / f"first.{suffix}", tmp_path / f"second.{suffix}"
    plot.check(first)
    for path in (first, second):
        plot.draw(line(), path, "two queues")
    assert first.read_bytes()[:4] == (b"\x89PNG" if suffix == "png" else b"<?xm")
    assert first.read_bytes() == second.read_bytes()
    if suffix == "svg":
        assert "two queues" in first.read_text()


def test_many_queues_are_drawn_together(tmp_path) -> None:
    pytest.importorskip("matplotlib")
    run = Timeline()
    for moment in range(3):
        run.record(moment, {f"q{n}": (n + moment) * MICRO for n in range(50)}, 5000 * MICRO)
    plot.draw(run, tmp_path / "many.svg", "many")


def test_a_picture_is_twice_as_wide_as_high_and_shows_no_more_than_there_is(tmp_path, monkeypatch) -> None:
    pytest.importorskip("matplotlib")
    figures = []
    save = plot._save
    monkeypatch.setattr(plot, "_save", lambda plt, figure, path: (figures.append(figure), save(plt, figure, path)))
    run = line()
    plot.draw(run, tmp_path / "one.png", "two queues")
    (figure,) = figures
    assert figure.get_figwidth() == 2 * figure.get_figheight()
    (axes,) = figure.axes
    most = max(run.capacity.at(moment) for moment in run.capacity.times) / MICRO
    low, high = axes.get_ylim()
    assert low == 0 and most < high < 1.1 * most
    assert axes.lines[0].get_drawstyle() == "steps-post" and max(axes.lines[0].get_ydata()) == most
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [*run.queues, "all GPUs"]


def test_what_is_no_picture_is_refused_before_the_run(tmp_path) -> None:
    with pytest.raises(UsageError, match="PNG or SVG"):
        plot.check(tmp_path / "x.jpeg")
    with pytest.raises(UsageError, match="not a directory"):
        plot.check(tmp_path / "none" / "x.png")


def test_a_run_without_time_is_drawn_as_what_is_held_in_the_end(tmp_path) -> None:
    pytest.importorskip("matplotlib")
    run = Timeline()
    run.record(0.0, {"a": 2 * MICRO, "b": MICRO}, 4 * MICRO)
    plot.draw(run, tmp_path / "end.svg", "at once")
    text = (tmp_path / "end.svg").read_text()
    assert "queues, in the end, on 4 GPUs" in text
    assert ">a</text>" in text


def test_a_picture_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    def full(_figure: object, path: Path, **_: object) -> None:
        path.write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "p.svg").write_text("old")
    monkeypatch.setattr(Figure, "savefig", full)
    with pytest.raises(GpushareError, match="No space left"):
        plot.draw(line(), tmp_path / "p.svg", "two queues")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("p.svg", "old")]


def test_without_matplotlib_the_way_out_is_said(tmp_path, monkeypatch) -> None:
    real = builtins.__import__

    def without(name, *arguments, **options):
        if name.startswith("matplotlib"):
            raise ModuleNotFoundError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(GpushareError) as caught:
        plot.check(tmp_path / "x.png")
    assert "pip install" in caught.value.hint and "matplotlib" in caught.value.message


def test_where_nothing_has_happened_there_is_nothing_to_tell() -> None:
    assert [*Timeline().lines()] == []
    run = Timeline()
    run.happenings.append(Happening(0.0, "start", "j", "q", ""))
    assert [*run.lines(since=1)] == []
    assert len([*run.lines()]) == 1
