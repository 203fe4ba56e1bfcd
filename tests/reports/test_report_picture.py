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


def colour(name: str) -> str:
    found = re.search(rf"--{name}: *(#[0-9a-f]{{6}})", (page.STATIC / "app.css").read_text())
    assert found is not None
    return found[1]


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
        "train, at most 11.0 GiB",
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
    borrowed, within = place.collections
    assert (reach(borrowed), reach(within)) == ((0, 6600, 11), (0, 6600, 4))
    lines = {to_hex(line.get_color()): line for line in place.lines}
    limit = lines[colour("limit")].get_ydata()
    assert [round(value / GIB) for value in limit if not math.isnan(value)] == [14, 14, 14, 8]
    assert math.isnan(limit[-1])
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
    figure = picture.draw(job_report(TRAIN, Client(records=late)))
    figure.canvas.draw()
    (place,) = figure.axes
    assert len(place.texts) == 3
    for text in place.texts:
        assert text.get_window_extent().x1 <= place.get_window_extent().x1 + 1, text.get_text()


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
