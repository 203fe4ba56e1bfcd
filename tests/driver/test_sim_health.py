"""GPUs that fall ill, by lines in the file `health` of the pool: what NVML and CUDA then say."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from simcuda import (
    GI,
    MI,
    OUT_OF_MEMORY,
    SUCCESS,
    CudaError,
    alloc,
    byref,
    c_uint64,
    c_void_p,
    cu,
    say,
    start,
    wait_line,
)

pynvml = pytest.importorskip("pynvml")

DEVICE_UNAVAILABLE, ECC_UNCORRECTABLE, LAUNCH_FAILED = 46, 214, 719


def befall(pool: str | Path, *lines: str) -> None:
    with (Path(pool) / "health").open("a") as file:
        file.write("".join(f"{line}\n" for line in lines))


def soon(condition: Any) -> None:
    """CUDA looks at the file every few milliseconds."""
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def handle(index: int = 0) -> Any:
    return pynvml.nvmlDeviceGetHandleByIndex(index)


def uncorrected(gpu: Any) -> int:
    return int(pynvml.nvmlDeviceGetTotalEccErrors(gpu, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, 0))


def recovery(gpu: Any) -> int | None:
    (value,) = pynvml.nvmlDeviceGetFieldValues(gpu, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    if value.nvmlReturn == pynvml.NVML_ERROR_NOT_SUPPORTED:
        return None
    assert value.nvmlReturn == pynvml.NVML_SUCCESS
    return int(value.value.uiVal)


def counters(pool: str) -> None:
    pynvml.nvmlInit()
    gpu, other = handle(0), handle(1)
    assert uncorrected(gpu) == 0
    assert pynvml.nvmlDeviceGetRemappedRows(gpu) == (0, 0, 0, 0)
    assert pynvml.nvmlDeviceGetRetiredPagesPendingStatus(gpu) == 0
    assert recovery(gpu) is None
    befall(pool, "gpu0 ecc 2", "gpu0 ecc 1", "gpu0 rows pending", "gpu0 pages pending", "# a remark", "gpu0 recovery 1")
    assert uncorrected(gpu) == 3
    assert pynvml.nvmlDeviceGetTotalEccErrors(gpu, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, 0) == 0
    assert pynvml.nvmlDeviceGetRemappedRows(gpu) == (0, 1, 1, 0)
    assert pynvml.nvmlDeviceGetRetiredPagesPendingStatus(gpu) == 1
    assert recovery(gpu) == 1
    befall(pool, "gpu0 rows failed")
    assert pynvml.nvmlDeviceGetRemappedRows(gpu) == (0, 2, 1, 1)
    assert uncorrected(other) == 0
    befall(pool, "gpu0 reset")
    assert (uncorrected(gpu), recovery(gpu)) == (0, 0)
    assert pynvml.nvmlDeviceGetRemappedRows(gpu) == (0, 0, 0, 0)
    befall(pool, "gpu1 ecc 1")
    (Path(pool) / "health").unlink()
    assert uncorrected(other) == 0, "without the file all are well"


def test_counters(sim: Any) -> None:
    sim.settings = "gpus=2,memory=16Gi"
    sim.run(counters, str(sim.pool))


def wrong_lines(pool: str) -> None:
    pynvml.nvmlInit()
    befall(pool, "gpu0 tired", "gpu99 lost", "gpu0 memory lots", "gpu0 xid", "gpu0 ecc 1")
    assert uncorrected(handle()) == 1


def test_lines_that_make_no_sense_are_named_and_skipped(sim: Any) -> None:
    done = sim.result(wrong_lines, str(sim.pool))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("health: cannot read") == 4
    assert "cannot read 'gpu0 tired'" in done.stderr


def loses(pool: str) -> None:
    pynvml.nvmlInit()
    gpu, other = handle(0), handle(1)
    uuid, other_uuid = pynvml.nvmlDeviceGetUUID(gpu), pynvml.nvmlDeviceGetUUID(other)
    befall(pool, "gpu0 lost")
    for question in (pynvml.nvmlDeviceGetMemoryInfo, pynvml.nvmlDeviceGetName, pynvml.nvmlDeviceGetUUID):
        with pytest.raises(pynvml.NVMLError_GpuIsLost):
            question(gpu)
    for lookup in (lambda: handle(0), lambda: pynvml.nvmlDeviceGetHandleByUUID(uuid)):
        with pytest.raises(pynvml.NVMLError_GpuIsLost):
            lookup()
    assert pynvml.nvmlDeviceGetCount() == 2
    assert pynvml.nvmlDeviceGetUUID(handle(1)) == other_uuid
    befall(pool, "gpu0 reset")
    assert pynvml.nvmlDeviceGetUUID(handle(0)) == uuid
    befall(pool, "gpu0 removed")
    assert pynvml.nvmlDeviceGetCount() == 2, "NVML looks for GPUs when it is initialised"
    pynvml.nvmlShutdown()
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetCount() == 1
    assert pynvml.nvmlDeviceGetUUID(handle(0)) == other_uuid
    assert pynvml.nvmlDeviceGetIndex(handle(0)) == 0
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetHandleByUUID(uuid)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        handle(1)
    befall(pool, "gpu0 reset")
    assert pynvml.nvmlDeviceGetCount() == 1
    pynvml.nvmlShutdown()
    pynvml.nvmlInit()
    assert [pynvml.nvmlDeviceGetUUID(handle(index)) for index in (0, 1)] == [uuid, other_uuid]


def test_nvml_loses_a_gpu(sim: Any) -> None:
    sim.settings = "gpus=2,memory=16Gi"
    sim.run(loses, str(sim.pool))


def daemon_looks(pool: str) -> None:
    """The same through the daemon's eyes."""
    from gpushared.core.health_issues import Condition
    from gpushared.gpus.nvml import Nvml

    driver = Nvml("sim")
    gpu, other = (info.uuid for info in driver.list())

    def causes(uuid: str = gpu) -> list[str]:
        found = driver.examine(uuid)
        assert found is not None
        return [one.cause for one in found.issues]

    assert causes() == []
    assert not driver.examine(gpu).recovered
    befall(pool, "gpu0 ecc 2", "gpu0 rows pending", "gpu0 pages pending")
    assert causes() == ["ecc_uncorrected", "rows_pending", "pages_pending"]
    befall(pool, "gpu0 rows failed", "gpu0 recovery 4")
    assert set(causes()) >= {"rows_failed", "recovery_drain_and_reset"}
    assert driver.examine(gpu).issues[0].data == {"count": 2}
    assert causes(other) == []
    befall(pool, "gpu0 reset")
    assert driver.examine(gpu).recovered
    threading.Timer(0.2, befall, (pool, "gpu1 xid 48", "gpu0 ecc 1")).start()
    reported = [driver.wait_for_fault(5.0), driver.wait_for_fault(5.0)]
    assert sorted((one.gpus, one.xid or 0) for one in reported) == sorted([((gpu,), 0), ((other,), 48)])
    befall(pool, "gpu0 lost")
    assert set(driver.wait_for_fault(5.0).gpus) == {gpu, other}, "which one, the driver does not say"
    assert [one.condition for one in driver.examine(gpu).issues] == [Condition.LOST]
    assert driver.sample(gpu) is None
    assert [info.uuid for info in driver.list()] == [other]
    befall(pool, "gpu0 removed")
    driver.reopen()
    assert causes() == ["removed"]
    assert driver.sample(other) is not None, "handles are looked up anew"
    befall(pool, "gpu0 reset")
    driver.reopen()
    assert [info.uuid for info in driver.list()] == [gpu, other]
    assert causes() == []
    before = time.monotonic()
    assert driver.wait_for_fault(0.2) is None
    assert time.monotonic() - before >= 0.2
    befall(pool, "gpu0 xid 13")
    assert driver.wait_for_fault(5.0).xid == 13, "it listens again to the one that was gone"
    driver.close()


def test_what_the_daemon_sees(sim: Any) -> None:
    sim.settings = "gpus=2,memory=16Gi"
    sim.run(daemon_looks, str(sim.pool))


def events(pool: str) -> None:
    pynvml.nvmlInit()
    befall(pool, "gpu0 xid 13")  # before anybody listens
    kinds = pynvml.nvmlEventTypeXidCriticalError | pynvml.nvmlEventTypeDoubleBitEccError
    listening = pynvml.nvmlEventSetCreate()
    for index in (0, 1):
        assert pynvml.nvmlDeviceGetSupportedEventTypes(handle(index)) == kinds
        pynvml.nvmlDeviceRegisterEvents(handle(index), kinds, listening)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceRegisterEvents(handle(0), pynvml.nvmlEventTypeClock, listening)
    before = time.monotonic()
    with pytest.raises(pynvml.NVMLError_Timeout):
        pynvml.nvmlEventSetWait_v2(listening, 100)
    assert time.monotonic() - before >= 0.1
    befall(pool, "gpu1 xid 31", "gpu0 xid 48", "gpu0 ecc 1")
    got = [pynvml.nvmlEventSetWait_v2(listening, 1000) for _ in range(3)]
    assert [(one.eventType, one.eventData) for one in got] == [(8, 48), (2, 0), (8, 31)]
    assert [pynvml.nvmlDeviceGetIndex(one.device) for one in got] == [0, 0, 1]
    assert got[0].gpuInstanceId == 0xFFFFFFFF
    threading.Timer(0.1, befall, (pool, "gpu0 xid 79")).start()
    assert pynvml.nvmlEventSetWait_v2(listening, 5000).eventData == 79, "while it waits"
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        pynvml.nvmlEventSetWait_v2(listening, 1000)
    pynvml.nvmlEventSetFree(listening)


def test_events(sim: Any) -> None:
    sim.settings = "gpus=2,memory=16Gi"
    sim.run(events, str(sim.pool))


def code_of_alloc() -> int:
    address = c_uint64()
    return cu.code("cuMemAlloc_v2", byref(address), MI)


def contexts(pool: str) -> None:
    start()
    alloc(GI)
    assert code_of_alloc() == SUCCESS
    befall(pool, "gpu0 rows failed", "gpu0 xid 13")
    time.sleep(0.05)
    assert code_of_alloc() == SUCCESS, "what does not concern it"
    befall(pool, "gpu0 ecc 1")
    soon(lambda: code_of_alloc() == ECC_UNCORRECTABLE)
    assert cu.code("cuCtxSynchronize") == ECC_UNCORRECTABLE, "every call from now on"
    befall(pool, "gpu0 reset")
    time.sleep(0.05)
    assert code_of_alloc() == ECC_UNCORRECTABLE, "what was broken stays broken"
    cu.cuDevicePrimaryCtxReset_v2(0)
    start()
    alloc(GI)
    befall(pool, "gpu0 lost")
    soon(lambda: code_of_alloc() == LAUNCH_FAILED)
    context = c_void_p()
    cu.cuDevicePrimaryCtxReset_v2(0)
    assert cu.code("cuDevicePrimaryCtxRetain", byref(context), 0) == DEVICE_UNAVAILABLE
    befall(pool, "gpu0 reset")
    soon(lambda: cu.code("cuDevicePrimaryCtxRetain", byref(context), 0) == SUCCESS)
    cu.cuCtxSetCurrent(context)
    assert code_of_alloc() == SUCCESS


def test_contexts_are_broken_by_what_befalls_their_gpu(sim: Any) -> None:
    sim.run(contexts, str(sim.pool))


def other_gpu(pool: str) -> None:
    start()
    befall(pool, "gpu1 lost")
    time.sleep(0.05)
    assert code_of_alloc() == SUCCESS
    context = c_void_p()
    assert cu.code("cuDevicePrimaryCtxRetain", byref(context), 1) == DEVICE_UNAVAILABLE
    say("ready")
    wait_line()


def test_a_lost_gpu_is_the_business_of_those_on_it(sim: Any) -> None:
    sim.settings = "gpus=2,memory=16Gi"
    child = sim.start(other_gpu, str(sim.pool))
    assert child.line() == "ready"
    child.end()


def shrinks(pool: str) -> None:
    pynvml.nvmlInit()
    start()
    alloc(6 * GI)
    befall(pool, "gpu0 memory 8Gi")
    soon(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle()).total == 8 * GI)
    time.sleep(0.05)  # the two libraries look at the file each for itself
    with pytest.raises(CudaError) as error:
        alloc(2 * GI)
    assert error.value.code == OUT_OF_MEMORY
    alloc(GI)
    befall(pool, "gpu0 memory 16Gi")
    soon(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle()).total == 16 * GI)
    time.sleep(0.05)
    alloc(2 * GI)


def test_memory_comes_and_goes(sim: Any) -> None:
    sim.settings = "memory=16Gi"
    sim.run(shrinks, str(sim.pool))
