"""gpushare in one IPython shell: what it registers, starts, says and takes back. The shell is of the test's making."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from gpushare import attach
from gpushare.notebook import session
from gpushare.presence import Presence


class Shell:
    def __init__(self) -> None:
        self.registered: list[tuple[str, object]] = []
        self.magics_manager = SimpleNamespace(magics={"line": {}})
        self.events = SimpleNamespace(
            register=lambda event, call: self.registered.append((event, call)),
            unregister=lambda event, call: self.registered.remove((event, call)),
        )
        self.extension_manager = SimpleNamespace(load_extension=lambda name: session.load(self))

    def register_magic_function(self, function, magic_kind, magic_name) -> None:
        self.magics_manager.magics[magic_kind][magic_name] = function

    def run_cell(self) -> None:
        for event in ("pre_run_cell", "post_run_cell"):
            for name, call in list(self.registered):
                if name == event:
                    call(None)


@pytest.fixture
def started(monkeypatch):
    """What the watch and the handler were told, in order. `started.here` is the library's presence."""
    one = SimpleNamespace(told=[], here=Presence.ABSENT, news=None)

    def part(name, *calls):
        return SimpleNamespace(
            excuses=None, **{call: lambda call=call: one.told.append(f"{name} {call}") for call in calls}
        )

    monkeypatch.setattr(session, "Watch", lambda say: part("watch", "start", "stop", "wake"))
    monkeypatch.setattr(session, "Handler", lambda excuses: part("handler", "install", "remove"))
    monkeypatch.setattr(session, "presence", lambda: one.here)
    monkeypatch.setattr(session, "previous_end", lambda: one.news)
    monkeypatch.setattr(session, "_sessions", [])
    return one


PRESENT = next(one for one in Presence if one is not Presence.ABSENT)
BEGUN = ["handler install", "watch start"]


def test_a_job_is_watched_from_the_first_line_on(started):
    started.here, shell = PRESENT, Shell()
    session.load(shell)
    session.load(shell)
    assert started.told == BEGUN, "once"
    assert [event for event, _ in shell.registered] == ["pre_run_cell", "post_run_cell"]
    assert list(shell.magics_manager.magics["line"]) == ["gpushare"]
    shell.run_cell()
    assert started.told == [*BEGUN, "watch wake"], "the cell may have been the first to use a GPU"
    session.unload(shell)
    session.unload(shell)
    assert started.told[3:] == ["handler remove", "watch stop"]
    assert shell.registered == [] and shell.magics_manager.magics["line"] == {}
    session.load(shell)
    assert started.told[5:] == BEGUN


def test_a_kernel_that_is_no_job_is_watched_once_it_is_one(started):
    shell = Shell()
    session.load(shell)
    shell.run_cell()
    assert started.told == []
    started.here = PRESENT
    shell.run_cell()
    assert started.told == BEGUN
    started.told.clear()
    shell.run_cell()
    assert started.told == ["watch wake"]


def test_nothing_was_started_and_nothing_is_stopped(started):
    shell = Shell()
    session.load(shell)
    session.unload(shell)
    assert started.told == [] and shell.registered == []


def test_how_the_kernel_before_has_ended_is_told_in_the_first_cell_and_once(started, capsys):
    started.news, shell = "the kernel was ended \x1b[2J", Shell()
    session.load(shell)
    assert capsys.readouterr().err == "", "a frontend shows nothing before a cell runs"
    shell.run_cell()
    said = capsys.readouterr().err
    assert said.startswith("the kernel was ended ") and said.endswith("\n") and "\x1b" not in said
    shell.run_cell()
    assert capsys.readouterr().err == ""


def test_a_cell_that_loads_the_extension_tells_it_at_its_own_end(started, capsys):
    """Its beginning was before the extension."""
    started.news, shell = "the kernel was ended", Shell()
    session.load(shell)
    for name, call in list(shell.registered):
        if name == "post_run_cell":
            call(None)
    assert capsys.readouterr().err == "the kernel was ended\n"
    shell.run_cell()
    assert capsys.readouterr().err == ""


def test_what_is_told_is_seen_while_the_cell_runs(monkeypatch):
    shown: list[str] = []
    waiting: list[str] = []

    def flush() -> None:
        shown.extend(waiting)
        waiting.clear()

    monkeypatch.setattr(session, "sys", SimpleNamespace(stderr=SimpleNamespace(write=waiting.append, flush=flush)))
    session.say("memory is asked back")
    assert shown == ["memory is asked back\n"]


def test_enable_in_a_cell_does_what_the_line_load_ext_does(started, monkeypatch):
    shell = Shell()
    for module, there in ((None, False), (lambda: None, False), (lambda: shell, True)):
        if module is None:
            monkeypatch.delitem(sys.modules, "IPython", raising=False)
        else:
            monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=module))
        session.enabled()
        assert bool(shell.registered) is there
    started.here = PRESENT
    session.enabled()
    assert started.told == BEGUN, "the extension was there before the job"
    session.enabled()
    assert started.told == BEGUN and len(shell.registered) == 2, "once"


@pytest.mark.parametrize("here", [Presence.ABSENT, PRESENT])
def test_enable_tells_the_notebook_whether_it_was_enabled_before_or_not(here, monkeypatch):
    told: list[str] = []
    active = SimpleNamespace(how="late")
    monkeypatch.setattr(attach, "presence", lambda: here)
    monkeypatch.setattr(attach, "_active_already", lambda here, wishes: active)
    monkeypatch.setattr(attach, "_refuse_if_late", lambda: None)
    monkeypatch.setattr(attach, "_choose_driver", lambda flags, environ: ("sim", False))
    monkeypatch.setattr(attach.LateLaunch, "enable", lambda self, driver: active)
    monkeypatch.setattr(session, "enabled", lambda: told.append("told"))
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert attach.enable(request=None, limit="1Gi", gpus=1, name="n") is active and told == []
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace())
    assert attach.enable(request=None, limit="1Gi", gpus=1, name="n") is active and told == ["told"]
