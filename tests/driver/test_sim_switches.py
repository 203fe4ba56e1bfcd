"""Each switch of the software driver does what its page says, and a run without settings has them all as usual."""

from __future__ import annotations

import re
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p
from pathlib import Path
from typing import Any

import pytest
from simcuda import MI, OUT_OF_MEMORY, alloc, cu, info, pointer, refuses, start
from simcuda import say as say_words

import switches

ROOT = Path(__file__).resolve().parents[2]
PTX = b".version 8.0\n.target sm_90\n.visible .entry kernel() { ret; }\0"


def used() -> int:
    """What is used of the current device, contexts too."""
    free, total = info()
    return total - free


def say(numbers: list[int]) -> None:
    say_words(*numbers)


def with_switch(sim: Any, text: str) -> Any:
    sim.settings = f"gpus=1,memory=4Gi,context=100Mi,{text}"
    return sim


def test_the_list_and_the_page_say_the_same() -> None:
    rows = switches.read()
    assert len(rows) == (ROOT / "shim" / "sim" / "switches.def").read_text().count("\nSIM_SWITCH(")
    page = re.findall(
        r"^\| `(\w+)` \| `(\w+)`(.*?)\| (.*?) \|", (ROOT / "docs" / "switches.md").read_text(), re.MULTILINE
    )
    assert [(row.name, row.usual) for row in rows] == [(name, usual) for name, usual, _, _ in page]
    for row, (_, _, _, others) in zip(rows, page, strict=True):
        assert [value for value in re.findall(r"`(\w+)`", others) if value in row.others] == list(row.others)
    assert all(row.freedom.endswith(".") for row in rows)


def test_what_a_run_is_made_under() -> None:
    settings = switches.settings()
    assert len(set(settings)) == len(settings)
    alone = [text for text in settings if "," not in text]
    expected = [f"{row.name}={value}" for row in switches.read() for value in row.others if row.name != "pids"]
    assert alone == expected
    assert [text.count("=") for text in settings if "," in text] == [len(switches.read()) - 1] * 2


@pytest.mark.parametrize(
    "text, complaint",
    [
        ("blocks=other", "blocks=other: not own or packed"),
        ("pool_drop=_", "pool_drop=_: not sync, free or trim"),
        ("blocks=_", "blocks=_: not own or packed"),
        ("block=own", "unknown key 'block' (known: gpus,"),
    ],
)
def test_a_value_that_it_does_not_have_is_named(sim: Any, text: str, complaint: str) -> None:
    done = with_switch(sim, text).result(begin)
    assert done.returncode != 0 and complaint in done.stderr


def begin() -> None:
    start()


def test_an_unknown_key_hears_of_the_switches(sim: Any) -> None:
    done = with_switch(sim, "blocs=own").result(begin)
    assert all(f", {row.name}" in done.stderr for row in switches.read())


# ---- one scenario each: what a process holds beside its context, in MiB


def blocks() -> None:
    start()
    before = used()
    held = [alloc(3 * MI), alloc(MI)]
    say([(used() - before) // MI])
    del held


def pool_step() -> None:
    start()
    before = used()
    cu.cuMemAllocAsync(byref(c_uint64()), MI, None)
    say([(used() - before) // MI])


def pool_drop() -> None:
    start()
    before, seen, address = used(), [], c_uint64()
    cu.cuMemAllocAsync(byref(address), MI, None)
    cu.cuMemFreeAsync(address, None)
    seen.append((used() - before) // MI)
    cu.cuCtxSynchronize()
    seen.append((used() - before) // MI)
    cu.cuMemPoolTrimTo(pointer("cuDeviceGetDefaultMemPool", 0), c_size_t(0))
    say([*seen, (used() - before) // MI])


def procaddr() -> None:
    start()
    found, status = c_void_p(), c_int()
    seen = []
    for name, symbol in (("cuMemAlloc", "cuMemAlloc_v2"), ("cuCtxGetCurrent", "cuCtxGetCurrent")):
        cu.cuGetProcAddress_v2(name.encode(), byref(found), 13000, c_uint64(0), byref(status))
        seen.append(int(found.value == address_of(symbol)))
    say(seen)


def address_of(symbol: str) -> int | None:
    import ctypes

    return ctypes.cast(getattr(ctypes.CDLL("libcuda.so.1"), symbol), c_void_p).value


def contexts() -> None:
    start()
    seen = [used() // MI]
    second = pointer("cuCtxCreate_v2", 0, 0)
    seen.append(used() // MI)
    cu.cuCtxDestroy_v2(second)
    cu.cuDevicePrimaryCtxReset_v2(0)
    start()
    say([*seen, used() // MI])


def modules() -> None:
    start()
    before, mode = used(), c_int()
    module = pointer("cuModuleLoadData", PTX)
    seen = [(used() - before) // MI]
    second = pointer("cuModuleLoadData", PTX)
    seen.append((used() - before) // MI)
    cu.cuModuleUnload(module)
    cu.cuModuleUnload(second)
    cu.cuModuleGetLoadingMode(byref(mode))
    cu.cuDevicePrimaryCtxReset_v2(0)
    start()
    say([*seen, mode.value, used() // MI])


def heaps() -> None:
    start()
    before = used()
    kernel = pointer("cuModuleGetFunction", pointer("cuModuleLoadData", PTX), b"kernel")
    cu.cuCtxSetLimit(2, c_size_t(108 * MI))
    seen = [(used() - before) // MI]
    cu.cuLaunchKernel(c_void_p(kernel), 1, 1, 1, 1, 1, 1, 0, None, None, None)
    seen.append((used() - before) // MI)
    cu.cuCtxSetLimit(2, c_size_t(MI))
    cu.cuLaunchKernel(c_void_p(kernel), 1, 1, 1, 1, 1, 1, 0, None, None, None)
    say([*seen, (used() - before) // MI])


@pytest.mark.parametrize(
    "scenario, switch, expected",
    [
        (blocks, "", [6]),
        (blocks, "blocks=packed", [4]),
        (pool_step, "", [32]),
        (pool_step, "pool_step=2Mi", [2]),
        (pool_step, "pool_step=64Mi", [64]),
        (pool_drop, "", [32, 0, 0]),
        (pool_drop, "pool_drop=free", [0, 0, 0]),
        (pool_drop, "pool_drop=trim", [32, 32, 0]),
        (procaddr, "", [1, 1]),
        (procaddr, "procaddr=other", [0, 0]),
        (contexts, "", [100, 200, 100]),
        (contexts, "contexts=first", [100, 100, 100]),
        (modules, "", [0, 0, 1, 100]),
        (modules, "modules=lazy", [64, 64, 2, 100]),
        (heaps, "", [0, 0, 0]),
        (heaps, "heaps=set", [100, 100, 0]),
        (heaps, "heaps=launch", [0, 100, 0]),
    ],
)
def test_what_it_costs(sim: Any, scenario: Any, switch: str, expected: list[int]) -> None:
    assert with_switch(sim, switch).run(scenario).split() == [str(one) for one in expected]


def heap_too_large() -> None:
    start()
    refuses(OUT_OF_MEMORY, "cuCtxSetLimit", 2, c_size_t(5 << 30))
    value = c_size_t()
    cu.cuCtxGetLimit(byref(value), 2)
    assert value.value == 8 * MI


def test_a_heap_that_does_not_fit_is_not_set(sim: Any) -> None:
    with_switch(sim, "heaps=set").run(heap_too_large)


def streams_device() -> None:
    """The pool is that of the stream's device, whatever context is current."""
    start()
    first = pointer("cuStreamCreate", 0)
    second = pointer("cuDevicePrimaryCtxRetain", 1)
    cu.cuCtxSetCurrent(c_void_p(second))
    cu.cuMemAllocAsync(byref(c_uint64()), MI, c_void_p(first))
    for device, expected in ((0, 32 * MI), (1, 0)):
        value = c_uint64()
        cu.cuMemPoolGetAttribute(pointer("cuDeviceGetDefaultMemPool", device), 5, byref(value))
        assert value.value == expected, device


def test_a_stream_takes_from_the_pool_of_its_own_device(sim: Any) -> None:
    sim.settings = "gpus=2,memory=4Gi"
    sim.run(streams_device)
