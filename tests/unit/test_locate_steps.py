"""How a command finds its daemon: which driver is here, which daemons are asked, and what it makes of them."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest

from gpushare import locate
from gpushare.config import load_settings
from gpushare.errors import DaemonUnreachable, GpushareError
from gpushare.paths import history_dir


@pytest.mark.parametrize(
    ("device", "loads", "driver"), [(True, True, "nvidia"), (True, False, "sim"), (False, True, "sim")]
)
def test_the_driver_is_nvidias_where_its_device_is_and_its_library_loads(monkeypatch, device, loads, driver):
    asked = []

    def cdll(name):
        asked.append(name)
        if not loads:
            raise OSError("no such file")

    monkeypatch.setattr(ctypes, "CDLL", cdll)
    exists = {"/dev/nvidiactl": device}
    monkeypatch.setattr(locate, "Path", lambda path: SimpleNamespace(exists=lambda: exists[path]))
    assert locate.detect_driver() == driver
    assert asked == (["libcuda.so.1"] if device else []), "without the device the library is not loaded"


SETTINGS = {"XDG_CONFIG_HOME": "/nowhere", "GPUSHARE_DRIVER": "sim"}


def unreachable(code: str, message: str = "") -> DaemonUnreachable:
    return DaemonUnreachable(message or code, code=code)


def node(name: str, *, foreign: bool = False) -> SimpleNamespace:
    return SimpleNamespace(name=name, foreign=foreign)


@pytest.fixture
def asked(monkeypatch):
    """`asked.answers`: of each place in its order."""
    one = SimpleNamespace(answers=[])
    monkeypatch.setattr(locate, "_places", lambda driver, environ: list(range(len(one.answers))))

    def ask(place, _driver, *_within):
        answer = one.answers[place]
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(locate, "_ask", ask)
    other = GpushareError("software GPUs of somebody else")
    monkeypatch.setattr(locate, "foreign_software_gpus", lambda found, environ: other if found.foreign else None)
    return one


def found(asked, *answers):
    asked.answers = list(answers)
    return locate.find(load_settings({}, SETTINGS))


def test_the_first_daemon_that_answers_is_taken(asked):
    first, second = node("a"), node("b")
    assert found(asked, first, second) is first
    assert found(asked, unreachable("no_daemon"), second) is second
    assert found(asked, unreachable("timed_out"), second) is second, "one that hangs is passed over"


def test_one_with_other_software_gpus_is_taken_last(asked):
    first, second = node("a", foreign=True), node("b")
    assert found(asked, first, second) is second
    assert found(asked, first, unreachable("no_daemon")) is first
    assert found(asked, first, node("c", foreign=True)) is first


def test_without_any_the_first_trouble_is_told_if_there_was_one(asked):
    with pytest.raises(DaemonUnreachable) as caught:
        found(asked, unreachable("no_daemon"), unreachable("timed_out", "it hangs"), unreachable("garbage"))
    assert caught.value.message == "it hangs"
    with pytest.raises(DaemonUnreachable, match="no daemon runs on this node") as caught:
        found(asked, unreachable("no_daemon"))
    assert caught.value.code == "no_daemon" and "`gpushare run` starts one" in caught.value.hint


@pytest.mark.parametrize("find", [locate.find, locate.for_run, locate.for_history])
@pytest.mark.parametrize(
    ("code", "hint"),
    [("no_daemon", "start it, or take away what names it: GPUSHARE_SOCKET=/x/api.sock"), ("timed_out", None)],
)
def test_a_daemon_that_is_named_is_the_only_one(monkeypatch, code, hint, find):
    asked = []

    def ask(runtime, _driver, *_within):
        asked.append(str(runtime.api_socket))
        raise unreachable(code)

    monkeypatch.setattr(locate, "_ask", ask)
    with pytest.raises(DaemonUnreachable) as caught:
        find(load_settings({}, {**SETTINGS, "GPUSHARE_SOCKET": "/x/api.sock"}))
    assert asked == ["/x/api.sock"] and caught.value.hint == hint


def test_to_read_a_history_a_daemon_is_started_only_where_one_has_left_a_history(asked, monkeypatch, tmp_path):
    monkeypatch.setattr(locate, "for_run", lambda _: "started")
    settings = load_settings({}, {**SETTINGS, "GPUSHARE_DRIVER": "sim", "XDG_STATE_HOME": str(tmp_path)})
    asked.answers = [unreachable("no_daemon")]
    with pytest.raises(DaemonUnreachable, match="no daemon runs on this node"):
        locate.for_history(settings)
    history_dir("sim", settings.environ).mkdir(parents=True)
    assert locate.for_history(settings) == "started"
    asked.answers = [unreachable("timed_out", "it hangs")]
    with pytest.raises(DaemonUnreachable, match="it hangs"):
        locate.for_history(settings)


# ---- it is asked ----------------------------------------------------------------------------------------------


def answering(monkeypatch, **version):
    said = {"protocol": locate.PROTOCOL, "driver": "sim", "version": "1", **version}
    waits = []

    def client(socket, within):
        waits.append(within)
        return SimpleNamespace(version=lambda: said)

    monkeypatch.setattr(locate, "Client", client)
    return waits


RUNTIME = SimpleNamespace(api_socket="/x/api.sock")


def test_a_daemon_of_another_protocol_is_to_be_started_again(monkeypatch):
    answering(monkeypatch, protocol=locate.PROTOCOL + 1)
    words = f"the daemon at /x/api.sock speaks protocol {locate.PROTOCOL + 1}, this command {locate.PROTOCOL}"
    with pytest.raises(DaemonUnreachable, match=words) as caught:
        locate._version(RUNTIME, 1.0)
    assert (caught.value.code, caught.value.hint) == (
        "other_protocol",
        "restart the daemon: it is of another version",
    )
    waits = answering(monkeypatch)
    assert locate._version(RUNTIME, 1.0)["driver"] == "sim" and waits == [1.0]


# ---- it is started --------------------------------------------------------------------------------------------


class Starter:
    runtime = RUNTIME

    def __init__(self, *, coming_up=True, fails=False) -> None:
        self.coming_up, self.fails = coming_up, fails
        self.starts = self.failures = 0

    def start(self) -> None:
        self.starts += 1
        self.failures += self.fails


@pytest.fixture
def clock(monkeypatch):
    one = SimpleNamespace(now=0.0, pauses=[])

    def sleep(seconds):
        one.pauses.append(seconds)
        one.now += seconds

    monkeypatch.setattr(locate.time, "monotonic", lambda: one.now)
    monkeypatch.setattr(locate.time, "sleep", sleep)
    monkeypatch.setattr(locate, "did_not_start", lambda starter, within: GpushareError(f"not within {within:g} s"))
    return one


def comes_up(monkeypatch, *answers):
    left = list(answers)

    def version(_runtime, within):
        assert within == locate.RUN_WITHIN
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer

    monkeypatch.setattr(locate, "_version", version)


def test_a_daemon_that_answers_is_not_started(monkeypatch, clock):
    starter = Starter()
    comes_up(monkeypatch, None)
    locate._bring_up(starter)
    assert (starter.starts, clock.pauses) == (0, [])


@pytest.mark.parametrize("code", ["no_daemon", "hung_up", "cannot_connect"])
def test_it_is_asked_ever_less_often_until_it_answers(monkeypatch, clock, code):
    starter = Starter()
    comes_up(monkeypatch, *[unreachable(code)] * 3, None)
    locate._bring_up(starter)
    assert starter.starts == 3
    assert clock.pauses == pytest.approx([0.01, 0.015, 0.0225])


@pytest.mark.parametrize(("coming_up", "longest"), [(True, locate.POLL), (False, 1.0)])
def test_who_comes_up_is_asked_often(monkeypatch, clock, coming_up, longest):
    comes_up(monkeypatch, *[unreachable("no_daemon")] * 40, None)
    locate._bring_up(Starter(coming_up=coming_up))
    assert max(clock.pauses) == pytest.approx(longest, rel=0.5) and max(clock.pauses) <= longest


def test_one_that_does_not_come_up_is_told_after_a_while(monkeypatch, clock):
    comes_up(monkeypatch, unreachable("no_daemon"))
    with pytest.raises(GpushareError, match=f"not within {locate.STARTS_WITHIN:g} s"):
        locate._bring_up(Starter())
    assert locate.STARTS_WITHIN < clock.now < locate.STARTS_WITHIN + 1.1


def test_one_that_fails_again_and_again_is_told_at_once(monkeypatch, clock):
    starter = Starter(fails=True)
    comes_up(monkeypatch, unreachable("no_daemon"))
    with pytest.raises(GpushareError, match="not within"):
        locate._bring_up(starter)
    assert starter.starts == locate.GIVE_UP_AFTER and clock.now < 1.0


def test_another_trouble_is_not_waited_for(monkeypatch, clock):
    starter = Starter()
    comes_up(monkeypatch, unreachable("other_protocol"))
    with pytest.raises(DaemonUnreachable):
        locate._bring_up(starter)
    assert starter.starts == 0
