"""Which directory may hold a daemon's sockets."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpushare import paths
from gpushare.errors import NotPermitted, UsageError
from gpushare.paths import Runtime, own_dir, user_dir


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Short: the name of a socket has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="gs-") as made:
        yield Path(made)


def test_the_users_directory(tmp_path):
    environ = {"XDG_RUNTIME_DIR": str(tmp_path)}
    assert user_dir("nvidia", environ) == tmp_path / "gpushare"
    assert user_dir("sim", environ) == tmp_path / "gpushare-sim"
    uid = os.getuid()
    assert user_dir("nvidia", {}) == Path(f"/tmp/gpushare-{uid}")
    assert user_dir("sim", {"XDG_RUNTIME_DIR": str(tmp_path / "none")}) == Path(f"/tmp/gpushare-{uid}-sim")


def test_it_is_made_for_us_alone(tmp_path):
    runtime = Runtime(tmp_path / "gpushare")
    runtime.make()
    runtime.make()
    assert stat.S_IMODE(runtime.directory.stat().st_mode) == 0o700


def test_one_that_is_open_to_others_is_refused(tmp_path):
    (tmp_path / "gpushare").mkdir()
    (tmp_path / "gpushare").chmod(0o750)
    with pytest.raises(NotPermitted, match="open to others") as caught:
        Runtime(tmp_path / "gpushare").make()
    assert caught.value.hint


def test_a_link_is_refused_even_to_a_directory_of_ours(tmp_path):
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "gpushare").symlink_to(tmp_path / "real")
    with pytest.raises(NotPermitted, match="not a directory"):
        Runtime(tmp_path / "gpushare").make()


def test_a_directory_of_somebody_else_is_refused(tmp_path):
    if os.getuid() != 0:
        pytest.skip("needs root to give a directory away")
    (tmp_path / "gpushare").mkdir(mode=0o700)
    os.chown(tmp_path / "gpushare", 65534, 65534)
    with pytest.raises(NotPermitted, match="belongs to user 65534"):
        Runtime(tmp_path / "gpushare").make()


def test_a_name_too_long_for_a_socket_is_refused(tmp_path):
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    with pytest.raises(UsageError, match="too long"):
        Runtime(deep / "gpushare").make()


@pytest.mark.parametrize("more", [0, 1])
def test_a_name_that_a_socket_can_just_have_is_taken(tmp_path, more):
    runtime = Runtime(tmp_path / ("x" * (107 - len(f"{tmp_path}//api.sock") + more)))
    with socket.socket(socket.AF_UNIX) as server:
        runtime.directory.mkdir(mode=0o700)
        if not more:
            runtime.check()
            server.bind(str(runtime.api_socket))
        else:
            with pytest.raises(UsageError, match="too long"):
                runtime.check()
            with pytest.raises(OSError, match="too long"):
                server.bind(str(runtime.api_socket))


def test_a_parent_that_is_missing(tmp_path):
    with pytest.raises(NotPermitted, match="cannot make"):
        Runtime(tmp_path / "none" / "gpushare").make()


def test_a_named_socket():
    assert Runtime.of_socket("/run/x/api.sock").directory == Path("/run/x")
    other = Runtime.of_socket("/run/x/other.sock")
    assert other.api_socket == Path("/run/x/other.sock")
    beside = (other.directory, other.log, other.history, other.drivers)
    assert beside == tuple(Path("/run/x", name) for name in ("", "daemon.log", "history", "drivers"))
    with pytest.raises(UsageError):
        Runtime.of_socket("api.sock")


@pytest.fixture
def squatted(tmp_path, monkeypatch):
    """A /tmp in which another user has taken the name of our directory: its path, and our environment."""
    if os.getuid() != 0:
        pytest.skip("needs root to give a directory away")
    tmp = tmp_path / "tmp"
    (tmp / "gpushare-0-sim").mkdir(parents=True, mode=0o700)
    os.chown(tmp / "gpushare-0-sim", 65534, 65534)
    monkeypatch.setattr(paths, "TMP", tmp)
    monkeypatch.setattr(paths, "RUN_USER", tmp_path / "none")
    return tmp, {"HOME": str(tmp_path / "home")}


def test_a_name_that_another_user_has_taken_is_not_used(squatted, tmp_path):
    tmp, environ = squatted
    usual = tmp / "gpushare-0-sim"
    assert user_dir("sim", environ) == usual  # nothing is made, nothing is there
    assert not (tmp_path / "home").exists()
    directory, why = own_dir("sim", environ)
    assert directory.parent == tmp
    assert directory.name.startswith("gpushare-0-sim-") and len(directory.name) == len("gpushare-0-sim-") + 16
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert why == f"{usual} belongs to another user, so {directory} is used"
    assert user_dir("sim", environ) == directory
    assert own_dir("sim", environ)[0] == directory
    assert own_dir("nvidia", environ) == (tmp / "gpushare-0", None)  # that name is free
    assert own_dir("sim", {**environ, "XDG_STATE_HOME": str(tmp_path / "state")})[0] != directory
    assert [path.name for path in (tmp_path / "state" / "gpushare").iterdir()] == [
        f"gpushare-0-sim@{os.uname().nodename}"
    ]


def test_wrappers_that_start_at_the_same_time_use_one_directory(squatted, tmp_path, monkeypatch):
    """The other one has made it while this one waited for the file."""
    tmp, environ = squatted
    other = tmp / "gpushare-0-sim-of-the-other"
    (tmp_path / "home" / ".local" / "state" / "gpushare").mkdir(parents=True)

    def flock(file, how):
        assert how == paths.fcntl.LOCK_EX
        other.mkdir(mode=0o700)
        Path(file.name).write_text(str(other))

    monkeypatch.setattr(paths.fcntl, "flock", flock)
    assert own_dir("sim", environ)[0] == other


def test_a_name_is_written_down_of_a_directory_that_is_there(squatted):
    tmp, environ = squatted
    made = paths._make_elsewhere(tmp / "gpushare-0-sim", environ)
    assert stat.S_IMODE(made.stat().st_mode) == 0o700


def test_a_link_of_another_user_is_taken_as_well(squatted):
    tmp, environ = squatted
    (tmp / "gpushare-0-sim").rmdir()
    (tmp / "gpushare-0-sim").symlink_to("/etc")
    os.lchown(tmp / "gpushare-0-sim", 65534, 65534)
    assert own_dir("sim", environ)[0].parent == tmp


@pytest.mark.parametrize("damage", ["gone", "another's", "open", "relative", "binary"])
def test_a_directory_that_was_written_down_is_looked_at_again(squatted, tmp_path, monkeypatch, damage):
    tmp, environ = squatted
    monkeypatch.chdir(tmp)
    first, _ = own_dir("sim", environ)
    (record,) = (tmp_path / "home/.local/state/gpushare").iterdir()
    assert record.read_text() == str(first)
    if damage == "gone":
        first.rmdir()
    elif damage == "another's":
        os.chown(first, 65534, 65534)
    elif damage == "open":
        first.chmod(0o755)
    elif damage == "relative":
        record.write_text(first.name)
    else:
        record.write_bytes(b"\xff\x00")
    assert user_dir("sim", environ) == tmp / "gpushare-0-sim"
    second, _ = own_dir("sim", environ)
    assert second != first
    assert record.read_text() == str(second)
    assert user_dir("sim", environ) == second


def test_the_systems_directory_of_a_user_comes_before_a_random_one(squatted, tmp_path, monkeypatch):
    _, environ = squatted
    monkeypatch.setattr(paths, "RUN_USER", tmp_path / "user")
    base = tmp_path / "user" / "0"
    base.mkdir(parents=True, mode=0o755)
    base.chmod(0o755)
    assert own_dir("sim", environ)[0].parent != base  # open to others
    base.chmod(0o700)
    assert own_dir("sim", environ)[0] == base / "gpushare-sim"
    assert stat.S_IMODE((base / "gpushare-sim").stat().st_mode) == 0o700
    os.chown(base, 65534, 65534)
    assert own_dir("sim", environ)[0].parent != base
    shutil.rmtree(base)
    base.touch(mode=0o600)
    assert own_dir("sim", environ)[0].parent != base, "it is no directory"


def test_a_name_that_is_free_is_used_whatever_the_system_has_made(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "TMP", tmp_path)
    monkeypatch.setattr(paths, "RUN_USER", tmp_path / "user")
    (tmp_path / "user" / str(os.getuid())).mkdir(parents=True, mode=0o700)
    usual = tmp_path / f"gpushare-{os.getuid()}"
    assert user_dir("nvidia", {}) == usual and own_dir("nvidia", {}) == (usual, None)
    assert user_dir("nvidia", {}) == usual, "it is there now, and ours"


def test_a_runtime_directory_that_is_named_has_no_place_of_another_user_and_no_other(squatted, tmp_path):
    _, environ = squatted
    named = tmp_path / "named"
    (named / "gpushare").mkdir(parents=True, mode=0o700)
    os.chown(named / "gpushare", 65534, 65534)
    environ = {**environ, "XDG_RUNTIME_DIR": str(named)}
    assert user_dir("nvidia", environ) == named / "gpushare"
    with pytest.raises(NotPermitted, match="belongs to user 65534, not to you"):
        own_dir("nvidia", environ)


def test_nowhere_to_write_the_name_down(squatted, tmp_path):
    (tmp_path / "home").write_text("a file")
    _, environ = squatted
    with pytest.raises(NotPermitted, match=r"belongs to another user, and .* cannot be written: ") as caught:
        own_dir("sim", environ)
    assert "XDG_RUNTIME_DIR" in caught.value.hint


def test_what_is_wrong_with_a_directory_of_ours_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "TMP", tmp_path)
    (tmp_path / f"gpushare-{os.getuid()}").mkdir()
    (tmp_path / f"gpushare-{os.getuid()}").chmod(0o755)
    with pytest.raises(NotPermitted, match="open to others"):
        own_dir("nvidia", {"HOME": str(tmp_path / "home")})
    assert not (tmp_path / "home").exists()


def test_a_umask_does_not_take_our_own_rights(tmp_path):
    before = os.umask(0o777)
    try:
        Runtime(tmp_path / "gpushare").make()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "gpushare").stat().st_mode) == 0o700


# ---- what is kept, and what is installed ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "driver", "found"),
    [
        ({"XDG_STATE_HOME": "/s", "HOME": "/h"}, "nvidia", "/s/gpushare/history/node"),
        ({"XDG_STATE_HOME": "/s"}, "sim", "/s/gpushare/history-sim/node"),
        ({"HOME": "/h"}, "nvidia", "/h/.local/state/gpushare/history/node"),
        ({"XDG_STATE_HOME": "", "HOME": "/h"}, "sim", "/h/.local/state/gpushare/history-sim/node"),
        ({"XDG_STATE_HOME": "relative", "HOME": "/h"}, "nvidia", "/h/.local/state/gpushare/history/node"),
        ({}, "nvidia", None),
        ({"HOME": ""}, "nvidia", None),
        ({"HOME": "relative"}, "nvidia", None),
    ],
)
def test_a_users_history_is_of_this_host_alone(monkeypatch, environ, driver, found):
    monkeypatch.setattr(paths.os, "uname", lambda: SimpleNamespace(nodename="node"))
    assert paths.history_dir(driver, environ) == (None if found is None else Path(found))


@pytest.mark.parametrize(
    ("node", "name"), [("a.b", "a.b"), ("../x", "_x"), ("a/b", "a_b"), ("..", "host"), ("", "host")]
)
def test_no_name_of_a_host_leads_elsewhere(monkeypatch, node, name):
    monkeypatch.setattr(paths.os, "uname", lambda: SimpleNamespace(nodename=node))
    assert paths.history_dir("nvidia", {"HOME": "/h"}) == Path("/h/.local/state/gpushare/history", name)


def test_both_libraries_have_one_name():
    plain, turns = paths.library(), paths.library(turns=True)
    assert plain.name == turns.name == "libgpushare.so"
    assert plain == paths.PACKAGE / "lib" / "libgpushare.so" and turns.parent == plain.parent / "turns"


def test_a_documents_example_is_found_in_an_installation_or_in_the_source_tree(tmp_path, monkeypatch):
    installed, tree = tmp_path / "data" / "share" / "gpushare", tmp_path / "tree"
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path / "data") if name == "data" else None)
    monkeypatch.setattr(paths, "PACKAGE", tree / "gpushare")
    for place, name in ((installed, "a.py"), (tree, "a.py"), (tree, "b.py")):
        (place / "examples").mkdir(parents=True, exist_ok=True)
        (place / "examples" / name).touch()
    assert paths.example(Path("examples/a.py")) == installed / "examples" / "a.py"
    assert paths.example(Path("/here/examples/b.py")) == tree / "examples" / "b.py"
    assert paths.example(Path("examples/c.py")) is None and paths.example(Path("a.py")) is None
