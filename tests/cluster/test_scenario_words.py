"""Each check of a scenario, where it holds and where it fails, word for word. And what each action does."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushare.cluster import scenario
from gpushare.cluster.yaml_source import FileError

GIVEN = """
scenario: a title
given:
  policy: {grow_hold: 1s, retry_after: 7s, reserve_after: null}
  nodes:
    - {name: n, gpus: 2}
    - {name: m, gpus: 1}
  queues:
    - {name: a, quota: 2}
    - {name: b, quota: 1}
  jobs: [{name: old, queue: b, on: m}]
"""
FIRST = """
  - title: first
    when:
      - submit: {name: e, queue: a, ladder: [1.0, 0.5], duration: 100s}
      - submit: {name: j, queue: a, gpus: 0.5, duration: 50s}
      - submit: {name: w, queue: b, gpus: 2}
      - submit: {name: now, queue: b, gpus: 2, wait: false}
      - submit: {name: odd, queue: b, gpus: 2000}
"""


def failures(directory: Path, steps: str) -> list[str]:
    path = directory / "s.yaml"
    path.write_text(GIVEN + "steps:" + steps)
    return [f"{one.step} {one.message}" for one in scenario.run(scenario.read(path))[1]]


@pytest.mark.parametrize(
    ("check", "value", "said"),
    [
        ("held", "{a: 1.5, b: 1}", None),
        ("held", "{a: 2, b: 3}", ["held: a is 1.5, not 2", "held: b is 1, not 3"]),
        ("shares", "{a: 1.5, b: 1.5}", None),
        ("shares", "{a: 1}", ["shares: a is 1.5, not 1"]),
        ("whole_shares", "{a: 2, b: 1}", None),
        ("whole_shares", "{a: 1, b: 1}", ["whole_shares: a is 2, not 1"]),
        ("size", "{e: 1, j: 0.5, old: 1}", None),
        ("size", "{e: 0.5}", ["size: e is 1, not 0.5"]),
        ("idle", "0.5", None),
        ("idle", "1", ["idle: 0.5 idle, not 1"]),
        ("node_use", "[1.5, 1]", None),
        ("node_use", "[1, 1.5]", ["node_use: [1.5, 1], not [1, 1.5]"]),
        ("jobs_per_gpu", "[1, 1, 1]", None),
        ("jobs_per_gpu", "[2, 1]", ["jobs_per_gpu: [1, 1, 1], not [2, 1]"]),
        ("running", "[old, j, e]", None),
        ("running", "3", None),
        ("running", "{a: 2, b: 1, c: 0}", None),
        ("running", "[j, k, k]", ["running: e, j, old (e, old too; not k, k)"]),
        ("running", "[j, old]", ["running: e, j, old (e too)"]),
        ("running", "[e, j, old, x]", ["running: e, j, old (not x)"]),
        ("running", "2", ["running: 3, not 2: e, j, old"]),
        ("running", "{a: 1, b: 1}", ["running: 2 of a, not 1"]),
        ("queued", "[w]", None),
        ("starting", "[]", None),
        ("starting", "[x]", ["starting: none (not x)"]),
        ("starting", "1", ["starting: 0, not 1: none"]),
        ("started", "[e, j]", None),
        ("started", "[e]", ["started: e, j (j too)"]),
        ("evicted", "0", None),
        ("moved", "[]", None),
        ("shrunk", "1", ["shrunk: 0, not 1: none"]),
        ("grown", "[e]", ["grown: none (not e)"]),
        ("evicted_in_all", "0", None),
        ("moved_in_all", "{a: 1}", ["moved_in_all: 0 of a, not 1"]),
        ("reason", "{e: free}", None),
        ("reason", "{e: limit}", ["reason: e: free (there is room), not limit"]),
        ("reason", "{e: [there, room]}", None),
        ("reason", "{e: [roo, is]}", ["reason: e: 'there is room' does not say roo"]),
        ("refused", "{odd: 2000, now: free}", None),
        ("refused", "{odd: zzz}", None),
        ("refused", "{e: x}", ["refused: e was not refused"]),
        ("retry_after", "{now: 7s}", None),
        ("retry_after", "{now: 8s}", ["retry_after: now: 7.0 s, not 8 s"]),
        ("retry_after", "{e: 8s}", ["retry_after: e: None s, not 8 s"]),
        ("ran", "[e, j]", None),
        ("ran", "[w, e]", ["ran: w never started"]),
    ],
)
def test_what_a_check_says(tmp_path, check, value, said):
    found = failures(tmp_path, f"{FIRST}    then: {{{check}: {value}}}\n")
    if (check, value) == ("refused", "{odd: zzz}"):
        assert len(found) == 1 and found[0].startswith("1 refused: odd: ") and found[0].endswith(" does not say 'zzz'")
        return
    assert found == [f"1 {one}" for one in said or ()]


@pytest.mark.parametrize(
    ("check", "value", "words"), [("held", "{x: 1}", "no x here"), ("size", "{w: 1}", "no w here")]
)
def test_what_is_not_there_is_a_mistake(tmp_path, check, value, words):
    with pytest.raises(FileError, match=words) as caught:
        failures(tmp_path, f"{FIRST}    then: {{{check}: {value}}}\n")
    assert (caught.value.hint or "").startswith("there are: ")


def test_a_step_counts_what_happened_in_it_and_all_what_happened_before(tmp_path):
    steps = f"""{FIRST}
    then: {{started: [e, j]}}
  - when: [{{wait: 60s}}, {{submit: {{name: b1, queue: b, gpus: 0.25}}}}]
    then: {{started: [b1], running: [b1, e, old], refused: {{}}, ran: [e, j, b1], held: {{a: 1}}}}
  - title: third
    when: [{{at: 100s}}, {{withdraw: [b1, old]}}, {{wait: done}}]
    then: {{running: [w], ran: [w], started: [w]}}
  - when: {{end: w}}
    then: {{running: [], evicted_in_all: 0, idle: 3}}
"""
    assert failures(tmp_path, steps) == []


@pytest.mark.parametrize(
    ("when", "then"),
    [
        ("{lose: n}", "{idle: 0, running: [old]}"),
        ("[{lose: n}, {node: {name: n, gpus: 2}}]", "{running: [old, x], idle: 1}"),
        ("{break: {node: n, gpu: 0}}", "{idle: 0, running: [old, x]}"),
        ("[{break: {node: n, gpu: 0}}, {mend: {node: n, gpu: 0}}]", "{idle: 1, running: [old, x]}"),
        ("{node: {name: k, gpus: 4}}", "{idle: 5}"),
        ("{queue: {name: c, quota: 1}}", "{shares: {c: 0}}"),
        ("[{queue: {name: c}}, {remove: c}]", "{idle: 1}"),
        ("{queue: {name: a, limit: 2}}", "{held: {a: 1}}"),
        ("{change: {job: x, priority: 9}}", "{running: [old, x]}"),
        ("{end: [x, old]}", "{running: [], idle: 3}"),
        ("{withdraw: x}", "{running: [old]}"),
        ("{wait: 30s}", "{running: [old]}"),
        ("{at: 29s}", "{running: [old, x]}"),
    ],
)
def test_what_an_action_does(tmp_path, when, then):
    first = "\n  - when: {submit: {name: x, queue: a, duration: 30s}}\n"
    assert failures(tmp_path, f"{first}  - when: {when}\n    then: {then}\n") == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nodes: []\n", "is a cluster, not a scenario: nothing happens in it"),
        ("queues: []\n", "is a cluster, not a scenario: nothing happens in it"),
        ("given: {}\nother: 1\n", "unknown key 'other'"),
        ("given: []\n", "a cluster has `nodes:` and `queues:`"),
        ("given: {nodes: [{name: n, gpus: 1}, {name: n, gpus: 2}]}\n", "n stands twice"),
        ("given: {queues: [{name: q}, {name: q}]}\n", "q stands twice"),
        ("given: {}\nsteps: [{when: [{lose: n, end: j}]}]\n", "2 actions in one entry"),
        ("given: {}\nsteps: [{when: [{}]}]\n", "0 actions in one entry"),
        ("given: {}\nsteps: [{when: {wait: soon}}]\n", "cannot read 'soon'"),
        ("given: {}\nsteps: [{when: {at: soon}}]\n", "cannot read 'soon'"),
        ("given: {}\nsteps: [{when: {submit: {name: j}}}]\n", "queue is missing"),
        ("given: {}\nsteps: [{then: {hold: 1}}]\n", "unknown key 'hold'"),
        ("given: {}\nsteps: [{time: 1}]\n", "unknown key 'time'"),
        ("steps: []\n", "given is missing"),
        ("given: {}\nsteps: [{when: []}]\nthen: {}\n", "both `steps` and `when` at the top"),
    ],
)
def test_mistakes_are_found_before_anything_runs(tmp_path, text, words):
    path = tmp_path / "s.yaml"
    path.write_text(text)
    with pytest.raises(FileError) as caught:
        scenario.read(path)
    assert words in caught.value.message


def test_titles_and_a_course_without_steps(tmp_path):
    path = tmp_path / "name.yaml"
    path.write_text("about: x\ngiven: {nodes: [{name: n, gpus: 1}]}\nwhen: {lose: n}\nthen: {idle: 0}\n")
    read = scenario.read(path)
    assert (read.title, read.about, len(read.steps), read.steps[0].title) == ("name", "x", 1, "")
    assert scenario.run(read)[1] == []
    path.write_text("scenario: named\ngiven: {}\n")
    assert (scenario.read(path).title, scenario.read(path).steps) == ("named", ())


@pytest.mark.parametrize(("parent", "good"), [("top", True), (None, True), ("other", False)])
def test_a_queue_stays_below_its_parent(tmp_path, parent, good):
    path = tmp_path / "s.yaml"
    said = "" if parent is None else f", parent: {parent}"
    path.write_text(
        "given: {nodes: [{name: n, gpus: 1}], queues: [{name: top, queues: [{name: q, limit: 1}]}, {name: other}]}\n"
        f"when: {{queue: {{name: q, quota: 1{said}}}}}\n"
    )
    read = scenario.read(path)
    if good:
        queue = scenario.run(read)[0].allocator.queues["q"].queue
        assert (queue.quota, queue.limit, queue.parent) == (1_000_000, 1_000_000, "top"), "the limit stays"
        return
    with pytest.raises(FileError, match="queue q is below top, not below other") as caught:
        scenario.run(read)
    assert "remove it, and add it elsewhere" in (caught.value.hint or "")


def test_a_step_that_is_over_is_shown(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(GIVEN + "steps:" + FIRST + "  - when: []\n")
    seen: list[tuple[int, str]] = []
    scenario.run(scenario.read(path), on_step=lambda number, step, _: seen.append((number, step.title)))
    assert seen == [(1, "first"), (2, "")]
