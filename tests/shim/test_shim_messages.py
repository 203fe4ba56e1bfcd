"""What the library writes to standard error: how often, how long, and in which units."""

from __future__ import annotations

import fake_daemon as wire
import pytest

LIMIT = {"GPUSHARE_LIMIT": "4Gi"}
REFUSED = "gpushare: cannot allocate 8.0 GiB on CUDA device 0: over this process's limit"


@pytest.mark.parametrize(
    ("held_back", "note"),
    [(1, ["gpushare: 1 more message like the next"]), (3, ["gpushare: 3 more messages like the next"]), (0, [])],
)
def test_what_was_held_back_is_counted_in_the_next_one(host, held_back, note) -> None:
    text = f"""
import time
cuda = Cuda().start()
for _ in range({held_back} + 1):
    cuda.alloc(8 * GiB)
time.sleep(1.1)
cuda.alloc(8 * GiB)
time.sleep(1.1)
cuda.alloc(8 * GiB)
"""
    lines = host.python(text, **LIMIT).err.splitlines()
    told = [line for line in lines if "cannot allocate" in line or "like the next" in line]
    assert told == [REFUSED, *note, REFUSED, REFUSED]


def test_a_message_of_one_kind_holds_back_none_of_another(host) -> None:
    """The first says that there is no daemon; a refusal comes at once after it."""
    lines = host.python("Cuda().start().alloc(8 * GiB)", **LIMIT).err.splitlines()
    assert [line.startswith("gpushare: there is no gpushare daemon") for line in lines].index(True) == 0
    assert REFUSED in lines


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (2**40, "1024.0 GiB"),
        (4 * 2**30 + 2**20, "4.0 GiB"),
        (4 * 2**30 + 52 * 2**20, "4.1 GiB"),
        (2**30, "1.0 GiB"),
        (2**30 - 2**21, "1022.0 MiB"),
        (1536 * 2**10, "2.0 MiB"),
        (1000 * 2**10, "1000.0 KiB"),
        (1024, "1.0 KiB"),
        (512, "512 B"),
    ],
)
def test_an_amount_is_told_in_the_unit_that_suits_it(host, daemon, size, shown) -> None:
    """In whole blocks above half a block, as it is charged."""
    daemon.policy.decide = lambda ask: wire.OVER_LIMIT
    child = host.python(f"say(Cuda().start().alloc({size})[0])", GPUSHARE_LIMIT="8Gi")
    assert child.said == 2
    assert child.err.startswith(f"gpushare: cannot allocate {shown} on GPU 0: ")


@pytest.mark.parametrize("text", ["", "a" * 383, "two\nlines\n\n"])
@pytest.mark.parametrize("status", [wire.NOT_ALLOWED, wire.NOT_ADMITTED])
def test_the_daemons_words_are_told_whole_and_else_our_own(host, daemon, status, text) -> None:
    daemon.policy.welcome, daemon.policy.text = status, text
    child = host.python("say(Cuda().cuInit(0)); say(Cuda().cuDevicePrimaryCtxRetain(byref(c_void_p()), 0))", **LIMIT)
    assert child.said == [0, 2]
    first = (text or "the gpushare daemon refuses this process").rstrip("\n")
    assert child.err.startswith(f"gpushare: {first}\n")


@pytest.mark.parametrize("level", ["error", "warning"])
def test_a_level_says_what_is_told(host, level) -> None:
    err = host.python("Cuda().start().alloc(8 * GiB)", GPUSHARE_LOG=level, **LIMIT).err
    assert ("cannot allocate" in err) == (level == "warning")


def test_threads_that_are_refused_at_once_say_it_once(host) -> None:
    text = """
import threading
cuda, context = Cuda().start(), c_void_p()
check(cuda.cuCtxGetCurrent(byref(context)))
def refused():
    check(cuda.cuCtxSetCurrent(context)); cuda.alloc(8 * GiB)
threads = [threading.Thread(target=refused) for _ in range(8)]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
"""
    assert host.python(text, **LIMIT).err.count("cannot allocate") == 1
