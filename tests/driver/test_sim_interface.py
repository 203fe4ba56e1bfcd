"""What the libraries export, how functions are found, devices, settings, faults."""

from __future__ import annotations

import re
import subprocess
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint64, c_void_p, cast, create_string_buffer
from pathlib import Path
from typing import Any

import pytest
from simcuda import (
    GI,
    INVALID_DEVICE,
    INVALID_VALUE,
    MI,
    NO_DEVICE,
    NOT_FOUND,
    NOT_SUPPORTED,
    OUT_OF_MEMORY,
    alloc,
    cu,
    integer,
    pointer,
    refuses,
    say,
    start,
)

import functions_def

ROOT = Path(__file__).resolve().parents[2]
# There is no display here for a context to share its memory with.
DISPLAYS = {"cuGLCtxCreate", "cuGLCtxCreate_v2", "cuVDPAUCtxCreate", "cuVDPAUCtxCreate_v2"}


def rows() -> list[tuple[str, str, int, str, str]]:
    return [(row.base, row.symbol, row.since, row.stream, row.rule) for row in functions_def.rows()]


def exported(library: Path) -> set[str]:
    done = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True)
    return {line.split()[2] for line in done.stdout.splitlines()}


def test_cuda_exports(sim_libraries: Path) -> None:
    names = exported(sim_libraries / "libcuda.so.1")
    assert names <= {symbol for _, symbol, *_ in rows()}
    hooked = {symbol for _, symbol, _, _, rule in rows() if rule == "HOOK"}
    assert hooked - names - DISPLAYS == set()
    assert len(names) > 330
    checkpoint = {name for name in names if name.startswith("cuCheckpoint")}
    steps = ("GetState", "Lock", "Checkpoint", "Restore", "Unlock")
    assert checkpoint == {f"cuCheckpointProcess{step}" for step in steps}, "no restore thread, no storage of a caller's"


def test_nvml_exports(sim_libraries: Path) -> None:
    text = (ROOT / "shim" / "nvml.def").read_text()
    assert exported(sim_libraries / "libnvidia-ml.so.1") == set(re.findall(r"^NVML_FN\((\w+), ", text, re.MULTILINE))


@pytest.mark.parametrize("name", ["libcuda.so.1", "libnvidia-ml.so.1"])
def test_libraries_need_libc_only(sim_libraries: Path, name: str) -> None:
    done = subprocess.run(["readelf", "-d", sim_libraries / name], capture_output=True, text=True, check=True)
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", done.stdout))
    # The two others are parts of the C library too, and hold nothing since glibc 2.34.
    of_libc = {"libc.so.6", "libdl.so.2", "libpthread.so.0"}
    assert {name for name in needed if not name.startswith("ld-linux")} == of_libc
    assert re.findall(r"SONAME.*\[(.*)\]", done.stdout) == [name]
    assert "RUNPATH" not in done.stdout
    assert "INIT_ARRAYSZ" not in done.stdout or re.search(r"INIT_ARRAYSZ\)\s+8 ", done.stdout), "no constructor of ours"


def expected(table: list[tuple[str, str, int, str]], base: str, version: int, per_thread: bool) -> str | None:
    """The rule in three lines, independently of the C."""
    mine = [row for row in table if row[0] == base]
    twins = [row for row in mine if row[3] == "PER_THREAD"]
    fitting = [
        row for row in (twins if per_thread and twins else [r for r in mine if r[3] == "LEGACY"]) if row[2] <= version
    ]
    return max(fitting, key=lambda row: row[2])[1] if fitting else None


def resolves_everything() -> None:
    names = {symbol for _, symbol, *_ in rows() if hasattr(cu.library, symbol)}
    table = [(base, symbol, since, stream) for base, symbol, since, stream, _ in rows() if symbol in names]
    bases = sorted({row[0] for row in rows()})
    versions = sorted({row[2] for row in rows()} | {1999, 2000, 3019, 6999, 11029, 12999, 13000, 99999})
    known = {cast(getattr(cu.library, symbol), c_void_p).value: symbol for symbol in names}
    assert len(known) == len(names), "every function has an address of its own"
    checked = 0
    for base in bases:
        there = any(row[0] == base for row in table)
        for version in versions:
            for flags in (0, 1, 2, 3):
                result, status = c_void_p(1), c_int(-1)
                code = cu.code("cuGetProcAddress_v2", base.encode(), byref(result), version, flags, byref(status))
                want = expected(table, base, version, flags >= 2)
                got = known.get(result.value) if result.value else None
                assert (code, got) == (0, want), (base, version, flags)
                assert status.value == (0 if want else 2 if there else 1), (base, version, flags)
                result = c_void_p(1)
                code = cu.code("cuGetProcAddress", base.encode(), byref(result), version, flags)
                assert (code, result.value) == (
                    (0, cast(getattr(cu.library, want), c_void_p).value) if want else (500, 1)
                )
                checked += 1
    say(checked)


def test_get_proc_address_of_everything(sim: Any) -> None:
    sim.settings = "driver_version=13050"
    assert int(sim.run(resolves_everything)) > 50_000


def resolution_corners() -> None:
    def ask(name: bytes, version: int, flags: int) -> tuple[int, int | None]:
        result = c_void_p(7)
        return cu.code("cuGetProcAddress_v2", name, byref(result), version, flags, None), result.value

    def address(symbol: str) -> int | None:
        return cast(getattr(cu.library, symbol), c_void_p).value

    assert ask(b"cuMemAlloc_v2", 13000, 0) == (0, None), "base names only"
    assert ask(b"", 0, 0) == (0, None)
    assert ask(b"cuMemAlloc", 2000, 0) == (0, address("cuMemAlloc"))
    assert ask(b"cuMemAlloc", 3020, 0) == (0, address("cuMemAlloc_v2"))
    assert ask(b"cuMemAlloc", -1, 0) == (0, address("cuMemAlloc_v2"))
    assert ask(b"cuMemAllocAsync", 11020, 2) == (0, address("cuMemAllocAsync_ptsz"))
    assert ask(b"cuMemcpyHtoD", 6999, 2) == (0, None)
    assert ask(b"cuMemcpyHtoD", 7000, 2) == (0, address("cuMemcpyHtoD_v2_ptds"))
    assert ask(b"cuMemAlloc", 13000, 4)[0] == INVALID_VALUE
    assert ask(b"cuGetProcAddress", 11030, 0) == (0, address("cuGetProcAddress"))
    assert ask(b"cuGetProcAddress", 12000, 0) == (0, address("cuGetProcAddress_v2"))
    assert cu.code("cuGetProcAddress", b"cuMemAlloc_v2", byref(c_void_p(7)), 13000, 0) == NOT_FOUND
    assert cu.code("cuGetProcAddress", None, byref(c_void_p(7)), 13000, 0) == INVALID_VALUE
    assert cu.code("cuGetExportTable", byref(c_void_p()), create_string_buffer(16)) == NOT_FOUND


def test_resolution_corners(sim: Any) -> None:
    sim.run(resolution_corners)


def resolves_for_an_old_driver() -> None:
    result, status = c_void_p(), c_int()
    cu.cuGetProcAddress_v2(b"cuCtxCreate", byref(result), 13000, 0, byref(status))
    assert result.value == cast(cu.library.cuCtxCreate_v3, c_void_p).value
    cu.cuGetProcAddress_v2(b"cuMemGetMemPool", byref(result), 13000, 0, byref(status))
    assert (result.value, status.value) == (None, 1)
    assert integer("cuDriverGetVersion") == 12040


def test_an_older_driver_has_no_newer_functions(sim: Any) -> None:
    sim.settings = "driver_version=12040"
    sim.run(resolves_for_an_old_driver)


def devices() -> None:
    refuses(3, "cuDeviceGetCount", byref(c_int()))
    refuses(INVALID_VALUE, "cuInit", 1)
    cu.cuInit(0)
    cu.cuInit(0)
    assert integer("cuDeviceGetCount") == 2
    name = create_string_buffer(64)
    cu.cuDeviceGetName(name, 64, 1)
    assert name.value == b"My, GPU"
    cu.cuDeviceGetName(name, 4, 1)
    assert name.value == b"My,"
    total = c_size_t()
    cu.cuDeviceTotalMem_v2(byref(total), 1)
    assert total.value == 24 * GI - 512 * MI, "less what the driver keeps"
    attributes = {75: 9, 76: 0, 10: 32, 1: 1024, 41: 1, 83: 1, 102: 1, 115: 1, 16: 132, 132: 0}
    assert {number: integer("cuDeviceGetAttribute", number, 0) for number in attributes} == attributes
    refuses(INVALID_VALUE, "cuDeviceGetAttribute", byref(c_int()), 0, 0)
    refuses(INVALID_VALUE, "cuDeviceGetAttribute", byref(c_int()), 500, 0)
    refuses(INVALID_DEVICE, "cuDeviceGetAttribute", byref(c_int()), 1, 2)
    refuses(INVALID_DEVICE, "cuDeviceGet", byref(c_int()), 2)
    refuses(INVALID_DEVICE, "cuDeviceGet", byref(c_int()), -1)
    refuses(NOT_SUPPORTED, "cuDeviceGetLuid", create_string_buffer(8), byref(c_int()), 0)
    bus = create_string_buffer(16)
    cu.cuDeviceGetPCIBusId(bus, 16, 1)
    assert integer("cuDeviceGetByPCIBusId", bus.value) == 1
    refuses(INVALID_DEVICE, "cuDeviceGetByPCIBusId", byref(c_int()), b"0000:77:00.0")
    first, second = create_string_buffer(16), create_string_buffer(16)
    cu.cuDeviceGetUuid(first, 0)
    cu.cuDeviceGetUuid_v2(second, 1)
    assert first.raw != second.raw
    text = c_char_p()
    cu.cuGetErrorName(2, byref(text))
    assert text.value == b"CUDA_ERROR_OUT_OF_MEMORY"
    cu.cuGetErrorString(2, byref(text))
    assert text.value == b"out of memory"
    refuses(INVALID_VALUE, "cuGetErrorName", 12345, byref(text))


def test_devices(sim: Any) -> None:
    sim.settings = 'gpus=2,memory=16Gi/24Gi,reserved=512Mi,name="My, GPU"'
    sim.run(devices)


def list_devices() -> None:
    code = cu.code("cuInit", 0)
    if code != 0:
        say("error", code)
        return
    found = []
    for ordinal in range(integer("cuDeviceGetCount")):
        uuid = create_string_buffer(16)
        cu.cuDeviceGetUuid_v2(uuid, ordinal)
        raw = uuid.raw.hex()
        found.append(f"GPU-{raw[:8]}-{raw[8:12]}-{raw[12:16]}-{raw[16:20]}-{raw[20:]}")
    say(*found)


def test_visible_devices(sim: Any) -> None:
    sim.settings = "gpus=3,memory=1Gi"

    def visible(value: str | None) -> list[str]:
        return sim.run(list_devices, CUDA_VISIBLE_DEVICES=value).split()

    every = visible(None)
    a, b, c = every
    assert len(set(every)) == 3
    nothing = ["error", str(NO_DEVICE)]
    cases = {
        "0,1,2": every,
        "2,0": [c, a],
        " 1 , 0 ": [b, a],
        "1,7,0": [b],
        "0,-1,1": [a],
        "1,,2": [b],
        "1,x,2": [b],
        "": nothing,
        "-1": nothing,
        "NoDevFiles": nothing,
        "1,1": nothing,
        c: [c],
        f"{c},{a}": [c, a],
        c[:12]: [c],
        c.upper().replace("GPU-", "GPU-"): [c],
        "GPU-": nothing,
        f"0,{b}": [a, b],
    }
    for value, want in cases.items():
        assert visible(value) == want, value
    assert visible(None) == every, "the same after every restart"


def hardware() -> None:
    start()
    say(integer("cuDeviceGetCount"), pool_total() // MI)


def pool_total() -> int:
    total = c_size_t()
    cu.cuDeviceTotalMem_v2(byref(total), 0)
    return total.value


def hold_hardware() -> None:
    hardware()
    import sys

    sys.stdin.readline()


def test_the_pool_keeps_the_settings_while_it_is_used(sim: Any) -> None:
    sim.settings = "gpus=2,memory=4Gi"
    child = sim.start(hold_hardware)
    assert child.line() == "2 4096"
    sim.settings = "gpus=1,memory=8Gi"
    assert sim.run(hardware) == "2 4096\n"
    child.kill()
    assert sim.run(hardware) == "1 8192\n"


def test_settings_from_a_file(sim: Any, tmp_path: Path) -> None:
    file = tmp_path / "settings"
    file.write_text(f'# two of them\ngpus = 2\nmemory=1Gi/2Gi\n\nname="A, B"\npool={sim.pool}\n')
    assert sim.run(hardware, GPUSHARE_SIM=f"@{file}") == "2 1024\n"


def init_code() -> None:
    say(cu.code("cuInit", 0), cu.code("cuInit", 0))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("gpu=1", "unknown key 'gpu'"),
        ("gpus=0", "gpus=0: not a whole number from 1 to"),
        ("gpus=1.5", "gpus=1.5"),
        ("gpus", "'gpus' is not key=value"),
        ("memory=16", "memory=16: not an amount of memory with a unit"),
        ("memory=16g", "memory=16g"),
        ("memory=-1Gi", "memory=-1Gi"),
        ("gpus=3,memory=1Gi/2Gi", "memory names 2 amounts for gpus=3"),
        ("memory=1Gi,reserved=1Gi", "not more than reserved"),
        ("teardown=5", "teardown=5: not a duration with a unit"),
        ("latency=cuMemAlloc", "latency=cuMemAlloc: not FUNCTION:DURATION"),
        ("latency=cuMemAlloq:1us", "no function 'cuMemAlloq'"),
        ("fail=cuMemAlloc:1", "fail=cuMemAlloc:1: not FUNCTION:N:CODE"),
        ("fail=cuMemAlloc:0:2", "fail=0"),
        ("fail=cuMemAlloc:1:12345", "no error code '12345'"),
        ("@/does/not/exist", "cannot read @/does/not/exist"),
        ("name=", "name=: empty"),
    ],
)
def test_wrong_settings(sim: Any, settings: str, words: str) -> None:
    done = sim.result(init_code, GPUSHARE_SIM=settings)
    assert done.stdout == f"{INVALID_VALUE} {INVALID_VALUE}\n"
    assert done.stderr.startswith("gpushare software driver: GPUSHARE_SIM: ")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1, "said once"


def test_a_directory_that_is_not_ours(sim: Any) -> None:
    done = sim.result(init_code, GPUSHARE_SIM="pool=/proc/self/status")
    assert done.stdout == "304 304\n"
    assert "not a directory of our own" in done.stderr


def faulty() -> None:
    import time

    start()
    one = alloc(100)
    refuses(OUT_OF_MEMORY, "cuMemAlloc_v2", byref(c_uint64()), 100)
    two = alloc(100)
    cu.cuMemFree_v2(one)
    refuses(700, "cuMemFree_v2", two)
    refuses(700, "cuMemFree_v2", two)
    begin = time.monotonic()
    cu.cuCtxSynchronize()
    assert 0.05 <= time.monotonic() - begin < 1
    refuses(719, "cuMemcpyHtoD_v2", two, b"1234", 4)
    cu.cuMemcpyHtoD_v2_ptds(two, b"1234", 4)


def test_faults(sim: Any) -> None:
    failures = "cuMemAlloc:2:2;cuMemFree:2+:CUDA_ERROR_ILLEGAL_ADDRESS;cuMemcpyHtoD_v2:1:719"
    sim.settings = f"fail={failures},latency=cuCtxSynchronize:50ms"
    sim.run(faulty)


def initialises_late() -> None:
    assert cu.code("cuInit", 0) == 999
    cu.cuInit(0)
    assert pointer("cuDevicePrimaryCtxRetain", 0)


def test_init_can_fail_once(sim: Any) -> None:
    sim.settings = "fail=cuInit:1:999"
    sim.run(initialises_late)
