"""Whether gpushare or the driver is in this process: by what the loader says, not by what somebody has wanted."""

from __future__ import annotations

import ctypes
import os
from types import SimpleNamespace

import pytest

from gpushare import presence
from gpushare.paths import library
from gpushare.presence import Presence, is_initialised, loaded_driver, mapped

MAPS = """\
55d0-55d1 r--p 00000000 08:01 1 /usr/bin/python3.11
7f00-7f01 rw-p 00000000 00:00 0
7f01-7f02 r-xp 00000000 08:01 2 /usr/lib/libcuda.so.535.1 (deleted)
7f02-7f03 rw-p 00000000 08:01 2 /usr/lib/libcuda.so.535.1 (deleted)
7f03-7f04 r-xp 00000000 08:01 3 /opt/my libraries/libnvidia-ml.so.1
7f04-7f05 r-xp 00000000 08:01 4 /opt/b/libnvidia-ml.so.2
7f05-7f06 rw-p 00000000 00:00 0 [stack]
7f06-7f07 rw-p 00000000 00:00 0 [anon: /libcuda.so]
"""


@pytest.mark.parametrize(
    ("beginning", "path"),
    [
        ("libcuda.so", "/usr/lib/libcuda.so.535.1"),
        ("libnvidia-ml.so", "/opt/my libraries/libnvidia-ml.so.1"),
        ("libnvidia-ml.so.2", "/opt/b/libnvidia-ml.so.2"),
        ("python", "/usr/bin/python3.11"),
        ("lib", "/usr/lib/libcuda.so.535.1"),
        ("cuda", None),
        ("[stack", None),
    ],
)
def test_the_first_file_of_that_name_is_found_wherever_it_lies(beginning, path):
    assert mapped(beginning, MAPS) == path


def test_of_this_process_the_kernel_is_asked():
    assert mapped("python") or mapped("libc")
    assert mapped("libthere-is-none") is None


@pytest.mark.parametrize(
    ("preloaded", "late", "found"),
    [
        (True, False, Presence.PRELOADED),
        (True, True, Presence.PRELOADED),
        (False, True, Presence.LATE),
        (False, False, Presence.ABSENT),
    ],
)
def test_it_is_preloaded_or_late_or_not_there(monkeypatch, preloaded, late, found):
    monkeypatch.setattr(presence, "mapped", lambda name: "/x" if name == library().name and preloaded else None)
    monkeypatch.setattr(presence, "_late_is_enabled", lambda: late)
    assert presence.presence() is found


class Loader:
    """Libraries that are loaded, by name; to ask for one must load nothing."""

    def __init__(self, monkeypatch, **loaded) -> None:
        self.loaded = loaded
        self.asked: list[str] = []
        monkeypatch.setattr(presence.ctypes, "CDLL", self)

    def __call__(self, name, mode):
        assert mode & os.RTLD_NOLOAD and mode & os.RTLD_NOW
        self.asked.append(name)
        if name not in self.loaded:
            raise OSError(f"{name}: cannot open shared object file")
        return self.loaded[name]


@pytest.mark.parametrize(
    ("by_name", "file", "found", "asked"),
    [
        (True, None, "by name", ["libcuda.so.1"]),
        (True, "/opt/libcuda.so.535", "by name", ["libcuda.so.1"]),
        (False, "/opt/libcuda.so.535", "by file", ["libcuda.so.1", "/opt/libcuda.so.535"]),
        (False, "/gone/libcuda.so.1", None, ["libcuda.so.1", "/gone/libcuda.so.1"]),
        (False, None, None, ["libcuda.so.1"]),
    ],
)
def test_the_driver_is_found_by_its_name_or_by_its_files(monkeypatch, by_name, file, found, asked):
    loader = Loader(
        monkeypatch, **({"libcuda.so.1": "by name"} if by_name else {}), **{"/opt/libcuda.so.535": "by file"}
    )
    monkeypatch.setattr(presence, "mapped", lambda name: file if name == "libcuda.so" else None)
    assert loaded_driver() == found and loader.asked == asked


@pytest.mark.parametrize(("enabled", "found"), [(1, True), (0, False), (None, False), ("no driver", False)])
def test_late_it_is_once_its_checks_have_passed(monkeypatch, enabled, found):
    driver = SimpleNamespace(enabled=enabled)
    Loader(monkeypatch, **({} if enabled == "no driver" else {"libcuda.so.1": driver}))

    number = ctypes.c_int(enabled) if isinstance(enabled, int) else None

    def in_dll(library, name):
        assert (library, name) == (driver, "gpushare_late_enabled")
        if number is None:
            raise ValueError("undefined symbol")
        return number

    monkeypatch.setattr(presence.ctypes, "c_int", SimpleNamespace(in_dll=in_dll))
    assert presence._late_is_enabled() is found


@pytest.mark.parametrize(("code", "started"), [(0, True), (3, False), (100, True), (999, True)])
def test_cuda_has_been_started_unless_the_driver_says_no(code, started):
    """Any other answer is that of a driver that has been started."""
    assert is_initialised(SimpleNamespace(cuDeviceGetCount=lambda count: code)) is started


def test_the_late_library_lies_beside_the_other():
    assert presence.attach_library() == library().parent / "libgpushare-late.so"
