"""What NVML says about a GPU's health: what is asked, which errors are an issue, and how reports are waited for."""

from __future__ import annotations

import ctypes
import threading
import time
from types import SimpleNamespace
from typing import Any

import pynvml as nv
import pytest

from gpushared.core import health_issues
from gpushared.gpus import nvml_health
from gpushared.gpus.inventory import Examination, Fault
from gpushared.gpus.nvml_health import Faults, examine, of_error

# Numbers, not the daemon's own names for them: that they stay is a part of what is tested.
EVENTS = 0xEC0A  # of nvml.h: without corrected errors
RECOVERY_ACTION = 230
XID = 8

LOST = nv.NVML_ERROR_GPU_IS_LOST
RESET = nv.NVML_ERROR_RESET_REQUIRED


# ---- what is asked -------------------------------------------------------------------------------------


class Gpu:
    """Its answers. A number in place of one is an error of NVML."""

    def __init__(self, **answers: Any) -> None:
        well = {"ecc": 0, "rows": (0, 0, 0, 0), "pages": 0, "action": 0}
        self.answers = {**well, **answers}

    def ask(self, name: str) -> Any:
        answer = self.answers[name]
        if isinstance(answer, nv.NVMLError):
            raise answer
        return answer


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def ecc(gpu: Gpu, kind: int, counter: int) -> Any:
        assert (kind, counter) == (nv.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nv.NVML_VOLATILE_ECC)
        return gpu.ask("ecc")

    def fields(gpu: Gpu, which: list[int]) -> Any:
        assert which == [RECOVERY_ACTION] == [230]
        action = gpu.ask("action")
        if action is None:
            return []
        failed = isinstance(action, str)
        value = SimpleNamespace(uiVal=0 if failed else action)
        return [SimpleNamespace(nvmlReturn=nv.NVML_ERROR_NOT_SUPPORTED if failed else nv.NVML_SUCCESS, value=value)]

    monkeypatch.setattr(nv, "nvmlDeviceGetTotalEccErrors", ecc)
    monkeypatch.setattr(nv, "nvmlDeviceGetRemappedRows", lambda gpu: gpu.ask("rows"))
    monkeypatch.setattr(nv, "nvmlDeviceGetRetiredPagesPendingStatus", lambda gpu: gpu.ask("pages"))
    monkeypatch.setattr(nv, "nvmlDeviceGetFieldValues", fields)


def error(code: int) -> nv.NVMLError:
    return nv.NVMLError(code)


UNABLE = error(nv.NVML_ERROR_NOT_SUPPORTED)


@pytest.mark.parametrize(
    ("answers", "issues", "recovered"),
    [
        ({}, [], True),
        ({"action": "unknown to the driver"}, [], False),
        ({"action": None}, [], False),
        ({"action": UNABLE}, [], False),
        ({"action": 99}, [], False),
        ({"ecc": 1}, [health_issues.uncorrected(1)], True),
        ({"ecc": 40}, [health_issues.uncorrected(40)], True),
        ({"ecc": UNABLE, "rows": UNABLE, "pages": UNABLE}, [], True),
        ({"ecc": error(nv.NVML_ERROR_NOT_FOUND), "action": error(nv.NVML_ERROR_NO_PERMISSION)}, [], False),
        ({"rows": (5, 6, 0, 0)}, [], True),
        ({"rows": (0, 0, 1, 0)}, [health_issues.rows_pending()], True),
        ({"rows": (0, 0, 0, 1)}, [health_issues.rows_failed()], True),
        ({"rows": (0, 0, 1, 1)}, [health_issues.rows_failed(), health_issues.rows_pending()], True),
        ({"pages": nv.NVML_FEATURE_ENABLED}, [health_issues.pages_pending()], True),
        ({"action": 1}, [health_issues.recovery("gpu_reset")], False),
        ({"action": 2}, [health_issues.recovery("node_reboot")], False),
        ({"action": 3}, [health_issues.recovery("drain_p2p")], False),
        ({"action": 4}, [health_issues.recovery("drain_and_reset")], False),
        ({"action": 5}, [health_issues.recovery("recover_imex_domain")], False),
        ({"action": 6}, [health_issues.recovery("bus_reset")], False),
        ({"action": 7}, [health_issues.recovery("system_reboot")], False),
    ],
)
def test_what_an_examination_finds(answers: dict[str, Any], issues: list[Any], recovered: bool) -> None:
    assert examine(Gpu(**answers)) == Examination(tuple(issues), recovered=recovered)


@pytest.mark.parametrize("question", ["ecc", "rows", "pages", "action"])
@pytest.mark.parametrize("code", [LOST, nvml_health.GPU_NOT_FOUND, RESET])
def test_a_gpu_that_is_gone_or_locked_is_no_answer_that_lacks(question: str, code: int) -> None:
    with pytest.raises(nv.NVMLError) as caught:
        examine(Gpu(**{question: error(code)}))
    assert of_error(caught.value) is not None


def test_which_errors_are_issues() -> None:
    assert of_error(error(LOST)) == health_issues.lost()
    assert of_error(error(nv.NVML_ERROR_NOT_FOUND)) == health_issues.removed() == of_error(error(28))
    assert of_error(error(RESET)) == health_issues.reset_required()
    assert of_error(UNABLE) is None and of_error(error(nv.NVML_ERROR_UNKNOWN)) is None


# ---- what is reported ----------------------------------------------------------------------------------


class Driver:
    """Its events: what a wait returns, and which GPUs are in which set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sets: list[dict[str, int]] = []
        self.freed: list[Any] = []
        self.events: list[Any] = []
        self.waits: list[int] = []
        self.without: set[str] = set()
        self.no_sets = False
        self.handles: dict[str, Any] = {}
        for name in ("EventSetCreate", "EventSetFree", "EventSetWait_v2", "DeviceGetHandleByUUID"):
            monkeypatch.setattr(nv, f"nvml{name}", getattr(self, name))
        monkeypatch.setattr(nv, "nvmlDeviceGetSupportedEventTypes", lambda _: XID | 0x1 | 0x2)
        monkeypatch.setattr(nv, "nvmlDeviceRegisterEvents", self.register)

    def EventSetCreate(self) -> Any:
        if self.no_sets:
            raise UNABLE
        self.sets.append({})
        return self.sets[-1]

    def EventSetFree(self, some: Any) -> None:
        self.freed.append(some)
        raise UNABLE

    def EventSetWait_v2(self, some: Any, milliseconds: int) -> Any:
        assert some is self.sets[-1]
        self.waits.append(milliseconds)
        event = self.events.pop(0) if self.events else error(nv.NVML_ERROR_TIMEOUT)
        if isinstance(event, nv.NVMLError):
            raise event
        return event

    def DeviceGetHandleByUUID(self, uuid: str) -> Any:
        if uuid in self.without:
            raise error(nv.NVML_ERROR_NOT_FOUND)
        return self.handles.setdefault(uuid, ctypes.c_void_p(0x1000 + len(self.handles)))

    def register(self, handle: Any, events: int, some: dict[str, int]) -> None:
        (uuid,) = [name for name, one in self.handles.items() if one is handle]
        some[uuid] = events

    def event(self, uuid: str, kind: int = XID, data: int = 79) -> Any:
        return SimpleNamespace(device=ctypes.c_void_p(self.handles[uuid].value), eventType=kind, eventData=data)


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> Driver:
    return Driver(monkeypatch)


@pytest.fixture
def sleeps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    slept: list[float] = []
    monkeypatch.setattr(nvml_health, "time", SimpleNamespace(sleep=slept.append))
    return slept


WHOLE = {"GPU-a": "GPU-a", "MIG-1": "GPU-b", "MIG-2": "GPU-b"}


def test_all_physical_gpus_are_listened_to_and_errors_name_all_their_instances(reports: Driver, sleeps: Any) -> None:
    faults = Faults(lambda: WHOLE)
    assert faults.wait(0.25) is None and reports.waits == [250] and sleeps == []
    assert reports.sets == [{"GPU-a": XID | 0x2, "GPU-b": XID | 0x2}], "what the GPU can report of what is waited for"
    reports.events = [reports.event("GPU-b"), reports.event("GPU-a", 0x2, 1)]
    assert faults.wait(1.0) == Fault(("MIG-1", "MIG-2"), 79)
    assert faults.wait(1.0) == Fault(("GPU-a",), None), "no Xid: a reason to look"
    assert len(reports.sets) == 1 and reports.freed == []


def test_who_waits_for_reports_stands_aside_while_nvml_is_opened_again(reports: Driver, monkeypatch: Any) -> None:
    """It looks each millisecond whether that is over."""
    faults, slept = Faults(lambda: WHOLE), []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            faults._pause_wanted.clear()

    monkeypatch.setattr(nvml_health, "time", SimpleNamespace(sleep=sleep))
    faults._pause_wanted.set()
    assert faults.wait(0.25) is None and slept == [0.001] * 3 and reports.waits == [250]


def test_a_gpu_that_comes_is_listened_to_and_one_that_cannot_report_is_left_out(reports: Driver, sleeps: Any) -> None:
    whole = {"GPU-a": "GPU-a", "GPU-c": "GPU-c"}
    reports.without.add("GPU-c")
    faults = Faults(lambda: whole)
    for _ in range(3):
        assert faults.wait(0.1) is None
    assert reports.sets == [{"GPU-a": XID | 0x2}] and len(reports.waits) == 3, "it is not tried again and again"
    whole["GPU-b"] = "GPU-b"
    assert faults.wait(0.1) is None
    assert [set(one) for one in reports.sets] == [{"GPU-a"}, {"GPU-a", "GPU-b"}] and len(reports.freed) == 1
    del whole["GPU-a"], whole["GPU-b"]
    assert faults.wait(0.3) is None and sleeps == [0.3], "nothing is left to wait for"


def test_a_driver_that_reports_nothing_costs_no_busy_loop(reports: Driver, sleeps: Any) -> None:
    reports.no_sets = True
    faults = Faults(lambda: WHOLE)
    for _ in range(3):
        assert faults.wait(0.2) is None
    assert sleeps == [0.2] * 3 and reports.waits == []


@pytest.mark.parametrize(("code", "fault"), [(LOST, Fault(tuple(WHOLE))), (nv.NVML_ERROR_UNKNOWN, None)])
def test_a_wait_that_fails_is_not_repeated_at_once(
    reports: Driver, sleeps: Any, code: int, fault: Fault | None
) -> None:
    """Which GPU is lost is not said: all are examined. Reports of the others are kept meanwhile."""
    faults = Faults(lambda: WHOLE)
    faults.wait(0.1)
    reports.events = [error(code)]
    assert faults.wait(0.1) == fault
    assert len(reports.sets) == 2 and set(reports.sets[-1]) == {"GPU-a", "GPU-b"}
    assert faults.wait(0.4) is None and sleeps == [0.4] and len(reports.waits) == 2
    assert faults.wait(0.1) is None and len(reports.waits) == 3


def test_while_it_is_paused_nobody_waits_and_afterwards_all_are_listened_to(reports: Driver) -> None:
    faults = Faults(lambda: WHOLE)
    reports.without.add("GPU-b")
    faults.wait(0.01)
    assert set(reports.sets[-1]) == {"GPU-a"}
    reports.without.clear()
    done = threading.Event()

    def wait() -> None:
        faults.wait(0.01)
        done.set()

    with faults.paused():
        assert len(reports.freed) == 1
        waiting = threading.Thread(target=wait)
        waiting.start()
        assert not done.wait(0.1)
        assert not faults.stop()
    assert done.wait(5)
    waiting.join()
    assert set(reports.sets[-1]) == {"GPU-a", "GPU-b"}
    assert faults.stop(), "nobody waits: it may be stopped"


def test_who_wants_a_pause_gets_the_lock_soon(reports: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """The waiting thread has it nearly all the time."""
    faults = Faults(lambda: WHOLE)
    slow = reports.EventSetWait_v2

    def wait(some: Any, milliseconds: int) -> Any:
        time.sleep(0.02)
        return slow(some, milliseconds)

    monkeypatch.setattr(nv, "nvmlEventSetWait_v2", wait)
    over = threading.Event()

    def loop() -> None:
        while not over.is_set():
            faults.wait(0.02)

    waiting = threading.Thread(target=loop)
    waiting.start()
    try:
        began = time.monotonic()
        for _ in range(5):
            with faults.paused():
                pass
        assert time.monotonic() - began < 5
    finally:
        over.set()
        waiting.join()


def test_what_is_waited_for() -> None:
    """Xids, double-bit ECC errors and the like, and no corrected errors, of which there may be thousands."""
    assert EVENTS == 0x8 | 0x2 | 0x400 | 0x800 | 0x2000 | 0x4000 | 0x8000 and not EVENTS & 0x1
