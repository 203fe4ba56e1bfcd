"""Claims with random requests come and go on one node, with a program in each: nobody is refused what its claim
requests, nobody gets more than its limit, and only those above their request are stopped.

GPUSHARE_TEST_CLAIMS=1000 makes a longer day of it; the end says how much of the idle memory was borrowed.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from claims import budget
from enforced_stage import enforced_node
from kube_stage import ROOT, until

MIB = 2**20
STEP = 64 * MIB
CONTEXT = 300 * MIB
"""Of the software driver, for each process."""
GUESSED = 32
"""The part of a GPU that a context counts as until one of this type was measured."""
LEAST = 6
"""Steps of a request: with less no program could begin."""
AT_ONCE = 6
CLAIMS = int(os.environ.get("GPUSHARE_TEST_CLAIMS", "20"))
OUT_OF_MEMORY = "2"


@dataclass
class Claim:
    """With the pod that has it, and the program in that."""

    uid: str
    gpu: int
    request: int
    limit: int
    process: subprocess.Popen[str]
    steps: int
    has: int = 0
    """Bytes: what its program has, and what the driver takes for it."""


@dataclass
class Day:
    node: object
    program: Path
    dice: random.Random
    room: list[int]
    """Of each GPU, what no claim has."""
    whole: int
    live: list[Claim] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    stopped: int = 0
    within: int = 0
    borrowed: float = 0.0
    idle: float = 0.0
    """Bytes times seconds."""
    looked: float = field(default_factory=time.monotonic)

    # ---- what happens ------------------------------------------------------------------------------

    def begin(self, number: int) -> bool:
        gpu = self.dice.randrange(len(self.room))
        most = self.room[gpu] // STEP
        if most < LEAST:
            return False
        request = self.dice.randint(LEAST, min(most, 28)) * STEP
        limit = self.dice.choice([request, min(2 * request, self.whole), self.whole])
        uid = f"day-{os.getpid()}-{number}"  # other tests' pods may be in the same tree of cgroups
        said = budget(limit=f"{limit // MIB}Mi", grace="500ms", onReclaim=["term"])
        self.node.claim(uid, f"{request // MIB}Mi", gpu=gpu, config=[said])
        assert self.node.kubelet.prepare(uid)[uid].error == ""
        process = self.node.container(uid, [str(self.program)])
        made = Claim(uid, gpu, request, limit, process, self.dice.randint(4, 16))
        self.room[gpu] -= request
        self.live.append(made)
        if self.ask(made, "open 0"):
            made.has = CONTEXT
        return True

    def step(self, claim: Claim) -> None:
        size = self.dice.randint(1, 24) * 16 * MIB
        claim.steps -= 1
        answer = self.ask(claim, f"alloc {size}")
        if not answer:
            return
        wanted, got = claim.has + size, answer[0] == "ok"
        self.within += wanted <= claim.request
        if wanted <= claim.request and not got:
            self.violations.append(f"{claim.uid} was refused {size} of its request: {answer}")
        if wanted - CONTEXT + self.whole // GUESSED > claim.limit and got:
            self.violations.append(f"{claim.uid} has {wanted}, more than its limit: {claim}")
        claim.has = wanted if got else claim.has

    def ask(self, claim: Claim, order: str) -> list[str]:
        """Its answer; none: it was stopped."""
        try:
            claim.process.stdin.write(f"{order}\n")
            claim.process.stdin.flush()
            answer = claim.process.stdout.readline().split()
        except BrokenPipeError:
            answer = []
        if not answer:
            self.judge_end(claim)
        return answer

    def judge_end(self, claim: Claim) -> None:
        status = claim.process.wait(30)
        self.stopped += 1
        if claim.has <= claim.request:
            self.violations.append(f"{claim.uid} was stopped ({status}) within its request: {claim}")
        self.end(claim)

    def end(self, claim: Claim) -> None:
        if claim in self.live:
            self.live.remove(claim)
            claim.process.kill()
            claim.process.communicate()
            until(lambda: self.node.kubelet.unprepare(claim.uid) == {claim.uid: ""}, "it to be unprepared")
            self.room[claim.gpu] += claim.request

    # ---- what is seen ------------------------------------------------------------------------------

    def use(self) -> dict[str, dict[str, int]]:
        return {one["id"].split("/")[1]: one["job"]["gpus"][0] for one in self.node.placed()}

    def look(self) -> None:
        now = time.monotonic()
        used = self.use().values()
        total = len(self.room) * self.whole
        lasted, self.looked = now - self.looked, now
        self.borrowed += lasted * sum(one["loan"] for one in used)
        self.idle += lasted * (total - sum(min(one["usage"], one["request"]) for one in used))


@pytest.fixture
def node(tmp_path):
    with enforced_node() as made:
        made.refresh()
        yield made


def test_claims_with_random_requests_all_get_what_they_request(node, tmp_path, capsys):
    program = tmp_path / "puppet"
    source = ROOT / "tests" / "integration" / "puppet.c"
    subprocess.run(["cc", "-DBY_DLOPEN", str(source), "-o", str(program), "-ldl"], check=True)
    tmp_path.chmod(0o755)
    whole = min(gpu["capacity"] for gpu in node.client.status()["gpus"]) // STEP * STEP
    day = Day(node, program, random.Random(13), [whole, whole], whole)
    begun = 0
    try:
        while begun < CLAIMS or day.live:
            if begun < CLAIMS and len(day.live) < AT_ONCE and day.dice.random() < 0.6:
                begun += day.begin(begun)
            elif day.live:
                claim = day.dice.choice(day.live)
                (day.step if claim.steps > 0 else day.end)(claim)
            day.look()
    finally:
        for claim in list(day.live):
            day.end(claim)
    assert day.violations == []
    assert day.within > CLAIMS // 2 and node.leftovers() == []
    part = f"{day.borrowed / 2**30 / 3600:.3f} of {day.idle / 2**30 / 3600:.3f} GiB h that were idle"
    with capsys.disabled():
        print(
            f"\n{CLAIMS} claims: {day.within} allocations within a request, 0 refused; {day.stopped} borrowers stopped"
        )
        print(f"borrowed {part}: {day.borrowed / day.idle:.0%}")
