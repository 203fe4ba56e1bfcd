"""The environment that a program is started with: what it is given, what it keeps, and what it must not inherit."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpushare import spawn
from gpushare.env import Settings
from gpushare.errors import CommandNotExecutable, CommandNotFound
from gpushare.paths import library

OURS, TURNS = str(library()), str(library(turns=True))
GPUS = [{"uuid": "GPU-a"}, {"uuid": "GPU-b"}]
JOB = {"id": "a1", "gpus": GPUS}


@pytest.fixture(autouse=True)
def _built(monkeypatch):
    """Whether or not both libraries are."""
    monkeypatch.setattr(spawn, "preload", lambda environ, *, turns=False: TURNS if turns else OURS)


def environ_of(environ, *, flags=None, runtime=None, job=None, devices=(), driver="nvidia") -> dict[str, str]:
    settings = Settings(flags or {}, environ)
    budget, _, _ = settings.budget()
    return spawn.program_environ(
        environ, settings, budget, name="train", devices=devices, driver=driver, runtime=runtime, job=job
    )


PLAIN = {"LD_PRELOAD": OURS, "GPUSHARE_NAME": "train", "GPUSHARE_REQUEST": "none", "GPUSHARE_LIMIT": "max"}


def test_a_program_without_a_daemon_has_its_budget_and_the_library():
    assert environ_of({"HOME": "/h"}) == {"HOME": "/h", **PLAIN}
    budget = {"GPUSHARE_REQUEST": "1Gi", "GPUSHARE_LIMIT": "4Gi"}
    assert environ_of(budget) == {**PLAIN, **budget}
    assert environ_of({}, flags={"GPUSHARE_LIMIT": "4096Mi"}) == {
        **PLAIN,
        **dict.fromkeys(("GPUSHARE_REQUEST", "GPUSHARE_LIMIT"), "4Gi"),
    }


def test_a_job_has_its_daemon_and_its_gpus_too():
    runtime = SimpleNamespace(api_socket="/run/x/api.sock")
    found = environ_of({"GPUSHARE_JOB": "outer", "CUDA_VISIBLE_DEVICES": "7"}, runtime=runtime, job=JOB, devices=("3",))
    assert found == {
        **PLAIN,
        **{"GPUSHARE_JOB": "a1", "GPUSHARE_SOCKET": "/run/x/api.sock", "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"},
    }


@pytest.mark.parametrize(("runtime", "job"), [(None, JOB), (SimpleNamespace(api_socket="/x"), None)])
def test_without_a_daemon_or_a_job_it_belongs_to_none(runtime, job):
    found = environ_of({"GPUSHARE_JOB": "outer", "CUDA_VISIBLE_DEVICES": "7"}, runtime=runtime, job=job)
    assert found == {**PLAIN, "CUDA_VISIBLE_DEVICES": "7"}


def test_devices_that_were_named_are_the_visible_ones():
    assert environ_of({"CUDA_VISIBLE_DEVICES": "7"}, devices=("3", "1"))["CUDA_VISIBLE_DEVICES"] == "3,1"


@pytest.mark.parametrize(("turns", "path"), [({}, OURS), ({"turns": False}, OURS), ({"turns": True}, TURNS)])
def test_where_jobs_take_turns_the_library_can_hold_launches_back(turns, path):
    assert environ_of({}, job={**JOB, **turns})["LD_PRELOAD"] == path


def test_a_program_that_is_only_observed_runs_without_the_library():
    found = environ_of({"LD_PRELOAD": f"{OURS}:/y.so", "GPUSHARE_MODE": "observe"})
    assert found == {**PLAIN, "LD_PRELOAD": "/y.so"}
    assert "LD_PRELOAD" not in environ_of({"GPUSHARE_MODE": "observe"})


def test_variables_of_other_products_that_disagree_are_taken_away():
    """The library reads them, too, and would warn in each process."""
    environ = {"GPUSHARE_LIMIT": "4Gi", "NVIDIA_GPU_MEMORY_LIMIT": "4096", "RUNAI_GPU_MEMORY_LIMIT": "0.5"}
    found = environ_of(environ)
    assert found == {**PLAIN, "GPUSHARE_REQUEST": "4Gi", "GPUSHARE_LIMIT": "4Gi", "NVIDIA_GPU_MEMORY_LIMIT": "4096"}


def test_what_the_library_reads_is_said_however_it_was_set():
    found = environ_of({}, flags={"GPUSHARE_VISIBLE": "request", "GPUSHARE_LOG": "debug"})
    assert found == {**PLAIN, "GPUSHARE_VISIBLE": "request", "GPUSHARE_LOG": "debug"}


def test_a_frameworks_own_variables_are_set_unless_they_are():
    name = "XLA_PYTHON_CLIENT_PREALLOCATE"
    assert environ_of({}, flags={"GPUSHARE_FOR": "jax"})[name] == "false"
    assert environ_of({name: "true"}, flags={"GPUSHARE_FOR": "jax"})[name] == "true"
    assert name not in environ_of({})


@pytest.mark.parametrize(
    ("before", "path"),
    [({}, "/sim"), ({"LD_LIBRARY_PATH": "/a:/b"}, "/sim:/a:/b"), ({"LD_LIBRARY_PATH": ""}, "/sim")],
)
def test_the_software_driver_is_found_before_all_others(monkeypatch, before, path):
    monkeypatch.setattr(spawn, "_software_driver", lambda runtime: "/sim")
    found = environ_of(before, driver="sim")
    assert (found["LD_LIBRARY_PATH"], found["GPUSHARE_DRIVER"]) == (path, "sim")
    found = environ_of(before)
    assert found.get("LD_LIBRARY_PATH") == before.get("LD_LIBRARY_PATH") and "GPUSHARE_DRIVER" not in found


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, None),
        ("", None),
        (OURS, None),
        (f"{OURS}:{TURNS}", None),
        (f"{TURNS} /y.so", "/y.so"),
        (f"/x.so::/y.so {OURS}", "/x.so:/y.so"),
    ],
)
def test_without_gpushare_neither_library_is_loaded_and_others_stay(before, after):
    environ = {"A": "1", "GPUSHARE_MODE": "off", **({"LD_PRELOAD": before} if before is not None else {})}
    assert spawn.without_preload(environ) == {"A": "1", **({"LD_PRELOAD": after} if after else {})}


@pytest.mark.parametrize(
    ("items", "all_of_them"),
    [("", "/a"), ("/b", "/a:/b"), ("/b /c", "/a:/b:/c"), ("/b:/a:/c", "/a:/b:/c"), (":/b::", "/a:/b")],
)
def test_what_is_put_in_front_is_there_once(items, all_of_them):
    assert spawn.prepend("/a", items) == all_of_them


# ---- the software driver's names ---------------------------------------------------------------------------------


def test_links_are_made_once_and_put_right(tmp_path):
    place, source = tmp_path / "drivers", tmp_path / "sim"
    spawn.make_driver_links(place, source)
    assert place.stat().st_mode & 0o777 == 0o700
    assert {one.name: str(one.readlink()) for one in place.iterdir()} == {
        name: str(source / target) for name, target in spawn.DRIVER_LINKS.items()
    }
    before = {one.name: one.lstat().st_ino for one in place.iterdir()}
    wrong = next(iter(spawn.DRIVER_LINKS))
    (place / wrong).unlink()
    (place / wrong).symlink_to("/elsewhere")
    (place / f".{wrong}.{os.getpid()}").symlink_to("left behind")
    spawn.make_driver_links(place, source)
    after = {one.name: one.lstat().st_ino for one in place.iterdir()}
    assert str((place / wrong).readlink()) == str(source / spawn.DRIVER_LINKS[wrong])
    assert after.keys() == before.keys()
    assert {name for name in after if after[name] == before[name]} >= before.keys() - {wrong}, "a program may use them"


# ---- the program is found ----------------------------------------------------------------------------------------


def test_a_program_is_looked_for_as_a_shell_does(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tool = tmp_path / "bin" / "tool"
    tool.parent.mkdir()
    tool.write_text("x")
    tool.chmod(0o755)
    here = tmp_path / "here"
    here.write_text("x")
    here.chmod(0o755)
    for name, path, found in (
        ("tool", "/none:bin", "bin/tool"),
        ("bin/tool", "/none", "bin/tool"),
        ("./here", "/none", "./here"),
        (str(tool), "", str(tool)),
        ("here", "", "./here"),
        ("here", "/none:", "./here"),
    ):
        assert spawn.find_program(name, {"PATH": path}) == found, (name, path)
    assert Path(spawn.find_program("sh", {})).name == "sh", "without a PATH the system's"
    for name in (".", ".."):
        with pytest.raises(CommandNotExecutable) as caught:
            spawn.find_program(name, {"PATH": "/usr/bin"})
        assert caught.value.message == f"cannot execute {name}: it is a directory"


def test_a_program_in_the_last_place_is_found_though_the_first_ones_refuse(tmp_path):
    for name, mode in (("a", 0o644), ("b", 0o600), ("c", 0o755)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tool").write_text("x")
        (tmp_path / name / "tool").chmod(mode)
    path = {"PATH": ":".join(str(tmp_path / name) for name in ("none", "a", "b", "c"))}
    assert spawn.find_program("tool", path) == str(tmp_path / "c" / "tool")
    with pytest.raises(CommandNotExecutable) as caught:
        spawn.find_program("tool", {"PATH": path["PATH"].removesuffix("/c") + "/none"})
    assert caught.value.message == f"cannot execute {tmp_path}/a/tool: permission denied", "the first of them"
    with pytest.raises(CommandNotFound, match=r"^command not found: other$"):
        spawn.find_program("other", path)
    with pytest.raises(CommandNotFound, match=r"^the command is empty$"):
        spawn.find_program("", path)
