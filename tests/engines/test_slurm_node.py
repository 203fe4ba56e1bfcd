"""What Prolog and Epilog leave on a node for each other."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace

import pytest

from gpushare.cluster.engines.slurm import node
from gpushare.errors import DaemonUnreachable, NoSuchJob

ENVIRON = {"SLURM_JOB_ID": "17", "SLURMD_NODENAME": "n0"}
BODY = json.dumps({"attempt": 2}).removesuffix("}")
KILLED = {"code": "reclaim"}


class Daemon:
    """Of the node: what is told to it, and what it answers."""

    def __init__(self) -> None:
        self.away = False
        self.ended: list[tuple[str, int]] = []
        self.outcome = {"killed": None}

    def client(self) -> Daemon:
        return self

    def displace(self, id: str, attempt: int) -> dict:
        if self.away:
            raise DaemonUnreachable("it is away")
        if (id, attempt) in self.ended:
            raise NoSuchJob("it is over")
        self.ended.append((id, attempt))
        return {"job": {"id": "feed", "outcome": None}}

    def job(self, id: str) -> dict:
        return {"id": id, "outcome": self.outcome}


@pytest.fixture
def daemon(monkeypatch):
    daemon = Daemon()
    monkeypatch.setattr(node, "locate", SimpleNamespace(find=lambda _: daemon))
    monkeypatch.setattr(node, "load_settings", lambda *_: None)
    monkeypatch.setattr(node, "AGAIN", 0.0)
    return daemon


def left(directory, name: str) -> None:
    number = name.partition(".")[0]
    (directory / name).write_text(f"/nowhere\nslurm/{number}\n{BODY}\n")


def test_the_daemon_is_told_by_a_later_epilog_if_it_is_away(daemon, tmp_path) -> None:
    left(tmp_path, "17.n0.place")
    daemon.away = True
    node.epilog(ENVIRON, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["17.n0.over"]
    daemon.away = False
    node.epilog({**ENVIRON, "SLURM_JOB_ID": "18"}, tmp_path)
    assert daemon.ended == [("slurm/17", 2)] and not list(tmp_path.iterdir())


def test_what_another_epilog_has_taken_is_left_to_it_while_it_lives(daemon, tmp_path) -> None:
    left(tmp_path, f"16.n0.over.{os.getppid()}")
    left(tmp_path, "15.n0.over.999999999")
    left(tmp_path, "14.n1.over")
    node.epilog(ENVIRON, tmp_path)
    assert daemon.ended == [("slurm/15", 2)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["14.n1.over", f"16.n0.over.{os.getppid()}"]


def test_an_epilog_does_not_fail_for_what_another_one_takes_first(daemon, tmp_path, monkeypatch) -> None:
    gone = [tmp_path / "16.n0.over"]
    monkeypatch.setattr(node.Path, "glob", lambda *_: gone)
    node.epilog(ENVIRON, tmp_path)
    assert daemon.ended == []


@pytest.mark.parametrize("killed", [None, KILLED])
def test_only_a_job_that_the_daemon_has_stopped_waits_again(daemon, tmp_path, monkeypatch, killed) -> None:
    left(tmp_path, "17.n0.place")
    daemon.outcome = {"killed": killed}
    again = []
    monkeypatch.setattr(node, "requeue", lambda _, *said: again.append(said))
    node.epilog(ENVIRON, tmp_path)
    assert again == ([] if killed is None else [("17", 2, KILLED)])
