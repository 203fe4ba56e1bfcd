"""The process that calls a job's hooks: what a hook is told, and what the daemon is answered."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from gpushare import hook_runner
from gpushare.hook_runner import HookRunner
from gpushare.hook_settings import Hook, Hooks

RELIEF, RESUME = Hook(cmd="relief"), Hook(url="http://127.0.0.1:1/resume")


@pytest.fixture
def daemon(monkeypatch):
    """What it was answered, and the hooks that were called."""
    one = SimpleNamespace(answers=[], called=[], says="", clock=[10.0, 12.5])

    def call(hook: Hook, environ: dict, within: float) -> str:
        one.called.append((hook, environ, within))
        return one.says

    monkeypatch.setattr(hook_runner.hook_call, "call", call)
    monkeypatch.setattr(hook_runner.time, "monotonic", lambda: one.clock.pop(0))
    one.client = SimpleNamespace(
        hook_answers=lambda job, answer: one.answers.append((job, answer)), hooks=lambda job: f"stream of {job}"
    )
    return one


def command(name: str) -> dict:
    return {"number": 7, "command": name, "bytes": 2**30, "gpu": "GPU-a", "within": 2.0}


@pytest.mark.parametrize(("name", "hook"), [("relief", RELIEF), ("resume", RESUME)])
def test_a_hook_is_told_what_it_is_called_for(daemon, name, hook) -> None:
    HookRunner(daemon.client, "j", Hooks(RELIEF, RESUME), {"A": "b", "GPUSHARE_HOOK": "old"}).answer(command(name))
    told = {
        "A": "b",
        "GPUSHARE_HOOK": name,
        "GPUSHARE_HOOK_BYTES": str(2**30),
        "GPUSHARE_HOOK_GPU": "GPU-a",
        "GPUSHARE_HOOK_SECONDS": "2.000",
    }
    assert daemon.called == [(hook, told, 2.0)]
    assert daemon.answers == [("j", {"number": 7, "problem": None, "wakes": True, "milliseconds": 2500})]


@pytest.mark.parametrize(
    ("says", "problem"),
    [("", None), ("exit status 3", "exit status 3"), ("a\nb", r"a\nb"), ("x" * 300, "x" * 300), ("x" * 301, "x" * 300)],
)
def test_why_it_failed_is_one_line_and_not_long(daemon, says, problem) -> None:
    daemon.says = says
    HookRunner(daemon.client, "j", Hooks(RELIEF, None), {}).answer(command("relief"))
    ((_, answer),) = daemon.answers
    assert answer["problem"] == problem
    assert answer["wakes"] is False


@pytest.mark.parametrize("name", ["report", "resume"])
def test_what_has_no_hook_is_answered_and_calls_none(daemon, name) -> None:
    HookRunner(daemon.client, "j", Hooks(RELIEF, None), {}).answer(command(name))
    assert daemon.called == []
    assert daemon.answers[0][1]["problem"] is None


def test_commands_are_those_of_its_job(daemon) -> None:
    assert HookRunner(daemon.client, "j", Hooks(RELIEF, None), {}).commands() == "stream of j"


def test_its_hooks_do_not_inherit_what_only_it_is_told(monkeypatch) -> None:
    hooks = Hooks(RELIEF, RESUME)
    made = []

    class Runner:
        def __init__(self, *given: object) -> None:
            made.append(given)

        def run(self) -> None:
            made.append("runs")

    monkeypatch.setattr(hook_runner, "HookRunner", Runner)
    monkeypatch.setattr(hook_runner, "Client", lambda path: ("client", path))
    monkeypatch.setattr(hook_runner.os, "environ", {"A": "b", **hooks.environ()})
    hook_runner.main("j", "/run/api.sock")
    assert made == [(("client", Path("/run/api.sock")), "j", hooks, {"A": "b"}), "runs"]
