"""Whether a container that was named may still run: what is told of it at the next start, and what is cleared away."""

from __future__ import annotations

import os

import pytest

from gpushare import container_hook

GONE = 2**30  # no pid


@pytest.mark.parametrize(
    ("made", "there"),
    [
        ([], False),
        (["cgroup.controllers", "a/b/"], True),
        (["cgroup.controllers", "a/"], False),
        (["cgroup.controllers", "below/a/b/"], False),  # another cgroup with the same end
        (["memory/a/b/"], True),  # the first version: a tree for each resource
        (["cpu/a/", "memory/a/b/"], True),
        (["memory/a/"], False),
        (["a/b/", "memory/"], True),
    ],
)
def test_a_container_is_there_as_long_as_its_cgroup(made, there, monkeypatch, tmp_path):
    monkeypatch.setattr(container_hook, "CGROUPS", tmp_path)
    for one in made:
        if one.endswith("/"):
            (tmp_path / one).mkdir(parents=True, exist_ok=True)
        else:
            (tmp_path / one).touch()
    place = {"id": "container/x/1", "attempt": 1, "pids": [], "sessions": [], "cgroups": ["/a/b", "/c"]}
    assert container_hook._is_there(place) is there


@pytest.mark.parametrize(
    ("more", "there"),
    [
        ({"pids": [GONE]}, True),  # the daemon sees them, so they are there
        ({"sessions": [os.getpid()]}, True),
        ({"sessions": [GONE, os.getpid()]}, True),
        ({"sessions": [GONE]}, False),
        ({}, False),
    ],
)
def test_or_as_long_as_a_program_of_it(more, there, monkeypatch, tmp_path):
    monkeypatch.setattr(container_hook, "CGROUPS", tmp_path)
    place = {"id": "container/x/1", "attempt": 1, "pids": [], "sessions": [], "cgroups": [], **more}
    assert container_hook._is_there(place) is there
