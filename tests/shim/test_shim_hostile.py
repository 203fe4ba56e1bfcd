"""What must never cost a run: hosts with a standard error of a certain kind, several copies of us, threads that end
contexts under each other, tools that call us from inside the driver.
"""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest
from fake_daemon import UNKNOWN
from test_shim_graph import GRAPHS

import switches

LIMIT = {"GPUSHARE_LIMIT": "4Gi"}


@pytest.mark.parametrize("reader", ["gone", "stalled"])
def test_a_standard_error_that_nobody_reads(host, reader):
    """The pipe is broken, or full: the message is lost, and the program goes on."""
    read, write = os.pipe()
    if reader == "gone":
        os.close(read)
    else:
        os.set_blocking(write, False)
        with pytest.raises(BlockingIOError):
            while True:
                os.write(write, bytes(4096))
        os.set_blocking(write, True)
    script = """
        import signal
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)                     # as in any program but Python
        cuda = Cuda().start()
        say([cuda.alloc(2**60)[0], cuda.alloc(GiB)[0], signal.sigpending() == set()])
    """
    done = subprocess.run(
        host.script(script), env=host.environment(**LIMIT), stdout=subprocess.PIPE, stderr=write, text=True, timeout=20
    )
    assert (done.returncode, done.stdout) == (0, "[2, 0, true]\n")


@pytest.mark.parametrize("how", ["dlsym", "address", "linked"])
def test_two_copies_of_the_library(host, daemon, compile_c, tmp_path, how):
    """One for the whole system and one of `gpushare run`, say: the first one acts, the other might not be there."""
    first = host.libraries.shim
    preload = f"{first}:{shutil.copy(first, tmp_path)}"
    if how == "linked":
        program = compile_c("linked.c", f"-L{host.libraries.driver_dir}", "-lcuda")
        child = host.run([program], LD_PRELOAD=preload, **LIMIT)
    else:
        script = (
            f"cuda = Cuda({how!r}).start(); say([cuda.must_alloc(GiB) is None, cuda.info()[1], Nvml().memory().total])"
        )
        child = host.run(host.script(script), LD_PRELOAD=preload, **LIMIT)
        assert child.said == [False, 8 * 2**30, 8 * 2**30]
        assert daemon.page.word()[0] == 2**30
    assert child.code == 0, child.err
    assert len(daemon.pages) == 1


SLOW_STATE = ",latency=cuDevicePrimaryCtxGetState:300ms"  # in which the other thread does what it likes

TWO_THREADS = """
import threading, time
cuda, nvml = Cuda().start(), Nvml()
def together(*functions):
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads: thread.start(); time.sleep(0.1)
    for thread in threads: thread.join()
def release():
    check(cuda.cuDevicePrimaryCtxRelease_v2(0))
"""


def test_two_threads_that_release_the_primary_context(host, daemon):
    host.python(
        TWO_THREADS
        + """
check(cuda.cuDevicePrimaryCtxRetain(byref(c_void_p()), 0))
cuda.must_alloc(MiB)
together(release, release)
say(0)
""",
        **LIMIT,
        GPUSHARE_SIM=host.environment()["GPUSHARE_SIM"] + SLOW_STATE,
    )
    assert daemon.page.counts()["contexts"] == 0
    assert daemon.page.word()[0] == 0


def test_a_thread_that_opens_the_primary_context_again_while_another_closes_it(host):
    said = host.python(
        TWO_THREADS
        + """
def again():
    cuda.primary()
    cuda.must_alloc(GiB)
empty = nvml.of_this_process()
cuda.must_alloc(GiB); cuda.must_alloc(GiB)
together(release, again)
cuda.primary()
say([cuda.used(), nvml.of_this_process() - empty])
""",
        **LIMIT,
        GPUSHARE_SIM=host.environment()["GPUSHARE_SIM"] + SLOW_STATE,
    ).said
    assert said == [2**30, 2**30]


def test_contexts_that_are_attached_and_detached(host):
    said = host.python(
        """
        cuda, nvml, seen = Cuda().start(), Nvml(), []
        empty = nvml.of_this_process()
        context, again = cuda.create(), c_void_p()
        check(cuda.cuCtxAttach(byref(again), 0))
        cuda.must_alloc(GiB)
        for _ in range(2):
            check(cuda.cuCtxDetach(context))
            current = c_void_p()
            check(cuda.cuCtxGetCurrent(byref(current)))
            cuda.primary() if current.value != context.value else None
            seen.append([cuda.used(), nvml.of_this_process() - empty])
        say([seen, again.value == context.value])
        """,
        **LIMIT,
    ).said
    second = 256 * 2**20 if switches.chosen("contexts") == "each" else 0  # it is no allocation: NVML alone shows it
    assert said == [[[2**30, 2**30 + second], [0, 0]], True]


def test_a_daemon_that_no_longer_knows_us(host, daemon):
    """Its answer makes the limit our own: what was allocated before still counts, and its end is no underflow."""
    child = host.start(
        """
        cuda = Cuda().start()
        old = cuda.must_alloc(GiB)
        say(0); hear()
        codes = [cuda.alloc(2 * GiB)[0], cuda.alloc(2 * GiB)[0], cuda.used()]
        check(cuda.free(old))
        codes += [cuda.alloc(2 * GiB)[0], cuda.used()]
        say(codes)
        """,
        **LIMIT,
    )
    assert child.stdout is not None and child.stdout.readline() == "0\n"
    daemon.policy.attach = UNKNOWN
    daemon.policy.decide = lambda _frame: UNKNOWN
    out, err = child.communicate("\n", timeout=30)
    assert out == "[0, 2, 3221225472, 0, 4294967296]\n", err


def test_a_context_that_the_driver_does_not_end(host):
    said = host.python(
        """
        cuda = Cuda().start()
        context = cuda.create()
        cuda.must_alloc(GiB)
        seen = [cuda.cuCtxDestroy_v2(context), cuda.used(), cuda.cuCtxDestroy_v2(context)]
        cuda.primary()
        say([*seen, cuda.used()])
        """,
        **LIMIT,
        GPUSHARE_SIM=host.environment()["GPUSHARE_SIM"] + ",fail=cuCtxDestroy_v2:1:719",
    ).said
    assert said == [719, 2**30, 0, 0]


GREEN = """
def part(device=0):
    resource, desc, green = (c_char * 144)(), c_void_p(), c_void_p()
    check(cuda.cuDeviceGetDevResource(device, resource, 1))
    check(cuda.cuDevResourceGenerateDesc(byref(desc), resource, 1))
    check(cuda.cuGreenCtxCreate(byref(green), desc, device, 1))
    return green
def enter(green):
    context = c_void_p()
    check(cuda.cuCtxFromGreenCtx(byref(context), green))
    check(cuda.cuCtxSetCurrent(context))
def both():
    seen.append([cuda.used() // MiB, (nvml.of_this_process() - empty) // MiB])
"""


@pytest.mark.parametrize("primary", ["first", "never"])
def test_green_contexts_are_part_of_the_primary_one(host, primary):
    """Opening one opens that, and what is allocated under it lives and dies with that."""
    said = host.python(
        GREEN
        + f"""
cuda, nvml, seen, keep = Cuda(), Nvml(), [], "{primary}" == "first"
check(cuda.cuInit(0))
if keep: cuda.primary()
green, other, current = part(), part(), c_void_p()
empty = nvml.of_this_process()
enter(green); cuda.must_alloc(512 * MiB); pointer = cuda.must_alloc(256 * MiB); both()
check(cuda.cuGreenCtxDestroy(green))
enter(other); both()                                   # the memory outlives the part
check(cuda.free(pointer)); both()
stream, pooled = c_void_p(), c_ulonglong()
check(cuda.cuGreenCtxStreamCreate(byref(stream), other, 1, 0))
check(cuda.cuMemAllocAsync(byref(pooled), c_size_t(64 * MiB), stream)); both()
check(cuda.cuMemFreeAsync(pooled, stream)); check(cuda.cuStreamSynchronize(stream)); both()
check(cuda.cuGreenCtxDestroy(other))
if keep: check(cuda.cuDevicePrimaryCtxReset_v2(0))
say([seen, nvml.of_this_process()])
""",
        **LIMIT,
    ).said
    kept = 64 if switches.chosen("pool_drop") == "trim" else 0  # by a pool
    assert said[0] == [[768, 768], [768, 768], [512, 512], [576, 576], [512 + kept, 512 + kept]]
    ended = primary == "first" and switches.chosen("reset") == "all"
    assert said[1] == (0 if ended else kept * 2**20)


def test_a_green_context_is_counted_as_the_primary_one(host, daemon):
    child = host.start(
        GREEN
        + """
cuda = Cuda()
check(cuda.cuInit(0))
green, other = part(), part()
enter(green); cuda.must_alloc(MiB); say(0); hear()
check(cuda.cuGreenCtxDestroy(green)); check(cuda.cuGreenCtxDestroy(other)); say(1)
""",
        **LIMIT,
    )
    assert child.stdout is not None and child.stdin is not None
    assert child.stdout.readline() == "0\n"
    assert (daemon.page.counts()["contexts"], daemon.page.word()[0]) == (1, 2**20)
    assert child.communicate("\n", timeout=30)[0] == "1\n"
    assert (daemon.page.counts()["contexts"], daemon.page.word()[0]) == (0, 0)


def test_a_reset_ends_what_was_allocated_in_green_contexts(host):
    said = host.python(
        GREEN
        + """
cuda, nvml, seen = Cuda().start(), Nvml(), []
empty = nvml.of_this_process()
green = part()
enter(green); cuda.must_alloc(512 * MiB); both()
check(cuda.cuDevicePrimaryCtxReset_v2(0)); cuda.primary(); both()
say(seen)
""",
        **LIMIT,
    ).said
    assert said == [[512, 512], [0, 0]]


def test_a_profiler_that_calls_us_from_inside_the_driver(host, compile_c):
    profiler = compile_c("profiler.c", "-shared", "-fPIC", target="profiler.so")
    child = host.python(
        GRAPHS
        + """
pool = c_void_p()
check(cuda.cuDeviceGetDefaultMemPool(byref(pool), 0))
check(cuda.cuMemPoolSetAttribute(pool, ATTR_RELEASE_THRESHOLD, byref(c_uint64(2**60))))
for _ in range(3):
    pointers = [c_ulonglong() for _ in range(4)]
    for pointer in pointers: check(cuda.cuMemAllocAsync(byref(pointer), c_size_t(100 * MiB), stream))
    graph = Graph(cuda); graph.give(graph.alloc(300 * MiB)); graph.instantiate()
    check(graph.launch(stream)); graph.end()
    for pointer in pointers: check(cuda.cuMemFreeAsync(pointer, stream))
    check(cuda.cuStreamSynchronize(stream))
    check(cuda.free(cuda.must_alloc(900 * MiB)))         # both pools are trimmed for it
keep = cuda.must_alloc(200 * MiB); both()
told = cuda.cuDevicePrimaryCtxReset_v2(0)
cuda.primary(); both()
say([told, seen])
""",
        LD_PRELOAD=f"{host.libraries.shim}:{profiler}",
        GPUSHARE_LIMIT="1Gi",
    )
    assert "profiler: at work" in child.err and "strict" not in child.err
    assert child.said == [719, [200, 0]], "the reset told of an error, and had been done"


def test_two_threads_that_free_the_same(host):
    """The one that took it out of our table fails, the other frees it and gets the address again for something else."""
    said = host.python(
        TWO_THREADS
        + """
pointer, codes = cuda.must_alloc(12 * MiB), []
main = cuda.primary()
def slow():
    check(cuda.cuCtxSetCurrent(main))
    codes.append(cuda.free(pointer))
def quick():
    check(cuda.cuCtxSetCurrent(main))
    check(cuda.cuMemFreeAsync(pointer, None))
    codes.append(cuda.must_alloc(4 * MiB).value == pointer.value)
together(slow, quick)
say([codes, cuda.used() // MiB, cuda.free(pointer), cuda.used()])
""",
        **LIMIT,
        GPUSHARE_SIM=host.environment()["GPUSHARE_SIM"] + ",latency=cuMemFree_v2:400ms,fail=cuMemFree_v2:1:1",
    ).said
    assert said == [[True, 1], 4, 0, 0]


@pytest.mark.parametrize("what", ["ecc 1", "lost\\ngpu0 reset"])
def test_a_context_that_is_broken_for_good(host, what):
    """Nothing can be freed in it, and nothing is credited, until it is ended: then all is."""
    said = host.python(
        f"""
        import time
        cuda = Cuda().start()
        pointers = [cuda.must_alloc(GiB), cuda.must_alloc(7 * MiB)]
        with open("{host.directory}/pool/health", "a") as health: health.write("gpu0 {what}\\n")
        while cuda.cuCtxSynchronize() == SUCCESS: time.sleep(0.002)
        refused = [cuda.free(pointer) != SUCCESS for pointer in pointers] + [cuda.alloc(1)[0] != SUCCESS]
        free, total = Nvml().memory().free, Nvml().memory().total
        check(cuda.cuDevicePrimaryCtxReset_v2(0)); cuda.primary()
        say([refused, total - free, cuda.used(), cuda.alloc(4 * GiB)[0]])
        """,
        **LIMIT,
    ).said
    assert said == [[True] * 3, 2**30 + 8 * 2**20, 0, 0]


@pytest.mark.parametrize("kind", ["deepbind", "namespace", "audit"])
def test_other_doors_of_the_loader(host, compile_c, tmp_path, kind):
    """A driver that is opened in a namespace of its own is answered from ours (test_shim_ways.py)."""
    auditor = compile_c("auditor.c", "-shared", "-fPIC", target="auditor.so")
    program = compile_c("namespaces.c")
    more = {"LD_AUDIT": str(auditor)} if kind == "audit" else {}
    child = host.run([program, kind], **LIMIT, **more)
    assert child.code == 0, child.err
    assert child.said == ([[0, 2], [0, 2]] if kind == "namespace" else [0, 2])


def test_a_gpu_for_which_the_page_has_no_line(host, daemon):
    """The process has more GPUs than a page has lines: on those the limit holds for it alone, on the others as ever."""
    child = host.start(
        """
        cuda = Cuda().start(0)
        cuda.must_alloc(GiB); say(0); hear()
        cuda.primary(1)
        codes = [cuda.alloc(3 * GiB)[0], cuda.alloc(3 * GiB)[0], cuda.info()[1]]
        cuda.primary(0)
        say([*codes, cuda.alloc(6 * GiB)[0], cuda.info()[1]])
        """,
        **LIMIT,
    )
    assert child.stdout is not None and child.stdout.readline() == "0\n"
    daemon.policy.attach = UNKNOWN
    out, err = child.communicate("\n", timeout=30)
    assert out == f"[0, 2, {4 * 2**30}, 0, {8 * 2**30}]\n", err
    assert daemon.page.word()[0] == 7 * 2**30
