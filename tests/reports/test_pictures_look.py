"""How each picture looks: what is drawn, and its sizes, widths and colours (pictures.txt)."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

import pytest

from gpushare.report import picture, queue_picture
from gpushare.report.contents import Report
from reports.drawn import described
from reports.recorded import SINCE, TRAIN, Client, job_report, node_report, point, record, series

pytest.importorskip("matplotlib")
from reports.test_queue_picture import LAB, WEB, at, report

GOLDEN = Path(__file__).with_name("pictures.txt")


def happened(*kinds: str) -> Client:
    """A mark every three hundred seconds, and two that are one."""
    records = [record(SINCE + 300 * number, kind, TRAIN, "x") for number, kind in enumerate(kinds, 1)]
    return Client(records=[*records, record(SINCE + 310, "claim_waits", TRAIN, "x")])


def drawn(report: Report) -> object:
    return picture.draw({**report, "about": {**report["about"], "host": "node-1"}})


def pictures() -> dict[str, object]:
    many = {f"q{number}": [at(SINCE, 1, 1, 1)] for number in range(10)}
    crowd = [series(f"{n:016x}", [point(SINCE, 1 + n / 8)], f"job-{n}") for n in range(1, 11)]
    marked = happened(*picture.MARKS)
    return {
        "a node": drawn(node_report()),
        "a node with more jobs than colours": drawn(node_report(Client(series=crowd))),
        "a job": drawn(job_report(TRAIN)),
        "a job to which all kinds of things happen": drawn(job_report(TRAIN, marked)),
        "queues": queue_picture.draw(report({"lab": LAB, "web": WEB})),
        "more queues than colours": queue_picture.draw(report(many, whole=[at(SINCE, 10, quota=12)])),
        "one queue": queue_picture.draw(report({"lab": LAB}, queue="lab")),
    }


def test_pictures_look_as_before() -> None:
    told = "\n\n\n".join(f"{name}\n\n{described(one, SINCE)}" for name, one in pictures().items()) + "\n"
    if os.environ.get("GPUSHARE_TEST_UPDATE"):
        GOLDEN.write_text(told)
    changes = difflib.unified_diff(GOLDEN.read_text().splitlines(), told.splitlines(), "pictures.txt", "now", n=2)
    assert not (difference := "\n".join(changes)), f"{difference}\nif so it should be: GPUSHARE_TEST_UPDATE=1"
