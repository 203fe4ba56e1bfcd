"""Every message that users read, each told by a short story and kept as text in messages.txt.

A message that comes out differently fails, and so does one that no story produces: the places that make messages are
found in the sources. When the text is meant to change, GPUSHARE_TEST_UPDATE=1 writes the file again; read it aloud.
"""

from __future__ import annotations

import ast
import difflib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import gpushared
from core.tale import spec, start
from gpushare import reasons
from gpushare.exit_message import Ending, exit_message
from gpushare.quantity import Quantity
from gpushare.reasons import Code, Reason
from gpushared import config
from gpushared.core import health_issues, rules, turns, wait_report
from gpushared.core.events import (
    AttachAsked,
    BudgetChanged,
    Checkpointed,
    CreditAsked,
    MemorySampled,
    ReservationEnded,
    ResumeWanted,
    SuspendWanted,
    Unmet,
)
from gpushared.core.health_issues import Condition, HealthIssue
from gpushared.core.instructions import BudgetSet, Instruction, Log, Record
from gpushared.core.node import NodeState
from gpushared.core.policy import MIB, Policy
from gpushared.core.rules import Who
from gpushared.core.transaction import Transaction
from gpushared.core.visibility import OPERATOR
from gpushared.jobs.registry import killed_facts
from gpushared.limits.access import Access
from property.world import Waiting, World, mib

GIB = 1024 * MIB
GOLDEN = Path(__file__).with_name("messages.txt")
SOURCES = Path(gpushared.__file__).parent
NOTERS = ("record", "record_reason", "record_of_user", "record_of_submission")


@dataclass
class Heard:
    """All that was said while the stories were told."""

    records: list[Record] = field(default_factory=list)
    others: list[tuple[str, Reason]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    places: set[tuple[str, int]] = field(default_factory=set)
    """File and line of every call that made a message."""


@dataclass
class Section:
    title: str
    lines: list[str]


STORIES: list[tuple[str, Callable[[Tale], None]]] = []


def story(title: str) -> Callable[[Callable[[Tale], None]], Callable[[Tale], None]]:
    def keep(tell: Callable[[Tale], None]) -> Callable[[Tale], None]:
        STORIES.append((title, tell))
        return tell

    return keep


class Tale:
    """What a story has to tell with: worlds, and the sections of the file that it fills."""

    def __init__(self, heard: Heard) -> None:
        self.heard = heard
        self.sections: list[Section] = []
        self.world = self.node()

    def node(self, gpus: int = 1, **policy: object) -> World:
        """So many GPUs of 16 GiB; a context costs 300 MiB."""
        settings = {"overhead_guess": mib(300)} | policy
        self.world = World([16 * GIB] * gpus, [mib(300)] * gpus, Policy(**settings))
        listen(self.world, self.heard)
        return self.world

    def show(self, *texts: str) -> None:
        self.sections[-1].lines += [line for text in texts for line in text.splitlines()]

    def story_of(self, *events: str) -> None:
        """The records of these kinds, in their order, each text once."""
        said = []
        for one in self.heard.records:
            line = f"{one.event:<13} {f'{one.name}: ' if one.name else ''}{OPERATOR.words(one.text)}"
            if one.event in events and line not in said:
                said.append(line)
        assert {line.split()[0] for line in said} == set(events), f"not all of {events} were told: {said}"
        self.show(*said)

    def told(self, kind: str) -> None:
        """The last message of this kind, whole: an instruction's name, or Notify and its kind."""
        found = [reason for name, reason in self.heard.others if name == kind]
        assert found, f"nobody was told {kind}, but {sorted({name for name, _ in self.heard.others})}"
        self.show(f"[{kind}, {found[-1].code}]", OPERATOR.told(found[-1]).render())

    def borrower(self, name: str = "train", size: int = 12 * GIB, **more: object) -> int:
        process = start(self.world, name, "4Gi", "14Gi", **more)
        self.world.allocate(process, "GPU-0", size)
        return process

    def owner(self, size: int = 7 * GIB, **more: object) -> int:
        """One whose guarantee is lent out, and who wants it."""
        process = start(self.world, "serve", "8Gi", "8Gi", **more)
        if size:
            self.world.allocate(process, "GPU-0", size)
        return process


def listen(world: World, heard: Heard) -> None:
    handle = world.node.handle

    def and_hear(event: object, now: float) -> list[Instruction]:
        out = handle(event, now)  # type: ignore[arg-type]
        for one in out:
            if isinstance(one, Log):
                heard.records.append(one.record)
            elif isinstance(one, BudgetSet):
                heard.notes.append(one.note)
            elif isinstance(getattr(one, "reason", None), Reason):
                kind = type(one).__name__ + (f" {one.kind}" if hasattr(one, "kind") else "")
                heard.others.append((kind, one.reason))  # type: ignore[attr-defined]
        return out

    world.node.handle = and_hear  # type: ignore[method-assign]


# ---- coming and going ------------------------------------------------------------------------------


@story("above its request, and one who has used nothing yet lends nothing")
def _(tale: Tale) -> None:
    tale.world.submit(spec("reserved", "8Gi", "8Gi", lend=False))
    a = start(tale.world, "train", "4Gi", "14Gi")
    tale.world.allocate(a, "GPU-0", 10 * GIB)
    tale.told("Denied")


@story("no daemon was there to keep a guarantee")
def _(tale: Tale) -> None:
    process = tale.owner(0)
    tale.world.send(Unmet(process, "GPU-0", 1))
    tale.world.send(Unmet(process, "GPU-0", 3))
    tale.story_of("unmet")


@story("a job comes and goes")
def _(tale: Tale) -> None:
    world = tale.node()
    world.node.state.overheads.clear()
    a = start(world, "train", "4Gi", "14Gi")
    world.wait(4.0)
    world.send(Checkpointed(world.programs[a].job))
    job = world.programs[a].job
    world.send(BudgetChanged(job, limit=Quantity.parse("25%"), priority=3))
    world.exit(a, lag=0.3)
    world.wait(2.5)
    world.end(job)
    tale.story_of("admitted", "joined", "attached", "overhead", "checkpointed", "changed", "left", "returned", "ended")


@story("the node's GPU is found")
def _(tale: Tale) -> None:
    listen_to_birth(tale)
    tale.story_of("gpu")


def listen_to_birth(tale: Tale) -> None:
    """GPUs are found before anybody can listen."""
    tale.heard.records += [one for one in tale.world.node.records if one.event == "gpu"]


@story("a job that comes with the environment alone is admitted where it opens a context")
def _(tale: Tale) -> None:
    start(tale.world, "train", "4Gi", "8Gi", gpus=0)
    tale.story_of("admitted")


@story("after a restart of the daemon")
def _(tale: Tale) -> None:
    a = start(tale.world, "train", "4Gi", "8Gi")
    tale.world.restart()
    tale.heard.records += tale.world.node.story(tale.world.programs[a].job)
    tale.story_of("restored")


# ---- admission -------------------------------------------------------------------------------------


@story("no room for its request")
def _(tale: Tale) -> None:
    start(tale.world, "train", "4Gi", "14Gi")
    start(tale.world, "serve", "8Gi", "8Gi")
    tale.world.reserve(spec("mine", "1Gi", "max"))
    tale.world.occupy("GPU-0", GIB)
    tale.world.submit(spec("late", "6Gi", "6Gi"))
    tale.story_of("refused")
    tale.told("JobRefused")


@story("no room at all, on any of two GPUs")
def _(tale: Tale) -> None:
    world = tale.node(2)
    for number in (1, 2):
        world.submit(spec(f"full-{number}", "max", "max"))
    world.submit(spec("late", "25%", "max"))
    tale.told("JobRefused")


@story("no room, and many hold what there is: the largest are named")
def _(tale: Tale) -> None:
    for number in range(10):
        tale.world.submit(spec(f"small-{number}", f"{500 + number}Mi", "1Gi"))
    tale.world.submit(spec("late", "12Gi", "12Gi"))
    tale.told("JobRefused")


@story("room on one of two GPUs, and two are asked for: so much as both of them have")
def _(tale: Tale) -> None:
    world = tale.node(2)
    start(world, "train", "12Gi", "12Gi")
    world.submit(spec("wide", "6Gi", "6Gi", gpus=2))
    tale.told("JobRefused")


@story("more than the GPU has, and more than any of them")
def _(tale: Tale) -> None:
    tale.world.submit(spec("huge", "20Gi", "40Gi"))
    tale.told("JobRefused")
    world = tale.node(2)
    world.submit(spec("huge", "20Gi", "40Gi"))
    tale.told("JobRefused")


@story("more request than limit")
def _(tale: Tale) -> None:
    tale.world.submit(spec("odd", "25%", "2Gi"))
    tale.told("JobRefused")


@story("more GPUs than there are, and than were named")
def _(tale: Tale) -> None:
    tale.node(2)
    tale.world.submit(spec("wide", "1Gi", "1Gi", gpus=4))
    tale.told("JobRefused")
    tale.world.submit(spec("wide", "1Gi", "1Gi", gpus=2, devices=("GPU-1",)))
    tale.told("JobRefused")


@story("a GPU that does not exist")
def _(tale: Tale) -> None:
    tale.world.submit(spec("lost", "1Gi", "1Gi", devices=("GPU-9",)))
    tale.told("JobRefused")
    a = start(tale.world, "train", "1Gi", "1Gi")
    tale.world.node.handle(AttachAsked(99, a, "GPU-9"), tale.world.now)
    tale.told("Denied")


@story("a node without a GPU")
def _(tale: Tale) -> None:
    tale.node(0)
    tale.world.submit(spec("lost", "1Gi", "1Gi"))
    tale.told("JobRefused")


@story("a GPU on which the job was not admitted")
def _(tale: Tale) -> None:
    world = tale.node(2)
    a = start(world, "train", "1Gi", "1Gi", devices=("GPU-0",))
    world.attach(a, "GPU-1")
    tale.told("Denied")


@story("it queues, and others behind it")
def _(tale: Tale) -> None:
    start(tale.world, "train", "12Gi", "14Gi")
    tale.world.submit(spec("large", "8Gi", "8Gi"), wait=60.0)
    tale.story_of("queued")
    tale.told("JobQueued")
    tale.world.submit(spec("small", "1Gi", "1Gi"))
    tale.told("JobRefused")
    tale.world.submit(spec("second", "1Gi", "1Gi"), wait=30.0)
    tale.world.submit(spec("smaller", "1Gi", "1Gi"))
    tale.told("JobRefused")


@story("it has queued as long as it was ready to")
def _(tale: Tale) -> None:
    start(tale.world, "train", "12Gi", "14Gi")
    tale.world.submit(spec("late", "8Gi", "8Gi"), wait=60.0)
    tale.world.wait(61.0)
    tale.told("JobRefused")


@story("the settings of the node forbid it")
def _(tale: Tale) -> None:
    text = '[policy]\nmax_request = "4Gi"\nmax_limit = "50%"\nmax_priority = 0\n'
    known = config.Config(**config.parse(text, Path("/etc/gpushare/gpushared.toml"))).rules
    answer = rules.admit(known, Who(1000, "alice"), spec("train", "8Gi", "14Gi", priority=5), [16 * GIB], 0)
    assert isinstance(answer, Reason)
    tale.show(f"[{answer.code}]", OPERATOR.told(answer).render())
    limits = SimpleNamespace(most_jobs=lambda _: 3)
    access = Access(NodeState, config.Config, SimpleNamespace(known=lambda uid: Who(uid, "alice")), limits, system=True)
    answer = access.admit(spec("train", "1Gi", "1Gi"), [4096] * 3)
    assert isinstance(answer, Reason)
    tale.show(f"[{answer.code}]", OPERATOR.told(answer).render())


@story("a user's own daemon protects no job for longer than a claim waits")
def _(tale: Tale) -> None:
    limits = SimpleNamespace(most_jobs=lambda _: None, is_bound=lambda _: False)
    state = NodeState(Policy())
    who = SimpleNamespace(known=lambda uid: Who(uid, "alice"))
    access = Access(lambda: state, config.Config, who, limits, system=False)
    answer = access.admit(spec("train", "1Gi", "1Gi", min_run_time=1800.0), [])
    assert isinstance(answer, Reason)
    tale.show(f"[{answer.code}]", OPERATOR.told(answer).render())


@story("turns in computing that cannot be had")
def _(tale: Tale) -> None:
    wishes: list[tuple[dict[str, object], bool]] = [({"compute": 0.5, "exclusive": 5.0}, False)]
    wishes += [({"compute": 0.5, "gpus": 2}, True), ({"compute": 0.5, "observe": True}, True)]
    for wish, on in [*wishes, ({"exclusive": 300.0}, True)]:
        answer = turns.refusal(spec("train", "1Gi", "1Gi")._replace(**wish), on=on, longest=30.0)
        assert isinstance(answer, Reason)
        tale.show(f"[{answer.code}]", OPERATOR.told(answer).render())


# ---- reservations ----------------------------------------------------------------------------------


@story("reservations are made, end, and are released")
def _(tale: Tale) -> None:
    tale.world.reserve(spec("night", "4Gi", "max"), 8 * 3600.0)
    mine = tale.world.reserve(spec("mine", "4Gi", "max"))
    tale.world.send(ReservationEnded(str(mine)))
    tale.world.now += 8 * 3600.0
    tale.world.wait(1.0)
    tale.story_of("reserved", "released")


@story("reservations are refused")
def _(tale: Tale) -> None:
    tale.world.reserve(spec("mine", "none", "max"))
    tale.told("ReservationRefused")
    tale.world.reserve(spec("mine", "4Gi", "max"))
    tale.world.reserve(spec("mine", "4Gi", "max"))
    tale.told("ReservationRefused")
    tale.world.reserve(spec("more", "14Gi", "max"))
    tale.told("ReservationRefused")


@story("a reservation that is not there, or is over while a job waits for it")
def _(tale: Tale) -> None:
    tale.world.submit(spec("train", "1Gi", "1Gi", reservation="night"))
    tale.told("JobRefused")
    mine = tale.world.reserve(spec("mine", "2Gi", "max"))
    start(tale.world, "serve", "13Gi", "13Gi")
    tale.world.submit(spec("late", "4Gi", "4Gi", reservation=mine), wait=60.0)
    tale.told("JobQueued")
    tale.world.send(ReservationEnded(str(mine)))
    tale.story_of("queued", "refused")


# ---- refused memory --------------------------------------------------------------------------------


@story("over the job's limit")
def _(tale: Tale) -> None:
    world = tale.world
    job = world.submit(spec("train", "4Gi", "4Gi", limit_source="--limit"))
    first, second = world.join(job), world.join(job)
    for process in (first, second):
        world.attach(process, "GPU-0")
        world.allocate(process, "GPU-0", mib(1600))
    world.wait(1.0)
    world.allocate(second, "GPU-0", mib(600))
    world.wait(0.05)
    tale.story_of("denied")
    tale.told("Denied")


@story("over the limit, which is all of the GPU")
def _(tale: Tale) -> None:
    a = start(tale.world, "train", "4Gi", "max")
    tale.world.allocate(a, "GPU-0", 16 * GIB)
    tale.told("Denied")


@story("a loan that is not free")
def _(tale: Tale) -> None:
    tale.borrower(size=9 * GIB)
    b = start(tale.world, "nb", "1Gi", "8Gi")
    gone = start(tale.world, "gone", "1Gi", "4Gi")
    tale.world.allocate(gone, "GPU-0", GIB // 2)
    tale.world.exit(gone, lag=9.0)
    tale.world.occupy("GPU-0", GIB)
    tale.world.allocate(b, "GPU-0", 6 * GIB)
    tale.told("Denied")


@story("a loan while an owner's claim waits, and the same once more later")
def _(tale: Tale) -> None:
    a = tale.borrower(size=9 * GIB, grace=25.0)
    tale.owner()
    for _ in range(220):
        tale.world.allocate(a, "GPU-0", mib(1500))
        tale.world.wait(0.05)
    tale.story_of("denied")
    tale.told("Denied")


@story("a loan while other calls of the same job wait for all of its request")
def _(tale: Tale) -> None:
    tale.borrower(size=9 * GIB, grace=25.0)
    first = start(tale.world, "serve", "8Gi", "10Gi")
    second = tale.world.join(tale.world.programs[first].job)
    tale.world.attach(second, "GPU-0")
    tale.world.allocate(first, "GPU-0", 7 * GIB)
    tale.world.allocate(second, "GPU-0", GIB)
    tale.story_of("claim_waits")
    tale.told("Denied")


@story("a context for which there is no room")
def _(tale: Tale) -> None:
    tale.borrower(size=13 * GIB)
    tale.world.occupy("GPU-0", 2 * GIB)
    job = tale.world.submit(spec("nb", "none", "8Gi"))
    tale.world.attach(tale.world.join(job), "GPU-0")
    tale.told("Denied")


# ---- claims and reclaim ----------------------------------------------------------------------------


@story("idle memory comes back to its owner from a trim")
def _(tale: Tale) -> None:
    a = tale.borrower()
    one = tale.world.programs[a]
    one.listens, one.caches["GPU-0"], one.dawdle = True, 6 * GIB, 0.01
    tale.owner()
    tale.world.wait(0.1)
    tale.story_of("claim_waits", "trim", "trimmed", "claim_met")
    tale.told("Trim")


@story("a trim that brings nothing, SIGTERM, SIGKILL, and the memory is back")
def _(tale: Tale) -> None:
    a = tale.borrower()
    one = tale.world.programs[a]
    one.listens, one.dawdle = True, 60.0
    tale.owner()
    tale.world.wait(9.0)
    tale.story_of("trim", "trimmed", "term", "kill", "reclaimed", "returned", "claim_met")
    tale.told("Terminate")
    tale.told("Kill")


@story("a job that chose to borrow nothing, and whose context costs more than it was charged")
def _(tale: Tale) -> None:
    world = tale.node()
    world.cost["GPU-0"], world.ever_tight = 2 * GIB, True
    a = start(world, "train", "4Gi", "4Gi")
    world.allocate(a, "GPU-0", 4 * GIB - mib(300))
    world.wait(3.0)
    owner = start(world, "serve", "11Gi", "11Gi")
    world.allocate(owner, "GPU-0", 9 * GIB)
    tale.story_of("term")
    tale.told("Terminate")


@story("a borrower that ends when asked to")
def _(tale: Tale) -> None:
    a = tale.borrower()
    tale.owner()
    tale.world.wait(2.0)
    tale.world.exit(a)
    tale.story_of("reclaimed", "claim_met")


@story("a borrower that wants no notice")
def _(tale: Tale) -> None:
    tale.borrower(on_reclaim=("kill",))
    tale.owner()
    tale.story_of("kill")
    tale.told("Kill")


@story("the last rung of this node is SIGTERM")
def _(tale: Tale) -> None:
    tale.node(last_step="term")
    tale.world.ever_protected = True
    tale.borrower()
    tale.owner()
    tale.story_of("term")


@story("a borrower that gives back in time")
def _(tale: Tale) -> None:
    a = tale.borrower()
    tale.owner()
    tale.world.wait(2.0)
    tale.world.free(a, "GPU-0", 9 * GIB)
    tale.world.wait(0.1)
    tale.story_of("relieved", "claim_met")
    tale.told("Notify relieved")


@story("a borrower that is asked, and then not needed: the owner has gone")
def _(tale: Tale) -> None:
    tale.borrower()
    b = tale.owner()
    tale.world.exit(b)
    tale.story_of("relieved")


@story("a borrower that is asked, and then not needed: the memory came from elsewhere")
def _(tale: Tale) -> None:
    tale.borrower(size=9 * GIB)
    other = start(tale.world, "other", "3Gi", "3Gi")
    tale.world.allocate(other, "GPU-0", int(2.6 * GIB) // 512 * 512)
    tale.owner(size=5 * GIB)
    tale.world.wait(1.0)
    tale.world.exit(other, lag=2.0)
    tale.world.wait(0.1)
    tale.story_of("relieved")


@story("a borrower that is asked, and then it would not be enough")
def _(tale: Tale) -> None:
    a = tale.borrower()
    tale.owner()
    tale.world.wait(1.0)
    tale.world.free(a, "GPU-0", 7 * GIB)
    tale.world.occupy("GPU-0", 8 * GIB)
    tale.world.wait(0.1)
    tale.story_of("relieved", "unmanaged")


@story("a claim that only waits for the driver")
def _(tale: Tale) -> None:
    a = start(tale.world, "first", "8Gi", "8Gi")
    tale.world.allocate(a, "GPU-0", 7 * GIB)
    job = tale.world.programs[a].job
    tale.world.exit(a, lag=1.0)
    tale.world.end(job)
    b = start(tale.world, "serve", "12Gi", "12Gi")
    tale.world.allocate(b, "GPU-0", 10 * GIB)
    tale.world.wait(3.0)
    tale.story_of("claim_waits", "claim_met")


# ---- claims in vain --------------------------------------------------------------------------------


@story("in vain: it was killed and does not go")
def _(tale: Tale) -> None:
    a = tale.borrower()
    tale.world.programs[a].stubborn = True
    tale.world.ever_stubborn = True
    tale.owner()
    tale.world.wait(31.0)
    tale.story_of("unkillable")
    tale.told("Denied")


@story("in vain: its program belongs to another user")
def _(tale: Tale) -> None:
    tale.world.setuid = {tale.borrower()}
    tale.world.ever_stubborn = True
    tale.owner()
    tale.world.wait(31.0)
    tale.story_of("left_alone")
    tale.told("Denied")


@story("in vain: the driver does not return it")
def _(tale: Tale) -> None:
    a = start(tale.world, "first", "8Gi", "8Gi")
    tale.world.allocate(a, "GPU-0", 7 * GIB)
    job = tale.world.programs[a].job
    tale.world.exit(a, lag=60.0)
    tale.world.end(job)
    b = start(tale.world, "serve", "12Gi", "12Gi")
    tale.world.allocate(b, "GPU-0", 10 * GIB)
    tale.world.wait(31.0)
    tale.told("Denied")


@story("in vain: the GPU has become smaller")
def _(tale: Tale) -> None:
    world = tale.world
    a, b = start(world, "train", "8Gi", "8Gi"), start(world, "serve", "7Gi", "15Gi")
    for process in (a, b):
        world.allocate(process, "GPU-0", 6 * GIB)
    world.resize("GPU-0", 12 * GIB)
    world.wait(2.0)
    world.allocate(a, "GPU-0", GIB)
    world.wait(31.0)
    tale.story_of("capacity", "guarantees")
    tale.told("Denied")


@story("in vain: somebody outside gpushare has it")
def _(tale: Tale) -> None:
    tale.borrower(size=5 * GIB)
    b = tale.owner(size=0)
    tale.world.occupy("GPU-0", 9 * GIB)
    tale.world.allocate(b, "GPU-0", 7 * GIB)
    tale.world.wait(31.0)
    tale.world.occupy("GPU-0", 0)
    tale.story_of("unmanaged", "guarantees")
    tale.told("Denied")


@story("in vain: the borrower is within its minimum run time")
def _(tale: Tale) -> None:
    tale.borrower(min_run_time=3600.0)
    tale.owner()
    tale.world.wait(31.0)
    tale.told("Denied")


@story("in vain: the node's settings stop nobody")
def _(tale: Tale) -> None:
    tale.node(last_step="trim")
    tale.world.ever_protected = True
    tale.borrower()
    tale.owner()
    tale.world.wait(31.0)
    tale.told("Denied")


@story("in vain: who has borrowed may be asked only when it is too late")
def _(tale: Tale) -> None:
    tale.borrower(min_run_time=29.99, on_reclaim=("term", "kill"))
    tale.owner()
    tale.world.wait(31.0)
    tale.told("Denied")


@story("in vain: there is room, and the driver says no")
def _(tale: Tale) -> None:
    """The shim has tried once more, and reports that it was for nothing."""
    world = tale.world
    process = start(world, "serve", "8Gi", "8Gi")
    ask = world.next_id()
    world.waiting[ask] = Waiting(process, "GPU-0", 0, world.now, attach=False)
    world._check_denial = lambda *_: None  # no shortage of memory is what it is refused for
    world.send(CreditAsked(ask, process, "GPU-0", GIB, driver_failed=True, allocation=GIB, again=True))
    tale.told("Denied")


@story("in vain: not even a context can be opened")
def _(tale: Tale) -> None:
    tale.world.ever_protected = True
    tale.borrower(size=13 * GIB, min_run_time=3600.0)
    tale.world.occupy("GPU-0", 3 * GIB)
    job = tale.world.submit(spec("serve", "1Gi", "1Gi"))
    tale.world.ever_foreign = True
    tale.world.attach(tale.world.join(job), "GPU-0")
    tale.world.wait(31.0)
    tale.told("Denied")


# ---- suspending ------------------------------------------------------------------------------------


def suspendable(tale: Tale, *modes: str, **more: object) -> int:
    process = tale.borrower(on_reclaim=("suspend", "term", "kill"), **more)
    tale.world.suspender_comes(tale.world.programs[process].job, *modes, "ok")
    tale.world.wait(3.0)
    return process


@story("a borrower is suspended, and goes on when there is room")
def _(tale: Tale) -> None:
    suspendable(tale)
    b = tale.owner()
    tale.world.wait(0.2)
    explain(tale)
    tale.world.wait(1.0)
    tale.told("Notify suspended")
    explain(tale)
    tale.world.exit(b)
    tale.world.wait(0.2)
    (job,) = (one for one, _ in tale.world.node.state.suspensions())
    tale.world.send(SuspendWanted(job.id))
    tale.told("SuspendRefused")
    tale.world.wait(3.0)
    tale.told("Notify resumed")
    tale.story_of("suspend", "suspended", "resumed")


@story("a job that its user suspends, and one that cannot be")
def _(tale: Tale) -> None:
    a = suspendable(tale, size=4 * GIB)
    tale.world.send(SuspendWanted(tale.world.programs[a].job))
    tale.world.wait(1.0)
    tale.told("Notify suspended")
    explain(tale)
    other = start(tale.world, "serve", "4Gi", "4Gi")
    for event in (SuspendWanted, ResumeWanted):
        tale.world.send(event(tale.world.programs[other].job))
        tale.told("SuspendRefused")
    tale.world.send(SuspendWanted("f" * 16))
    tale.told("SuspendRefused")


@story("a program wants a context while its job is suspended")
def _(tale: Tale) -> None:
    a = suspendable(tale, size=4 * GIB)
    job = tale.world.programs[a].job
    tale.world.send(SuspendWanted(job))
    tale.world.wait(1.0)
    tale.world.attach(tale.world.join(job), "GPU-0")
    tale.world.wait(31.0)
    tale.told("Denied")


@story("the driver refuses to suspend it, and it is stopped")
def _(tale: Tale) -> None:
    suspendable(tale, "refused")
    tale.owner()
    tale.world.wait(1.0)
    tale.told("Notify not_suspended")
    tale.story_of("not_suspended")


@story("two wait to go on, and the first cannot be brought back yet")
def _(tale: Tale) -> None:
    a, b = suspendable(tale, "ok", "refused", size=3 * GIB), suspendable(tale, size=3 * GIB)
    for process in (a, b):
        tale.world.send(SuspendWanted(tale.world.programs[process].job))
    tale.world.wait(1.0)
    for process in (a, b):
        tale.world.send(ResumeWanted(tale.world.programs[process].job))
    tale.world.wait(0.6)
    explain(tale)
    tale.story_of("not_resumed")
    tale.world.suspender_goes(tale.world.programs[b].job)
    explain(tale)


@story("one waits to go on, and Ctrl-Z has stopped its program")
def _(tale: Tale) -> None:
    a = suspendable(tale, size=3 * GIB)
    tale.world.send(SuspendWanted(tale.world.programs[a].job))
    tale.world.wait(1.0)
    tale.world.pause(a, True)
    tale.world.send(ResumeWanted(tale.world.programs[a].job))
    tale.world.wait(2.0)
    explain(tale)


@story("nobody can bring it back")
def _(tale: Tale) -> None:
    suspendable(tale, "failed", grace=1.0)
    tale.owner()
    tale.world.wait(4.0)
    tale.told("Terminate")
    tale.story_of("stuck", "kill")


# ---- hooks -----------------------------------------------------------------------------------------


def hooked(tale: Tale, *modes: str, wakes: bool = True, **more: object) -> int:
    size, name = more.pop("size", 12 * GIB), str(more.pop("name", "train"))
    process = start(tale.world, name, "1Gi", "14Gi", on_reclaim=("hook", "term", "kill"), **more)
    tale.world.allocate(process, "GPU-0", size)
    tale.world.hooks.come(tale.world.programs[process].job, *modes, "ok", wakes=wakes)
    tale.world.wait(3.0)
    return process


@story("a borrower's hook gives its memory back, and it has it again when there is room")
def _(tale: Tale) -> None:
    hooked(tale)
    b = tale.owner()
    tale.world.wait(0.2)
    explain(tale)
    tale.world.wait(1.0)
    tale.told("Notify hook")
    explain(tale)
    tale.world.exit(b)
    tale.world.wait(3.0)
    tale.told("Notify awake")
    tale.story_of("hook", "hook_gave", "awake")


@story("a hook that has no other, and one that fails although it has given")
def _(tale: Tale) -> None:
    hooked(tale, "gives and fails", wakes=False)
    tale.owner()
    tale.world.wait(1.0)
    tale.told("Notify hook")
    tale.story_of("hook_gave")


@story("a hook gives nothing, and the next step follows")
def _(tale: Tale) -> None:
    hooked(tale, "lies")
    tale.owner()
    tale.world.wait(1.0)
    tale.told("Notify hook_failed")
    tale.story_of("hook_failed")
    explain(tale)


@story("a resume hook fails, others come first, and its runner goes")
def _(tale: Tale) -> None:
    a, c = hooked(tale, "ok", "fails", "fails", size=7 * GIB), hooked(tale, "ok", size=7 * GIB, name="tune")
    b = tale.owner(size=8 * GIB - mib(300))
    tale.world.wait(2.0)
    explain(tale)
    tale.world.exit(b)
    tale.world.wait(1.8)
    tale.told("Notify hook_failed")
    tale.story_of("not_awake")
    explain(tale)
    for process in (a, c):
        tale.world.hooks.go(tale.world.programs[process].job)
    explain(tale)


# ---- jobs that are idle ----------------------------------------------------------------------------


@story("a job that is idle gives its caches back, and computes again; another has nothing to give")
def _(tale: Tale) -> None:
    tale.world.shows_busy = True
    a = start(tale.world, "notebook", "4Gi", "4Gi", idle_release=60.0)
    b = start(tale.world, "fit", "4Gi", "4Gi", idle_release=120.0, on_reclaim=("kill",))
    for process in (a, b):
        tale.world.allocate(process, "GPU-0", 3 * GIB)
    one = tale.world.programs[a]
    one.listens, one.caches["GPU-0"] = True, 2 * GIB
    tale.world.wait(130.0)
    tale.told("Notify idle")
    one.computes = True
    tale.world.wait(2.0)
    tale.story_of("idle", "idle_gave", "active")


@story("the hook of a job that is idle gives memory back; that of another gives nothing, and no step follows")
def _(tale: Tale) -> None:
    tale.world.shows_busy = True
    for name, how in (("chat", "ok"), ("draw", "lies")):
        process = start(tale.world, name, "6Gi", "6Gi", idle_release=60.0, on_reclaim=("hook", "kill"))
        tale.world.hooks.come(tale.world.programs[process].job, how, wakes=False)
        tale.world.allocate(process, "GPU-0", 4 * GIB)
        tale.world.wait(100.0)
        tale.told("Notify hook" if how == "ok" else "Notify hook_failed")
    tale.story_of("idle", "hook_gave", "hook_failed")


# ---- what explain says -----------------------------------------------------------------------------


def explain(tale: Tale) -> None:
    for one in wait_report.all_of(tale.world.node.state, tale.world.now):
        tale.show(f"[waits, {one.reason.code}]", OPERATOR.told(one.reason).render())


@story("explain: a borrower trims")
def _(tale: Tale) -> None:
    a = tale.borrower()
    tale.world.programs[a].listens, tale.world.programs[a].dawdle = True, 60.0
    tale.owner()
    tale.world.wait(0.5)
    explain(tale)


@story("explain: a borrower has been asked to stop, was asked to trim before, and two queue")
def _(tale: Tale) -> None:
    tale.borrower()
    nb = start(tale.world, "nb", "1Gi", "4Gi")
    tale.world.allocate(nb, "GPU-0", GIB // 2)
    tale.owner()
    tale.world.wait(2.0)
    tale.world.submit(spec("late", "6Gi", "6Gi"), wait=3600.0)
    tale.world.wait(1.5)
    tale.world.submit(spec("later", "10%", "6Gi"), wait=10 * 365 * 24 * 3600.0)
    explain(tale)


@story("explain: a borrower was killed, and its memory is on its way back")
def _(tale: Tale) -> None:
    a = tale.borrower()
    tale.world.programs[a].stubborn = True
    tale.world.ever_stubborn = True
    tale.owner()
    tale.world.wait(6.0)
    explain(tale)
    tale.world.wait(9.0)
    explain(tale)


@story("explain: nobody can be asked")
def _(tale: Tale) -> None:
    tale.borrower(min_run_time=3600.0)
    tale.owner()
    tale.world.wait(3.0)
    explain(tale)


@story("explain: nobody is killed on this node")
def _(tale: Tale) -> None:
    tale.node(last_step="term")
    tale.world.ever_protected = True
    tale.borrower()
    tale.owner()
    tale.world.wait(3.0)
    explain(tale)


# ---- past the account ------------------------------------------------------------------------------


@story("a program without gpushare's library, counted")
def _(tale: Tale) -> None:
    a = start(tale.world, "train", "4Gi", "8Gi")
    tale.world.escape(tale.world.programs[a].job, "GPU-0", 3 * GIB)
    tale.story_of("unhooked")
    tale.told("Notify unhooked")


@story("a program without gpushare's library, on a node that only warns")
def _(tale: Tale) -> None:
    tale.node(on_breach="warn")
    a = start(tale.world, "train", "4Gi", "8Gi")
    tale.world.escape(tale.world.programs[a].job, "GPU-0", 3 * GIB)
    tale.told("Notify unhooked")


@story("a job above its limit, and stopped for it")
def _(tale: Tale) -> None:
    tale.node(on_breach="kill")
    a = start(tale.world, "train", "2Gi", "2Gi")
    tale.world.programs[a].contexts["GPU-0"] = mib(300) + 4 * GIB
    tale.world.wait(3.0)
    tale.story_of("breach", "kill")
    tale.told("Notify breach")


# ---- a budget that changes -------------------------------------------------------------------------


@story("a budget that cannot be")
def _(tale: Tale) -> None:
    a = start(tale.world, "train", "4Gi", "14Gi")
    job = tale.world.programs[a].job
    tale.world.send(BudgetChanged("0" * 16, limit=Quantity.parse("1Gi")))
    tale.told("BudgetRefused")
    start(tale.world, "serve", "8Gi", "8Gi")
    tale.world.send(BudgetChanged(job, request=Quantity.parse("8Gi")))
    tale.told("BudgetRefused")


@story("a limit below what is in use")
def _(tale: Tale) -> None:
    a = tale.borrower()
    tale.world.wait(1.0)
    tale.world.send(BudgetChanged(tale.world.programs[a].job, limit=Quantity.parse("5Gi")))
    tale.story_of("changed")
    tale.show(tale.heard.notes[-1])


@story("a limit that is more than the GPU has")
def _(tale: Tale) -> None:
    a = tale.borrower(size=GIB)
    tale.world.send(BudgetChanged(tale.world.programs[a].job, limit=Quantity.parse("20Gi")))
    tale.story_of("changed")
    tale.show(tale.heard.notes[-1])


# ---- GPUs that fall ill ----------------------------------------------------------------------------


@story("a GPU is degraded, sick, lost, and comes back")
def _(tale: Tale) -> None:
    world = tale.world
    start(world, "train", "4Gi", "8Gi")
    world.befall("GPU-0", health_issues.uncorrected(1))
    tale.told("Notify gpu_degraded")
    world.befall("GPU-0", health_issues.uncorrected(2), health_issues.rows_pending())
    world.befall("GPU-0", health_issues.uncorrected(2), health_issues.rows_failed())
    tale.told("Notify gpu_sick")
    world.befall("GPU-0", health_issues.lost())
    tale.told("Notify gpu_lost")
    world.befall("GPU-0", health_issues.reset_required())
    world.befall("GPU-0", health_issues.uncorrected(2))
    tale.told("Notify gpu_degraded")
    world.befall("GPU-0")
    tale.told("Notify gpu_ok")
    tale.story_of("gpu_degraded", "gpu_sick", "gpu_lost", "gpu_ok")


@story("errors of programs")
def _(tale: Tale) -> None:
    start(tale.world, "train", "4Gi", "8Gi")
    tale.world.xid("GPU-0", 31)
    tale.world.xid("GPU-0", 31)
    tale.world.xid("GPU-0", 14)
    tale.story_of("xid")


@story("a sick GPU lends nothing and takes no job")
def _(tale: Tale) -> None:
    world = tale.world
    a = start(world, "train", "4Gi", "12Gi")
    alone = world.submit(spec("alone", "4Gi", "8Gi", gpus=0))
    process = world.join(alone)
    world.xid("GPU-0", 95)
    world.allocate(a, "GPU-0", 6 * GIB)
    tale.told("Denied")
    world.attach(process, "GPU-0")
    tale.told("Denied")
    world.submit(spec("late", "1Gi", "1Gi"))
    tale.told("JobRefused")
    world.send(BudgetChanged(world.programs[a].job, request=Quantity.parse("6Gi")))
    tale.told("BudgetRefused")


@story("of two GPUs one is lost")
def _(tale: Tale) -> None:
    world = tale.node(2)
    a = start(world, "train", "4Gi", "12Gi", devices=("GPU-0",))
    world.befall("GPU-0", health_issues.lost())
    world.allocate(a, "GPU-0", GIB)
    tale.told("Denied")
    world.submit(spec("wide", "1Gi", "1Gi", gpus=2))
    tale.told("JobRefused")
    world.befall("GPU-1", health_issues.removed())
    world.submit(spec("late", "1Gi", "1Gi"))
    tale.told("JobRefused")


@story("all that can be wrong with a GPU")
def _(tale: Tale) -> None:
    found: list[HealthIssue] = [
        *(make() for make in (health_issues.lost, health_issues.removed, health_issues.reset_required)),
        health_issues.uncorrected(1),
        *(make() for make in (health_issues.rows_pending, health_issues.rows_failed, health_issues.pages_pending)),
        *(health_issues.recovery(action) for action in health_issues.RECOVERIES),
    ]
    for one in found:
        tale.show(f"GPU 0 is {one.condition}: {one.text}", f"  hint: {one.hint}")


# ---- the wrapper's last words ----------------------------------------------------------------------


@story("closing words")
def _(tale: Tale) -> None:
    tale.borrower()
    tale.owner()
    tale.world.wait(6.0)
    (kill,) = tale.world.killed
    at = time.mktime((2026, 3, 1, 14, 2, 11, 0, 0, -1))
    reclaimed = {**OPERATOR.facts(killed_facts(kill.reason)), "time": at}
    breach = {**reclaimed, "code": "breach", "reason": "static[4121] uses 3.0 GiB more of GPU 0 than the job's limit"}
    stuck = {**reclaimed, "code": "suspend_stuck", "reason": "its suspender has not answered in time"}
    outcome = {"exit_code": None, "signal": 9, "peak": {}, "refusals": 0, "duration": 60.0}
    killed = Ending(signal.SIGKILL, "python[4121]")
    for ending in (
        replace(killed, outcome={**outcome, "killed": reclaimed}),
        replace(killed, outcome={**outcome, "killed": {**reclaimed, "grace": 0.0, "owner": None, "owner_user": None}}),
        replace(killed, outcome={**outcome, "killed": breach}),
        replace(killed, outcome={**outcome, "killed": stuck}),
        replace(killed, killed_notice=OPERATOR.told(kill.reason).render()),
        replace(killed, by_kernel=True),
        killed,
    ):
        words = exit_message(ending)
        assert words is not None
        tale.show(words, "")
    assert exit_message(replace(killed, status=0)) is None, "nothing to say"
    assert exit_message(replace(killed, status=signal.SIGTERM)) is None, "it has said so itself"


# ---- the tests -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def heard() -> Iterator[Heard]:
    """All stories told; where each message was made is noted on the way."""
    known = Heard()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Reason, "__init__", _noting(Reason.__init__, known))
        for name in NOTERS:
            patch.setattr(Transaction, name, _noting(getattr(Transaction, name), known))
        for title, tell in STORIES:
            own = Heard(places=known.places)
            tale = Tale(own)
            tale.sections.append(Section(title, []))
            tell(tale)
            known.records += own.records
            known.others += own.others
            known.notes += ["\n".join([f"== {one.title} ==", *one.lines]) for one in tale.sections]
    yield known


def _noting(function: Callable[..., None], heard: Heard) -> Callable[..., None]:
    def note(*arguments: object, **named: object) -> None:
        caller = sys._getframe(1)
        heard.places.add((Path(caller.f_code.co_filename).name, caller.f_lineno))
        function(*arguments, **named)

    return note


def test_every_message_reads_as_it_did(heard: Heard) -> None:
    told = "\n\n".join(text.rstrip() for text in heard.notes) + "\n"
    if os.environ.get("GPUSHARE_TEST_UPDATE"):
        GOLDEN.write_text(told)
    changes = difflib.unified_diff(GOLDEN.read_text().splitlines(), told.splitlines(), "messages.txt", "now", n=2)
    assert not (difference := "\n".join(changes)), f"{difference}\nif so it should be: GPUSHARE_TEST_UPDATE=1"


def test_every_code_is_told(heard: Heard) -> None:
    told = {reason.code for _, reason in heard.others}
    told |= {Code(one.facts["code"]) for one in heard.records if "code" in one.facts}
    by_rules = {Code.POLICY, Code.NO_TURNS}  # asked before the core is
    assert set(reasons.Code) - told == by_rules


def test_every_record_is_told(heard: Heard) -> None:
    known = {f"gpu_{condition}" for condition in Condition}
    for _, call in _calls():
        if isinstance(call.func, ast.Attribute) and call.func.attr in NOTERS:
            event = call.args[1 if call.func.attr == "record_of_user" else 0]
            if isinstance(event, ast.Constant):
                known.add(str(event.value))
    assert len(known) > 30, "the sources are not read rightly"
    assert known - {one.event for one in heard.records} == set()


BY_THE_SHELL = {
    "asks.py": "said when the daemon itself has failed: tests/daemon",
    "lifecycle.py": "said when the submitter has gone: tests/daemon",
    "record_effects.py": "hands on what the core has recorded",
    "suspend_routes.py": "said when the kernel says that a process is stopped: tests/integration",
}


def test_every_place_that_makes_a_message_is_told(heard: Heard) -> None:
    untold = []
    for file, call in _calls():
        lines = range(call.lineno, (call.end_lineno or call.lineno) + 1)
        if file not in BY_THE_SHELL and not any((file, line) in heard.places for line in lines):
            untold.append(f"{file}:{call.lineno} {ast.unparse(call)[:80]}")
    assert not untold, "no story has these messages:\n" + "\n".join(untold)


def test_every_obstacle_is_told(heard: Heard) -> None:
    from gpushared.core.blockers import WAY_OUT

    in_vain = [reason.data["cause"] for _, reason in heard.others if reason.code is Code.CLAIM_TIMED_OUT]
    assert set(in_vain) == set(WAY_OUT)


def test_messages_have_their_shape(heard: Heard) -> None:
    """One line, no full stop, no capital; facts on one line each; no number without its unit."""
    for kind, reason in ((kind, OPERATOR.told(reason)) for kind, reason in heard.others):
        for line in (reason.message, *(text for _, text in reason.facts), reason.hint or "x"):
            assert line == line.strip(), (kind, line)
            assert line and "\n" not in line, (kind, line)
            assert not line.endswith("."), (kind, line)
            assert "None" not in line and "{" not in line, (kind, line)
    for record in heard.records:
        text = OPERATOR.words(record.text)
        assert text and "\n" not in text and not text.endswith("."), record


def test_without_attribution_the_messages_are_the_same() -> None:
    """Memory outside is then a difference of totals, said in the same words."""
    known = Heard()
    tale = Tale(known)
    start(tale.world, "train", "4Gi", "8Gi")
    tale.world.send(MemorySampled("GPU-0", 5 * GIB, None, dict.fromkeys(tale.world.programs, 0)))
    assert [one.text for one in known.records if one.event == "unmanaged"] == ["4.7 GiB of GPU 0 used outside gpushare"]


def _calls() -> list[tuple[str, ast.Call]]:
    """The calls in the daemon's sources that make a message, each with its file."""
    found = []
    for path in sorted(SOURCES.rglob("*.py")):
        if path.name == "transaction.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                if name == "Reason" or name in NOTERS:
                    found.append((path.name, node))
    return found
