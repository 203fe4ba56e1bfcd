"""What the core decides in a dozen stories made by dice, in its own words: decisions.txt.

The other tests say what must never happen and what a user may count on. Here a change shows that leaves all of that and
decides otherwise. Whoever changes a decision on purpose writes the file again and reads what else has changed.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path

import pytest

from core.tale import spec
from gpushare.reasons import Reason, Text
from gpushared.core.events import (
    AskCancelled,
    BudgetChanged,
    Checkpointed,
    Event,
    ReservationEnded,
    ResumeWanted,
    SuspendWanted,
)
from gpushared.core.instructions import Instruction, Log, Persist, Publish, Record, WakeAt
from gpushared.core.policy import GIB, Policy
from gpushared.core.visibility import OPERATOR
from property.world import World, mib

FILE = Path(__file__).with_name("decisions.txt")
STORIES, ACTIONS = 12, 80
STEPS = [("trim", "term", "kill"), ("trim", "suspend", "term", "kill"), ("trim", "hook", "suspend", "term", "kill")]
AMOUNTS = ["none", "10%", "25%", "40%", "3Gi", "max"]


def told(value: object) -> str:
    """For a reader: bytes in MiB, seconds to the millisecond, reasons as the administrator reads them."""
    if isinstance(value, Reason):
        return f"[{value.code.value}] {OPERATOR.words(value.message)}"
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return str(value) if abs(value) < 2**19 else f"{value / 2**20:g}M"
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, tuple | list | frozenset | set):
        return "(" + ",".join(map(told, sorted(value) if isinstance(value, frozenset | set) else value)) + ")"
    if is_dataclass(value) and not isinstance(value, type):
        return "/".join(told(getattr(value, one.name)) for one in fields(value))
    return OPERATOR.words(value) if isinstance(value, Text) else str(value)  # type: ignore[arg-type]


def _of(instruction: Instruction) -> str:
    what = [told(getattr(instruction, field.name)) for field in fields(instruction)]
    return " ".join((type(instruction).__name__, *what))


def _of_log(record: Record) -> str:
    return f"log {record.event} {record.gpu or '-'} {record.job or '-'}: {OPERATOR.words(record.text)}"


class Recorded(World):
    """Notes what the core says. Other tests compare the two ways of a grant."""

    def __init__(self, *more: object) -> None:
        self.lines: list[str] = []
        super().__init__(*more)  # type: ignore[arg-type]

    def _handle(self, event: Event) -> list[Instruction]:
        instructions = self.node.handle(event, self.now)
        for one in instructions:
            if isinstance(one, Persist | Publish | WakeAt):
                continue
            line = f"  {_of_log(one.record)}" if isinstance(one, Log) else f"  {_of(one)}"
            last = self.lines[-1] if self.lines else ""
            if last.partition(" x")[0] == line:
                line = f"{line} x{int(last.partition(' x')[2] or 1) + 1}"
                self.lines.pop()
            self.lines.append(line)
        return instructions


class Story:
    """One node and what befalls it."""

    def __init__(self, number: int) -> None:
        self.dice = random.Random(number)
        policy = Policy(
            overhead_guess=mib(300),
            grace=2.0,
            claim_timeout=20.0,
            on_breach=["warn", "deny", "kill"][number % 3],
            chunk=[0, mib(64)][number % 2],
        )
        self.world = Recorded([16 * GIB, 8 * GIB][: 1 + number % 2], [mib(300), mib(200)][: 1 + number % 2], policy)
        self.world.shows_busy = number % 4 == 0
        self.steps = STEPS[number % 3]

    def play(self) -> list[str]:
        for _ in range(3):
            self.submit()
            self.join()
        actions: list[Callable[[], object]] = [
            *(self.submit, self.join, self.join, self.allocate, self.allocate, self.squeeze, self.squeeze, self.claim),
            *(self.free, self.wait, self.wait, self.wait, self.detach, self.exit, self.end, self.change, self.reserve),
            *(
                self.release,
                self.outsider,
                self.escape,
                self.pause,
                self.restart,
                self.saved,
                self.wanted,
                self.give_up,
            ),
            *(self.xid, self.exec, self.compute, self.suspender, self.hooks),
        ]
        for _ in range(ACTIONS):
            action = self.dice.choice(actions)
            self.world.lines.append(f"{self.world.now:.2f} {action.__name__}")
            action()
        self.world.wait(30.0)
        for job in sorted(self.world.node.jobs):
            for record in self.world.node.story(job):
                self.world.lines.append(f"{job}: {record.event} {OPERATOR.words(record.text)}")
        return self.world.lines

    # ---- what may be picked ------------------------------------------------------------------------

    def job(self) -> str | None:
        jobs = sorted(self.world.node.jobs)
        return self.dice.choice(jobs) if jobs else None

    def program(self) -> int | None:
        busy = {one.program for one in (*self.world.waiting.values(), *self.world.takes)}
        free = [
            id
            for id, one in sorted(self.world.programs.items())
            if one.ends_at is None and id not in busy and not self.world.is_stopped(id)
        ]
        return self.dice.choice(free) if free else None

    def context(self) -> tuple[int, str] | None:
        process = self.program()
        gpus = sorted(self.world.programs[process].contexts) if process is not None else []
        return (process, self.dice.choice(gpus)) if process is not None and gpus else None

    def gpu(self) -> str:
        return self.dice.choice(sorted(self.world.total))

    def size(self, most: int) -> int:
        return max(512, int(most * self.dice.random()) // 512 * 512)

    # ---- users and their programs ------------------------------------------------------------------

    def submit(self) -> None:
        request, limit = self.dice.choice(AMOUNTS[:5]), self.dice.choice(AMOUNTS[3:])
        more = {
            "priority": self.dice.randint(-1, 2),
            "lend": self.dice.random() < 0.8,
            "on_reclaim": self.steps,
            "min_run_time": self.dice.choice([0.0, 0.0, 5.0]),
            "grace": self.dice.choice([None, 0.5, 4.0]),
            "idle_release": self.dice.choice([None, None, 3.0]),
            "gpus": self.dice.choice([1, 1, len(self.world.total)]),
        }
        job = self.world.submit(spec(f"job{self.world.serial}", request, limit, **more), self.dice.choice([None, 30.0]))
        if job in self.world.node.jobs and "suspend" in self.steps:
            self.world.suspender_comes(job, *self.dice.choices(["ok", "ok", "refused", "silent"], k=2), "ok")
        if job in self.world.node.jobs and "hook" in self.steps:
            self.world.hooks.come(job, *self.dice.choices(["ok", "part", "fails", "lies"], k=2), "ok", wakes=True)

    def join(self) -> None:
        job = self.job()
        if job is not None:
            process = self.world.join(job)
            self.world.programs[process].listens = process % 3 != 0
            self.world.attach(process, self.gpu())

    def allocate(self) -> None:
        where = self.context()
        if where is not None:
            self.world.allocate(*where, self.size(self.world.total[where[1]] // 2))

    def claim(self) -> None:
        """Within the request."""
        where = self.context()
        if where is not None:
            job = self.world.programs[where[0]].job
            left = self.world.node.jobs[job].bounds[where[1]].request - self.world.usage(job, where[1])
            if left > 512:
                self.world.allocate(*where, self.size(left))

    def squeeze(self) -> None:
        """Somebody borrows all there is, and somebody claims and has time to get it."""
        where = self.context()
        if where is not None:
            process, gpu = where
            free = self.world.node.published(gpu, [process])[process].grantable // 512 * 512
            if free:
                self.world.allocate(process, gpu, free)
            one = self.world.programs[process]
            one.caches[gpu] = int(one.words[gpu].used * self.dice.choice([0.0, 0.0, 0.5])) // 512 * 512
        self.claim()
        self.world.wait(self.dice.choice([1.0, 6.0, 15.0]))

    def free(self) -> None:
        where = self.context()
        if where is not None:
            self.world.free(*where, self.size(self.world.programs[where[0]].words[where[1]].used or 512))

    def detach(self) -> None:
        where = self.context()
        if where is not None:
            self.world.detach(*where)

    def exit(self) -> None:
        process = self.program()
        if process is not None:
            self.world.exit(process, self.dice.choice([0.0, 0.3, 3.0]))

    def exec(self) -> None:
        process = self.program()
        if process is not None:
            self.world.exec(process, self.dice.choice([0.0, 1.0]))

    def pause(self) -> None:
        process = self.program()
        if process is not None:
            self.world.pause(process, self.dice.random() < 0.4)

    def compute(self) -> None:
        process = self.program()
        if process is not None and self.world.shows_busy:
            self.world.programs[process].computes = self.dice.random() < 0.5

    def give_up(self) -> None:
        if self.world.waiting:
            ask = self.dice.choice(sorted(self.world.waiting))
            del self.world.waiting[ask]
            self.world.send(AskCancelled(ask))

    def end(self) -> None:
        job = self.job()
        if job is not None and self.dice.random() < 0.4:
            self.world.end(job)

    def change(self) -> None:
        job = self.job()
        if job is not None:
            amounts = spec("x", self.dice.choice(AMOUNTS[:4]), self.dice.choice(AMOUNTS[3:]))
            self.world.note_limit(amounts.limit)
            self.world.send(BudgetChanged(job, amounts.request, amounts.limit, self.dice.choice([None, 1])))

    def saved(self) -> None:
        job = self.job()
        if job is not None:
            self.world.send(Checkpointed(job))

    def wanted(self) -> None:
        job = self.job()
        for event in (SuspendWanted, ResumeWanted):
            if job in self.world.suspenders and job in self.world.node.jobs:
                self.world.send(event(job))
                self.world.wait(self.dice.choice([0.1, 2.0]))

    def suspender(self) -> None:
        if self.world.suspenders and self.dice.random() < 0.5:
            self.world.suspender_goes(self.dice.choice(sorted(self.world.suspenders)))

    def hooks(self) -> None:
        if self.world.hooks.modes and self.dice.random() < 0.5:
            self.world.hooks.go(self.dice.choice(sorted(self.world.hooks.modes)))

    def reserve(self) -> None:
        self.world.reserve(spec("kept", self.dice.choice(AMOUNTS[1:4]), "max"), self.dice.choice([None, 5.0]))

    def release(self) -> None:
        if self.world.reservations:
            self.world.send(ReservationEnded(self.dice.choice(self.world.reservations)))

    # ---- what befalls the node ---------------------------------------------------------------------

    def wait(self) -> None:
        self.world.wait(self.dice.choice([0.1, 1.0, 3.0, 8.0]))

    def outsider(self) -> None:
        self.world.occupy(self.gpu(), self.size(4 * GIB))

    def escape(self) -> None:
        job, gpu = self.job(), self.gpu()
        if job is not None and len(self.world.unhooked) < 2:
            room = self.world.node.gpus[gpu].free
            self.world.escape(job, gpu, min(self.size(3 * GIB), max(512, room)))

    def restart(self) -> None:
        if self.dice.random() < 0.3:
            self.world.restart()

    def xid(self) -> None:
        if self.dice.random() < 0.2:
            self.world.xid(self.gpu(), self.dice.choice([13, 31, 43, 48, 63, 79, 94]))


@pytest.fixture(scope="module")
def decisions() -> dict[int, list[str]]:
    made = {}
    for number in range(STORIES):
        made[number] = Story(number).play()
    if "GPUSHARE_TEST_UPDATE" in os.environ:
        FILE.write_text(
            "".join(f"== story {number}\n" + "".join(f"{line}\n" for line in made[number]) for number in made)
        )
    return made


@pytest.mark.parametrize("number", range(STORIES))
def test_the_core_decides_as_before(decisions: dict[int, list[str]], number: int) -> None:
    """GPUSHARE_TEST_UPDATE=1 writes it down again; read the difference."""
    before = {
        int(story.partition("\n")[0]): story.partition("\n")[2].splitlines()
        for story in FILE.read_text().split("== story ")[1:]
    }
    assert decisions[number] == before[number]


def test_the_stories_have_much_in_them(decisions: dict[int, list[str]]) -> None:
    said = {line.split()[0] for lines in decisions.values() for line in lines if line.startswith("  ")}
    assert said >= {"Granted", "Attached", "Denied", "Revoke", "Trim", "Terminate", "Kill", "Suspend", "Resume"}
