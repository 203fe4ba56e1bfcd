"""Parts of the local engine's keeper by themselves: files, the log, processes, limits, how a task ended."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from gpushare.cluster.engines.local import keeper
from gpushare.cluster.engines.local.keeper import Keeper, Log, Process, below, least_of, process, send, set_limits

# ---- the log -------------------------------------------------------------------------------------------


def test_a_log_and_the_one_before_it_are_bounded_together(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = Log(str(path), 100)
    for number in range(8):
        log.write(b"%d" % number * 20)
    assert path.read_bytes() == b"6" * 20 + b"7" * 20 and Path(f"{path}.1").read_bytes() == b"4" * 20 + b"5" * 20
    log.write(b"x" * 500)
    assert path.read_bytes() == b"x" * 500, "what comes at once is written at once"
    assert Path(f"{path}.1").read_bytes() == b"6" * 20 + b"7" * 20 and log.lost == 0


def test_a_log_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"a" * 45)
    log = Log(str(path), 100)
    log.write(b"b" * 5)
    assert path.read_bytes() == b"a" * 45 + b"b" * 5
    log.write(b"c")
    assert path.read_bytes() == b"c" and Path(f"{path}.1").read_bytes() == b"a" * 45 + b"b" * 5


def test_what_cannot_be_written_is_counted_and_the_rest_goes_on(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    log = Log(str(tmp_path / "pipe"), 2**30)
    log.write(b"x" * 2**20)  # more than a pipe holds, and nobody reads
    held = len(os.read(reader, 2**20))
    assert held and log.lost == 2**20 - held, "what was written is not lost"
    log.write(b"again")
    assert log.lost == 2**20 - held
    os.close(reader)
    with pytest.raises(OSError):
        Log(str(tmp_path / "no" / "such"), 10)


class FullDisk:
    """os, on a disk on which nothing more has room."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def write(self, _descriptor: int, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_what_was_lost_is_told_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(str(tmp_path / "log"), 2**20)
    log.write(b"one\n")
    log.tell_lost()
    assert (tmp_path / "log").read_bytes() == b"one\n", "nothing was"
    with monkeypatch.context() as patch:
        patch.setattr(keeper, "os", FullDisk())
        log.write(b"two\n")
    log.tell_lost()
    assert (tmp_path / "log").read_bytes() == b"one\ngpushare: 4 bytes of output could not be written\n"


@pytest.mark.parametrize("size", [10, 100, 9_000])
def test_on_a_disk_that_stays_full_it_is_told_over_the_last_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    log = Log(str(tmp_path / "log"), 2**20)
    log.write(b"x" * size)
    monkeypatch.setattr(keeper, "os", FullDisk())
    log.write(b"y" * 5000)
    log.tell_lost()
    found = (tmp_path / "log").read_bytes()
    assert len(found) == size, "it takes no room"
    if size == 10:
        assert found == b"x" * 10, "and does without where there is none"
        return
    kept, words = found.split(b"\n")[:2]
    assert set(kept) == set(b"x")
    assert words == b"gpushare: %d bytes of output could not be written" % (5000 + size - len(kept))


# ---- files ---------------------------------------------------------------------------------------------


def test_a_file_appears_whole_and_is_read_or_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert keeper.read_json("a") is None
    keeper.write_json("a", {"b": 1})
    assert keeper.read_json("a") == {"b": 1} and [one.name for one in tmp_path.iterdir()] == ["a"]
    assert Path("a").stat().st_mode & 0o777 == 0o600
    Path("a").write_text("{")
    assert keeper.read_json("a") is None


def test_what_stands_in_the_place_of_a_file_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its user can put it there."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    assert keeper.read_json("pipe") is None
    held = os.open("pipe", os.O_RDWR)
    try:
        assert keeper.read_json("pipe") is None, "somebody may write yet, and does not"
    finally:
        os.close(held)
    Path("real").write_text("1")
    Path("link").symlink_to("real")
    assert keeper.read_json("real") == 1 and keeper.read_json("link") is None
    Path(f".a.{os.getpid()}").symlink_to("elsewhere")
    with pytest.raises(OSError):
        keeper.write_json("a", 1)
    assert not Path("elsewhere").exists()


# ---- processes -----------------------------------------------------------------------------------------


def some(*pairs: tuple[int, int]) -> dict[int, Process]:
    return {pid: Process(pid, 0, parent, 1) for pid, parent in pairs}


@pytest.mark.parametrize(
    ("roots", "found"),
    [({1}, {2, 3, 4, 5}), ({2}, {4, 5}), ({3}, set()), ({2, 4}, {5}), ({9}, set()), (set(), set())],
)
def test_descendants_are_found_to_the_last_and_roots_are_none(roots: set[int], found: set[int]) -> None:
    assert below(roots, some((2, 1), (3, 1), (4, 2), (5, 4), (8, 7))) == found


def test_a_process_is_told_from_a_corpse_and_from_a_later_one() -> None:
    child = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        one = process(child.pid)
        assert one is not None and (one.pid, one.parent, one.session) == (child.pid, os.getpid(), child.pid)
        assert keeper.processes()[child.pid] == one
        send(one._replace(start=one.start - 1), signal.SIGKILL)  # of the process that had this number before
        time.sleep(0.05)
        assert child.poll() is None
        send(one, signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert process(child.pid) is None, "it only waits for its parent"
        send(one, signal.SIGKILL)
    finally:
        child.kill()
        child.wait()
    assert process(child.pid) is None
    send(one, signal.SIGKILL)


def test_a_name_with_brackets_and_spaces_does_not_mislead(tmp_path: Path) -> None:
    path = tmp_path / "odd) S 1 (x"
    path.write_bytes(Path("/bin/sleep").read_bytes())
    path.chmod(0o755)
    child = subprocess.Popen([path, "60"])
    try:
        found = process(child.pid)
        assert found is not None and found.parent == os.getpid()
    finally:
        child.kill()
        child.wait()


def test_the_mark_of_a_task_is_read_from_the_environment() -> None:
    child = subprocess.Popen(["sleep", "60"], env={"A": "1", keeper.MARK: "7.1.0.0"})
    try:
        deadline = time.monotonic() + 10
        while not keeper.has_mark(child.pid, "7.1.0.0"):
            assert time.monotonic() < deadline
        assert not keeper.has_mark(child.pid, "7.1.0") and not keeper.has_mark(2**22 + 1, "7.1.0.0")
    finally:
        child.kill()
        child.wait()


# ---- resource limits -----------------------------------------------------------------------------------

NONE = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("one", "other", "least"), [(1, 2, 1), (2, 1, 1), (NONE, 5, 5), (5, NONE, 5), (NONE, NONE, NONE), (0, NONE, 0)]
)
def test_unlimited_is_above_all(one: int, other: int, least: int) -> None:
    assert least_of(one, other) == least


@pytest.mark.parametrize(
    ("wanted", "has", "becomes"),
    [
        ([100, 200], (50, 1000), (100, 200)),
        ([100, 2000], (50, 1000), (100, 1000)),
        ([1500, 2000], (50, 1000), (1000, 1000)),
        ([NONE, NONE], (50, 1000), (1000, 1000)),
        ([NONE, NONE], (50, NONE), (NONE, NONE)),
        ([0, NONE], (50, NONE), (0, NONE)),
    ],
)
def test_limits_are_those_of_the_submission_as_far_as_this_process_may(
    wanted: list[int], has: tuple[int, int], becomes: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[Any] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: has if which == resource.RLIMIT_NOFILE else None)
    monkeypatch.setattr(resource, "setrlimit", lambda *said: done.append(said))
    set_limits({"RLIMIT_OF_ANOTHER_KERNEL": [1, 1], "RLIMIT_NOFILE": wanted})
    assert done == [(resource.RLIMIT_NOFILE, becomes)]


# ---- how it ended --------------------------------------------------------------------------------------


@pytest.fixture
def ending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What end.json says of a task with this report, this refusal and this status."""
    monkeypatch.chdir(tmp_path)

    def ending(
        *, report: Any = None, refused: Any = None, status: int | None = None, stopping: Any = None, lost: int = 0
    ) -> tuple[Any, ...]:
        one = Keeper({"mark": "m", "grace": 1.0, "time": None})
        os.close(one.wake_read)
        os.close(one.wake_write)
        one.log = Log(str(tmp_path / "log"), 2**20)
        one.log.lost = lost
        one.status, one.stopping = status, stopping
        for name, value in (("report", report), ("refused.json", refused)):
            if value is not None:
                keeper.write_json(name, value)
        one._conclude()
        end = keeper.read_json("end.json")
        assert abs(end.pop("time") - time.time()) < 60
        said = b"gpushare: %d bytes of output could not be written\n" % lost if lost else b""
        assert (tmp_path / "log").read_bytes() == said
        (tmp_path / "log").unlink()
        return end["kind"], end["exit"], end["why"], end["node"]

    return ending


BREACH = {"reclaimed": True, "outcome": {"killed": {"code": "breach"}}}
STUCK = {"reclaimed": True, "outcome": {"killed": {"code": "suspend_stuck"}}}


@pytest.mark.parametrize(
    ("found", "end"),
    [
        ({"status": 0}, ("done", 0, "", False)),
        ({"status": 7 << 8}, ("done", 7, "", False)),
        ({"status": 15}, ("done", -15, "signal 15", False)),
        ({"status": 0, "lost": 5}, ("done", 0, "", False)),
        ({}, ("lost", None, "it was killed together with its keeper", False)),
        ({"report": {"child_exit_code": 3}, "status": 0}, ("done", 3, "", False)),
        ({"report": {"child_exit_code": 0}}, ("done", 0, "", False)),
        ({"report": {"child_signal": 9, "child_exit_code": None}, "status": 0}, ("done", -9, "signal 9", False)),
        ({"report": {"reclaimed": True}}, ("killed", -9, "", False)),
        (
            {"report": {"reclaimed": True, "outcome": None}},
            ("killed", -9, "", False),
        ),
        ({"report": BREACH}, ("killed", -9, "breach", False)),
        ({"report": STUCK}, ("killed", -9, "suspend_stuck", False)),
        ({"refused": {"message": "cannot", "node": True}}, ("failed", None, "cannot", True)),
        ({"refused": {"message": "cannot", "exit": 125}}, ("failed", 125, "cannot", False)),
        ({"refused": {"message": "not found", "exit": 127}}, ("done", 127, "not found", False)),
        ({"refused": {"message": "no program", "exit": 126}}, ("done", 126, "no program", False)),
        ({"stopping": ("stopped", ""), "status": 0}, ("stopped", 0, "", False)),
        ({"stopping": ("lost", "told to"), "status": 15}, ("lost", -15, "told to", False)),
        ({"stopping": ("stopped", ""), "refused": {"message": "x"}}, ("stopped", None, "", False)),
        ({"stopping": ("over_time", ""), "status": 0}, ("done", -15, "time", False)),
        ({"stopping": ("over_time", "")}, ("done", -15, "time", False)),
        ({"stopping": ("over_time", ""), "status": 3 << 8}, ("done", 3, "time", False)),
    ],
)
def test_how_a_task_has_ended(ending: Any, found: dict[str, Any], end: tuple[Any, ...]) -> None:
    assert ending(**found) == end


def test_the_earliest_end_of_a_grace_counts_and_a_stop_is_the_reason() -> None:
    one = Keeper({"mark": "m", "grace": 1.0, "time": None})
    os.close(one.wake_read)
    os.close(one.wake_write)
    now = time.monotonic()
    one._stop("over_time", "", 50.0)
    assert one.stopping == ("over_time", "") and one.kill_at == pytest.approx(now + 50, abs=5)
    one._stop("lost", "words", 100.0)
    assert one.stopping == ("over_time", "") and one.kill_at == pytest.approx(now + 50, abs=5)
    one._stop("stopped", "", 10.0)
    assert one.stopping == ("stopped", "") and one.kill_at == pytest.approx(now + 10, abs=5)


@pytest.mark.parametrize(
    ("adopted", "limit", "ran", "patience"),
    [
        (True, None, 0, 0.1),
        (False, None, 0, 2.0),
        (False, 60.0, 0, 2.0),
        (False, 60.0, 59.5, 0.5),
        (False, 60.0, 61, 0.02),
    ],
)
def test_it_looks_again_when_there_may_be_something_to_do(
    adopted: bool, limit: float | None, ran: float, patience: float
) -> None:
    one = Keeper({"mark": "m", "grace": 1.0, "time": limit})
    os.close(one.wake_read)
    os.close(one.wake_write)
    one.adopted, one.since = adopted, time.monotonic() - ran
    assert one._patience() == pytest.approx(patience, abs=0.3 if ran == 59.5 else 1e-9)
