"""`gpushare cluster submit`: its options as keys of a file, names that it makes up, what it tells of answers."""

from __future__ import annotations

import json
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from gpushare.cli import cluster_submit as submit
from gpushare.cli import main
from gpushare.cluster.model import Code, Job, Queue, Reason, Refuse, Selector, Tasks
from gpushare.errors import UsageError

GIB = 2**30
OPTIONS = {
    **dict.fromkeys(("name", "ladder", *submit.SUBMIT_OPTIONS)),
    **dict.fromkeys(("pool", "type_", "node", "label"), ()),
    **dict.fromkeys(("not_preemptible", "no_backfill", "movable", "no_wait"), False),
    "queue": "q",
}
USUAL = {"queue": "q", "name": None, "preemptible": True, "backfill": True, "movable": False, "wait": True}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, {}),
        ({"name": "j", "gpus": "2", "min": "1"}, {"name": "j", "gpus": "2", "min": "1"}),
        ({"ladder": "1.0, 0.7,0.4"}, {"ladder": ["1.0", "0.7", "0.4"]}),
        ({"pool": ("p",), "type_": ("a", "b"), "node": ("n",)}, {"pool": ["p"], "type": ["a", "b"], "node": ["n"]}),
        ({"label": ("rack=r1", "a=b=c", "e=")}, {"labels": {"rack": "r1", "a": "b=c", "e": ""}}),
        ({"not_preemptible": True}, {"preemptible": False}),
        ({"no_backfill": True}, {"backfill": False}),
        ({"movable": True}, {"movable": True}),
        ({"no_wait": True}, {"wait": False}),
        *(({name: "x"}, {name: "x"}) for name in submit.SUBMIT_OPTIONS),
    ],
)
def test_options_are_the_keys_of_a_file(options, words):
    assert submit._words({**OPTIONS, **options}) == {**USUAL, **words}


@pytest.mark.parametrize("label", ["rack", "=r1", "="])
def test_a_label_needs_a_name_and_a_value(label):
    with pytest.raises(UsageError, match=f"--label a=b has no value|--label {label} has no value") as caught:
        submit._words({**OPTIONS, "label": ("a=b", label)})
    assert caught.value.hint == "write --label KEY=VALUE"


def cluster(*jobs: str, queues: Any = ("q",)) -> Any:
    views = {name: SimpleNamespace(job=Job(name, name.rpartition("-")[0])) for name in jobs}
    parents = queues if isinstance(queues, dict) else dict.fromkeys(queues)
    known = {name: SimpleNamespace(queue=Queue(name, parent)) for name, parent in parents.items()}
    return SimpleNamespace(jobs=views, queues=known)


@pytest.mark.parametrize(
    ("jobs", "name"),
    [
        ((), "q-1"),
        (("q-1",), "q-2"),
        (("q-2",), "q-3"),
        (("other-1",), "q-1"),
        (("q-2", "q-3"), "q-4"),
        (("q-5",), "q-2"),
    ],
)
def test_a_name_that_nobody_has(jobs, name):
    assert submit._new_name("q", cluster(*jobs)) == name


def test_a_job_of_options():
    options = {**OPTIONS, "memory": "4Gi", "tasks": "3", "min": "2", "priority": "7", "pool": ("p",), "label": ("a=b",)}
    made = submit._from_options(options, cluster("q-1"))
    where = Selector(pools=("p",), labels=(("a", "b"),))
    assert made == Job("q-2", "q", (Tasks(2, 3, memory=4 * GIB),), priority=7, selector=where)
    with pytest.raises(UsageError, match=r"--min-runtime: cannot read 'soon'"):
        submit._from_options({**OPTIONS, "min_runtime": "soon"}, cluster())
    with pytest.raises(UsageError, match=r"--pool: "):
        submit._from_options({**OPTIONS, "pool": ("a b",)}, cluster())


def test_without_a_queue_those_that_take_jobs_are_named():
    with pytest.raises(UsageError, match="no queue is named") as caught:
        submit._from_options(
            {**OPTIONS, "queue": None}, cluster(queues={"lab": None, "a": "lab", "b": "lab", "c": None})
        )
    assert caught.value.hint == "name a queue with --queue: a, b, c"
    with pytest.raises(UsageError) as many:
        submit._from_options({**OPTIONS, "queue": ""}, cluster(queues=[f"q{number}" for number in range(9)]))
    assert many.value.hint == f"name a queue with --queue: {', '.join(f'q{number}' for number in range(8))}"


# ---- files ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "- {name: j, queue: q}\n",
        "jobs: [{name: j, queue: q}]\n",
        "jobs: {name: j, queue: q}\n",
        "{name: j, queue: q}\n",
    ],
)
def test_jobs_of_a_file_with_or_without_the_word(tmp_path, text):
    file = tmp_path / "jobs.yaml"
    file.write_text(text)
    assert submit._from_file(file, {"name": None, "no_wait": False, "label": ()}) == [Job("j", "q")]


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("- {name: j, queue: q}", {"gpus": "1"}, "both a file and --gpus"),
        ("- {name: j, queue: q}", {"type_": ("a",)}, "both a file and --type"),
        ("- {name: j, queue: q}", {"no_wait": True}, "both a file and --no-wait"),
        ("jobs: []\nnodes: []", {}, "unknown key 'nodes'"),
        ("- {name: j, queue: q, at: 5s}", {}, "`at`, `every` and `duration` belong in simulations"),
        ("- {name: j, queue: q, duration: 5s}", {}, "`at`, `every` and `duration` belong in simulations"),
        ("- {name: j, queue: q, duration: 0s}", {}, "`at`, `every` and `duration` belong in simulations"),
    ],
)
def test_files_that_are_refused(tmp_path, text, options, words):
    file = tmp_path / "jobs.yaml"
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        submit._from_file(file, options)
    assert words in caught.value.message


# ---- what is told -----------------------------------------------------------------------------------------


class Store:
    """A cluster that decides what a test says."""

    def __init__(self, *actions: Any, never: Any = ()) -> None:
        self.policy = None
        self.asked: list[Any] = []
        self.allocator = SimpleNamespace(
            jobs={},
            queues={"q": SimpleNamespace(queue=Queue("q"))},
            never=lambda jobs: {one.id: never for one in jobs} if never else {},
            what_if=lambda events: self.asked.append("what if") or SimpleNamespace(actions=actions),
        )
        self._actions = actions

    def append(self, events: Any, now: float) -> Any:
        self.asked.append([event.job.id for event in events])
        return self._actions


@pytest.fixture
def told(monkeypatch, capsys):
    def told(store: Store, *words: str) -> tuple[int, str, str]:
        @contextmanager
        def opened(path: Any, *, read_only: bool = True) -> Any:
            store.asked.append(read_only)
            yield store

        monkeypatch.setattr(submit, "opened", opened)
        code = main(["cluster", "submit", "-q", "q", *words])
        return code, *capsys.readouterr()

    return told


def refusal(code: Code = Code.NO_SPACE) -> Refuse:
    reason: Any = SimpleNamespace(code=code, message="no room", data={})
    return Refuse("q-1", 3.0, reason)


@pytest.mark.parametrize("words", [[], ["--dry-run"]])
def test_a_dry_run_only_asks(told, words):
    store = Store()
    assert told(store, *words) == (0, "", "")
    assert store.asked == ([True, "what if"] if words else [False, ["q-1"]])


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        (Code.NO_SPACE, "try again in 3 s, or leave --no-wait out: then it is queued"),
        (Code.NO_NODE, "ask for less, or for other nodes, or leave --no-wait out: then it is queued"),
    ],
)
def test_a_job_that_is_refused(told, monkeypatch, code, hint):
    monkeypatch.setattr(submit.views, "print_actions", lambda actions: None)
    status, _, err = told(Store(refusal(code)), "--no-wait")
    assert status == 1 and err == f"gpushare: q-1 was refused: no room\n\nhint: {hint}\n"


def test_as_json(told):
    code, out, err = told(Store(never=Reason(Code.WITHDRAWN)), "--name", "j", "--json", "--dry-run")
    found = json.loads(out)
    assert code == 0 and found["jobs"] == ["j"] and found["dry_run"] is True and found["actions"] == []
    assert list(found["never"]) == ["j"] and "j can never start here" in err


def test_a_name_that_was_given_is_not_changed_and_one_that_was_made_up_is(told, monkeypatch):
    names = iter(["q-1", "q-2", "q-3"])
    monkeypatch.setattr(submit, "_new_name", lambda queue, allocator: next(names))
    store, left = Store(), [UsageError("twice", code="duplicate"), UsageError("twice", code="duplicate")]
    append = store.append

    def taken(events: Any, now: float) -> Any:
        found = append(events, now)
        if left:
            raise left.pop()
        return found

    store.append = taken  # type: ignore[method-assign]
    assert told(store)[0] == 0 and store.asked == [False, ["q-1"], ["q-2"], ["q-3"]]
    left.append(UsageError("twice", code="duplicate"))
    assert told(store, "--name", "j")[0] == 2
    left[:] = [UsageError("odd", code="other")]
    names = iter(["q-1"])
    assert told(store)[0] == 2
