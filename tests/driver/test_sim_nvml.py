"""NVML on the same pool: with nvidia-ml-py as its client, without any CUDA in the process."""

from __future__ import annotations

import ctypes
import time
from typing import Any

import pytest
from simcuda import CONTEXT, GI, MI, alloc, cu, say, start, wait_line

pynvml = pytest.importorskip("pynvml")


def worker(size: int) -> None:
    start()
    alloc(size)
    say("ready")
    wait_line()


def processes(handle: Any) -> dict[int, int]:
    return {one.pid: one.usedGpuMemory for one in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)}


def sees(workers: list[int]) -> None:
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetCount() == 2, "whatever CUDA_VISIBLE_DEVICES says"
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    expected = 2 * (CONTEXT + 10 * MI)
    assert (memory.total, memory.used, memory.free) == (16 * GI, expected + 512 * MI, 16 * GI - expected - 512 * MI)
    newer = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    assert (newer.total, newer.reserved, newer.used) == (16 * GI, 512 * MI, expected)
    assert newer.free == memory.free
    assert processes(handle) == dict.fromkeys(workers, CONTEXT + 10 * MI)
    assert processes(pynvml.nvmlDeviceGetHandleByIndex(1)) == {}
    uuid = pynvml.nvmlDeviceGetUUID(handle)
    assert pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByUUID(uuid)) == 0
    assert len(uuid) == 40
    pci = pynvml.nvmlDeviceGetPciInfo(pynvml.nvmlDeviceGetHandleByIndex(1))
    assert pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByPciBusId(pci.busId)) == 1
    assert pynvml.nvmlDeviceGetName(handle) == "gpushare software GPU"
    assert pynvml.nvmlDeviceGetMinorNumber(handle) == 0
    assert pynvml.nvmlSystemGetCudaDriverVersion_v2() == 13000
    assert pynvml.nvmlSystemGetDriverVersion().startswith("580.")
    assert pynvml.nvmlSystemGetDriverBranch().branch == "r580_00"
    assert pynvml.nvmlDeviceGetCudaComputeCapability(handle) == (9, 0)
    assert "python" in pynvml.nvmlSystemGetProcessName(workers[0])
    assert pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle) == []
    assert pynvml.nvmlDeviceGetUtilizationRates(handle).gpu == 0
    for missing in (pynvml.nvmlDeviceGetMigMode, pynvml.nvmlDeviceGetPowerUsage):
        with pytest.raises(pynvml.NVMLError_NotSupported):
            missing(handle)
    samples = pynvml.nvmlDeviceGetProcessUtilization(handle, 0)
    assert sorted(one.pid for one in samples) == sorted(workers) and {one.smUtil for one in samples} == {0}
    assert sorted(one.pid for one in pynvml.nvmlDeviceGetProcessesUtilizationInfo(handle, 0)) == sorted(workers)
    for idle in (pynvml.nvmlDeviceGetProcessUtilization, pynvml.nvmlDeviceGetProcessesUtilizationInfo):
        with pytest.raises(pynvml.NVMLError_NotFound):
            idle(pynvml.nvmlDeviceGetHandleByIndex(1), 0)
    for mode, expected in ((0, sorted(workers)), (1, []), (2, [])):
        details = pynvml.nvmlDeviceGetRunningProcessDetailList(handle, pynvml.nvmlProcessDetailList_v1, mode)
        assert sorted(one.pid for one in details) == expected
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetHandleByUUID("GPU-00000000-0000-0000-0000-000000000000")
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetHandleByIndex(2)
    with pytest.raises(pynvml.NVMLError_FunctionNotFound):
        pynvml.nvmlDeviceGetFanSpeed(handle)
    counts_then_fills()
    pynvml.nvmlInit()
    pynvml.nvmlShutdown()
    pynvml.nvmlDeviceGetCount()
    pynvml.nvmlShutdown()
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlShutdown()


def computer(threads: int) -> None:
    """Has the GPU compute for 10 ns a thread, each second, and is idle on request."""
    start()
    alloc(MI)
    kernel = function()
    say("ready")
    wait_line()
    for _ in range(12):
        cu.cuLaunchKernel(kernel, threads // 1024, 1, 1, 1024, 1, 1, 0, None, None, None)
        time.sleep(0.1)
    say("done")
    wait_line()


def function() -> int:
    module, found = ctypes.c_uint64(), ctypes.c_uint64()
    cu.cuModuleLoadData(ctypes.byref(module), b".version 8.0\n.visible .entry add() {}\0")
    cu.cuModuleGetFunction(ctypes.byref(found), module, b"add")
    return found.value


def looks(light: int, heavy: int) -> None:
    """A tenth of the time, and half of it; then nothing."""
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    utilisation(handle)
    for _ in range(2):
        say("look")
        wait_line()
        found = utilisation(handle)
        say(f"{found.get(light, -1)} {found.get(heavy, -1)} {pynvml.nvmlDeviceGetUtilizationRates(handle).gpu}")
    assert light != heavy


def utilisation(handle: Any) -> dict[int, int]:
    return {one.pid: one.smUtil for one in pynvml.nvmlDeviceGetProcessUtilization(handle, 0)}


def test_what_computes_is_seen(sim: Any) -> None:
    light, heavy = sim.start(computer, 1024 * 1000), sim.start(computer, 1024 * 5000)
    assert light.line() == heavy.line() == "ready"
    watch = sim.start(looks, light.pid, heavy.pid)
    assert watch.line() == "look"
    light.tell()
    heavy.tell()
    time.sleep(1.0)
    watch.tell()
    few, many, both = map(int, watch.line().split())
    assert 4 <= few <= 20 and 25 <= many <= 75 and abs(both - few - many) <= 2, (few, many, both)
    assert light.line() == heavy.line() == "done"
    assert watch.line() == "look"
    time.sleep(1.2)
    watch.tell()
    few, many, both = map(int, watch.line().split())
    assert few <= 4 and many <= 25, "of the last second or so"
    for one in (light, heavy, watch):
        one.end()


def counts_then_fills() -> None:
    library = ctypes.CDLL("libnvidia-ml.so.1")
    handle, count = ctypes.c_void_p(), ctypes.c_uint(0)
    assert library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)) == 0
    name = "nvmlDeviceGetComputeRunningProcesses_v3"
    assert getattr(library, name)(handle, ctypes.byref(count), None) == 7
    assert count.value == 2
    one = (pynvml.c_nvmlProcessInfo_v3_t * 1)()
    count.value = 1
    assert getattr(library, name)(handle, ctypes.byref(count), one) == 7
    assert (count.value, one[0].pid) == (2, 0)
    small = ctypes.create_string_buffer(8)
    assert library.nvmlDeviceGetUUID(handle, small, 8) == 7
    assert library.nvmlDeviceGetUUID(ctypes.c_void_p(4096), small, 8) == 2


def test_nvml(sim: Any) -> None:
    sim.settings = "gpus=2,memory=16Gi,reserved=512Mi"
    workers = [sim.start(worker, 9 * MI, CUDA_VISIBLE_DEVICES="0") for _ in range(2)]
    for one in workers:
        assert one.line() == "ready"
    sim.run(sees, [one.pid for one in workers], CUDA_VISIBLE_DEVICES="1")


def watches() -> None:
    """A process that looks on from before to after, as the daemon does."""
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    say("looking")
    while command := wait_line():
        say(len(processes(handle)), pynvml.nvmlDeviceGetMemoryInfo(handle).used, command)


def test_kill_and_teardown_are_seen_and_attributed(sim: Any) -> None:
    sim.settings = "memory=8Gi,teardown=300ms"
    watcher = sim.start(watches)
    assert watcher.line() == "looking"
    child = sim.start(worker, GI)
    child.line()

    def look() -> str:
        watcher.tell("now")
        return watcher.line()

    full = f"1 {GI + CONTEXT} now"
    assert look() == full
    child.kill()
    assert look() == full, "dead, and still charged to its pid"
    deadline = time.monotonic() + 10
    while look() != "0 0 now":
        assert time.monotonic() < deadline


def both_in_one_process() -> None:
    start()
    alloc(GI)
    pynvml.nvmlInit()
    for _ in range(3):
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        assert list(processes(handle).values()) == [GI + CONTEXT], "it does not take itself for dead"
        pynvml.nvmlShutdown()
        pynvml.nvmlInit()
    say("ready")
    wait_line()
    cu.cuDevicePrimaryCtxReset_v2(0)
    assert processes(pynvml.nvmlDeviceGetHandleByIndex(0)) == {}


def test_cuda_and_nvml_in_one_process(sim: Any) -> None:
    child = sim.start(both_in_one_process)
    child.line()
    assert sim.run(used_by_others) == f"{GI + CONTEXT}\n", "alive for others too, after an nvmlShutdown"
    child.end()


def used_by_others() -> None:
    pynvml.nvmlInit()
    say(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used)


def start_code() -> None:
    try:
        pynvml.nvmlInit()
        say("started")
    except pynvml.NVMLError as error:
        say(error.value)


def test_wrong_settings(sim: Any) -> None:
    done = sim.result(start_code, GPUSHARE_SIM="memroy=4Gi")
    assert done.stdout == "2\n"
    assert "unknown key 'memroy'" in done.stderr


def structures() -> None:
    import re
    import subprocess
    from pathlib import Path

    names = {
        "nvmlMemory_t": pynvml.c_nvmlMemory_t,
        "nvmlMemory_v2_t": pynvml.c_nvmlMemory_v2_t,
        "nvmlPciInfo_t": pynvml.nvmlPciInfo_t,
        "nvmlProcessInfo_t": pynvml.c_nvmlProcessInfo_v3_t,
        "nvmlUtilization_t": pynvml.c_nvmlUtilization_t,
        "nvmlProcessUtilizationSample_t": pynvml.c_nvmlProcessUtilizationSample_t,
        "nvmlEventData_t": pynvml.c_nvmlEventData_t,
        "nvmlFieldValue_t": pynvml.c_nvmlFieldValue_t,
    }
    shim = Path(__file__).resolve().parents[2] / "shim"
    lines = [
        f'_Static_assert(sizeof({name}) == {ctypes.sizeof(kind)}, "");'
        + "".join(
            f'_Static_assert(offsetof({name}, {field[0]}) == {getattr(kind, field[0]).offset}, "");'
            for field in kind._fields_
            if not field[0].startswith("reserved") or name == "nvmlMemory_v2_t"
        )
        for name, kind in names.items()
    ]
    text = '#include "nvml_abi.h"\n' + "\n".join(lines)
    text += f'\n_Static_assert(NVML_VERSION(nvmlMemory_v2_t, 2) == {pynvml.nvmlMemory_v2}u, "");\n'
    subprocess.run(["cc", f"-I{shim}", "-fsyntax-only", "-x", "c", "-"], input=text, text=True, check=True)
    assert len(re.findall("offsetof", text)) > 20


def test_declarations_match_nvidia_ml_py() -> None:
    structures()
