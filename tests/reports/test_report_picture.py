"""A report as PNG."""

from __future__ import annotations

import math
import re
import struct
import sys
from typing import Any

import pytest

from gpushare.errors import GpushareError
from gpushare.report import drawing, page, picture
from reports.drawn import colour, covered, dashed, in_a_dark_style, laid_out, line, lines_explained
from reports.drawn import keys as keys_and_colours
from reports.recorded import (
    GIB,
    NAMED,
    RECORDS,
    SERVER,
    SINCE,
    TRAIN,
    UNTIL,
    Client,
    job_report,
    node_report,
    point,
    record,
    series,
)

pytest.importorskip("matplotlib")
from matplotlib.colors import to_hex
from matplotlib.dates import num2date

TOTAL = series("", [point(SINCE, 1)])


def keys(place: Any) -> list[str]:
    return [text.get_text() for text in place.get_legend().get_texts()]


def areas(place: Any) -> list[str]:
    return [to_hex(one.get_facecolor()[0]) for one in place.collections]


def reach(area: Any) -> tuple[float, float, float]:
    """Seconds from the report's beginning to the area's ends, and its height in GiB."""
    box = area.get_paths()[0].get_extents()
    begin, end = (num2date(at).timestamp() - SINCE for at in (box.x0, box.x1))
    return round(begin), round(end), round(box.y1 / GIB, 3)


def test_it_is_1200_pixels_wide() -> None:
    image = picture.render(node_report())
    assert image.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", image[16:24])
    assert width == 1200 and 600 < height < 800
    assert struct.unpack(">I", picture.render(job_report(TRAIN))[20:24])[0] < 450


def test_a_node_has_a_chart_for_each_gpu_with_its_jobs() -> None:
    first, second = picture.draw(node_report()).axes
    assert first.get_title("left") == "GPU 0  software GPU, 16.0 GiB"
    assert keys(first) == [
        "train, at most 12.0 GiB",
        "server, at most 7.0 GiB",
        "outside gpushare, at most 1.0 GiB",
    ]
    assert areas(first) == [colour("job0"), colour("job1"), colour("unmanaged")]
    assert first.get_ylim() == (0, 16 * GIB)
    assert len(keys(second)) == 1 and keys(second)[0].startswith("</script><script>ran=1<…, ")
    begin, end = (num2date(at).timestamp() for at in first.get_xlim())
    assert (round(begin), round(end)) == (SINCE, UNTIL)


def test_jobs_are_stacked_and_hold_until_they_end() -> None:
    train, server, _ = picture.draw(node_report()).axes[0].collections
    assert reach(train) == (0, 7200, 11), "of no height after its end"
    assert reach(server) == (0, 7200, 13)


def test_layers_stand_on_each_other() -> None:
    """Also where one of them has ended or not begun. What is drawn is the mean, and the key has the highest."""
    found = [
        series("", [point(SINCE, 6)]),
        series("outside", [point(SINCE, 2, most=5), point(SINCE + 3000, 1, most=9)]),
        series(TRAIN, [point(SINCE, 3, most=4), [SINCE + 2000]], "train"),
        series(SERVER, [[SINCE], point(SINCE + 1000, 2, most=9)], "server"),
    ]
    place = picture.draw(node_report(Client(series=found))).axes[0]
    train, server, outside = (colour(name) for name in ("job0", "job1", "unmanaged"))
    assert [covered(place, SINCE + seconds, GIB) for seconds in (500, 1500, 2500, 3500)] == [
        {train: (0, 3), outside: (3, 5)},
        {train: (0, 3), server: (3, 5), outside: (5, 7)},
        {server: (0, 2), outside: (2, 4)},
        {server: (0, 2), outside: (2, 3)},
    ]
    assert keys_and_colours(place) == [
        ("train, at most 4.0 GiB", train),
        ("server, at most 9.0 GiB", server),
        ("outside gpushare, at most 9.0 GiB", outside),
    ]


def test_the_rest_of_many_jobs_is_above_them() -> None:
    """As much as they have together where one of them has ended."""
    many = [series(f"{n:016x}", [point(SINCE, 2)], f"j{n}") for n in range(drawing.STACKED - 1)]
    small = [
        series(f"{n:016x}", [point(SINCE, 1, most=most), *end], f"s{n}")
        for n, most, end in ((90, 3, []), (91, 4, [[SINCE + 3600]]))
    ]
    place = picture.draw(node_report(Client(series=[TOTAL, *many, *small]))).axes[0]
    full = 2 * len(many)
    assert covered(place, SINCE + 1000, GIB)[colour("rest")] == (full, full + 2)
    assert covered(place, SINCE + 5000, GIB)[colour("rest")] == (full, full + 1)
    assert keys(place)[-1] == "2 other jobs, at most 7.0 GiB"


def test_a_time_of_which_nothing_is_known_is_a_gap() -> None:
    known = series("", [point(SINCE, 1), [SINCE + 1000], point(SINCE + 2000, 1)])
    job = series(TRAIN, [point(SINCE, 1), [SINCE + 1000], point(SINCE + 2000, 2)], "train")
    place = picture.draw(node_report(Client(series=[known, job]))).axes[0]
    assert [reach(one) for one in place.collections] == [(0, 1000, 1), (2000, 7200, 2)]


def test_many_jobs_are_drawn_as_one() -> None:
    def keys_of(jobs: int) -> list[str]:
        many = [series(f"{n:016x}", [point(SINCE, 1 + n / 10)], f"j{n}") for n in range(jobs)]
        return keys(picture.draw(node_report(Client(series=[TOTAL, *many]))).axes[0])

    assert [one.split(",")[0] for one in keys_of(8)] == [f"j{n}" for n in range(8)]
    assert keys_of(9)[-1] == "2 other jobs, at most 2.1 GiB", "the smallest"
    assert len(keys_of(12)) == 8


def test_a_job_has_one_colour_on_all_gpus() -> None:
    both = [
        series(TRAIN, [point(SINCE, 1)], "train"),
        series(SERVER, [point(SINCE, 2)], "server"),
        series(SERVER, [point(SINCE, 1)], "server", gpu=1),
        series(NAMED, [point(SINCE, 2)], "other", gpu=1),
    ]
    first, second = picture.draw(node_report(Client(series=both))).axes
    assert areas(first) == [colour("job1"), colour("job0")]
    assert areas(second) == [colour("job0"), colour("job1")]


@pytest.mark.parametrize(("found", "said"), [([TOTAL], "no memory is in use"), ([], "nothing is known of that time")])
def test_a_chart_without_jobs_says_so(found: list[Any], said: str) -> None:
    assert keys(picture.draw(node_report(Client(series=found))).axes[0]) == [said]


def test_a_job_against_its_request_and_limit() -> None:
    (place,) = picture.draw(job_report(TRAIN)).axes
    assert areas(place) == [colour("borrowed-area"), colour("guaranteed-area")]
    assert keys(place) == [
        "in use, at most 11.0 GiB",
        "borrowed, at most 7.0 GiB",
        "highest, at most 12.0 GiB",
        "request, at most 4.0 GiB",
        "limit, at most 14.0 GiB",
    ]
    assert [shown for _, shown in keys_and_colours(place)] == [
        colour(name) for name in ("guaranteed-area", "borrowed-area", "muted", "text", "limit")
    ]
    for lines in (place.lines, place.get_legend().legend_handles):
        assert colour("text") in dashed(lines) and colour("limit") not in dashed(lines)
    assert len(lines_explained(place)) == 3
    borrowed, within = place.collections
    assert (reach(borrowed), reach(within)) == ((0, 6600, 11), (0, 6600, 4))
    lines = {to_hex(line.get_color()): line for line in place.lines}
    limit = lines[colour("limit")].get_ydata()
    assert [round(value / GIB) for value in limit if not math.isnan(value)] == [14, 14, 14, 8]
    assert math.isnan(limit[-1])
    assert line(place, "muted", SINCE, GIB)[:4] == [(0, 7), (1800, 12), (3600, 3), (5400, 6)], "the highest use"
    assert line(place, "text", SINCE, GIB)[:4] == [(0, 4), (1800, 4), (3600, 4), (5400, 4)], "the request"
    assert line(place, "borrowed", SINCE, GIB)[:4] == [(0, 6), (1800, 11), (3600, 3), (5400, 6)]
    assert line(place, "guaranteed", SINCE, GIB)[:4] == [(0, 4), (1800, 4), (3600, 3), (5400, 4)]
    assert place.get_ylim()[1] == pytest.approx(14 * GIB * 1.08)


def test_what_happened_to_a_job_is_marked() -> None:
    (place,) = picture.draw(job_report(TRAIN)).axes
    assert [text.get_text() for text in place.texts] == ["claim waits, trim, claim met"], "so near that they are one"
    marks = [line for line in place.lines if line.get_linestyle() == ":"]
    assert [to_hex(line.get_color()) for line in marks] == [colour("warn")]


def test_marks_are_of_the_gpu_and_as_grave_as_what_happened() -> None:
    found = [
        record(SINCE + 100, "joined", TRAIN, "no mark"),
        record(SINCE + 1000, "trim", TRAIN, "here"),
        record(SINCE + 1080, "kill", TRAIN, "near"),
        record(SINCE + 1081, "kill", TRAIN, "the same"),
        record(SINCE + 1090, "relieved", TRAIN, "no longer near to the first"),
        record(SINCE + 3000, "breach", TRAIN, "on all", gpu=None),
        record(SINCE + 4000, "term", TRAIN, "elsewhere", gpu="GPU-b"),
    ]
    (place,) = picture.draw(job_report(TRAIN, Client(records=found))).axes
    texts = [(text.get_text(), to_hex(text.get_color())) for text in place.texts]
    assert texts == [("trim, kill", colour("bad")), ("relieved", colour("good")), ("breach", colour("bad"))]
    assert place.texts[0].xy[0].timestamp() == SINCE + 1000
    rows = [text.xyann[1] for text in place.texts]
    assert rows == [-10, -21, -32]


def test_the_text_of_a_mark_stays_in_the_chart() -> None:
    """Beside the chart is the legend."""
    late = [
        record(UNTIL - seconds, kind, TRAIN, "late")
        for seconds, kind in ((1500, "claim_waits"), (300, "kill"), (2, "trim"))
    ]
    (place,) = texts_of(late)
    assert len(place.texts) == 3


@pytest.mark.parametrize("part", [0.0, 0.1, 0.3, 0.49, 0.51, 0.7, 0.84, 0.86, 0.99])
def test_the_text_of_a_long_mark_stays_in_the_chart_wherever_it_is(part: float) -> None:
    kinds = ("claim_waits", "trim", "suspend", "not_suspended", "term", "kill")
    (place,) = texts_of([record(SINCE + 7200 * part + at, kind, TRAIN, "") for at, kind in enumerate(kinds)])
    assert [text.get_text() for text in place.texts] == ["claim waits, trim, suspend, not suspended, term, kill"]
    assert place.texts[0].get_horizontalalignment() == ("left" if part < 0.5 else "right"), "where more room is"


def texts_of(records: list[Any]) -> Any:
    """The charts of a job with these marks. Their texts are in them."""
    figure = picture.draw(job_report(TRAIN, Client(records=records)))
    laid_out(figure)
    for place in figure.axes:
        box = place.get_window_extent()
        for text in place.texts:
            shown = text.get_window_extent()
            assert box.x0 - 1 <= shown.x0 and shown.x1 <= box.x1 + 1 and box.y0 <= shown.y0 and shown.y1 <= box.y1
    return figure.axes


def test_a_job_that_never_had_memory() -> None:
    (place,) = picture.draw(job_report(NAMED, Client(series=[series(NAMED, [[SINCE]], "x", gpu=1)]))).axes
    assert place.get_ylim()[1] > 0


@pytest.mark.parametrize("name", ["_hidden", "$\\frac{", "日本", "a\nb"])
def test_names_are_text(name: str) -> None:
    """A legend leaves out what begins with an underscore, and takes dollars for formulas."""
    job = {**Client().jobs()[0], "name": name}
    client = Client(series=[TOTAL, series(SERVER, [point(SINCE, 1)], name)], jobs=[job])
    assert keys(picture.draw(node_report(client)).axes[0])[0].startswith(name.replace("\n", "\\n"))
    assert picture.render(node_report(client)) and picture.render(job_report(SERVER, client))


def test_the_title_says_of_what_and_when(monkeypatch: pytest.MonkeyPatch) -> None:
    report = job_report(TRAIN)
    report["about"]["host"] = "n1"
    title = picture.draw(report).get_suptitle()
    assert re.fullmatch(
        r"train \(00000000000000a1\) on n1, 2026-09-2\d \d\d:\d4 to 2026-09-2\d \d\d:\d4 \(\S+\)", title
    )


def test_a_long_name_leaves_room_for_the_chart() -> None:
    client = Client(jobs=[{**Client().jobs()[0], "name": "experiment-" * 20}])
    client.found["series"] = [TOTAL, series(SERVER, [point(SINCE, 1)], "experiment-" * 20)]
    for report in (node_report(client), job_report(SERVER, client)):
        figure = picture.draw(report)
        laid_out(figure)
        title = figure._suptitle.get_window_extent()
        assert title.x0 >= 0 and title.x1 <= 1201
        for place in figure.axes:
            box, beside = place.get_window_extent(), place.get_legend().get_window_extent()
            assert box.x0 < 120 and box.width > 500 and box.x1 <= beside.x0 and beside.x1 <= 1201


def test_its_colours_are_not_the_users() -> None:
    report = job_report(TRAIN)
    assert in_a_dark_style(lambda: picture.render(report)) == picture.render(report)


def test_the_chart_is_in_the_colours_of_the_page() -> None:
    figure = picture.draw(node_report())
    assert to_hex(figure.get_facecolor()) == colour("surface")
    for place in figure.axes:
        assert to_hex(place.get_facecolor()) == colour("surface")
        text = [figure._suptitle, place._left_title, *place.get_legend().get_texts()]
        assert {to_hex(one.get_color()) for one in text} == {colour("text")}
        assert {to_hex(one.get_color()) for one in (*place.get_xticklabels(), *place.get_yticklabels())} == {
            colour("muted")
        }
        assert {to_hex(one.get_color()) for one in place.get_xgridlines() + place.get_ygridlines()} == {colour("grid")}
        shown = {name: to_hex(one.get_edgecolor()) for name, one in place.spines.items() if one.get_visible()}
        assert shown == dict.fromkeys(("left", "bottom"), colour("border"))


@pytest.mark.parametrize(
    ("most", "ticks"), [(16, [0, 4, 8, 12, 16]), (8.64, [0, 2, 4, 6, 8]), (0.001, [0, 1 / 2048, 1 / 1024])]
)
def test_amounts_are_round(most: float, ticks: list[float]) -> None:
    assert [one / GIB for one in picture._amounts(most * GIB)] == ticks


def test_without_matplotlib_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    drawing.check()
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(GpushareError, match="needs matplotlib") as raised:
        drawing.check()
    assert (raised.value.hint is not None and "matplotlib" in raised.value.hint) or "plot" in str(raised.value.hint)


def test_the_marked_events_are_those_of_the_page() -> None:
    """The picture and the page are made of one list each; they are to be the same."""
    text = (page.STATIC.parents[2] / "web" / "src" / "job.tsx").read_text()
    found = re.search(r"const MARKED = \[(.*?)\]", text)
    assert found is not None and set(re.findall(r'"(\w+)"', found[1])) == set(picture.MARKS)
    assert {one["event"] for one in RECORDS[1:]} <= set(picture.MARKS)


def test_a_job_that_used_anything_is_drawn_and_one_that_used_nothing_is_not() -> None:
    found = [TOTAL, series(TRAIN, [point(SINCE, 1 / GIB)], "train"), series(SERVER, [point(SINCE, 0)], "server")]
    assert keys(picture.draw(node_report(Client(series=found))).axes[0]) == ["train, at most 1 B"]
