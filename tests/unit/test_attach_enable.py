"""gpushare.enable() as a whole: in which order it goes, what it says, and that it takes everything back."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpushare import attach
from gpushare.attach import RESTART, LateLaunch
from gpushare.env import Settings
from gpushare.errors import GpushareError, QuantityError, UsageError
from gpushare.launch import Options
from gpushare.presence import Presence

GIB = 2**30
GPUS = [{"index": 0, "request": GIB, "limit": 4 * GIB}, {"index": 3, "request": 0, "limit": 2 * GIB}]
JOB = {"id": "a1", "name": "nb", "gpus": GPUS}


@pytest.fixture
def process(monkeypatch):
    """What is in this process, and what is done to it."""
    one = SimpleNamespace(presence=Presence.ABSENT, settings={"GPUSHARE_LIMIT": "1Gi"}, told=0)
    monkeypatch.setattr(attach, "presence", lambda: one.presence)
    monkeypatch.setattr(attach, "load_settings", lambda *_: Settings({}, one.settings))
    monkeypatch.setattr(attach, "_tell_session", lambda: setattr(one, "told", one.told + 1))
    monkeypatch.setattr(attach, "loaded_driver", lambda: None)
    return one


# ---- it is refused -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gpus", [True, False, "1", 1.0, None, 0, -1])
def test_what_is_no_number_of_gpus_is_refused_first_of_all(process, monkeypatch, gpus):
    monkeypatch.setattr(attach, "presence", lambda: pytest.fail("it is looked at"))
    with pytest.raises(UsageError) as caught:
        attach.enable("1Gi", None, gpus=gpus, name=None)
    assert caught.value.message == f"gpushare.enable(gpus={gpus!r}): not a number of GPUs"
    assert caught.value.hint == "write gpus=1, or leave it out"


@pytest.mark.parametrize(("argument", "amounts"), [("request", ("4GB", None)), ("limit", (None, "4GB"))])
def test_an_amount_that_cannot_be_read_names_its_argument(process, monkeypatch, argument, amounts):
    monkeypatch.setattr(LateLaunch, "enable", lambda self, driver: pytest.fail("it begins"))
    with pytest.raises(QuantityError) as caught:
        attach.enable(*amounts, gpus=1, name=None)
    assert caught.value.message.startswith(f"gpushare.enable({argument}='4GB'): cannot read '4GB'")
    assert caught.value.hint == "write 4Gi (2^30) or 4G (10^9)"


@pytest.mark.parametrize(
    ("runs", "file", "says", "driver"),
    [
        (True, "/usr/lib/libcuda.so.580", "CUDA runs in this process", "/usr/lib/libcuda.so.580"),
        (False, None, "the CUDA driver is loaded, though not started,", "libcuda.so.1"),
    ],
)
def test_where_the_driver_is_loaded_it_is_too_late(process, monkeypatch, runs, file, says, driver):
    monkeypatch.setattr(attach, "loaded_driver", lambda: SimpleNamespace(_name="libcuda.so.1"))
    monkeypatch.setattr(attach, "is_initialised", lambda driver: runs)
    monkeypatch.setattr(attach, "mapped", lambda name: file if name == "libcuda.so" else None)
    monkeypatch.setattr(attach, "_choose_driver", lambda *_: pytest.fail("it begins"))
    with pytest.raises(GpushareError) as caught:
        attach.enable("1Gi", None, gpus=1, name=None)
    assert caught.value.message == f"too late: {says} and has been found past gpushare"
    assert (list(caught.value.facts), caught.value.hint, caught.value.code) == (
        [("driver", driver)],
        RESTART,
        "too_late",
    )
    assert process.told == 0


# ---- it is there already -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("request_", "limit"), [(None, None), ("1Gi", None), (None, "1Gi"), ("1Gi", "1Gi")])
@pytest.mark.parametrize(
    ("presence", "since"), [(Presence.PRELOADED, "it started"), (Presence.LATE, "gpushare.enable()")]
)
@pytest.mark.parametrize("variable", ["GPUSHARE_LIMIT", "GPUSHARE_REQUEST"])
def test_what_is_active_stays_as_it_is(process, capfd, presence, since, variable, request_, limit):
    process.presence, process.settings = presence, {variable: "1Gi"}
    found = attach.enable(request_, limit, gpus=1, name=None)
    text = f"gpushare: active in this process since {since}; nothing is changed"
    assert (found.how, found.job, found.changed, repr(found)) == (presence.value, None, False, text)
    hint = "hint: gpushare.set_limit(job, limit), or %gpushare set, while it runs"
    assert capfd.readouterr().err == (f"{text}\n{hint}\n" if request_ or limit else "")
    assert process.told == 1, "a notebook watches its job from now on"


def test_a_library_without_a_budget_limits_nothing_and_that_is_said(process):
    process.presence, process.settings = Presence.PRELOADED, {}
    with pytest.raises(GpushareError, match="preloaded into this process already, but without a budget") as caught:
        attach.enable("1Gi", None, gpus=1, name=None)
    assert caught.value.code == "too_late" and "GPUSHARE_LIMIT in its environment" in caught.value.hint


# ---- whose name ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "variable", "found"),
    [("given", None, "given"), ("given", "outer", "given"), (None, None, "notebook"), (None, "outer", None)],
)
def test_a_name_that_is_given_comes_before_the_notebooks(process, monkeypatch, name, variable, found):
    monkeypatch.setattr(attach, "_choose_driver", lambda *_: ("nvidia", False))
    monkeypatch.setattr(attach, "notebook_name", lambda environ: "notebook")
    monkeypatch.setattr(LateLaunch, "enable", lambda self, driver: self.options.flags["GPUSHARE_NAME"])
    if variable is None:
        monkeypatch.delenv("GPUSHARE_NAME", raising=False)
    else:
        monkeypatch.setenv("GPUSHARE_NAME", variable)
    assert attach.enable("1Gi", None, gpus=1, name=name) == found


# ---- step by step --------------------------------------------------------------------------------------------


@pytest.fixture
def steps(process, monkeypatch):
    """A launch whose steps are noted; `fails`: the step that does."""
    one = SimpleNamespace(did=[], fails=None, daemon=True)
    monkeypatch.setattr(attach.os, "environ", dict(os.environ))

    def step(name, answer=None):
        def do(*arguments):
            one.did.append((name, *arguments))
            if one.fails == name:
                raise GpushareError(f"{name} failed")
            return answer

        return do

    class Node:
        def client(self, _timeout=None):
            return SimpleNamespace(
                set_main=step("main"), end=lambda job, code, number: one.did.append(("ended", job, code, number))
            )

    class Steps(LateLaunch):
        def _check(self) -> None:
            step("check")()

        def _find_daemon(self):
            return step("daemon", Node() if one.daemon else None)()

        def _admit(self) -> None:
            step("admit")()
            self.job = JOB

        def program_environ(self):
            return {"LD_PRELOAD": "x", "GPUSHARE_JOB": "a1"}

    monkeypatch.setattr(attach, "_software_drivers", step("software", {"cuda": "/s"}))
    monkeypatch.setattr(attach, "_find_drivers", lambda environ: step("drivers", {"cuda": "/c"})())
    monkeypatch.setattr(attach, "user_dir", lambda driver, environ: Path("/run", driver))
    monkeypatch.setattr(attach, "_make_farm", step("farm", Path("/farm")))
    monkeypatch.setattr(attach, "_open", step("open", "library"))
    monkeypatch.setattr(attach, "_check", step("answers"))
    one.launch = Steps(Options(["python"], {"GPUSHARE_LIMIT": "4Gi"}), {"XDG_CONFIG_HOME": "/nowhere"})
    return one


@pytest.mark.parametrize(("driver", "looks"), [("nvidia", ("drivers", "/c")), ("sim", ("software", "/s"))])
def test_the_job_is_admitted_before_the_library_is_opened(steps, driver, looks):
    found = steps.launch.enable(driver)
    assert steps.did == [
        (looks[0],),
        ("check",),
        ("daemon",),
        ("admit",),
        ("main", "a1", os.getpid()),
        ("farm", Path("/run", driver), {"cuda": looks[1]}),
        ("open", Path("/farm")),
        ("answers", "library"),
    ]
    assert dict(attach.os.environ) == {"LD_PRELOAD": "x", "GPUSHARE_JOB": "a1"}, "the library reads it"
    assert (found.how, found.job, found.changed) == ("late", JOB, True)
    assert repr(found) == (
        "gpushare: job nb (a1) on GPU 0: request 1.0 GiB, limit 4.0 GiB; GPU 3: request 0 B, limit 2.0 GiB"
    )


def test_without_a_daemon_the_limit_holds_alone(steps):
    steps.daemon = False
    found = steps.launch.enable("nvidia")
    assert [name for name, *_ in steps.did] == ["drivers", "check", "daemon", "farm", "open", "answers"]
    assert repr(found) == "gpushare: limit 4Gi for this process by itself" and found.job is None


@pytest.mark.parametrize("fails", ["main", "farm", "open", "answers"])
def test_whatever_fails_then_is_taken_back(steps, fails):
    before = dict(attach.os.environ)
    steps.fails = fails
    with pytest.raises(GpushareError, match=f"{fails} failed"):
        steps.launch.enable("nvidia")
    assert dict(attach.os.environ) == before
    assert steps.did[-1] == ("ended", "a1", None, None)


@pytest.mark.parametrize("fails", ["drivers", "check", "daemon", "admit"])
def test_what_fails_before_has_nothing_to_take_back(steps, fails):
    before = dict(attach.os.environ)
    steps.fails = fails
    with pytest.raises(GpushareError, match=f"{fails} failed"):
        steps.launch.enable("nvidia")
    assert dict(attach.os.environ) == before and steps.did[-1] == (fails,)


@pytest.mark.parametrize(
    ("flags", "sources"),
    [
        (
            {"GPUSHARE_REQUEST": "1Gi", "GPUSHARE_LIMIT": "4Gi"},
            ["gpushare.enable(request=...)", "gpushare.enable(limit=...)"],
        ),
        ({"GPUSHARE_LIMIT": "4Gi"}, ["gpushare.enable(limit=...)"] * 2),
        ({}, ["GPUSHARE_LIMIT=2Gi"] * 2),
    ],
)
def test_a_budget_is_said_to_come_from_where_its_user_wrote_it(flags, sources):
    one = LateLaunch(Options(["python"], flags), {"XDG_CONFIG_HOME": "/nowhere", "GPUSHARE_LIMIT": "2Gi"})
    body = one.registration()
    assert [body["request_source"], body["limit_source"]] == sources


def test_the_software_driver_is_two_files_that_are_installed():
    found = {kind: Path(path) for kind, path in attach._software_drivers().items()}
    assert {kind: path.name for kind, path in found.items()} == {"cuda": "libcuda.so.1", "nvml": "libnvidia-ml.so.1"}
    assert {path.parent.name for path in found.values()} == {"sim"}


def test_the_search_is_made_by_this_python_alone(monkeypatch):
    """Neither the user's modules nor the site's have a part in it."""
    asked = []

    def run(line, **how):
        asked.append((line, how))
        return SimpleNamespace(stdout="")

    monkeypatch.setattr(attach.subprocess, "run", run)
    assert attach._search({}) == {}
    ((line, how),) = asked
    assert line == [sys.executable, "-I", "-S", "-c", attach.FIND_DRIVER]
    assert how["check"] and how["text"] and how["capture_output"]
