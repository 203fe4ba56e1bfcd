"""A container in the small: a PID namespace of its own, and the daemon's directory mounted at another place."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from hosts_node import SHIM

from integration.node import ROOT, Puppet, gone, wait_for

GIB = 2**30


def may_unshare() -> bool:
    line = ["unshare", "-rmpf", "--mount-proc", "true"]
    return shutil.which("unshare") is not None and subprocess.run(line, capture_output=True).returncode == 0


pytestmark = pytest.mark.skipif(not may_unshare(), reason="namespaces may not be made here")


def contained(hosts, name: str, puppet, *budget: str) -> Puppet:
    """A program that knows nothing but a socket, as pid 1 of its world."""
    mounted = hosts.directory / "mounted"
    mounted.mkdir(exist_ok=True)
    inside = f'mount --bind "{hosts.runtime}" "{mounted}" && exec env LD_PRELOAD="{SHIM}" "{puppet}"'
    env = hosts.bare(GPUSHARE_SOCKET=f"{mounted}/api.sock", GPUSHARE_NAME=name, GPUSHARE_REQUEST=budget[0])
    env |= {"GPUSHARE_LIMIT": budget[1], "CUDA_VISIBLE_DEVICES": "0", "GPUSHARE_GRACE": "100ms"}
    return Puppet(name, hosts.spawn(["unshare", "-rmpf", "--mount-proc", "sh", "-c", inside], **env))


def host_pids(wrapper: int) -> list[int]:
    """unshare's child, as the node names it."""
    children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(wrapper)], capture_output=True, text=True, check=False)
    return [int(pid) for pid in children.stdout.split()]


def test_the_daemon_names_and_kills_the_right_process(hosts, compile_c):
    puppet = compile_c(str(ROOT / "tests/integration/puppet.c"), "-DBY_DLOPEN", target="puppet-dlopen")
    hosts.puppets = puppet.parent
    hosts.start_daemon()
    borrower = contained(hosts, "borrower", puppet, "1Gi", "14Gi")
    bystander = contained(hosts, "bystander", puppet, "1Gi", "2Gi")
    for one in (borrower, bystander):
        one.do("open 0")
        one.alloc(GIB / 2)
    for _ in range(11):
        borrower.alloc(GIB)
    job = hosts.job("borrower")
    (pid,) = [process["pid"] for process in job["processes"]]
    assert [pid] == host_pids(borrower.wrapper.pid) and pid != 1, "as the node names it, not as it names itself"
    wait_for(lambda: hosts.gpu()["unmanaged"] == 0, "NVML's pids to be those of the jobs")
    owner = hosts.puppet("owner", "--limit", "8Gi", CUDA_VISIBLE_DEVICES="0")
    owner.alloc(7 * GIB)
    borrower.wait()  # for unshare: its own code is of no use, some of them fail to take over a death by signal
    assert gone(pid)
    assert bystander.do("info") and owner.do("info"), "nobody else was hit"
    assert hosts.gpu()["usage"] < 10 * GIB
