"""What a program is told: CUDA and NVML agree at all times, and show the job and not the node."""

from __future__ import annotations

import json
import subprocess

import pytest
from hosts_node import SHIM

GIB = 2**30
FIRST = {"CUDA_VISIBLE_DEVICES": "0"}


def lists() -> str:
    return """
        import pynvml
        pynvml.nvmlInit()
        def pids(index=0):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            found = [one.pid for one in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
            for older in (pynvml.nvmlDeviceGetComputeRunningProcesses_v2,):
                assert [one.pid for one in older(handle)] == found
            lib, count = ctypes.CDLL("libnvidia-ml.so.1"), c_uint(64)
            class First(ctypes.Structure):
                _fields_ = (("pid", c_uint), ("used", c_ulonglong))
            first = (First * 64)()
            check(lib.nvmlDeviceGetComputeRunningProcesses(handle, byref(count), first))
            assert [one.pid for one in first[: count.value]] == found
            assert pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle) == []
            details = pynvml.nvmlDeviceGetRunningProcessDetailList(handle, pynvml.nvmlProcessDetailList_v1, 0)
            assert [one.pid for one in details] == found
            for busy in (pynvml.nvmlDeviceGetProcessUtilization, pynvml.nvmlDeviceGetProcessesUtilizationInfo):
                try:
                    assert [one.pid for one in busy(handle, 0)] == found != []
                except pynvml.NVMLError_NotFound:
                    assert found == []
            return found
    """


def test_the_processes_are_those_of_the_job(hosts):
    """Another job and a program outside of gpushare are on the same GPU: neither shows."""
    other = hosts.start("Cuda().start(); say(os.getpid()); hear()", "--limit", "2Gi", **FIRST)
    outsider = hosts.spawn(hosts.script("Cuda().start(); say(os.getpid()); hear()"), **hosts.bare())
    strangers = {json.loads(one.stdout.readline()) for one in (other, outsider)}
    ours = hosts.python(
        lists()
        + """
        import subprocess
        Cuda().start()
        worker = "from cuda_client import *; Cuda().start(); say(os.getpid()); hear()"
        worker = subprocess.Popen([sys.executable, "-c", worker], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        worker.stdout.readline()
        say([os.getpid(), worker.pid])
        say(sorted(pids()))
        lib, count = ctypes.CDLL("libnvidia-ml.so.1"), c_uint(0)
        ask = lambda: lib.nvmlDeviceGetComputeRunningProcesses_v3(pynvml.nvmlDeviceGetHandleByIndex(0), byref(count),
                                                                  None)
        say([ask(), count.value])
        count.value = 0
        ask = lambda: lib.nvmlDeviceGetProcessUtilization(pynvml.nvmlDeviceGetHandleByIndex(0), None, byref(count),
                                                          ctypes.c_ulonglong(0))
        say([ask(), count.value])
        say(pids(1))
        worker.communicate(b"")
        """,
        *("--limit", "4Gi"),
        **FIRST,
    )
    assert ours[0] == ours[1] and not strangers & set(ours[1])
    assert ours[2:] == [[7, 2], [7, 2], []], "the room that is needed is that for ours"
    truth = "import pynvml, json; pynvml.nvmlInit(); h = pynvml.nvmlDeviceGetHandleByIndex(0); print(json.dumps([p.pid"
    truth += " for p in pynvml.nvmlDeviceGetComputeRunningProcesses(h)]))"
    bare = subprocess.run(
        [*hosts.script("")[:1], "-c", truth], env=hosts.bare(), capture_output=True, text=True, check=True
    )
    assert set(json.loads(bare.stdout)) == strangers


def test_a_program_that_only_looks_sees_its_job(hosts):
    """As nvidia-smi under `gpushare run`: no context, no page, and still the job's processes and memory."""
    said = hosts.python(
        lists()
        + """
        import subprocess
        worker = "from cuda_client import *; Cuda().start().must_alloc(GiB); say(os.getpid()); hear()"
        worker = subprocess.Popen([sys.executable, "-c", worker], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        pid = json.loads(worker.stdout.readline())
        say(pids() == [pid])
        memory = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0))
        say(memory.total)
        worker.communicate(b"")
        """,
        *("--limit", "4Gi"),
        **FIRST,
    )
    assert said == [True, 4 * GIB]


def test_with_a_limit_alone_a_process_sees_itself(hosts):
    """The environment alone, no daemon: the process is its own job."""
    other = hosts.spawn(hosts.script("Cuda().start(); say(os.getpid()); hear()"), **hosts.bare())
    other.stdout.readline()
    env = hosts.bare(LD_PRELOAD=str(SHIM), GPUSHARE_LIMIT="4Gi")
    body = lists() + "    Cuda().start(); say(pids() == [os.getpid()])"
    done = subprocess.run(hosts.script(body), env=env, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "true", done.stderr


AGREE = """
    import random
    dice, cuda, nvml, held = random.Random(SEED), Cuda().start(), Nvml(), []
    limit, refused, looks = cuda.total(), 0, 0
    def look():
        first, (free, total) = nvml.memory(), cuda.info()
        second, last = nvml.memory2(), nvml.memory()
        assert total == limit == cuda.total() == first.total == second.total == last.total, total
        for one in (first, second, last):
            assert 0 <= one.free <= one.total and one.used == one.total - one.free
        assert 0 <= free <= total
        return free == first.free == second.free, (free, first.free, second.free)
    for turn in range(TURNS):
        size = dice.choice([1, 4096, MiB, 77 * MiB, 300 * MiB, GiB])
        if held and dice.random() < 0.45:
            check(cuda.free(held.pop(dice.randrange(len(held)))))
        else:
            result, pointer = cuda.alloc(size)
            assert result in (SUCCESS, OUT_OF_MEMORY)
            refused += result != SUCCESS
            held += [pointer] if result == SUCCESS else []
        same, free = look()
        for _ in range(50):  # the daemon may speak in between, but not for ever
            if same:
                break
            same, free = look()
        assert same, free
        looks += 1
    say([looks, refused, limit])
"""


@pytest.mark.parametrize("seed", [1, 2])
def test_cuda_and_nvml_agree_at_all_times(hosts, seed):
    """While another job takes and gives back memory of the same GPU."""
    noise = """
        import os
        cuda, parent = Cuda().start(), os.getppid()
        say(1)
        while os.getppid() == parent:  # the wrapper: whoever kills that must not leave this behind
            cuda.free(cuda.alloc(300 * MiB)[1])
    """
    other = hosts.start(noise, "--request", "1Gi", "--limit", "12Gi", **FIRST)
    other.stdout.readline()
    body = AGREE.replace("SEED", str(seed)).replace("TURNS", "400")
    looks, refused, limit = hosts.python(body, "--request", "2Gi", "--limit", "5Gi", **FIRST)
    assert (looks, limit) == (400, 5 * GIB) and refused > 0


def test_the_request_as_the_total(hosts):
    body = """
        cuda, nvml = Cuda().start(), Nvml()
        while cuda.alloc(512 * MiB)[0] == SUCCESS:
            memory, (free, total) = nvml.memory(), cuda.info()
            assert total == memory.total == nvml.memory2().total == cuda.total() == 2 * GiB, total
            assert 0 <= free <= total and 0 <= memory.used <= total
        say(cuda.info())
    """
    assert hosts.python(body, *("--request", "2Gi", "--limit", "5Gi"), GPUSHARE_VISIBLE="request")[1] == 2 * GIB


def test_the_switches_of_the_profiler_are_accepted(hosts):
    """Frameworks set them around a part of a run, on any driver."""
    said = hosts.python("c = Cuda().start(); say([c.cuProfilerStart(), c.cuProfilerStop()])", "--limit", "1Gi")
    assert said == [0, 0]
