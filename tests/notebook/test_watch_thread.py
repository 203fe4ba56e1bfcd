"""The notebook's thread as it follows its job's notices, and the words of %gpushare, without a kernel."""

from __future__ import annotations

import os
import signal
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from gpushare.errors import DaemonUnreachable, GpushareError, NoSuchJob
from gpushare.notebook import magic as magics
from gpushare.notebook import watch as watching
from gpushare.notebook.sigterm import Handler
from gpushare.notebook.view import Past, View
from gpushare.notebook.watch import RETRY_FIRST, RETRY_LAST, Watch
from gpushare.presence import Presence


class Stream:
    """Batches of notices, then its end; `last` is done before the end is told."""

    def __init__(self, *batches: list[Any], last: Any = None) -> None:
        self.batches, self.last = list(batches), last
        self.ended = False
        self.closed = False
        self.reader, self.writer = os.pipe()
        os.write(self.writer, b"x")

    def fileno(self) -> int:
        return self.reader

    def read(self) -> list[Any]:
        if self.batches:
            return self.batches.pop(0)
        if self.last is not None:
            self.last()
        self.ended = True
        return []

    def close(self) -> None:
        self.closed = True
        os.close(self.reader)
        os.close(self.writer)


class Followed(Watch):
    """Its time is the test's. It keeps what it would have slept, and the demands that it met."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *found: Any) -> None:
        super().__init__(lambda _text: None)
        self.found, self.slept, self.met = list(found), [], []
        self.now = 0.0
        monkeypatch.setattr(watching, "_find", self.find)
        monkeypatch.setattr(watching.time, "monotonic", lambda: self.now)

    def find(self) -> Any:
        if not self.found:
            self._stopped = True
            raise DaemonUnreachable("that is all")
        one = self.found.pop(0)
        if isinstance(one, Exception):
            raise one
        return self, one

    def events(self, job: Any) -> Any:
        return job

    def _sleep(self, seconds: float | None, events: Any = None) -> None:
        if events is None:
            self.slept.append(seconds)
            self.now += seconds or 0.0
        else:
            assert seconds is None, "a notice or a wake-up ends it"

    def _meet(self, client: Any, job: str, notice: Any) -> None:
        self.met.append(notice["time"])


def asked(when: float) -> dict[str, Any]:
    return {"time": when, "kind": "asked_back", "text": "", "facts": {}}


def test_a_daemon_that_is_not_there_is_looked_for_ever_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Followed(monkeypatch, *[DaemonUnreachable("no daemon")] * 8, OSError("odd"))
    one._follow()
    assert one.slept[:3] == [0.2, 0.4, 0.8], "soon, as it may be starting"
    assert one.slept[-1] == 5.0 and one.slept == sorted(one.slept), "and never longer"


def test_a_stream_that_lasted_is_opened_again_at_once_and_each_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Followed(monkeypatch)

    def later(seconds: float) -> Any:
        def pass_time() -> None:
            one.now += seconds

        return pass_time

    long, short = Stream([asked(1)], [], [asked(2)], last=later(RETRY_LAST)), Stream([asked(3)], last=later(1.0))
    one.found = [DaemonUnreachable("no daemon"), long, short]
    one._follow()
    assert one.met == [1, 2, 3]
    assert (long.closed, short.closed) == (True, True)
    assert one.slept == [2 * RETRY_FIRST, RETRY_FIRST, 2 * RETRY_FIRST, 4 * RETRY_FIRST]


def test_when_it_is_stopped_it_reads_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Followed(monkeypatch)
    stream = Stream([], [asked(1)])
    one._sleep = lambda seconds, events=None: setattr(one, "_stopped", True)  # type: ignore[method-assign]
    one._read(one, "a", stream)  # type: ignore[arg-type]
    assert one.met == [] and stream.batches
    stream.close()


def test_a_wake_up_is_heard_once_and_notices_end_a_wait() -> None:
    one, stream = Watch(print), Stream()
    one.wake()
    one.wake()
    one._sleep(600.0)
    one._sleep(0.0)
    one._sleep(600.0, stream)  # type: ignore[arg-type]
    with pytest.raises(BlockingIOError):
        os.eventfd_read(one._bell)
    stream.close()


def test_whose_job_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    patience: list[float] = []

    class Node:
        def client(self, timeout: float) -> Any:
            patience.append(timeout)
            return self

        def find_job(self, name: str) -> Any:
            return {"id": f"id of {name}"}

    monkeypatch.setattr(watching.locate, "find", lambda _settings: Node())
    monkeypatch.setenv("GPUSHARE_JOB", "a1")
    assert watching._find()[1] == "id of a1"
    monkeypatch.delenv("GPUSHARE_JOB")
    assert watching._find(2.0)[1] == f"id of {os.getpid()}"
    assert patience == [10.0, 2.0]


def test_a_program_without_a_handler_ends_as_it_would_have() -> None:
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        handler = Handler(lambda: False)
        handler.install()
        os.kill(os.getpid(), signal.SIGTERM)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGTERM


def test_a_worker_that_is_forked_ends_at_once_without_asking() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    handler = Handler(lambda: os._exit(1) if os.getpid() != parent else True)  # type: ignore[func-returns-value]
    parent = os.getpid()
    assert handler.install()
    try:
        child = os.fork()
        if child == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(2)
        status = os.waitpid(child, 0)[1]
    finally:
        handler.remove()
        signal.signal(signal.SIGTERM, before)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGTERM


# ---- %gpushare --------------------------------------------------------------------------------------------------


@pytest.fixture
def did(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    monkeypatch.setattr(magics, "_show", lambda: found.append(("show",)))
    monkeypatch.setattr(magics, "_command", lambda *words: found.append(words))
    monkeypatch.setattr(magics, "_client", lambda: "client")
    monkeypatch.setattr(magics, "_job", lambda _client: {"id": "a1"})
    return found


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", ("show",)),
        ("explain", ("explain", "a1")),
        ("set 12Gi", ("set", "a1", "--limit", "12Gi")),
        ("set --request 4Gi", ("set", "a1", "--request", "4Gi")),
        ("set --limit=4Gi", ("set", "a1", "--limit=4Gi")),
        ("set 12Gi --request 4Gi", ("set", "a1", "12Gi", "--request", "4Gi")),
    ],
)
def test_what_the_words_do(
    did: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str], line: str, words: Any
) -> None:
    magics.magic(line)
    assert did == [words] and capsys.readouterr().out == ""


@pytest.mark.parametrize("line", ["set", "explain me", "frobnicate", "set 'x"])
def test_what_is_not_understood_is_told_and_does_nothing(
    did: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str], line: str
) -> None:
    magics.magic(line)
    said = capsys.readouterr().out
    assert did == [] and said.startswith("gpushare: ") and "hint: " in said


@pytest.mark.parametrize("line", ["help", "--help", "-h", "?"])
def test_its_help_is_its_text(did: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str], line: str) -> None:
    magics.magic(line)
    said = capsys.readouterr().out
    assert "%gpushare set 12Gi" in said and not said.startswith(" ") and did == []


def test_a_python_that_keeps_no_such_texts_has_no_help_and_no_traceback(
    did: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(magics.magic, "__doc__", None)
    magics.magic("help")
    assert capsys.readouterr().out == "\n"


@pytest.mark.parametrize("line", ["set --frobnicate 4Gi", "set --limit 4Gi more"])
def test_what_the_command_does_not_take_is_told_in_the_cell(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    monkeypatch.setattr(magics, "_client", lambda: "client")
    monkeypatch.setattr(magics, "_job", lambda _client: {"id": "a1"})
    magics.magic(line)
    said = capsys.readouterr().out
    assert said.startswith("gpushare: ") and said.endswith(f"hint: {magics.USAGE}\n")


class Daemon:
    """What %gpushare asks; an error in the place of an answer is raised."""

    def __init__(self, *, job: Any = None, past: Any = None) -> None:
        self.job, self.past, self.asked = job, past, []

    def find_job(self, name: str) -> Any:
        self.asked.append(name)
        if isinstance(self.job, Exception):
            raise self.job
        return self.job

    def explain(self) -> Any:
        return {"waiting": ["one waits"]}

    def history(self, since: float, until: float, step: float, job: str) -> Any:
        self.asked.append((since, until, step, job))
        if isinstance(self.past, Exception):
            raise self.past
        return {"series": self.past}


JOB = {"id": "a1", "name": "fit", "state": "running", "gpus": []}


@pytest.fixture
def status_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A process with a budget, in which gpushare is loaded."""

    def status_of(daemon: Daemon, **variables: str) -> Any:
        monkeypatch.setattr(magics, "presence", lambda: next(one for one in Presence if one is not Presence.ABSENT))
        monkeypatch.setattr(magics.locate, "find", lambda _settings: SimpleNamespace(client=lambda: daemon))
        monkeypatch.setattr(magics.time, "time", lambda: 1000.0)
        monkeypatch.setenv("XDG_CONFIG_HOME", "/nowhere")
        for name in ("GPUSHARE_JOB", "GPUSHARE_LIMIT", "GPUSHARE_REQUEST"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        return magics._status()

    return status_of


def test_a_job_is_shown_with_the_last_ten_minutes_and_who_waits(status_of: Any) -> None:
    daemon = Daemon(job=JOB, past=[{"gpu": "GPU-0", "points": [[1.0]]}])
    found = status_of(daemon, GPUSHARE_LIMIT="4Gi", GPUSHARE_JOB="a1")
    assert found == View(JOB, ["one waits"], Past(400.0, 1000.0, {"GPU-0": [[1.0]]}))
    assert daemon.asked == ["a1", (400.0, 1000.0, 1.0, "a1")]
    older = Daemon(job=JOB, past=GpushareError("no such path"))
    assert status_of(older, GPUSHARE_REQUEST="4Gi") == View(JOB, ["one waits"], None)
    assert older.asked[0] == str(os.getpid()), "it became a job by itself"


@pytest.mark.parametrize(
    ("job", "variables", "lines"),
    [
        (None, {}, ["gpushare: loaded into this process, but without a budget: nothing is limited"]),
        (
            DaemonUnreachable("nobody answers"),
            {"GPUSHARE_LIMIT": "4Gi"},
            [
                "gpushare: nobody answers: the limit holds for this process by itself, and nothing is lent",
                "  limit  4Gi",
            ],
        ),
        (DaemonUnreachable("nobody answers"), {"GPUSHARE_REQUEST": "1Gi"}, ["  limit  see the environment"]),
        (
            NoSuchJob("none"),
            {"GPUSHARE_LIMIT": "4Gi"},
            [
                "gpushare: this process has not used a GPU yet, so the daemon does not know it",
                "  limit  4Gi (from GPUSHARE_LIMIT=4Gi)",
            ],
        ),
        (NoSuchJob("none"), {"GPUSHARE_REQUEST": "1Gi"}, ["  limit  the request"]),
    ],
)
def test_what_is_told_where_there_is_no_job_to_show(status_of: Any, job: Any, variables: Any, lines: list[str]) -> None:
    said = status_of(Daemon(job=job), **variables).splitlines()
    assert all(line in said for line in lines), said


@pytest.mark.parametrize(("driver", "way"), [(None, "before CUDA starts"), ("libcuda.so.1", "restart the kernel")])
def test_where_gpushare_is_not_loaded_the_way_in_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], driver: str | None, way: str
) -> None:
    monkeypatch.setattr(magics, "presence", lambda: Presence.ABSENT)
    monkeypatch.setattr(magics, "loaded_driver", lambda: driver)
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=lambda _found: None))
    for line in ("", "set 4Gi", "explain"):
        magics.magic(line)
        said = capsys.readouterr().out
        assert said.startswith("gpushare: not in this process") and way in said


def test_a_notebook_draws_what_has_a_form_and_prints_what_is_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn: list[Any] = []
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=drawn.append))
    view = View(JOB)  # type: ignore[arg-type]
    for found in (view, "no job"):
        monkeypatch.setattr(magics, "_status", lambda found=found: found)
        magics.magic("")
    assert drawn == [view] and capsys.readouterr().out == "no job\n"
