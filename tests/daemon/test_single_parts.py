"""Single parts of the daemon with all that they call made up: what they do where a driver, a database, a process or a
note is not as it should be."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from gpushare.quantity import MAX, NOTHING, Kind, Quantity
from gpushare.reclaim_steps import USUAL_STEPS
from gpushared.clients.clients import Client, Clients
from gpushared.core import instructions as do
from gpushared.core import persistence
from gpushared.core.events import THERE, HookAnswered, HookRunnerGone, SuspenderAnswered, SuspenderGone, TrimSeen
from gpushared.core.rules import Who
from gpushared.gpus.health_monitor import HealthMonitor
from gpushared.gpus.inventory import Sample
from gpushared.jobs import placements as placed
from gpushared.jobs.placements import Placement, Placements
from gpushared.jobs.registry import JobRegistry, JobState
from gpushared.limits import identities
from gpushared.limits.byte_budget import ByteBudget
from gpushared.limits.identities import Identities
from gpushared.runtime import driver_questions, recovery
from gpushared.runtime import suspenders as suspenders_
from gpushared.runtime.driver_questions import DriverQuestions
from gpushared.runtime.hook_runners import HookRunners
from gpushared.runtime.suspenders import Suspenders
from gpushared.system.systemd import Notifier

pytestmark = pytest.mark.usefixtures("quiet_loop")

# Numbers, not the daemon's own names for them: that they stay is a part of what is tested.
COUNTS_FOR = 10.0
TICKETS = 64

GPU = "GPU-1"
ADA, BOB = 70001, 70002


def thing(**fields: Any) -> Any:
    return SimpleNamespace(**fields)


# ---- systemd ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("abstract", [False, True])
def test_what_the_service_manager_hears(directory, abstract) -> None:
    name = f"@gpushare-test-{os.getpid()}" if abstract else str(directory / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + name[1:] if abstract else name)
        manager.settimeout(5)
        environment = {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "3000000", "HOME": "/"}
        notifier = Notifier(environment)
        assert environment == {"HOME": "/"}, "what the daemon starts tells the service manager nothing"
        assert notifier.watchdog_interval == 1.5, "half of the time that it allows"
        heard = []
        for tell in (
            lambda: notifier.ready("2 GPUs"),
            lambda: notifier.status("3 GPUs"),
            notifier.alive,
            lambda: notifier.reloading(12.5),
            notifier.stopping,
        ):
            tell()
            heard.append(manager.recv(1000).decode())
    assert heard == [
        *("READY=1\nSTATUS=2 GPUs", "STATUS=3 GPUs", "WATCHDOG=1"),
        *("RELOADING=1\nMONOTONIC_USEC=12500000", "STOPPING=1"),
    ]
    notifier.alive()  # nobody listens any more


@pytest.mark.parametrize(
    ("usec", "pid", "interval"),
    [
        *[("2000000", "", 1.0), ("2000000", str(os.getpid()), 1.0), ("2000000", "1", None)],
        *[("0", "", None), ("", "", None), ("soon", "", None), ("-5", "", None)],
    ],
    ids=["of all", "of this process", "of another", "0", "none", "no number", "below 0"],
)
def test_how_often_the_watchdog_wants_to_hear(usec, pid, interval) -> None:
    assert Notifier({"WATCHDOG_USEC": usec, "WATCHDOG_PID": pid}).watchdog_interval == interval
    Notifier({}).alive()


# ---- users ------------------------------------------------------------------------------------------


class Database:
    """Of accounts. It answers when it is let."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.answers = threading.Event()
        self.fails = False
        self.groups = frozenset({"vision"})

    def look_up(self, uid: int) -> Who:
        self.asked.append(uid)
        self.answers.wait(10)
        if self.fails:
            raise OSError("no server")
        return Who(uid, f"user{uid}", self.groups)


def with_identities(story: Any) -> None:
    async def run() -> None:
        database = Database()
        known = Identities(asyncio.get_running_loop(), database.look_up)
        try:
            await asyncio.wait_for(story(known, database), 10)
        finally:
            database.answers.set()
            known.close()

    asyncio.run(run())


def test_a_user_is_looked_up_once_however_many_wait() -> None:
    async def story(known: Identities, database: Database) -> None:
        called: list[str] = []
        waiting = [asyncio.ensure_future(known.get(ADA)) for _ in range(3)]
        known.when_known(ADA, lambda: called.append("later"))
        await asyncio.sleep(0.05)
        assert database.asked == [ADA] and not known.has(ADA) and called == []
        assert known.known(ADA) == Who(ADA, str(ADA)), "a name and no groups until then"
        database.answers.set()
        found = await asyncio.gather(*waiting)
        assert found == [Who(ADA, f"user{ADA}", frozenset({"vision"}))] * 3
        await asyncio.sleep(0)
        known.when_known(ADA, lambda: called.append("now"))
        assert called == ["later", "now"] and known.has(ADA) and database.asked == [ADA]

    with_identities(story)


def test_an_old_answer_is_used_and_renewed(monkeypatch) -> None:
    async def story(known: Identities, database: Database) -> None:
        database.answers.set()
        await known.get(ADA)
        assert known.known(ADA).groups and database.asked == [ADA], "it is fresh"
        monkeypatch.setattr(identities, "FRESH", -1.0)
        database.groups = frozenset({"speech"})
        assert known.known(ADA).groups == {"vision"}
        while known._asked:  # noqa: ASYNC110  (a part of its own has no event)
            await asyncio.sleep(0.01)
        monkeypatch.setattr(identities, "FRESH", 300.0)
        assert known.known(ADA).groups == {"speech"} and database.asked == [ADA, ADA]

    with_identities(story)


def test_what_was_on_its_way_when_the_settings_were_read_again_is_not_used() -> None:
    async def story(known: Identities, database: Database) -> None:
        first = known._ask(ADA)
        known.forget()
        database.answers.set()
        await first
        await asyncio.sleep(0)
        assert not known.has(ADA)
        known.forget()
        await known.get(ADA)
        assert database.asked == [ADA, ADA] and known.has(ADA)
        known.forget()
        assert not known.has(ADA)

    with_identities(story)


def test_an_answer_from_before_is_not_taken_for_the_one_that_is_awaited() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        asked: list[asyncio.Future[Who]] = []
        failed: list[Any] = []
        loop.set_exception_handler(lambda _, context: failed.append(context))
        known = Identities(loop, lambda uid: Who(uid, "x"))
        known._loop = thing(run_in_executor=lambda *_: asked.append(loop.create_future()) or asked[-1])
        known._ask(ADA)
        known.forget()
        known._ask(ADA)
        asked[0].set_result(Who(ADA, "ada", frozenset({"before"})))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not known.has(ADA) and known._ask(ADA) is asked[1], "it is still awaited"
        asked[1].set_result(Who(ADA, "ada", frozenset({"after"})))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert known.known(ADA).groups == {"after"} and len(asked) == 2 and failed == []
        known.close()

    asyncio.run(story())


def test_a_database_that_fails_leaves_what_was_known(caplog) -> None:
    async def story(known: Identities, database: Database) -> None:
        database.answers.set()
        await known.get(ADA)
        database.fails = True
        assert await known.get(BOB) == Who(BOB, str(BOB)) and known.has(BOB)
        with pytest.raises(OSError, match="no server"):  # who has asked hears it, and it is noted first
            await known._ask(ADA)
        await asyncio.sleep(0)
        assert known.known(ADA).groups == {"vision"}
        assert caplog.text.count("the groups of a user cannot be looked up") == 2

    with_identities(story)


def test_so_many_answers_are_kept_and_the_oldest_go(monkeypatch) -> None:
    async def story(known: Identities, database: Database) -> None:
        monkeypatch.setattr(identities, "KEPT", 3)
        database.answers.set()
        for uid in (1, 2, 3, 1):
            await known.get(uid)
        await known._ask(1)  # renewed
        await known.get(4)
        assert [uid for uid in range(1, 5) if known.has(uid)] == [1, 3, 4]

    with_identities(story)


# ---- placements -------------------------------------------------------------------------------------


def test_a_program_is_in_the_placement_of_its_session_or_an_ancestors(monkeypatch) -> None:
    """pid -> parent and session. A number that another process has now is none."""
    family = {50: (40, 50), 40: (30, 30), 30: (20, 30), 20: (1, 20), 60: (1, 60), 70: (999, 70), 80: (70, 80)}
    looked: list[int] = []

    def parent_and_session(pid: int) -> tuple[int, int] | None:
        looked.append(pid)
        return family.get(pid)

    starts = {30: 300, 60: 600, 20: 999}
    monkeypatch.setattr(placed, "parent_and_session", parent_and_session)
    monkeypatch.setattr(placed, "start_time", starts.get)
    monkeypatch.setattr(placed, "cgroups_of", lambda pid: [])
    placements = Placements()
    assert placements.of_process(50) is None and looked == []
    placements.put(Placement("none", 1, "n", ("/a",)))
    assert placements.of_process(50) is None and looked == [], "it has no session"
    placements.put(Placement("a", 1, "ja", (), ((30, 300),)))
    placements.put(Placement("b", 1, "jb", (), ((60, 600), (20, 200))))
    found = {pid: one.id if (one := placements.of_process(pid)) else None for pid in (50, 40, 30, 20, 60, 70, 80, 5)}
    assert found == {50: "a", 40: "a", 30: "a", 20: None, 60: "b", 70: None, 80: None, 5: None}
    looked.clear()
    assert placements.of_process(20) is None and looked == [20], "the first process has no parent to look at"
    long = {pid: (pid + 1, pid) for pid in range(1000, 2000)}
    family.update(long)
    starts[1000 + 64] = starts[999 + 64] = 1
    placements.put(Placement("far", 1, "jf", (), ((1000 + 64, 1),)))
    assert placements.of_process(1000) is None
    placements.put(Placement("far", 1, "jf", (), ((999 + 64, 1),)))
    assert placements.of_process(1000).id == "far"


# ---- what an earlier daemon left --------------------------------------------------------------------


def spec(**more: Any) -> Any:
    return thing(uid=ADA, user="ada", name="train", request=NOTHING, limit=MAX, **more)


class Left:
    """What is outside a core, and what was found. Processes are their pids."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *living: int) -> None:
        monkeypatch.setattr("gpushared.jobs.registry.bytes_of", lambda _: 10)
        monkeypatch.setattr(recovery, "_find", lambda identity: thing(pid=identity) if identity in living else None)
        monkeypatch.setattr(JobRegistry, "set_wrapper", lambda _, record, process: setattr(record, "wrapper", process))
        self.odd: list[str] = []
        self.ended: list[str] = []
        self.withdrawn: list[str] = []
        self.registry = JobRegistry(thing(), ByteBudget(lambda uid: False))
        self.outside: Any = thing(
            jobs=thing(
                registry=self.registry,
                placements=Placements(),
                end=lambda record: self.ended.append(record.id),
                withdraw=lambda record: self.withdrawn.append(record.id),
            ),
            gpus=thing(by_bytes={}),
        )
        self.found: Any = thing(same_clock=True, odd=lambda what, why: self.odd.append(f"{what}: {why}"))

    def open(self, identity: dict[str, Any], *, is_open: bool = True, has_pages: bool = False) -> Any:
        job: Any = thing(job="00000000000000ff", spec=spec(), open=is_open)
        recovery._open_running(self.outside, job, identity, self.found, has_pages=has_pages)
        return self.registry.get(job.job)


PLACED = {"id": "task", "attempt": 3, "cgroups": ["/task"], "sessions": []}
WHO_LIVES = [
    # open, identity, has pages -> its wrapper, its program; None: the job is not there any more
    (True, {"wrapper": 1, "main": 2}, False, (1, 2)),
    (True, {"wrapper": 1}, True, (1, None)),
    (True, {"wrapper": 9, "main": 2}, False, (2, 2)),
    (True, {"wrapper": 9, "main": 9}, True, (None, None)),
    (True, {"wrapper": 9, "main": 9}, False, None),
    (True, {}, True, (None, None)),
    (False, {"wrapper": 1, "main": 2}, True, (None, 2)),
    (False, {"wrapper": 1, "main": 2}, False, None),
    (True, {"wrapper": 1, "placement": PLACED}, False, (None, None)),
    (True, {"placement": PLACED}, True, (None, None)),
    (False, {"placement": PLACED}, True, (None, None)),
    (False, {"placement": PLACED}, False, None),
]


@pytest.mark.parametrize(("is_open", "identity", "has_pages", "held"), WHO_LIVES)
def test_which_jobs_of_an_earlier_daemon_are_still_there(monkeypatch, is_open, identity, has_pages, held) -> None:
    left = Left(monkeypatch, 1, 2)
    record = left.open(identity, is_open=is_open, has_pages=has_pages)
    placement = left.outside.jobs.placements.get("task")
    if held is None:
        assert record is None and placement is None
        return
    assert record.state is JobState.RUNNING and record.over is not is_open
    assert tuple(one and one.pid for one in (record.wrapper, record.main)) == held
    assert (placement is None) is ("placement" not in identity)
    if placement is not None:
        assert (placement.attempt, placement.leaving, placement.job) == (3, not is_open, record.id)
    assert left.odd == []


def test_a_note_of_a_placement_that_is_none_is_left_out_and_said(monkeypatch) -> None:
    left = Left(monkeypatch, 1)
    assert left.open({"wrapper": 1, "placement": {"id": 5}}).wrapper.pid == 1
    assert left.odd == ["placement of job 00000000000000ff: no placement"]
    assert left.outside.jobs.placements.get("task") is None


@pytest.mark.parametrize(
    ("same_clock", "identity", "ago"),
    [
        # by the core's clock, and by the system's
        (True, {"started": -100, "began": -40}, (40, 100)),
        (False, {"started": -100, "began": -40}, (100, 100)),
        (True, {"started": -100}, (100, 100)),
        (True, {"started": 500, "began": 500}, (0, 0)),
        (True, {"began": -40}, (0, 0)),
        (True, {"started": "x", "began": -40}, (0, 0)),
    ],
)
def test_when_a_job_of_an_earlier_daemon_began(monkeypatch, same_clock, identity, ago) -> None:
    """Not in the future, whatever the note says."""
    left = Left(monkeypatch)
    left.found.same_clock = same_clock
    record = left.registry.open("ff", spec())
    began, started = record.began, record.started
    shift = {"started": started, "began": began}
    noted = {key: shift[key] + value if isinstance(value, int) else value for key, value in identity.items()}
    recovery._set_beginning(record, noted, left.found)
    assert (began - record.began, started - record.started) == pytest.approx(ago, abs=0.01)


def test_until_when_a_queued_job_waits() -> None:
    found: Any = thing(same_clock=True)
    assert recovery._until({"until": 12.5, "patience": 7}, found) == 12.5
    for note, clock in (({"until": 12.5, "patience": time.time() + 60}, False), ({"patience": time.time() + 60}, True)):
        assert recovery._until(note, thing(same_clock=clock)) == pytest.approx(time.monotonic() + 60, abs=0.5)
    with pytest.raises(persistence.OddNote):
        recovery._until({}, found)


@pytest.mark.parametrize(
    ("meanwhile", "ended", "withdrawn"),
    [("nothing", [], ["ff"]), ("admitted", ["ff"], []), ("asked for", [], [])],
)
def test_a_queued_job_that_nobody_asks_for_again_goes(monkeypatch, meanwhile, ended, withdrawn) -> None:
    monkeypatch.setattr(recovery, "ASKS_AGAIN_WITHIN", 0.02)
    monkeypatch.setattr(persistence, "spec_from_note", lambda _: spec())

    async def story() -> Left:
        left = Left(monkeypatch, 1)
        recovery._open_queued(left.outside, "ff", {"wrapper": 9, "queued": {"until": 5.0}}, left.found)
        assert left.registry.get("ff") is None, "its wrapper has gone"
        recovery._open_queued(left.outside, "ff", {"wrapper": 1, "queued": {"until": 5.0}}, left.found)
        record = left.registry.get("ff")
        assert record is not None and record.state is JobState.QUEUED
        assert (record.patience, record.wrapper.pid, record.is_asked_for) == (5.0, 1, True)
        if meanwhile == "admitted":
            record.become(JobState.RUNNING)
        elif meanwhile == "asked for":
            record.admission = asyncio.get_running_loop().create_future()
        await asyncio.sleep(0.1)
        return left

    left = asyncio.run(story())
    assert (left.ended, left.withdrawn) == (ended, withdrawn)


def page_of(job: int, **more: Any) -> Any:
    closed: list[bool] = []
    header = thing(job_id=job, uid=ADA, job_name="", priority=4, grace_ms=2500)
    lines = [(GPU, thing(request=5, limit=9)), ("GPU-2", thing(request=7, limit=8))]
    return thing(
        id=1,
        header=header,
        closed=closed,
        close=lambda *, remove: closed.append(remove),
        take_lines=lambda _: lines,
        account=None,
        **more,
    )


def test_a_page_that_names_no_job_is_closed_and_stays(monkeypatch) -> None:
    left, page = Left(monkeypatch), page_of(0)
    adopted: list[Any] = []
    assert recovery.take_in(left.outside, adopted.append, page, thing(pid=os.getpid())) is None
    assert page.closed == [False] and adopted == [] and list(left.registry.all()) == []


def test_a_job_that_only_a_page_tells_of(monkeypatch) -> None:
    monkeypatch.setattr(recovery, "command_of", lambda pid: f"program {pid}")
    monkeypatch.setattr(recovery, "user_name", lambda uid: f"user {uid}")
    left, page = Left(monkeypatch), page_of(0xAB)
    adopted: list[Client] = []
    client = recovery.take_in(left.outside, adopted.append, page, thing(pid=77))
    record = left.registry.get("00000000000000ab")
    assert adopted == [client] and record is not None and record.state is JobState.RUNNING and page.closed == []
    assert client is not None and (client.job, client.uid, client.command) == (record.id, ADA, "program 77")
    told = record.spec
    assert (told.name, told.user, told.priority, told.grace) == ("program 77", f"user {ADA}", 4, 2.5)
    assert (told.request, told.limit) == (Quantity.plain(Kind.BYTES, 7), Quantity.plain(Kind.BYTES, 9)), "the largest"
    assert (told.on_reclaim, told.min_run_time, told.gpus) == (USUAL_STEPS, 0.0, 0)
    again = recovery.take_in(left.outside, adopted.append, page, thing(pid=78))
    assert again is not None and again.job == record.id and left.registry.get(record.id) is record, "one job, two pages"
    empty = page_of(0xCD)
    empty.header.job_name, empty.header.grace_ms, empty.take_lines = "mine", 0, lambda _: []
    recovery.take_in(left.outside, adopted.append, empty, thing(pid=79))
    other = left.registry.get("00000000000000cd")
    assert other is not None and (other.spec.request, other.spec.limit) == (NOTHING, MAX)
    assert (other.spec.name, other.spec.grace) == ("mine", None)


# ---- clients ----------------------------------------------------------------------------------------


def test_clients_by_page_process_and_job() -> None:
    clients = Clients()
    made = [
        Client(thing(id=number), thing(pid=100 + number // 2), "ab"[number % 2], ADA) for number in range(4)
    ]  # two processes with two pages each, two jobs
    for one in made:
        clients.add(one)
    assert len(clients) == 4 and list(clients) == made and clients.get(2) is made[2] and clients.get(9) is None
    assert clients.of_pid(100) == made[:2] and clients.of_pid(7) == [] and clients.of_job("a") == [made[0], made[2]]
    clients.remove(made[0])
    clients.remove(made[0])
    assert clients.has_job("a") and clients.of_pid(100) == [made[1]] and len(clients) == 3
    clients.remove(made[2])
    assert not clients.has_job("a") and clients.has_job("b") and clients.of_job("a") == []
    clients.remove(made[1])
    assert clients.of_pid(100) == [] and list(clients) == [made[3]]


def test_waits_are_remembered_for_the_latest_allocations() -> None:
    client = Client(thing(id=1), thing(pid=1), "a", ADA)
    client.remember_wait(0, 5.0)
    assert not client.waits, "0 is no ticket"
    for ticket in range(1, TICKETS + 2):
        client.remember_wait(ticket, ticket / 10)
    assert list(client.waits) == list(range(2, TICKETS + 2)) and client.waits[3] == 0.3


# ---- questions to the driver ------------------------------------------------------------------------


class Asking:
    """A core with one GPU, on which job `a` has processes 1 and 2 and job `b` process 3."""

    def __init__(self, answers: Any) -> None:
        def share(job: str, process: int) -> Any:
            return thing(job=job, process=process, overhead=10, used=process, parked=None)

        shares = {process: share("ab"[process // 3], process) for process in (1, 2, 3)}
        core = thing(
            gpus={GPU: thing(shares=shares)},
            processes={process: thing(pid=100 + process) for process in shares},
            jobs={name: thing(spec=thing(observe=name == "o")) for name in "abo"},
            guessed=lambda share: {2: 4, 3: 1}.get(share.process, 0),
        )
        self.fed: list[Any] = []
        self.peaks: dict[str, int] = {}
        self.computed: list[tuple[str, str, float, float]] = []
        self.silent: list[str] = []
        self.stamps = {1: (50, 1), 2: (60, 1), 3: (70, 1)}
        self.unmet = {1: {GPU: 2}}
        gpus = thing(sample=answers, named=lambda gpu, sample, used: sample, note=lambda found: found)
        credit = thing(
            stamps=lambda shares, gpu: dict(self.stamps),
            contexts=lambda shares, gpu: dict.fromkeys(shares, 1),
            take_unmet=lambda process: self.unmet.pop(process, {}),
            peak=lambda share: 1000 + share.process,
        )
        registry = thing(
            note_peak=lambda job, gpu, amount: self.peaks.__setitem__(job, amount),
            note_computing=lambda *noted: self.computed.append(noted),
        )
        loop_: Any = thing(core=core, feed=self.fed.append)
        self.questions = DriverQuestions(
            loop_,
            gpus,  # type: ignore[arg-type]
            credit,  # type: ignore[arg-type]
            thing(),
            registry,  # type: ignore[arg-type]
            placed=thing(),
        )
        self.questions._unhooked_finder = thing(among=lambda *_: {})
        self.questions.on_silence = self.silent.append
        self.core = core

    async def sampled(self) -> list[Any]:
        self.fed.clear()
        self.questions.sample_soon(GPU)
        for _ in range(200):
            if not self.questions._sampling:
                break
            await asyncio.sleep(0.005)
        return list(self.fed)


def run(story: Any) -> None:
    asyncio.run(asyncio.wait_for(story(), 10))


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("0::/user.slice/job:7\n", ["/user.slice/job:7"]),
        ("12:cpu,cpuacct:/a\n1:name=systemd:/b\n", ["/a", "/b"]),
        ("no line\n0:\n", []),
        (None, []),
    ],
)
def test_the_cgroups_of_a_process(tmp_path, monkeypatch, text, paths) -> None:
    if text is not None:
        (tmp_path / "cgroup").write_text(text)
    monkeypatch.setattr(placed, "Path", lambda path: tmp_path / str(path).rpartition("/")[2])
    assert placed.cgroups_of(5) == paths


def test_a_sample_tells_of_steady_processes_and_of_failed_calls(monkeypatch) -> None:
    monkeypatch.setattr(driver_questions, "stands_still", lambda pid: pid == 103)

    async def story() -> None:
        asking: Asking

        def answer(gpu: str) -> Sample:
            asking.stamps[2] = (60, 2)  # it has freed something and taken it again meanwhile
            return Sample(500, {101: 60, 102: 70, 103: 79})

        asking = Asking(answer)
        unmet, sample = await asking.sampled()
        assert (unmet.process, unmet.gpu, unmet.count) == (1, GPU, 2)
        assert (sample.gpu, sample.used, sample.by_pid) == (GPU, 500, {101: 60, 102: 70, 103: 79})
        assert sample.steady == {1: 50}, "3 stands still, and the driver shows less than it is charged"
        assert sample.contexts == {1: 1, 2: 1, 3: 1}, "as it was when NVML was asked"
        assert asking.peaks == {"a": 10 + 50 + 6 + 60, "b": 1002}, "not what is only guessed"
        asking.stamps[2] = (60, 2)
        assert (await asking.sampled())[0].steady == {1: 50, 2: 60}
        asking.questions._gpus.sample = lambda gpu: Sample(500, {101: 60, 102: 70, 103: 80})  # type: ignore[method-assign]
        assert (await asking.sampled())[0].steady == {1: 50, 2: 60, 3: 70}, "as much as it is charged"
        asking.questions._gpus.sample = lambda gpu: Sample(500, None)  # type: ignore[method-assign]
        assert (await asking.sampled())[0].steady == {1: 50, 2: 60}

    run(story)


def test_a_driver_that_fails_or_knows_nothing_is_no_sample(caplog) -> None:
    async def story() -> None:
        asking = Asking(lambda gpu: None)
        (none,) = await asking.sampled()
        assert (none.used, none.by_pid, none.steady, asking.silent) == (None, None, {}, [GPU])

        def fails(gpu: str) -> None:
            raise OSError("no driver")

        asking.questions._gpus.sample = fails  # type: ignore[method-assign]
        assert await asking.sampled() == [] and caplog.text.count("sampling failed") == 1
        asking.questions._gpus.sample = lambda gpu: None  # type: ignore[method-assign]
        assert len(await asking.sampled()) == 1, "it is asked again"
        asking.core.gpus.clear()
        assert await asking.sampled() == [], "a GPU that is not there is not asked for"

    run(story)


def test_a_driver_that_hangs_is_gone_on_without(monkeypatch, caplog) -> None:
    monkeypatch.setattr(driver_questions, "SILENT_AFTER", 0.05)

    async def story() -> None:
        answers, asked = threading.Event(), []

        def slow(gpu: str) -> None:
            asked.append(gpu)
            answers.wait(5)

        asking = Asking(slow)
        asking.questions.sample_soon(GPU)
        asking.questions.sample_soon(GPU)
        assert asking.fed == []
        await asyncio.sleep(0.2)
        assert len(asking.fed) == 1 and asking.fed[0].used is None and asked == [GPU]
        assert caplog.text.count("the driver does not answer") == 1
        asking.questions.sample_soon(GPU)
        assert len(asking.fed) == 2 and asked == [GPU], "a claim does not wait for it"
        answers.set()
        while asking.questions._sampling:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        asking.fed.clear()
        asking.questions.sample_soon(GPU)
        assert asking.fed == [], "it has answered: it is waited for again"
        await asyncio.sleep(0.02)

    run(story)


def test_a_sample_that_nobody_will_give_any_more_ends_in_silence(caplog) -> None:
    """The daemon ends while a question waits behind another."""

    async def story() -> None:
        hangs, failed = threading.Event(), []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: failed.append(context))
        asking = Asking(lambda gpu: None)
        asking.questions.thread.ask(lambda: hangs.wait(5))
        await asyncio.sleep(0.05)
        asking.questions.sample_soon(GPU)
        asking.questions.thread.close()
        await asyncio.sleep(0.05)
        assert failed == [] and asking.fed == [] and caplog.records == []
        hangs.set()

    run(story)


def test_gpu_time_is_of_the_jobs_that_compute() -> None:
    async def story() -> None:
        asking = Asking(lambda gpu: None)
        note = asking.questions._note_computing
        note(GPU, {}, {101: 0.5, 102: 0.75, 103: 0.25, 999: 1.0}, 100.0)
        assert asking.computed == [("a", GPU, 1.0, 0.0), ("b", GPU, 0.25, 0.0)], "no time before the first sample"
        asking.computed.clear()
        unhooked: Any = {201: thing(job="b"), 202: thing(job="o"), 203: thing(job="o")}
        note(GPU, unhooked, {101: 0.25, 201: 0.5, 202: 0.125}, 103.0)
        assert asking.computed == [("a", GPU, 0.25, 3.0), ("b", GPU, 0.5, 3.0), ("o", GPU, 0.125, 3.0)]
        asking.computed.clear()
        note(GPU, {}, None, 104.0)
        assert asking.computed == [], "the driver does not tell"
        note(GPU, {}, {103: 1.0}, 105.0)
        note(GPU, {}, {}, 105.0 + COUNTS_FOR + 7)
        note(GPU, {}, {}, 50.0)
        assert [seconds for *_, seconds in asking.computed] == [1.0, 1.0, COUNTS_FOR, COUNTS_FOR, 0.0, 0.0]

    run(story)


def test_the_peak_of_a_job_that_is_only_observed_is_what_samples_show() -> None:
    async def story() -> None:
        asking = Asking(lambda gpu: None)
        unhooked: Any = {201: thing(job="o"), 202: thing(job="o"), 203: thing(job="a"), 204: thing(job="o")}
        asking.questions._note_observed(GPU, unhooked, {201: 5, 202: 7, 203: 100})
        assert asking.peaks == {"o": 12}

    run(story)


@pytest.mark.parametrize("how", ["answers", "fails", "hangs"])
def test_gpus_are_looked_for_and_the_program_goes_on_once(monkeypatch, how) -> None:
    monkeypatch.setattr(driver_questions, "SILENT_AFTER", 0.1)
    info = thing(uuid="GPU-9", index=3, name="Test", total=7, reserved=1)

    async def story() -> None:
        asking, went = Asking(lambda gpu: None), []
        free = threading.Event()

        def listed() -> list[Any]:
            if how == "fails":
                raise OSError("no driver")
            if how == "hangs":
                free.wait(5)
            return [info]

        asking.questions._gpus.driver = thing(list=listed)
        asking.questions.look_for_gpus(lambda: went.append(len(asking.fed)))
        await asyncio.sleep(0.05)
        assert went == ([] if how == "hangs" else [1 if how == "answers" else 0])
        await asyncio.sleep(0.15)
        assert went == [1 if how == "answers" else 0], "once, at the latest after a while"
        free.set()
        await asyncio.sleep(0.05)
        assert len(asking.fed) == (0 if how == "fails" else 1) and len(went) == 1, (
            "a late answer is of use all the same"
        )
        if how != "fails":
            told = asking.fed[0]
            assert (told.gpu, told.index, told.name, told.total, told.reserved) == ("GPU-9", 3, "Test", 7, 1)

    run(story)


# ---- suspenders and runners of hooks ----------------------------------------------------------------


class Followed:
    """A core with job `a` of processes 1 and 2, job `b` of process 3, and what its followers and gates are told."""

    def __init__(self) -> None:
        self.fed: list[Any] = []
        self.gates: list[tuple[int, bool]] = []
        self.notes = 0
        self.clients = Clients()
        for number, job in ((1, "a"), (2, "a"), (3, "b")):
            gpus = [GPU] if number != 2 else []  # 2 has opened none
            self.clients.add(Client(thing(id=number, gpus=gpus), thing(pid=100 + number), job, ADA))  # type: ignore[arg-type]
        self.core_loop: Any = thing(core=thing(suspended_jobs=["b"]), feed=self.fed.append)
        self.asked: list[int] = []
        self.credit: Any = thing(
            turn_gate=lambda process, *, closed: self.gates.append((process, closed)),
            ask_quiet=lambda process, within: self.asked.append(process),
            trims_of=lambda processes: {process: self.quiet for process in processes if process in self.credit.pages},
            pages={1, 2},
        )
        self.quiet = TrimSeen(begun=True, done=True)
        """How far the processes are with the last trim, or with being quiet."""

    def note(self) -> None:
        self.notes += 1

    def suspenders(self) -> Suspenders:
        return Suspenders(self.core_loop, self.credit, self.clients, thing(), self.note)

    def runners(self) -> HookRunners:
        return HookRunners(self.core_loop, thing(), self.note)


def process(pid: int) -> Any:
    one = thing(pid=pid, closed=0, ended=None)
    one.watch = lambda epoll, ended: setattr(one, "ended", ended)
    one.close = lambda: setattr(one, "closed", one.closed + 1)
    return one


def heard_by(one: Any) -> list[Any]:
    async def read() -> list[Any]:
        return list((await one.commands.take(0.01)).items)

    return asyncio.run(read())


def test_a_suspender_is_told_what_to_do_with_which_processes() -> None:
    stage = Followed()
    suspenders = stage.suspenders()
    effects = suspenders.effects()
    effects[do.Suspend](do.Suspend("a", 7, (1, 2, 99), 512, 1.5))
    assert stage.gates == [(1, True), (2, True), (99, True)], "also where no suspender is there: the deadline decides"
    assert stage.asked == [1, 2, 99]
    one = suspenders.come("a", process(500))
    assert heard_by(one) == [{"command": "report", "number": 0, "pids": [101], "within": 0.0, "bytes": 0}]
    effects[do.Suspend](do.Suspend("a", 7, (1, 2, 99), 512, 1.5))
    (heard,) = heard_by(one)
    assert 1.4 < heard.pop("within") <= 1.5, "less what it took until they were quiet"
    assert heard == {"command": "suspend", "number": 7, "pids": [101], "bytes": 512}
    assert stage.notes == 2
    effects[do.Resume](do.Resume("a", 8, (1,), 64, 2.5))
    assert heard_by(one) == [{"command": "resume", "number": 8, "pids": [101], "within": 2.5, "bytes": 64}]
    assert stage.notes == 3, "the next daemon has to know what is under way"
    stage.gates.clear()
    effects[do.OpenGate](do.OpenGate("a", (1, 2)))
    assert stage.gates == [(1, False), (2, False)]
    stage.gates.clear()
    suspenders.keep_gates()
    assert stage.gates == [(3, True)], "of what is suspended"
    stage.gates.clear()
    suspenders.open_gates()
    assert stage.gates == [(1, False), (2, False)], "of what is not"


def test_a_job_is_suspended_as_soon_as_its_programs_say_that_they_are_quiet() -> None:
    async def story() -> None:
        stage = Followed()
        stage.quiet = TrimSeen(begun=True, done=False)
        suspenders = stage.suspenders()
        one = suspenders.come("a", process(500))
        suspenders.effects()[do.Suspend](do.Suspend("a", 7, (1, 2), 512, 5.0))
        stage.quiet = TrimSeen(begun=True, done=True)
        suspenders.trimmed("b")
        assert len(one.commands) == 1
        suspenders.trimmed("a")
        assert [item["command"] for item in (await one.commands.take(1.0)).items] == ["report", "suspend"]

    run(story)


def test_a_core_that_is_new_has_each_follower_asked_where_it_stands() -> None:
    """The core that failed may have told it something that it has not heard."""
    stage = Followed()
    suspenders = stage.suspenders()
    suspenders.ask_again("a")
    one = suspenders.come("a", process(500))
    (first,) = heard_by(one)
    suspenders.ask_again("a")
    suspenders.ask_again("b")
    assert heard_by(one) == [first] and first["command"] == "report"


def test_the_memory_of_programs_that_are_not_quiet_stays() -> None:
    async def ask(quiet: TrimSeen, pages: set[int], then: Any = None) -> tuple[Followed, list[Any]]:
        stage = Followed()
        stage.quiet, stage.credit.pages = quiet, pages
        suspenders = stage.suspenders()
        one = suspenders.come("a", process(500))
        suspenders.effects()[do.Suspend](do.Suspend("a", 7, (1, 2), 512, 0.2))
        if then is not None:
            then(stage, suspenders)
        await asyncio.sleep(0.15)
        return stage, list((await one.commands.take(0.01)).items)[1:]

    done, busy = TrimSeen(begun=True, done=True), TrimSeen(begun=True, done=False)
    stage, heard = asyncio.run(ask(busy, {1, 2}))
    said = SuspenderAnswered("a", 7, "running", "a call of its program waits for the GPU")
    assert stage.fed == [said] and heard == [] and stage.gates[-2:] == [(1, False), (2, False)]

    stage, heard = asyncio.run(ask(done, set()))
    assert stage.fed == [] and heard[0]["command"] == "suspend", "those that have ended hold nobody up"

    def becomes_quiet(stage: Followed, suspenders: Suspenders) -> None:
        stage.quiet = done
        suspenders.trimmed("a")

    stage, heard = asyncio.run(ask(busy, {1, 2}, becomes_quiet))
    assert stage.fed == [] and heard[0]["command"] == "suspend"

    for drop in (
        lambda stage, suspenders: suspenders.effects()[do.OpenGate](do.OpenGate("a", (1, 2))),
        lambda stage, suspenders: suspenders.ask_again("a"),
        lambda stage, suspenders: suspenders.answered("a", 500, SuspenderAnswered("a", 0, "running", "")),
        lambda stage, suspenders: suspenders.close(),
    ):
        stage, heard = asyncio.run(ask(busy, {1, 2}, drop))
        assert not any(one["command"] == "suspend" for one in heard)
        assert said not in stage.fed, "it is not wanted any more"


def test_one_that_cannot_hold_its_calls_back_is_not_suspended() -> None:
    stage = Followed()
    stage.credit.trims_of = lambda processes: {}
    stage.suspenders().effects()[do.Suspend](do.Suspend("a", 7, (1, 2), 512, 1.5))
    (answer,) = stage.fed
    assert (answer.number, answer.where) == (7, "running") and "cannot hold back its calls" in answer.problem


def test_what_a_suspender_says() -> None:
    stage = Followed()
    suspenders = stage.suspenders()
    said = SuspenderAnswered("a", 0, "running", "")
    assert not suspenders.answered("a", 500, said) and suspenders.known("a") is None and stage.fed == []
    suspenders.come("a", process(500))
    assert not suspenders.answered("a", 501, said) and stage.fed == [], "another process"
    assert suspenders.answered("a", 500, said) and stage.fed == [said]
    assert stage.gates == [(1, False), (2, False)], "its processes run: nothing waits any more"
    assert suspenders.known("a") == SuspenderAnswered("a", 0, "unknown", "")
    stage.gates.clear()
    later = SuspenderAnswered("a", 7, "suspended", "slow")
    assert suspenders.answered("a", 500, later) and stage.fed == [said, later] and stage.gates == []
    assert suspenders.known("a") == SuspenderAnswered("a", 0, "unknown", ""), "what it said when it came"


def test_followers_come_are_replaced_and_go() -> None:
    stage = Followed()
    suspenders = stage.suspenders()
    first, second, other = process(500), process(501), process(502)
    one = suspenders.come("a", first)
    assert len(suspenders) == 1 and suspenders.of("a", 500) is one and suspenders.of("a", 501) is None
    two = suspenders.come("a", second)
    assert first.closed == 1 and suspenders.of("a", 501) is two and len(suspenders) == 1
    first.ended()
    assert stage.fed == [] and suspenders.of("a", 501) is two, "the one before it is of no interest"
    second.ended()
    assert stage.fed == [SuspenderGone("a")] and len(suspenders) == 0 and second.closed == 1
    suspenders.come("b", other)
    suspenders.end_job("b")
    suspenders.end_job("b")
    assert other.closed == 1 and stage.fed == [SuspenderGone("a")] and suspenders.known("b") is None
    third = process(503)
    three = suspenders.come("a", third)
    suspenders.close()
    assert third.closed == 1 and len(suspenders) == 0

    async def rest() -> Any:
        return await three.commands.take(0.01)

    assert asyncio.run(rest()).items[0]["command"] == "report"


def test_a_runner_of_hooks(caplog) -> None:
    stage = Followed()
    runners = stage.runners()
    answer = HookAnswered("a", 0, "", 3.0, wakes=True)
    assert not runners.answered(500, answer)
    one = runners.come("a", process(500))
    assert heard_by(one) == [{"command": "report", "number": 0, "gpu": "", "bytes": 0, "within": 0.0}]
    assert not runners.answered(501, answer) and stage.fed == []
    assert runners.answered(500, answer) and stage.fed == [answer]
    known: Any = runners.known("a")
    assert (known.number, known.problem, known.seconds, known.wakes) == (THERE, "", 0.0, True)
    late = HookAnswered("a", 4, "it failed", 2.0, wakes=False)
    assert runners.answered(500, late) and stage.fed == [answer, late]
    known = runners.known("a")
    assert (known.number, known.problem, known.seconds, known.wakes) == (THERE, "", 0.0, False)
    caplog.set_level("INFO")
    runners.effects()[do.CallHook](do.CallHook("a", 5, "relief", GPU, 4096, 1.25))
    (said,) = [one.facts for one in caplog.records if one.getMessage() == "hook"]
    assert said == {"job": "a", "hook": "relief", "bytes": 4096, "seconds": 1.2}
    assert heard_by(one) == [{"command": "relief", "number": 5, "gpu": GPU, "bytes": 4096, "within": 1.25}]
    assert stage.notes == 1
    runners.gone(one)
    assert stage.fed[-1] == HookRunnerGone("a")


@pytest.mark.parametrize(
    ("text", "available"),
    [
        ("MemTotal:  2000 kB\nMemFree: 1 kB\nMemAvailable:  500 kB\n", 400 * 1024),
        ("MemTotal:  2000 kB\nMemAvailable:  50 kB\n", 0),
        *[("MemTotal:  2000 kB\n", None), ("no memory\n", None), ("MemTotal: x kB\nMemAvailable: 1 kB\n", None)],
        *[("", None), ("MemTotal:\nMemAvailable:\n", None), (None, None)],
    ],
)
def test_how_much_a_host_can_take(tmp_path, monkeypatch, text, available) -> None:
    monkeypatch.setattr(suspenders_, "MEMINFO", tmp_path / "meminfo")
    if text is not None:
        (tmp_path / "meminfo").write_text(text)
    suspenders = Followed().suspenders()
    assert suspenders.host_available() is None, "no job can be suspended"
    suspenders.come("a", process(500))
    assert suspenders.host_available() == available
    (tmp_path / "meminfo").write_text("MemTotal: 100 kB\nMemAvailable: 100 kB\n")
    assert suspenders.host_available() == available, "a reading is used again for a moment"
    monkeypatch.setattr(suspenders_, "FRESH", -1.0)
    assert suspenders.host_available() == 95 * 1024


# ---- the health of GPUs -----------------------------------------------------------------------------


class Ward:
    """A health monitor of two GPUs, whose driver answers when it is let, and does not listen for reports."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.fed: list[Any] = []
        self.found: list[Any] = []
        self.asked: list[tuple[asyncio.Future[Any], Any]] = []
        self.core = thing(gpus={name: thing(health=thing(lost=False)) for name in ("x", "y")})
        driver: Any = thing(
            list=lambda: self.calls.append("list") or [thing(uuid="x"), thing(uuid="z")],
            examine=lambda gpu: (
                self.calls.append(gpu) or (None if gpu == "y" else thing(issues=(gpu,), recovered=False))
            ),
            reopen=lambda: self.calls.append("reopen"),
            wait_for_fault=lambda seconds: time.sleep(0.01),
        )
        self.monitor = HealthMonitor(
            thing(ask=self._ask), driver, lambda: self.core, self.fed.append, self.found.append
        )

    def _ask(self, question: Any) -> asyncio.Future[Any]:
        self.asked.append((asyncio.get_running_loop().create_future(), question))
        return self.asked[-1][0]

    async def answer(self, failure: Exception | None = None) -> list[Any]:
        """The oldest question; what the driver was asked for it."""
        future, question = self.asked.pop(0)
        self.calls.clear()
        if failure is None:
            future.set_result(question())
        else:
            future.set_exception(failure)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return list(self.calls)

    def examined(self) -> list[str]:
        seen = [event.gpu for event in self.fed]
        self.fed.clear()
        return seen


def test_gpus_are_examined_at_the_start_and_all_of_them_at_each_poll() -> None:
    async def story() -> None:
        ward = Ward()
        ward.monitor.start()
        ward.monitor.close()
        assert ward.calls == ["x", "y"] and ward.examined() == ["x"] and ward.found == [], "of y nothing is known"
        ward.monitor.poll()
        assert await ward.answer() == ["list", "x", "y", "z"] and ward.examined() == ["x", "z"] and len(ward.found) == 1
        ward.core.gpus["y"].health.lost = True
        ward.monitor.poll()
        assert await ward.answer() == ["reopen", "list", "x", "y", "z"]
        ward.monitor.suspect("y")
        assert await ward.answer() == ["y"], "one GPU needs neither a list nor a driver opened again"

    run(story)


def test_what_is_wanted_during_an_examination_comes_after_it(caplog) -> None:
    async def story() -> None:
        ward = Ward()
        ward.monitor.suspect("x")
        ward.monitor.suspect("y")
        ward.monitor.poll()
        assert len(ward.asked) == 1
        assert await ward.answer() == ["x"] and len(ward.asked) == 1
        assert await ward.answer() == ["x", "y"] and ward.asked == []
        ward.fed.clear()
        ward.monitor.suspect("x")
        assert await ward.answer(OSError("gone")) == [] and ward.fed == []
        assert caplog.text.count("the GPUs cannot be examined") == 1
        ward.monitor.suspect("x")
        assert await ward.answer() == ["x"], "it goes on"
        ward.monitor.suspect("x")
        ward.asked.pop()[0].cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        ward.monitor.suspect("x")
        assert len(ward.asked) == 1

    run(story)


def test_a_report_makes_an_examination_that_began_before_it_stale() -> None:
    async def story() -> None:
        ward = Ward()
        ward.monitor.poll()
        ward.monitor._heard(thing(gpus=("x",), xid=79))
        assert [(event.gpu, event.xid) for event in ward.fed] == [("x", 79)]
        ward.fed.clear()
        await ward.answer()
        assert ward.examined() == ["z"] and len(ward.asked) == 1, "x is looked at again"
        assert await ward.answer() == ["x"] and ward.examined() == ["x"] and ward.asked == []
        ward.monitor._heard(thing(gpus=("x", "y"), xid=None))
        assert ward.fed == [] and await ward.answer() == ["x"] and await ward.answer() == ["y"]

    run(story)
