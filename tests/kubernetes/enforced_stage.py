"""A node whose pods have real cgroups, and programs in them. Needs root."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from api_double import ApiDouble
from kube_stage import KubeNode, missing, node_in, until

PROGRAM = """
import ctypes, os, sys
cuda = ctypes.CDLL("libcuda.so.1")
device, context = ctypes.c_int(), ctypes.c_void_p()
assert cuda.cuInit(0) == 0 and cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device) == 0
pointer, free, total = ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_size_t()
for line in sys.stdin:
    if line.strip() == "total":
        cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        print(total.value >> 20, flush=True)
    else:
        print(cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(int(line) << 20)), flush=True)
"""


@contextlib.contextmanager
def enforced_node(make_api: Callable[[Path], ApiDouble] = ApiDouble) -> Iterator[KubeNode]:
    """Skips the test where that cannot be. Nothing of it is started yet."""
    if missing() or os.geteuid() != 0:
        pytest.skip(missing() or "needs root: programs are put into cgroups and get mounts")
    with tempfile.TemporaryDirectory(prefix="gs-k-") as folder, tempfile.TemporaryDirectory(prefix="gs-cg-") as top:
        Path(folder).chmod(0o755)
        if subprocess.run(["mount", "-t", "cgroup2", "none", top], capture_output=True).returncode:
            pytest.skip("no cgroup v2 can be mounted here")
        pods = Path(top) / f"gpushare-kubepods-{os.getpid()}"
        try:
            with node_in(Path(folder), make_api) as node:
                node.cgroups = Path(top)
                node.pods = pods
                yield node
        finally:
            for pod in pods.glob("pod*"):
                until(lambda pod=pod: not (pod / "cgroup.procs").read_text().strip(), "the programs to end")
                pod.rmdir()
            if pods.exists():
                pods.rmdir()
            subprocess.run(["umount", top], check=True)


class Program:
    def __init__(self, node: KubeNode, claim: str | dict[str, Any], *before: str, **environ: str) -> None:
        """`claim`: its uid, or the pod that carries it."""
        start = node.container if isinstance(claim, str) else node.carrying
        self.process = start(claim, [*before, sys.executable, "-c", PROGRAM], **environ)  # type: ignore[operator]

    def do(self, order: object) -> int:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{order}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        return int(line)

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()
