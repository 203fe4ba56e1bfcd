"""%gpushare in a kernel: what it shows is what the daemon counts, and it never pretends."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

from gpushare.api import JobGpu
from gpushare.notebook.view import bar
from integration.node import GIB, ROOT, Node
from notebook.kernels import Notebook, plain_kernel

SIM = ROOT / "gpushare" / "sim"

OPEN = """
from cuda.bindings import driver
assert driver.cuInit(0)[0] == 0
opened = driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0)[1])
"""
# A shell without a kernel, in a process that starts as its first lines say.
SHELL = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "gpushare")
for line in {lines!r}:
    shell.run_line_magic("gpushare", line)
"""


def shell(node: Node, *lines: str, before: str = "", run: tuple[str, ...] = (), **env: str) -> str:
    program = before + SHELL.format(lines=list(lines))
    if run:
        done = node.gpushare("run", *run, sys.executable, "-c", program, **env)
    else:
        line = [sys.executable, "-c", program]
        done = subprocess.run(line, env=node.env | env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def test_a_notebook_that_enables_itself(node: Node, open_notebook: Callable[[str], Notebook]) -> None:
    """A plain kernel: absent, enabled in a cell, looked at, changed while it runs, explained."""
    plain_kernel(node, {})
    notebook = open_notebook("plain")
    assert notebook.run("%load_ext gpushare") == ""
    said = notebook.run("%gpushare")
    assert "not in this process: what it allocates is neither limited nor guaranteed" in said
    assert 'hint: gpushare.enable(limit="8Gi")' in said
    assert "not in this process" in notebook.run("%gpushare set 1Gi")

    said = notebook.run('import gpushare; gpushare.enable(request="2Gi", limit="8Gi", name="cell")')
    assert "job cell" in said and "request 2.0 GiB, limit 8.0 GiB" in said
    assert notebook.run(OPEN) == ""
    notebook.run("pointer = driver.cuMemAlloc(4 * 2**30)[1]")
    job, first, second = notebook.run("%gpushare").splitlines()
    assert job.startswith("job cell") and job.endswith("borrowing")
    assert first == "GPU 0  [#########|############...............]  4.5 GiB of 8.0 GiB used"
    assert second == "       request 2.0 GiB, limit 8.0 GiB, 2.5 GiB on loan"

    assert "limit 8.0 GiB → 6.0 GiB" in notebook.run("%gpushare set 6Gi")
    assert notebook.run("driver.cuMemGetInfo()[2] / 2**30") == "6.0"
    assert "limit 6.0 GiB → 7.0 GiB" in notebook.run("%gpushare set --limit=7Gi")
    assert "limit 7.0 GiB → 6.0 GiB" in notebook.run("%gpushare set --limit 6Gi")
    assert "request 2.0 GiB → 5.0 GiB" in notebook.run("%gpushare set --request 5Gi")
    assert node.job("cell")["gpus"][0]["request"] == 5 * GIB
    assert "uses 4.5 GiB; request 5.0 GiB, limit 6.0 GiB" in notebook.run("%gpushare explain")
    assert "write 4Gi (2^30) or 4G (10^9)" in notebook.run("%gpushare set 4g")
    assert "is not understood" in notebook.run("%gpushare frobnicate")
    assert "cannot read" in notebook.run('%gpushare set "4Gi')
    assert "no such option" in notebook.run("%gpushare set --frob 4Gi").lower()
    assert "%gpushare set 12Gi" in notebook.run("%gpushare help")
    assert "%gpushare set 12Gi" in notebook.help_of("%gpushare?")
    assert notebook.mimes("%gpushare") == {"text/plain", "text/html"}


def test_preloaded_kernels(node: Node) -> None:
    said = shell(node, "", run=("--name", "nb", "--limit", "2Gi"))
    assert said.startswith("job nb") and "request 2.0 GiB, limit 2.0 GiB\n" in said
    library = node.gpushare("shim-path").stdout.strip()
    assert "without a budget" in shell(node, "", LD_PRELOAD=library)


def test_a_variable_is_no_limit(node: Node) -> None:
    assert "not in this process" in shell(node, "", GPUSHARE_LIMIT="2Gi")
    late = shell(node, "", before=f"import ctypes\nctypes.CDLL('{SIM}/libcuda.so.1')\n")
    assert "restart the kernel" in late


def test_the_variables_alone(node: Node) -> None:
    """LD_PRELOAD and GPUSHARE_LIMIT by hand: alone, then with a daemon, before and after the first use of the GPU."""
    library = node.gpushare("shim-path").stdout.strip()
    env = {"LD_PRELOAD": library, "GPUSHARE_LIMIT": "2Gi", "LD_LIBRARY_PATH": str(SIM)}
    alone = shell(node, "", **env)
    assert "holds for this process by itself" in alone and "limit  2Gi" in alone
    node.start_daemon()
    assert "has not used a GPU yet" in shell(node, "", **env)
    assert ", limit 2.0 GiB" in shell(node, "", before=OPEN, **env)


def test_the_bar() -> None:
    def drawn(usage: float, request: float, limit: float) -> str:
        gpu = {"usage": int(usage * GIB), "request": int(request * GIB), "limit": int(limit * GIB)}
        return bar(gpu, 8)  # type: ignore[arg-type]

    assert JobGpu.__required_keys__ >= {"usage", "request", "limit"}
    assert drawn(0, 4, 8) == "[....|....]"
    assert drawn(6, 4, 8) == "[####|##..]"
    assert drawn(0.1, 8, 8) == "[#.......]", "a little is not nothing"
    assert drawn(9, 8, 8) == "[########]", "over the limit after it was lowered"
    assert drawn(2, 0, 8) == "[|##......]"
