"""What the daemon does again and again beside its requests: samples, health, housekeeping, and settings read again."""

from __future__ import annotations

import asyncio
import resource
from types import SimpleNamespace
from typing import Any

import pytest

from gpushare.errors import UsageError
from gpushared import config as configuration
from gpushared import daemon as daemon_
from gpushared.api import history
from gpushared.daemon import Daemon

# Numbers, not the daemon's own names for them: that they stay is a part of what is tested.
CHECK_EVERY = 10.0
QUIET_SAMPLING = 10.0


def thing(**fields: Any) -> Any:
    return SimpleNamespace(**fields)


class Ended(BaseException):
    """The test has seen enough rounds."""


class Rounds:
    """A daemon whose parts note what they are told, on a clock that the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, system: bool = True, **settings: Any) -> None:
        self.told: list[Any] = []
        self.pauses: list[float] = []
        self.now = 1000.0
        self.rounds = 3
        monkeypatch.setattr(daemon_.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(daemon_.asyncio, "sleep", self._sleep)
        one: Any = object.__new__(Daemon)
        self.daemon: Any = one
        one.config = configuration.Config(**settings)
        one.directory = thing(system=system, unbind=self.note("unbind"))
        one._gpus = thing(infos={"x": None, "y": None})
        one._notifier = thing(
            watchdog_interval=None,
            alive=self.note("alive"),
            status=lambda text: self.told.append(("status", text)),
            reloading=lambda at: self.told.append(("reloading", at)),
            ready=lambda text: self.told.append(("ready", text)),
        )
        one._identities = thing(forget=self.note("forget users"))
        one._reload = None
        one._stop = thing(set=self.note("stop"))
        one._status = ""
        one._busy_at = one._checked_at = self.now
        one.api = thing(guard=thing(active=0), history=thing(look=lambda: 7.5))
        one.health_monitor = thing(poll=self.note("poll"))
        self.jobs: list[Any] = []
        gpus = {name: thing(health=thing(lost=False, admits=True)) for name in "xy"}
        self.core = thing(gpus=gpus, jobs={}, lent=0, reservations={}, policy=None)
        one.shell = thing(
            core=self.core,
            registry=thing(live=lambda: iter(self.jobs)),
            driver=thing(sample_soon=lambda gpu: self.told.append(("sample", gpu))),
            processes=thing(give_up_broken=self.note("broken"), end_replaced=self.note("replaced")),
            end_deserted=self.note("deserted"),
            outside=thing(suspenders=thing(keep_gates=self.note("gates"))),
            core_loop=thing(errors=0, check=self.note("check")),
        )

    def note(self, what: str) -> Any:
        return lambda: self.told.append(what)

    async def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        if len(self.pauses) > self.rounds:
            raise Ended
        self.now += seconds

    def run(self, loop: Any, rounds: int = 3) -> list[Any]:
        self.rounds = rounds
        self.pauses.clear()
        self.told.clear()
        with pytest.raises(Ended):
            asyncio.run(loop())
        return list(self.told)


# ---- samples and health -----------------------------------------------------------------------------


def test_gpus_are_sampled_while_there_is_a_job_and_hardly_without_one(monkeypatch) -> None:
    rounds = Rounds(monkeypatch, sample_interval=2.0)
    rounds.jobs.append(object())
    both = [("sample", "x"), ("sample", "y")]
    assert rounds.run(rounds.daemon._sample) == both * 3 and rounds.pauses == [2.0] * 4
    rounds.core.gpus["x"].health.lost = True
    assert rounds.run(rounds.daemon._sample) == [("sample", "y")] * 3, "one that is lost is not asked"
    rounds.core.gpus["x"].health.lost = False
    rounds.jobs.clear()
    quiet = int(QUIET_SAMPLING / 2.0)
    assert rounds.run(rounds.daemon._sample, quiet - 1) == []
    assert rounds.run(rounds.daemon._sample, 2 * quiet) == both * 2


def test_health_is_polled_as_often_as_the_settings_say(monkeypatch) -> None:
    rounds = Rounds(monkeypatch, health_interval=30.0)
    assert rounds.run(rounds.daemon._look_after) == ["poll"] * 3 and rounds.pauses == [30.0] * 4


def test_the_history_says_when_it_wants_the_next_sample(monkeypatch, caplog) -> None:
    rounds = Rounds(monkeypatch)
    rounds.run(rounds.daemon._write_history)
    assert rounds.pauses == [7.5] * 4
    rounds.daemon.api.history.look = lambda: 1 // 0
    rounds.run(rounds.daemon._write_history)
    assert rounds.pauses == [history.EVERY] * 4 and rounds.daemon.shell.core_loop.errors == 4
    assert caplog.text.count("the usage history took no sample") == 4


@pytest.mark.parametrize("name", ["_sample", "_look_after", "_keep_house"])
def test_a_round_that_fails_is_one_round(monkeypatch, caplog, name) -> None:
    rounds = Rounds(monkeypatch)
    rounds.jobs.append(object())
    loop = getattr(rounds.daemon, name)
    rounds.run(loop, 1)
    whole = rounds.run(loop, 1)
    shell, monitor = rounds.daemon.shell, rounds.daemon.health_monitor
    real = shell.processes, shell.driver, monitor.poll

    def fails(*_: object) -> None:
        """The first that is asked in a round; the next round goes well."""
        shell.processes, shell.driver, monitor.poll = real
        raise ZeroDivisionError

    shell.driver, shell.processes = thing(sample_soon=fails), thing(give_up_broken=fails)
    monitor.poll = fails

    async def lasting() -> None:
        await rounds.daemon._lasting(loop)

    assert rounds.run(lasting, 2)[-len(whole) :] == whole, "the second round"
    assert shell.core_loop.errors == 1 and caplog.text.count("a round of the daemon failed") == 1


# ---- housekeeping -----------------------------------------------------------------------------------

EACH_ROUND = ["broken", "replaced", "deserted", "gates"]


def test_each_second_the_house_is_kept(monkeypatch) -> None:
    rounds = Rounds(monkeypatch)
    rounds.core.jobs["a"] = object()
    rounds.jobs.append(1)
    status = ("status", "2 GPUs, 1 job, 0 B lent")
    assert rounds.run(rounds.daemon._keep_house) == [*EACH_ROUND, status, *EACH_ROUND * 2], "a status is told once"
    assert rounds.pauses == [1.0] * 4
    rounds.core.lent = 3 * 2**30
    assert rounds.run(rounds.daemon._keep_house, 1)[-1] == ("status", "2 GPUs, 1 job, 3.0 GiB lent")


@pytest.mark.parametrize(
    ("watchdog", "idle_exit", "pause"),
    [(None, 10.0, 1.0), (0.4, 10.0, 0.4), (3.0, 10.0, 1.0), (None, 2.0, 0.5), (None, 0.0, 0.05), (0.3, 2.0, 0.3)],
)
def test_how_often_the_house_is_kept(monkeypatch, watchdog, idle_exit, pause) -> None:
    rounds = Rounds(monkeypatch, idle_exit=idle_exit)
    rounds.daemon._notifier.watchdog_interval = watchdog
    told = rounds.run(rounds.daemon._keep_house)
    assert rounds.pauses == [pause] * 4 and told.count("alive") == (0 if watchdog is None else 3)


def test_the_cores_sums_are_checked_now_and_then(monkeypatch) -> None:
    rounds = Rounds(monkeypatch)
    told = rounds.run(rounds.daemon._keep_house, int(3 * CHECK_EVERY))
    assert told.count("check") == 3


@pytest.mark.parametrize("system", [False, True])
def test_a_users_daemon_ends_when_nothing_was_wanted_for_a_while(monkeypatch, system) -> None:
    rounds = Rounds(monkeypatch, system=system, idle_exit=8.0)
    told = rounds.run(rounds.daemon._keep_house, 7)
    assert "stop" not in told
    assert ("stop" in rounds.run(rounds.daemon._keep_house, 1)) is not system


@pytest.mark.parametrize("why", ["a request", "a reservation", "a job"])
def test_what_keeps_a_users_daemon(monkeypatch, why) -> None:
    rounds = Rounds(monkeypatch, system=False, idle_exit=8.0)
    rounds.daemon.api.guard.active = int(why == "a request")
    rounds.core.reservations = {"r": 1} if why == "a reservation" else {}
    rounds.jobs += [1] if why == "a job" else []
    assert "stop" not in rounds.run(rounds.daemon._keep_house, 50)
    rounds.daemon.api.guard.active, rounds.core.reservations = 0, {}
    rounds.jobs.clear()
    assert "stop" not in rounds.run(rounds.daemon._keep_house, 7), "the time counts from then on"
    assert "stop" in rounds.run(rounds.daemon._keep_house, 1)


@pytest.mark.parametrize(
    ("gpus", "out", "jobs", "lent", "text"),
    [
        (0, 0, 0, 0, "0 GPUs, 0 jobs, 0 B lent"),
        (1, 0, 1, 2**20, "1 GPU, 1 job, 1.0 MiB lent"),
        (2, 1, 3, 0, "2 GPUs (1 out of use), 3 jobs, 0 B lent"),
        (2, 2, 0, 0, "2 GPUs (2 out of use), 0 jobs, 0 B lent"),
    ],
)
def test_the_state_in_one_line(monkeypatch, gpus, out, jobs, lent, text) -> None:
    rounds = Rounds(monkeypatch)
    rounds.core.gpus = {number: thing(health=thing(admits=number >= out)) for number in range(gpus)}
    rounds.core.jobs, rounds.core.lent = dict.fromkeys(range(jobs)), lent
    assert rounds.daemon._describe() == text


# ---- settings ---------------------------------------------------------------------------------------


def test_settings_that_are_read_again_reach_every_part(monkeypatch, caplog) -> None:
    caplog.set_level("INFO")
    rounds = Rounds(monkeypatch)
    rounds.daemon.reload_config()
    assert rounds.told == [], "there is no file to read"
    fresh = configuration.Config(sample_interval=5.0, grace=3.0)
    rounds.daemon._reload = lambda: thing(config=fresh)
    rounds.daemon.reload_config()
    assert rounds.told == [("reloading", 1000.0), "forget users", "poll", ("ready", rounds.daemon._describe())]
    assert rounds.daemon.config is fresh and rounds.core.policy == fresh.policy()
    (said,) = [one.facts for one in caplog.records if one.getMessage() == "settings read again"]
    assert "sample_interval: 1 s -> 5 s" in said["changed"] and "grace" in said["changed"]
    rounds.daemon.reload_config()
    said = [one.facts for one in caplog.records if one.getMessage() == "settings read again"][-1]
    assert said == {"changed": "nothing"}


def test_a_file_with_an_error_changes_nothing(monkeypatch, caplog) -> None:
    rounds = Rounds(monkeypatch)
    before = rounds.daemon.config

    def wrong() -> None:
        raise UsageError("2 errors in it", facts=[("$.a:1", "no such key"), ("$.b:2", "too long")])

    rounds.daemon._reload = wrong
    rounds.daemon.reload_config()
    assert rounds.daemon.config is before and rounds.core.policy is None
    assert rounds.told == [("reloading", 1000.0), ("ready", rounds.daemon._describe())]
    (said,) = [one.facts for one in caplog.records if one.getMessage() == "the settings stay as they were"]
    assert said == {"error": "2 errors in it", "why": "$.a:1 no such key; $.b:2 too long"}


@pytest.mark.parametrize("system", [False, True])
def test_doubtful_settings_are_said_where_others_run_jobs(monkeypatch, caplog, system) -> None:
    rounds = Rounds(monkeypatch, system=system, claim_timeout=3.0)
    rounds.daemon._caution()
    assert ("may be protected" in caplog.text) is system


# ---- descriptors ------------------------------------------------------------------------------------

FREE = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "raised"),
    [
        *[(1024, FREE, 65536), (1024, 4096, 4096), (1024, 10**6, 65536), (4096, 4096, None)],
        *[(FREE, FREE, None), (65536, 10**6, None), (10**5, 10**6, None)],
    ],
)
def test_the_limit_of_descriptors_is_raised_as_far_as_may_be(monkeypatch, soft, hard, raised) -> None:
    set_to: list[Any] = []
    fake = thing(
        RLIMIT_NOFILE=7,
        RLIM_INFINITY=FREE,
        getrlimit=lambda which: (soft, hard) if which == 7 else None,
        setrlimit=lambda which, limits: set_to.append((which, limits)),
    )
    monkeypatch.setattr(daemon_, "resource", fake)
    daemon_._raise_descriptor_limit()
    assert set_to == ([] if raised is None else [(7, (raised, hard))])

    def refused(*_: object) -> None:
        raise ValueError("not allowed")

    fake.setrlimit = refused
    daemon_._raise_descriptor_limit()  # then it goes on with what it has
