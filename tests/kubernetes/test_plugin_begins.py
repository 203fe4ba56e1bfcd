"""What `gpushare-dra` does before it serves: it is alone, waits for the node daemon, and has what containers get."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpushare import locate
from gpushare.container import inside
from gpushare.errors import DaemonUnreachable, GpushareError
from gpushare.kubernetes import __main__ as begins
from gpushare.paths import software_driver_dir


class Clock:
    """In place of the event that ends the plugin: its waits take no time, and at each something may happen."""

    def __init__(self, *, ends: bool = False, then=lambda: None) -> None:
        self.ends, self.then = ends, then
        self.waited = 0.0

    def wait(self, seconds: float) -> bool:
        self.waited += seconds
        self.then()
        return self.ends


# ---- alone -------------------------------------------------------------------------------------------


def test_of_two_plugins_with_one_folder_the_second_gives_up_after_a_while(tmp_path):
    first, clock = begins._alone(tmp_path, threading.Event()), Clock()
    with pytest.raises(GpushareError, match=f"another gpushare-dra uses {tmp_path}") as refused:
        begins._alone(tmp_path, clock)
    assert refused.value.code == "already_running" and clock.waited == begins.FIRST
    os.close(first)
    os.close(begins._alone(tmp_path, Clock()))


def test_the_next_plugin_waits_until_the_one_before_has_ended(tmp_path):
    first = begins._alone(tmp_path, Clock())
    clock = Clock(then=lambda: os.close(first))
    os.close(begins._alone(tmp_path, clock))
    assert clock.waited == 1.0


def test_who_is_told_to_end_waits_no_longer(tmp_path):
    first, clock = begins._alone(tmp_path, Clock()), Clock(ends=True)
    with pytest.raises(GpushareError):
        begins._alone(tmp_path, clock)
    assert clock.waited == 1.0
    os.close(first)


# ---- the node daemon ---------------------------------------------------------------------------------


@pytest.fixture
def nobody(monkeypatch):
    """There is no node daemon, but for the answers that are in this list."""
    answers: list[object] = []

    def find(_):
        if answers:
            return answers.pop()
        raise DaemonUnreachable("no daemon")

    monkeypatch.setattr(locate, "find", find)
    return answers


def test_it_waits_for_a_node_daemon_that_starts_too(nobody):
    assert begins._node_daemon(Clock(then=lambda: nobody.append("found"))) == "found"


@pytest.mark.parametrize(("ends", "seconds"), [(False, begins.FIRST), (True, 1.0)])
def test_without_a_node_daemon_it_gives_up_after_a_while_or_when_it_is_told_to_end(nobody, ends, seconds):
    clock = Clock(ends=ends)
    with pytest.raises(DaemonUnreachable):
        begins._node_daemon(clock)
    assert clock.waited == seconds


# ---- what containers get -----------------------------------------------------------------------------


def node(driver: str):
    return SimpleNamespace(runtime=SimpleNamespace(directory=Path("/run/gpushare")), driver=driver)


def test_containers_get_the_library_under_a_name_of_its_content_whatever_the_umask(tmp_path):
    source, folder = tmp_path / "libgpushare.so", tmp_path / "lib"
    before = os.umask(0o077)
    try:
        source.write_text("one")
        first = begins.copied(source, folder)
        assert begins.copied(source, folder) == first
        source.write_text("two")
        second = begins.copied(source, folder)
    finally:
        os.umask(before)
    assert (first.read_text(), second.read_text()) == ("one", "two"), "who runs keeps the one that it has"
    assert {path.name for path in folder.iterdir()} == {first.name, second.name}
    assert first.name.startswith("libgpushare-") and first.suffix == ".so"
    assert {path.stat().st_mode & 0o777 for path in (folder, first, second)} == {0o755}


def test_with_the_real_driver_nothing_is_added():
    made = inside(node("nvidia"), Path("/x/libgpushare.so"), {"GPUSHARE_SIM": "gpus=2,pool=/pool"})
    assert made.library == Path("/x/libgpushare.so")
    assert (made.variables, made.folders, made.driver) == ({}, [], "nvidia")
    assert made.sockets == Path("/run/gpushare/containers")


@pytest.mark.parametrize(("said", "pools"), [({}, []), ({"GPUSHARE_SIM": "gpus=2,pool=/pool"}, ["/pool"])])
def test_with_the_software_driver_containers_have_it_and_its_pool(said, pools):
    made = inside(node("sim"), Path("/x/libgpushare.so"), said)
    where = "/usr/local/lib/gpushare-sim"
    assert made.variables == {"GPUSHARE_DRIVER": "sim", "LD_LIBRARY_PATH": where, **said}
    assert made.folders == [(software_driver_dir(), where), *((Path(pool), pool) for pool in pools)]
