"""make mutants SAMPLE=100 SEED=1 [GROUP=core]: change one line at random, see whether a test notices, and so on."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from mutation import known, record, sample
from mutation.change import Change
from mutation.groups import BY_NAME, GROUPS, ROOT, Group
from mutation.trial import Bench, Outcome


def main() -> int:
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__)
    parser.add_argument("--sample", type=int, default=100, help="how many changes to try, in all groups together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--group", choices=[*BY_NAME], help="only this one")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many at the same time")
    parser.add_argument("--only", help="only changes of this source, or of its line: PATH[:LINE]; all of them")
    parser.add_argument("--measure", action="store_true", help="measure anew which test runs which line")
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:  # as in the background: the tests must not inherit that
            signal.signal(number, lambda *_: None)
    groups = [BY_NAME[options.group]] if options.group else list(GROUPS)
    bad = 0
    directory = Path(tempfile.mkdtemp(prefix="m-"))  # short, as names of sockets are
    directory.chmod(0o711)  # tests that act as another user reach their daemon in it
    try:
        for index, group in enumerate(groups):
            share = options.sample * (index + 1) // len(groups) - options.sample * index // len(groups)
            records = record.of(group, directory, fresh=options.measure, jobs=options.jobs)
            bad += Run(group, records, directory, options.seed, share, options.only).go(options.jobs)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return 1 if bad else 0


class Run:
    """One group's share of the sample."""

    def __init__(
        self, group: Group, records: record.Records, directory: Path, seed: int, count: int, only: str | None
    ) -> None:
        self.group, self.records, self.directory = group, records, directory
        self.seed, self.left, self.only = seed, count, only
        self.known = known.read()
        self.changes = self._chosen()
        self.lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.survivors: list[Outcome] = []

    def _chosen(self) -> Iterator[Change]:
        if self.only is None:
            return sample.draw(self.group, self.seed)
        path, _, line = self.only.partition(":")
        every = sample.every(self.group)
        chosen = [
            change
            for change in every
            if change.path == path and (not line or change.line_number(_source(change)) == int(line))
        ]
        self.left = len(chosen)
        return iter(chosen)

    def go(self, jobs: int) -> int:
        """How many survived that should not have."""
        with ThreadPoolExecutor(jobs) as pool:
            for done in [pool.submit(self._work, number) for number in range(jobs)]:
                done.result()
        ran = self.counts["noticed"] + self.counts["survived"] + self.counts["cannot matter"]
        matter = self.counts["noticed"] + self.counts["survived"]
        part = f" ({100 * self.counts['noticed'] / matter:.0f} % of those that can matter)" if matter else ""
        print(
            f"{self.group.name}, seed {self.seed}: {ran} run, {self.counts['noticed']} noticed{part}, "
            f"{self.counts['survived']} survived, {self.counts['cannot matter']} cannot matter",
            flush=True,
        )
        for outcome in sorted(self.survivors, key=lambda one: (one.change.path, one.change.start)):
            self._tell(outcome)
        return len(self.survivors)

    def _next(self) -> Change | None:
        with self.lock:
            if self.left <= 0:
                return None
            self.left -= 1
            return next(self.changes, None)

    def _work(self, number: int) -> None:
        bench = None
        while (change := self._next()) is not None:
            if any(one.is_about(change, _source(change)) for one in self.known):
                self._count(Outcome(change, "cannot matter"))
                continue
            if bench is None:
                bench = Bench(self.group, self.records, self.directory / f"{self.group.name[0]}{number}")
            self._count(bench.run(change))

    def _count(self, outcome: Outcome) -> None:
        change = outcome.change
        with self.lock:
            self.counts[outcome.verdict] += 1
            if outcome.verdict in ("no program", "same code"):
                self.left += self.only is None  # another one instead
                return
            if outcome.verdict == "survived":
                self.survivors.append(outcome)
            place = f"{change.path}:{change.line_number(_source(change))}"
            print(f"  {outcome.verdict:<14} {place} {change.operator}  {outcome.by}", flush=True)

    def _tell(self, outcome: Outcome) -> None:
        change = outcome.change
        place = f"{change.path}:{change.line_number(_source(change))}"
        print(f"\nsurvived {outcome.tests} tests ({change.operator}):")
        print(change.diff(_source(change)), end="")
        print(f"again: make mutants GROUP={self.group.name} ONLY={place}", flush=True)


@cache
def _read(path: str) -> bytes:
    """As it was at first: the checkout may be edited meanwhile, the copies are not."""
    return (ROOT / path).read_bytes()


def _source(change: Change) -> bytes:
    return _read(change.path)


if __name__ == "__main__":
    sys.exit(main())
