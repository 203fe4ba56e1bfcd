"""What `gpushare run` says, or refuses, before the program starts: the daemon that it finds, the visible GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushare import launch
from gpushare.errors import DaemonUnreachable, GpushareError, UsageError
from gpushare.launch import Launch, Options, visible_devices
from gpushare.locate import Node
from gpushare.paths import Runtime

AWAY = DaemonUnreachable("no daemon runs on this node", code="no_daemon", hint="start one")
WITHOUT = "the limit holds for each process by itself, and nothing is lent"
NOT_REQUIRED = "with --require-daemon this is an error"
STANDS_IN = "no NVIDIA driver here: the software driver stands in (GPUs made of host memory)"


def found(monkeypatch, daemon: Node | Exception, *, environ=None, **options) -> Node | None:
    def for_run(settings):
        if isinstance(daemon, Exception):
            raise daemon
        return daemon

    monkeypatch.setattr(launch.locate, "for_run", for_run)
    environ = {"GPUSHARE_LIMIT": "4Gi", "XDG_CONFIG_HOME": "/nowhere", **(environ or {})}
    return Launch(Options(["true"], **options), environ)._find_daemon()


def node(driver="sim", *, passed_over=None, moved=None) -> Node:
    return Node(Runtime(Path("/run/x")), driver, None, passed_over, moved)


@pytest.mark.parametrize("more", [{"container": True}, {"environ": {"GPUSHARE_REQUIRE_DAEMON": "1"}}])
def test_where_a_daemon_is_required_its_absence_is_the_error(monkeypatch, capfd, more):
    with pytest.raises(DaemonUnreachable) as caught:
        found(monkeypatch, AWAY, **more)
    assert caught.value is AWAY and capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("error", "environ", "said"),
    [
        (AWAY, {}, f"no daemon runs on this node; {WITHOUT}\n\nhint: start one; {NOT_REQUIRED}"),
        (
            AWAY,
            {"GPUSHARE_REQUEST": "1Gi"},
            f"no daemon runs on this node; {WITHOUT}; the request is not guaranteed\n\nhint: start one; {NOT_REQUIRED}",
        ),
        (DaemonUnreachable("it hangs"), {}, f"it hangs; {WITHOUT}\n\nhint: {NOT_REQUIRED}"),
        (
            OSError(13, "Permission denied", "/run/x"),
            {},
            f"cannot start the daemon: /run/x: Permission denied; {WITHOUT}\n\nhint: {NOT_REQUIRED}",
        ),
        (OSError(12, "no memory"), {}, f"cannot start the daemon: no memory; {WITHOUT}\n\nhint: {NOT_REQUIRED}"),
        (OSError("odd"), {}, f"cannot start the daemon: odd; {WITHOUT}\n\nhint: {NOT_REQUIRED}"),
    ],
)
def test_else_the_program_starts_and_its_user_is_told_even_with_q(monkeypatch, capfd, error, environ, said):
    assert found(monkeypatch, error, environ=environ, verbosity=-1) is None
    assert capfd.readouterr().err == f"gpushare: {said}\n"


def test_in_a_program_the_way_to_require_a_daemon_is_a_variable(monkeypatch, capfd):
    assert found(monkeypatch, AWAY, require_daemon="GPUSHARE_REQUIRE_DAEMON=1") is None
    assert capfd.readouterr().err.endswith("hint: start one; with GPUSHARE_REQUIRE_DAEMON=1 this is an error\n")


@pytest.mark.parametrize(
    ("daemon", "environ", "level", "said"),
    [
        (node("nvidia"), {}, 0, ""),
        (node(), {"GPUSHARE_DRIVER": "sim"}, 0, ""),
        (node(), {}, 0, STANDS_IN),
        (
            node("nvidia", passed_over=GpushareError("the system's hangs")),
            {},
            0,
            "this user's daemon is used, not the system's: the system's hangs",
        ),
        (
            node("nvidia", passed_over=GpushareError("it serves the other driver", code="other_driver")),
            {},
            1,
            "this user's daemon is used, not the system's: it serves the other driver",
        ),
        (node("nvidia", moved="its place is too long"), {}, 1, "its place is too long"),
    ],
)
def test_a_daemon_that_is_not_the_usual_one_is_told(monkeypatch, capfd, daemon, environ, level, said):
    for verbosity in (-1, 0, 1):
        assert found(monkeypatch, daemon, environ=environ, verbosity=verbosity) is daemon
        shown = f"gpushare: {said}\n" if said and verbosity >= level else ""
        assert capfd.readouterr().err == shown, verbosity


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        (None, None),
        ("0", ["0"]),
        ("1, 0", ["1", "0"]),
        ("GPU-a,MIG-b,2", ["GPU-a", "MIG-b", "2"]),
        ("0,-1,1", ["0"]),
        ("2,,1", ["2"]),
        ("1,gpu-a", ["1"]),
    ],
)
def test_the_visible_gpus_are_those_that_cuda_would_show(text, devices):
    assert visible_devices({} if text is None else {"CUDA_VISIBLE_DEVICES": text}) == devices


@pytest.mark.parametrize("text", ["", "-1", "none", ",0", " "])
def test_without_a_visible_gpu_nothing_starts(text):
    with pytest.raises(UsageError, match="hides every GPU") as caught:
        visible_devices({"CUDA_VISIBLE_DEVICES": text})
    assert caught.value.code == "no_visible_gpu"
    assert caught.value.hint == "unset it, or run the program without gpushare"


@pytest.mark.parametrize(("name", "flag"), [("GPUSHARE_REQUEST", "--request"), ("GPUSHARE_LIMIT", "--limit")])
@pytest.mark.parametrize("mode", ["observe", "off"])
def test_a_budget_that_nobody_would_enforce_is_refused(mode, name, flag):
    with pytest.raises(UsageError, match=f"{flag} means nothing with --mode {mode}") as caught:
        Launch(Options(["true"], {"GPUSHARE_MODE": mode, name: "1Gi"}), {})._check()
    assert caught.value.hint == "leave it out"


def test_a_report_needs_the_wrapper(tmp_path):
    for more, words in (
        ({"flags": {"GPUSHARE_MODE": "off"}}, "--mode off runs"),
        ({"replace": True}, "--exec replace"),
    ):
        with pytest.raises(UsageError, match=words):
            Launch(Options(["true"], report=tmp_path / "r.json", **more), {})._check()
