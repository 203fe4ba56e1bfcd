"""A kernel whose loan is wanted back: what its user reads, in the messages that a frontend shows."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable

from integration.node import GIB, ROOT, Node, gone, wait_for
from notebook.kernels import Notebook, plain_kernel
from notebook.test_kernels import TAKE

KEEP = """
pointer = driver.cuMemAlloc(12 * 2**30)[1]
def free():
    global pointer
    if pointer is not None:
        driver.cuMemFree(pointer)
        pointer = None
"""
ENABLE = """
import gpushare
gpushare.enable(request="2Gi", limit="14Gi", name="guest")
"""


def guest(node: Node, open_notebook: Callable[[str], Notebook], *options: str) -> Notebook:
    """A kernel that borrows 10 GiB."""
    if node.api("GET", "/v1/version") == {}:
        node.start_daemon()
    done = node.gpushare("kernel", "install", "--name", "guest", "--request", "2Gi", "--limit", "14Gi", *options)
    assert done.returncode == 0, done.stderr
    notebook = open_notebook("guest")
    assert notebook.run(TAKE + KEEP) == "14.0\n"
    return notebook


def owner(node: Node, gib: int = 8) -> Callable[[], str]:
    """Somebody who wants memory back, within a request of 10 GiB; says CUDA_SUCCESS."""
    program = f"{TAKE}\ntake({gib})"
    running = node.run("--name", "owner", "--limit", "10Gi", sys.executable, "-c", program)

    def ended() -> str:
        out, err = running.communicate(timeout=60)
        assert running.returncode == 0, err
        return str(out.split()[-1])

    return ended


def test_the_user_is_told_and_the_next_kernel_says_how_this_one_ended(
    node: Node, open_notebook: Callable[[str], Notebook]
) -> None:
    notebook = guest(node, open_notebook, "--grace", "2s")
    victim, pid = node.job("guest")["id"], notebook.pid
    request = notebook.send("import time; time.sleep(60)")
    ended = owner(node)
    said = notebook.hear("save your work now")
    assert said.parent == request, "it belongs to the cell that runs"
    assert said.stream == "stderr"
    text = said.text
    assert text.startswith("gpushare: borrowed memory of GPU 0 is wanted back by its owner\n")
    assert "owed   8.0 GiB to owner" in text
    assert "grace  2 s" in text
    # Its context is charged 512 MiB until it has been measured, and 300 from then on.
    assert re.search(r"this kernel still has 10\.[35] GiB on loan: it is stopped in", text), text
    assert "traceback" not in text.lower()
    assert ended() == "CUDA_SUCCESS"
    wait_for(lambda: gone(pid), "the kernel to be gone")

    # It is told by the next daemon too, which has read what this one has written down.
    node.kill_daemon()
    node.start_daemon()
    notebook.restart()
    said_first = notebook.run("1 + 1")
    assert "the previous kernel was stopped at" in said_first
    assert "8.0 GiB owed to owner" in said_first
    assert f"`gpushare explain {victim}`" in said_first
    assert "previous" not in notebook.run("1 + 1"), "once"
    notebook.restart()
    assert "previous" not in notebook.run("1 + 1"), "the last one was not stopped"


def test_a_cell_frees_memory_within_the_grace(node: Node, open_notebook: Callable[[str], Notebook]) -> None:
    notebook = guest(node, open_notebook, "--grace", "20s")
    ended = owner(node)
    notebook.hear("save your work now")
    pid = notebook.pid
    notebook.send("free()")
    assert notebook.hear("; this kernel goes on").text.startswith("gpushare: nothing more is asked back: ")
    assert ended() == "CUDA_SUCCESS"
    assert notebook.pid == pid and notebook.run("40 + 2") == "42"
    # The next demand is another one: it does not end the kernel either.
    assert notebook.run(KEEP) == ""
    ended = owner(node)
    notebook.hear("save your work now")
    notebook.send("free()")
    notebook.hear("this kernel goes on")
    assert ended() == "CUDA_SUCCESS"
    assert notebook.run("40 + 2") == "42" and node.job("guest")["outcome"] is None


def test_a_callback_saves_the_work_and_gives_memory_back(node: Node, open_notebook: Callable[[str], Notebook]) -> None:
    notebook = guest(node, open_notebook, "--grace", "10s")
    register = """
import gpushare, threading
calls = []
@gpushare.on_pressure
def shrink(pressure):
    calls.append((pressure.last, pressure.index, pressure.wanted / 2**30, pressure.seconds > 5, pressure.gpu))
    if pressure.last:
        assert driver.cuCtxGetCurrent()[1] is not None
        free()
        raise ValueError("told to the user")
"""
    assert notebook.run(register) == ""
    ended = owner(node)
    assert "shrink: ValueError: told to the user" in notebook.hear("this kernel goes on").text
    assert ended() == "CUDA_SUCCESS"
    uuid = node.job("guest")["gpus"][0]["uuid"]
    assert notebook.run("[call[0] for call in calls]") == "[False, True]"
    assert notebook.run("calls[-1]") == f"(True, 0, 8.0, True, '{uuid}')"


def test_a_notebook_that_enables_itself_is_told_too(node: Node, open_notebook: Callable[[str], Notebook]) -> None:
    node.start_daemon("[reclaim]\ngrace = '20s'\n")
    plain_kernel(node, {})
    notebook = open_notebook("plain")
    notebook.run(ENABLE)
    assert notebook.run(TAKE + KEEP) == "14.0\n"
    ended = owner(node)
    text = notebook.hear("save your work now").text
    assert "wanted back by its owner" in text
    notebook.send("free()")
    notebook.hear("this kernel goes on")
    assert ended() == "CUDA_SUCCESS"
    assert notebook.run("40 + 2") == "42"
    assert node.job("guest")["gpus"][0]["loan"] < GIB


def test_other_sigterms_end_the_kernel(node: Node, open_notebook: Callable[[str], Notebook]) -> None:
    notebook = guest(node, open_notebook, "--grace", "20s")
    pid = notebook.pid
    notebook.run("import os, signal, subprocess, sys; os.kill(os.getpid(), signal.SIGTERM)", dies=True)
    wait_for(lambda: gone(pid), "the kernel to be gone")

    # The second of one demand is not the daemon's.
    notebook.restart()
    notebook.run(TAKE + KEEP)
    owner(node)
    notebook.hear("save your work now")
    pid = notebook.pid
    notebook.run("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", dies=True)
    wait_for(lambda: gone(pid), "the kernel to be gone", 5.0)


def test_a_handler_that_was_there_is_called_and_comes_back(
    node: Node, open_notebook: Callable[[str], Notebook]
) -> None:
    node.start_daemon()
    plain_kernel(node, {})
    notebook = open_notebook("plain")
    program = """
import os, signal
def mine(number, frame): print("mine", number)
signal.signal(signal.SIGTERM, mine)
%load_ext gpushare
"""
    notebook.run(program)
    assert notebook.run("signal.getsignal(signal.SIGTERM) is mine") == "True", "no job yet"
    notebook.run(ENABLE)
    assert notebook.run("signal.getsignal(signal.SIGTERM) is mine") == "False"
    assert notebook.run("os.kill(os.getpid(), signal.SIGTERM)") == "mine 15\n"
    fork = """
if os.fork() == 0:
    os._exit(signal.getsignal(signal.SIGTERM) is mine)
os.waitstatus_to_exitcode(os.wait()[1])
"""
    assert notebook.run(fork) == "1", "a forked worker has what was there"
    notebook.run("%reload_ext gpushare")
    assert notebook.run("os.kill(os.getpid(), signal.SIGTERM)") == "mine 15\n"
    notebook.run("%unload_ext gpushare")
    assert notebook.run("signal.getsignal(signal.SIGTERM) is mine") == "True"
    assert "not found" in notebook.run("%gpushare")


def test_a_kernel_that_becomes_a_job_by_its_first_use_of_a_gpu(
    node: Node, open_notebook: Callable[[str], Notebook]
) -> None:
    """Variables alone, and gpushare.enable() where there is nothing left to enable: it brings the rest all the same."""
    node.start_daemon("[reclaim]\ngrace = '20s'\n")
    environ = {
        "LD_PRELOAD": node.gpushare("shim-path").stdout.strip(),
        "GPUSHARE_REQUEST": "2Gi",
        "GPUSHARE_LIMIT": "14Gi",
        "GPUSHARE_NAME": "guest",
        "LD_LIBRARY_PATH": str(ROOT / "gpushare" / "sim"),
    }
    plain_kernel(node, environ)
    notebook = open_notebook("plain")
    assert "nothing is changed" in notebook.run("import gpushare; gpushare.enable()")
    assert "has not used a GPU yet" in notebook.run("%gpushare")
    assert notebook.run(TAKE + KEEP) == "14.0\n"
    ended = owner(node)
    notebook.hear("save your work now")
    notebook.send("free()")
    notebook.hear("this kernel goes on")
    assert ended() == "CUDA_SUCCESS"
    assert notebook.run("40 + 2") == "42"


PENDING = """
import numpy as np
from numba import cuda
array = cuda.device_array(12 * 2**30, dtype=np.uint8)
del array
"""


def test_what_numba_has_put_off_to_free_is_freed_within_the_grace(
    node: Node, open_notebook: Callable[[str], Notebook]
) -> None:
    """For a job that is told to stop without having been asked for its caches before."""
    node.env |= {"GPUSHARE_ON_RECLAIM": "term,kill", "NUMBA_CUDA_MAX_PENDING_DEALLOCS_RATIO": "1"}
    node.start_daemon()
    node.gpushare("kernel", "install", "--name", "guest", "--request", "2Gi", "--limit", "14Gi", "--grace", "20s")
    notebook = open_notebook("guest")
    assert notebook.run(PENDING) == ""
    assert node.job("guest")["gpus"][0]["accounted"] == 12 * GIB
    ended = owner(node)
    text = notebook.hear("this kernel goes on").text
    assert "wanted back by its owner" in text and "still has" not in text
    assert ended() == "CUDA_SUCCESS"
    assert node.job("guest")["gpus"][0]["accounted"] == 0
