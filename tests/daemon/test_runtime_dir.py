"""The daemon's directory: who gets it, what lies in it with which modes, and what containers see of it."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpushare.errors import GpushareError, NotPermitted
from gpushared.system import runtime_dir
from gpushared.system.runtime_dir import AlreadyRunning, RuntimeDir, bind

STREAM, PACKETS = socket.SOCK_STREAM, socket.SOCK_SEQPACKET


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def connects(path: Path, kind: socket.SocketKind) -> bool:
    with socket.socket(socket.AF_UNIX, kind) as client:
        try:
            client.connect(str(path))
        except OSError:
            return False
        return True


def listening(sock: socket.socket) -> socket.socket:
    sock.listen()
    return sock


@pytest.fixture
def served(directory: Path):
    """As a user's daemon serves it."""
    taken = RuntimeDir(directory / "gpushare", system=False)
    taken.take()
    yield taken
    taken.release()


# ---- sockets -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("system", [False, True])
def test_containers_see_the_socket_of_programs_and_no_other(make_daemon, system):
    daemon = make_daemon(system=system)
    inside = daemon.directory / "containers"
    assert [path.name for path in inside.iterdir()] == ["shim.sock"], "the API would let a container stop any job"
    assert (inside / "shim.sock").samefile(daemon.shim) and connects(inside / "shim.sock", PACKETS)
    assert mode(inside) == (0o711 if system else 0o700)
    assert mode(daemon.shim) == mode(daemon.directory / "api.sock") == (0o666 if system else 0o600)
    assert [path.name for path in daemon.directory.iterdir() if path.name.startswith(".")] == []
    daemon.stop()
    left = {path.name for path in daemon.directory.rglob("*")}
    assert not left & {"shim.sock", "api.sock"}


def test_a_socket_is_for_containers_only_where_that_is_said(served):
    with listening(served.bind("a.sock", STREAM)), listening(served.bind("b.sock", PACKETS, for_containers=True)):
        assert [path.name for path in (served.directory / "containers").iterdir()] == ["b.sock"]
        assert connects(served.directory / "a.sock", STREAM) and connects(served.directory / "b.sock", PACKETS)
        served.unbind()
        assert not connects(served.directory / "a.sock", STREAM)
        assert list((served.directory / "containers").iterdir()) == []
        served.unbind()  # nothing is left to do


def test_a_socket_takes_the_place_of_what_an_earlier_daemon_left(served):
    containers = served.directory / "containers"
    containers.mkdir(mode=0o777)
    for stale in (served.directory / "a.sock", containers / "a.sock", containers / f".a.sock.{os.getpid()}"):
        stale.write_text("left behind")
    with listening(served.bind("a.sock", STREAM, for_containers=True)):
        assert connects(served.directory / "a.sock", STREAM) and connects(containers / "a.sock", STREAM)
        assert [path.name for path in containers.iterdir()] == ["a.sock"] and mode(containers) == 0o700


def test_a_socket_that_cannot_be_made_leaves_nothing_and_says_why(served):
    (served.directory / "a.sock").mkdir()
    with pytest.raises(GpushareError, match=r"cannot make .*/a\.sock: Is a directory") as caught:
        served.bind("a.sock", STREAM)
    assert caught.value.code == "bad_runtime_dir"
    assert [path.name for path in served.directory.iterdir() if path.name.startswith(".")] == []
    served.unbind()
    assert (served.directory / "a.sock").is_dir(), "it is not the daemon's"


def test_nobody_connects_before_the_socket_is_in_place(directory, monkeypatch):
    seen = []
    replace = Path.replace

    def noted(fresh: Path, target: Path) -> Path:
        seen.append((fresh.name, mode(fresh), target.exists()))
        return replace(fresh, target)

    monkeypatch.setattr(Path, "replace", noted)
    for name, for_all, wanted in (("a.sock", False, 0o600), ("b.sock", True, 0o666)):
        with bind(directory / name, STREAM, for_all=for_all) as sock:
            assert sock.type == STREAM and not sock.get_inheritable()
        assert seen.pop() == (f".{name}.{os.getpid()}", wanted, False)


# ---- the lock ------------------------------------------------------------------------------------------


def test_the_directory_of_a_daemon_that_answers_is_not_taken(served):
    with listening(served.bind("api.sock", STREAM)):
        with pytest.raises(AlreadyRunning, match=r"a daemon serves .* already") as caught:
            RuntimeDir(served.directory, system=False).take()
        assert caught.value.exit_code == 0 and "gpushare daemon stop" in caught.value.hint
    assert mode(served.directory / "lock") == 0o600


def test_a_daemon_that_just_ends_is_waited_for(served):
    threading.Timer(0.15, served.release).start()
    begun = time.monotonic()
    second = RuntimeDir(served.directory, system=False)
    second.take()
    assert 0.1 < time.monotonic() - begun < 3
    second.release()
    second.release()


def test_a_daemon_that_hangs_is_not_waited_for_without_end(served, monkeypatch):
    monkeypatch.setattr(runtime_dir, "PATIENCE", 0.15)
    begun = time.monotonic()
    with pytest.raises(GpushareError, match=r"holds .* and does not answer") as caught:
        RuntimeDir(served.directory, system=False).take()
    assert caught.value.code == "locked" and 0.1 < time.monotonic() - begun < 3


def test_the_lock_outlives_the_sockets(served):
    served.unbind()
    with (served.directory / "lock").open() as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    served.release()
    with (served.directory / "lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_link_in_the_locks_place_is_not_followed(directory):
    (directory / "elsewhere").write_text("mine")
    (directory / "lock").symlink_to(directory / "elsewhere")
    with pytest.raises(OSError):
        RuntimeDir(directory, system=True).take()


# ---- the system's --------------------------------------------------------------------------------------


def test_the_systems_directory_lets_users_through_and_shows_them_nothing(directory):
    before = os.umask(0o077)
    try:
        taken = RuntimeDir(directory / "gpushare", system=True)
        taken.take()
    finally:
        os.umask(before)
    assert mode(directory / "gpushare") == 0o711
    taken.release()


@pytest.mark.parametrize("kind", ["others may write", "a group may write", "a link", "a file"])
def test_a_directory_that_another_could_change_is_refused(directory, kind):
    place = directory / "gpushare"
    if kind == "a link":
        (directory / "real").mkdir()
        place.symlink_to(directory / "real")
    elif kind == "a file":
        place.write_text("")
    else:
        place.mkdir()
        place.chmod(0o757 if kind == "others may write" else 0o775)
    with pytest.raises(NotPermitted) as caught:
        RuntimeDir(place, system=True).take()
    assert caught.value.code == "bad_runtime_dir"
    assert ("only its daemon may write to" in caught.value.message) == (kind != "a file")


def test_a_place_where_none_can_be_made_is_told(directory):
    with pytest.raises(NotPermitted, match=r"cannot make .*: No such file or directory") as caught:
        RuntimeDir(directory / "no" / "such", system=True).take()
    assert caught.value.code == "bad_runtime_dir" and "--user" in caught.value.hint


def test_a_socket_whose_name_is_too_long_is_told_as_it_is(directory):
    """And not that a file is missing which was never made."""
    deep = directory / ("x" * 100)
    deep.mkdir()
    with pytest.raises(OSError, match="too long"):
        bind(deep / "api.sock", socket.SOCK_STREAM, for_all=False)
    assert list(deep.iterdir()) == []


def test_a_daemon_that_holds_the_lock_and_does_not_answer_is_waited_for_five_seconds(directory, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(
        runtime_dir, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=lambda s: now.append(now.pop() + s))
    )
    first, second = (RuntimeDir(directory, system=False) for _ in range(2))
    first.take()
    with pytest.raises(GpushareError, match=r"holds .* and does not answer"):
        second.take()
    assert 1005.0 < now[0] < 1005.1
    first.release()
    second.release()
