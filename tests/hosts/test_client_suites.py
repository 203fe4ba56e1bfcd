"""Clients' own suites: numba-cuda's tests of memory that pass on the bare driver pass unchanged under the shim."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys

import pytest

SUITE = "numba.cuda.tests.cudadrv"
MODULES = (
    "test_cuda_memory",
    "test_deallocations",
    "test_emm_plugins",
    "test_host_alloc",
    "test_pinned",
    "test_array_attr",
    "test_reset_device",
)
RESULT = re.compile(r"^(test_\w+ \([\w.]+\)).*?\.\.\. (ok|FAIL|ERROR|skipped)", re.MULTILINE | re.DOTALL)

# Other modules read what kernels wrote, and the software driver runs no kernels; these allocate, copy and free alone.
# unittest, because pytest would put the suite's directory, with a `cuda` in it, before cuda-bindings.
COMMAND = [sys.executable, "-P", "-m", "unittest", "-v", *(f"{SUITE}.{name}" for name in MODULES)]


def need_suite() -> None:
    for name in ("numba_cuda", "cuda.bindings", "cuda.core", "filecheck"):
        try:
            found = importlib.util.find_spec(name) is not None
        except ModuleNotFoundError:
            found = False
        if not found:
            pytest.skip(f"numba-cuda's own tests need {name}")


def passed(done: subprocess.CompletedProcess[str]) -> set[str]:
    return {name for name, result in RESULT.findall(done.stderr) if result == "ok"}


def test_numba_memory_suites_pass_under_the_shim_where_they_pass_without(hosts):
    need_suite()
    bare = subprocess.run(COMMAND, env=hosts.bare(), capture_output=True, text=True, check=False, timeout=60)
    without = passed(bare)
    assert len(without) > 25, bare.stderr[-3000:]
    under = hosts.gpushare("run", "--limit", "max", "--", *COMMAND)
    assert without - passed(under) == set(), under.stderr[-3000:]
