"""Another process stops a program's calls, takes its memory from the GPU and puts it back: cuCheckpointProcess*."""

from __future__ import annotations

import os
import time
from ctypes import byref, c_int, c_size_t, create_string_buffer
from pathlib import Path
from typing import Any

from simcuda import (
    CONTEXT,
    GI,
    INVALID_VALUE,
    MI,
    NOT_READY,
    NOT_SUPPORTED,
    OUT_OF_MEMORY,
    AccessDesc,
    AllocationProp,
    Array3D,
    Location,
    PoolProps,
    alloc,
    cu,
    info,
    pointer,
    read,
    say,
    start,
    wait_line,
    write,
)

ILLEGAL_STATE, OPERATING_SYSTEM = 401, 304
RUNNING, LOCKED, CHECKPOINTED, FAILED = range(4)
LOCK, CHECKPOINT, RESTORE, UNLOCK = "Lock", "Checkpoint", "Restore", "Unlock"


def step(name: str, pid: int, arguments: Any = None) -> int:
    return cu.code(f"cuCheckpointProcess{name}", pid, arguments)


def lock_arguments(milliseconds: int) -> Any:
    return create_string_buffer(milliseconds.to_bytes(4, "little") + bytes(60), 64)


def state(pid: int) -> int:
    found = c_int(9)
    cu.cuCheckpointProcessGetState(pid, byref(found))
    return found.value


def actor() -> None:
    """Takes steps as it is told: `Lock PID`; says the code and the state after it."""
    start_without_context()
    while line := input_line():
        name, pid, *most = line.split()
        if name == "Cycle":
            assert [step(one, int(pid)) for one in (LOCK, CHECKPOINT, RESTORE, UNLOCK)] == [0, 0, 0, 0]
            say(0, RUNNING)
            continue
        code = step(name, int(pid), lock_arguments(int(most[0])) if most else None)
        say(code, state(int(pid)) if code != INVALID_VALUE else -1)


def start_without_context() -> None:
    cu.cuInit(0)


def input_line() -> str:
    try:
        return input()
    except EOFError:
        return ""


class Actor:
    """A process that checkpoints others."""

    def __init__(self, sim: Any, **changes: str) -> None:
        self.child = sim.start(actor, **changes)

    def does(self, name: str, pid: int, *most: int) -> tuple[int, int]:
        self.child.tell(" ".join(map(str, (name, pid, *most))))
        code, after = self.child.line().split()
        return int(code), int(after)

    def all(self, pid: int, *names: str) -> None:
        for name in names:
            assert self.does(name, pid)[0] == 0, name


def pattern(seed: int, size: int) -> bytes:
    return (seed * 2654435761 % 2**64).to_bytes(8, "little") * (size // 8)


class Linear:
    """Memory with an address."""

    def __init__(self, address: int, size: int) -> None:
        self.address, self.size = address, size

    def write(self, data: bytes) -> None:
        write(self.address, data)

    def read(self) -> bytes:
        return read(self.address, self.size)


class Array(Linear):
    """A CUDA array."""

    def write(self, data: bytes) -> None:
        cu.cuMemcpyHtoA_v2(self.address, 0, data, len(data))

    def read(self) -> bytes:
        buffer = create_string_buffer(self.size)
        cu.cuMemcpyAtoH_v2(buffer, self.address, 0, self.size)
        return buffer.raw


def mapped(size: int) -> list[Linear]:
    """Memory of its own handle, seen through two windows: each half through one."""
    here = Location(1, 0)
    handle = pointer("cuMemCreate", size, byref(AllocationProp(type=1, location=here)), 0)
    address = pointer("cuMemAddressReserve", 2 * size, 0, 0, 0)
    for window in (address, address + size):
        cu.cuMemMap(window, size, 0, handle, 0)
    cu.cuMemSetAccess(address, 2 * size, byref(AccessDesc(here, 3)), 1)
    return [Linear(address, 4096), Linear(address + size + size // 2, 4096)]


def all_kinds() -> list[Linear]:
    size = MI // 2
    pool = pointer("cuMemPoolCreate", byref(PoolProps(type=1, location=Location(1, 0))))
    array = Array3D(width=256, height=64, format=0x20, channels=1)
    return [
        Linear(alloc(size), size),
        Linear(alloc(4096), 4096),
        Linear(pointer("cuMemAllocPitch_v2", byref(c_size_t()), 1000, 16, 4), 16000),
        Linear(pointer("cuMemAllocAsync", size, None), size),
        Linear(pointer("cuMemAllocFromPoolAsync", size, pool, None), size),
        *mapped(2 * MI),
        Array(pointer("cuArray3DCreate_v2", byref(array)), 256 * 64 * 4),
    ]


def keeps_data() -> None:
    """Data in each kind of memory; at each line it says whether all of it is as it was, and changes it."""
    start()
    places = all_kinds()
    for seed, place in enumerate(places, 1):
        place.write(pattern(seed, place.size))
    turn = 0
    say(os.getpid())
    while input_line():
        good = all(place.read() == pattern(seed + turn, place.size) for seed, place in enumerate(places, 1))
        turn += 1
        for seed, place in enumerate(places, 1):
            place.write(pattern(seed + turn, place.size))
        say("same" if good else "changed")


def holds(size: int) -> None:
    start()
    alloc(size)
    say(os.getpid())
    while input_line():
        free, total = info()
        say("free", free, "of", total)


def free_now() -> None:
    start()
    say(info()[0])


def test_the_states_follow_each_other(sim: Any) -> None:
    program, actor = sim.start(holds, GI), Actor(sim)
    pid = int(program.line())
    for name in (CHECKPOINT, RESTORE, UNLOCK):
        assert actor.does(name, pid) == (ILLEGAL_STATE, RUNNING)
    assert actor.does(LOCK, pid, 1000) == (0, LOCKED)
    assert actor.does(LOCK, pid) == (ILLEGAL_STATE, LOCKED)
    assert actor.does(RESTORE, pid) == (ILLEGAL_STATE, LOCKED)
    assert actor.does(CHECKPOINT, pid) == (0, CHECKPOINTED)
    for name in (LOCK, CHECKPOINT, UNLOCK):
        assert actor.does(name, pid) == (ILLEGAL_STATE, CHECKPOINTED)
    assert actor.does(RESTORE, pid) == (0, LOCKED)
    assert actor.does(UNLOCK, pid) == (0, RUNNING)


def refusals(pid: int) -> None:
    start_without_context()
    for process in (0, -1, 1, 2**30, os.getpid()):
        for name in (LOCK, CHECKPOINT, RESTORE, UNLOCK):
            assert step(name, process) == INVALID_VALUE, (name, process)
    for name in (LOCK, CHECKPOINT, UNLOCK):
        assert step(name, pid, create_string_buffer(bytes(63) + b"\1", 64)) == INVALID_VALUE, name
    assert state(pid) == RUNNING


def test_who_and_how_is_checked(sim: Any) -> None:
    program = sim.start(holds, GI)
    sim.run(refusals, int(program.line()))


def test_the_memory_is_gone_and_comes_back(sim: Any) -> None:
    program, actor = sim.start(holds, 8 * GI), Actor(sim)
    pid = int(program.line())
    before = int(sim.run(free_now))
    actor.all(pid, LOCK, CHECKPOINT)
    assert int(sim.run(free_now)) == before + 8 * GI + CONTEXT
    other = sim.start(holds, 9 * GI)
    other.line()
    assert actor.does(RESTORE, pid) == (OUT_OF_MEMORY, CHECKPOINTED)
    other.kill()
    actor.all(pid, RESTORE, UNLOCK)
    assert int(sim.run(free_now)) == before
    program.tell("how much")
    assert program.line() == f"free {before + CONTEXT} of {16 * GI}"


def test_contents_are_the_same_after_a_thousand_cycles(sim: Any) -> None:
    program, actor = sim.start(keeps_data), Actor(sim)
    pid = int(program.line())
    for _ in range(1000):
        actor.all(pid, "Cycle")
        program.tell("and?")
        assert program.line() == "same"


def test_contents_are_not_on_the_gpu_meanwhile(sim: Any) -> None:
    program, actor = sim.start(keeps_data), Actor(sim)
    pid = int(program.line())

    def on_the_gpu() -> bool:
        found = False
        for path in Path(f"/proc/{pid}/fd").iterdir():
            if "gpushare-sim" in str(path.readlink()):
                with path.open("rb") as file:
                    found = found or any(file.read(64 * MI))
        return found

    assert on_the_gpu()
    actor.all(pid, LOCK, CHECKPOINT)
    assert not on_the_gpu()
    actor.all(pid, RESTORE, UNLOCK)
    assert on_the_gpu()


def test_calls_wait_while_the_program_is_locked(sim: Any) -> None:
    program, actor = sim.start(keeps_data), Actor(sim)
    pid = int(program.line())
    actor.all(pid, LOCK)
    program.tell("and?")
    time.sleep(0.2)
    actor.all(pid, CHECKPOINT, RESTORE)
    began = time.monotonic()
    actor.all(pid, UNLOCK)
    assert program.line() == "same"
    assert time.monotonic() - began < 5


def slow_call() -> None:
    start()
    say(os.getpid())
    wait_line()
    say("in it")
    cu.cuMemsetD8_v2(alloc(MI), 0, MI)
    say("done")
    wait_line()


def test_a_lock_waits_for_calls_and_gives_up(sim: Any) -> None:
    settings = f"{sim.settings},pool={sim.pool},latency=cuMemsetD8:600ms"
    program, actor = sim.start(slow_call, GPUSHARE_SIM=settings), Actor(sim)
    pid = int(program.line())
    program.tell()
    program.line()
    time.sleep(0.1)
    assert actor.does(LOCK, pid, 50) == (NOT_READY, RUNNING)
    assert actor.does(LOCK, pid, 5000) == (0, LOCKED)
    assert program.line() == "done", "it had ended before"
    actor.all(pid, UNLOCK)


def unsuspendable(kind: str) -> None:
    start()
    if kind == "managed":
        place = pointer("cuMemAllocManaged", MI, 1)
    else:
        handle = create_string_buffer(64)
        cu.cuIpcGetMemHandle(handle, alloc(MI))
    say(os.getpid())
    wait_line()
    say("runs", info()[1])
    if kind == "managed":
        cu.cuMemFree_v2(place)
        say("freed")
        wait_line()


def test_what_a_checkpoint_refuses(sim: Any) -> None:
    for kind in ("managed", "exported"):
        program, actor = sim.start(unsuspendable, kind), Actor(sim)
        pid = int(program.line())
        actor.all(pid, LOCK)
        assert actor.does(CHECKPOINT, pid) == (NOT_SUPPORTED, LOCKED)
        actor.all(pid, UNLOCK)
        program.tell()
        assert program.line().startswith("runs")
        if kind == "managed":
            assert program.line() == "freed"
            actor.all(pid, LOCK, CHECKPOINT, RESTORE, UNLOCK)


def test_whoever_comes_next_ends_what_a_killed_caller_began(sim: Any) -> None:
    program, slow = (
        sim.start(keeps_data),
        Actor(sim, GPUSHARE_SIM=f"{sim.settings},pool={sim.pool},checkpoint_rate=50Mi"),
    )
    pid = int(program.line())
    for name, before, after in ((CHECKPOINT, LOCK, CHECKPOINTED), (RESTORE, CHECKPOINT, LOCKED)):
        actor = Actor(sim)
        actor.does(before, pid)
        slow.child.tell(f"{name} {pid}")
        time.sleep(0.3)
        slow.child.kill()
        actor.child.tell(f"{name} {pid}")
        code, found = map(int, actor.child.line().split())
        assert (code, found) == (ILLEGAL_STATE, after)
        slow = Actor(sim, GPUSHARE_SIM=f"{sim.settings},pool={sim.pool},checkpoint_rate=50Mi")
    Actor(sim).all(pid, UNLOCK)
    program.tell("and?")
    assert program.line() == "same"


def test_a_caller_killed_while_it_locks_stops_nobody(sim: Any) -> None:
    settings = f"{sim.settings},pool={sim.pool},latency=cuMemsetD8:600ms"
    program, actor = sim.start(slow_call, GPUSHARE_SIM=settings), Actor(sim)
    pid = int(program.line())
    program.tell()
    program.line()
    time.sleep(0.1)
    actor.child.tell(f"{LOCK} {pid} 60000")
    time.sleep(0.1)
    actor.child.kill()
    assert program.line() == "done"
    program.end()


def test_a_program_killed_while_it_is_locked_leaves_nothing_to_the_next(sim: Any) -> None:
    """The one that locks it comes to its end when others have the place of the dead already."""
    settings = f"{sim.settings},pool={sim.pool},latency=cuMemsetD8:600ms"
    keeper = sim.start(holds, MI)
    keeper.line()
    program, actor = sim.start(slow_call, GPUSHARE_SIM=settings), Actor(sim)
    pid = int(program.line())
    program.tell()
    program.line()
    time.sleep(0.1)
    actor.child.tell(f"{LOCK} {pid} 5000")
    time.sleep(0.1)
    program.kill()
    keeper.tell("who frees what the dead one had")
    keeper.line()
    time.sleep(0.5)
    next_one = sim.start(holds, MI)
    assert int(next_one.line()) > 0, "it runs"


def test_one_that_breaks_off_leaves_a_failed_process(sim: Any) -> None:
    program = sim.start(keeps_data)
    actor = Actor(sim, GPUSHARE_SIM=f"{sim.settings},pool={sim.pool},checkpoint_break=1")
    pid = int(program.line())
    actor.all(pid, LOCK)
    assert actor.does(CHECKPOINT, pid) == (OPERATING_SYSTEM, FAILED)
    for name in (LOCK, CHECKPOINT, RESTORE, UNLOCK):
        assert actor.does(name, pid) == (ILLEGAL_STATE, FAILED)
    program.tell("and?")
    assert program.process.wait(10) == 1, "each of its calls fails"
    program.kill()


def test_a_checkpointed_program_can_be_killed(sim: Any) -> None:
    program, actor = sim.start(holds, 8 * GI), Actor(sim)
    pid = int(program.line())
    actor.all(pid, LOCK, CHECKPOINT)
    program.kill()
    assert int(sim.run(free_now)) == 16 * GI - CONTEXT
    assert actor.does(RESTORE, pid) == (INVALID_VALUE, -1)


def test_it_takes_as_long_as_its_size_says(sim: Any) -> None:
    program = sim.start(holds, GI)
    actor = Actor(sim, GPUSHARE_SIM=f"{sim.settings},pool={sim.pool},checkpoint_rate=4Gi")
    pid = int(program.line())
    actor.all(pid, LOCK)
    for name in (CHECKPOINT, RESTORE):
        began = time.monotonic()
        actor.all(pid, name)
        assert time.monotonic() - began > 0.9 * (GI + CONTEXT) / (4 * GI)
