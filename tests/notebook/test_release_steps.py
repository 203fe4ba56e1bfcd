"""What is asked of the driver while a notebook gives memory back, by a driver that keeps what it was asked."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from gpushare.notebook import release as steps

FIRST, SECOND = uuid.UUID(int=1), uuid.UUID(int=2)
GPU = f"GPU-{SECOND}"
GLOBAL = 0


class Driver:
    """Two GPUs. `active`: those whose primary context is open; `retains`: what the driver answers then."""

    def __init__(self, *active: int, retains: int = 0) -> None:
        self.active, self.retains = active, retains
        self.mode = GLOBAL
        self.retained: list[int] = []
        self.current: list[int] = []

    def cuThreadExchangeStreamCaptureMode(self, mode: Any) -> None:
        self.mode, mode._obj.value = mode._obj.value, self.mode

    def cuDeviceGetCount(self, count: Any) -> None:
        count._obj.value = 2

    def cuDeviceGet(self, device: Any, index: int) -> None:
        device._obj.value = index + 70

    def cuDeviceGetUuid(self, name: Any, device: Any) -> None:
        name[:] = (FIRST, SECOND)[device.value - 70].bytes

    def cuDevicePrimaryCtxGetState(self, device: Any, _flags: Any, active: Any) -> None:
        active._obj.value = int(device.value - 70 in self.active)

    def cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> int:
        if self.retains == 0:
            context._obj.value = device.value + 900
            self.retained.append(device.value)
        return self.retains

    def cuDevicePrimaryCtxRelease_v2(self, device: Any) -> None:
        self.retained.remove(device.value)

    def cuCtxPushCurrent_v2(self, context: Any) -> None:
        self.current.append(context.value)

    def cuCtxPopCurrent_v2(self, context: Any) -> None:
        context._obj.value = self.current.pop()


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was done, each with the driver's mode, the contexts that are current, and those that are held."""
    did: list[Any] = []

    def note(what: str) -> None:
        driver: Any = steps.loaded_driver()
        did.append((what, driver.mode, list(driver.current), list(driver.retained)))

    def empty(wanted: Any, problems: list[str]) -> None:
        note(f"empty {wanted()}")
        problems.append("torch: it failed")

    def run(wanted: Any, gpu: str, index: int, seconds: float, reason: str, *, last: bool) -> list[str]:
        note(f"hooks {wanted()} {gpu} {index} {seconds} {reason} {last}")
        return ["hook: it failed"]

    monkeypatch.setattr(steps, "is_initialised", lambda _driver: True)
    monkeypatch.setattr(steps.trim_hook, "empty_caches", empty)
    monkeypatch.setattr(steps.pressure_hooks, "run_hooks", run)
    return did


def released(monkeypatch: pytest.MonkeyPatch, driver: Driver | None, gpu: str = GPU) -> list[str]:
    monkeypatch.setattr(steps, "loaded_driver", lambda: driver)
    return steps.release(gpu, lambda: 5, 3.0, "why")


HOOKS = f"hooks 5 {GPU} 1 3.0 why True"


def test_caches_are_emptied_in_the_primary_context_and_callbacks_follow(
    monkeypatch: pytest.MonkeyPatch, done: list[Any]
) -> None:
    driver = Driver(0, 1)
    assert released(monkeypatch, driver) == ["torch: it failed", "hook: it failed"]
    assert done == [("empty 5", steps.RELAXED, [971], [71]), (HOOKS, steps.RELAXED, [971], [71])]
    assert (driver.mode, driver.current, driver.retained) == (GLOBAL, [], []), "all is as it was"


@pytest.mark.parametrize("driver", [Driver(0), Driver(0, 1, retains=2)], ids=["closed", "refused"])
def test_without_a_primary_context_only_callbacks_are_called(
    monkeypatch: pytest.MonkeyPatch, done: list[Any], driver: Driver
) -> None:
    assert released(monkeypatch, driver) == ["hook: it failed"]
    assert done == [(HOOKS, steps.RELAXED, [], [])]
    assert (driver.mode, driver.current, driver.retained) == (GLOBAL, [], [])


def test_a_process_that_does_not_use_this_gpu_has_nothing_to_give(
    monkeypatch: pytest.MonkeyPatch, done: list[Any]
) -> None:
    driver = Driver(0, 1)
    assert released(monkeypatch, None) == []
    assert released(monkeypatch, driver, f"GPU-{uuid.UUID(int=3)}") == []
    monkeypatch.setattr(steps, "is_initialised", lambda _driver: False)
    assert released(monkeypatch, driver) == []
    assert done == [] and driver.mode == GLOBAL


def test_the_name_of_a_gpu_may_be_in_capitals(monkeypatch: pytest.MonkeyPatch, done: list[Any]) -> None:
    assert released(monkeypatch, Driver(), GPU.upper()) == ["hook: it failed"]
    assert done[0][0].split()[3] == "1"


def test_an_error_of_a_callback_leaves_the_driver_as_it_was(monkeypatch: pytest.MonkeyPatch, done: list[Any]) -> None:
    def fails(*_arguments: Any, **_more: Any) -> list[str]:
        raise KeyboardInterrupt

    driver = Driver(1)
    monkeypatch.setattr(steps.pressure_hooks, "run_hooks", fails)
    with pytest.raises(KeyboardInterrupt):
        released(monkeypatch, driver)
    assert (driver.mode, driver.current, driver.retained) == (GLOBAL, [], []) and done[0][0] == "empty 5"
