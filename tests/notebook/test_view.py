"""What %gpushare shows: it fits 80 columns, and the HTML says the same and trusts no text."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.notebook.node_view import NodeView
from gpushare.notebook.sparkline import sparkline
from gpushare.notebook.view import Past, View, bar
from integration.node import GIB, MIB

COLUMNS = 80


def gpu(index: int = 0, usage: float = 0, request: float = 4, limit: float = 8, loan: float = 0) -> Any:
    amounts = {"usage": usage, "request": request, "limit": limit, "loan": loan}
    return {"index": index, "uuid": f"GPU-{index}", **{key: int(amount * GIB) for key, amount in amounts.items()}}


def job(*gpus: Any, name: str = "fit", state: str = "running") -> Any:
    return {"id": "0123456789abcdef", "name": name, "state": state, "gpus": list(gpus)}


def waiting(job: str, name: str, gpu: str, message: str) -> Any:
    return {"job": job, "name": name, "gpu": gpu, "message": message}


class Tree(HTMLParser):
    """The texts, and the tags that were opened and not closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.styles: list[str] = []
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.open.append(tag)
        self.tags.add(tag)
        self.styles.append(dict(attrs).get("style", ""))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_a_borrower_and_who_waits() -> None:
    others = [
        waiting("1", "hi", "GPU-0", "waits for 512.0 MiB of GPU 0, within its request"),
        waiting("2", "far", "GPU-7", "waits for another GPU"),
        waiting("0123456789abcdef", "fit", "GPU-1", "waits for 1.0 GiB of GPU 1, within its request"),
    ]
    shown = View(job(gpu(0, 6, 4, 8, 2), gpu(1, 1, 8, 8), state="asked_back"), others)
    assert repr(shown).splitlines() == [
        "job fit (0123456789abcdef): asked back",
        "GPU 0  [##################|#########.........]  6.0 GiB of 8.0 GiB used",
        "       request 4.0 GiB, limit 8.0 GiB, 2.0 GiB on loan",
        "GPU 1  [#####...............................]  1.0 GiB of 8.0 GiB used",
        "       request 8.0 GiB, limit 8.0 GiB",
        "waits: hi: waits for 512.0 MiB of GPU 0, within its request",
        "waits: this job: waits for 1.0 GiB of GPU 1, within its request",
    ]
    tree = Tree(shown._repr_html_())
    assert tree.open == []
    assert tree.texts == [
        "job fit (0123456789abcdef): asked back",
        *("GPU", "used", "on loan", "request", "limit"),
        *("GPU 0", "6.0 GiB", "2.0 GiB", "4.0 GiB", "8.0 GiB"),
        *("GPU 1", "1.0 GiB", "-", "8.0 GiB", "8.0 GiB"),
        "waits: hi: waits for 512.0 MiB of GPU 0, within its request",
        "waits: this job: waits for 1.0 GiB of GPU 1, within its request",
    ]


def parts(usage: float, request: float, limit: float) -> list[str]:
    """Of the bar in HTML: from, width or mark, in percent."""
    styles = Tree(View(job(gpu(0, usage, request, limit)))._repr_html_()).styles
    found = []
    for style in (one for one in styles if "left:" in one):
        fields = dict(field.split(":") for field in style.split(";") if ":" in field)
        found.append(f"{fields['left']} {fields['width']}")
    return found


def test_the_bar_of_html() -> None:
    assert parts(6, 4, 8) == ["0.0% 50.0%", "50.0% 25.0%", "50.0% 2px"]
    assert parts(2, 4, 8) == ["0.0% 25.0%", "50.0% 2px"]
    assert parts(0, 8, 8) == []
    assert parts(9, 8, 8) == ["0.0% 100.0%"], "over the limit after it was lowered"
    assert parts(2, 0, 8) == ["0.0% 25.0%", "0.0% 2px"]
    assert parts(2, 0, 0) == ["0.0% 100.0%", "0.0% 2px"]


@given(
    name=st.text(max_size=60),
    message=st.text(max_size=200),
    index=st.integers(0, 15),
    amounts=st.lists(st.integers(0, 400 * 2**30), min_size=4, max_size=4),
)
def test_lines_fit_and_html_is_whole(name: str, message: str, index: int, amounts: list[int]) -> None:
    usage, request, limit, loan = amounts
    one = gpu(index) | {"usage": usage, "request": min(request, limit), "limit": limit, "loan": loan}
    shown = View(job(one, name=name, state="asked_back"), [waiting("1", name, f"GPU-{index}", message)])
    text = repr(shown)
    assert max(map(len, text.splitlines())) <= COLUMNS
    assert all(line.isprintable() for line in text.split("\n"))
    tree = Tree(shown._repr_html_())
    assert tree.open == [] and tree.tags == {"div", "table", "tr", "th", "td", "span"}


def test_names_are_cut_and_never_markup() -> None:
    shown = View(job(gpu(), name="<b>&" + "x" * 50))
    assert repr(shown).startswith("job <b>&" + "x" * 35 + "… (0123456789abcdef)")
    assert "<b>" not in shown._repr_html_() and "&lt;b&gt;&amp;x" in shown._repr_html_()
    assert repr(View(job(gpu(), name="n" * 40))).startswith("job " + "n" * 40 + " (")


def test_small_amounts_are_seen() -> None:
    assert bar(gpu(0, 1 / 1024, 8, 8), 8) == "[#.......]"
    assert MIB == GIB // 1024


# ---- the last minutes, and the node ------------------------------------------------------------------


def test_the_last_minutes_are_drawn_where_the_numbers_are() -> None:
    points = [
        [100.0, 2 * GIB, 2 * GIB, 4 * GIB, 8 * GIB, 0],
        [400.0, 8 * GIB, 8 * GIB, 4 * GIB, 8 * GIB, 4 * GIB],
        [500.0],
    ]
    past = Past(100.0, 700.0, {"GPU-0": points})
    html = View(job(gpu(0, 6, 4, 8, 2), gpu(1, 1, 8, 8)), (), past)._repr_html_()
    assert html.count("<svg") == 1, "of the other GPU nothing is known"
    found = [
        tuple(map(float, one)) for one in re.findall(r'<rect x="(.*?)" y="(.*?)" width="(.*?)" height="(.*?)"', html)
    ]
    assert found == [(0.0, 21.0, 80.0, 7.0), (80.0, 0.0, 26.7, 28.0)], "a quarter for half of the time, then all of it"
    assert 'y1="14.0"' in html and "at most 8.0 GiB" in html and "the last 10 min" in html
    assert Tree(html).open == []


@given(
    st.lists(st.tuples(st.floats(0, 1000), st.integers(0, 20 * GIB)), max_size=20),
    st.floats(0, 500),
    st.floats(0, 1000),
)
def test_any_past_can_be_drawn(steps: list, since: float, lasts: float) -> None:
    points = [[at, amount, amount, 4 * GIB, 8 * GIB, 0] if amount else [at] for at, amount in sorted(steps)]
    html = sparkline(points, since, since + lasts, 8 * GIB)
    for x, y, width, height in re.findall(r'<rect x="(.*?)" y="(.*?)" width="(.*?)" height="(.*?)"', html):
        assert 0 <= float(x) <= 160 and float(x) + float(width) <= 161
        assert float(y) >= 0 and float(y) + float(height) <= 28.2
    assert Tree(html).open == []


@pytest.mark.parametrize(("since", "until"), [(500.0, 500.0), (500.0, 400.0), (0.0, 50.0), (0.0, 100.0)])
def test_no_time_and_a_time_of_which_nothing_is_known_are_not_drawn(since: float, until: float) -> None:
    assert sparkline([[100.0, GIB, GIB, GIB, GIB, 0], [300.0]], since, until, GIB) == ""
    assert sparkline([[100.0], [300.0]], 0.0, 1000.0, GIB) == sparkline([], 0.0, 1000.0, GIB) == ""


def rectangles(html: str) -> list[tuple[float, ...]]:
    """x, y, width and height of each."""
    found = re.findall(r'<rect x="(.*?)" y="(.*?)" width="(.*?)" height="(.*?)"', html)
    return [tuple(map(float, one)) for one in found]


def node(**more: Any) -> Any:
    one = {"index": 0, "total": 16 * GIB, "usage": 8 * GIB, "lent": 2 * GIB, "unmanaged": 4 * GIB, "returning": 0}
    return {"jobs": [], "gpus": [{**one, "free": 4 * GIB, "health": {"state": "ok"}}], **more}


def test_the_node_is_a_dict_and_has_bars() -> None:
    borrower = {**job(gpu(0, 6, 4, 8, 2), name="</td><script>"), "user": "anna"}
    shown = NodeView(node(jobs=[borrower]))
    assert shown["gpus"][0]["lent"] == 2 * GIB and json.loads(json.dumps(shown)) == dict(shown)
    html = shown._repr_html_()
    tree = Tree(html)
    assert tree.open == [] and "script" not in tree.tags
    assert "6.0 GiB guaranteed, 2.0 GiB borrowed, 4.0 GiB outside gpushare, 4.0 GiB free of 16.0 GiB" in html
    widths = re.findall(r"left:([\d.]+)%;width:([\d.]+)%", html)
    assert widths == [("0.0", "37.5"), ("37.5", "12.5"), ("50.0", "25.0")]
    assert {"anna", "running", "6.0 GiB", "2.0 GiB", "8.0 GiB"} <= set(tree.texts)


def test_a_node_without_jobs_says_so_and_many_are_cut() -> None:
    assert "no jobs" in NodeView(node())._repr_html_()
    many = [{**job(gpu(0, 1)), "user": "anna"} for _ in range(60)]
    html = NodeView(node(jobs=many))._repr_html_()
    assert html.count("<tr>") == 51 and "and 10 more" in html
