"""What the commands about queued jobs share: a job's end as a status and in words, its log, and waiting for it."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpushare.cli import queued
from gpushare.errors import DaemonUnreachable, NoSuchJob, NotPermitted, UsageError


def job(**more):
    return {"id": "17", "name": "train", "user": "ada", "index": None, "started": 10.0, "ended": 313.4, **more}


def result(how="failed", exit=None, text=""):
    return {"how": how, "exit": exit, "text": text}


@pytest.mark.parametrize(
    ("found", "status"),
    [
        (result("done", 0), 0),
        (result("done"), 0),
        (result("failed", 3), 3),
        (result("failed", -9), 137),
        (result("failed", 0), 1),
        (result("failed"), 1),
        (result("cancelled", "?"), 1),
    ],
)
def test_the_status_is_the_one_that_a_shell_would_give(found, status):
    assert queued.exit_status(job(result=found)) == status


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"result": result("failed", 3)}, "after 5m3s: exit status 3"),
        ({"result": result("failed", -9)}, "after 5m3s: signal 9"),
        ({"result": result("failed", 3, "exit status 3")}, "after 5m3s: exit status 3"),
        ({"result": result("failed", 3, "no node")}, "after 5m3s: exit status 3, no node"),
        ({"result": result("done", 0)}, "after 5m3s"),
        ({"result": result("failed", 0)}, "after 5m3s: exit status 0"),
        ({"result": result("failed", -1)}, "after 5m3s: signal 1"),
        ({"result": result("cancelled")}, "after 5m3s"),
        ({"result": result("evicted", text="no room")}, "after 5m3s: no room"),
        ({"result": result("failed", 3), "started": None}, ": exit status 3"),
        ({"result": result("failed", 3), "ended": None}, ": exit status 3"),
        ({"result": result("failed", 3), "ended": 9.0}, "after 0 s: exit status 3"),
    ],
)
def test_how_a_job_ended_in_words(more, words):
    said = queued.ending(job(**more))
    begins = f"job 17 (train) {queued.ENDINGS[more['result']['how']]}"
    assert said.startswith(begins) and said.removeprefix(begins).strip() == words
    assert queued.ending(job(**more) | {"name": ""}).startswith("job 17 ")


def test_the_log_of_each_task():
    one = job(run={"output": "/log/%j-%a"}, asks=[{"most": None, "least": 1}], index=4)
    assert [str(path) for path in queued.log_files(one)] == ["/log/17-4"]
    one |= {"asks": [{"most": 2, "least": 1}, {"most": None, "least": 1}], "index": None}
    assert [str(path) for path in queued.log_files(one)] == ["/log/17-0.0-0", "/log/17-0.0-1", "/log/17-0.1-0"]
    with pytest.raises(NotPermitted, match="belongs to ada"):
        queued.log_files(job())
    with pytest.raises(UsageError, match="no log"):
        queued.log_files(job(run={"output": None}))


def test_why_there_is_no_output_yet():
    assert queued.away(job(reason=None)) == "job 17 (train) has not started: it waits"
    assert queued.away(job(reason={"message": "no room"})) == "job 17 (train) has not started: no room"


@pytest.mark.parametrize("code", ["ambiguous_job", "ended", NoSuchJob.code])
def test_a_name_of_an_array_stands_for_its_jobs(code):
    jobs = [job(array="9"), job(array=None), job(array="9", id="18")]

    def nothing(_name):
        raise UsageError("no", code=code)

    client = SimpleNamespace(job=nothing, jobs=lambda ended: jobs if ended else [])
    assert [one["id"] for one in queued.named(client, "9")] == ["17", "18"]
    with pytest.raises(UsageError):
        queued.named(client, "8")


def test_another_mistake_is_not_taken_for_an_array():
    def refused(_name):
        raise UsageError("no", code="else")

    with pytest.raises(UsageError):
        queued.named(SimpleNamespace(job=refused, jobs=lambda ended: [job(array="9")]), "9")


class TestTail:
    def test_all_of_it_with_the_older_file_and_what_comes(self, tmp_path):
        log = tmp_path / "log"
        tail = queued.Tail(log, None)
        assert tail.read() == b"", "it need not be there"
        log.write_bytes(b"b\n")
        (tmp_path / "log.1").write_bytes(b"a\n")
        assert tail.read() == b"a\nb\n"
        assert tail.read() == b""
        with log.open("ab") as more:
            more.write(b"c\n")
        assert tail.read() == b"c\n"

    @pytest.mark.parametrize(("last", "shown"), [(0, b""), (1, b"c"), (2, b"b\nc"), (3, b"a\nb\nc"), (9, b"a\nb\nc")])
    def test_the_last_lines(self, tmp_path, last, shown):
        (tmp_path / "log.1").write_bytes(b"a\n")
        (tmp_path / "log").write_bytes(b"b\nc")
        assert queued.Tail(tmp_path / "log", last).read() == shown

    def test_a_file_that_was_replaced_is_read_to_its_end_and_then_the_new_one(self, tmp_path):
        log = tmp_path / "log"
        log.write_bytes(b"a\n")
        tail = queued.Tail(log, None)
        assert tail.read() == b"a\n"
        with log.open("ab") as more:
            more.write(b"b\n")
        log.rename(tmp_path / "log.1")
        assert tail.read() == b"b\n", "the new one is not there yet"
        log.write_bytes(b"c\n")
        assert tail.read() == b"c\n"

    def test_a_file_that_is_replaced_while_it_is_looked_at_is_found_later(self, tmp_path, monkeypatch):
        """It was there for the look and is gone for the reading: the next replacement was just under way."""
        log = tmp_path / "log"
        log.write_bytes(b"a\n")
        tail = queued.Tail(log, None)
        assert tail.read() == b"a\n"
        log.rename(tmp_path / "log.1")
        log.write_bytes(b"lost\n")
        descriptors = len(list(Path("/proc/self/fd").iterdir()))

        def gone(path, _flags):
            path.unlink()
            raise FileNotFoundError(2, "gone")

        with monkeypatch.context() as patched:
            patched.setattr(queued.os, "open", gone)
            assert tail.read() == b""
        assert tail.read() == b""
        log.write_bytes(b"c\n")
        assert tail.read() == b"c\n" and tail.read() == b""
        assert len(list(Path("/proc/self/fd").iterdir())) == descriptors, "each is closed when the next is opened"


class Service:
    """A service that answers as it is told, and has a pipe of events."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.followed = []
        self.closed = 0
        self.over = False

    def status(self):
        return {"seq": 5}

    def follow(self, seq, id):
        self.followed.append((seq, id))
        reader, writer = os.pipe()
        os.write(writer, b"x")

        def close():
            self.closed += 1
            os.close(reader)
            os.close(writer)

        return SimpleNamespace(ended=self.over, fileno=lambda: reader, read=lambda: [], close=close)

    def job(self, id):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class TestWaiting:
    def test_a_service_that_restarts_is_waited_for(self, monkeypatch):
        monkeypatch.setattr(queued, "PAUSE", 0.0)
        service = Service(
            job(state="waiting"), DaemonUnreachable("gone"), DaemonUnreachable("gone"), job(state="ended")
        )
        seen = queued.until(service, "17")
        assert [next(seen)["state"], next(seen)["state"]] == ["waiting", "ended"]
        seen.close()
        assert service.followed == [(5, "17")] and service.closed == 1

    def test_a_stream_that_has_ended_is_closed_and_followed_anew(self):
        service = Service(job(state="waiting"), job(state="running"), job(state="ended"))
        service.over = True
        seen = queued.until(service, "17")
        assert [next(seen)["state"] for _ in range(3)] == ["waiting", "running", "ended"]
        assert (len(service.followed), service.closed) == (3, 2)
        seen.close()
        assert service.closed == 3

    def test_while_nothing_is_told_it_looks_elsewhere_several_times_a_second(self, monkeypatch):
        now, looked = [100.0], []

        def waits(_read, _write, _error, seconds):
            now[0] += seconds
            return [], [], []

        monkeypatch.setattr(queued.time, "monotonic", lambda: now[0])
        monkeypatch.setattr(queued.select, "select", waits)
        service = Service(job(state="waiting"), job(state="ended"))
        seen = queued.until(service, "17", lambda: looked.append(now[0]))
        assert next(seen)["state"] == "waiting" and looked == []
        assert next(seen)["state"] == "ended", "a change that was missed is seen after two seconds"
        assert looked == [100.25 + 0.25 * number for number in range(8)]
        seen.close()

    def test_but_not_longer_than_a_minute_and_each_time_from_the_start(self, monkeypatch):
        now = [100.0]
        monkeypatch.setattr(queued.time, "monotonic", lambda: now[0])
        monkeypatch.setattr(queued.time, "sleep", lambda _seconds: now.__setitem__(0, now[0] + 25.0))
        gone = DaemonUnreachable("gone")
        service = Service(gone, gone, job(state="waiting"), gone, gone, job(state="running"), gone, gone, gone, gone)
        seen = queued.until(service, "17")
        assert [next(seen)["state"], next(seen)["state"]] == ["waiting", "running"]
        with pytest.raises(DaemonUnreachable):
            next(seen)
        assert service.answers == [] and service.closed == 1


def test_without_a_service_the_command_that_starts_one_is_told(monkeypatch):
    def none():
        raise DaemonUnreachable("no service runs here", hint="look at its log")

    monkeypatch.setattr(queued, "need", none)
    with pytest.raises(DaemonUnreachable, match="no service runs here") as caught:
        queued.service()
    assert caught.value.hint is not None and "`gpushare cluster serve --engine local`" in caught.value.hint
    monkeypatch.setattr(queued, "need", lambda: "client")
    assert queued.service() == "client"
