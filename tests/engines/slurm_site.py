"""Real Slurm with a node daemon on each of its nodes, on the software driver."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from slurm_stage import Cluster, open_folder, with_plugins
from test_local_real import LOOK

from gpushare.client import Client
from gpushare.errors import GpushareError
from gpushare.paths import software_driver_dir

MIB = 2**20
PYTHONPATH = os.pathsep.join(str(Path(__file__).resolve().parents[2] / part) for part in ("", "daemon"))
SCRIPT = """#!/bin/sh
export SLURM_CONF={root}/etc/slurm.conf GPUSHARE_SOCKET={root}/daemons/$SLURMD_NODENAME/api.sock GPUSHARE_DRIVER=sim
export GPUSHARE_SIM=gpus=2,memory=4Gi,pool={pool}/$SLURMD_NODENAME
exec >> {root}/log/hooks.log 2>&1
PYTHONPATH={path} exec {python} -m gpushare.cluster.engines.slurm.node {what} {root}/budgets
"""
PYTHON = "/usr/bin/python3"
"""Other users may run it; that of the tests may be in a closed home."""


class Daemons:
    """One for each node."""

    def __init__(self, root: Path, pool: Path, names: list[str]) -> None:
        self.root = root
        self.pool = pool
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        for name in names:
            self.start(name)

    def start(self, name: str) -> None:
        directory = self.root / "daemons" / name
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o755)
        (self.pool / name).mkdir(exist_ok=True)
        (self.pool / name).chmod(0o1777)
        environ = {**os.environ, "PYTHONPATH": PYTHONPATH, "GPUSHARE_SIM": f"gpus=2,memory=4Gi,pool={self.pool}/{name}"}
        line = [sys.executable, "-m", "gpushared", "--system", "--driver", "sim", "--dir", str(directory)]
        with (self.root / "log" / f"gpushared.{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(line, env=environ, stderr=log)

    def client(self, name: str) -> Client:
        return Client(self.root / "daemons" / name / "api.sock")

    def answers(self, name: str) -> bool:
        try:
            return bool(self.client(name).version())
        except GpushareError:
            return False

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].wait()


class Site(Cluster):
    daemons: Daemons


@contextlib.contextmanager
def open_site(
    prolog: str = "prolog", files: Mapping[str, str] | None = None, more: Sequence[str] = ()
) -> Iterator[Site]:
    """`prolog`: the words of the Prolog. `files`: beside slurm.conf, in place of those that others have. `more`: its
    lines."""
    if not (software_driver_dir() / "libcuda.so.1").exists():
        pytest.skip("the software driver is not built")
    if not Path(PYTHON).exists():
        pytest.skip(f"needs {PYTHON}: jobs of several users are started with it")
    with open_folder() as root, tempfile.TemporaryDirectory(prefix="gs-pool-", dir="/dev/shm") as pool:
        Path(pool).chmod(0o755)
        said = {"root": "{root}", "pool": pool, "path": PYTHONPATH, "python": PYTHON}
        cluster = with_plugins(
            root,
            SCRIPT.format(what=prolog, **said),
            kind=Site,
            files={
                "epilog": SCRIPT.format(what="epilog", **said),
                "check": SCRIPT.format(what="check", **said),
                "look.py": LOOK,
                **(files or {}),
            },
            more=["Epilog={root}/etc/epilog", *more],
            memory=3584,
        )
        assert isinstance(cluster, Site)
        daemons = None
        try:
            cluster.up()
            daemons = cluster.daemons = Daemons(root, Path(pool), cluster.names)
            for name in cluster.names:
                cluster.until(lambda name=name: daemons.answers(name), f"the daemon of {name} does not answer")
            yield cluster
        finally:
            cluster.down()
            for name in daemons.processes if daemons else ():
                daemons.kill(name)


def uuids(site, node: str) -> list[str]:
    return [gpu["uuid"] for gpu in site.daemons.client(node).status()["gpus"]]


def look(site) -> str:
    return f"{PYTHON} {site.root}/etc/look.py"


def jobs(site, node: str) -> dict[str, list[str]]:
    """Jobs of the node daemon: name -> GPUs."""
    return {job["name"]: [gpu["uuid"] for gpu in job["gpus"]] for job in site.daemons.client(node).jobs()}


HUNGRY = f"""{PYTHON} - <<'END'
import ctypes, time
cuda = ctypes.CDLL("libcuda.so.1")
context, device, pointer = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_uint64()
assert cuda.cuInit(0) == cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(%d << 20)) == 0
print("has it", flush=True)
time.sleep(%d)
END"""
TICKS = HUNGRY.replace(
    "time.sleep(%d)",
    """while True:
    print("tick", flush=True)
    time.sleep(0.02)""",
)
