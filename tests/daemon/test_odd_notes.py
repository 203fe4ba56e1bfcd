"""state.json with anything in it: the daemon starts, what is odd is left out and said, the rest is used."""

from __future__ import annotations

import copy
import json
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest
from daemon_harness import GIB, GPU, GPU2

from gpushare import job_spec
from gpushare.job_spec import JobSpec
from gpushare.quantity import MAX
from gpushare.reclaim_steps import ReclaimStep
from gpushared.core import persistence
from gpushared.core.node import NodeState
from gpushared.system.processes import start_time

JOB, OTHER, QUEUED = "00000000000000a1", "00000000000000a2", "00000000000000a3"
ODD: list[object] = [
    *(
        None,
        True,
        "x",
        "",
        -1,
        0,
        1.5,
        10**30,
        -(10**30),
        10**400,
        float("nan"),
        float("inf"),
        [],
        {},
        [1],
        ["x"],
        {"x": 1},
    ),
    *([[]], "9" * 5000, "\ud800", [None], {"kind": "none"}, 2**31, 2**64),
]


def spec(name: str, **more: object) -> dict[str, Any]:
    amount = {"kind": "bytes", "value": GIB, "text": "1Gi"}
    return {
        **{"name": name, "uid": os.getuid(), "user": "u", "command": ["c"], "request": amount, "limit": amount},
        **{"gpus": 1, "devices": None, "priority": 0, "grace": None, "lend": True, "min_run_time": 0.0},
        **{
            "on_reclaim": ["term", "kill"],
            "request_source": "",
            "limit_source": "",
            "reservation": "",
            "observe": False,
            "idle_release": 60.0,
        },
        **more,
    }


def sound() -> dict[str, Any]:
    """Two jobs, one that queues, two reservations: of this process, so that all of them live."""
    me, now = [os.getpid(), start_time(os.getpid())], time.monotonic()

    def job(id: str, name: str) -> dict[str, Any]:
        note = {"job": id, "spec": spec(name), "gpus": [GPU], "since": now - 100, "open": True, "saved": None}
        return {"wrapper": me, "main": None, "started": time.time() - 100, "note": note, "queued": None}

    queued = {"spec": spec("q", limit={"kind": "max", "value": 0, "text": "max"}), "patience": time.time() + 1000}
    reservations = [
        {"reservation": "r1", "spec": spec("r1"), "amounts": {GPU2: GIB}, "since": now - 50, "until": None},
        {"reservation": "r2", "spec": spec("r2"), "amounts": {GPU2: GIB}, "since": now - 50, "until": now + 500},
    ]
    return {
        "version": 2,
        "time": time.time(),
        "core": {"version": 2, "now": now, "overheads": {"Test GPU": 300 * 2**20}, "reservations": reservations},
        "jobs": {
            JOB: job(JOB, "one"),
            OTHER: job(OTHER, "two"),
            QUEUED: {"wrapper": me, "main": None, "started": time.time(), "note": None, "queued": queued},
        },
    }


def paths(value: object, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Of all that is in it, itself included."""
    found = [path]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found += paths(inner, (*path, key))
    return found


def with_one(state: Any, path: tuple[Any, ...], odd: object) -> Any:
    if not path:
        return odd
    changed = copy.deepcopy(state)
    at = changed
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = odd
    return changed


def without(state: Any, path: tuple[Any, ...]) -> Any:
    changed = copy.deepcopy(state)
    at = changed
    for key in path[:-1]:
        at = at[key]
    del at[path[-1]]
    return changed


def started_with(make_daemon, directory: Path, text: str) -> Any:
    for name in ("state.json", "state.bad"):
        (directory / name).unlink(missing_ok=True)
    (directory / "state.json").write_text(text)
    return make_daemon()


def names(daemon) -> set[str]:
    state = daemon.shell.core.state
    return {one.spec.name for one in daemon.shell.registry.live()} | {
        one.spec.name for one in state.reservations.values()
    }


EVERYTHING = {"one", "two", "q", "r1", "r2"}


def test_what_is_sound_is_all_used(make_daemon, directory):
    daemon = started_with(make_daemon, directory, json.dumps(sound()))
    assert names(daemon) == EVERYTHING
    assert not (directory / "state.bad").exists()
    core = daemon.shell.core
    assert core.state.overheads == {"Test GPU": 300 * 2**20}
    assert 99 < time.monotonic() - core.jobs[JOB].since < 110
    assert 490 < core.state.reservations["r2"].until - time.monotonic() < 501
    daemon.stop()


def test_one_of_a_later_version_is_read_as_far_as_it_is_understood(make_daemon, directory, caplog):
    later = sound() | {"version": 7, "more": {"x": 1}}
    later["core"] |= {"version": 7, "more": [1]}
    later["core"]["reservations"][0]["spec"] |= {"colour": "red"}
    later["jobs"][JOB]["note"] |= {"more": None}
    daemon = started_with(make_daemon, directory, json.dumps(later))
    assert names(daemon) == EVERYTHING
    assert any("another version" in one.getMessage() for one in caplog.records)


@pytest.mark.parametrize("where", ["started", "note", "spec", "reservation", "queued", "overheads"])
def test_the_odd_entry_is_left_out_and_the_rest_is_used(make_daemon, directory, caplog, where):
    path, left = {
        "started": (("jobs", JOB, "started"), EVERYTHING),
        "note": (("jobs", JOB, "note", "since"), EVERYTHING - {"one"}),
        "spec": (("jobs", JOB, "note", "spec", "priority"), EVERYTHING - {"one"}),
        "reservation": (("core", "reservations", 0, "amounts", GPU2), EVERYTHING - {"r1"}),
        "queued": (("jobs", QUEUED, "queued", "patience"), EVERYTHING - {"q"}),
        "overheads": (("core", "overheads", "Test GPU"), EVERYTHING),
    }[where]
    text = json.dumps(with_one(sound(), path, "x"))
    daemon = started_with(make_daemon, directory, text)
    assert names(daemon) == left
    if where != "started":
        assert (directory / "state.bad").read_text() == text, "it is kept: the next is written over it"
        assert (directory / "state.bad").stat().st_mode & 0o777 == 0o600
        assert any("makes no sense" in one.getMessage() for one in caplog.records)
    daemon.stop()


@pytest.mark.parametrize(
    "text", ["", "no", "[1]", "{}", '{"core": 1}', "[" * 100_000, '{"version": 9}', "\x00", "9" * 6000]
)
def test_what_is_none_of_ours_is_kept_aside(make_daemon, directory, text):
    daemon = started_with(make_daemon, directory, text)
    assert names(daemon) == set()
    assert (directory / "state.bad").read_text() == text
    daemon.stop()


def test_any_field_may_be_anything(make_daemon, directory):
    """A random part of all pairs of a place and an odd value; each place at least twice."""
    state, generator = sound(), random.Random(20261122)
    places = paths(state)
    assert len(places) > 100
    cases = [with_one(state, place, odd) for place in places for odd in generator.sample(ODD, 2)]
    cases += [without(state, place) for place in places if place]
    daemon = started_with(make_daemon, directory, json.dumps(state))
    shell = daemon.shell
    restored: list[int] = []

    def restore_each() -> None:
        """By the reader alone: a daemon for each would take minutes."""
        from gpushared.jobs.found_state import FoundState
        from gpushared.runtime.rebuild import rebuild
        from gpushared.runtime.recovery import read_jobs

        for case in cases:
            shell._state_file.path.write_text(json.dumps(case))
            found = FoundState(shell._state_file.path)
            jobs = [] if not found.state else list(found.jobs.values())
            core = {**found.state.get("core", {}), "jobs": [one["note"] for one in jobs if one.get("note") is not None]}
            read = [
                *persistence.restore(core, 0.0, found.odd),
                *persistence.restore_reservations(core, found.since, found.odd),
            ]
            restored.append(len(read))
            if len(restored) % 10 == 0:
                shell.registry.close()
                shell.registry._records.clear()
                shell.core_loop.core = NodeState(shell.core.policy)
                rebuild(shell.core_loop, shell.outside, read_jobs(shell.outside, found, set()))
                shell.core.validate()

    daemon.call(restore_each)
    assert len(restored) == len(cases) and max(restored) == 4 and min(restored) == 0
    assert sum(one >= 3 for one in restored) > 0.8 * len(restored), "one odd field costs one entry"
    assert shell.core_loop.errors == 0
    daemon.stop()


def test_every_field_of_a_job_is_declared():
    """None is forgotten when one is added: what OPTIONS lists is written down, read, shown and offered."""
    assert set(job_spec.OPTIONS) == set(JobSpec._fields)
    plain = job_spec.plain_options()
    assert all(name in JobSpec._field_defaults for name in plain), "a body need not name it"
    assert all(len(row) == len(job_spec.Option._fields) for row in plain.values())


@pytest.mark.parametrize("name", job_spec.OPTIONS)
def test_each_option_is_read_by_its_type(name):
    """A value of another type is odd, whatever the option."""
    one = JobSpec("n", 7, "u", ("a",), MAX, MAX)
    note = persistence.spec_to_note(one)
    with pytest.raises(persistence.OddNote):
        persistence.spec_from_note({**note, name: {"an": "object"}})
    nothing = JobSpec._field_defaults.get(name, MAX) is None
    if nothing:
        assert persistence.spec_from_note({**note, name: None}) == one
    else:
        with pytest.raises(persistence.OddNote):
            persistence.spec_from_note({**note, name: None})


def test_a_spec_is_read_as_it_was_written():
    from gpushare.quantity import Quantity

    one = JobSpec(
        *("n", 7, "u", ("a", "b"), Quantity.parse("25%"), Quantity.parse("max"), 2, ("x", "y"), -3, 1.5, False, 2.5),
        *((ReclaimStep.KILL,), "r", "l", "reserved", True),
    )
    assert persistence.spec_from_note(json.loads(json.dumps(persistence.spec_to_note(one)))) == one
    assert persistence.spec_from_note(persistence.spec_to_note(one)) == one, "and without JSON between"


@pytest.mark.parametrize(("value", "least", "most"), [(0, 0, 5), (5, 0, 5)])
def test_numbers_at_their_bounds(value, least, most):
    assert persistence.integer(value, least, most) == value
    for odd in (least - 1, most + 1, True, 1.0, "1"):
        with pytest.raises(persistence.OddNote):
            persistence.integer(odd, least, most)
