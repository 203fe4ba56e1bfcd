"""What each test of a group runs and how long it takes: measured once, and kept until a test file changes.

It decides only the order of the tests, so a record of somewhat older sources will do: its lines are found again in the
sources of today.
"""

from __future__ import annotations

import ast
import difflib
import gzip
import hashlib
import json
import os
import subprocess
import tempfile
import textwrap
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from mutation import library
from mutation.groups import ROOT, Group
from mutation.scratch import Scratch

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpushare-mutants"
FORMAT = 2
"""Of a record: what an earlier sampler has kept in another one is measured again."""
PATIENCE = "600"
"""Seconds for one test: it is slower when it is measured, and other work may go on."""
INI = "[run]\nparallel = true\ndata_file = {output}/data\nsource = {sources}\ndisable_warnings = no-data-collected\n"


@dataclass
class Record:
    """Of one test file."""

    seconds: dict[str, float] = field(default_factory=dict)
    """By test; without those that are skipped."""
    lines: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    """By test and source."""
    sources: dict[str, list[str]] = field(default_factory=dict)
    """The lines of the sources as they were."""


class Records:
    """Of a group."""

    def __init__(self, group: Group, records: Sequence[Record]) -> None:
        self.group, self.records = group, records
        self.seconds = {test: seconds for one in records for test, seconds in one.seconds.items()}
        self._now: dict[str, list[str]] = {}
        self._loaded: dict[str, set[int]] = {}

    def order(self, path: str, lines: range) -> tuple[list[str], list[str]]:
        """The tests that run one of these lines, and the others of the group.

        Of each, file by file, as fixtures may be made for a whole file; the file that takes the least time first.
        """
        covering = {test for one in self.records for test in self._covering(one, path, lines)}
        return self._by_file(covering), self._by_file(self.seconds.keys() - covering)

    def _by_file(self, tests: Collection[str]) -> list[str]:
        files: dict[str, list[str]] = {}
        for test in self.seconds:
            if test in tests:
                files.setdefault(test.partition("::")[0], []).append(test)
        ranked = sorted(files.values(), key=lambda some: sum(self.seconds[test] for test in some))
        return [test for some in ranked for test in some]

    def _covering(self, record: Record, path: str, lines: range) -> list[str]:
        """Those of which it is measured, and those of which it is not and that may run anything.

        What a module does while it is imported, as to set a constant, runs in the first test of a process alone. The
        others use it, so all that run any line of the file count.
        """
        if path not in self._now:
            text = (ROOT / path).read_text()
            self._now[path] = text.splitlines()
            self._loaded[path] = while_imported(text) if path.endswith(".py") else set()
        wanted = _earlier(record.sources.get(path, []), self._now[path], lines)
        any_line = bool(self._loaded[path] & set(lines))
        return [
            test
            for test in record.seconds
            if self.group.pure
            or path in self.group.unmeasured.get(test.partition("::")[0], ())
            or (ran := set(record.lines[test].get(path, ()))) & (ran if any_line else wanted)
        ]


def while_imported(text: str) -> set[int]:
    """The lines of a Python source that are outside of all functions, defaults of parameters among them."""
    inside: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inside |= set(range(node.body[0].lineno, (node.end_lineno or 0) + 1))
    return set(range(1, text.count("\n") + 2)) - inside


def _earlier(before: list[str], now: list[str], lines: range) -> set[int]:
    """The numbers that these lines had before."""
    if before == now:
        return set(lines)
    found = set()
    for block in difflib.SequenceMatcher(None, before, now, autojunk=False).get_matching_blocks():
        found |= {line - block.b + block.a for line in lines if block.b < line <= block.b + block.size}
    return found


def of(group: Group, directory: Path, *, fresh: bool = False, jobs: int = 1) -> Records:
    """Read what is kept, and measure the rest in copies of the tree made in `directory`: so many files at a time."""
    files = test_files(group)
    kept = {} if fresh else {path: _kept(group, path) for path in files}
    missing = [path for path in files if kept.get(path) is None]
    if missing:
        print(f"{group.name}: measuring {len(missing)} test files", flush=True)
        left = iter(missing)
        with ThreadPoolExecutor(jobs) as pool:
            workers = [
                pool.submit(_measure_each, group, directory / f"{group.name[0]}m{number}", left, kept)
                for number in range(min(jobs, len(missing)))
            ]
            for worker in workers:
                worker.result()
    return Records(group, [record for path in files if (record := kept[path]) is not None])


def _measure_each(group: Group, copy: Path, left: Iterator[str], kept: dict[str, Record | None]) -> None:
    """A worker: measures and keeps one file after another, until none is left."""
    scratch = Scratch.make(copy)
    for path in left:  # the workers share it: a list's iterator gives each path once
        record = _measure(group, scratch, path)
        _write(_kept_at(group, path, scratch.root), record)
        kept[path] = record


def test_files(group: Group) -> list[str]:
    found = []
    for path in (ROOT / one for one in group.tests):
        found += [path] if path.is_file() else sorted(path.glob("test_*.py"))
    return [str(path.relative_to(ROOT)) for path in found]


def _kept_at(group: Group, path: str, root: Path = ROOT) -> Path:
    text = (root / path).read_bytes()
    digest = hashlib.sha256(path.encode() + text).hexdigest()[:16]
    return CACHE / f"{group.name}-{Path(path).stem}-{digest}-{FORMAT}.json.gz"


def _kept(group: Group, path: str) -> Record | None:
    try:
        with gzip.open(_kept_at(group, path), "rt") as file:
            return Record(**json.load(file))
    except FileNotFoundError:
        return None


def _write(path: Path, record: Record | None) -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        json.dump(vars(record), file)


def _measure(group: Group, scratch: Scratch, path: str) -> Record:
    sources = group.files(scratch.root)
    with tempfile.TemporaryDirectory() as made:
        output = Path(made)
        environment = scratch.environment(MUTATION_OUTPUT=made, PYTHONPATH=f"{scratch.root}/tests")
        if group.name == "library":
            environment["MUTATION_COUNTS"] = str(library.build_counting(scratch))
        elif group.pure:
            environment["MUTATION_PURE"] = "1"
        else:
            folders = sorted({str((scratch.root / one).parent) for one in sources})
            ini = INI.format(output=made, sources=",".join(folders))
            (output / "here.ini").write_text(ini)
            (output / "there.ini").write_text(ini + "context = ${MUTATION_TEST}\n")
        command = [scratch.python, "-m", "pytest", "-q", "-p", "mutation.recorder", "-p", "no:cacheprovider"]
        command += ["--timeout", PATIENCE, path]
        done = subprocess.run(command, cwd=scratch.root, env=environment, capture_output=True, text=True)
        try:
            tests: dict[str, dict[str, Any]] = json.loads((output / "tests.json").read_text())
        except FileNotFoundError:
            raise RuntimeError(f"{path} cannot be measured:\n{done.stdout}{done.stderr}") from None
        by_context = _read(group, scratch, output)
    record = Record()
    for name in sources:
        record.sources[name] = (scratch.root / name).read_text().splitlines()
    for test, facts in tests.items():
        if not facts["skipped"]:
            record.seconds[test] = round(facts["seconds"], 3)
            lines = by_context.get(facts["context"], {})
            record.lines[test] = {name: sorted(lines[name]) for name in sources if name in lines}
    print(f"  {path}: {sum(record.seconds.values()):.1f} s, {len(record.seconds)} tests", flush=True)
    if done.returncode == pytest.ExitCode.TESTS_FAILED:  # perhaps for being measured: trial.py asks again
        print(textwrap.indent(done.stdout[-600:], "    "), flush=True)
    scratch.clear()
    return record


def _read(group: Group, scratch: Scratch, output: Path) -> dict[str, dict[str, set[int]]]:
    """Which lines ran, by context and source. In a pure group nearly every test runs every line: not worth the time."""
    if group.name == "library":
        return library.read_counts(scratch, output)
    return {} if group.pure else _read_coverage(scratch, output)


def _read_coverage(scratch: Scratch, output: Path) -> dict[str, dict[str, set[int]]]:
    """By context and source."""
    import coverage

    combined = coverage.Coverage(config_file=False, data_file=str(output / "all"))
    # Named one by one: of a folder, coverage takes only files that are called like the combined one.
    files = [str(path) for path in output.glob("data.*")]
    if not files:  # all tests of the file are skipped
        return {}
    combined.combine(files, strict=True)
    data = combined.get_data()
    found: dict[str, dict[str, set[int]]] = {}
    for file in data.measured_files():
        name = str(Path(file).resolve().relative_to(scratch.root.resolve()))
        for line, contexts in data.contexts_by_lineno(file).items():
            for context in contexts:
                found.setdefault(context, {}).setdefault(name, set()).add(line)
    return found
