"""How the daemon's parts are put together: who is told of what, in which order, and what is closed at the end."""

from __future__ import annotations

import socket
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from gpushare.reasons import Code, Reason
from gpushared.api import views
from gpushared.api.views import Views
from gpushared.core import instructions as do
from gpushared.core.events import JobSubmitted, ReservationAsked
from gpushared.jobs.placements import Placement, Placements
from gpushared.runtime import shell as shell_
from gpushared.runtime.asks import INTERNAL
from gpushared.runtime.shell import Shell
from gpushared.system.systemd import Notifier

ADA, BOB = 70001, 70002


def thing(**fields: Any) -> Any:
    return SimpleNamespace(**fields)


class Part:
    """A part of the daemon that notes what it is told."""

    def __init__(self, name: str, diary: list[str], **fields: Any) -> None:
        self.__dict__.update(fields)
        self._name, self._diary = name, diary

    def __getattr__(self, what: str) -> Any:
        if what.startswith("__"):
            raise AttributeError(what)

        def note(*arguments: Any) -> None:
            self._diary.append(" ".join([f"{self._name}.{what}", *map(str, arguments)]))

        return note


PARTS = ("core_loop", "commits", "processes", "registry", "epoll", "jobs", "records")


@pytest.fixture
def diary() -> list[str]:
    return []


@pytest.fixture
def shell(diary: list[str]) -> Any:
    one: Any = object.__new__(Shell)
    for name in PARTS:
        setattr(one, name, Part(name, diary))
    one.driver = thing(thread=Part("thread", diary))
    one._suspenders, one._hook_runners = Part("suspenders", diary), Part("runners", diary)
    one._credit_effects = Part("credit", diary)
    return one


def test_a_shell_that_closes_closes_all_its_parts(shell: Any, diary: list[str]) -> None:
    """The core first: nothing is decided any more. Then the notes are written, while all that they tell of is there."""
    shell.close()
    assert diary == [
        *("core_loop.close", "commits.close", "processes.close", "registry.close", "epoll.close", "thread.close"),
    ]


def test_all_streams_end_with_the_daemon(shell: Any, diary: list[str]) -> None:
    shell.end_streams()
    assert diary == ["suspenders.close", "runners.close", "records.end", "registry.end_streams"]


def test_a_trim_that_ended_is_told_to_claims_and_to_suspending(shell: Any, diary: list[str]) -> None:
    shell.trimmed(thing(job="j", __str__=lambda self: "client"))
    assert [one.split()[0] for one in diary] == ["credit.trimmed", "suspenders.trimmed"] and diary[1].endswith(" j")


def test_the_followers_of_a_job_end_with_it(shell: Any, diary: list[str]) -> None:
    shell._closed(do.JobClosed("j"))
    assert diary == ["suspenders.end_job j", "runners.end_job j", f"jobs.closed {do.JobClosed('j')}"]


def test_the_words_of_each_gpu_are_told(shell: Any, diary: list[str]) -> None:
    shell._credit_effects.used_seen = lambda gpu: f"words of {gpu}"
    shell.read_words(["a", "b"])
    assert diary == ["core_loop.feed words of a", "core_loop.feed words of b"]


def test_a_change_is_written_soon(shell: Any, diary: list[str]) -> None:
    shell._persist(do.Persist())
    assert diary == ["commits.soon"]


def test_gates_are_opened_after_a_restart_when_the_jobs_are_known(shell: Any, diary: list[str], monkeypatch) -> None:
    monkeypatch.setattr(shell_, "recover", lambda *_: diary.append("recovered"))
    monkeypatch.setattr(shell_, "FoundState", lambda path: f"found in {path}")
    shell._state_file, shell._outside = thing(path="x"), None
    shell.processes = thing(adopt=None)
    shell.recover(None)
    assert diary == ["recovered", "suspenders.open_gates"]


@pytest.mark.parametrize(
    ("failed", "told", "forgotten"),
    [
        (JobSubmitted("j", None), True, False),  # type: ignore[arg-type]
        (do.JobAdmitted("j", ()), True, False),
        (do.JobRefused("j", Reason(Code.NOT_FREE, "no")), True, False),
        (do.JobClosed("j"), False, False),
        (JobSubmitted("other", None), False, False),  # type: ignore[arg-type]
        (ReservationAsked("r", None), False, True),  # type: ignore[arg-type]
        (do.ReservationMade("r", ()), False, True),
    ],
    ids=["submission", "admission", "refusal", "end", "unknown", "reservation", "reserved"],
)
def test_who_hears_that_the_core_failed(shell: Any, failed: Any, told: bool, forgotten: bool) -> None:
    refusals: list[Any] = []
    gone: list[str] = []
    records = {"j": thing(resolve=refusals.append)}
    shell.registry = thing(get=records.get)
    shell.core_loop = thing(core=thing(forget_reservation=gone.append))
    shell._tell_caller(failed)
    assert refusals == ([INTERNAL] if told else []) and gone == (["r"] if forgotten else [])


# ---- what is shown of strangers ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("job", "observe", "uid", "reason"),
    [
        ("j", True, ADA, "observed"),
        ("j", False, ADA, "static"),
        ("j", True, BOB, "static"),
        ("none", True, ADA, "static"),
        (None, True, ADA, "static"),
    ],
)
@pytest.mark.parametrize(("sees_name", "sees_user"), [(True, True), (False, True), (False, False)])
def test_what_is_shown_of_a_foreign_process(monkeypatch, job, observe, uid, reason, sees_name, sees_user) -> None:
    asked: list[Any] = []

    def found(by_pid: Any, known: set[int]) -> list[dict[str, Any]]:
        asked.append((by_pid, known))
        return [{"pid": 9, "job": job, "uid": uid, "user": "ada", "command": "x", "reason": "static"}]

    monkeypatch.setattr(views, "foreign_processes", found)
    core = thing(
        processes={1: thing(pid=101), 2: thing(pid=102)},
        jobs={"j": thing(spec=thing(observe=observe, uid=ADA))},
    )
    shell = thing(core=core, gpus=thing(samples={"g": thing(by_pid={9: 5})}))
    shares = {1: thing(process=1), -7: thing(process=-7)}
    gpu: Any = thing(id="g", shares=shares, returning={3: thing(pid=103)})
    viewer: Any = thing(may_see=lambda uid: sees_name, sees_user=lambda uid: sees_user)
    (shown,) = Views(shell)._foreign_processes(gpu, viewer)
    assert asked == [({9: 5}, {101, 103})], "its own programs, and those whose memory comes back, are no strangers"
    assert (shown["reason"], shown["command"]) == (reason, "x" if sees_name else "-")
    assert (shown["user"], shown["uid"]) == (("ada", uid) if sees_user else ("-", -1))
    shell.gpus.samples.clear()
    Views(shell)._foreign_processes(gpu, viewer)
    assert asked[1][0] is None, "there was no sample"


# ---- placements -------------------------------------------------------------------------------------


def test_placements_that_are_over_are_remembered_up_to_a_number(monkeypatch) -> None:
    from gpushared.jobs import placements as module

    monkeypatch.setattr(module, "KEPT", 2)
    placements = Placements()
    for number, name in enumerate(("a", "b", "a", "c"), 1):
        placements.put(Placement(name, number, f"j{number}"))
        placements.closed(f"j{number}")
        placements.closed(f"j{number}")
    assert placements.attempts == {"a": 3, "c": 4}, "those that ended last"
    assert list(placements) == [] and placements.of_job("j1") is None


# ---- systemd ----------------------------------------------------------------------------------------


def test_a_service_manager_that_does_not_read_holds_nobody_up(directory) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(directory / "notify"))
        notifier = Notifier({"NOTIFY_SOCKET": str(directory / "notify")})

        def tell() -> None:
            for _ in range(3000):
                notifier.alive()

        thread = threading.Thread(target=tell, daemon=True)
        thread.start()
        thread.join(10)
        stuck = thread.is_alive()
        assert manager.recv(100) == b"WATCHDOG=1"
    assert not stuck
