"""Programs that speak the driver API and nothing else: they run on any driver, with the preload library or without."""

from __future__ import annotations

import ctypes
import json
import os
import random
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p, create_string_buffer
from pathlib import Path
from typing import Any

from say import main, wait_line

sys.path.append(str(Path(__file__).resolve().parents[2] / "driver"))

import probes
from simcuda import (
    KI,
    MI,
    OUT_OF_MEMORY,
    AccessDesc,
    Array3D,
    CudaError,
    Handle64,
    Location,
    alloc,
    cu,
    info,
    integer,
    pointer,
    start,
)

Answers = Iterator[tuple[str, Any]]
OURS = "libgpushare"
RESERVED, USED, THRESHOLD = probes.RESERVED, probes.USED, probes.THRESHOLD


def sync() -> None:
    cu.cuCtxSynchronize()


def hold(size: int) -> Answers:
    """A context and so many bytes, until it is told to end."""
    start()
    if size:
        alloc(size)
    yield "holds", os.getpid()
    wait_line()


def looks() -> dict[str, Callable[[int, int], int]]:
    """Calls that wait for the GPU, ask how far it is or trim pools, on a stream and an event: each with its code."""
    milliseconds, pool = ctypes.c_float(), pointer("cuDeviceGetDefaultMemPool", 0)
    return {
        "cuStreamQuery": lambda stream, event: cu.code("cuStreamQuery", stream),
        "cuStreamSynchronize": lambda stream, event: cu.code("cuStreamSynchronize", stream),
        "cuEventQuery": lambda stream, event: cu.code("cuEventQuery", event),
        "cuEventSynchronize": lambda stream, event: cu.code("cuEventSynchronize", event),
        "cuEventElapsedTime": lambda stream, event: cu.code("cuEventElapsedTime", byref(milliseconds), event, event),
        "cuCtxSynchronize": lambda stream, event: cu.code("cuCtxSynchronize"),
        "cuMemGetInfo": lambda stream, event: cu.code("cuMemGetInfo_v2", byref(c_size_t()), byref(c_size_t())),
        "cuMemPoolTrimTo": lambda stream, event: cu.code("cuMemPoolTrimTo", pool, 0),
        "cuDeviceGraphMemTrim": lambda stream, event: cu.code("cuDeviceGraphMemTrim", 0),
    }


def watch(size: int) -> Answers:
    """A thread for each of these calls makes it all the time, beside memory that must stay as it is. At each line it
    says how many calls there were; at `share` it asks for a handle for other processes."""
    context, made, ends = start(), dict.fromkeys(looks(), 0), threading.Event()
    wrong: set[tuple[str, int]] = set()
    address, wanted = alloc(size), bytes([7]) * 4096
    places = range(address, address + size, 64 * MI)
    for place in places:
        cu.cuMemsetD8_v2(place, 7, len(wanted))

    def work(name: str, call: Callable[[int, int], int]) -> None:
        cu.cuCtxSetCurrent(context)
        stream, event = pointer("cuStreamCreate", 1), pointer("cuEventCreate", 0)
        cu.cuEventRecord(event, stream)
        cu.cuEventSynchronize(event)
        while not ends.is_set():
            code = call(stream, event)
            made[name] += 1
            if code:
                wrong.add((name, code))

    threads = [threading.Thread(target=work, args=one) for one in looks().items()]
    for thread in threads:
        thread.start()
    yield "watches", os.getpid()
    while (line := wait_line()) not in ("end", ""):
        if line == "share":
            yield "code of sharing its memory", cu.code("cuIpcGetMemHandle", byref(Handle64()), address)
        else:
            yield "calls", sum(made.values())
    ends.set()
    for thread in threads:
        thread.join()
    found, same = create_string_buffer(len(wanted)), []
    for place in places:
        cu.cuMemcpyDtoH_v2(found, place, len(wanted))
        same.append(found.raw == wanted)
    yield "calls that were never made", [name for name, number in made.items() if number == 0]
    yield "its calls that failed, with their codes", sorted(wrong)
    yield "its memory is as it was", all(same)


def identity() -> Answers:
    cu.cuInit(0)
    name = create_string_buffer(100)
    cu.cuDeviceGetName(name, 100, 0)
    yield "GPU", name.value.decode()
    yield "CUDA version of the driver", integer("cuDriverGetVersion")
    whole = c_size_t()
    cu.cuDeviceTotalMem_v2(byref(whole), 0)
    yield "memory, MiB", whole.value // MI
    yield "compute capability", [integer("cuDeviceGetAttribute", attribute, 0) for attribute in (75, 76)]


# ---- how functions are found -------------------------------------------------------------------------


class DlInfo(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("base", c_void_p), ("symbol", ctypes.c_char_p), ("address", c_void_p)]


def library_of(address: int) -> str:
    found = DlInfo()
    ctypes.CDLL(None).dladdr(c_void_p(address), byref(found))
    return Path((found.file or b"?").decode()).name


def look_ups(rows: list[tuple[str, str, int, str]], preloaded: bool) -> Answers:
    """Each hooked symbol by dlsym, and by cuGetProcAddress for its version and stream flag."""
    cu.cuInit(0)
    version = integer("cuDriverGetVersion")
    asked, differ, not_ours, not_ours_by_address = 0, [], [], []
    for base, symbol, since, stream in rows:
        known = getattr(cu.library, symbol, None)
        if known is None or since > version:
            continue
        one = ctypes.cast(known, c_void_p).value or 0
        result = c_void_p()
        flags = 2 if stream == "PER_THREAD" else 1
        code = cu.code("cuGetProcAddress_v2", base.encode(), byref(result), since, flags, None)
        other = result.value or 0 if code == 0 else 0
        if not other:
            continue
        asked += 1
        if one != other:
            differ.append(symbol)
        if OURS not in library_of(one):
            not_ours.append(symbol)
        if OURS not in library_of(other):
            not_ours_by_address.append(symbol)
    yield "hooked names asked", asked
    if preloaded:
        yield "names that dlsym does not lead to us", not_ours
        yield "names that cuGetProcAddress does not lead to us", not_ours_by_address
    else:
        yield "names whose two addresses differ", differ


# ---- memory of all families --------------------------------------------------------------------------


def take_linear(size: int) -> Callable[[], Any]:
    address = alloc(size)
    return lambda: cu.cuMemFree_v2(address)


def take_pitched(size: int) -> Callable[[], Any]:
    address = pointer("cuMemAllocPitch_v2", byref(c_size_t()), 64 * KI, size // (64 * KI), 4)
    return lambda: cu.cuMemFree_v2(address)


def take_managed(size: int) -> Callable[[], Any]:
    address = pointer("cuMemAllocManaged", size, 1)
    return lambda: cu.cuMemFree_v2(address)


def take_pooled(size: int) -> Callable[[], Any]:
    address = pointer("cuMemAllocAsync", size, None)

    def give() -> None:
        cu.cuMemFreeAsync(address, None)
        sync()
        cu.cuMemPoolTrimTo(pointer("cuDeviceGetDefaultMemPool", 0), 0)

    return give


def take_virtual(size: int) -> Callable[[], Any]:
    block = probes.block(size)
    return lambda: cu.cuMemRelease(block)


def take_array(size: int) -> Callable[[], Any]:
    array = pointer("cuArray3DCreate_v2", byref(Array3D(4096, size // 4096 // 16, 0, 0x20, 4, 0)))
    return lambda: cu.cuArrayDestroy(array)


FAMILIES: dict[str, Callable[[int], Callable[[], Any]]] = {
    "linear": take_linear,
    "pitched": take_pitched,
    "pooled": take_pooled,
    "virtual": take_virtual,
    "arrays": take_array,
    "managed": take_managed,
}


def families(limit: int) -> Answers:
    """Each family up to the limit, and all of it back."""
    start()
    piece = 64 * MI
    for name, take in FAMILIES.items():
        free, total = info()
        held, code = [], 0
        while len(held) * piece <= 2 * limit:
            try:
                held.append(take(piece))
            except CudaError as error:
                code = error.code
                break
        yield f"{name}: code at the limit", code
        yield f"{name}: stays within the limit", len(held) * piece <= total <= limit
        yield f"{name}: MiB until then", len(held) * piece // MI
        for give in held:
            give()
        yield f"{name}: all of it comes back", info()[0] == free
    before = info()[0]
    place = pointer("cuMemHostAlloc", 64 * MI, 0)
    yield "host memory takes of the device", before - info()[0]
    cu.cuMemFreeHost(place)


def out_of_memory(how: str) -> Answers:
    """To the limit, the refusal, and on. `how` is a family."""
    start()
    yield "total", info()[1]
    piece, held = 256 * MI, []
    try:
        while True:
            held.append(FAMILIES[how](piece))
    except CudaError as error:
        yield "code at the limit", error.code
    yield "MiB until then", len(held) * piece // MI
    for give in held:
        give()
    again = FAMILIES[how](piece)
    yield "goes on afterwards", True
    again()


# ---- captures ----------------------------------------------------------------------------------------

MODES = ("global", "of the thread", "relaxed")


def side_calls() -> dict[str, Callable[[], int]]:
    """Calls that a program may make beside a capture, each with its code."""
    other, pool = pointer("cuStreamCreate", 1), pointer("cuDeviceGetDefaultMemPool", 0)
    spare = [alloc(KI) for _ in range(12)]
    pooled = [pointer("cuMemAllocAsync", KI, other) for _ in range(12)]
    cu.cuStreamSynchronize(other)
    blocks = [probes.block(2 * MI) for _ in range(12)]
    return {
        "cuMemAlloc": lambda: cu.code("cuMemAlloc_v2", byref(c_uint64()), KI),
        "cuMemFree": lambda: cu.code("cuMemFree_v2", spare.pop()),
        "cuMemGetInfo": lambda: cu.code("cuMemGetInfo_v2", byref(c_size_t()), byref(c_size_t())),
        "cuMemAllocAsync elsewhere": lambda: cu.code("cuMemAllocAsync", byref(c_uint64()), KI, other),
        "cuMemFreeAsync elsewhere": lambda: cu.code("cuMemFreeAsync", pooled.pop(), other),
        "cuMemCreate": lambda: cu.code("cuMemCreate", byref(c_uint64()), 2 * MI, byref(probes.physical()), 0),
        "cuMemRelease": lambda: cu.code("cuMemRelease", blocks.pop()),
        "cuMemPoolTrimTo": lambda: cu.code("cuMemPoolTrimTo", pool, 0),
        "cuStreamSynchronize elsewhere": lambda: cu.code("cuStreamSynchronize", other),
    }


def in_thread(call: Callable[[], int], context: int) -> int:
    found: list[int] = []

    def work() -> None:
        cu.cuCtxSetCurrent(context)
        found.append(call())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return found[0]


def captures() -> Answers:
    """Each call beside a capture of each mode, in the same thread and in another: its code, and the capture's state."""
    context, stream = start(), pointer("cuStreamCreate", 1)
    calls, cases = side_calls(), {}
    for mode, mode_name in enumerate(MODES):
        for where in ("same thread", "other thread"):
            for name, call in calls.items():
                cu.cuStreamBeginCapture_v2(stream, mode)
                code = call() if where == "same thread" else in_thread(call, context)
                status, graph = c_int(), c_uint64()
                cu.code("cuStreamIsCapturing", stream, byref(status))
                end = cu.code("cuStreamEndCapture", stream, byref(graph))
                if end == 0 and graph.value:
                    cu.cuGraphDestroy(graph)
                cases[f"{name}, {mode_name}, {where}"] = [code, status.value, end]
    yield "cases", cases


def capture_loop(seconds: float, cache: int) -> Answers:
    """Captures and launches graphs with memory in a pool of their own while the default pool keeps a large cache."""
    start()
    pool, keep = pointer("cuDeviceGetDefaultMemPool", 0), c_uint64((1 << 64) - 1)
    cu.cuMemPoolSetAttribute(pool, THRESHOLD, byref(keep))
    for address in [pointer("cuMemAllocAsync", 64 * MI, None) for _ in range(cache // (64 * MI))]:
        cu.cuMemFreeAsync(address, None)
    sync()
    stream = pointer("cuStreamCreate", 1)
    yield "caches", probes.of_pool(pool, RESERVED) // MI
    wrong, rounds, end = [], 0, time.monotonic() + seconds
    while time.monotonic() < end:
        graph = c_uint64()
        cu.cuStreamBeginCapture_v2(stream, 0)
        address = pointer("cuMemAllocAsync", MI, stream)
        cu.cuMemsetD8Async(address, 1, MI, stream)
        time.sleep(0.001)
        cu.cuMemFreeAsync(address, stream)
        code = cu.code("cuStreamEndCapture", stream, byref(graph))
        rounds += 1
        if code != 0:
            wrong.append(code)
            continue
        executable = pointer("cuGraphInstantiateWithFlags", graph, 0)
        cu.cuGraphLaunch(executable, stream)
        cu.cuStreamSynchronize(stream)
        cu.cuGraphExecDestroy(executable)
        cu.cuGraphDestroy(graph)
    yield "captures that were spoiled", wrong
    yield "captures", rounds
    yield "the cache afterwards, MiB", probes.of_pool(pool, RESERVED) // MI


# ---- what things take --------------------------------------------------------------------------------


def granularity(most: int) -> Answers:
    """Physical bytes of one allocation of each kind, over as many as make it certain."""
    start()
    count = min(4000, most // (2 * MI))
    for name, size, number in (
        ("1 MiB + 1", MI + 1, count),
        ("1 MiB", MI, count),
        ("2 MiB + 1", 2 * MI + 1, count // 2),
    ):
        before = info()[0]
        held = [alloc(size) for _ in range(number)]
        yield f"bytes for each of {name}", round((before - info()[0]) / number)
        for address in held:
            cu.cuMemFree_v2(address)
    before = info()[0]
    held = [alloc(size * MI) for size in (3, 1) for _ in range(8)]
    yield "MiB for 8 of 3 MiB and 8 of 1 MiB", (before - info()[0]) // MI
    for address in held:
        cu.cuMemFree_v2(address)
    before = info()[0]
    held = [alloc(512) for _ in range(4096)]
    yield "MiB for 4,096 of 512 bytes", (before - info()[0]) // MI
    for address in held:
        cu.cuMemFree_v2(address)
    pitch = c_size_t()
    address = pointer("cuMemAllocPitch_v2", byref(pitch), 1000, 1000, 4)
    yield "pitch of 1,000 bytes", pitch.value
    cu.cuMemFree_v2(address)
    before = info()[0]
    array = pointer("cuArray3DCreate_v2", byref(Array3D(4096, 4096, 0, 0x20, 4, 0)))
    yield "MiB for an array of 256 MiB", (before - info()[0]) // MI
    cu.cuArrayDestroy(array)


def pools() -> Answers:
    """By how much a pool grows, and when it lets go."""
    start()
    pool = pointer("cuDeviceGetDefaultMemPool", 0)
    cu.cuMemPoolTrimTo(pool, 0)
    for name, size in (("1 byte", 1), ("5 MiB", 5 * MI), ("33 MiB", 33 * MI), ("100 MiB", 100 * MI)):
        address = pointer("cuMemAllocAsync", size, None)
        yield f"MiB reserved for {name}", probes.of_pool(pool, RESERVED) / MI
        cu.cuMemFreeAsync(address, None)
        yield f"MiB reserved after the free of {name}", probes.of_pool(pool, RESERVED) / MI
        cu.cuStreamSynchronize(None)
        yield f"MiB reserved after synchronising, {name}", probes.of_pool(pool, RESERVED) / MI
        cu.cuMemPoolTrimTo(pool, 0)
        yield f"MiB reserved after a trim, {name}", probes.of_pool(pool, RESERVED) / MI


def near_the_limit() -> Answers:
    """An allocation from a pool that fits into what is free, where a whole step of the pool does not."""
    start()
    held = []
    while info()[0] > 40 * MI:
        held.append(alloc(min(64 * MI, (info()[0] - 40 * MI + MI) // MI * MI)))
    yield "MiB free", info()[0] / MI
    yield "code of 33 MiB from a pool", cu.code("cuMemAllocAsync", byref(c_uint64()), 33 * MI, None)


def reset() -> Answers:
    """What a reset of the primary context gives back by itself."""
    primary = start()
    free = info()[0]
    size = 128 * MI
    kinds: dict[str, Any] = {}
    for name in ("linear", "pooled", "virtual"):
        before = info()[0]
        if name == "linear":
            alloc(size)
        elif name == "pooled":
            pointer("cuMemAllocAsync", size, None)
            sync()
        else:
            kinds["block"] = probes.block(size)
            kinds["base"] = pointer("cuMemAddressReserve", size, 0, 0, 0)
            cu.cuMemMap(kinds["base"], size, 0, kinds["block"], 0)
        taken = before - info()[0]
        cu.cuDevicePrimaryCtxReset_v2(0)
        primary = pointer("cuDevicePrimaryCtxRetain", 0)
        cu.cuCtxSetCurrent(primary)
        yield f"{name}: MiB taken", taken // MI
        yield f"{name}: part still there after a reset", round((free - info()[0]) / size, 1)
        if name == "virtual":
            codes = [
                cu.code("cuMemUnmap", kinds["base"], size),
                cu.code("cuMemRelease", kinds["block"]),
                cu.code("cuMemAddressFree", kinds["base"], size),
            ]
            yield "virtual: codes of unmap, release and free of the addresses afterwards", codes
        free = info()[0]


def graph_pools() -> Answers:
    """By how much the pool of a device's graphs grows, and what a trim leaves."""
    start()
    stream = pointer("cuStreamCreate", 1)
    for name, size in (("1 byte", 1), ("33 MiB", 33 * MI)):
        graph = pointer("cuGraphCreate", 0)
        node, address = probes.alloc_node(graph, size)
        pointer("cuGraphAddMemFreeNode", graph, (c_uint64 * 1)(node), 1, address)
        executable = pointer("cuGraphInstantiateWithFlags", graph, 0)
        cu.cuGraphLaunch(executable, stream)
        cu.cuStreamSynchronize(stream)
        yield f"MiB reserved for a graph with {name}", probes.of_graphs(probes.GRAPH_RESERVED) / MI
        cu.cuGraphExecDestroy(executable)
        cu.cuGraphDestroy(graph)
        cu.cuDeviceGraphMemTrim(0)
        yield f"MiB reserved after a trim, graph with {name}", probes.of_graphs(probes.GRAPH_RESERVED) / MI


TARGETS = ("sm_52", "sm_75")
"""Of a kernel. New drivers may refuse the first; GPUs before 2018 need it."""


BODIES = {
    "nothing": "ret;",
    "works": """
  .reg .u32 %n, %c;
  .reg .pred %p;
  mov.u32 %n, 2000;
again:
  mov.u32 %c, %clock;
  sub.u32 %n, %n, 1;
  setp.ne.u32 %p, %n, 0;
  @%p bra again;
  ret;""",
}
"""Of kernels. Reading the clock keeps the compiler from dropping the loop."""


def kernel_text(target: str, name: str) -> bytes:
    lines = (
        ".version 6.3",
        f".target {target}",
        ".address_size 64",
        f".visible .entry {name}()",
        "{",
        BODIES[name],
        "}",
    )
    return "\n".join(lines).encode() + b"\0"


def kernel_of(name: str) -> int:
    """A kernel in a module of its own."""
    module = c_uint64()
    if not any(cu.code("cuModuleLoadData", byref(module), kernel_text(target, name)) == 0 for target in TARGETS):
        raise RuntimeError("this driver takes no kernel of ours")
    return pointer("cuModuleGetFunction", module.value, name.encode())


def launch_nothing() -> None:
    cu.cuLaunchKernel(kernel_of("nothing"), 1, 1, 1, 1, 1, 1, 0, None, None, None)
    sync()


def launch_work(kernel: int, blocks: int) -> None:
    """So many blocks of 1,000 threads: more than fit at once take longer in proportion."""
    cu.cuLaunchKernel(kernel, blocks, 1, 1, 1000, 1, 1, 0, None, None, None)


def calibrate(span: float) -> Answers:
    """Blocks of a kernel that computes for so many seconds, on a GPU where nobody else computes."""
    start()
    kernel, blocks = kernel_of("works"), 64

    def taken(blocks: int) -> float:
        began = time.monotonic()
        launch_work(kernel, blocks)
        sync()
        return time.monotonic() - began

    taken(blocks)
    while taken(blocks) < span:
        blocks *= 2
    fastest = min(taken(blocks) for _ in range(5))
    yield "blocks", max(1, round(blocks * span / fastest))


def compute(blocks: int) -> Answers:
    """Launches a kernel and waits for it, again and again. At each line it says how many are done, and how long the
    longest launch has taken, in milliseconds."""
    context, ends = start(), threading.Event()
    kernel, done, longest = kernel_of("works"), [0], [0.0]

    def work() -> None:
        cu.cuCtxSetCurrent(context)
        while not ends.is_set():
            began = time.monotonic()
            launch_work(kernel, blocks)
            longest[0] = max(longest[0], time.monotonic() - began)
            sync()
            done[0] += 1

    thread = threading.Thread(target=work)
    thread.start()
    yield "computes", os.getpid()
    while wait_line() not in ("end", ""):
        yield "done", [done[0], round(longest[0] * 1000, 1)]
    ends.set()
    thread.join()


def contexts() -> Answers:
    """What comes on top of a process's first context: its first kernel, and a second context."""
    start()
    before = info()[0]
    launch_nothing()
    yield "MiB more with the first kernel", (before - info()[0]) // MI
    before = info()[0]
    pointer("cuCtxCreate_v2", 0, 0)
    yield "MiB of a second context of a process", (before - info()[0]) // MI


def heap(size: int) -> Answers:
    """What the heap of device code takes, and when."""
    start()
    launch_nothing()
    before = info()[0]
    yield "code of cuCtxSetLimit", cu.code("cuCtxSetLimit", 2, size)
    yield "MiB once the heap is set", (before - info()[0]) // MI
    launch_nothing()
    yield "MiB after a kernel with the heap", (before - info()[0]) // MI


def forked() -> Answers:
    """A child after cuInit: what calls answer there."""
    start()
    alloc(2 * MI)
    child = os.fork()
    if child == 0:
        os._exit(0 if cu.code("cuMemAlloc_v2", byref(c_uint64()), KI) != 0 else 3)
    yield "a forked child is refused", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    yield "its parent goes on", cu.code("cuMemAlloc_v2", byref(c_uint64()), KI) == 0


def steady_free(seconds: float) -> Answers:
    """What is free while neighbours come and go: a start of an engine asserts that it does not grow."""
    start()
    alloc(256 * MI)
    first, total = info()
    yield "ready", total // MI
    grew, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        grew = max(grew, info()[0] - first)
        time.sleep(0.001)
    yield "MiB by which free memory grew", grew // MI
    wait_line()


def sleep_and_wake(size: int) -> Answers:
    """Physical memory given back and taken again under the same addresses, as engines do that sleep."""
    start()
    base = pointer("cuMemAddressReserve", size, 0, 0, 0)
    access, charged, codes = AccessDesc(Location(1, 0), 3), [], []
    empty = info()[0]
    for _ in range(3):
        block = probes.block(size)
        codes += [cu.code("cuMemMap", base, size, 0, block, 0), cu.code("cuMemSetAccess", base, size, byref(access), 1)]
        codes.append(cu.code("cuMemsetD8_v2", base, 7, size))
        charged.append(empty - info()[0] >= size)
        codes += [cu.code("cuMemUnmap", base, size), cu.code("cuMemRelease", block)]
        charged.append(empty == info()[0])
    yield "codes other than 0", [code for code in codes if code]
    yield "asleep it takes nothing, awake all", all(charged)


# ---- two processes -----------------------------------------------------------------------------------


def share(how: str, size: int) -> Answers:
    """Two processes and one piece of memory. Says `shared` with the other's pid before it is opened, then `opened`."""
    ours, theirs = socket.socketpair()
    child = os.fork()  # before cuInit: a child cannot use a driver that its parent has started
    if child == 0:
        ours.close()
        os._exit(_open_it(how, size, theirs))
    theirs.close()
    start()
    if how == "ipc":
        handle = Handle64()
        cu.cuIpcGetMemHandle(byref(handle), alloc(size))
        ours.sendall(handle.hex().encode())
    else:
        descriptor = c_int()
        cu.cuMemExportToShareableHandle(byref(descriptor), probes.block(size, handles=1), 1, 0)
        socket.send_fds(ours, [b"descriptor"], [descriptor.value])
    assert ours.recv(1) == b"r"
    yield "shared", [os.getpid(), child]
    wait_line()
    ours.sendall(b"o")
    yield "opened", json.loads(ours.recv(100))
    wait_line()
    ours.close()
    yield "exit status of the opener", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _open_it(how: str, size: int, to_other: socket.socket) -> int:
    if how == "ipc":
        text, descriptors = to_other.recv(128), []
    else:
        text, descriptors, _, _ = socket.recv_fds(to_other, 100, 1)
    start()
    to_other.sendall(b"r")
    assert to_other.recv(1) == b"o"
    result, before = c_uint64(), info()[0]
    if how == "ipc":
        code = cu.code("cuIpcOpenMemHandle_v2", byref(result), Handle64.from_hex(text.decode()), 1)
    else:
        code = cu.code("cuMemImportFromShareableHandle", byref(result), descriptors[0], 1)
        base = pointer("cuMemAddressReserve", size, 0, 0, 0)
        code = code or cu.code("cuMemMap", base, size, 0, result, 0)
    to_other.sendall(json.dumps([code, (before - info()[0]) // MI]).encode())
    to_other.recv(1)
    return 0


# ---- random calls ------------------------------------------------------------------------------------


def churn(seconds: float, seed: int, most: int) -> Answers:
    """Random memory of all families but managed, in whole blocks. Each half second it says what is charged."""
    start()
    chance, held, calls, refused = random.Random(seed), [], 0, 0
    kinds = [name for name in FAMILIES if name != "managed"]
    begin, end, said = info()[0], time.monotonic() + seconds, time.monotonic()
    yield "begins", os.getpid()
    wait_line()
    while time.monotonic() < end:
        calls += 1
        if held and (len(held) > 40 or chance.random() < 0.45):
            held.pop(chance.randrange(len(held)))()
        else:
            try:
                held.append(FAMILIES[chance.choice(kinds)](chance.randrange(1, most // (64 * MI)) * 32 * MI))
            except CudaError as error:
                if error.code != OUT_OF_MEMORY:
                    raise
                refused += 1
        if time.monotonic() - said > 0.5:
            sync()
            yield "charged", begin - info()[0]
            wait_line()
            said = time.monotonic()
    for give in held:
        give()
    yield "calls", calls
    yield "calls refused at the limit", refused
    yield "bytes charged at the end", begin - info()[0]


main(globals())
