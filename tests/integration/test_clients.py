"""Main job: programs that know nothing of gpushare run unchanged under `gpushare run` and see their budget."""

from __future__ import annotations

import subprocess
import sys

import pytest

from integration.node import GIB, ROOT, Node

NUMBA = """
import numpy as np
from numba import cuda
free, total = cuda.current_context().get_memory_info()
assert total == 2 * 2**30, total
host = np.arange(1 << 20, dtype=np.float32)
device = cuda.to_device(host)
again = device.copy_to_host()
assert (again == host).all()
less, total_again = cuda.current_context().get_memory_info()
assert total_again == total and less == free - host.nbytes, (free, less)
del device
cuda.current_context().memory_manager.deallocations.clear()
assert cuda.current_context().get_memory_info()[0] == free
try:
    cuda.device_array(3 * 2**30, dtype=np.uint8)
except cuda.cudadrv.driver.CudaAPIError as error:
    assert "OUT_OF_MEMORY" in str(error), error
else:
    raise AssertionError("3 GiB under a limit of 2")
print("numba-cuda is content")
"""

CUDA_CORE = """
from cuda.core import Device
from cuda.bindings import driver
device = Device(0)
device.set_current()
status, free, total = driver.cuMemGetInfo()
assert total == 2 * 2**30, total
stream = device.create_stream()
buffer = device.allocate(64 << 20, stream=stream)
stream.sync()
status, less, _ = driver.cuMemGetInfo()
assert less <= free - (64 << 20), (free, less)
data = bytes(range(256)) * 4
driver.cuMemcpyHtoD(int(buffer.handle), data, len(data))
back = bytearray(len(data))
driver.cuMemcpyDtoH(back, int(buffer.handle), len(data))
assert bytes(back) == data
try:
    device.allocate(3 << 30, stream=stream)
except Exception as error:
    assert "OUT_OF_MEMORY" in str(error), error
else:
    raise AssertionError("3 GiB under a limit of 2")
buffer.close()
print("cuda.core is content")
"""

NVML = """
import pynvml
from cuda.bindings import driver
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
assert pynvml.nvmlDeviceGetMemoryInfo(handle).total == 2 * 2**30
driver.cuInit(0)
_, context = driver.cuDevicePrimaryCtxRetain(0)
driver.cuCtxSetCurrent(context)
_, pointer = driver.cuMemAlloc(2**30)
_, free, total = driver.cuMemGetInfo()
memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
assert (memory.free, memory.total) == (free, total), (memory.free, free)
assert memory.used == total - free
print("NVML agrees")
"""


@pytest.mark.parametrize(
    ("program", "says"),
    [(NUMBA, "numba-cuda is content"), (CUDA_CORE, "cuda.core is content"), (NVML, "NVML agrees")],
    ids=["numba-cuda", "cuda.core", "NVML"],
)
def test_python_clients(node: Node, program: str, says: str) -> None:
    done = node.gpushare("run", "--limit", "2Gi", sys.executable, "-c", program)
    assert done.returncode == 0, done.stderr
    assert says in done.stdout


@pytest.mark.parametrize("binary", ["puppet-linked", "puppet-dlopen"])
def test_programs_that_link_and_programs_that_open(node: Node, binary: str) -> None:
    a = node.puppet("A", "--limit", "2Gi", binary=binary)
    assert a.do("info")[1] == str(2 * GIB)
    a.alloc(GIB)
    assert a.try_(f"alloc {GIB}")[:2] == ["error", "2"]
    a.do("free all")
    a.alloc(1.5 * GIB)
    assert node.job("A")["gpus"][0]["accounted"] == 1.5 * GIB
    assert a.end() == 0


def test_visible_request(node: Node) -> None:
    a = node.puppet("A", "--request", "2Gi", "--limit", "6Gi", "--visible", "request")
    assert a.do("info")[1] == str(2 * GIB)
    a.alloc(3 * GIB)
    assert a.end() == 0


def test_without_a_daemon_the_limit_still_holds(node: Node) -> None:
    """LD_PRELOAD by hand and the environment alone."""
    path = node.gpushare("shim-path").stdout.strip()
    line = [str(node.puppets / "puppet-dlopen")]
    sim = str(ROOT / "gpushare" / "sim")
    env = node.env | {"LD_PRELOAD": path, "LD_LIBRARY_PATH": sim, "GPUSHARE_LIMIT": "2Gi"}
    orders = f"open 0\ninfo\nalloc {GIB}\nalloc {GIB + 1}\nalloc {GIB // 2}\nquit\n"
    done = subprocess.run(line, env=env, input=orders, capture_output=True, text=True, timeout=20)
    answers = [answer.split()[0] for answer in done.stdout.splitlines()]
    assert answers == ["ok", "ok", "ok", "error", "ok"]
    assert done.stdout.splitlines()[1].split()[2] == str(2 * GIB)
    assert done.stderr.count("no gpushare daemon") == 1


def test_the_environment_alone_with_a_daemon(node: Node) -> None:
    """A job of its own: it lends and borrows like any other."""
    node.start_daemon()
    path = node.gpushare("shim-path").stdout.strip()
    env = {
        "LD_PRELOAD": path,
        "LD_LIBRARY_PATH": str(ROOT / "gpushare" / "sim"),
        "GPUSHARE_SOCKET": str(node.runtime / "api.sock"),
    }
    program = node.spawn(
        [str(node.puppets / "puppet-dlopen")], **env, GPUSHARE_REQUEST="1Gi", GPUSHARE_LIMIT="4Gi", GPUSHARE_NAME="nb"
    )
    assert program.stdin is not None
    assert program.stdout is not None
    program.stdin.write(f"open 0\nalloc {2 * GIB}\n")
    assert program.stdout.readline() == "ok\n"
    assert program.stdout.readline().startswith("ok")
    job = node.job("nb")
    assert job["gpus"][0]["request"] == GIB
    assert job["gpus"][0]["limit"] == 4 * GIB
    assert job["state"] == "borrowing"
    program.stdin.write("quit\n")
    assert program.wait(20) == 0


def test_inert_without_a_budget(node: Node) -> None:
    path = node.gpushare("shim-path").stdout.strip()
    env = node.env | {"LD_PRELOAD": path, "LD_LIBRARY_PATH": str(ROOT / "gpushare" / "sim")}
    orders = f"open 0\ninfo\nalloc {15 * GIB}\nquit\n"
    line = [str(node.puppets / "puppet-dlopen")]
    done = subprocess.run(line, env=env, input=orders, capture_output=True, text=True, timeout=20)
    assert [answer.split()[0] for answer in done.stdout.splitlines()] == ["ok", "ok", "ok"]
    assert done.stderr == ""
