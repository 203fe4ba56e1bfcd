"""What `gpushare queue` shows of jobs and queues, for a service that answers with what a test says."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from gpushare.cli import main, queue, queued

GIB = 2**30
NOW = 100_000.0


def asks(gpus=1, *, memory=None, share=None, least=1, most=None):
    return {"gpus": gpus, "memory": memory, "share": share, "least": least, "most": most}


def job(id, state, **more):
    base = {
        "id": id,
        "name": "train",
        "user": "ada",
        "queue": "vision",
        "state": state,
        "asks": [asks()],
        "submitted": NOW - 7200,
        "started": None,
        "ended": None,
        "tasks": [],
        "result": None,
        "reason": None,
        "evictions": 0,
    }
    return base | more


def runs(*gpus, evictions=0):
    return {"started": NOW - 75, "tasks": [{"gpus": list(some)} for some in gpus], "evictions": evictions}


JOBS = [
    job("1", "running", **runs([0])),
    job("2", "running", **runs([0, 1], [0, 1], [2]), asks=[asks(2, memory=4 * GIB, least=3)]),
    job("3", "running", **runs([1], evictions=1), asks=[asks(share=250_000)], name=None),
    job("4", "starting", **runs([1], evictions=2), asks=[asks(2, share=500_000), asks(least=2, most=4)]),
    job("5", "pending", **runs([1]), reason={"message": "it waits for 1 GPU"}, asks=[asks(memory=GIB)]),
    job("6", "pending", user="ben"),
    job("7", "held", reason={"message": "it is held"}),
    job("8", "ended", started=NOW - 60, ended=NOW - 30, result={"how": "failed", "exit": 3, "text": ""}),
]
QUEUES = [
    {
        "queue": {"name": "vision"},
        "allocated": 1_500_000,
        "share": {"share": 2_000_000, "demand": 12_345_000},
    },
    {"queue": {"name": "idle"}, "allocated": 0, "share": {"share": 0, "demand": 125_000}},
]


@pytest.fixture
def service(monkeypatch):
    """Of which the answers can be changed; it keeps what it was asked."""
    one = SimpleNamespace(found=JOBS, trouble=None, asked=[])

    def jobs(**wanted):
        one.asked.append(wanted)
        return one.found

    one.jobs, one.queues = jobs, lambda: {"queues": QUEUES}
    one.status = lambda: {"engine": "kubernetes", "trouble": one.trouble}
    monkeypatch.setattr(queued, "service", lambda: one)
    monkeypatch.setattr(queue.time, "time", lambda: NOW)
    return one


def shown(capsys, *words):
    assert main(["queue", *words]) == 0
    return capsys.readouterr()


def test_each_job_has_its_row(service, capsys):
    rows = [line.split(None, 5) for line in shown(capsys, "-a").out.splitlines()[1:]]
    assert [" ".join(" ".join(row).split()) for row in rows] == [
        "1 train ada vision running 1 1m15s GPU 0",
        "2 train ada vision running 3 x 2 x 4.0 GiB 1m15s GPU 0,1; GPU 2",
        "3 - ada vision running 0.25 1m15s GPU 1, stopped once before",
        "4 train ada vision starting 1 + 4 x 1 1m15s GPU 1, stopped 2 times before",
        "5 train ada vision pending 1.0 GiB 1m15s it waits for 1 GPU",
        "6 train ben vision pending 1 2h",
        "7 train ada vision held 1 2h it is held",
        "8 train ada vision ended 1 30s has failed after 30 s: exit status 3",
    ]


def test_jobs_that_have_ended_are_dim(service, capsys, monkeypatch):
    drawn = []
    monkeypatch.setattr(
        queue._output, "print_table", lambda _columns, rows, dim: drawn.extend(dim(n) for n, _ in enumerate(rows))
    )
    shown(capsys, "-a")
    assert drawn == [one["state"] == "ended" for one in JOBS] and set(drawn) == {True, False}


def test_an_engine_that_does_not_answer_is_told_to_those_who_wait(service, capsys):
    assert shown(capsys).err == ""
    service.trouble = "connection refused"
    assert shown(capsys).err == (
        "gpushare: nothing starts: the engine kubernetes does not answer: connection refused\n"
    )
    service.found = JOBS[:1]
    assert shown(capsys).err == "", "nobody waits"


def test_what_is_asked_of_the_service(service, capsys, monkeypatch):
    monkeypatch.setattr(queue.getpass, "getuser", lambda: "ada")
    for words, wanted in (
        ([], {"ended": False, "queue": None, "user": None}),
        (["-a", "-q", "vision", "-u", "ben"], {"ended": True, "queue": "vision", "user": "ben"}),
        (["-m"], {"ended": False, "queue": None, "user": "ada"}),
    ):
        shown(capsys, *words)
        assert service.asked[-1] == wanted


def test_for_programs(service, capsys):
    assert json.loads(shown(capsys, "--json").out) == {"schema": "gpushare.queue/1", "jobs": JOBS}
    lines = [json.loads(line) for line in shown(capsys, "-o", "jsonl").out.splitlines()]
    assert lines == [{"schema": "gpushare.queue/1", **one} for one in JOBS]
    assert json.loads(shown(capsys, "-s", "--json").out) == {"schema": "gpushare.queue.shares/1", "queues": QUEUES}
    lines = [json.loads(line) for line in shown(capsys, "-s", "-o", "jsonl").out.splitlines()]
    assert lines == [{"schema": "gpushare.queue.shares/1", **one} for one in QUEUES]


def test_the_queues(service, capsys):
    titles, *rows = shown(capsys, "-s").out.splitlines()
    assert titles.split("  ")[0] == "QUEUE"
    assert [row.split() for row in rows] == [["vision", "1.5", "2", "12.345"], ["idle", "0", "0", "0.125"]]


def test_no_jobs(service, capsys):
    service.found = []
    found = shown(capsys)
    assert (found.out, found.err) == ("", "no jobs; `gpushare queue -a` shows those that have ended\n")
    assert shown(capsys, "-a").err == "no jobs\n"
