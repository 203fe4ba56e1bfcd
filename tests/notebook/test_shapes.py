"""How a notebook shows a job and a node, to the letter: `python -m notebook.test_shapes` writes shapes.txt again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpushare.notebook.node_view import NodeView
from gpushare.notebook.sparkline import sparkline
from gpushare.notebook.view import Past, View, bar

SHAPES = Path(__file__).with_name("shapes.txt")
GIB = 2**30


def gpu(usage: float, request: float, limit: float, loan: float = 0, index: int = 0) -> Any:
    amounts = {"usage": usage, "request": request, "limit": limit, "loan": loan}
    return {"index": index, "uuid": f"GPU-{index}", **{name: int(amount * GIB) for name, amount in amounts.items()}}


def whole(index: int, usage: float, lent: float, unmanaged: float, returning: float, total: float = 16) -> Any:
    taken = usage + unmanaged + returning
    amounts = {"usage": usage, "lent": lent, "unmanaged": unmanaged, "returning": returning, "total": total}
    amounts["free"] = max(0, total - taken)
    state = "ok" if index < 2 else "<failing>"
    return {"index": index, "health": {"state": state}, **{name: int(size * GIB) for name, size in amounts.items()}}


def shown() -> Iterator[tuple[str, str]]:
    """Cases, each with its name."""
    for usage, request, limit in ((0, 4, 8), (4, 4, 8), (8, 4, 8), (9, 4, 8), (1, 8, 8), (0.01, 1, 8), (1, 0, 0)):
        one = gpu(usage, request, limit, max(0, usage - request))
        yield f"bar {usage} of {request} to {limit}", bar(one)
        job = {"id": "01234567", "name": "n" * 39 + "<>", "state": "asked_back", "gpus": [one]}
        yield f"html {usage} of {request} to {limit}", View(job)._repr_html_()
    waits = [
        {"job": "01234567", "name": "fit", "gpu": "GPU-0", "message": "waits for <much>"},
        {"job": "1", "name": "m" * 41, "gpu": "GPU-1", "message": "waits, " * 12},
        {"job": "2", "name": "far", "gpu": "GPU-7", "message": "elsewhere"},
    ]
    job = {"id": "01234567", "name": "n" * 40, "state": "running", "gpus": [gpu(6, 4, 8, 2), gpu(1, 8, 8, 0, 1)]}
    past = Past(0.0, 600.0, {"GPU-0": [[0, GIB, 2 * GIB, 4 * GIB, 8 * GIB, 0], [300, 6 * GIB, 7 * GIB, 4 * GIB, 0, 0]]})
    yield "two GPUs", repr(View(job, waits))
    yield "two GPUs in html", View(job, waits, past)._repr_html_()
    points = [[10, 8, 9, 4, 8, 0], [20], [40, 2, 3, 6, 8, 0], [99.99, 16, 17, 6, 8, 0]]
    for since, until in ((0, 100), (15, 100), (30, 50), (20, 40), (40, 40), (200, 230), (0, 10), (0, 89), (0, 91)):
        yield f"past from {since} to {until}", sparkline(points, since, until, 8)
    nodes = [whole(0, 8, 2, 1, 0.5), whole(1, 0, 0, 0, 0), whole(2, 15, 5, 3, 2), whole(3, 0, 0, 0, 0, 0)]
    jobs = [
        {"name": "fit<", "user": "ada", "state": "asked_back", "gpus": [gpu(1, 2, 4), gpu(3, 2, 4, 1, 1)]},
        {"name": "new", "user": "ben", "state": "starting", "gpus": []},
    ]
    yield "node", NodeView(gpus=nodes, jobs=jobs)._repr_html_()
    yield "empty node", NodeView(gpus=[], jobs=[])._repr_html_()


def text() -> str:
    return "".join(indented(name, said.replace("><", ">\n<")) for name, said in shown())


def indented(name: str, said: str) -> str:
    lines = "".join(f"    {line}\n" for line in said.splitlines())
    return f"{name}\n{lines}"


def test_each_is_as_it_was() -> None:
    assert text() == SHAPES.read_text()


def test_a_table_has_fifty_rows() -> None:
    for count, more in ((49, ""), (50, ""), (51, "and 1 more"), (60, "and 10 more")):
        jobs = [{"name": f"j{n}", "user": "ada", "state": "running", "gpus": []} for n in range(count)]
        said = NodeView(gpus=[], jobs=jobs)._repr_html_()
        assert said.count("<tr>") == min(count, 50) + 1
        assert (more in said) if more else ("more" not in said)


if __name__ == "__main__":
    SHAPES.write_text(text())
