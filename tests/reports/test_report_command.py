"""`gpushare report`, as it is typed."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dashboard.conftest import Subprocess
from gpushare.cli import main
from gpushare.cli import report as reports
from gpushare.errors import GpushareError, UsageError
from gpushare.report import file
from gpushare.report.contents import TOTAL
from reports.recorded import SINCE, TRAIN, UNTIL, Client, wait_for_history


class Command:
    """`gpushare report` at UNTIL, in an empty directory."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capsys = capsys
        self.client = Client()
        monkeypatch.setattr("gpushare.cli.report.time", SimpleNamespace(time=lambda: UNTIL))
        monkeypatch.setattr("gpushare.cli.report.for_history", lambda _: SimpleNamespace(client=lambda: self.client))

    def __call__(self, *words: object) -> tuple[int, str, str]:
        self._capsys.readouterr()
        code = main(["report", *map(str, words)])
        return code, *self._capsys.readouterr()

    def fails(self, code: int, *words: object) -> str:
        found, out, err = self(*words)
        assert (found, out) == (code, ""), err
        return err


@pytest.fixture
def node() -> Iterator[Subprocess]:
    """A real daemon on the software driver, in a directory with a short name."""
    with tempfile.TemporaryDirectory(prefix="gs-") as made:
        one = Subprocess(Path(made), {"GPUSHARE_SIM": f"gpus=2,memory=16Gi,pool={made}/pool"}, fixed=False)
        try:
            yield one.start()
        finally:
            one.kill()


@pytest.fixture
def report(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    monkeypatch.chdir(tmp_path)
    return Command(capsys, monkeypatch)


def embedded(path: str) -> Any:
    found = re.search(r'id="report">(.*?)</script>', Path(path).read_text(), re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_the_node_for_two_hours(report: Command) -> None:
    code, out, err = report("-o", "node.html")
    assert (code, err) == (0, "")
    assert re.fullmatch(r"report of node \S+, .* to .*: node\.html\n", out)
    found = embedded("node.html")
    assert (found["since"], found["until"], found["job"]) == (SINCE, UNTIL, None)
    assert found["state"]["gpus"][0]["health"]["state"] == "sick", "the node as it is now"
    assert report("--node", "-o", "again.html")[0] == 0
    assert embedded("again.html") == found


def test_a_job_for_its_life(report: Command) -> None:
    code, out, _ = report("train", "-o", "train.html")
    assert code == 0 and out.startswith(f"report of job train ({TRAIN}), ")
    found = embedded("train.html")
    assert (found["since"], found["until"], found["job"]) == (SINCE - 60, UNTIL - 600, TRAIN)
    assert report("server", "-o", "server.html")[0] == 0
    assert embedded("server.html")["until"] == UNTIL


def test_the_time_that_is_named(report: Command) -> None:
    at = datetime.fromtimestamp(UNTIL - 1800).strftime("%Y-%m-%d %H:%M")
    for words in ([], ["train"]):
        assert report(*words, "--since", "1h", "--until", at, "--step", "1m", "-o", "x.html")[0] == 0
        found = embedded("x.html")
        assert (found["since"], found["until"], found["history"]["step"]) == (UNTIL - 3600, UNTIL - 1800, 60)
        assert found["state"]["gpus"][0]["health"]["state"] == "ok", "the node as it was"


def test_two_hours_before_a_time_that_is_named(report: Command) -> None:
    assert report("--until", "1h", "-o", "x.html")[0] == 0
    assert embedded("x.html")["since"] == UNTIL - 3600 - 7200


@pytest.mark.parametrize("what", [["--node"], [TRAIN], ["--queue", "a"]])
@pytest.mark.parametrize("range", [["--since", "1h", "--until", "2h"], ["--since", "1h", "--until", "1h"]])
def test_a_range_that_ends_before_it_begins_is_a_mistake_and_writes_nothing(
    report: Command, what: list[str], range: list[str]
) -> None:
    err = report.fails(2, *what, *range, "-o", "x.html")
    assert "the report would begin at " in err and "--since is the earlier time" in err
    assert not Path("x.html").exists()


def test_the_future_is_not_in_it(report: Command) -> None:
    later = datetime.fromtimestamp(UNTIL + 3600).isoformat()
    assert report("--until", later, "-o", "x.html")[0] == 0
    assert embedded("x.html")["until"] == UNTIL
    assert report("train", "--until", later, "-o", "x.html")[0] == 0
    assert embedded("x.html")["until"] == UNTIL, "and what is named counts, also after the job's end"


@pytest.mark.parametrize(
    ("name", "begins"), [("a.html", b"<!doctype html>"), ("a.CSV", b"time,gpu,"), ("a.png", b"\x89PNG")]
)
def test_the_ending_says_what_is_written(report: Command, name: str, begins: bytes) -> None:
    if name.endswith("png"):
        pytest.importorskip("matplotlib")
    assert report("train", "-o", name)[0] == 0
    assert Path(name).read_bytes().startswith(begins)


@pytest.mark.parametrize("name", ["x.pdf", "x", ".html", "-"])
def test_another_ending_is_a_mistake(report: Command, name: str) -> None:
    err = report.fails(2, "-o", name)
    assert "HTML, CSV or PNG" in err and ".html," in err
    assert report.client.asked == [] and list(Path().iterdir()) == []


def test_mistakes_are_said_before_the_daemon_is_asked(report: Command) -> None:
    assert "of a job, of the node or of queues" in report.fails(2, "train", "--node", "-o", "x.html")
    assert "begin at" in report.fails(2, "--since", "1h", "--until", "2h", "-o", "x.html")
    assert "begin at" in report.fails(2, "--since", "1h", "--until", "1h", "-o", "x.html")
    assert "--since: 'soon'" in report.fails(2, "--since", "soon", "-o", "x.html")
    assert "--until: 'soon'" in report.fails(2, "--until", "soon", "-o", "x.html")
    assert "less than a second" in report.fails(2, "--step", "0.5s", "-o", "x.html")
    assert "more than 30 days" in report.fails(2, "--step", "31d", "-o", "x.html")
    assert "is not a directory" in report.fails(2, "-o", "none/x.html")
    assert "-o" in report.fails(2)
    assert report.client.asked == []


def test_a_step_of_a_second_is_the_finest(report: Command) -> None:
    assert report("--step", "1s", "-o", "x.html")[0] == 0
    assert report.client.asked[0][2] == 1


def test_without_matplotlib_nothing_is_asked(report: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise GpushareError("a PNG needs matplotlib")

    monkeypatch.setattr("gpushare.cli.report.drawing.check", missing)
    assert "needs matplotlib" in report.fails(1, "-o", "x.png")
    assert report.client.asked == []
    assert report("-o", "x.html")[0] == 0


def test_nothing_known_writes_nothing(report: Command) -> None:
    report.client = Client(series=[], records=[])
    for name in ("x.html", "x.csv"):
        err = report.fails(1, "-o", name)
        assert "nothing is known of the memory of node" in err and "30 days" in err
    assert list(Path().iterdir()) == []


def test_events_alone_are_a_page_and_no_table(report: Command) -> None:
    report.client = Client(series=[])
    assert report("train", "-o", "x.html")[0] == 0
    assert f"of job train ({TRAIN})" in report.fails(1, "train", "-o", "x.csv")


def test_no_history_is_said(report: Command) -> None:
    report.client = Client(kept=False)
    assert "has no history" in report.fails(1, "-o", "x.html")


def test_a_beginning_that_is_left_out_is_said(report: Command) -> None:
    report.client = Client(cut_below=9999)
    code, _, err = report("-o", "x.html")
    assert code == 0 and "the beginning is left out" in err


def test_a_file_that_is_there_is_replaced_whole(report: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("real.csv").write_text("before")
    Path("x.csv").symlink_to("real.csv")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", full)
        assert "cannot write x.csv: No space left on device" in report.fails(1, "-o", "x.csv")
    assert sorted(one.name for one in Path().iterdir()) == ["real.csv", "x.csv"]
    assert Path("real.csv").read_text() == "before"
    assert report("-o", "x.csv")[0] == 0
    assert Path("x.csv").is_symlink() and Path("real.csv").read_text().startswith("time,")
    assert sorted(one.name for one in Path().iterdir()) == ["real.csv", "x.csv"]


def test_a_new_file_has_the_users_usual_mode(report: Command) -> None:
    before = os.umask(0o027)
    try:
        assert report("-o", "x.csv")[0] == 0
    finally:
        os.umask(before)
    assert Path("x.csv").stat().st_mode & 0o777 == 0o640


def test_a_directory_where_nobody_may_write(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file.check(tmp_path / "x.html")
    monkeypatch.setattr("gpushare.report.file.os.access", lambda path, mode: (path, mode) != (tmp_path, os.W_OK))
    with pytest.raises(GpushareError, match="cannot write into"):
        file.check(tmp_path / "x.html")


def test_a_real_daemon(
    node: Subprocess,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Whose answers have the shape that a report expects."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GPUSHARE_SOCKET", str(node.directory / "api.sock"))
    wait_for_history(node.client, TOTAL)
    for name in ("x.html", "x.csv"):
        assert main(["report", "--since", "1m", "-o", name]) == 0, capsys.readouterr().err
    assert main(["report", "nobody", "-o", "y.html"]) == 5
    found = embedded("x.html")
    assert {one["job"] for one in found["history"]["series"]} == {TOTAL, "outside"}
    assert len(found["state"]["gpus"]) > 0 and Path("x.csv").read_text().count("\n") == 1
    node.kill()
    assert main(["report", "-o", "z.html"]) == 3
    assert sorted(one.name for one in tmp_path.iterdir()) == ["x.csv", "x.html"]


def test_a_working_directory_that_was_removed_is_told(
    report: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert "the working directory has been removed" in report.fails(2, "-o", "x.csv")


# ---- queues ---------------------------------------------------------------------------------------------------

QUEUES = {
    "about": {"host": "n1"},
    "cluster": {"queues": [{"name": "lab", "parent": None}, {"name": "web", "parent": None}]},
    "notices": [],
}


@pytest.fixture
def queues_asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was asked of the service: the queue, and the times. It knows points of both queues, but of none before."""
    asked: list[Any] = []

    def of_queues(client: object, queue: str | None, times: Any) -> dict[str, Any]:
        asked.append((client, queue, times))
        points = [[times.since, 1e6, 1e6, 2e6, 3e6, 4e6]] if times.until > SINCE else []
        series = [{"queue": name, "points": points} for name in ("", "lab", "web") if points]
        history = {"step": 3600, "cut": times.until - times.since > 86400, "series": series}
        return {**QUEUES, "since": times.since, "until": times.until, "queue": queue, "history": history}

    monkeypatch.setattr("gpushare.cli.queued.service", lambda: "service")
    monkeypatch.setattr("gpushare.report.queues.of_queues", of_queues)
    return asked


@pytest.mark.parametrize(
    ("words", "queue", "times", "what"),
    [
        (["--queue"], None, (UNTIL - 7200, UNTIL, None, UNTIL), "queues"),
        (["--queue", "lab"], "lab", (UNTIL - 7200, UNTIL, None, UNTIL), "queue lab"),
        (["--queue", "--since", "1h", "--step", "1m"], None, (UNTIL - 3600, UNTIL, 60.0, UNTIL), "queues"),
        (["--queue", "--until", "1h"], None, (UNTIL - 3600 - 7200, UNTIL - 3600, None, UNTIL), "queues"),
    ],
)
def test_queues_for_two_hours_or_the_time_that_is_named(
    report: Command, queues_asked: list[Any], words: list[str], queue: str | None, times: tuple[Any, ...], what: str
) -> None:
    code, out, err = report(*words, "-o", "q.csv")
    assert (code, err) == (0, "")
    assert queues_asked == [("service", queue, times)]
    assert re.fullmatch(rf"report of {what}, \S+( \S+)? to \S+( \S+)?: q\.csv\n", out)
    assert report.client.asked == [], "the node's daemon is not asked"


@pytest.mark.parametrize("name", ["q.html", "q.csv", "q.png"])
def test_each_kind_of_file_has_the_queues(report: Command, queues_asked: list[Any], name: str) -> None:
    if name.endswith("png"):
        pytest.importorskip("matplotlib")
    assert report("--queue", "-o", name)[0] == 0
    content = Path(name).read_bytes()
    if name == "q.html":
        assert embedded(name)["cluster"] == QUEUES["cluster"]
    elif name == "q.csv":
        assert content.startswith(b"time,queue,held_mean,") and b",lab,1,1,2,3,4," in content
    else:
        assert content.startswith(b"\x89PNG")


def test_a_beginning_of_queues_that_is_left_out_is_said(report: Command, queues_asked: list[Any]) -> None:
    assert "the beginning is left out" in report("--queue", "--since", "2d", "-o", "q.csv")[2]


@pytest.mark.parametrize(("words", "what"), [([], "queues"), (["lab"], "queue lab")])
def test_of_queues_nothing_is_known_before(
    report: Command, queues_asked: list[Any], words: list[str], what: str
) -> None:
    err = report.fails(1, "--queue", *words, "--until", "2h", "-o", "q.csv")
    assert f"nothing is known of {what}, " in err and "while no service ran" in err
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("words", [["train", "--queue", "lab"], ["--node", "--queue", "lab"], ["train", "--node"]])
def test_a_report_is_of_one_thing(report: Command, queues_asked: list[Any], words: list[str]) -> None:
    assert "of a job, of the node or of queues" in report.fails(2, *words, "-o", "q.csv")
    assert queues_asked == report.client.asked == []


@pytest.mark.parametrize(("step", "seconds"), [("1s", 1.0), ("30d", 2_592_000.0), ("2592001s", None), ("0.5s", None)])
def test_the_steps_that_a_history_can_have(step: str, seconds: float | None) -> None:
    if seconds is not None:
        assert reports._step(step) == seconds
        return
    with pytest.raises(UsageError, match="--step"):
        reports._step(step)
