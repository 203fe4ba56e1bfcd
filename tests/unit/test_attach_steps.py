"""gpushare.enable() step by step: which driver it chooses, and what it refuses to believe."""

from __future__ import annotations

import ctypes
import os
import subprocess
from types import SimpleNamespace

import pytest

from gpushare import attach
from gpushare.errors import GpushareError
from gpushare.presence import Presence

NOWHERE = {"XDG_CONFIG_HOME": "/nowhere"}


# ---- which driver -----------------------------------------------------------------------------------------


@pytest.fixture
def machine(monkeypatch):
    """What is there: NVIDIA's device, and the driver that a program would find."""
    one = SimpleNamespace(device=True, found={"cuda": "/usr/lib/libcuda.so.1"})
    monkeypatch.setattr(
        attach, "Path", lambda path: SimpleNamespace(exists=lambda: path == "/dev/nvidiactl" and one.device)
    )
    monkeypatch.setattr(attach, "_search", lambda _environ: one.found)
    return one


def test_the_driver_is_nvidias_where_its_device_and_its_library_are(machine):
    assert attach._choose_driver({}, NOWHERE) == ("nvidia", False)
    machine.found = {"nvml": "/usr/lib/libnvidia-ml.so.1"}
    assert attach._choose_driver({}, NOWHERE) == ("sim", True)
    machine.device, machine.found = False, {"cuda": "/usr/lib/libcuda.so.1"}
    assert attach._choose_driver({}, NOWHERE) == ("sim", True), "and that is told"


def test_a_driver_that_is_named_is_taken_and_not_told(machine):
    for name in ("nvidia", "sim"):
        assert attach._choose_driver({"GPUSHARE_DRIVER": name}, NOWHERE) == (name, False)


def test_a_daemon_that_is_named_has_its_driver(machine, monkeypatch):
    monkeypatch.setattr(attach.locate, "find", lambda settings: SimpleNamespace(driver="sim"))
    assert attach._choose_driver({}, {**NOWHERE, "GPUSHARE_SOCKET": "/x/api.sock"}) == ("sim", False)


@pytest.mark.parametrize("announce", [True, False])
def test_that_the_software_driver_stands_in_is_told(monkeypatch, capfd, announce):
    monkeypatch.setattr(attach, "presence", lambda: Presence.ABSENT)
    monkeypatch.setattr(attach, "_refuse_if_late", lambda: None)
    monkeypatch.setattr(attach, "_choose_driver", lambda flags, environ: ("sim", announce))
    monkeypatch.setattr(
        attach.LateLaunch, "enable", lambda self, driver: (driver, self.options.flags, self.options.gpus)
    )
    told = []
    monkeypatch.setattr(attach, "_tell_session", lambda: told.append(True))
    driver, flags, gpus = attach.enable("1Gi", None, gpus=2, name="nb")
    assert (driver, gpus, told) == ("sim", 2, [True])
    assert flags == {
        "GPUSHARE_REQUEST": "1Gi",
        "GPUSHARE_LIMIT": None,
        "GPUSHARE_NAME": "nb",
        "GPUSHARE_DRIVER": "sim",
    }
    words = "gpushare: no NVIDIA driver here: the software driver stands in (GPUs made of host memory)\n"
    assert capfd.readouterr().err == (words if announce else "")


@pytest.mark.parametrize(
    ("started_with", "path"),
    [(b"A=1\0LD_LIBRARY_PATH=/at/start:/b=c\0B=2\0", "/at/start:/b=c"), (b"A=1\0XLD_LIBRARY_PATH=/x\0", None)],
)
def test_the_driver_is_looked_for_as_this_process_was_started(monkeypatch, started_with, path):
    """With the library path of its start, without a preloaded library, and not in this process."""
    asked = []

    def run(line, *, env, **how):
        asked.append((env, how["timeout"]))
        maps = "7f r-xp 0 0 9 /usr/lib/libcuda.so.535.1\n7f r-xp 0 0 9 /usr/lib/libnvidia-ml.so.1\n"
        return SimpleNamespace(stdout=maps + "7f r-xp 0 0 9 /usr/lib/libc.so.6\n")

    monkeypatch.setattr(attach.subprocess, "run", run)
    real = attach.Path
    of_process = SimpleNamespace(read_bytes=lambda: started_with)
    monkeypatch.setattr(attach, "Path", lambda path: of_process if path == "/proc/self/environ" else real(path))
    given = {"LD_PRELOAD": "x", "LD_LIBRARY_PATH": "/changed/since", "HOME": "/home/ada"}
    assert attach._search(given) == {"cuda": "/usr/lib/libcuda.so.535.1", "nvml": "/usr/lib/libnvidia-ml.so.1"}
    ((environ, within),) = asked
    assert environ == {"HOME": "/home/ada"} | ({"LD_LIBRARY_PATH": path} if path else {})
    assert within == 30.0, "no longer is a cell kept waiting"


@pytest.mark.parametrize(
    "error", [OSError(12, "no memory"), subprocess.TimeoutExpired("python", 30), subprocess.CalledProcessError(1, "p")]
)
def test_a_search_that_fails_is_no_driver(monkeypatch, error):
    def run(*_arguments, **_how):
        raise error

    monkeypatch.setattr(attach.subprocess, "run", run)
    with pytest.raises(GpushareError, match="cannot look for the CUDA driver") as caught:
        attach._search({})
    assert caught.value.code == "no_driver"


def test_without_a_driver_nothing_is_enabled(monkeypatch):
    monkeypatch.setattr(attach, "_search", lambda _environ: {"nvml": "x"})
    with pytest.raises(GpushareError, match="cannot be found from this process") as caught:
        attach._find_drivers({})
    assert caught.value.code == "no_driver"


# ---- the directory of names ---------------------------------------------------------------------------------


@pytest.fixture
def libraries(monkeypatch, tmp_path):
    """As if they were built, beside each other."""
    folder = tmp_path / "lib"
    folder.mkdir()
    names = ("libgpushare-late.so", "libgpushare-late-nvml.so")
    for name in names:
        (folder / name).touch()
    monkeypatch.setattr(attach, "attach_library", lambda: folder / names[0])
    return [folder / name for name in names]


@pytest.mark.parametrize("number", [0, 1])
def test_a_library_that_was_not_built_is_named_with_the_way_to_it(libraries, tmp_path, number):
    libraries[number].unlink()
    with pytest.raises(GpushareError, match=f"{libraries[0]} is not there") as caught:
        attach._make_farm(tmp_path / "run", {"cuda": "/c"})
    assert caught.value.code == "not_built"
    assert not (tmp_path / "run").exists()


def test_every_name_of_the_driver_is_a_link_and_stays(libraries, tmp_path):
    shim, nvml = map(str, libraries)
    farm = attach._make_farm(tmp_path / "run", {"cuda": "/c", "nvml": "/n"})
    assert {one.name: str(one.readlink()) for one in farm.iterdir()} == {
        "libcuda.so": shim,
        "libcuda.so.1": shim,
        "libgpushare-real-cuda.so.1": "/c",
        "libnvidia-ml.so": nvml,
        "libnvidia-ml.so.1": nvml,
        "libgpushare-real-nvml.so.1": "/n",
    }
    assert farm.stat().st_mode & 0o777 == farm.parent.stat().st_mode & 0o777 == 0o700
    before = {one.name: one.lstat().st_ino for one in farm.iterdir()}
    assert attach._make_farm(tmp_path / "run", {"cuda": "/c", "nvml": "/n"}) == farm
    assert {one.name: one.lstat().st_ino for one in farm.iterdir()} == before, "others may have it open"
    other = attach._make_farm(tmp_path / "run", {"cuda": "/c"})
    assert other != farm and not (other / "libnvidia-ml.so.1").is_symlink()


def test_a_link_that_goes_elsewhere_is_put_right(libraries, tmp_path):
    farm = attach._make_farm(tmp_path / "run", {"cuda": "/c"})
    link = farm / "libcuda.so"
    link.unlink()
    link.symlink_to("/elsewhere")
    link.with_name(f".{link.name}.{os.getpid()}").symlink_to("/left/behind")
    attach._make_farm(tmp_path / "run", {"cuda": "/c"})
    assert not [one for one in farm.iterdir() if one.name.startswith(".")]
    assert link.readlink() == libraries[0]


def test_where_no_directory_can_be_made_nothing_is_enabled(libraries, tmp_path):
    (tmp_path / "run").mkdir(mode=0o700)
    (tmp_path / "run" / "late").touch()
    with pytest.raises(GpushareError, match="cannot make") as caught:
        attach._make_farm(tmp_path / "run", {"cuda": "/c"})
    assert caught.value.code == "bad_runtime_dir"


# ---- it is checked -------------------------------------------------------------------------------------------


class Late:
    """The library as it was opened: whose functions it and the driver's own look-up answer with."""

    _handle = 77

    def __init__(self, *, hooks=True, look_up=True) -> None:
        self.hooks, self.look_up = hooks, look_up
        self.cuMemAlloc_v2 = ctypes.CFUNCTYPE(None)(lambda: None)
        self.enabled = ctypes.c_int(0)
        self.answers: list[int] = []

    def gpushare_late_is_hook(self, address) -> bool:
        mine = ctypes.cast(self.cuMemAlloc_v2, ctypes.c_void_p).value
        return self.hooks if address.value == mine else self.look_up and address.value == 5

    def cuGetProcAddress_v2(self, name, answer, version, flags, status):
        self.answers.append(2)
        return 500

    def cuGetProcAddress(self, name, answer, version, flags):
        self.answers.append(1)
        assert (name, version) == (b"cuMemAlloc", 12000)
        ctypes.cast(answer, ctypes.POINTER(ctypes.c_void_p))[0] = 5
        return 0


def checked(monkeypatch, late, opened) -> None:
    def cdll(name):
        answer = opened[name]
        if isinstance(answer, OSError):
            raise answer
        return SimpleNamespace(_handle=answer)

    monkeypatch.setattr(attach.ctypes, "CDLL", cdll)
    in_dll = SimpleNamespace(in_dll=lambda library, name: library.enabled)
    monkeypatch.setattr(attach.ctypes, "c_int", type("c_int", (ctypes.c_int,), {"in_dll": in_dll.in_dll}))
    attach._check(late)


OURS = {"libcuda.so.1": 77, "libcuda.so": 77}


def test_when_all_ways_lead_to_the_library_it_is_enabled(monkeypatch):
    late = Late()
    checked(monkeypatch, late, OURS)
    assert late.enabled.value == 1
    assert late.answers == [2, 1], "an old driver has the first of the two look-ups alone"


def test_a_driver_that_has_the_newer_look_up_is_asked_by_it_alone(monkeypatch):
    late = Late()

    def newer(name, answer, version, flags, status):
        assert (name, version) == (b"cuMemAlloc", 12000)
        ctypes.cast(answer, ctypes.POINTER(ctypes.c_void_p))[0] = 5
        return 0

    late.cuGetProcAddress_v2 = newer
    checked(monkeypatch, late, OURS)
    assert late.enabled.value == 1 and late.answers == []


@pytest.mark.parametrize(
    ("late", "opened", "problems"),
    [
        (Late(), OURS | {"libcuda.so": 78}, [("libcuda.so", "another library answers to this name")]),
        (Late(), OURS | {"libcuda.so.1": OSError("not found")}, [("libcuda.so.1", "not found")]),
        (Late(hooks=False), OURS, [("cuMemAlloc_v2", "is not the library's")]),
        (Late(look_up=False), OURS, [("cuGetProcAddress", "does not answer with the library")]),
    ],
)
def test_else_nothing_is_and_the_way_around_it_is_named(monkeypatch, late, opened, problems):
    with pytest.raises(GpushareError, match="nothing is enabled") as caught:
        checked(monkeypatch, late, opened)
    assert list(caught.value.facts) == problems and caught.value.code == "not_in_the_way"
    assert late.enabled.value == 0


@pytest.mark.parametrize(
    ("nvml_before", "has_nvml", "names", "told"),
    [
        (None, True, [b"libcuda.so", b"libnvidia-ml.so.1", b"libnvidia-ml.so"], False),
        (None, False, [b"libcuda.so"], False),
        ("/usr/lib/libnvidia-ml.so.1", True, [b"libcuda.so"], True),
    ],
)
def test_the_names_that_the_library_answers_to_from_now_on(
    monkeypatch, capfd, tmp_path, nvml_before, has_nvml, names, told
):
    if has_nvml:
        (tmp_path / "libnvidia-ml.so.1").symlink_to("/n")
    claimed = []

    class Function:
        def __init__(self, does=None) -> None:
            self.does = does

        def __call__(self, *arguments):
            return self.does(*arguments)

    late = SimpleNamespace(gpushare_late_claim=Function(claimed.append), gpushare_late_is_hook=Function())
    monkeypatch.setattr(attach, "mapped", lambda name: nvml_before)
    monkeypatch.setattr(attach.ctypes, "CDLL", lambda path: late if path == str(tmp_path / "libcuda.so.1") else None)
    assert attach._open(tmp_path) is late
    assert claimed == names
    assert late.gpushare_late_claim.restype is ctypes.c_void_p, "a handle has 64 bits"
    assert late.gpushare_late_is_hook.restype is ctypes.c_bool, "of what comes back only one byte counts"
    assert late.gpushare_late_is_hook.argtypes == [ctypes.c_void_p]
    assert ("NVML was loaded before" in capfd.readouterr().err) is told


def test_a_loader_that_refuses_is_told(monkeypatch, tmp_path):
    def cdll(_path):
        raise OSError("wrong ELF class")

    monkeypatch.setattr(attach.ctypes, "CDLL", cdll)
    monkeypatch.setattr(attach, "mapped", lambda name: None)
    with pytest.raises(GpushareError, match="the loader refuses the library: wrong ELF class") as caught:
        attach._open(tmp_path)
    assert caught.value.code == "cannot_load"


def test_the_environment_is_replaced_and_what_is_the_same_is_left(monkeypatch):
    changed = []
    environ = {"A": "1", "B": "2", "C": "3"}

    class Environ(dict):
        def __setitem__(self, name, value) -> None:
            changed.append(name)
            super().__setitem__(name, value)

    monkeypatch.setattr(attach.os, "environ", Environ(environ))
    attach._replace_environ({"A": "1", "B": "9", "D": "4"})
    assert attach.os.environ == {"A": "1", "B": "9", "D": "4"} and changed == ["B", "D"]


@pytest.mark.parametrize("loaded", [True, False])
def test_a_notebook_is_told_and_another_program_is_not(monkeypatch, loaded):
    from gpushare.notebook import session

    told = []
    monkeypatch.setattr(session, "enabled", lambda: told.append(True))
    modules = {name: one for name, one in attach.sys.modules.items() if name != "IPython"}
    monkeypatch.setattr(attach.sys, "modules", modules | ({"IPython": None} if loaded else {}))
    attach._tell_session()
    assert told == ([True] if loaded else [])
