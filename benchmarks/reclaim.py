"""How long an owner waits for its memory, by rung, beside the floor of the same run; and what trimming alone solves.

python benchmarks/reclaim.py [--runs N] [--teardown MS]

One software GPU of 16 GiB, the real daemon, the real shim, real processes. A borrower holds 12 GiB, the owner then
allocates 6 GiB within its request:

    revoke  the borrower has freed it all again: only its credit is taken back
    trim    the borrower's driver pool keeps it: it is asked to give it back
    kill    the borrower uses it and wants no notice

The floors: the owner's same allocation when nobody has borrowed anything; and SIGKILL to a program without gpushare
until the driver no longer shows its memory. A real driver takes time to tear a killed process down (--teardown).

Last, a workload like PyTorch's: three borrowers whose caches hold a random part of what they have, an owner that
claims a random amount again and again, and by which rung each claim was met.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests")]

from integration.node import GIB, MIB, Node, Puppet, wait_for  # noqa: E402

BARS = {"revoke": "<= 1 ms", "trim": "<= 50 ms", "kill": "<= 1.1 x floor"}


def build_puppet(directory: Path) -> None:
    source = ROOT / "tests" / "integration" / "puppet.c"
    compile_ = ["gcc", "-O1", "-DBY_DLOPEN", "-o", str(directory / "puppet-dlopen"), str(source), "-ldl"]
    subprocess.run(compile_, check=True)


def owner_waits(node: Node, borrower: Puppet | None, name: str) -> float:
    """Milliseconds of the owner's allocation; the owner has a context and some credit already."""
    if borrower is None:
        quiet(node)
    owner = node.puppet(f"owner-{name}", "--request", "8Gi")
    owner.alloc(64 * MIB)
    waited = owner.alloc(6 * GIB)
    owner.end()
    if borrower is not None:
        borrower.end()
    return waited


def quiet(node: Node) -> None:
    """Nothing of the run before is left, in the driver or in the daemon's books."""
    wait_for(lambda: node.gpu()["unmanaged"] == node.gpu()["returning"] == 0, "the GPU to be empty again")


def runs_of(node: Node, rung: str) -> float:
    quiet(node)
    borrower = node.puppet(f"borrower-{rung}", "--request", "1Gi", "--limit", "15Gi", "--on-reclaim", "trim,kill")
    if rung == "trim":
        borrower.do(f"cache {512 * MIB} 24")
    else:
        for _ in range(12):
            borrower.alloc(GIB)
        if rung == "revoke":
            borrower.do("free all")
    return owner_waits(node, borrower, rung)


def killed_bare(node: Node, used: Path) -> float:
    """Milliseconds from SIGKILL until the driver no longer shows the memory, without a daemon or a shim."""
    quiet(node)
    env = {"LD_LIBRARY_PATH": str(node.drivers), "CUDA_VISIBLE_DEVICES": "0"}
    child = node.spawn([str(node.puppets / "puppet-dlopen")], **env)
    program = Puppet("bare", child)
    program.do("open 0")
    for _ in range(12):
        program.alloc(GIB)
    watcher = Puppet("watcher", node.spawn([str(used)], **env))
    watcher.do("open 0")
    before = int(watcher.do("info")[0])
    began = time.perf_counter()
    os.kill(child.pid, signal.SIGKILL)
    while int(watcher.do("info")[0]) < before + 11 * GIB:
        pass
    took = (time.perf_counter() - began) * 1e3
    child.wait()
    watcher.end()
    return took


def solved_by(node: Node, claims: int, seed: int) -> dict[str, int]:
    """How many claims were met by which rung, with borrowers that cache as PyTorch does."""
    dice = random.Random(seed)
    owner = node.puppet("claimant", "--request", "8Gi")
    for turn in range(claims):
        borrowers = []
        for index in range(3):
            one = node.puppet(f"b{turn}-{index}", "--request", "none", "--limit", "15Gi", "--grace", "100ms")
            one.do("term ignore")
            cached = dice.choice([0, 2, 4, 6, 8])
            for _ in range(8 - cached):
                one.try_(f"alloc {512 * MIB}")
            one.try_(f"cache {512 * MIB} {cached}") if cached else None
            borrowers.append(one)
        owner.alloc(dice.randint(1, 12) * 512 * MIB)
        owner.do("free all")
        for one in borrowers:
            one.end()
    found = claims_met(node)
    owner.end()
    return found


def claims_met(node: Node) -> dict[str, int]:
    """Claims that had to wait, by the highest reclaim step that was taken for them."""
    pattern = r'^gpushare_claim_wait_seconds_count\{step="(\w+)"\} ([0-9.]+)$'
    found = {step: int(float(count)) for step, count in re.findall(pattern, node.metrics(), re.MULTILINE)}
    return {step: count for step, count in found.items() if count}


def nodes(directory: Path, puppets: Path, teardown: int) -> Iterator[Node]:
    delay = f",teardown={teardown}ms" if teardown else ""
    with Node(directory, puppets, sim=f"memory=16Gi{delay}") as node:
        node.start_daemon()
        yield node


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--teardown", type=int, default=0, metavar="MS")
    parser.add_argument("--claims", type=int, default=40)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        build_puppet(home)
        for node in nodes(home, home, options.teardown):
            keeper = node.puppet("keeper", "--limit", "64Mi", "--request", "none")  # the links to the driver stay
            waits: dict[str, list[float]] = {
                name: [] for name in ("nothing lent", "revoke", "trim", "kill", "bare kill")
            }
            for _ in range(options.runs):
                waits["nothing lent"].append(owner_waits(node, None, "free"))
                for rung in ("revoke", "trim", "kill"):
                    waits[rung].append(runs_of(node, rung))
                waits["bare kill"].append(killed_bare(node, home / "puppet-dlopen"))
            print(f"{'milliseconds':44} {'median':>8} {'least':>8} {'most':>8}  bar")
            labels = {
                "nothing lent": "owner's allocation, nothing lent (a floor)",
                "revoke": "  by revoking credit",
                "trim": "  by trimming a pool that covers it",
                "kill": "  by SIGKILL",
                "bare kill": "SIGKILL to memory back, no gpushare (a floor)",
            }
            for name, found in waits.items():
                bar = BARS.get(name, "")
                print(f"{labels[name]:44} {statistics.median(found):8.2f} {min(found):8.2f} {max(found):8.2f}  {bar}")
            ratio = statistics.median(waits["kill"]) / statistics.median(waits["bare kill"])
            print(f"{'kill, as a multiple of its floor':44} {ratio:8.2f}")
            met = solved_by(node, options.claims, 1)
            total = sum(met.values())
            print(f"\nclaims that had to wait: {total}, met by {met}")
            if total:
                print(f"trimming alone: {100 * met.get('trim', 0) / total:.0f} %")
            keeper.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
