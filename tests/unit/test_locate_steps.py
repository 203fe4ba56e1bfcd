"""How a command finds its daemon: which driver is here, which daemons are asked, and what it makes of them."""

from __future__ import annotations

import ctypes
import os
from types import SimpleNamespace

import pytest

from gpushare import locate
from gpushare.config import load_settings
from gpushare.errors import DaemonUnreachable, GpushareError, UsageError
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
    said = {"protocol": 1, "driver": "sim", "version": "1", **version}  # as all daemons have said so far
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


@pytest.mark.parametrize(("coming_up", "longest"), [(True, 0.05), (False, 1.0)])
def test_who_comes_up_is_asked_often(monkeypatch, clock, coming_up, longest):
    comes_up(monkeypatch, *[unreachable("no_daemon")] * 40, None)
    locate._bring_up(Starter(coming_up=coming_up))
    assert max(clock.pauses) == pytest.approx(longest, rel=0.5) and max(clock.pauses) <= longest


def test_one_that_does_not_come_up_is_told_after_a_while(monkeypatch, clock):
    comes_up(monkeypatch, unreachable("no_daemon"))
    with pytest.raises(GpushareError, match="not within 30 s"):
        locate._bring_up(Starter())
    assert 30.0 < clock.now < 31.1


def test_one_that_fails_again_and_again_is_told_at_once(monkeypatch, clock):
    starter = Starter(fails=True)
    comes_up(monkeypatch, unreachable("no_daemon"))
    with pytest.raises(GpushareError, match="not within"):
        locate._bring_up(starter)
    assert starter.starts == 2 and clock.now < 1.0


def test_another_trouble_is_not_waited_for(monkeypatch, clock):
    starter = Starter()
    comes_up(monkeypatch, unreachable("other_protocol"))
    with pytest.raises(DaemonUnreachable):
        locate._bring_up(starter)
    assert starter.starts == 0


# ---- a daemon for a new job ------------------------------------------------------------------------------------


@pytest.fixture
def site(monkeypatch, tmp_path):
    """A node: its driver, the sign of a system daemon, what that answers, and which daemon of the user's is started."""
    one = SimpleNamespace(driver="nvidia", sign=None, system=node("system"), asked=[], started=[])

    def system(driver, environ, patience):
        one.asked.append((driver, patience))
        if isinstance(one.system, Exception):
            raise one.system
        return one.system

    monkeypatch.setattr(locate, "detect_driver", lambda: one.driver)
    monkeypatch.setattr(locate, "system_sign", lambda: one.sign)
    monkeypatch.setattr(locate, "_system", system)
    monkeypatch.setattr(locate, "own_dir", lambda driver, environ: (tmp_path / driver, "it is elsewhere"))
    monkeypatch.setattr(locate, "_bring_up", one.started.append)
    return one


def for_run(driver="auto", **environ):
    return locate.for_run(load_settings({}, {**SETTINGS, "GPUSHARE_DRIVER": driver, **environ}))


@pytest.mark.parametrize(
    ("driver", "detected", "wanted"), [("auto", "nvidia", "nvidia"), ("auto", "sim", "sim"), ("sim", "nvidia", "sim")]
)
def test_where_nothing_shows_a_system_daemon_the_users_own_is_started(site, tmp_path, driver, detected, wanted):
    site.driver = detected
    found = for_run(driver)
    (starter,) = site.started
    assert site.asked == [] and found.starter is starter
    assert (found.driver, found.passed_over, found.moved) == (wanted, None, "it is elsewhere")
    assert found.runtime.directory == starter.runtime.directory == tmp_path / wanted and starter.driver == wanted


@pytest.mark.parametrize(("driver", "patience"), [("nvidia", 3.0), ("sim", 0.0)])
def test_a_system_daemon_that_answers_is_used_and_on_real_gpus_waited_for(site, driver, patience):
    site.sign = "/run/gpushare"
    assert for_run(driver) is site.system
    assert site.asked == [(driver, patience)] and site.started == []


@pytest.mark.parametrize("code", ["no_daemon", "timed_out", "garbage"])
def test_beside_a_system_daemon_on_real_gpus_none_is_started(site, code):
    site.sign, site.system = "/run/gpushare", unreachable(code, "it is not there")
    with pytest.raises(DaemonUnreachable) as caught:
        for_run("auto")
    assert caught.value.message == "the system daemon of this node cannot be used: it is not there"
    assert caught.value.code == "system_daemon_away" and site.started == []
    assert list(caught.value.facts) == [("found", "/run/gpushare"), ("log", "journalctl -u gpushared")]
    assert "a daemon of your own would lend the same memory a second time" in caught.value.hint


@pytest.mark.parametrize(
    ("driver", "code"),
    [("nvidia", "other_driver"), ("nvidia", "foreign_software_gpus"), ("sim", "other_driver"), ("sim", "no_daemon")],
)
def test_where_it_serves_other_gpus_the_users_own_is_started_and_why_is_known(site, driver, code):
    site.sign, site.system = "/run/gpushare", unreachable(code)
    found = for_run(driver)
    assert found.passed_over is site.system and found.driver == driver and len(site.started) == 1


def test_a_daemon_that_is_named_has_ten_seconds_for_a_new_job_and_two_for_a_command(monkeypatch):
    asked = []
    monkeypatch.setattr(locate, "_ask", lambda runtime, driver, within: asked.append((driver, within)) or "node")
    settings = load_settings({}, {**SETTINGS, "GPUSHARE_SOCKET": "/x/api.sock"})
    assert locate.for_run(settings) == locate.find(settings) == "node"
    assert asked == [("sim", 10.0), ("sim", 2.0)]


def test_to_read_a_history_the_driver_that_is_here_says_which(asked, monkeypatch, tmp_path):
    monkeypatch.setattr(locate, "for_run", lambda _: "started")
    monkeypatch.setattr(locate, "detect_driver", lambda: "sim")
    asked.answers = [unreachable("no_daemon")]
    settings = load_settings({}, {**SETTINGS, "GPUSHARE_DRIVER": "auto", "XDG_STATE_HOME": str(tmp_path)})
    history_dir("nvidia", settings.environ).mkdir(parents=True)
    with pytest.raises(DaemonUnreachable):
        locate.for_history(settings)
    history_dir("sim", settings.environ).mkdir(parents=True)
    assert locate.for_history(settings) == "started"


def test_a_named_daemon_that_is_away_is_not_replaced_to_read_a_history(monkeypatch, tmp_path):
    monkeypatch.setattr(locate, "for_run", lambda _: pytest.fail("one is started"))
    monkeypatch.setattr(locate, "find", lambda settings: (_ for _ in ()).throw(unreachable("no_daemon")))
    settings = load_settings({}, {**SETTINGS, "GPUSHARE_SOCKET": "/x/api.sock", "XDG_STATE_HOME": str(tmp_path)})
    history_dir("sim", settings.environ).mkdir(parents=True)
    with pytest.raises(DaemonUnreachable):
        locate.for_history(settings)


def test_a_user_without_a_home_has_no_history_to_read(asked, monkeypatch):
    monkeypatch.setattr(locate, "for_run", lambda _: pytest.fail("one is started"))
    asked.answers = [unreachable("no_daemon")]
    with pytest.raises(DaemonUnreachable, match="no daemon runs on this node"):
        locate.for_history(load_settings({}, SETTINGS))


# ---- the system daemon -----------------------------------------------------------------------------------------


def system(monkeypatch, *answers, patience=1.0, foreign=None):
    left, asked = list(answers), []

    def ask(runtime, driver, within):
        asked.append((runtime.directory, driver, within))
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(locate, "_ask", ask)
    monkeypatch.setattr(locate, "foreign_software_gpus", lambda found, environ: foreign)
    try:
        return locate._system("nvidia", {}, patience), asked
    except GpushareError as error:
        return error, asked


@pytest.mark.parametrize("code", ["no_daemon", "hung_up"])
def test_a_system_daemon_that_is_being_restarted_is_asked_ten_times_a_second(monkeypatch, clock, code):
    found, asked = system(monkeypatch, *[unreachable(code)] * 3, "node")
    assert found == "node" and asked == [(locate.SYSTEM_DIR, "nvidia", 10.0)] * 4
    assert clock.pauses == [0.1] * 3


def test_one_that_stays_away_is_given_up(monkeypatch, clock):
    found, _ = system(monkeypatch, unreachable("no_daemon", "none there"), patience=1.0)
    assert found.message == "none there" and 1.0 <= clock.now < 1.11
    found, asked = system(monkeypatch, unreachable("no_daemon"), patience=0.0)
    assert found.code == "no_daemon" and len(asked) == 1


@pytest.mark.parametrize("code", ["timed_out", "garbage", "cannot_connect"])
def test_one_that_hangs_or_is_none_of_ours_is_not_asked_again(monkeypatch, clock, code):
    found, asked = system(monkeypatch, unreachable(code), "node")
    assert found.code == code and len(asked) == 1 and clock.pauses == []


def test_one_whose_gpus_are_of_another_user_is_none(monkeypatch, clock):
    other = GpushareError("of somebody else", code="foreign_software_gpus")
    assert system(monkeypatch, "node", foreign=other) == (other, [(locate.SYSTEM_DIR, "nvidia", 10.0)])


@pytest.mark.parametrize("there", [set(), {"run"}, {"run", "unit"}, {"unit"}, {"dangling"}])
def test_what_shows_that_this_node_has_a_system_daemon(monkeypatch, tmp_path, there):
    """Also a link that leads nowhere: a unit that is switched off."""
    run, unit = tmp_path / "run", tmp_path / "gpushared.service"
    monkeypatch.setattr(locate, "SYSTEM_DIR", run)
    monkeypatch.setattr(locate, "SYSTEM_UNITS", (tmp_path / "no.service", unit))
    if "run" in there:
        run.mkdir()
    if "unit" in there:
        unit.touch()
    if "dangling" in there:
        unit.symlink_to(tmp_path / "gone")
    assert locate.system_sign() == (str(run) if "run" in there else str(unit) if there else None)


# ---- whose software GPUs they are ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("driver", "starter", "sim", "owner", "foreign"),
    [
        ("sim", None, "", 1, True),
        ("sim", None, "gpus=2", 1, True),
        ("sim", None, "gpus=2,pool=/p", 1, False),
        ("sim", "ours", "", 1, False),
        ("nvidia", None, "", 1, False),
        ("sim", None, "", 0, False),
        ("sim", None, "", None, False),
    ],
)
def test_software_gpus_of_another_user_are_not_there_for_this_one(driver, starter, sim, owner, foreign):
    """`owner`: how far the daemon's user is from us; None: its socket is gone."""

    class Socket(str):
        def stat(self):
            if owner is None:
                raise FileNotFoundError
            return SimpleNamespace(st_uid=os.getuid() + owner)

    found = locate.Node(SimpleNamespace(api_socket=Socket("/x/api.sock")), driver, starter)
    error = locate.foreign_software_gpus(found, {"GPUSHARE_SIM": sim} if sim else {})
    assert (error is not None) is foreign
    if error is not None:
        assert error.code == "foreign_software_gpus"
        assert f"/x/api.sock serves software GPUs of user {os.getuid() + 1}, which are not" in error.message


@pytest.mark.parametrize(("driver", "own"), [("auto", ["nvidia", "sim"]), ("nvidia", ["nvidia"]), ("sim", ["sim"])])
def test_the_system_daemon_is_asked_first_then_the_users_of_each_driver(monkeypatch, driver, own):
    monkeypatch.setattr(locate, "user_dir", lambda name, environ: f"/own/{name}")
    places = [one.directory for one in locate._places(driver, {})]
    assert places == [locate.SYSTEM_DIR, *(f"/own/{name}" for name in own)]


@pytest.mark.parametrize(
    ("asked_for", "serves", "refused"), [("auto", "sim", False), ("sim", "sim", False), ("nvidia", "sim", True)]
)
def test_a_daemon_for_another_driver_is_refused_with_the_way_out(monkeypatch, asked_for, serves, refused):
    waits = answering(monkeypatch, driver=serves)
    if not refused:
        assert locate._ask(RUNTIME, asked_for) == locate.Node(RUNTIME, serves) and waits == [2.0]
        return
    with pytest.raises(UsageError) as caught:
        locate._ask(RUNTIME, asked_for)
    assert caught.value.message == "the daemon at /x/api.sock serves the driver sim, not nvidia"
    assert (caught.value.code, caught.value.hint) == ("other_driver", "leave --driver out, or GPUSHARE_SOCKET")


def test_a_nodes_client_has_ten_seconds_unless_it_is_told_other():
    found = locate.Node(RUNTIME, "sim")
    assert [found.client().timeout, found.client(1.5).timeout] == [10.0, 1.5]
    assert found.client().api_socket == "/x/api.sock"
