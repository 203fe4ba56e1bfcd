"""A trim in a Python program: what its frameworks keep is given back, by a thread that Python did not make."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import frameworks
import pytest
from shim_tree import ROOT

GIB, MIB = 2**30, 2**20
BORROWS = {"GPUSHARE_LIMIT": "8Gi", "GPUSHARE_REQUEST": "4Gi"}
HERE = str(Path(__file__).resolve().parent)


@pytest.fixture
def program(host, tmp_path):
    """Start a Python program that can import the stand-ins, this package and the client."""
    path = [frameworks.install(tmp_path / "frameworks"), HERE, str(ROOT)]
    started = []

    def start(body, *flags, python=sys.executable, **more):
        text = f"import sys; sys.path[:0] = {path!r}\nfrom cuda_client import *\n{body}"
        environ = host.environment(**BORROWS, **more)
        del environ["PYTHONPATH"]
        pipe = subprocess.PIPE
        line = [python, *flags, "-c", text]
        child = subprocess.Popen(line, env=environ, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        started.append(child)
        return child

    yield start
    for child in started:
        child.kill()
        child.communicate()


def heard(child):
    line = child.stdout.readline()
    assert line, child.communicate()[1]
    return json.loads(line)


def tell(child):
    child.stdin.write("go\n")
    child.stdin.flush()


def finish(child, timeout=20):
    out, err = child.communicate(timeout=timeout)
    assert child.returncode == 0, err
    return out, err


def ready(daemon):
    page = daemon.page
    page.await_ready()
    return page


TORCH = "import torch; torch.cuda.init(); held = torch.Tensor(512 * MiB); torch.Tensor(GiB); "


@pytest.mark.parametrize("flags", [(), ("-I",), ("-S",), ("-I", "-S"), ("-E", "-B")], ids=" ".join)
def test_the_cache_of_pytorch(program, daemon, flags):
    child = program(
        TORCH
        + "import threading; say(1); hear(); held, kept = torch.cuda.allocator.emptied, len(threading.enumerate())\n"
        "say([len(held), held != [threading.get_ident()], kept])",
        *flags,
    )
    heard(child)
    page = ready(daemon)
    assert page.word()[0] == GIB + 512 * MIB
    assert page.trim(GIB) < 1
    assert page.word()[0] == 512 * MIB and page.trimmed() == GIB
    tell(child)
    assert heard(child) == [1, True, 1], "once, on another thread, of which Python's own list knows nothing"
    assert finish(child) == ("", "")


@pytest.mark.parametrize("python", ["/usr/bin/python3", "python3"])
def test_other_interpreters(program, daemon, python):
    """A static build, and one with a libpython: the symbols are looked for in the process."""
    child = program(TORCH + "say(1); hear()", python=python)
    heard(child)
    page = ready(daemon)
    page.trim(GIB)
    assert page.trimmed() == GIB
    tell(child)
    finish(child)


CAPTURES = """
import torch, cupy, threading, time
torch.cuda.init(); held = torch.Tensor(256 * MiB); torch.Tensor(256 * MiB)
cuda, stream, graph, seen = torch.cuda.cuda, torch.cuda.cuda.stream(), c_void_p(), []
context = c_void_p(); check(cuda.cuCtxGetCurrent(byref(context)))
cupy.pool.give(256 * MiB, cupy.pool.take(256 * MiB))
def capture(seconds):
    check(cuda.cuCtxSetCurrent(context))
    check(cuda.cuStreamBeginCapture_v2(stream, 1))
    began.set()
    time.sleep(seconds)
    seen.append(cuda.cuStreamEndCapture(stream, byref(graph)))
def empty_and_capture():
    torch.cuda.allocator.empty()
    threading.Thread(target=capture, args=(SECONDS,)).start()
    began.wait()
def free_all_blocks(free=cupy.pool.free_all_blocks):
    seen.append("emptied")
    free()
began = threading.Event()
torch.cuda.empty_cache, cupy.pool.free_all_blocks = empty_and_capture, free_all_blocks
say(1); hear(); say(seen); hear()
"""


def test_a_cache_waits_for_a_capture_that_began_after_the_last_one(program, daemon):
    child = program(CAPTURES.replace("SECONDS", "0.3"))
    heard(child)
    page = ready(daemon)
    assert page.trim(512 * MIB, within_ms=5000) >= 0.25
    assert page.trimmed() == 512 * MIB
    tell(child)
    assert heard(child) == [0, "emptied"], "the capture ended well, and before"


def test_a_capture_that_does_not_end_keeps_the_other_caches(program, daemon):
    child = program(CAPTURES.replace("SECONDS", "1.5"))
    heard(child)
    page = ready(daemon)
    page.trim(512 * MIB, within_ms=700)
    assert page.trimmed() == 256 * MIB
    tell(child)
    assert heard(child) == [], "nothing was emptied meanwhile"


def test_what_waits_in_a_cycle_is_collected_when_the_cache_is_not_enough(program, daemon):
    child = program(
        TORCH
        + """
import gc
gc.disable()
class Node: pass
node = Node(); node.itself, node.tensor = node, torch.Tensor(256 * MiB)
del node
say(1); hear(); say(len(torch.cuda.allocator.emptied)); hear()
"""
    )
    heard(child)
    page = ready(daemon)
    page.trim(GIB)
    assert page.word()[0] == 768 * MIB, "it was enough: the program does not stand still for a collection"
    tell(child)
    assert heard(child) == 1
    page.trim(256 * MIB)
    assert page.word()[0] == 512 * MIB
    tell(child)
    finish(child)


def test_a_framework_that_is_loaded_but_has_not_started(program, daemon):
    child = program(
        "import torch; cuda = Cuda().start(); cuda.must_alloc(GiB); say(1); hear(); say(torch.cuda.cuda is None)"
    )
    heard(child)
    ready(daemon).trim(GIB)
    tell(child)
    assert finish(child) == ("true\n", "")


def test_nothing_is_imported_that_the_program_has_not(program, daemon):
    child = program(
        "cuda = Cuda().start(); cuda.must_alloc(GiB); before = set(sys.modules); say(1); hear()\n"
        "say(sorted(set(sys.modules) - before))"
    )
    heard(child)
    ready(daemon).trim(GIB)
    tell(child)
    assert set(heard(child)) <= {"gc", "time"}, "which are part of the interpreter"
    assert finish(child) == ("", "")


def test_the_pools_of_cupy(program, daemon):
    child = program("import cupy; pool = cupy.pool; pool.give(GiB, pool.take(GiB)); say(1); hear()")
    heard(child)
    page = ready(daemon)
    page.trim(GIB)
    assert page.word()[0] == 0
    tell(child)
    finish(child)


def test_the_pools_of_cuda_core(program, daemon):
    """They are the driver's own: no hook is needed, and no framework is asked."""
    pytest.importorskip("cuda.core")
    child = program(
        """
from cuda.core import Device, DeviceMemoryResource, DeviceMemoryResourceOptions
device = Device(0); device.set_current()
stream = device.create_stream()
own = DeviceMemoryResource(device, DeviceMemoryResourceOptions(max_size=4 * GiB))
pool = c_void_p(int(own.handle)); cuda = Cuda()
check(cuda.cuMemPoolSetAttribute(pool, ATTR_RELEASE_THRESHOLD, byref(c_uint64(2**63))))
kept, held = own.allocate(512 * MiB, stream=stream), own.allocate(256 * MiB, stream=stream)
kept.close(stream); stream.sync()
say(1); hear(); held.close(stream)
"""
    )
    heard(child)
    page = ready(daemon)
    before = page.word()[0]
    assert before >= 768 * MIB
    page.trim(512 * MIB)
    assert page.trimmed() == before - page.word()[0] >= 512 * MIB
    assert page.word()[0] >= 256 * MIB
    tell(child)
    finish(child)


def test_numbas_deallocations(program, daemon):
    pytest.importorskip("numba.cuda")
    child = program(
        """
import warnings; warnings.simplefilter("ignore")
from numba import cuda
import numpy
def rounds():
    for _ in range(5):
        cuda.device_array(16 * MiB, numpy.uint8)
rounds()
pending = cuda.current_context().memory_manager.deallocations
say(len(pending)); hear(); say([len(pending), pending._size, pending.is_disabled])
rounds(); say(len(pending))
with cuda.defer_cleanup():
    say(1); hear(); say(len(pending))
hear()
""",
        NUMBA_CUDA_MAX_PENDING_DEALLOCS_RATIO="0.5",
    )
    assert heard(child) == 5
    page = ready(daemon)
    assert page.word()[0] == 80 * MIB
    page.trim(GIB)
    assert page.word()[0] == 0
    tell(child)
    assert heard(child) == [0, 0, False]
    assert heard(child) == 5 and heard(child) == 1
    page.trim(GIB)
    assert page.word()[0] == 80 * MIB, "the program has asked that nothing is freed now"
    tell(child)
    assert heard(child) == 5
    tell(child)
    finish(child)


def test_an_exception_is_one_line_and_the_program_goes_on(program, daemon):
    child = program(
        TORCH
        + """
import cupy; pool = cupy.pool; pool.give(GiB, pool.take(GiB))
def broken(): raise SystemExit("no cache today")
torch.cuda.empty_cache = broken
say(1); hear()
"""
    )
    heard(child)
    page = ready(daemon)
    page.trim(2 * GIB)
    assert page.trimmed() == GIB, "the next one has its turn"
    tell(child)
    _out, err = finish(child)
    assert err.count("\n") == 1 and err.startswith("gpushare: ") and "torch: SystemExit: no cache today" in err


HOLD = """
import threading, time
def hold(seconds):
    "Python's lock, as a native call does that does not let go of it."
    ctypes.PyDLL(None).usleep(c_uint(int(seconds * 1e6)))
"""


def test_a_long_native_call_delays_nobody(program, daemon):
    """The trim ends when the daemon's time is over; what comes too late is not done at all."""
    child = program(
        TORCH + HOLD + "say(1); hear(); hold(1.5); say(2); time.sleep(0.3); say(torch.cuda.allocator.emptied)"
    )
    heard(child)
    page = ready(daemon)
    tell(child)
    time.sleep(0.1)
    assert 0.3 <= page.trim(GIB, within_ms=300) < 0.6
    assert page.trimmed() == 0
    assert heard(child) == 2 and heard(child) == []
    finish(child)


def test_a_trim_after_one_that_came_too_early(program, daemon):
    child = program(TORCH + HOLD + "say(1); hear(); hold(1); say(2); hear()")
    heard(child)
    page = ready(daemon)
    tell(child)
    time.sleep(0.1)
    page.trim(GIB, within_ms=100)
    number = page.ask_for_trim(GIB, within_ms=5000)
    assert heard(child) == 2
    page.await_trim(number)
    assert page.trimmed() == GIB, "the helper that waited was the new one's too"
    tell(child)
    finish(child)


@pytest.mark.parametrize("ending", ["pass", "sys.exit(0)", "raise SystemExit", "os._exit(0)"])
def test_an_interpreter_that_ends(program, daemon, ending):
    """Trims are asked for all the time while the interpreter is finalised."""
    for pause in (0, 0.001, 0.01, 0.03):
        child = program(TORCH + f"import time; say(1); hear(); time.sleep({pause}); {ending}")
        heard(child)
        page = list(daemon.pages.values())[-1]
        page.await_ready()
        tell(child)
        until = time.monotonic() + 10
        while child.poll() is None and time.monotonic() < until:
            page.ask_for_trim(GIB)
            time.sleep(0.0005)
        assert (child.returncode, child.stderr.read()) == (0, "")


def test_a_thousand_python_trims(program, daemon):
    child = program(
        TORCH
        + """
import gc
def size():
    gc.collect()
    status = dict(line.split(":") for line in open("/proc/self/status") if ":" in line)
    return [len(os.listdir("/proc/self/fd")), int(status["Threads"]), int(status["VmSize"].split()[0]),
            int(status["VmRSS"].split()[0]), sys.getallocatedblocks() // 1000]
say(1); hear(); say(size()); hear(); say(size())
"""
    )
    heard(child)
    page = ready(daemon)
    for _ in range(100):
        page.trim(2 * GIB)
    tell(child)
    before = heard(child)
    for _ in range(1000):
        page.trim(2 * GIB)
    tell(child)
    after = heard(child)
    assert before[:2] == after[:2]
    # A thread's stack is 8 MiB; malloc reserves 64 MiB for each thread that it sees at the same time as another.
    assert after[2] - before[2] < 512 * 1024 and after[3] - before[3] < 8 * 1024
    assert after[4] - before[4] <= 1
    finish(child)


# ---- what the program itself has said that it can do

CALLBACKS = """
import gpushare, threading, time
cuda = Cuda()
check(cuda.cuInit(0))
contexts = [cuda.primary(1), cuda.primary(0)]
held, seen = {}, []
for device in (0, 1):
    check(cuda.cuCtxSetCurrent(contexts[1 - device]))
    held[device] = [cuda.must_alloc(256 * MiB) for _ in range(4)]

def current():
    device = c_int()
    check(cuda.cuCtxGetDevice(byref(device)))
    return device.value

@gpushare.on_pressure
def shrink(pressure):
    in_time = 0 < pressure.seconds <= 5
    seen.append([pressure.gpu[:4], pressure.index, current(), pressure.wanted, in_time, pressure.reason])
    for _ in range(-(-pressure.wanted // (256 * MiB))):
        if held[pressure.index]:
            check(cuda.free(held[pressure.index].pop()))
"""


def test_a_callback_gives_what_is_wanted_of_each_gpu(program, daemon):
    child = program(CALLBACKS + "say(1); hear(); say(seen)")
    heard(child)
    page = ready(daemon)
    by_line = [page.word(line)[0] for line in (0, 1)]
    assert by_line == [GIB, GIB]
    page.trim(300 * MIB, 200 * MIB, within_ms=5000)
    assert sorted(page.word(line)[0] for line in (0, 1)) == [512 * MIB, 768 * MIB]
    assert sorted(page.trimmed(line) for line in (0, 1)) == [256 * MIB, 512 * MIB]
    tell(child)
    seen = heard(child)
    assert len(seen) == 2
    assert {(uuid, index == current, in_time) for uuid, index, current, _, in_time, _ in seen} == {("GPU-", True, True)}
    assert sorted(wanted for *_, wanted, _, _ in seen) == [200 * MIB, 300 * MIB]
    assert "borrowed" in seen[0][-1]
    finish(child)


def test_a_callback_that_takes_long_outlives_the_trim(program, daemon):
    child = program(
        CALLBACKS
        + """
def slow(pressure):
    time.sleep(1); seen.append("slow")
gpushare.pressure_hooks._registrations[:] = []
gpushare.on_pressure(slow)
say(1); hear(); say(seen)
"""
    )
    heard(child)
    page = ready(daemon)
    assert page.trim(GIB, within_ms=200) < 0.5
    assert page.trim(GIB, within_ms=200) < 0.5, "and meanwhile no other is called"
    time.sleep(1)
    tell(child)
    assert heard(child) == ["slow"]
    finish(child)


def test_a_callback_allocates_and_waits_for_the_main_thread(program, daemon):
    """It is a thread like any other: locks, allocations, imports, messages of its own."""
    child = program(
        CALLBACKS
        + """
import logging
lock, turn = threading.Lock(), threading.Event()
@gpushare.on_pressure
def busy(pressure):
    import decimal
    pointer = cuda.must_alloc(MiB)
    with lock:
        logging.getLogger("x").warning("busy in %s", threading.current_thread().name)
    check(cuda.free(pointer)); turn.set()
lock.acquire(); say(1); hear(); time.sleep(0.1); lock.release(); say(turn.wait(5)); hear()
"""
    )
    heard(child)
    page = ready(daemon)
    number = page.ask_for_trim(8 * GIB, within_ms=5000)
    tell(child)
    assert heard(child) is True
    page.await_trim(number)
    tell(child)
    assert "busy in" in finish(child)[1]


def test_the_signal_for_a_checkpoint(program, daemon):
    child = program(
        """
import gpushare, signal, threading
got = []
signal.signal(signal.SIGUSR1, lambda *_: got.append(threading.current_thread() is threading.main_thread()))
gpushare.checkpoint_signal(signal.SIGUSR1)
cuda = Cuda().start(); held = cuda.must_alloc(GiB)
say(1); hear(); hear(); say(got)
"""
    )
    heard(child)
    page = ready(daemon)
    page.trim(GIB)
    page.trim(GIB)
    tell(child)
    tell(child)
    assert heard(child) == [True], "once, and to the program's own thread"
    finish(child)


# ---- interpreters that come and go

EMBED = r"""
#include <dlfcn.h>
#include <stdio.h>
#define CALL(library, type, name) ((type (*)())dlsym(library, name))
int main(void) {
    void *context, *cuda = dlopen("libcuda.so.1", RTLD_NOW), *python = dlopen("LIBPYTHON", RTLD_NOW | SCOPE);
    if (python == NULL || CALL(cuda, int, "cuInit")(0) || CALL(cuda, int, "cuDevicePrimaryCtxRetain")(&context, 0))
        return 2;
    for (int round = 0; round < 2; round++) {
        char line[100];
        CALL(python, void, "Py_InitializeEx")(0);
        if (CALL(python, int, "PyRun_SimpleString")(PROGRAM) != 0)
            return 3;
        CALL(python, int, "Py_FinalizeEx")();
        puts("2");
        fflush(stdout);
        fgets(line, sizeof line, stdin);
    }
    return 0;
}
"""
SAYS_SO = """
import sys
class torch:
    class cuda:
        is_initialized = bool(1).__bool__
        def empty_cache(): print(3, flush=True)
sys.modules["torch"] = torch
print(1, flush=True); sys.stdin.readline()
"""


@pytest.mark.parametrize("scope", ["RTLD_GLOBAL", "RTLD_LOCAL"])
def test_an_embedded_interpreter_that_ends_and_begins_again(host, daemon, tmp_path, scope):
    """Also a libpython that was opened for itself, with nothing of it in the program's own scope."""
    library = Path("/usr/lib/x86_64-linux-gnu/libpython3.11.so.1.0")
    if not library.exists():
        pytest.skip(f"no {library}")
    source, binary = tmp_path / "embed.c", tmp_path / "embed"
    text = EMBED.replace("LIBPYTHON", str(library)).replace("SCOPE", scope).replace("PROGRAM", json.dumps(SAYS_SO))
    source.write_text(text)
    subprocess.run(["gcc", "-w", str(source), "-o", str(binary), "-ldl"], check=True)
    pipe = subprocess.PIPE
    environ = host.environment(**BORROWS, PYTHONPATH=None)
    with subprocess.Popen([binary], env=environ, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as child:
        for _ in range(2):
            assert heard(child) == 1
            page = ready(daemon)
            page.trim(GIB)
            assert heard(child) == 3 and heard(child) == 3, "and once more after a collection"
            tell(child)
            assert heard(child) == 2, "there is no interpreter now"
            page.trim(GIB)
            tell(child)
        finish(child)


def test_subinterpreters(program, daemon):
    interpreters = pytest.importorskip("_xxsubinterpreters")
    assert interpreters
    child = program(
        TORCH
        + "import _xxsubinterpreters as sub; one = sub.create(); sub.run_string(one, 'import gc'); say(1); hear()\n"
        "sub.destroy(one)"
    )
    heard(child)
    page = ready(daemon)
    page.trim(GIB)
    assert page.trimmed() == GIB
    tell(child)
    finish(child)


def test_the_hook_is_python_that_old_interpreters_read():
    """3.6 has no f(x=), no walrus, no positional-only marks, no annotations of variables that are evaluated later."""
    import ast

    text = (ROOT / "gpushare" / "trim_hook.py").read_text()
    ast.parse(text, feature_version=(3, 6))
    assert "\x00" not in text
