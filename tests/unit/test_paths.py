"""Which directory may hold a daemon's sockets."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gpushare.errors import NotPermitted, UsageError
from gpushare.paths import Runtime, user_dir


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


def test_a_parent_that_is_missing(tmp_path):
    with pytest.raises(NotPermitted, match="cannot make"):
        Runtime(tmp_path / "none" / "gpushare").make()


def test_a_named_socket():
    assert Runtime.of_socket("/run/x/api.sock").directory == Path("/run/x")
    assert Runtime.of_socket("/run/x/other.sock").api_socket == Path("/run/x/other.sock")
    with pytest.raises(UsageError):
        Runtime.of_socket("api.sock")
