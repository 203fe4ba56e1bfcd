"""A report as CSV."""

from __future__ import annotations

import csv
import io

import pytest

from gpushare.report import table
from gpushare.report.contents import Report
from reports.recorded import GIB, GPUS, NAMED, SERVER, SINCE, TRAIN, UNTIL, Client, node_report, point, series


def rows(report: Report) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(table.render(report))))


def test_the_first_line_names_the_columns() -> None:
    first = table.render(node_report()).splitlines()[0]
    assert first == "time,gpu,uuid,job,name,user,usage_mean,usage_highest,request,limit,loan,computing"


def test_a_row_has_bytes_and_the_time_in_utc() -> None:
    report = node_report(Client(series=[series(TRAIN, [point(SINCE, 6, 4, 14, most=7)], "train", gpu=1)]))
    assert rows(report)[0] == {
        "time": "2026-09-21T12:14:00Z",
        "gpu": "1",
        "uuid": GPUS[1],
        "job": TRAIN,
        "name": "train",
        "user": "anna",
        "usage_mean": str(6 * GIB),
        "usage_highest": str(7 * GIB),
        "request": str(4 * GIB),
        "limit": str(14 * GIB),
        "loan": str(2 * GIB),
        "computing": "",
    }


def test_a_row_has_the_part_of_the_time_that_the_job_computed() -> None:
    points = [[*point(SINCE, 6), 0.25], [*point(SINCE + 20, 6), 1.0]]
    found = rows(node_report(Client(series=[series(TRAIN, points, "train")])))
    assert [one["computing"] for one in found[:3]] == ["0.250", "0.250", "1.000"]


def test_each_step_has_a_row_until_the_series_ends() -> None:
    found = rows(node_report())
    assert len([one for one in found if one["job"] == TRAIN]) == (7200 - 600) / 10
    assert len([one for one in found if one["job"] == NAMED]) == 720
    server = [one["usage_mean"] for one in found if one["job"] == SERVER]
    assert len(server) == (7200 - 1800) / 10 and server[179:181] == [str(GIB), str(7 * GIB)]
    assert [(one["time"], one["gpu"]) for one in found] == sorted((one["time"], one["gpu"]) for one in found)


def test_a_job_has_no_row_after_its_end() -> None:
    """Its last sample may be later: the daemon samples once a second."""
    end = UNTIL - 600
    points = [point(SINCE, 6), point(end - 0.4, 5), point(end + 0.2, 3), [end + 0.6]]
    found = rows(node_report(Client(series=[series(TRAIN, points, "train"), series(SERVER, points, "server")])))
    assert len([one for one in found if one["job"] == TRAIN]) == (7200 - 600) / 10
    assert {one["usage_mean"] for one in found if one["job"] == TRAIN} == {str(6 * GIB)}
    assert len([one for one in found if one["job"] == SERVER]) == (7200 - 600) / 10 + 1, "it lives"


def test_rows_of_one_time_are_by_gpu_and_then_by_job() -> None:
    """Whatever the order in which the history has them."""
    both = [
        series("outside", [point(UNTIL - 10, 1)]),
        series(SERVER, [point(UNTIL - 10, 1)], "server", gpu=1),
        series(SERVER, [point(UNTIL - 10, 1)], "server"),
        series(NAMED, [point(UNTIL - 10, 1)], "train", gpu=1),
        series(NAMED, [point(UNTIL - 10, 1)], "train"),
    ]
    for found in (both, both[::-1]):
        shown = [(one["gpu"], one["job"]) for one in rows(node_report(Client(series=found)))]
        assert shown == [("0", SERVER), ("0", NAMED), ("0", "outside"), ("1", SERVER), ("1", NAMED)]


def test_sums_are_left_out_and_so_is_nothing_outside() -> None:
    found = rows(node_report())
    assert {one["job"] for one in found} == {TRAIN, SERVER, NAMED, "outside"}
    outside = [one for one in found if one["job"] == "outside"]
    assert len(outside) == 60 and {one["usage_mean"] for one in outside} == {str(GIB)}


def test_times_are_those_of_the_historys_steps() -> None:
    """A report may begin within a step: what a job used before the next one counts, too."""
    report = node_report(Client(series=[series(TRAIN, [point(SINCE - 5, 1)], "train")]))
    report["since"], report["until"] = SINCE + 1, SINCE + 21
    assert [one["time"][-4:] for one in rows(report)] == [":01Z", ":10Z", ":20Z"]
    report["since"], report["until"] = SINCE, SINCE + 20
    assert [one["time"][-4:] for one in rows(report)] == [":00Z", ":10Z"]
    report["since"], report["until"] = SINCE + 1, SINCE + 3
    assert [one["time"][-4:] for one in rows(report)] == [":01Z"], "shorter than a step"


@pytest.mark.parametrize("first", ["=", "+", "-", "@"])
def test_a_name_is_no_formula(first: str) -> None:
    named = f'{first}HYPERLINK("http://x","y")'
    report = node_report(Client(series=[series(SERVER, [point(UNTIL - 10, 1)], named, user=f"{first}1")]))
    (one,) = rows(report)
    assert (one["name"], one["user"]) == (f"'{named}", f"'{first}1")


def test_other_names_stay_as_they_are() -> None:
    report = node_report(Client(series=[series(SERVER, [point(UNTIL - 10, 1)], 'a,"b"=c', user="-")]))
    (one,) = rows(report)
    assert (one["name"], one["user"]) == ('a,"b"=c', "-")


def test_a_name_has_one_line() -> None:
    report = node_report(Client(series=[series(SERVER, [point(UNTIL - 10, 1)], "a\r\nb")]))
    assert table.render(report).splitlines()[1].count("a\\r\\nb") == 1


def test_a_gpu_that_is_gone_has_no_number() -> None:
    report = node_report(Client(series=[series(SERVER, [point(UNTIL - 10, 1)], "train")]))
    report["state"]["gpus"] = []
    (one,) = rows(report)
    assert (one["gpu"], one["uuid"]) == ("", GPUS[0])
