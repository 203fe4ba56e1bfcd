"""What suspending costs beside the driver's own time; and how many reclaims stop a job where half of the borrowers may
be suspended.

python benchmarks/suspend.py [--runs N] [--rate GIB] [--mix SECONDS]

One software GPU of 16 GiB, which moves so many GiB a second, the real daemon, library, wrapper and suspender.

    out     the owner's allocation, from its call to its return, while a borrower has all the memory
    back    from the moment when the owner frees its memory until the borrower's next call returns

beside the driver's own lock and checkpoint, and restore and unlock, of a program of that size without gpushare. Then
the mix: four borrowers that may be suspended, and four that may not, want 1 to 4 GiB each; two owners of 2 to 5 GiB
come and go.
"""

from __future__ import annotations

import argparse
import random
import select
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks")]

from reclaim import build_puppet, claims_met, quiet  # noqa: E402

from integration.node import GIB, MIB, Node, Puppet, wait_for  # noqa: E402

SUSPENDABLE, OTHERS = "trim,suspend,term,kill", "trim,term,kill"
ACTOR = """
import sys, time
from gpushare.checkpoint import DriverCheckpoints, resume, suspend
driver, pid = DriverCheckpoints(), int(sys.argv[1])
for step in (lambda: suspend(driver, [pid], 60.0), lambda: resume(driver, [pid])):
    began = time.perf_counter()
    result = step()
    print((time.perf_counter() - began) * 1e3, result.problem)
"""


def bare(node: Node, size: int) -> tuple[float, float]:
    """Milliseconds out and back of a program without gpushare."""
    quiet(node)
    env = {"LD_LIBRARY_PATH": str(node.drivers), "CUDA_VISIBLE_DEVICES": "0"}
    child = node.spawn([str(node.puppets / "puppet-dlopen")], **env)
    program = Puppet("bare", child)
    program.do("open 0")
    for _ in range(size):
        program.alloc(GIB)
    line = [sys.executable, "-c", ACTOR, str(child.pid)]
    done = subprocess.run(line, env=node.env | env, capture_output=True, text=True, check=True)
    out, back = (float(one.split()[0]) for one in done.stdout.splitlines())
    program.end()
    return out, back


def through_gpushare(node: Node, size: int) -> tuple[float, float]:
    quiet(node)
    steps = ("--on-reclaim", "suspend,kill", "--request", "none", "--limit", "15Gi")
    borrower = node.puppet("borrower", *steps)
    for _ in range(size):
        borrower.alloc(GIB)
    id = node.job("borrower")["id"]
    wait_for(lambda: f"a suspender is ready job={id}" in node.log(), "its suspender")
    owner = node.puppet("owner", "--request", "14Gi")
    owner.alloc(64 * MIB)
    out = owner.alloc(13 * GIB + 512 * MIB)  # more than is free
    borrower.send("info")
    began = time.perf_counter()
    owner.do("free all")
    borrower.answer()
    back = (time.perf_counter() - began) * 1e3
    owner.end()
    borrower.end()
    return out, back


def costs(directory: Path, runs: int, rate: int) -> None:
    print(f"{'milliseconds, median (least)':30} {'driver alone':>20} {'through gpushare':>20}   ratio of the medians")
    with Node(directory, directory, sim=f"memory=16Gi,context=300Mi,checkpoint_rate={rate}Gi") as node:
        node.start_daemon()
        keeper = node.puppet("keeper", "--limit", "400Mi", "--request", "none")
        for size in (2, 5, 10):
            alone, ours = [], []
            for _ in range(runs):
                alone.append(bare(node, size))
                ours.append(through_gpushare(node, size))
            for index, name in enumerate(("out", "back")):
                a, b = ([one[index] for one in some] for some in (alone, ours))
                shown = [f"{statistics.median(one):8.0f} ({min(one):.0f})" for one in (a, b)]
                ratio = statistics.median(b) / statistics.median(a)
                print(f"{f'{size} GiB {name}':30} {shown[0]:>20} {shown[1]:>20}   {ratio:.2f}", flush=True)
        keeper.end()


class Borrower:
    """Takes all that it gets, and is started again when it was stopped."""

    def __init__(self, node: Node, name: str, steps: str, dice: random.Random) -> None:
        self.dice = dice
        self.node, self.name, self.steps = node, name, steps
        self.serial, self.stops = 0, 0
        self.waits = False
        """For an answer: it may be suspended."""
        self.start()

    def start(self) -> None:
        self.serial += 1
        options = ("--request", "none", "--limit", "15Gi", "--grace", "200ms", "--on-reclaim", self.steps)
        self.program = Puppet(
            self.name,
            self.node.run("--name", f"{self.name}-{self.serial}", *options, self.node.puppets / "puppet-dlopen"),
        )
        self.program.send("term ignore")
        self.program.answer()
        self.opened = self.waits = False
        self.parts, self.wants = 0, self.dice.randint(4, 16)
        """Of 256 MiB."""

    def act(self, dice: random.Random) -> None:
        if self.program.wrapper.poll() is not None:
            self.stops += 1
            self.start()
        elif self.waits and not self.has_answered():
            return
        elif not self.opened:
            self.opened = self.program.try_("open 0")[0] == "ok"
        else:
            grows = self.parts < self.wants
            if not grows and dice.random() < 0.9:
                return
            self.program.send(f"alloc {256 * MIB}" if grows else "free last")
            self.waits = True

    def has_answered(self) -> bool:
        if not select.select([self.program.wrapper.stdout], [], [], 0)[0]:
            return False
        answer = self.program.answer()
        if answer[0] == "ok":
            self.parts += 1 if len(answer) == 3 else -1
        self.waits = False
        return True


def mix(directory: Path, seconds: float) -> None:
    dice = random.Random(1)
    with Node(directory, directory, sim="memory=16Gi,context=300Mi,checkpoint_rate=8Gi") as node:
        node.start_daemon()
        borrowers = [Borrower(node, f"s{number}", SUSPENDABLE, dice) for number in range(4)]
        borrowers += [Borrower(node, f"u{number}", OTHERS, dice) for number in range(4)]
        owners: dict[int, tuple[Puppet, float]] = {}
        serial, until = 0, time.monotonic() + seconds
        next_at = [time.monotonic() + 8, time.monotonic() + 12]
        while time.monotonic() < until:
            for one in borrowers:
                one.act(dice)
            for place in range(2):
                now = time.monotonic()
                if place in owners and now > owners[place][1]:
                    owners.pop(place)[0].end()
                    next_at[place] = now + dice.uniform(2, 10)
                elif place not in owners and now > next_at[place]:
                    serial += 1
                    size = dice.randint(8, 20) * 256 * MIB
                    owner = node.puppet(f"owner{serial}", "--request", f"{size // MIB + 400}Mi")
                    owner.alloc(size)
                    owners[place] = owner, time.monotonic() + dice.uniform(3, 12)
            time.sleep(0.05)
        found = claims_met(node)
        reclaims = sum(count for rung, count in found.items() if rung != "revoke")
        stops = found.get("term", 0) + found.get("kill", 0)
        print(f"\n{serial} owners in {seconds:.0f} s; claims met by {found}")
        print(f"{stops} of {reclaims} reclaims stopped a job: {100 * stops / max(1, reclaims):.1f} % (bar 10 %)")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--rate", type=int, default=4, metavar="GIB", help="that the software driver moves in a second")
    parser.add_argument("--mix", type=float, default=120, metavar="SECONDS")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        build_puppet(home)
        if options.runs:
            costs(home, options.runs, options.rate)
        if options.mix:
            mix(home, options.mix)
    return 0


if __name__ == "__main__":
    sys.exit(main())
