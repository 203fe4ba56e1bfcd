"""Several processes are suspended and resumed together, whatever the driver refuses in between."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare import checkpoint
from gpushare.checkpoint import DriverError

LIVING = (os.getpid(), os.getppid())
STEPS = ("lock", "checkpoint", "restore", "unlock")


class Driver:
    """Follows the states of the CUDA driver API, and refuses chosen calls: the n-th call of a step, counted from 0."""

    def __init__(self, refused: set[tuple[str, int]] | frozenset[tuple[str, int]] = frozenset()) -> None:
        self.states = dict.fromkeys(LIVING, "running")
        self.refused = refused
        self.counts = dict.fromkeys(STEPS, 0)
        self.ran_between: list[tuple[str, ...]] = []
        """The states of all processes after each call."""

    def state(self, pid: int) -> str:
        return self.states[pid]

    def lock(self, pid: int, milliseconds: int) -> None:
        assert milliseconds > 0
        self._go("lock", pid, "running", "locked")

    def checkpoint(self, pid: int) -> None:
        self._go("checkpoint", pid, "locked", "suspended")

    def restore(self, pid: int) -> None:
        self._go("restore", pid, "suspended", "locked")

    def unlock(self, pid: int) -> None:
        self._go("unlock", pid, "locked", "running")

    def _go(self, step: str, pid: int, before: str, after: str) -> None:
        count = self.counts[step]
        self.counts[step] += 1
        if (step, count) in self.refused or self.states[pid] != before:
            raise DriverError(step)
        self.states[pid] = after
        self.ran_between.append(tuple(self.states.values()))


class Killed(BaseException):
    """The suspender is killed by SIGKILL at this call."""


class Mortal(Driver):
    """Its caller is killed before the n-th call, counted from 0, or after it."""

    def __init__(self, call: int, *, after: bool) -> None:
        super().__init__()
        self.left: int | None = call
        self.after = after

    def _go(self, step: str, pid: int, before: str, after: str) -> None:
        if self.left == 0 and not self.after:
            raise Killed
        super()._go(step, pid, before, after)
        if self.left == 0:
            raise Killed
        if self.left is not None:
            self.left -= 1


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("call", range(4))
@pytest.mark.parametrize("step", [checkpoint.suspend, checkpoint.resume])
def test_the_next_one_brings_all_together_wherever_a_suspender_was_killed(
    step: Callable[..., checkpoint.Result], call: int, after: bool
) -> None:
    driver = Mortal(call, after=after)
    if step is checkpoint.resume:
        driver.left = None
        checkpoint.suspend(driver, LIVING, 1.0)
        driver.left = call
    with pytest.raises(Killed):
        step(driver, LIVING, *([1.0] if step is checkpoint.suspend else []))
    driver.left = None
    where = checkpoint.settle(driver, LIVING)
    assert where in ("running", "suspended") and set(driver.states.values()) == {where}
    assert not [states for states in driver.ran_between if set(states) == {"running", "suspended"}], "one ran alone"


REFUSALS = st.sets(st.tuples(st.sampled_from(STEPS), st.integers(0, 3)), max_size=5)


def test_all_are_suspended_and_resumed() -> None:
    driver = Driver()
    assert checkpoint.suspend(driver, LIVING, 1.0) == checkpoint.Result("suspended")
    assert driver.ran_between[1] == ("locked", "locked"), "memory of one went while the other still ran"
    assert checkpoint.resume(driver, LIVING) == checkpoint.Result("running")
    assert set(driver.states.values()) == {"running"}


@pytest.mark.parametrize("refused", [("lock", 0), ("lock", 1), ("checkpoint", 0), ("checkpoint", 1)])
def test_all_run_on_if_one_cannot_be_suspended(refused: tuple[str, int]) -> None:
    driver = Driver({refused})
    assert checkpoint.suspend(driver, LIVING, 1.0) == checkpoint.Result("running", refused[0])
    assert set(driver.states.values()) == {"running"}


@pytest.mark.parametrize("refused", [("restore", 0), ("restore", 1)])
def test_all_stay_suspended_if_one_cannot_be_restored(refused: tuple[str, int]) -> None:
    driver = Driver()
    checkpoint.suspend(driver, LIVING, 1.0)
    driver.refused = {refused}
    assert checkpoint.resume(driver, LIVING) == checkpoint.Result("suspended", "restore")
    assert set(driver.states.values()) == {"suspended"}


def test_a_process_that_has_ended_is_not_waited_for() -> None:
    gone = 2**22 + 1  # above the kernel's largest pid
    assert checkpoint.whereabouts(_without(Driver(), gone), [*LIVING, gone]) == "running"


@pytest.mark.parametrize("step", [checkpoint.suspend, checkpoint.resume])
@settings(deadline=None)
@given(refused=REFUSALS)
def test_what_is_answered_is_so(step: Callable[..., checkpoint.Result], refused: set[tuple[str, int]]) -> None:
    """running and suspended are true of all processes, and no process stays locked that the driver would unlock."""
    driver = Driver()
    if step is checkpoint.resume:
        checkpoint.suspend(driver, LIVING, 1.0)
        driver.counts = dict.fromkeys(STEPS, 0)
    driver.refused = refused
    answer = step(driver, LIVING, *([1.0] if step is checkpoint.suspend else []))
    found = set(driver.states.values())
    if answer.where in ("running", "suspended"):
        assert found == {answer.where}
    else:
        assert answer.where == "failed"
        assert len(found) > 1 or found == {"locked"}
    if not any(name == "unlock" for name, _ in refused):
        assert "locked" not in found


def _without(driver: Driver, gone: int) -> Driver:
    def state(pid: int) -> str:
        if pid == gone:
            raise DriverError("GetState")
        return driver.states[pid]

    driver.state = state  # type: ignore[method-assign]
    return driver


# ---- what the driver says ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        *["INVALID_VALUE", "OUT_OF_MEMORY", "NOT_INITIALIZED", "NO_DEVICE", "OPERATING_SYSTEM", "ILLEGAL_STATE"],
        *["NOT_READY", "NOT_PERMITTED", "NOT_SUPPORTED", "UNKNOWN"],
    ],
)
def test_what_the_driver_refuses_is_told_by_the_name_of_its_header(name: str) -> None:
    header = (Path(__file__).parents[2] / "shim" / "cuda_abi.h").read_text()
    (number,) = re.findall(rf"\bCUDA_ERROR_{name} = (\d+)", header)
    driver = object.__new__(checkpoint.DriverCheckpoints)
    with pytest.raises(DriverError, match=f"^cuCheckpointProcessLock: CUDA_ERROR_{name}$"):
        driver._check("cuCheckpointProcessLock", int(number))


def of_functions(**functions: Callable[..., int]) -> checkpoint.DriverCheckpoints:
    driver = object.__new__(checkpoint.DriverCheckpoints)
    driver._functions = functions
    return driver


@pytest.mark.parametrize(
    ("number", "state"),
    [(0, "running"), (1, "locked"), (2, "suspended"), (3, "failed"), (4, "failed"), (-1, "failed")],
)
def test_the_drivers_number_of_a_state_is_its_word(number: int, state: str) -> None:
    def get_state(pid: ctypes.c_int, found) -> int:
        assert pid.value == 7
        found._obj.value = number
        return 0

    assert of_functions(GetState=get_state).state(7) == state


def test_a_process_is_locked_for_so_many_milliseconds() -> None:
    """As the driver reads them: a number of 32 bits in front of a block of 64 bytes that are else 0."""
    given = []

    def lock(pid: ctypes.c_int, arguments) -> int:
        given.append((pid.value, arguments.raw))
        return 0

    of_functions(Lock=lock).lock(7, 0x01020304)
    assert given == [(7, bytes([4, 3, 2, 1]) + bytes(60))]


@pytest.mark.parametrize(("step", "name"), [("checkpoint", "Checkpoint"), ("restore", "Restore"), ("unlock", "Unlock")])
def test_each_other_step_is_one_call_without_arguments(step: str, name: str) -> None:
    given = []

    def call(pid: ctypes.c_int, argument: object) -> int:
        given.append((pid.value, argument))
        return 401 if len(given) > 1 else 0

    driver = of_functions(**{name: call})
    getattr(driver, step)(7)
    assert given == [(7, None)]
    with pytest.raises(DriverError, match=f"^cuCheckpointProcess{name}: CUDA_ERROR_ILLEGAL_STATE$"):
        getattr(driver, step)(7)


def test_an_error_that_has_no_name_is_told_by_its_number() -> None:
    with pytest.raises(DriverError, match=r"^cuInit: error 12345$"):
        of_functions()._check("cuInit", 12345)


@pytest.mark.parametrize(
    ("within", "pids", "each"),
    [(2.0, 1, 1000), (2.0, 2, 500), (2.0, 4, 250), (0.1, 1, 100), (0.3, 2, 100), (0.0, 1, 100)],
)
def test_half_of_the_time_is_for_locking_and_each_has_its_part(within: float, pids: int, each: int) -> None:
    asked: list[int] = []
    driver = Driver()
    driver.states = dict.fromkeys(range(pids), "running")

    def lock(pid: int, milliseconds: int) -> None:
        asked.append(milliseconds)
        driver.states[pid] = "locked"

    driver.lock = lock  # type: ignore[method-assign]
    assert checkpoint.suspend(driver, range(pids), within).where == "suspended"
    assert asked == [each] * pids


@pytest.mark.parametrize("code", [0, 3])
def test_the_drivers_version_is_its_own_number(code: int) -> None:
    def get_version(found) -> int:
        found._obj.value = 13010
        return code

    driver = of_functions()
    driver._driver = SimpleNamespace(cuDriverGetVersion=get_version)
    if code == 0:
        assert driver.version() == 13010
        return
    with pytest.raises(DriverError, match=r"^cuDriverGetVersion: CUDA_ERROR_NOT_INITIALIZED$"):
        driver.version()


@pytest.mark.parametrize("code", [0, 100])
def test_the_driver_is_initialised_before_it_is_asked(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    begun = []
    names = ("GetState", "Lock", "Checkpoint", "Restore", "Unlock")
    functions = {f"cuCheckpointProcess{name}": lambda pid, argument: 0 for name in names}
    library = SimpleNamespace(cuInit=lambda flags: begun.append(flags) or code, **functions)
    monkeypatch.setattr(checkpoint.ctypes, "CDLL", lambda name: library if name == "libcuda.so.1" else None)
    if code:
        with pytest.raises(DriverError, match=r"^cuInit: CUDA_ERROR_NO_DEVICE$"):
            checkpoint.DriverCheckpoints()
    else:
        assert checkpoint.DriverCheckpoints().state(7) == "running"
    assert begun == [0]


@pytest.mark.parametrize("state", ["running", "suspended"])
def test_processes_that_are_together_are_left_as_they_are(state: str) -> None:
    driver = Driver()
    driver.states = dict.fromkeys(LIVING, state)
    assert checkpoint.settle(driver, LIVING) == state and driver.ran_between == []
