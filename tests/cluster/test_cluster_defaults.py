"""What holds of the cluster's nouns where nothing is said, and how long the loop waits for an engine."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import math
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import gpushare.cluster
import gpushare.cluster.engines
from gpushare.cluster.model import Policy, Tasks
from gpushare.quantity import parse_duration

ROOT = Path(__file__).resolve().parents[2]

SAID: dict[tuple[str, str], object] = {
    ("Context", "max_grace"): math.inf,
    ("Job", "backfill"): True,
    ("Job", "preemptible"): True,
    ("Job", "priority"): 50,
    ("Job", "tasks"): (Tasks(),),
    ("Job", "wait"): True,
    ("JobRestored", "attempt"): 1,
    ("KeptNode", "alive"): True,
    ("Node", "memory"): 80 * 2**30,
    ("Node", "pool"): "default",
    ("NodeView", "alive"): True,
    ("Policy", "back_off"): 10.0,
    ("Policy", "consolidate"): True,
    ("Policy", "endings"): "instant",
    ("Policy", "grow_hold"): 60.0,
    ("Policy", "patience"): 24 * 3600.0,
    ("Policy", "protect"): 2 * 3600.0,
    ("Policy", "reserve_after"): 600.0,
    ("Policy", "retry_after"): 3.0,
    ("Policy", "search_width"): 64,
    ("Policy", "start_tries"): 3,
    ("Record", "requeue"): True,
    ("Recording", "_every"): 1,
    ("Refused", "retry_after"): 60.0,
    ("SeenNode", "state"): "ready",
    ("Settings", "annotate_every"): 10.0,
    ("Settings", "first_retry"): 1.0,
    ("Settings", "grace"): 30.0,
    ("Settings", "last_retry"): 64.0,
    ("Settings", "start_within"): 120.0,
    ("Settings", "stop_within"): 60.0,
    ("Snapshot", "tidy_at"): 64,
    ("StopRefused", "retry_after"): 60.0,
    ("Tasks", "gpus"): 1,
    ("Tasks", "least"): 1,
    ("_Node", "state"): "ready",
}
"""The exceptions: docs/cluster.md and docs/service.md promise these numbers."""


def defaults() -> Iterator[tuple[tuple[str, str], object]]:
    """Of each field that has one; a part that is an object of ours has its own."""
    for package in (gpushare.cluster, gpushare.cluster.engines):
        for found in pkgutil.iter_modules(package.__path__):
            module = importlib.import_module(f"{package.__name__}.{found.name}") if not found.ispkg else package
            for name, kind in vars(module).items():
                if not inspect.isclass(kind) or kind.__module__ != module.__name__:
                    continue
                for field in dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ():
                    made = field.default_factory
                    value = field.default if made is dataclasses.MISSING else made()
                    if value is not dataclasses.MISSING and not dataclasses.is_dataclass(value):
                        yield (name, field.name), value
                for field_name, value in getattr(kind, "_field_defaults", {}).items():
                    yield (name, field_name), value


def test_what_is_not_said_is_nothing() -> None:
    found = dict(defaults())
    assert len(found) > 180
    assert {place: value for place, value in found.items() if value or value == -1} == SAID


def test_the_numbers_of_the_policy_are_those_that_administrators_read() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", (ROOT / "docs" / "cluster.md").read_text(), re.MULTILINE)
    said = {name: re.search(r"\((\d+[smh]?)[;)]", text) for name, text in rows}
    told = {
        name: parse_duration(found[1]) if found[1][-1].isalpha() else int(found[1])
        for name, found in said.items()
        if found is not None and name in {one.name for one in dataclasses.fields(Policy)}
    }
    assert len(told) >= 6
    assert told == {name: getattr(Policy(), name) for name in told}
