"""A trim: memory that a borrower only keeps is given back without a call of the program."""

from __future__ import annotations

import json
import time

import pytest
from fake_daemon import TRIMMED, wait_until

import switches

GIB, MIB = 2**30, 2**20
BORROWS = {"GPUSHARE_LIMIT": "8Gi", "GPUSHARE_REQUEST": "4Gi"}

POOLS = """
import threading, time
cuda = Cuda().start()
stream = cuda.stream()

def pooled(size):
    pointer = c_ulonglong()
    check(cuda.cuMemAllocAsync(byref(pointer), c_size_t(size), stream))
    return pointer

def keep(size):
    "Memory that the default pool keeps after it is freed."
    pool = c_void_p()
    check(cuda.cuDeviceGetDefaultMemPool(byref(pool), 0))
    check(cuda.cuMemPoolSetAttribute(pool, ATTR_RELEASE_THRESHOLD, byref(c_uint64(2**63))))
    check(cuda.cuMemFreeAsync(pooled(size), stream))
    check(cuda.cuStreamSynchronize(stream))

def threads():
    return len(os.listdir("/proc/self/task"))
"""


def tell(child, text="go"):
    child.stdin.write(text + "\n")
    child.stdin.flush()


def finish(child, timeout=20):
    out, err = child.communicate(timeout=timeout)
    assert child.returncode == 0, err
    return out, err


def heard(child):
    line = child.stdout.readline()
    assert line, child.communicate()[1]
    return line.strip()


@pytest.fixture
def keeper(host, daemon):
    """A process that keeps 1 GiB in its pool, uses 512 MiB, and then waits for a line."""
    child = host.start(
        POOLS + "held = pooled(512 * MiB); keep(GiB); say(threads()); hear(); say(cuda.used())", **BORROWS
    )
    assert heard(child) == "2", "the program's thread and ours"
    daemon.page.await_ready()
    yield child
    child.kill()
    child.communicate()


def test_pools_are_trimmed_while_the_program_does_nothing(keeper, daemon):
    page = daemon.page
    used, credit = page.word()
    assert used == 512 * MIB + GIB
    took = page.trim(GIB)
    assert page.word() == (512 * MIB, credit), "the credit stays for the daemon to take"
    assert page.trimmed() == GIB
    assert page.trim_begun == page.trim_done == 1
    wait_until(lambda: len(daemon.asks(TRIMMED)) == 1, "the frame that says so")
    assert took < 1
    tell(keeper)
    finish(keeper)


def test_nothing_is_given_that_nobody_wants(keeper, daemon):
    before = daemon.page.word()
    daemon.page.trim(0)
    assert daemon.page.word() == before and daemon.page.trimmed() == 0


def test_what_is_in_use_stays(keeper, daemon):
    daemon.page.trim(4 * GIB)
    assert daemon.page.word()[0] == 512 * MIB
    assert daemon.page.trimmed() == GIB
    daemon.page.trim(4 * GIB)
    assert daemon.page.trimmed() == GIB, "there is nothing more"


def test_a_wake_up_that_is_lost_costs_a_delay_only(keeper, daemon):
    """As when the daemon dies between raising the word and waking us."""
    number = daemon.page.ask_for_trim(GIB, wake=False)
    daemon.page.await_trim(number, patience=5)
    assert daemon.page.trimmed() == GIB


def test_what_is_asked_before_the_thread_first_runs_is_answered(host, daemon, compile_c):
    """On a busy machine it may take long to run. A daemon that saw no listener meanwhile would stop the program."""
    late = compile_c("late_threads.c", "-shared", "-fPIC", target="late_threads.so")
    preload = f"{host.libraries.shim}:{late}"
    child = host.start(POOLS + "keep(GiB); say(1); hear()", **BORROWS, LD_PRELOAD=preload)
    heard(child)
    assert daemon.page.trim_ready == 1
    assert daemon.page.trim(GIB) > 0.3, "the thread was not late"
    assert daemon.page.trimmed() == GIB
    tell(child)
    finish(child)


def test_without_a_daemon_the_page_is_answered_and_nobody_is_told(keeper, daemon):
    daemon.stop()
    daemon.page.trim(GIB)
    assert daemon.page.trimmed() == GIB
    assert daemon.asks(TRIMMED) == []
    daemon.start()
    daemon.page.trim(GIB)
    tell(keeper)
    finish(keeper)


def test_nobody_waits_where_nothing_is_lent(host, daemon):
    daemon.policy.limit = daemon.policy.request
    child = host.start(POOLS + "keep(GiB); say(threads()); hear()", **BORROWS)
    assert heard(child) == "1"
    assert daemon.page.trim_ready == 0
    tell(child)
    finish(child)


def test_a_limit_that_is_raised_later(host, daemon):
    daemon.policy.limit = daemon.policy.request
    child = host.start(POOLS + "say(threads()); hear(); keep(GiB); say(threads()); hear()", **BORROWS)
    assert heard(child) == "1"
    daemon.policy.limit = 8 * GIB
    daemon.page.attach(daemon.page.uuids[0], 8 * GIB, 4 * GIB)
    tell(child)
    assert heard(child) == "2"
    daemon.page.await_ready()
    daemon.page.trim(GIB)
    assert daemon.page.trimmed() == GIB
    tell(child)
    finish(child)


def test_graphs_give_back_too(host, daemon):
    child = host.start(
        POOLS
        + """
class AllocNode(ctypes.Structure):
    _fields_ = (
        ("props", PoolProps), ("descs", c_void_p), ("count", c_size_t), ("size", c_size_t), ("dptr", c_ulonglong)
    )
graph, node, run = c_void_p(), c_void_p(), c_void_p()
check(cuda.cuGraphCreate(byref(graph), 0))
params = AllocNode(props=PoolProps(type=1, location=Location(1, 0)), size=256 * MiB)
check(cuda.cuGraphAddMemAllocNode(byref(node), graph, None, c_size_t(0), byref(params)))
check(cuda.cuGraphInstantiateWithFlags(byref(run), graph, c_ulonglong(0)))
check(cuda.cuGraphLaunch(run, stream)); check(cuda.cuStreamSynchronize(stream))
check(cuda.free(c_ulonglong(params.dptr))); check(cuda.cuStreamSynchronize(stream))
say(1); hear(); check(cuda.cuGraphLaunch(run, stream)); say(2); hear()
""",
        **BORROWS,
    )
    assert heard(child) == "1"
    page = daemon.page
    page.await_ready()
    assert page.word()[0] == 256 * MIB
    page.trim(256 * MIB)
    assert page.word()[0] == 0
    tell(child)
    assert heard(child) == "2"
    assert page.word()[0] == 256 * MIB
    tell(child)
    finish(child)


BEGIN = {
    "legacy": "check(cuda.cuStreamBeginCapture_v2(stream, 0))",
    "first version": "check(cuda.cuStreamBeginCapture(stream))",
    "per thread": "stream = c_void_p(); check(cuda.cuStreamCreate(byref(stream), 1)); "
    "check(cuda.cuStreamBeginCapture_v2_ptsz(stream, 0))",
    "to a graph": "graph = c_void_p(); check(cuda.cuGraphCreate(byref(graph), 0)); "
    "check(cuda.cuStreamBeginCaptureToGraph(stream, graph, None, None, c_size_t(0), 0))",
    "recapture": "graph = c_void_p(); check(cuda.cuGraphCreate(byref(graph), 0)); "
    "check(cuda.cuStreamBeginRecaptureToGraph(stream, 0, graph, None, None))",
}
END = {
    "ended": "graph = c_void_p(); check(cuda.cuStreamEndCapture(stream, byref(graph)))",
    "spoilt": "check(cuda.cuStreamSynchronize(stream) and 0); graph = c_void_p(); "
    "say(cuda.cuStreamEndCapture(stream, byref(graph)))",
    "destroyed": "check(cuda.cuStreamDestroy_v2(stream))",
    "context": "check(cuda.cuDevicePrimaryCtxReset_v2(0)); cuda.primary(); check(cuda.cuCtxSynchronize())",
}


@pytest.mark.parametrize("way", BEGIN)
def test_nothing_is_done_while_a_stream_is_captured(host, daemon, way):
    child = host.start(POOLS + f"keep(GiB); {BEGIN[way]}; say(1); hear(); {END['ended']}; say(2); hear()", **BORROWS)
    assert heard(child) == "1"
    page = daemon.page
    page.await_ready()
    took = page.trim(GIB, within_ms=1000)
    assert 0.499 <= took < 1, "half of the time it waits for the end of the capture, in whole milliseconds"
    assert page.word()[0] == GIB and page.trimmed() == 0 and page.trim_begun == 1
    number = page.ask_for_trim(GIB, within_ms=10000)
    time.sleep(0.1)
    assert page.trim_begun == number and page.trim_done < number
    tell(child)
    assert heard(child) == "2", "and the capture was not spoilt"
    page.await_trim(number, 1)
    assert page.trimmed() == GIB
    tell(child)
    finish(child)


@pytest.mark.parametrize("way", END)
def test_each_way_to_end_a_capture(host, daemon, way):
    if way == "context" and switches.chosen("captures") == "strict":
        pytest.skip("this driver forbids a reset during a capture")
    child = host.start(
        POOLS + f"keep(GiB); check(cuda.cuStreamBeginCapture_v2(stream, 0)); {END[way]}; say('end')\n"
        "stream = cuda.stream(); held = pooled(MiB); keep(GiB); say(1); hear()",
        **BORROWS,
    )
    while heard(child) != "1":
        pass
    page = daemon.page
    page.await_ready()
    page.trim(GIB, within_ms=400)
    assert page.trimmed() > 0
    tell(child)
    finish(child)


THREADS = """
def in_a_thread(work):
    def run():
        check(cuda.cuCtxSetCurrent(context))
        work()
    thread = threading.Thread(target=run)
    thread.start()
    return thread
context = c_void_p()
check(cuda.cuCtxGetCurrent(byref(context)))
keep(GiB)
"""


def test_a_capture_that_another_thread_ends(host, daemon):
    """As a relaxed one may be."""
    child = host.start(
        POOLS
        + THREADS
        + """
in_a_thread(lambda: check(cuda.cuStreamBeginCapture_v2(stream, 2))).join()
graph = c_void_p(); check(cuda.cuStreamEndCapture(stream, byref(graph))); say(1); hear()
""",
        **BORROWS,
    )
    assert heard(child) == "1"
    daemon.page.await_ready()
    daemon.page.trim(GIB, within_ms=400)
    assert daemon.page.trimmed() == GIB
    tell(child)
    finish(child)


def test_a_process_that_may_start_no_thread_does_not_say_that_it_trims(host, daemon, compile_c):
    """The daemon then takes its next step at once; the program does what it did without us."""
    none = compile_c("no_threads.c", "-shared", "-fPIC", target="no_threads.so")
    preload = f"{host.libraries.shim}:{none}"
    child = host.start(
        POOLS + "keep(GiB); say(threads()); hear(); say(cuda.alloc(MiB)[0])", **BORROWS, LD_PRELOAD=preload
    )
    assert heard(child) == "1"
    assert daemon.page.trim_ready == 0
    tell(child)
    out, err = finish(child)
    assert (out, err) == ("0\n", "")


def test_a_capture_that_could_not_begin_is_none(host, daemon):
    child = host.start(POOLS + "keep(GiB); say(cuda.cuStreamBeginCapture_v2(None, 0)); hear()", **BORROWS)
    assert int(heard(child)) != 0
    daemon.page.await_ready()
    daemon.page.trim(GIB, within_ms=400)
    assert daemon.page.trimmed() == GIB
    tell(child)
    finish(child)


def test_the_child_of_a_fork_has_a_page_and_a_thread_of_its_own(host, daemon):
    child = host.start(
        POOLS
        + """
keep(GiB); say(threads())
pid = os.fork()
if pid == 0:
    say(threads()); hear()
    os._exit(0)
say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])); hear()
""",
        **BORROWS,
    )
    assert heard(child) == "2"
    assert heard(child) == "1"
    daemon.page.await_ready()
    daemon.page.trim(GIB)
    assert daemon.page.trimmed() == GIB
    tell(child)
    assert heard(child) == "0"
    tell(child)
    finish(child)


def test_a_fork_before_cuda_is_a_process_like_any(host, daemon):
    child = host.start(
        """
pid = os.fork()
"""
        + POOLS
        + "keep(GiB); say(threads()); hear()\nif pid: os.waitpid(pid, 0)",
        **BORROWS,
    )
    assert heard(child) == "2" and heard(child) == "2"
    pages = list(daemon.pages.values())
    assert len(pages) == 2
    for page in pages:
        page.await_ready()
        page.trim(GIB)
        assert page.trimmed() == GIB
    tell(child, "go\ngo")
    finish(child)


def test_the_host_closes_all_descriptors(host, daemon):
    """The page is mapped: a trim goes on. Only the frame that hurries the daemon has no way."""
    child = host.start(POOLS + "keep(GiB); os.closerange(3, 4096); say(1); hear()", **BORROWS)
    assert heard(child) == "1"
    daemon.page.await_ready()
    daemon.page.trim(GIB)
    assert daemon.page.trimmed() == GIB
    assert daemon.asks(TRIMMED) == []
    tell(child)
    finish(child)


def test_a_thousand_trims(host, daemon):
    child = host.start(
        POOLS
        + """
held = pooled(MiB)
import time
def size():
    for _ in range(200):  # the thread that ran Python may be on its way out
        if threads() == 2:
            break
        time.sleep(0.01)
    pages = open("/proc/self/statm").read().split()[:2]
    return [len(os.listdir("/proc/self/fd")), threads(), *[int(one) * 4096 for one in pages]]
say(1); hear(); first = size(); say(2); hear(); say([first, size()])
""",
        **BORROWS,
    )
    assert heard(child) == "1"
    page = daemon.page
    page.await_ready()
    for _ in range(50):
        page.trim(GIB)
    tell(child)
    assert heard(child) == "2"
    for _ in range(1000):
        page.trim(GIB)
    tell(child)
    out, _err = finish(child)
    (*counts, virtual, resident), (*counts_after, virtual_after, resident_after) = json.loads(out)
    assert counts == counts_after
    # A thread's stack is 8 MiB; malloc reserves 64 MiB for each thread that it sees at the same time as another.
    assert virtual_after - virtual < 512 * MIB and resident_after - resident < 8 * MIB


def test_the_end_of_the_program_does_not_wait(host, daemon):
    """Trims are asked for as fast as they come, while programs end in each way."""
    for ending in ("pass", "os._exit(0)", "os.kill(os.getpid(), 15)", "os.execv('/bin/true', ['true'])"):
        child = host.start(POOLS + f"keep(GiB); say(1); hear()\n{ending}", **BORROWS)
        assert heard(child) == "1"
        page = list(daemon.pages.values())[-1]
        page.await_ready()
        began = time.monotonic()
        tell(child)
        while child.poll() is None:
            page.ask_for_trim(GIB)
            assert time.monotonic() < began + 5, ending
        assert child.returncode == (-15 if "kill" in ending else 0), child.communicate()[1]
        child.communicate()
