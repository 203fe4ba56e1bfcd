"""What several processes make of one pool: accounting, death in all its forms, interprocess memory and events."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from ctypes import byref, c_int, c_uint64
from pathlib import Path
from typing import Any

from simcuda import (
    CONTEXT,
    GI,
    INVALID_CONTEXT,
    INVALID_HANDLE,
    INVALID_VALUE,
    MI,
    NOT_INITIALIZED,
    OUT_OF_MEMORY,
    CudaError,
    Handle64,
    alloc,
    cu,
    info,
    pointer,
    read,
    refuses,
    say,
    start,
    wait_line,
    write,
)


def total_used() -> int:
    free, total = info()
    return total - free


def holder(size: int, until_told: bool = True) -> None:
    start()
    address = alloc(size)
    cu.cuMemsetD8_v2(address, 1, min(size, MI))
    say("holding")
    if until_told:
        wait_line()


def asker(size: int) -> None:
    start()
    try:
        alloc(size)
        say("got", total_used())
    except CudaError as error:
        say("refused", error.code)


def looker() -> None:
    start()
    say(total_used() - CONTEXT)


def usage(sim: Any) -> int:
    return int(sim.run(looker))


def test_two_processes_share_one_gpu(sim: Any) -> None:
    sim.settings = "memory=8Gi"
    first = sim.start(holder, 5 * GI)
    first.line()
    assert sim.run(asker, 5 * GI) == f"refused {OUT_OF_MEMORY}\n"
    assert sim.run(asker, GI) == f"got {5 * GI + GI + 2 * CONTEXT}\n"
    assert usage(sim) == 5 * GI + CONTEXT
    first.kill()
    assert usage(sim) == 0
    assert sim.run(asker, 5 * GI) == f"got {5 * GI + CONTEXT}\n"


def test_a_zombie_is_dead(sim: Any) -> None:
    child = sim.start(holder, GI)
    child.line()
    child.kill(reap=False)
    deadline = time.monotonic() + 10
    while "State:\tZ" not in Path(f"/proc/{child.pid}/status").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert usage(sim) == 0
    child.kill()


def leaderless() -> None:
    """The main thread ends, another lives on: the process looks like a zombie and is not one."""
    import ctypes
    import threading

    start()
    alloc(GI)

    def survive() -> None:
        say("alone")
        sys.stdin.readline()
        os._exit(0)

    threading.Thread(target=survive).start()
    ctypes.CDLL(None).pthread_exit(None)


def test_a_process_without_its_main_thread_lives(sim: Any) -> None:
    child = sim.start(leaderless)
    child.line()
    time.sleep(0.05)
    assert usage(sim) == GI + CONTEXT
    child.kill()
    assert usage(sim) == 0


def replaces_itself() -> None:
    start()
    alloc(GI)
    say("before")
    wait_line()
    os.execv("/bin/sh", ["sh", "-c", "echo after; read line"])


def test_exec_frees(sim: Any) -> None:
    child = sim.start(replaces_itself)
    child.line()
    assert usage(sim) == GI + CONTEXT
    child.tell()
    assert child.line() == "after"
    assert usage(sim) == 0


def forks() -> None:
    start()
    alloc(GI)
    child = os.fork()
    if child == 0:
        codes = [
            cu.code("cuInit", 0),
            cu.code("cuMemAlloc_v2", byref(c_uint64()), 100),
            cu.code("cuDeviceGetCount", byref(c_int())),
            cu.code("cuMemGetInfo_v2", None, None),
            cu.code("cuCtxGetCurrent", byref(c_uint64())),
            cu.code("cuStreamSynchronize", None),
            cu.code("cuMemFree_v2", 0),
        ]
        say("child", codes == [NOT_INITIALIZED] * len(codes), cu.code("cuDriverGetVersion", byref(c_int())))
        signal.pause()
    say("forked", child)
    wait_line()
    assert total_used() == GI + CONTEXT
    wait_line()


def test_a_forked_child_is_not_initialised_and_keeps_nothing_alive(sim: Any) -> None:
    parent = sim.start(forks)
    lines = sorted([parent.line(), parent.line()])
    assert lines[0] == "child True 0"
    child = int(lines[1].split()[1])
    try:
        parent.tell()
        assert usage(sim) == GI + CONTEXT
        parent.kill()
        assert usage(sim) == 0
    finally:
        os.kill(child, signal.SIGKILL)


def forks_first() -> None:
    """A child of a process that has only loaded the library may use it."""
    assert cu.code("cuDeviceGetCount", byref(c_int())) == NOT_INITIALIZED
    if os.fork() == 0:
        start()
        alloc(MI)
        os._exit(0)
    assert os.wait()[1] == 0
    start()


def test_fork_before_initialisation(sim: Any) -> None:
    sim.run(forks_first)


def test_slow_teardown(sim: Any) -> None:
    sim.settings = "memory=8Gi,teardown=700ms"
    child = sim.start(holder, 5 * GI)
    child.line()
    child.kill()
    assert sim.run(asker, 4 * GI) == f"refused {OUT_OF_MEMORY}\n"
    assert usage(sim) == 5 * GI + CONTEXT, "dead, and still shown"
    deadline = time.monotonic() + 10
    while usage(sim) != 0:
        assert time.monotonic() < deadline
    assert sim.run(asker, 5 * GI) == f"got {5 * GI + CONTEXT}\n"


STORM = r"""
#include "cuda_abi.h"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Allocates and frees at random until it is killed; says when it has begun. */
int main(int count, char **arguments) {
    CUcontext context;
    CUdeviceptr live[32] = {0};
    (void)count;
    srand((unsigned)atoi(arguments[1]));
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) {
        return 1;
    }
    if (write(1, "+", 1) != 1) {
        return 2;
    }
    for (;;) {
        int i = rand() % 32;
        if (live[i] != 0) {
            if (cuMemFree_v2(live[i])) {
                return 3;
            }
            live[i] = 0;
        } else {
            cuMemAlloc_v2(&live[i], rand() % 4 ? 1000 + (size_t)rand() % 100000 : ((size_t)rand() % 16 + 1) << 20);
        }
    }
}
"""


def test_killed_at_random_nothing_leaks(sim: Any, compile_c: Any) -> None:
    program = compile_c("storm", STORM, f"-L{sim.libraries}", "-lcuda")
    sim.settings = "memory=4Gi,context=20Mi"
    survivor = subprocess.Popen([program, "1"], env=sim.environment(), stdout=subprocess.PIPE)
    try:
        for seed in range(150):
            process = subprocess.Popen([program, str(seed)], env=sim.environment(), stdout=subprocess.PIPE)
            assert process.stdout is not None
            assert process.stdout.read(1) == b"+"
            time.sleep(seed % 7 * 0.0005)
            process.kill()
            process.wait()
            process.stdout.close()
            assert survivor.poll() is None
    finally:
        survivor.kill()
        survivor.wait()
        assert survivor.stdout is not None
        survivor.stdout.close()
    assert int(sim.run(looker_of_small_contexts)) == 0


def looker_of_small_contexts() -> None:
    start()
    say(total_used() - 20 * MI)


STEPS = r"""
#include "cuda_abi.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

static CUcontext context;

static size_t used(void) {
    size_t free_bytes, total;
    return cuMemGetInfo_v2(&free_bytes, &total) ? 0 : (total - free_bytes) >> 20;
}

static int work(void) {
    CUdeviceptr large, small;
    return cuMemAlloc_v2(&large, 8 << 20) || cuMemAlloc_v2(&small, 100) || cuMemFree_v2(large) || cuMemFree_v2(small);
}

/* Allocates and frees between two stops; once before, so that no symbol is left to resolve. */
static void victim(void) {
    ptrace(PTRACE_TRACEME, 0, NULL, NULL);
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context) || work()) {
        _exit(1);
    }
    raise(SIGSTOP);
    if (work()) {
        _exit(2);
    }
    raise(SIGSTOP);
    _exit(0);
}

/* Starts a victim, lets it do `steps` instructions of its work (all of it if that is fewer), kills it. */
static long kill_after(long steps) {
    int status;
    long done = 0;
    pid_t child = fork();
    if (child == 0) {
        victim();
    }
    waitpid(child, &status, 0);
    while (done < steps && WIFSTOPPED(status) && (done == 0 || WSTOPSIG(status) == SIGTRAP)) {
        ptrace(PTRACE_SINGLESTEP, child, NULL, NULL);
        waitpid(child, &status, 0);
        done++;
    }
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    return done;
}

int main(int count, char **arguments) {
    long stride = atol(arguments[1]), killed = 0;
    (void)count;
    long whole = kill_after(1000000);
    pid_t watcher = fork();
    if (watcher != 0) {
        int status;
        waitpid(watcher, &status, 0);
        return WIFEXITED(status) ? WEXITSTATUS(status) : 3;
    }
    for (long steps = 1; steps < whole; steps += stride, killed++) {
        kill_after(steps);
    }
    CUdeviceptr pointer;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) {
        return 1;
    }
    printf("%ld %zu", killed, used());
    printf(" %d\n", cuMemAlloc_v2(&pointer, 1000ul << 20));
    return 0;
}
"""


def test_killed_at_every_instruction(sim: Any, compile_c: Any) -> None:
    """Every 101st, which takes seconds; with a stride of 1 all of them, which takes minutes."""
    program = compile_c("steps", STEPS, f"-L{sim.libraries}", "-lcuda")
    sim.settings = "memory=1Gi,context=2Mi"
    stride = os.environ.get("GPUSHARE_TEST_STRIDE", "101")
    done = subprocess.run([program, stride], env=sim.environment(), capture_output=True, text=True)
    killed, left, code = map(int, done.stdout.split())
    assert killed > 40
    assert (left, code) == (2, 0), "only the context of the one that looks, and room for nearly everything"


CROWD = r"""
#include "cuda_abi.h"
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* Many processes at once; each holds 4 MiB until all have begun. */
int main(int count, char **arguments) {
    int many = atoi(arguments[1]), ready[2], go[2];
    char byte;
    (void)count;
    if (pipe(ready) || pipe(go)) {
        return 1;
    }
    for (int i = 0; i < many; i++) {
        if (fork() == 0) {
            CUcontext context;
            CUdeviceptr pointer;
            close(go[1]);
            int bad = cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context) ||
                      cuMemAlloc_v2(&pointer, 4 << 20);
            byte = bad ? '!' : '.';
            if (write(ready[1], &byte, 1) != 1 || read(go[0], &byte, 1) != 0) {
                _exit(1);
            }
            _exit(0);
        }
    }
    int good = 0;
    for (int i = 0; i < many && read(ready[0], &byte, 1) == 1; i++) {
        good += byte == '.';
    }
    CUcontext context;
    size_t free_bytes = 0, total = 0;
    cuInit(0);
    cuDevicePrimaryCtxRetain(&context, 0);
    cuCtxSetCurrent(context);
    cuMemGetInfo_v2(&free_bytes, &total);
    printf("%d %zu\n", good, (total - free_bytes) >> 20);
    close(go[1]);
    while (wait(NULL) > 0) {
    }
    cuMemGetInfo_v2(&free_bytes, &total);
    printf("%zu\n", (total - free_bytes) >> 20);
    return 0;
}
"""


def test_three_hundred_processes(sim: Any, compile_c: Any) -> None:
    program = compile_c("crowd", CROWD, f"-L{sim.libraries}", "-lcuda")
    sim.settings = "memory=4Gi,context=2Mi"
    done = subprocess.run([program, "300"], env=sim.environment(), capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["300", str(300 * 6 + 2), "2"], done.stderr


def exports_memory() -> None:
    start()
    small, big = alloc(1000), alloc(3 * MI)
    handles = [Handle64(), Handle64()]
    cu.cuIpcGetMemHandle(byref(handles[0]), small)
    cu.cuIpcGetMemHandle(byref(handles[1]), big + 100)
    refuses(INVALID_CONTEXT, "cuIpcOpenMemHandle_v2", byref(c_uint64()), handles[0], 1)
    refuses(INVALID_VALUE, "cuIpcGetMemHandle", byref(handles[0]), pointer("cuMemAllocManaged", 100, 1))
    write(small, b"small")
    write(big, b"big")
    event = pointer("cuEventCreate", 6)
    event_handle = Handle64()
    cu.cuIpcGetEventHandle(byref(event_handle), event)
    before = total_used()
    say(handles[0].hex(), handles[1].hex(), event_handle.hex())
    assert wait_line() == "written"
    assert (read(small, 5), read(big, 3)) == (b"SMALL", b"BIG")
    assert total_used() == before + CONTEXT, "the importer pays for its context alone"


def opens_memory(small: str, big: str, event_text: str) -> None:
    start()
    one = pointer("cuIpcOpenMemHandle_v2", Handle64.from_hex(small), 1)
    two = pointer("cuIpcOpenMemHandle", Handle64.from_hex(big), 1)
    assert (read(one, 5), read(two, 3)) == (b"small", b"big")
    write(one, b"SMALL")
    write(two, b"BIG")
    refuses(INVALID_VALUE, "cuMemFree_v2", one)
    event = pointer("cuIpcOpenEventHandle", Handle64.from_hex(event_text))
    cu.cuEventRecord(event, None)
    cu.cuEventSynchronize(event)
    say("written")
    wait_line()
    cu.cuIpcCloseMemHandle(one)
    refuses(INVALID_VALUE, "cuIpcCloseMemHandle", one)
    refuses(INVALID_VALUE, "cuIpcOpenMemHandle_v2", byref(c_uint64()), Handle64(), 1)
    text = bytearray.fromhex(small)
    text[12] ^= 0x40  # another descriptor of the exporter's
    refuses(INVALID_HANDLE, "cuIpcOpenMemHandle_v2", byref(c_uint64()), Handle64.from_hex(text.hex()), 1)


def test_interprocess_memory_and_events(sim: Any) -> None:
    one = sim.start(exports_memory)
    two = sim.start(opens_memory, *one.line().split())
    one.tell(two.line())
    one.end()
    two.end()


def test_files_are_private(sim: Any) -> None:
    sim.run(looker)
    assert sim.pool.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in sim.pool.iterdir()} == {0o600}


def several_threads() -> None:
    """Each thread allocates, writes, copies and frees; nothing is lost and nothing is mixed up."""
    import threading

    context = start()
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            cu.cuCtxSetCurrent(context)
            mine = bytes([number]) * 3000
            for turn in range(400):
                one, two = alloc(3000), pointer("cuMemAllocAsync", 3000 + turn * 100, None)
                write(one, mine)
                cu.cuMemcpyDtoD_v2(two, one, 3000)
                assert read(two, 3000) == mine
                cu.cuMemFree_v2(one)
                cu.cuMemFreeAsync(two, None)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    cu.cuCtxSynchronize()
    assert total_used() == CONTEXT


def test_threads(sim: Any) -> None:
    sim.run(several_threads)
