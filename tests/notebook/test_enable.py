"""gpushare.enable() in a process that runs already: it holds each way to the driver, or says plainly why not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import gpushare.attach
from gpushare.presence import attach_library, loaded_driver
from integration.node import MIB, ROOT, Node

SIM = ROOT / "gpushare" / "sim"

ENABLE = """
import gpushare
enabled = gpushare.enable(request="1Gi", limit="2Gi")
assert enabled.changed and enabled.how == "late", enabled
assert "request 1.0 GiB, limit 2.0 GiB" in repr(enabled), enabled
"""
ALONE = """
import gpushare
enabled = gpushare.enable(limit="2Gi")
"""
NUMBA = """
import numpy as np
from numba import cuda
assert cuda.current_context().get_memory_info().total == 2 * 2**30
cuda.device_array(2**30, dtype=np.uint8)
try:
    cuda.device_array(3 * 2**30, dtype=np.uint8)
except cuda.cudadrv.driver.CudaAPIError as error:
    assert "OUT_OF_MEMORY" in str(error), error
else:
    raise AssertionError("3 GiB under a limit of 2")
"""
BINDINGS = """
from cuda.bindings import driver
assert driver.cuInit(0)[0] == 0
status, context = driver.cuDevicePrimaryCtxRetain(0)
driver.cuCtxSetCurrent(context)
assert driver.cuMemGetInfo()[2] == 2 * 2**30, driver.cuMemGetInfo()
assert driver.cuMemAlloc(2**28)[0].name == "CUDA_SUCCESS"
assert driver.cuMemAlloc(3 * 2**30)[0].name == "CUDA_ERROR_OUT_OF_MEMORY"
"""
NVML = """
import pynvml
pynvml.nvmlInit()
memory = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0))
"""
LINKED = """
#include <stddef.h>
int cuInit(unsigned), cuDeviceGet(int *, int), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);
int cuMemGetInfo_v2(size_t *, size_t *), cuDriverGetVersion(int *);
size_t total(void) {
    size_t available, all = 0;
    void *context;
    cuInit(0);
    cuDevicePrimaryCtxRetain(&context, 0);
    cuCtxSetCurrent(context);
    cuMemGetInfo_v2(&available, &all);
    return all;
}
int version(void) {
    int number = 0;
    cuDriverGetVersion(&number);
    return number;
}
"""
REFUSED = """
import os
import gpushare
before = dict(os.environ)
try:
    gpushare.enable(limit="2Gi")
except gpushare.errors.GpushareError as error:
    print(error.code, error.render())
    assert dict(os.environ) == before
else:
    raise AssertionError("it was enabled")
"""

TELL = "print(open('/proc/self/maps').read())"


def python(node: Node, program: str, **env: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-c", program]
    return subprocess.run(line, env=node.env | env, capture_output=True, text=True, timeout=60)


def succeeds(node: Node, program: str, **env: str) -> str:
    done = python(node, program, **env)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "program",
    [
        f"import numba\n{ENABLE}{NUMBA}",
        f"{ENABLE}import numba\n{NUMBA}",
        f"from cuda.bindings import driver\n{ENABLE}{BINDINGS}",
        f"{ENABLE}{BINDINGS}{NVML}assert memory.total == 2 * 2**30, memory",
    ],
    ids=["numba before", "numba after", "cuda.bindings before", "cuda.bindings and NVML after"],
)
def test_clients_keep_to_the_budget(node: Node, program: str) -> None:
    succeeds(node, program)


def test_it_is_a_job_and_its_children_are_in_it(node: Node) -> None:
    asks = "import gpushare\nagain = gpushare.enable(limit='9Gi')\nprint(again.how, again.changed)"
    program = f"""{ENABLE}{BINDINGS}
import os, subprocess, sys
print(gpushare.enable(limit="9Gi").how)
job = gpushare.status()["jobs"][0]
assert job["limit_source"] == "gpushare.enable(limit=...)", job
assert [process["pid"] for process in job["processes"]] == [os.getpid()]
subprocess.run([sys.executable, "-c", {BINDINGS!r}], check=True)
subprocess.run([sys.executable, "-c", {asks!r}], check=True)
sys.stdout.flush()
if os.fork() == 0:
    from gpushare.presence import presence
    os.write(1, presence().value.encode())
    os._exit(0)
os.wait()
"""
    done = python(node, program, GPUSHARE_LIMIT="5Gi", GPUSHARE_NAME="cell")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["late", "preloaded", "False", "late"]
    assert "nothing is changed" in done.stderr
    assert "limit   2.0 GiB" in done.stderr, "what is given wins over the environment"


def test_a_forked_worker_is_in_the_job(node: Node) -> None:
    program = f"""{ENABLE}
import os
if os.fork() == 0:
    try:
        exec({BINDINGS!r})
        job = gpushare.status()["jobs"][0]
        mine = [process["pid"] for process in job["processes"]] == [os.getpid()]
        print(job["gpus"][0]["accounted"], mine, flush=True)
    finally:
        os._exit(0)
os.wait()
"""
    assert succeeds(node, program).split() == [str(256 * MIB), "True"]


def test_libraries_that_are_linked_with_the_driver(node: Node, tmp_path: Path) -> None:
    """They look nothing up: the loader binds them, to the shim and behind it to the driver."""
    source = tmp_path / "linked.c"
    source.write_text(LINKED)
    (tmp_path / "libcuda.so").symlink_to(SIM / "libcuda.so.1")
    compiler = [os.environ.get("CC", "cc"), "-shared", "-fPIC", str(source), f"-L{tmp_path}", "-lcuda"]
    subprocess.run([*compiler, "-o", str(tmp_path / "linked.so")], check=True)
    program = f"""{ENABLE}
import ctypes
linked = ctypes.CDLL("{tmp_path}/linked.so")
linked.total.restype = ctypes.c_size_t
print(linked.total(), linked.version())
"""
    assert succeeds(node, program).split() == [str(2048 * MIB), "13000"]


def test_the_path_of_an_installed_driver(node: Node) -> None:
    """As on a machine with NVIDIA's: the loader finds it, by the search path that this process was started with."""
    program = "import os\nos.environ['LD_LIBRARY_PATH'] = '/nowhere'\n"
    program += f"{ALONE}{BINDINGS}{NVML}print(memory.total, enabled)"
    env = {"GPUSHARE_DRIVER": "nvidia", "LD_LIBRARY_PATH": str(SIM)}
    out = succeeds(node, program, **env, GPUSHARE_SOCKET=str(node.directory / "none.sock"))
    assert out.startswith(f"{2048 * MIB} gpushare: limit 2Gi for this process by itself")
    (directory,) = (node.directory / "gpushare" / "late").iterdir()
    assert (directory / "libgpushare-real-cuda.so.1").readlink() == SIM / "libcuda.so.1"
    if not Path("/dev/nvidiactl").exists():
        assert "no_driver" in succeeds(node, REFUSED, GPUSHARE_DRIVER="nvidia")


def test_lending_reaches_a_late_job(node: Node) -> None:
    node.start_daemon()
    program = f"""
import gpushare
gpushare.enable(request="1Gi", limit="12Gi", name="late")
{BINDINGS.partition("assert driver.cuMemGetInfo")[0]}
assert driver.cuMemAlloc({10 * 1024 * MIB})[0].name == "CUDA_SUCCESS"
job = gpushare.status()["jobs"][0]
print(job["name"], job["state"], job["gpus"][0]["loan"] > 9 * 2**30, job["lend"])
"""
    assert succeeds(node, program).split() == ["late", "borrowing", "True", "True"]


@pytest.mark.parametrize(
    ("first", "says"),
    [
        ("from numba import cuda", "though not started"),
        ("from cuda.bindings import driver; driver.cuInit(0)", "CUDA runs in this process"),
        (f"import ctypes; driver = ctypes.CDLL('{SIM}/libcuda.so.1')", "though not started"),
    ],
    ids=["numba.cuda imported", "CUDA initialised", "by absolute path"],
)
def test_too_late_is_said_and_nothing_is_changed(node: Node, first: str, says: str) -> None:
    out = succeeds(node, f"{first}\n{REFUSED}", LD_LIBRARY_PATH=str(SIM))
    assert out.startswith("too_late") and says in out and "restart the kernel" in out, out
    assert str(SIM / "libcuda.so.1") in out
    assert not node.runtime.exists(), "no daemon was started for nothing"


def test_what_the_self_check_finds_takes_everything_back(node: Node, tmp_path: Path) -> None:
    """Another library has the name that numba asks for first."""
    other = tmp_path / "other.so"
    subprocess.run([os.environ.get("CC", "cc"), "-shared", "-x", "c", "/dev/null", "-o", str(other)], check=True)
    (tmp_path / "libcuda.so").symlink_to(other)
    node.start_daemon()
    program = f"import ctypes\nctypes.CDLL('libcuda.so')\n{REFUSED}{REFUSED}\nfrom gpushare.presence import presence\n"
    out = succeeds(node, f"{program}print(presence().value)", LD_LIBRARY_PATH=str(tmp_path))
    assert out.startswith("not_in_the_way") and "another library answers to this name" in out
    assert "too_late" in out and out.endswith("absent\n")
    assert not node.api("GET", "/v1/status")["jobs"]


@pytest.mark.parametrize(
    ("amounts", "budget"),
    [
        ("limit=2 * 2**30", "request 2.0 GiB, limit 2.0 GiB"),
        ("request=1.5 * 2**30, limit=0.25", "request 1.5 GiB, limit 4.0 GiB"),
        ("gpushare.Quantity.parse('50%')", "request 8.0 GiB, limit 8.0 GiB"),
    ],
)
def test_amounts_may_be_numbers(node: Node, amounts: str, budget: str) -> None:
    node.start_daemon()
    assert succeeds(node, f"import gpushare\nprint(gpushare.enable({amounts}))").rstrip().endswith(f": {budget}")


def test_preloaded_processes_are_left_as_they_are(node: Node) -> None:
    program = "\n".join(
        [
            "import gpushare",
            "print(gpushare.enable(limit='9Gi'))",
            "print(gpushare.status()['jobs'][0]['limit_source'])",
        ]
    )
    done = node.gpushare("run", "--limit", "2Gi", sys.executable, "-c", program)
    assert "since it started; nothing is changed" in done.stdout and done.stdout.endswith("--limit\n"), done.stderr
    library = node.gpushare("shim-path").stdout.strip()
    assert "without a budget" in succeeds(node, REFUSED, LD_PRELOAD=library)


def test_nvml_that_was_there_before_is_said(node: Node) -> None:
    done = python(node, f"{NVML}{ENABLE}{BINDINGS}", LD_LIBRARY_PATH=str(SIM))
    assert done.returncode == 0, done.stderr
    assert "NVML was loaded before" in done.stderr


def test_without_a_daemon_the_limit_holds_alone(node: Node) -> None:
    done = python(
        node,
        f"{ALONE}print(enabled){BINDINGS}",
        GPUSHARE_SOCKET=str(node.directory / "none.sock"),
        LD_LIBRARY_PATH=str(SIM),
    )
    assert done.returncode == 0, done.stderr
    assert "limit 2Gi for this process by itself" in done.stdout


def test_the_job_is_named_after_the_notebook(node: Node) -> None:
    assert "job fit-2 (" in succeeds(node, f"{ENABLE}print(enabled)", JPY_SESSION_NAME="/home/alice/fit-2.ipynb")


def test_a_bad_amount_is_refused_as_on_the_command_line(node: Node) -> None:
    out = succeeds(node, REFUSED.replace('"2Gi"', '"2g"'))
    assert out.startswith("bad_quantity") and "2Gi (2^30)" in out


def test_the_private_directory(node: Node, tmp_path: Path) -> None:
    succeeds(node, ENABLE)
    farm = node.runtime / "late"
    (directory,) = farm.iterdir()
    assert [path.stat().st_mode & 0o777 for path in (farm, directory)] == [0o700, 0o700]
    assert (directory / "libcuda.so.1").readlink() == attach_library()
    assert (directory / "libgpushare-real-cuda.so.1").readlink() == SIM / "libcuda.so.1"


def test_the_library_finds_its_neighbours_before_all_others() -> None:
    """RPATH, because RUNPATH would come after LD_LIBRARY_PATH."""
    read = subprocess.run(["readelf", "-d", str(attach_library())], capture_output=True, text=True, check=True).stdout
    assert "(RPATH)" in read and "[$ORIGIN]" in read and "RUNPATH" not in read
    assert "SONAME" in read and "[libcuda.so.1]" in read
    assert "[libgpushare-real-cuda.so.1]" in read


def test_the_driver_is_looked_for_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a child: here it would be loaded by looking."""
    monkeypatch.setattr(gpushare.attach, "FIND_DRIVER", f"import ctypes\nctypes.CDLL('{SIM}/libcuda.so.1')\n" + TELL)
    found = gpushare.attach._search(os.environ)
    assert found == {"cuda": str(SIM / "libcuda.so.1")}
    assert loaded_driver() is None
