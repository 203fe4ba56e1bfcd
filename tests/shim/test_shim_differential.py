"""The account against the driver's physical memory under random calls of every family, and as many as one likes.

GPUSHARE_TEST_CALLS sets how many calls, GPUSHARE_TEST_SEED where they begin. To the families of test_shim_account come
graphs, exported and imported handles, memory of another process, contexts that end with memory in them, and resets of
the primary context.
"""

from __future__ import annotations

import os

from test_shim_account import CALLS
from test_shim_graph import GRAPHS

STEPS = int(os.environ.get("GPUSHARE_TEST_CALLS", "4000"))
SEED = int(os.environ.get("GPUSHARE_TEST_SEED", "1"))

MORE = (
    CALLS
    + GRAPHS.partition("cuda, nvml =")[0]
    + """
import subprocess

EXPORTER = '''
from cuda_client import *
cuda = Cuda().start()
handle = (c_char * 64)()
check(cuda.cuIpcGetMemHandle(handle, cuda.must_alloc(3 * BLOCK)))
say(handle.raw.hex()); hear()
'''

class Handle(ctypes.Structure):
    _fields_ = (("bytes", c_char * 64),)

class All(Churn):
    # What a call makes, and how often it is chosen.
    CHOICES = ("linear", "managed", "pitched", "array", "pooled", "pooled", "block", "block", "graph", "graph",
               "relaunch", "relaunch", "imported", "opened", "ended", "trim")

    def __init__(self, cuda, seed, limit, primary, theirs, alone):
        super().__init__(cuda, seed, limit)
        self.primary, self.theirs, self.alone, self.made = primary, theirs, alone, {}

    def step(self):
        if len(self.held) > 60 or (self.held and self.chance.random() < 0.45):
            self.give(self.held.pop(self.chance.randrange(len(self.held))))
            return
        if self.alone and self.chance.random() < 0.0005:
            self.reset()
            return
        kind = self.chance.choice(self.CHOICES)
        code = getattr(self, kind)()
        if code not in (SUCCESS, OUT_OF_MEMORY):
            raise RuntimeError(f"{kind}: {code}")
        self.codes[code] = self.codes.get(code, 0) + 1
        self.made[kind] = self.made.get(kind, 0) + (code == SUCCESS)

    def graph(self):
        if sum(what[0] == "graph" for what in self.held) > 10:
            return SUCCESS
        graph, flags = Graph(self.cuda), self.chance.choice([0, 1])
        first, second = graph.alloc(self.size()), None
        if self.chance.random() < 0.5:
            graph.give(first)
            first = None
        if self.chance.random() < 0.5:
            second = graph.alloc(self.size())
        graph.instantiate(flags)
        self.held.append(("graph", graph, [one for one in (first, second) if one], flags, [False]))
        return SUCCESS

    def relaunch(self):
        graphs = [what for what in self.held if what[0] == "graph"]
        if not graphs:
            return SUCCESS
        _, graph, pointers, flags, launched = self.chance.choice(graphs)
        if not flags:
            self.free_all(pointers, launched)
        call = self.chance.choice(["cuGraphLaunch", "cuGraphLaunch_ptsz", "cuGraphUpload"])
        code = getattr(self.cuda, call)(graph.exec, self.stream)
        if call != "cuGraphUpload" and code == SUCCESS:
            launched[0] = True
        elif call != "cuGraphUpload" and flags:
            launched[0] = None                       # the driver may have freed what was left, or not
        return code

    def free_all(self, pointers, launched):
        for pointer in pointers if launched[0] is not False else []:
            free = self.chance.choice([self.cuda.free, lambda one: self.cuda.cuMemFreeAsync(one, self.stream)])
            code = free(pointer)
            assert code == SUCCESS or launched[0] is None, code
        launched[0] = False

    def trim(self):
        return self.cuda.cuDeviceGraphMemTrim(0)

    def imported(self):
        code, handle = self.cuda.create_block(self.size())
        if code == SUCCESS:
            fd, other = c_int(), c_ulonglong()
            check(self.cuda.cuMemExportToShareableHandle(byref(fd), handle, 1, c_ulonglong(0)))
            check(self.cuda.cuMemImportFromShareableHandle(byref(other), c_void_p(fd.value), 1))
            os.close(fd.value)
            first, second = (handle, other) if self.chance.random() < 0.5 else (other, handle)
            if self.chance.random() < 0.5:
                check(self.cuda.cuMemRelease(first))
                first = None
            self.held.append(("imported", first, second))
        return code

    def opened(self):
        pointer = c_ulonglong()
        return self.keep(self.cuda.cuIpcOpenMemHandle_v2(byref(pointer), self.theirs, 1), "opened", pointer)

    # A context that ends with memory in it, which nobody frees.
    def ended(self):
        context, held = c_void_p(), self.held
        code = self.cuda.cuCtxCreate_v2(byref(context), 0, 0)
        if code == SUCCESS:
            self.held = []
            for _ in range(self.chance.randrange(4)):
                self.chance.choice([self.linear, self.managed, self.array])()
            self.held = held
            check(self.cuda.cuCtxDestroy_v2(context))
            check(self.cuda.cuCtxSetCurrent(self.primary))
        return code

    # Takes along what is in the primary context; pools, handles and graphs stay, or not: GONE says what else ends. Of a
    # handle without a mapping nobody could say that, so it is released before.
    def reset(self):
        self.made["reset"] = self.made.get("reset", 0) + 1
        lost = lambda what: what[0] in GONE
        if "mapped" in GONE:
            for what in [what for what in self.held if what[0] in ("handle", "imported", "mapped")]:
                self.held.remove(what)
                if what[0] != "mapped":
                    self.give(what)
                elif what[3] is not None:
                    check(self.cuda.cuMemRelease(what[3]))
            self.free_slots = list(range(0, 4 * GiB, 128 * MiB))
        check(self.cuda.cuDevicePrimaryCtxReset_v2(0))
        self.primary = self.cuda.primary()
        self.stream = self.cuda.stream()
        self.held = [what for what in self.held if not lost(what)]

    # What NVML shows for this process and another has paid for: see the switch "importers".
    def theirs_shown(self):
        return sum(what[0] == "opened" for what in self.held) * 3 * BLOCK if "importers=each" in SIM else 0

    def linear(self):
        return self.primary_kind(super().linear())

    def managed(self):
        return self.primary_kind(super().managed())

    def pitched(self):
        return self.primary_kind(super().pitched())

    def primary_kind(self, code):
        if code == SUCCESS:
            self.held[-1] = ("linear", *self.held[-1][1:])
        return code

    def give(self, what):
        if what[0] == "linear":
            check(self.cuda.free(what[1]))
        elif what[0] == "opened":
            check(self.cuda.cuIpcCloseMemHandle(what[1]))
        elif what[0] == "imported":
            for handle in what[1:]:
                if handle is not None:
                    check(self.cuda.cuMemRelease(handle))
        elif what[0] == "graph":
            self.free_all(what[2], what[4])
            what[1].end()
        else:
            super().give(what)

exporter = subprocess.Popen([sys.executable, "-c", EXPORTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
theirs = Handle.from_buffer_copy(bytes.fromhex(json.loads(exporter.stdout.readline())))
SIM = os.environ["GPUSHARE_SIM"]
GONE = ["linear", "array"]
if "reset=virtual" in SIM or "reset=all" in SIM:
    GONE += ["mapped"]
if "reset=all" in SIM:
    GONE += ["free", "async", "async_ptsz"]

cuda, nvml = Cuda(), Nvml()
main = cuda.start().primary()
empty = nvml.of_this_process()

def churn_of(seed, alone):
    return All(cuda, seed, GiB, main, theirs, alone)
"""
)


def compare_in_one_thread(host, steps, limit="200Mi"):
    child = host.python(
        MORE
        + f"""
churn, differences, compared = churn_of({SEED}, True), [], 0
for step in range({steps}):
    churn.step()
    if step % 10 == 0:
        check(cuda.cuStreamSynchronize(churn.stream))
        charged, physical = cuda.used(), nvml.of_this_process() - empty - churn.theirs_shown()
        compared += 1
        if charged != physical:
            differences.append([step, charged, physical])
churn.end()
check(cuda.cuDeviceGraphMemTrim(0))
check(cuda.cuCtxSynchronize())
say([differences[:5], compared, churn.codes, churn.made, cuda.used(), nvml.of_this_process() - empty])
""",
        GPUSHARE_LIMIT=limit,
        GPUSHARE_LOG="error",
        timeout=60 + steps / 500,
    )
    differences, compared, codes, made, charged, physical = child.said
    print(f"{steps} calls, {compared} comparisons, {codes}, {made}")
    assert differences == []
    assert codes["0"] > steps // 4, "most fit"
    assert len(made) >= 12, made
    assert charged == physical == 0
    return codes


def test_one_thread(host):
    codes = compare_in_one_thread(host, STEPS)
    assert codes["2"] > STEPS // 100, "both sides of the limit were seen"


def test_four_threads(host):
    child = host.python(
        MORE
        + f"""
churns, errors = [churn_of({SEED} + number, False) for number in range(4)], []
def work(churn):
    try:
        check(cuda.cuCtxSetCurrent(main))
        for _ in range({STEPS} // 4):
            churn.step()
    except BaseException as error:
        errors.append(repr(error))
threads = [threading.Thread(target=work, args=(churn,)) for churn in churns]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
check(cuda.cuCtxSynchronize())
seen = [cuda.used(), nvml.of_this_process() - empty - sum(churn.theirs_shown() for churn in churns)]
[churn.end() for churn in churns]
check(cuda.cuDeviceGraphMemTrim(0))
check(cuda.cuCtxSynchronize())
say([errors, seen, [cuda.used(), nvml.of_this_process() - empty], [churn.codes for churn in churns]])
""",
        GPUSHARE_LIMIT="200Mi",
        GPUSHARE_LOG="error",
        timeout=60 + STEPS / 500,
    )
    errors, (charged, physical), (charged_end, physical_end), codes = child.said
    print(f"{STEPS} calls in 4 threads, {codes}, {charged} bytes at the end")
    assert errors == []
    assert charged == physical
    assert charged_end == physical_end == 0
