"""What the library runs in a Python program to empty its frameworks' caches, with frameworks of the test's making."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections import deque
from types import SimpleNamespace

import pytest

from gpushare import trim_hook

GPU = ("GPU-a", 1, 1)
NAMES = ("torch", "cupy", "numba.cuda", "numba.cuda.cudadrv.driver", "gpushare.pressure_hooks")


@pytest.fixture
def program(monkeypatch):
    """Loads modules, and keeps what was called."""
    for name in NAMES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    one = SimpleNamespace(called=[])
    one.load = lambda name, module: monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(gc, "collect", lambda: one.called.append("collect"))
    return one


def torch(program, started=True):
    cuda = SimpleNamespace(is_initialized=lambda: started, empty_cache=lambda: program.called.append("torch"))
    program.load("torch", SimpleNamespace(cuda=cuda))


class Pool:
    def __init__(self, program, name) -> None:
        self.program, self.name = program, name

    def free_all_blocks(self) -> None:
        self.program.called.append(self.name)

    def malloc(self) -> None: ...


def cupy(program, own=True):
    default, other = Pool(program, "default"), Pool(program, "own")
    cuda = SimpleNamespace(get_allocator=lambda: other.malloc if own else len)
    program.load("cupy", SimpleNamespace(get_default_memory_pool=lambda: default, cuda=cuda))


class Pending:
    """As Numba's list of what is freed later."""

    def __init__(self, program, name) -> None:
        self._cons = deque([(lambda handle: program.called.append((name, handle)), 7, 64)] * 2)
        self._size, self.is_disabled = 128, False

    @contextlib.contextmanager
    def disable(self):
        self.is_disabled = True
        yield
        self.is_disabled = False

    def clear(self, meanwhile=lambda: None) -> None:
        meanwhile()


def numba(program, *pending):
    devices = {
        number: SimpleNamespace(primary_context=SimpleNamespace(memory_manager=SimpleNamespace(deallocations=one)))
        for number, one in enumerate(pending)
    }
    driver = SimpleNamespace(devices={**devices, 9: SimpleNamespace()})  # one without a context
    program.load("numba.cuda", SimpleNamespace())
    program.load("numba.cuda.cudadrv.driver", SimpleNamespace(driver=driver))


def trim(*wanted, gpu=GPU):
    """With what is wanted each time that it is asked; the last stays."""
    left = list(wanted)
    return trim_hook.trim(lambda: left.pop(0) if len(left) > 1 else left[0], gpu, 5.0, "a claim")


def test_without_a_framework_nothing_is_done(program):
    assert trim(10) == [] and program.called == []


def test_each_framework_then_the_garbage_and_each_again(program):
    torch(program)
    cupy(program)
    assert trim(10) == []
    assert program.called == ["torch", "default", "own", "collect", "torch", "default", "own"]


def test_no_more_than_is_wanted(program):
    torch(program)
    cupy(program)
    for wanted, called in (
        ([0], []),
        ([10, 0], ["torch"]),
        ([10, 10, 0], ["torch", "default", "own"]),
        ([10, 10, 10, 0], ["torch", "default", "own"]),
        ([10, 10, 10, 10, 10, 0], ["torch", "default", "own", "collect", "torch"]),
    ):
        program.called.clear()
        assert trim(*wanted) == [] and program.called == called, wanted


@pytest.mark.parametrize("name", ["torch", "cupy", "numba.cuda"])
def test_the_garbage_is_collected_where_any_framework_could_have_some(program, name):
    program.load(name, SimpleNamespace())
    assert trim(10) == [] and program.called == ["collect"]


def test_another_context_than_the_runtimes_has_no_framework(program):
    torch(program)
    assert trim(10, gpu=("GPU-a", 1, 0)) == [] and program.called == []


def test_cuda_is_not_started_for_it(program):
    torch(program, started=False)
    assert trim(10) == [] and program.called == ["collect"]


def test_a_pool_that_is_no_pool_is_left_alone(program):
    cupy(program, own=False)
    trim(10, 10, 10, 0)
    assert program.called == ["default"]


def test_what_fails_is_told_and_the_others_go_on(program):
    def fail() -> None:
        raise SystemExit(3)

    program.load("torch", SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: True, empty_cache=fail)))
    cupy(program)
    assert trim(10) == ["torch: SystemExit: 3"] * 2
    assert program.called == ["default", "own", "collect", "default", "own"]


class Untold(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("no room"), "ValueError: no room"),
        (ValueError("no room\nin two lines"), "ValueError: no room"),
        (ValueError("a\x1b[31mb\tc"), "ValueError: a\\x1b[31mb\\tc"),
        (ValueError("größer"), "ValueError: größer"),
        (ValueError("x" * 500), f"ValueError: {'x' * 188}"),
        (Untold(), "an exception whose text cannot be had"),
    ],
)
def test_a_problem_is_one_line_that_any_terminal_can_show(error, told):
    assert trim_hook.told(error) == told


@pytest.mark.parametrize(("version", "gil", "freed"), [((3, 9), True, 0), ((3, 10), True, 2), ((3, 13), False, 0)])
def test_numbas_list_is_left_alone_where_other_threads_cannot_be_seen_at_rest(
    program, monkeypatch, version, gil, freed
):
    numba(program, Pending(program, "it"))
    monkeypatch.setattr(trim_hook.sys, "version_info", version)
    monkeypatch.setattr(trim_hook.sys, "_is_gil_enabled", lambda: gil, raising=False)
    trim_hook.numba_deallocations()
    assert len(program.called) == freed


def test_an_older_python_always_has_the_lock(program, monkeypatch):
    numba(program, Pending(program, "it"))
    monkeypatch.delattr(trim_hook.sys, "_is_gil_enabled", raising=False)
    trim_hook.numba_deallocations()
    assert len(program.called) == 2


@pytest.mark.parametrize(
    "driver", [SimpleNamespace(), SimpleNamespace(devices=None), SimpleNamespace(devices={}), None, 7]
)
def test_a_numba_that_has_opened_no_gpu_keeps_nothing_and_that_is_no_problem(program, driver):
    program.load("numba.cuda", SimpleNamespace())
    program.load("numba.cuda.cudadrv.driver", SimpleNamespace(driver=driver))
    assert trim(10) == [] and program.called == ["collect"]


def test_numba_frees_what_it_keeps_on_each_gpu(program):
    first, off, last = (Pending(program, name) for name in ("first", "off", "last"))
    off.is_disabled = True
    numba(program, first, off, last)
    assert trim(10, 10, 10, 0) == []
    assert program.called == [("first", 7), ("first", 7), ("last", 7), ("last", 7)]
    assert (first._size, len(first._cons), first.is_disabled) == (0, 0, False)
    assert (off._size, len(off._cons)) == (128, 2)


def test_a_list_that_numba_empties_itself_is_left_to_it(program):
    pending = Pending(program, "it")
    pending.clear(lambda: trim_hook.drain(pending))
    assert program.called == [] and (pending._size, len(pending._cons)) == (128, 2)


def test_the_programs_own_callbacks_come_last_and_have_the_time_that_is_left(program):
    def run_hooks(wanted, uuid, index, seconds, reason):
        program.called.append((wanted(), uuid, index, 4.0 < seconds <= 5.0, reason))
        return ["own: it failed"]

    program.load("gpushare.pressure_hooks", SimpleNamespace(run_hooks=run_hooks))
    torch(program)
    assert trim(10) == ["own: it failed"]
    assert program.called == ["torch", "collect", "torch", (10, "GPU-a", 1, True, "a claim")]
    program.called.clear()
    assert trim(10, 0) == [] and program.called == ["torch"]
    program.called.clear()
    assert trim(10, gpu=("GPU-b", 0, 0)) == ["own: it failed"], "they may have memory in any context"
