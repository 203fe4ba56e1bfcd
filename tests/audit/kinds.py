"""The kinds of acts: which hardware, which jobs sit on it, and which blows fall."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from audit.program import Spec

MiB = 1 << 20
GiB = 1 << 30
UNIT = 2 * MiB
MEMORY = 16 * GiB
CAPACITY = MEMORY - max(MEMORY * 3 // 100, 256 * MiB)  # what all requests together may have: the settings' reserve
ALL_KINDS = ("linear", "linear", "linear", "pool", "vmm", "managed")
Random = random.Random


@dataclass
class Plan:
    """A job: its budget in bytes. `cap` is what its program takes at most: its request, or its limit if it borrows."""

    label: str
    request: int
    limit: int
    cap: int
    spec: Spec
    gpus: list[int] = field(default_factory=lambda: [0])
    options: list[str] = field(default_factory=list)
    lasts: float = 1e9


Seat = Callable[[Random], Plan]


@dataclass
class Plot:
    hardware: str
    seats: list[Seat]
    delays: list[float]
    rates: dict[str, float] = field(default_factory=dict)  # blows by second
    pause: tuple[float, float] = (0.05, 1.0)  # before the next job takes a seat
    daemon_stays: bool = False


@dataclass
class Kind:
    name: str
    about: str
    plot: Callable[[Random], Plot]
    weight: int = 1
    seconds: float = 45.0


def quantity(size: int) -> str:
    """Exactly, as the command line takes it."""
    if size == 0:
        return "none"
    return f"{size >> 20}Mi" if size % MiB == 0 else f"{size / 1000:.3f}K"


def hardware(rng: Random, gpus: int = 1, **fixed: str) -> str:
    settings = {
        "gpus": str(gpus),
        "memory": "16Gi",
        "context": rng.choice(("64Mi", "300Mi", "300Mi", "450Mi")),
        "teardown": rng.choice(("0", "0", "100ms", "400ms")),
    } | fixed
    latency = rng.choice(("", "", "cuMemAlloc_v2:50us;cuMemFree_v2:30us", "cuMemFree_v2:300us", "cuMemAlloc_v2:500us"))
    if latency:
        settings["latency"] = latency
    return ",".join(f"{key}={value}" for key, value in settings.items())


def evenly(count: int, rng: Random, until: float = 1.0) -> list[float]:
    return [rng.uniform(0, until) for _ in range(count)]


# -- jobs ------------------------------------------------------------------------------------------------------


def owner(
    request: int,
    rng: Random,
    gpu: int | list[int] = 0,
    limit: int | None = None,
    lasts: float = 1e9,
    label: str = "owner",
    **spec: Any,
) -> Plan:
    request -= request % UNIT
    limit = request if limit is None else limit
    settings = Spec(book="", seed="", **spec)
    gpus = gpu if isinstance(gpu, list) else [gpu]
    return Plan(label, request, max(limit, request), request, settings, gpus, lasts=lasts)


def borrower(
    rng: Random,
    gpu: int = 0,
    request: int = 0,
    limit: int = 14 * GiB,
    grace: str = "2s",
    manners: str = "ignore",
    lasts: float = 1e9,
    options: list[str] | None = None,
    **spec: Any,
) -> Plan:
    settings = Spec(book="", seed="", borrows=True, manners=manners, **spec)
    plan = Plan("borrower", request, limit, limit, settings, [gpu], lasts=lasts)
    plan.options = ["--grace", grace, *(options or [])]
    return plan


def any_owner(rng: Random, request: int, gpu: int | list[int]) -> Plan:
    """An owner with whatever its request has room for."""
    contexts = max(1, min(8, request // (640 * MiB)))
    processes = rng.choice((1, 1, 1, 2, rng.randint(1, contexts)))
    processes = min(processes, contexts)
    supervised = rng.random() < 0.4
    plan = owner(
        request,
        rng,
        gpu,
        limit=rng.choice((None, None, request + 1 * GiB, 15 * GiB)),
        lasts=rng.uniform(4, 40),
        processes=processes,
        threads=rng.choice((1, 1, 2, 4)),
        supervised=supervised,
        kinds=rng.choice((("linear",), ALL_KINDS)),
        idle=rng.choice((0.02, 0.2, 0.6)),
        vanish=rng.choice((0.0, 0.0, 2.0)) if supervised else 0.0,
    )
    plan.spec.resets = plan.spec.threads == 1 and rng.random() < 0.3
    if rng.random() < 0.1:
        plan.options.append("--no-lend")
    if plan.request == plan.limit:
        plan.label = "static"
    if isinstance(gpu, list):
        plan.spec.threads = max(plan.spec.threads, len(gpu))
        plan.spec.resets = False
    return plan


def any_borrower(rng: Random, gpu: int) -> Plan:
    return borrower(
        rng,
        gpu,
        request=rng.choice((0, 0, 512 * MiB, 768 * MiB)),
        limit=rng.choice((6 * GiB, 14 * GiB, 15 * GiB)),
        grace=rng.choice(("100ms", "500ms", "2s", "2s", "5s")),
        manners=rng.choice(("ignore", "ignore", "default", "leave", "free", "free", "trim")),
        lasts=rng.uniform(3, 30),
        threads=rng.choice((1, 1, 2)),
        processes=rng.choice((1, 1, 1, 2, 3)),
        kinds=rng.choice((("linear",), ("linear", "vmm", "managed"), ALL_KINDS)),
        options=[
            *rng.choice(([], [], ["--on-reclaim", "term,kill"], ["--on-reclaim", "kill"])),
            *rng.choice(([], ["--priority", "-5"], ["--priority", "100"])),
        ],
    )


def shares(rng: Random, count: int, total: int, least: int) -> list[int]:
    """`count` random parts of `total`, none below `least`, which together are as much as fits in whole units."""
    weights = [rng.random() + 0.2 for _ in range(count)]
    rest = total - count * least
    parts = [least + int(rest * weight / sum(weights)) // UNIT * UNIT for weight in weights]
    parts[0] += (total - sum(parts)) // UNIT * UNIT
    return parts


# -- kinds -----------------------------------------------------------------------------------------------------


def gentle(rng: Random) -> Plot:
    """One owner, and a borrower that frees when it is asked."""
    seats: list[Seat] = [
        lambda r: owner(4 * GiB, r, idle=0.2),
        lambda r: borrower(r, manners="free", grace="5s"),
    ]
    return Plot(hardware(rng, context="300Mi", teardown="0"), seats, [0.0, 0.3], daemon_stays=True)


def siege(rng: Random) -> Plot:
    """Two to four small owners that claim side by side, against one borrower that ignores SIGTERM."""
    owners = rng.randint(2, 4)
    seats: list[Seat] = [lambda r: owner(3 * GiB, r, idle=0.1, moods=("churn", "rush", "grab")) for _ in range(owners)]
    seats.append(borrower)
    return Plot(hardware(rng, context="300Mi", teardown="0"), seats, evenly(owners + 1, rng), pause=(0, 0.1))


def exact(rng: Random) -> Plot:
    """Owners whose requests are together all that can be requested, with borrowers in between."""
    owners = rng.choice((2, 2, 3))
    parts = shares(rng, owners, CAPACITY, 2 * GiB)
    kinds = rng.choice((("linear",), ALL_KINDS))

    def seat(part: int) -> Seat:
        return lambda r: owner(part, r, threads=r.choice((1, 2)), kinds=kinds, idle=0.5)

    seats = [seat(part) for part in parts]
    seats += [
        lambda r: borrower(r, limit=r.choice((8, 14)) * GiB, grace="1s", manners=r.choice(("ignore", "free")))
    ] * 2
    return Plot(hardware(rng), seats, evenly(len(seats), rng))


def processes(rng: Random) -> Plot:
    """Jobs of up to eight processes that claim side by side."""
    parts = shares(rng, rng.choice((1, 2, 2)), CAPACITY, 6 * GiB)

    def seat(part: int) -> Seat:
        return lambda r: owner(part, r, processes=r.randint(3, 8), threads=r.choice((1, 1, 2)), idle=0.3, lasts=20)

    seats: list[Seat] = [seat(part) for part in parts]
    seats.append(lambda r: borrower(r, grace="1s"))
    seats.append(lambda r: borrower(r, grace="1s", limit=6 * GiB, processes=2, manners="free"))
    return Plot(hardware(rng), seats, evenly(len(seats), rng), {"kill_process": 0.1})


def crowd(rng: Random) -> Plot:
    """Many small owners."""
    count = rng.randint(10, 20)

    def seat() -> Seat:
        return lambda r: owner(
            CAPACITY // count,
            r,
            limit=r.choice((None, 2 * GiB)),
            idle=0.3,
            lasts=r.uniform(5, 25),
            moods=("sawtooth", "burst"),
        )

    seats = [seat() for _ in range(count)]
    seats += [lambda r: borrower(r, grace="500ms", manners=r.choice(("ignore", "free", "default")))] * 2
    return Plot(hardware(rng, context=rng.choice(("64Mi", "300Mi"))), seats, evenly(len(seats), rng, 6))


def restarts(rng: Random) -> Plot:
    """Daemons that are killed while owners claim."""
    parts = shares(rng, rng.randint(2, 4), CAPACITY * 9 // 10, 2 * GiB)

    def seat(part: int) -> Seat:
        return lambda r: owner(part, r, threads=r.choice((1, 2)), idle=0.3)

    seats = [seat(part) for part in parts]
    seats.append(lambda r: borrower(r, grace=r.choice(("500ms", "2s", "6s"))))
    seats.append(lambda r: borrower(r, grace="2s", manners="free", limit=6 * GiB))
    return Plot(hardware(rng), seats, evenly(len(seats), rng), {"kill_daemon": 0.2})


def exits(rng: Random) -> Plot:
    """Processes that end, or are killed, while their claims wait; their siblings go on."""
    parts = shares(rng, 2, CAPACITY, 4 * GiB)

    def seat(part: int) -> Seat:
        return lambda r: owner(
            part,
            r,
            processes=r.randint(2, 5),
            threads=r.choice((1, 2)),
            supervised=True,
            vanish=r.choice((0.5, 2.0)),
            idle=0.2,
        )

    seats = [seat(part) for part in parts]
    seats += [lambda r: borrower(r, grace="1s")] * 2
    return Plot(hardware(rng), seats, evenly(len(seats), rng), {"kill_process": 0.8})


def young(rng: Random) -> Plot:
    """Programs that fill their request in their first second, while what a context takes is not measured yet."""

    def seat(part: int) -> Seat:
        return lambda r: owner(
            part,
            r,
            limit=r.choice((None, part + GiB, 15 * GiB)),
            lasts=r.uniform(0.5, 3),
            moods=("burst", "sawtooth"),
            idle=0.01,
        )

    seats = [seat(part) for part in shares(rng, 3, CAPACITY, 2 * GiB)]
    if rng.random() < 0.5:
        seats.append(lambda r: borrower(r, grace="500ms", lasts=3))
    return Plot(hardware(rng), seats, [0.0, 0.0, 0.0, 2.0][: len(seats)])


def beginners(rng: Random) -> Plot:
    """Jobs of a few processes and many threads that use up their request in their first seconds, between borrowers."""

    def seat(part: int) -> Seat:
        return lambda r: owner(
            part,
            r,
            limit=r.choice((None, None, part + GiB)),
            lasts=r.uniform(1, 4),
            processes=r.choice((2, 2, 3)),
            threads=r.choice((2, 4, 4)),
            kinds=r.choice((("linear",), ALL_KINDS)),
            idle=r.choice((0.02, 0.6)),
        )

    seats: list[Seat] = [seat(part) for part in shares(rng, 2, CAPACITY // 2, 3 * GiB)]
    seats += [lambda r: borrower(r, grace="500ms", lasts=r.uniform(2, 6), processes=r.choice((1, 2)))] * 2
    return Plot(hardware(rng), seats, [0.0, 0.1, 0.3, 0.9], pause=(0.05, 0.3))


def siblings(rng: Random) -> Plot:
    """One job alone, whose processes and threads share a budget that they use up."""
    part = rng.choice((3, 6, 12)) * GiB

    def seat(r: Random) -> Plan:
        settings = {"threads": r.choice((1, 2, 4)), "kinds": r.choice((("linear",), ALL_KINDS)), "lasts": 20}
        return owner(part, r, processes=r.randint(2, 5), limit=r.choice((None, part + GiB)), idle=0.05, **settings)

    return Plot(hardware(rng, context="300Mi"), [seat], [0.0])


def successors(rng: Random) -> Plot:
    """One job alone, whose processes end or are killed at any moment; others take their place and their memory."""
    part = rng.choice((4, 8)) * GiB

    def seat(r: Random) -> Plan:
        settings = {"threads": r.choice((1, 2)), "supervised": True, "vanish": 1.0, "idle": 0.05, "lasts": 20}
        return owner(part, r, processes=r.randint(2, 4), limit=r.choice((None, part + GiB)), **settings)

    return Plot(hardware(rng, context="300Mi"), [seat], [0.0], {"kill_process": 0.5})


def tuned(rng: Random) -> Plot:
    """Budgets that change while programs use them up."""
    seats: list[Seat] = [
        lambda r: borrower(r, manners="free", processes=r.choice((1, 2)), kinds=r.choice((("linear",), ALL_KINDS))),
        lambda r: borrower(r, manners="free", threads=2, request=512 * MiB),
        lambda r: owner(4 * GiB, r, limit=6 * GiB, kinds=r.choice((("linear",), ALL_KINDS))),
        lambda r: owner(3 * GiB, r, limit=15 * GiB, processes=2),
    ]
    return Plot(hardware(rng), seats, evenly(4, rng), {"set_limit": 1.5, "set_request": 0.7})


def mixed(rng: Random) -> Plot:
    """Everything at once, on two GPUs."""
    seats: list[Seat] = []
    both = rng.choice((0, 0, 2 * GiB))
    if both:
        seats.append(lambda r: any_owner(r, both, [0, 1]))
    for gpu in (0, 1):
        for part in shares(rng, rng.randint(1, 4), int((CAPACITY - both) * rng.uniform(0.8, 1.0)), GiB):
            seats.append(lambda r, part=part, gpu=gpu: any_owner(r, part, gpu))  # type: ignore[misc]
        for _ in range(rng.randint(1, 2)):
            seats.append(lambda r, gpu=gpu: any_borrower(r, gpu))  # type: ignore[misc]
    rates = {
        "kill_process": 0.15,
        "kill_main": 0.1,
        "kill_wrapper": 0.08,
        "kill_daemon": rng.choice((0.0, 0.05)),
        "stop": 0.1,
        "set_limit": 0.2,
        "set_request": 0.2,
        "reserve": 0.1,
    }
    return Plot(hardware(rng, 2), seats, evenly(len(seats), rng, 3), rates, (0.05, 2.0))


KINDS = {
    kind.name: kind
    for kind in (
        Kind("gentle", gentle.__doc__ or "", gentle, 0, 10),
        Kind("siege", siege.__doc__ or "", siege, 2),
        Kind("exact", exact.__doc__ or "", exact),
        Kind("processes", processes.__doc__ or "", processes),
        Kind("crowd", crowd.__doc__ or "", crowd),
        Kind("restarts", restarts.__doc__ or "", restarts),
        Kind("exits", exits.__doc__ or "", exits),
        Kind("young", young.__doc__ or "", young, 1, 20),
        Kind("beginners", beginners.__doc__ or "", beginners, 1, 30),
        Kind("siblings", siblings.__doc__ or "", siblings, 1, 25),
        Kind("successors", successors.__doc__ or "", successors, 1, 25),
        Kind("tuned", tuned.__doc__ or "", tuned, 1, 30),
        Kind("mixed", mixed.__doc__ or "", mixed, 4),
    )
}
