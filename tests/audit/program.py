"""What runs inside a job under audit: processes and threads that allocate and free at random, and note each result.

An allocation that keeps the whole job within its request must succeed; one that does not is noted with all that the
program knows. Nothing of gpushare is used, but for `on_pressure` in programs that give back when asked.

    python -m audit.program SPEC        SPEC is the JSON of a `Spec`
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from audit.book import DEAD, EMPTY, KINDS, Book, Flight
from audit.driver import OUT_OF_MEMORY, Driver

MiB = 1 << 20
UNIT = 2 * MiB  # what a driver hands out
POOL_UNIT = 32 * MiB  # what a pool grows by
MOST_LIVE = 300  # allocations of a thread


@dataclass
class Spec:
    book: str
    seed: str
    processes: int = 1
    threads: int = 1
    gpus: int = 1
    supervised: bool = False  # the main process opens no GPU, and starts its children again when they end
    borrows: bool = False  # fills up to its cap and stays there
    manners: str = "ignore"  # at SIGTERM: ignore, default, leave, free; or trim: give back by on_pressure
    kinds: tuple[str, ...] = ("linear",)
    moods: tuple[str, ...] = ("sawtooth", "burst", "churn", "rush", "grab")
    idle: float = 0.3  # seconds, at most, with nothing allocated
    vanish: float = 0.0  # mean seconds after which a supervised child ends, whatever it is doing
    resets: bool = False  # ends its context at times and opens it again


class Worker(threading.Thread):
    """One thread that allocates on one GPU."""

    def __init__(self, process: Process, number: int) -> None:
        super().__init__(daemon=True)
        self.process = process
        self.book = process.book
        self.spec = process.spec
        self.gpu = number % self.spec.gpus
        self.number = number
        self.random = random.Random(f"{self.spec.seed}/{self.book.place}/{number}/{time.monotonic_ns()}")
        self.holdings: list[tuple[str, int, int]] = []
        self.mine = threading.RLock()  # of the holdings: a trim frees from another thread
        # A pool must not take up a part of what another thread has just left in it: its figures would not be exact.
        self.kinds = [kind for kind in self.spec.kinds if kind != "pool" or number < self.spec.gpus]

    def run(self) -> None:
        try:
            self.process.driver.use(self.gpu)
            while not self.process.over:
                if self.spec.borrows:
                    self.borrow()
                else:
                    mood = self.random.choice(self.spec.moods)
                    until = time.monotonic() + self.random.uniform(0.3, 3)
                    while time.monotonic() < until and not self.process.over:
                        getattr(self, mood)()
                    if self.spec.resets and self.random.random() < 0.3:
                        self.reset()
        except Exception as error:
            self.book.write(what="broken", error=f"{type(error).__name__}: {error}")
            os._exit(99)

    # -- habits ------------------------------------------------------------------------------------------------

    def sawtooth(self) -> None:
        """Fill all that there is, hold it, free some or all, and leave others the time to borrow it."""
        while self.take(self.some_size()) and len(self.holdings) < MOST_LIVE:
            self.breathe()
        while self.random.random() < 0.7 and self.take(self.rest()):
            pass
        self.sleep(self.random.uniform(0, 0.3))
        self.drop_some(self.random.choice((0.0, 0.0, 0.3, 0.7)))
        self.sleep(self.random.uniform(0, self.spec.idle))

    def burst(self) -> None:
        """Everything in one allocation, at once and again."""
        self.take(self.rest())
        self.drop_some(0.0)
        self.sleep(self.random.choice((0.001, 0.01, self.spec.idle)))

    def churn(self) -> None:
        """Allocations and frees in any order."""
        for _ in range(self.random.randrange(10, 60)):
            if self.holdings and (self.random.random() < 0.45 or len(self.holdings) >= MOST_LIVE):
                self.drop(self.random.randrange(len(self.holdings)))
            elif not self.take(self.some_size()):
                self.drop_some(0.5)
            self.breathe()

    def rush(self) -> None:
        """As churn, without a pause, and with most of the budget taken."""
        for _ in range(self.random.randrange(50, 500)):
            if self.process.over:
                return
            size = self.random.choice((self.some_size(), self.random.randrange(UNIT, 1024 * MiB, UNIT)))
            if len(self.holdings) >= MOST_LIVE or self.random.random() < 0.3 or not self.take(size):
                for _ in range(min(len(self.holdings), self.random.randrange(1, 4))):
                    self.drop(self.random.randrange(len(self.holdings)))

    def grab(self) -> None:
        """Large parts of the budget, taken and given back."""
        for _ in range(self.random.randrange(10, 60)):
            rest = self.rest()
            if self.random.random() < 0.5 and rest > 0:
                self.take(self.random.randrange(UNIT, rest + 1, UNIT))
            elif self.holdings:
                self.drop(self.random.randrange(len(self.holdings)))
            self.breathe()

    def borrow(self) -> None:
        """Take what there is, up to the cap, in pieces that get smaller when they are refused."""
        if self.process.shedding:
            self.shed()
            return
        size = self.random.choice((64, 256, 512, 1024, 2048)) * MiB
        while size >= 16 * MiB and not self.process.shedding and not self.process.over:
            if not self.take(min(size, self.rest()) or size, probing=self.rest() == 0 and self.random.random() < 0.1):
                size //= 2
            self.breathe()
        if self.random.random() < 0.1:
            self.drop_some(self.random.random())
        self.sleep(self.random.uniform(0.001, 0.1))

    def shed(self) -> None:
        """It was asked: give back what is above the request, and stay there for a while."""
        with self.mine:
            while self.holdings and self.book.reserved(self.gpu) > self.book.header.request:
                self.drop(len(self.holdings) - 1)
        self.sleep(self.random.uniform(0.2, 1.5))
        self.process.shedding = False

    def reset(self) -> None:
        """End the context, which costs memory itself, and open it again."""
        self.drop_some(0.0)
        context = self.book.header.context
        self.book.returning(self.gpu, context)
        self.process.driver.shut(self.gpu)
        self.book.release(self.gpu, context)
        self.sleep(self.random.uniform(0, self.spec.idle))
        while not self.process.over and not self.process.open(self.gpu, self.number):
            self.sleep(0.05)
        if not self.process.over:
            self.process.driver.use(self.gpu)

    # -- steps -------------------------------------------------------------------------------------------------

    def rest(self) -> int:
        """What the job may still reserve, in whole units."""
        rest = int(self.book.header.cap) - self.book.reserved(self.gpu)
        return max(0, rest // UNIT * UNIT)

    def some_size(self) -> int:
        size = int(self.random.lognormvariate(4, 1.3)) * UNIT
        return max(UNIT, min(size, 2048 * MiB))

    def take(self, size: int, probing: bool = False) -> bool:
        """Allocate if the job may. `probing`: whether or not it may, to see that its limit holds."""
        if self.process.over:
            return False
        kind = self.random.choice(self.kinds)
        if kind == "pool":
            size = size // POOL_UNIT * POOL_UNIT
        if size == 0:
            return False
        most = 1 << 62 if probing else int(self.book.header.cap)
        driver = self.process.driver
        with self.process.call(kind, self.gpu, size, self.number, most) as call:
            if call.reserved:
                call.code, address = driver.take(kind, self.gpu, size)
        if call.granted:
            with self.mine:
                self.holdings.append((kind, address, size))
        return call.granted

    def drop(self, index: int) -> None:
        with self.mine:
            kind, address, size = self.holdings.pop(index)
        self.book.returning(self.gpu, size)
        self.process.driver.give(kind, address)
        self.book.release(self.gpu, size)

    def drop_some(self, share: float) -> None:
        """Free until `share` of the allocations are left."""
        with self.mine:
            keep = int(len(self.holdings) * share)
            self.random.shuffle(self.holdings)
            while len(self.holdings) > keep:
                self.drop(len(self.holdings) - 1)

    def breathe(self) -> None:
        if self.random.random() < 0.1:
            self.sleep(self.random.expovariate(500))

    def sleep(self, seconds: float) -> None:
        self.process.ended.wait(seconds) if seconds > 0.02 else time.sleep(seconds)


class Call:
    """One allocation, from its reservation in the book to the driver's answer, and its judgement."""

    def __init__(self, process: Process, kind: str, gpu: int, size: int, thread: int, most: int) -> None:
        self.process, self.kind, self.gpu, self.size, self.thread, self.most = process, kind, gpu, size, thread, most
        self.code = -1
        self.reserved = self.granted = False

    def __enter__(self) -> Call:
        book = self.process.book
        self.began = time.monotonic_ns()  # before it is in the book: another may reserve between the two
        within = book.reserve(self.gpu, self.size, self.most)
        self.reserved = within is not None
        if self.reserved:
            self.flight: Flight = book.slot.flights[self.thread]
            self.flight.size, self.flight.gpu, self.flight.kind = self.size, self.gpu, KINDS.index(self.kind)
            self.flight.within = bool(within)
            self.since = self.flight.since = time.monotonic_ns()
        return self

    def __exit__(self, *error: object) -> None:
        if not self.reserved:
            return
        until = time.monotonic_ns()
        book = self.process.book
        self.flight.since = 0
        # Another thread may have gone above the request meanwhile: then this was a race for a loan.
        within = bool(self.flight.within) and book.header.reserved_above[self.gpu] < self.began
        self.granted = self.code == 0
        number = KINDS.index(self.kind)
        facts = {
            "kind": self.kind,
            "gpu": self.gpu,
            "size": self.size,
            "since": self.since,
            "until": until,
            "thread": self.thread,
            "request": book.header.request,
        }
        if self.granted:
            holders = book.received(self.gpu, self.size)
            book.count(number, "within" if within else "loan", until - self.since)
            limit = book.header.limit
            if sum(holders.values()) > limit:
                book.write(what="over_limit", holders=holders, limit=limit, **facts)
            if within and until - self.since > self.process.patience:
                book.write(what="late", **facts)
            return
        own = book.slot.held[self.gpu]
        held = book.held(self.gpu)
        flying = sum(1 for _ in book.in_flight())
        reserved = book.reserved(self.gpu)
        book.release(self.gpu, self.size)
        book.count(number, "failed" if within else "no_loan", until - self.since)
        if within or self.code != OUT_OF_MEMORY:
            book.write(
                what="refused" if within else "odd_code",
                code=self.process.driver.name(self.code),
                own=own,
                held=held,
                reserved=reserved,
                in_flight=flying,
                **facts,
            )


class Process:
    """One process of the job that uses the GPU."""

    patience = 1_000_000_000  # nanoseconds after which an allocation that succeeded is noted by itself, too

    def __init__(self, book: Book, spec: Spec) -> None:
        self.book, self.spec = book, spec
        self.ended = threading.Event()
        self.shedding = False
        self.driver = Driver()
        self.workers: list[Worker] = []

    @property
    def over(self) -> bool:
        return self.ended.is_set()

    def call(self, kind: str, gpu: int, size: int, thread: int, most: int) -> Call:
        return Call(self, kind, gpu, size, thread, most)

    def open(self, gpu: int, thread: int = 0) -> bool:
        """Open a context, which takes memory as an allocation does."""
        header = self.book.header
        with self.call("context", gpu, int(header.context), thread, int(header.cap)) as call:
            if call.reserved:
                call.code = self.driver.open(gpu)
        return call.granted

    def run(self, orphaned: Callable[[], bool]) -> None:
        """Until the auditor says so; or `orphaned`, which is asked every 20 ms, does."""
        if self.spec.manners != "default":
            signal.signal(signal.SIGTERM, self.on_term)
        if self.spec.manners == "trim":
            self.listen()
        self.driver.start()
        for gpu in range(self.spec.gpus):
            while not self.open(gpu):
                if self.book.header.quit or orphaned():
                    return
                time.sleep(0.05)
        self.workers = [Worker(self, number) for number in range(self.spec.threads)]
        for worker in self.workers:
            worker.start()
        life = random.expovariate(1 / self.spec.vanish) + 0.1 if self.spec.vanish else float("inf")
        end = time.monotonic() + life
        while not self.book.header.quit and not orphaned():
            if time.monotonic() > end:
                os._exit(0)  # in the middle of whatever its threads do
            time.sleep(0.02)
        self.ended.set()
        if random.random() < 0.5:
            for worker in self.workers:
                worker.join(60)  # an allocation that waits may take as long as a claim
                if worker.gpu in self.driver.contexts:
                    self.driver.use(worker.gpu)
                    worker.drop_some(0.0)

    def on_term(self, *_: object) -> None:
        header = self.book.header
        header.terms += 1
        now = time.monotonic_ns()
        held = [self.book.held(gpu) for gpu in range(self.spec.gpus)]
        above = [now if amount > header.request else int(header.held_above[gpu]) for gpu, amount in enumerate(held)]
        flying = sum(1 for _ in self.book.in_flight())
        self.book.write(what="term", at=now, held=held, held_above=above, request=header.request, in_flight=flying)
        if self.spec.manners == "leave":
            os._exit(143)
        if self.spec.manners in ("free", "trim"):
            self.shedding = True

    def listen(self) -> None:
        import gpushare

        @gpushare.on_pressure  # type: ignore[untyped-decorator,unused-ignore]
        def give(pressure: gpushare.Pressure) -> int:
            given = 0
            for worker in self.workers:
                self.driver.use(worker.gpu)
                with worker.mine:
                    while worker.holdings and given < pressure.wanted:
                        given += worker.holdings[-1][2]
                        worker.drop(len(worker.holdings) - 1)
            return given


def start_child(book: Book, spec: Spec, place: int) -> int:
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            book.move(place)
            Process(book, spec).run(lambda: os.getppid() != parent)
            status = 0
        except BaseException as error:
            book.write(what="broken", error=f"{type(error).__name__}: {error}")
        os._exit(status)
    book.enter(place, child)
    return child


def supervise(book: Book, spec: Spec) -> None:
    """Children that are started again when they have ended and nothing is left of them on the GPU."""
    children: dict[int, int] = {}
    signal.signal(signal.SIGTERM, signal.SIG_IGN if spec.manners != "default" else signal.SIG_DFL)
    while True:
        note_ends(book, children)
        over = bool(book.header.quit)
        if over and not children:
            return
        for place in range(spec.processes):
            slot = book.contents.slots[place]
            if not over and slot.state == EMPTY and place not in children.values():
                children[start_child(book, spec, place)] = place
        time.sleep(0.02)


def note_ends(book: Book, children: dict[int, int]) -> bool:
    """Note which children have ended. False: who asks is nobody's child itself, and goes on."""
    for child, place in list(children.items()):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            book.write(what="ended", child=child, status=status, at=time.monotonic_ns())
            book.contents.slots[place].state = DEAD
            del children[child]
    return False


def main() -> None:
    spec = Spec(**json.loads(sys.argv[1]))
    random.seed(f"{spec.seed}/{os.getpid()}")
    book = Book(Path(spec.book))
    book.write(what="start")
    if spec.supervised:
        supervise(book, spec)
    else:
        children = {start_child(book, spec, place): place for place in range(1, spec.processes)}
        book.move(0)
        Process(book, spec).run(lambda: note_ends(book, children))
        while children:
            note_ends(book, children)
            time.sleep(0.02)
    book.header.finished = 1
    os._exit(0)


if __name__ == "__main__":
    main()
