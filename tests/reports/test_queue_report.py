"""A report of queues: a service that ran some jobs, and what the three kinds of files say of them."""

from __future__ import annotations

import csv
import io
import json
import re
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
from click.testing import CliRunner, Result

from cluster_service.service_process import Process, until
from gpushare.cli.report import command
from gpushare.cluster.client import ClusterClient
from gpushare.cluster.quantity import MICRO
from gpushare.errors import DaemonUnreachable, GpushareError, UsageError
from gpushare.report import queue_picture, queue_table, queues
from gpushare.report.contents import Asked


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """Queue `lab`, which has a quota of 2 GPUs, held 3 of 4 for some seconds, and holds 1."""
    one = Process(tmp_path_factory.mktemp("queues"))
    one.start()
    client = one.client
    id = client.submit({"job": {"queue": "lab", "name": "sweep"}, "array": 3, "run": {"duration": 600}})
    until(lambda: held(one) == 3 * MICRO)
    until(lambda: 3 * MICRO in seen(one))
    time.sleep(2.2)
    for index in (0, 1):
        client.cancel(f"{id}_{index}", now=True)
    until(lambda: seen(one)[-1] == MICRO)
    time.sleep(1.5)
    yield one
    one.end()


def held(service: Process) -> int:
    return int(service.client.overview()["queues"][0]["held"])


def seen(service: Process) -> list[int]:
    """GPUs that the queue held, in millionths, as the history of the last minutes has them, in steps of a second."""
    now = time.time()
    points = queues.series_of(queues.of_queues(service.client, "lab", Asked(now - 300, now, 1.0, now))).get("lab", [])
    return [point[1] for point in points if len(point) > 1]


@pytest.fixture
def report(service: Process) -> queues.QueueReport:
    now = time.time()
    return queues.of_queues(service.client, None, Asked(now - 600, now, 1.0, now))


def made(service: Process, *words: str) -> Result:
    return CliRunner(env={"GPUSHARE_CLUSTER_SOCKET": str(service.socket)}).invoke(command, list(words))


def test_the_page_has_the_queues_and_their_past(service: Process, tmp_path: Path) -> None:
    done = made(service, "--queue", "--since", "5m", "-o", str(tmp_path / "q.html"))
    assert done.exit_code == 0 and done.output.startswith("report of queues, "), done.output
    text = (tmp_path / "q.html").read_text()
    found = json.loads(re.search(r'id="report">(.*?)</script>', text)[1])
    assert found["queue"] is None and found["cluster"]["capacity"] == 4 * MICRO
    (lab,) = (one["points"] for one in found["history"]["series"] if one["queue"] == "lab")
    assert max(point[2] for point in lab) == 3 * MICRO
    assert {"submitted", "start", "running", "cancelled"} <= {one["event"] for one in found["notices"]}


def test_a_row_has_gpus(service: Process, tmp_path: Path) -> None:
    assert (
        made(service, "--queue", "lab", "--since", "5m", "--step", "1s", "-o", str(tmp_path / "q.csv")).exit_code == 0
    )
    rows = list(csv.DictReader(io.StringIO((tmp_path / "q.csv").read_text())))
    assert {row["queue"] for row in rows} == {"lab"}
    assert (rows[-1]["held_mean"], rows[-1]["quota"], rows[-1]["demand"]) == ("1", "2", "1")
    held = sum(float(row["held_mean"]) for row in rows if row["queue"] == rows[-1]["queue"])
    assert float(rows[-1]["gpu_hours"]) == pytest.approx(held / 3600, abs=0.001), "steps of a second"
    assert "3" in [row["held_mean"] for row in rows] and re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", rows[0]["time"]
    )


def test_the_picture_is_drawn_where_the_numbers_are(report: queues.QueueReport) -> None:
    pytest.importorskip("matplotlib")
    figure = queue_picture.draw(report)
    stack, lab = figure.axes
    for place in (stack, lab):
        drawn = [time for line in place.get_lines() for time in line.get_xdata()]
        assert [min(drawn), max(drawn)] == [datetime.fromtimestamp(report[end]) for end in ("since", "until")]
    assert [text.get_text() for text in stack.get_legend().get_texts()] == ["lab", "all GPUs"]
    assert stack.get_lines()[0].get_ydata()[-1] == 4.0
    share, quota = (line.get_ydata() for line in lab.get_lines())
    assert (share[-1], quota[-1], max(share)) == (1.0, 2.0, 3.0)
    assert queue_picture.render(report).startswith(b"\x89PNG")


def test_a_report_that_ends_earlier_shows_what_was_so(service: Process) -> None:
    now = time.time()
    points = queues.series_of(queues.of_queues(service.client, "lab", Asked(now - 600, now, 1.0, now)))["lab"]
    then = next(point[0] for point in points if len(point) > 1 and point[1] == 3 * MICRO) + 1
    found = queues.of_queues(service.client, "lab", Asked(then - 60, then, 1.0, now + 10))
    (lab,) = found["cluster"]["queues"]
    assert (lab["held"], lab["quota"], lab["demand"]) == (3 * MICRO, 2 * MICRO, 3 * MICRO)
    assert found["cluster"]["jobs"] == found["cluster"]["nodes"] == []
    told = {one["event"] for one in found["notices"]}
    assert "start" in told and "cancelled" not in told


def test_a_queues_report_tells_what_happened_to_jobs_that_have_ended(service: Process) -> None:
    """Two of three were cancelled, and are no longer among the cluster's jobs."""
    now = time.time()
    found = queues.of_queues(service.client, "lab", Asked(now - 600, now, 1.0, now))
    over = [one["id"] for one in service.client.jobs(ended=True) if one["state"] == "ended"]
    assert len(over) == 2
    for id in over:
        told = [one["event"] for one in found["notices"] if one["job"] == id]
        assert {"start", "running", "cancelled", "ended"} <= set(told), told
    assert "submitted" in {one["event"] for one in found["notices"]}


class Told:
    """A service that says what a test has put down."""

    notices: ClassVar[list[dict[str, Any]]] = []

    def jobs(self, *, ended: bool, queue: str) -> list[dict[str, Any]]:
        return [{"id": "1", "queue": "lab"}, {"id": "2_0", "queue": "lab"}] if ended and queue == "lab" else []

    def __init__(self, series: dict[str, list[list[float]]], *, kept: bool = True) -> None:
        self.series = [{"queue": name, "points": points} for name, points in series.items()]
        self.kept = kept

    def overview(self) -> dict[str, Any]:
        some = {"parent": None, "held": 9, "share": 9, "quota": 9, "demand": 9, "running": 9, "waiting": 9}
        queues = [{"name": one["queue"], **some} for one in self.series]
        return {"queues": queues, "jobs": [], "nodes": [{}], "loans": [{}]}

    def history(self, since: float, until: float, step: float) -> dict[str, Any]:
        return {"series": self.series, "kept": self.kept, "cut": False, "step": step}

    def events(self, begin: float) -> list[dict[str, Any]]:
        return [one for one in self.notices if one["time"] >= begin]


def test_notices_are_of_the_queue_and_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    said = [
        (5, "1", "job 1 runs"),
        (11, "1", "job 1 runs"),
        (12, "2_0", "start 2_0: within its fair share"),
        (13, "3", "start 3: within its fair share"),
        (14, "4", "anna submitted job 4 to lab"),
        (15, "5", "anna submitted job 5 to lab-2"),
        (16, None, "n1 is closed, by root"),
        (31, "1", "job 1 has ended"),
    ]
    notices = [{"time": time, "job": job, "text": text} for time, job, text in said]
    monkeypatch.setattr(Told, "notices", notices)
    told = cast(ClusterClient, Told({"lab": [[10]], "web": [[10]]}))
    times = {
        queue: [one["time"] for one in queues.of_queues(told, queue, Asked(10, 30, 10.0, 1000))["notices"]]
        for queue in ("lab", "web", None)
    }
    assert times == {"lab": [11, 12, 14], "web": [], None: [11, 12, 13, 14, 15, 16]}


def test_what_is_unknown_at_the_end_of_a_report_is_nothing_there() -> None:
    """Points of one number are a time at which no service ran, or the queue was not there yet."""
    known: list[float] = [4 * MICRO, 5 * MICRO, 3 * MICRO, 2 * MICRO, 6 * MICRO]
    series = {"gone": [[10, *known], [20, *known], [30]], "new": [[10], [20], [30, *known]], "none": [[10], [20], [30]]}
    found = queues.of_queues(cast(ClusterClient, Told(series)), None, Asked(0, 30, 10.0, 1000))
    gone, new, none = found["cluster"]["queues"]
    amounts = ("held", "share", "quota", "demand", "running", "waiting")
    assert [new[one] for one in amounts] == [4 * MICRO, 3 * MICRO, 2 * MICRO, 6 * MICRO, 0, 0]
    assert new["sum"] == "3"
    assert [gone[one] for one in amounts] == [none[one] for one in amounts] == [0] * 6
    assert found["cluster"]["nodes"] == found["cluster"]["loans"] == []


def test_a_service_that_keeps_no_history_says_so_and_no_report_is_made() -> None:
    told = Told({"lab": [[10]]}, kept=False)
    with pytest.raises(GpushareError, match="no history of its queues"):
        queues.of_queues(cast(ClusterClient, told), None, Asked(0, 30, 10.0, 1000))


@pytest.mark.parametrize(("since", "until", "hours"), [(3600, 7200, [2]), (1800, 4500, [1, 1.5]), (4000, 4900, [0.5])])
def test_hours_are_those_between_the_reports_ends(since: float, until: float, hours: list[float]) -> None:
    """Two GPUs all the time, in steps of an hour, of which the first and the last lie partly outside the report."""
    told = Told({"lab": [[0, *[2 * MICRO] * 5]]})
    report = queues.of_queues(cast(ClusterClient, told), None, Asked(since, until, 3600.0, 9000))
    rows = list(csv.DictReader(io.StringIO(queue_table.render(report))))
    assert [float(row["gpu_hours"]) for row in rows] == hours


def test_a_queue_that_is_not_there_is_named(service: Process, tmp_path: Path) -> None:
    done = made(service, "--queue", "lap", "-o", str(tmp_path / "q.html"))
    assert isinstance(done.exception, UsageError) and "did you mean lab?" in str(done.exception.hint)
    assert not (tmp_path / "q.html").exists()


def test_of_a_time_without_a_service_nothing_is_known(service: Process, tmp_path: Path) -> None:
    words = ("--queue", "--since", "3d", "--until", "2d", "-o", str(tmp_path / "q.csv"))
    done = made(service, *words)
    assert isinstance(done.exception, GpushareError) and "nothing is known of queues" in done.exception.message


def test_without_a_service_its_start_is_named(tmp_path: Path) -> None:
    gone = CliRunner(env={"GPUSHARE_CLUSTER_SOCKET": str(tmp_path / "none")}).invoke(
        command, ["--queue", "-o", str(tmp_path / "q.html")]
    )
    assert isinstance(gone.exception, DaemonUnreachable)


@pytest.mark.parametrize("words", [["train", "--queue"], ["--node", "--queue"], ["train", "--node"]])
def test_a_report_is_of_one_thing(words: list[str], tmp_path: Path) -> None:
    done = CliRunner().invoke(command, [*words, "-o", str(tmp_path / "x.html")])
    assert isinstance(done.exception, UsageError) and "of a job, of the node or of queues" in done.exception.message
