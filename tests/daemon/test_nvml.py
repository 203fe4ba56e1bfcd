"""What is read from NVML: GPUs and MIG instances, memory, who uses it and computes, and calls that fail."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pynvml as nv
import pytest

from gpushared.core import health_issues
from gpushared.gpus import nvml as module
from gpushared.gpus.inventory import Examination, GpuInfo, Sample
from gpushared.gpus.nvml import Nvml, NvmlError

GIB = 2**30
NEW, LOST = nv.nvmlMemory_v2, nv.NVML_ERROR_GPU_IS_LOST


def error(code: int) -> nv.NVMLError:
    return nv.NVMLError(code)


UNABLE, GONE = error(nv.NVML_ERROR_NOT_SUPPORTED), error(nv.NVML_ERROR_NOT_FOUND)


class Gpu:
    """A handle with its answers. An NVMLError in the place of one is raised."""

    def __init__(self, uuid: str, **answers: Any) -> None:
        self.uuid = uuid
        self.answers = {
            **{
                "memory": (3 * GIB, 16 * GIB, GIB),
                "old": (4 * GIB, 16 * GIB),
                "compute": [],
                "graphics": [],
                "mps": [],
            },
            **{"utilisation": GONE, "mig": UNABLE, "parts": [], "name": f"Model {uuid}"},
            **answers,
        }

    def ask(self, name: str) -> Any:
        answer = self.answers[name]
        if isinstance(answer, nv.NVMLError):
            raise answer
        return answer


class Driver:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gpus: list[Any] = []
        self.looked_up: list[str] = []
        self.since: list[int] = []
        self.begun = self.ended = 0
        self.refuses: nv.NVMLError | None = None

        def memory(gpu: Gpu, version: int | None = None) -> Any:
            if version is not None:
                assert version == NEW
                used, total, reserved = gpu.ask("memory")
                return SimpleNamespace(used=used, total=total, reserved=reserved)
            used, total = gpu.ask("old")
            return SimpleNamespace(used=used, total=total)

        def utilisation(gpu: Gpu, since: int) -> Any:
            self.since.append(since)
            return gpu.ask("utilisation")

        for name, answer in {
            "Init": self.begin,
            "Shutdown": self.end,
            "DeviceGetCount": self.count,
            "DeviceGetHandleByIndex": self.by_index,
            "DeviceGetHandleByUUID": self.by_uuid,
            "DeviceGetUUID": lambda gpu: gpu.uuid.encode(),
            "DeviceGetName": lambda gpu: gpu.ask("name"),
            "DeviceGetMemoryInfo": memory,
            "DeviceGetMigMode": lambda gpu: gpu.ask("mig"),
            "DeviceGetMaxMigDeviceCount": lambda gpu: len(gpu.ask("parts")),
            "DeviceGetMigDeviceHandleByIndex": self.part,
            "DeviceGetProcessUtilization": utilisation,
        }.items():
            monkeypatch.setattr(nv, f"nvml{name}", answer)
        lists = tuple(lambda gpu, name=name: gpu.ask(name) for name in ("compute", "graphics", "mps"))
        monkeypatch.setattr(module, "_PROCESS_LISTS", lists)

    def begin(self) -> None:
        self.begun += 1
        if self.refuses is not None:
            raise self.refuses

    def end(self) -> None:
        self.ended += 1
        raise UNABLE

    def count(self) -> int:
        if self.refuses is not None:
            raise self.refuses
        return len(self.gpus)

    def by_index(self, index: int) -> Any:
        if isinstance(self.gpus[index], nv.NVMLError):
            raise self.gpus[index]
        return self.gpus[index]

    def by_uuid(self, uuid: str) -> Any:
        self.looked_up.append(uuid)
        every = [one for gpu in self.gpus for one in (gpu, *gpu.answers["parts"]) if isinstance(one, Gpu)]
        found = [one for one in every if one.uuid == uuid]
        if not found:
            raise GONE
        return found[0]

    def part(self, gpu: Gpu, index: int) -> Any:
        part = gpu.answers["parts"][index]
        if isinstance(part, nv.NVMLError):
            raise part
        return part


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    return Driver(monkeypatch)


def process(pid: int, used: int | None) -> Any:
    return SimpleNamespace(pid=pid, usedGpuMemory=used)


def work(pid: int, at: int, cores: int, memory: int = 0) -> Any:
    return SimpleNamespace(pid=pid, timeStamp=at, smUtil=cores, memUtil=memory)


# ---- what there is -------------------------------------------------------------------------------------


def test_gpus_are_listed_with_what_the_driver_keeps(driver: Driver) -> None:
    driver.gpus = [Gpu("GPU-a"), Gpu("GPU-b", memory=UNABLE)]
    assert Nvml("nvidia").list() == [
        GpuInfo("GPU-a", 0, "Model GPU-a", 16 * GIB, GIB),
        GpuInfo("GPU-b", 1, "Model GPU-b", 16 * GIB, 0),
    ]


def test_a_divided_gpu_is_its_instances(driver: Driver) -> None:
    parts = [Gpu("MIG-1", memory=(0, 5 * GIB, 0)), GONE, Gpu("MIG-2", memory=(0, 10 * GIB, 0))]
    on, off = (nv.NVML_DEVICE_MIG_ENABLE, 1), (nv.NVML_DEVICE_MIG_DISABLE, 1)
    driver.gpus = [Gpu("GPU-a", mig=on, parts=parts), Gpu("GPU-b", mig=off, parts=[Gpu("MIG-3")])]
    driver.gpus.append(Gpu("GPU-c", mig=on))
    one = Nvml("nvidia")
    found = one.list()
    assert [(gpu.uuid, gpu.index, gpu.total // GIB) for gpu in found] == [
        ("MIG-1", 0, 5),
        ("MIG-2", 0, 10),
        ("GPU-b", 1, 16),
        ("GPU-c", 2, 16),
    ]
    assert one._whole == {"MIG-1": "GPU-a", "MIG-2": "GPU-a", "GPU-b": "GPU-b", "GPU-c": "GPU-c"}


def test_a_gpu_that_fails_hides_no_other_and_is_complained_of_once(driver: Driver, caplog: Any) -> None:
    driver.gpus = [Gpu("GPU-a"), error(LOST), Gpu("GPU-c")]
    one = Nvml("nvidia")
    for _ in range(3):
        assert [gpu.index for gpu in one.list()] == [0, 2]
    driver.refuses = error(nv.NVML_ERROR_UNKNOWN)
    assert one.list() == one.list() == []
    told = [(record.getMessage(), record.facts["gpu"]) for record in caplog.records]
    assert told == [("the driver does not answer", "#1"), ("the driver does not answer", "all")]


def test_without_a_driver_it_says_so(driver: Driver) -> None:
    driver.refuses = error(nv.NVML_ERROR_DRIVER_NOT_LOADED)
    with pytest.raises(NvmlError, match="the NVIDIA driver does not answer") as caught:
        Nvml("nvidia")
    assert caught.value.code == "no_driver" and "gpushare doctor" in str(caught.value.hint)


# ---- samples -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lists", "by_pid"),
    [
        ({}, {}),
        ({"compute": [process(1, 5), process(2, 6)]}, {1: 5, 2: 6}),
        (
            {"compute": [process(1, 5)], "graphics": [process(1, 7)], "mps": [process(1, 6), process(3, 1)]},
            {1: 7, 3: 1},
        ),
        ({"compute": UNABLE, "mps": [process(3, 1)]}, {3: 1}),
        ({"graphics": error(nv.NVML_ERROR_FUNCTION_NOT_FOUND), "compute": [process(1, 5)]}, {1: 5}),
        ({"compute": [process(1, 5), process(2, None)]}, None),
    ],
)
def test_who_uses_how_much(driver: Driver, lists: Any, by_pid: Any) -> None:
    driver.gpus = [Gpu("GPU-a", **lists)]
    assert Nvml("nvidia").sample("GPU-a") == Sample(3 * GIB, by_pid, frozenset(), {})


@pytest.mark.parametrize(
    ("told", "busy", "computing"),
    [
        (UNABLE, None, None),
        (GONE, frozenset(), {}),
        ([], frozenset(), {}),
        ([work(1, 10, 50)], {1}, {1: 0.5}),
        ([work(1, 10, 0, 3), work(2, 10, 0, 0)], {1}, {1: 0.0, 2: 0.0}),
        ([work(1, 30, 20), work(1, 10, 90)], {1}, {1: 0.2}),
        ([work(1, 10, 101), work(2, 10, 100)], {1, 2}, {1: 1.0, 2: 1.0}),
        ([work(1, 10, 99)], {1}, {1: 0.99}),
    ],
)
def test_who_computes(driver: Driver, told: Any, busy: Any, computing: Any) -> None:
    driver.gpus = [Gpu("GPU-a", utilisation=told)]
    assert Nvml("nvidia").sample("GPU-a") == Sample(3 * GIB, {}, busy, computing)


def test_each_look_at_who_computes_begins_where_the_last_one_ended(driver: Driver, monkeypatch: Any) -> None:
    """Of each GPU by itself; and a clock that was set back begins again."""
    clock = [10_000_000]
    monkeypatch.setattr(module.time, "time_ns", lambda: clock[0] * 1000)
    driver.gpus = [Gpu("GPU-a", utilisation=[work(1, 700, 1), work(2, 900, 1), work(3, 800, 1)]), Gpu("GPU-b")]
    one = Nvml("nvidia")
    for uuid in ("GPU-a", "GPU-a", "GPU-b"):
        one.sample(uuid)
    driver.gpus[0].answers["utilisation"] = []
    one.sample("GPU-a")
    one.sample("GPU-a")
    assert driver.since == [0, 900, 0, 900, 900]
    clock[0] = 400
    one.sample("GPU-a")
    assert driver.since[-1] == 400


def test_an_old_driver_tells_less_of_memory(driver: Driver) -> None:
    for code in (
        nv.NVML_ERROR_NOT_SUPPORTED,
        nv.NVML_ERROR_FUNCTION_NOT_FOUND,
        nv.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    ):
        driver.gpus = [Gpu("GPU-a", memory=error(code))]
        found = Nvml("nvidia").sample("GPU-a")
        assert found is not None and found.used == 4 * GIB


def test_a_call_that_fails_costs_a_sample_and_the_handle(driver: Driver, caplog: Any) -> None:
    driver.gpus = [Gpu("GPU-a")]
    one = Nvml("nvidia")
    assert one.sample("GPU-a") is not None and one.sample("GPU-a") is not None
    assert driver.looked_up == ["GPU-a"], "a handle is kept"
    driver.gpus[0].answers["memory"] = error(LOST)
    assert one.sample("GPU-a") is None and one.sample("GPU-a") is None
    assert driver.looked_up == ["GPU-a"] * 2 and len(caplog.records) == 1
    driver.gpus[0].answers["memory"] = (GIB, 16 * GIB, 0)
    assert one.sample("GPU-a") is not None and len(driver.looked_up) == 3
    assert one.sample("GPU-none") is None


# ---- health --------------------------------------------------------------------------------------------


def test_the_physical_gpu_is_examined(driver: Driver, monkeypatch: Any, caplog: Any) -> None:
    well = Examination((), recovered=True)
    examined: list[str] = []
    monkeypatch.setattr(module.nvml_health, "examine", lambda gpu: examined.append(gpu.uuid) or well)
    parts = [Gpu("MIG-1")]
    driver.gpus = [Gpu("GPU-a", mig=(nv.NVML_DEVICE_MIG_ENABLE, 1), parts=parts)]
    one = Nvml("nvidia")
    one.list()
    assert one.examine("MIG-1") == well and examined == ["GPU-a"]
    assert one.examine("GPU-a") == well
    parts[0].answers["memory"] = error(LOST)
    assert one.examine("MIG-1") == Examination((health_issues.lost(),)) and caplog.records == []
    assert one.examine("GPU-none") == Examination((health_issues.removed(),))
    parts[0].answers["memory"] = error(nv.NVML_ERROR_UNKNOWN)
    assert one.examine("MIG-1") is None and len(caplog.records) == 1


def test_a_gpu_that_failed_an_examination_is_looked_up_again(driver: Driver, monkeypatch: Any) -> None:
    driver.gpus = [Gpu("GPU-a")]
    one = Nvml("nvidia")
    one.sample("GPU-a")
    driver.gpus[0].answers["memory"] = error(LOST)
    one.examine("GPU-a")
    before = len(driver.looked_up)
    one.sample("GPU-a")
    assert len(driver.looked_up) == before + 1, "its handle may be of no use"


# ---- open and close ------------------------------------------------------------------------------------


def test_it_is_opened_again_to_find_other_gpus(driver: Driver, monkeypatch: Any, caplog: Any) -> None:
    monkeypatch.setattr(module.nvml_health.Faults, "_register", lambda _: None)
    driver.gpus = [Gpu("GPU-a")]
    one = Nvml("nvidia")
    one.sample("GPU-a")
    one.reopen()
    assert (driver.begun, driver.ended) == (2, 1)
    one.sample("GPU-a")
    assert driver.looked_up == ["GPU-a"] * 2, "handles of before are of no use"
    driver.refuses = error(nv.NVML_ERROR_UNKNOWN)
    one.reopen()
    assert [record.facts["gpu"] for record in caplog.records] == ["all"]
    one.close()
    assert driver.ended == 3
    one.close()
    assert driver.ended == 3, "a thread that is still in it keeps it open"


def test_a_software_driver_that_is_not_there_is_told(monkeypatch: Any, tmp_path: Any) -> None:
    monkeypatch.setattr(module, "software_driver_dir", lambda: tmp_path)
    with pytest.raises(NvmlError, match="cannot load the software driver") as caught:
        Nvml("sim")
    assert caught.value.hint == "build it with `make build`"


def test_names_are_texts() -> None:
    assert [module._text(one) for one in (b"A100 \xff", "H100")] == ["A100 \ufffd", "H100"]
