"""gpushare.pressure_hooks: the program's callbacks and signals, and what they do where there is no gpushare."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Iterator

import pytest

import gpushare
from gpushare import pressure_hooks
from gpushare.errors import DaemonUnreachable, GpushareError, NoSuchJob, NotPermitted
from gpushare.presence import Presence
from gpushare.pressure_hooks import Pressure, run_hooks

ME = ("GPU-1", 0)


class Gpu:
    """Bytes that are wanted, and callbacks that give some."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.seen: list[tuple[str, Pressure]] = []

    def __call__(self) -> int:
        return max(0, self.wanted)

    def gives(self, name: str, size: int, says: int | None = None) -> pressure_hooks.Registration:
        def give(pressure: Pressure) -> int | None:
            self.seen.append((name, pressure))
            self.wanted -= size
            return says

        return gpushare.on_pressure(give)

    @property
    def called(self) -> list[str]:
        return [name for name, _ in self.seen]


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(pressure_hooks, "_registrations", [])
    monkeypatch.setattr(pressure_hooks, "_signal", pressure_hooks._Signal())
    yield


def test_callbacks_in_order_until_it_is_enough():
    gpu = Gpu(100)
    gpu.gives("a", 60), gpu.gives("b", 40), gpu.gives("c", 1)
    assert run_hooks(gpu, *ME, 2.0, "why") == []
    assert gpu.called == ["a", "b"]
    assert [pressure.wanted for _, pressure in gpu.seen] == [100, 40]
    (first, second) = (pressure for _, pressure in gpu.seen)
    assert (first.gpu, first.index, first.reason) == ("GPU-1", 0, "why")
    assert 2.0 >= first.seconds >= second.seconds > 1.5
    assert not first.last and not Pressure("GPU-1", 0, 1, 1.0, "why").last
    gpu.wanted = 10
    run_hooks(gpu, *ME, 2.0, "why", last=True)
    assert gpu.seen[-1][1].last


def test_what_is_promised_for_later_counts():
    gpu = Gpu(100)
    gpu.gives("slow", 0, says=70), gpu.gives("b", 30, says=30), gpu.gives("c", 1)
    assert run_hooks(gpu, *ME, 2.0, "why") == []
    assert gpu.called == ["slow", "b"]
    assert gpu.seen[1][1].wanted == 30


def test_what_comes_in_time_does_not_count_as_a_promise_too():
    gpu = Gpu(120)
    gpu.gives("slow", 0, says=70), gpu.gives("b", 30, says=30), gpu.gives("c", 20)
    run_hooks(gpu, *ME, 2.0, "why")
    assert [pressure.wanted for _, pressure in gpu.seen] == [120, 50, 20]


def test_who_promises_nothing_has_promised_nothing():
    gpu = Gpu(1)
    gpu.gives("a", 0), gpu.gives("b", 0, says=0), gpu.gives("c", 1)
    run_hooks(gpu, *ME, 2.0, "why")
    assert [pressure.wanted for _, pressure in gpu.seen] == [1, 1, 1]


def test_when_the_time_is_over_none_is_left():
    gpu = Gpu(1)
    gpu.gives("a", 1)
    run_hooks(gpu, *ME, 0.0, "why")
    assert gpu.seen[0][1].seconds == 0.0


def test_what_is_free_already_does_not_count_twice():
    gpu = Gpu(100)
    gpu.gives("a", 50, says=50), gpu.gives("b", 50, says=50), gpu.gives("c", 0)
    run_hooks(gpu, *ME, 2.0, "why")
    assert gpu.called == ["a", "b"]


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), KeyboardInterrupt()])
def test_an_exception_is_a_text_and_the_next_has_its_turn(error):
    gpu = Gpu(10)

    @gpushare.on_pressure
    def broken(pressure: Pressure) -> None:
        raise error

    gpu.gives("b", 10)
    (problem,) = run_hooks(gpu, *ME, 2.0, "why")
    assert "broken" in problem and type(error).__name__ in problem
    assert gpu.called == ["b"]


def test_a_registration_is_the_function_still_and_can_be_taken_back():
    gpu = Gpu(10)
    one = gpu.gives("a", 1, says=5)
    pressure = Pressure("GPU-1", 0, 10, 1.0, "why")
    assert one(pressure) == 5
    with pytest.raises(dataclasses.FrozenInstanceError):
        pressure.wanted = 0  # type: ignore[misc]
    one.cancel()
    one.cancel()
    run_hooks(gpu, *ME, 1.0, "why")
    assert gpu.called == ["a"], "by our own call"


def test_the_same_callback_twice_is_two_registrations():
    gpu = Gpu(10)
    first, second = (gpushare.on_pressure(lambda _: gpu.seen.append(("x", _))) for _ in range(2))
    first.cancel()
    run_hooks(gpu, *ME, 1.0, "why")
    assert len(gpu.seen) == 1
    second.cancel()


@pytest.fixture
def received() -> Iterator[list[int]]:
    numbers: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: numbers.append(number))
    yield numbers
    signal.signal(signal.SIGUSR1, before)


def test_the_signal_comes_last_and_once_a_minute(received, monkeypatch):
    gpu = Gpu(10)
    gpu.gives("a", 10)
    gpushare.checkpoint_signal(signal.SIGUSR1)
    run_hooks(gpu, *ME, 1.0, "why")
    assert received == [], "the callback was enough"
    gpu.wanted = 100
    assert run_hooks(gpu, *ME, 1.0, "why") == [] and run_hooks(gpu, *ME, 1.0, "why") == []
    assert received == [signal.SIGUSR1]
    monkeypatch.setattr(pressure_hooks, "SIGNAL_PAUSE", 0.0)
    run_hooks(gpu, *ME, 1.0, "why")
    gpushare.checkpoint_signal(None)
    run_hooks(Gpu(5), *ME, 1.0, "why")
    assert len(received) == 2


def test_a_signal_without_a_handler_is_not_sent():
    assert signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL
    gpushare.checkpoint_signal(signal.SIGUSR2)
    (problem,) = run_hooks(Gpu(5), *ME, 1.0, "why")
    assert "handler" in problem


@pytest.mark.parametrize("number", [0, -1, 32, 1000, signal.SIGKILL, signal.SIGSTOP])
def test_signals_that_nobody_can_handle_are_refused(number):
    with pytest.raises(ValueError, match="not a signal"):
        gpushare.checkpoint_signal(number)


def test_where_there_is_no_gpushare_nothing_happens(tmp_path, monkeypatch):
    for name in list(os.environ):
        if name.startswith("GPUSHARE_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("GPUSHARE_SOCKET", str(tmp_path / "nobody" / "api.sock"))
    assert gpushare.checkpointed() is False
    assert gpushare.pressure() == ()


def test_what_cannot_be_called_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="5 cannot be"):
        gpushare.on_pressure(5)  # type: ignore[arg-type]


class Untold(BaseException):
    """Its text cannot be had."""

    def __str__(self) -> str:
        raise Untold


class Nameless:
    """A callback that has no name and no text."""

    def __call__(self, pressure: Pressure) -> int:
        raise ValueError("odd")

    def __getattr__(self, name: str) -> object:
        raise Untold

    def __str__(self) -> str:
        raise Untold


def raises(error: BaseException) -> pressure_hooks.Callback:
    def broken(pressure: Pressure) -> int:
        raise error

    return broken


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda: raises(Untold()), "raises.<locals>.broken: an exception whose text cannot be had"),
        (lambda: Nameless(), "a callback without a name: ValueError: odd"),  # noqa: PLW0108  pytest looks at a class
        (lambda: raises(ValueError("one\nsecond line")), "raises.<locals>.broken: ValueError: one"),
        (lambda: raises(ValueError("a\x1b[31m \ud800")), r"raises.<locals>.broken: ValueError: a\x1b[31m \ud800"),
        (lambda: raises(ValueError("")), "raises.<locals>.broken: ValueError: "),
        (lambda: raises(ValueError("x" * 10**7)), "raises.<locals>.broken: ValueError: " + "x" * 150),
    ],
    ids=["untold", "nameless", "two lines", "control", "empty", "long"],
)
def test_a_broken_callback_keeps_no_other_from_being_called(made, says):
    gpu = Gpu(100)
    gpushare.on_pressure(made())
    gpu.gives("next", 10)
    came = []
    signal.signal(signal.SIGUSR1, lambda *_: came.append(1))
    gpushare.checkpoint_signal(signal.SIGUSR1)
    (problem,) = run_hooks(gpu, *ME, 2.0, "why")
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    assert problem.startswith(says) and len(problem) < 300 and problem.isprintable()
    assert gpu.called == ["next"] and came == [1]


def test_the_signal_comes_again_after_a_minute(received, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(pressure_hooks.time, "monotonic", lambda: now[0])
    gpushare.checkpoint_signal(signal.SIGUSR1)
    for passed, times in ((0.0, 1), (59.9, 1), (0.1, 2), (60.0, 3)):
        now[0] += passed
        run_hooks(Gpu(5), *ME, 1.0, "why")
        assert len(received) == times, passed
    gpushare.checkpoint_signal(signal.SIGUSR1)
    run_hooks(Gpu(5), *ME, 1.0, "why")
    assert len(received) == 4, "it was asked for anew"


# ---- the daemon is asked and told ---------------------------------------------------------------------------


class Daemon:
    """It knows this process's job, if any."""

    def __init__(
        self, monkeypatch, *, refuses: GpushareError | None = None, there: Presence = Presence.PRELOADED
    ) -> None:
        self.refuses, self.noted = refuses, []
        monkeypatch.setattr("gpushare.presence.presence", lambda: there)
        monkeypatch.setattr("gpushare.locate.find", lambda settings: self)

    def client(self):
        return self

    def find_job(self, name: str):
        assert name == str(os.getpid())
        return {"id": "of this process"}

    def checkpointed(self, job: str) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.noted.append(job)

    def pressure(self):
        if self.refuses is not None:
            raise self.refuses
        some = {"avg10": 0.1, "avg60": 0.2, "avg300": 0.3, "total": 4.0}
        return [{"uuid": "GPU-1", "index": 7, "some": some, "full": {name: value / 2 for name, value in some.items()}}]


@pytest.mark.parametrize(("variable", "job"), [("a1", "a1"), (None, "of this process")])
def test_that_work_is_saved_is_told_of_the_job_that_this_process_is_in(monkeypatch, variable, job):
    daemon = Daemon(monkeypatch)
    if variable is None:
        monkeypatch.delenv("GPUSHARE_JOB", raising=False)
    else:
        monkeypatch.setenv("GPUSHARE_JOB", variable)
    assert gpushare.checkpointed() is True and daemon.noted == [job]


@pytest.mark.parametrize("error", [DaemonUnreachable("away"), NoSuchJob("none"), GpushareError("older")])
def test_a_daemon_that_does_not_note_it_is_no_error(monkeypatch, error):
    monkeypatch.setenv("GPUSHARE_JOB", "a1")
    Daemon(monkeypatch, refuses=error)
    assert gpushare.checkpointed() is False


def test_a_program_without_gpushare_asks_nobody(monkeypatch):
    monkeypatch.setenv("GPUSHARE_JOB", "a1")
    daemon = Daemon(monkeypatch, there=Presence.ABSENT)
    assert gpushare.checkpointed() is False and daemon.noted == []


def test_how_long_jobs_have_waited_on_each_gpu(monkeypatch):
    Daemon(monkeypatch)
    (found,) = gpushare.pressure()
    assert (found.uuid, found.index) == ("GPU-1", 7)
    assert dataclasses.astuple(found.some) == (0.1, 0.2, 0.3, 4.0)
    assert dataclasses.astuple(found.full) == (0.05, 0.1, 0.15, 2.0)


def test_what_the_daemon_refuses_to_say_is_an_error_and_its_absence_is_none(monkeypatch):
    Daemon(monkeypatch, refuses=DaemonUnreachable("away"))
    assert gpushare.pressure() == ()
    Daemon(monkeypatch, refuses=NotPermitted("no"))
    with pytest.raises(NotPermitted):
        gpushare.pressure()
