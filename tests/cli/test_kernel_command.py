"""`gpushare kernel`: where kernels go, with which options they start, and what is listed of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from gpushare import kernelspec
from gpushare.cli import kernel


@pytest.fixture
def place(tmp_path, environ, monkeypatch):
    """`--prefix` of a test; no kernel of this machine is in the way."""
    monkeypatch.setattr(kernelspec, "SYSTEM_DATA", ())
    monkeypatch.setattr(kernelspec.sys, "prefix", str(tmp_path / "none"))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setattr(kernel.importlib.util, "find_spec", lambda name: object())
    return tmp_path / "at"


def made(place: Path, name: str = "gpushare") -> dict[str, Any]:
    return json.loads((place / "share" / "jupyter" / "kernels" / name / "kernel.json").read_text())


@pytest.mark.parametrize(
    ("words", "options", "budget"),
    [
        ([], [], "request none, no limit"),
        (["--limit", "8Gi"], ["--limit", "8Gi"], "limit 8Gi"),
        (["--request", "4Gi", "--limit", "8Gi"], ["--request", "4Gi", "--limit", "8Gi"], "request 4Gi, limit 8Gi"),
        (["--request", "8Gi", "--limit", "8Gi"], ["--request", "8Gi", "--limit", "8Gi"], "limit 8Gi"),
        (["--request", "4Gi"], ["--request", "4Gi"], "limit 4Gi"),
        (["--limit", "8Gi", "--gpus", "2"], ["--limit", "8Gi", "--gpus", "2"], "limit 8Gi on each of 2"),
        (["--limit", "8Gi", "--gpus", "1"], ["--limit", "8Gi"], "limit 8Gi"),
        (["--limit", "8Gi", "--no-lend"], ["--limit", "8Gi", "--no-lend"], "limit 8Gi"),
        (["--limit", "8Gi", "--priority", "3"], ["--limit", "8Gi", "--priority", "3"], "limit 8Gi"),
        (
            ["--visible", "request", "--driver", "sim"],
            ["--visible", "request", "--driver", "sim"],
            "request none, no limit",
        ),
    ],
)
def test_a_kernel_starts_with_these_options(gpushare, place, words, options, budget):
    code, out, err = gpushare("kernel", "install", "--prefix", str(place), *words)
    assert (code, err.count("another kernel")) == (0, 0), err
    content = made(place)
    line = content["argv"]
    assert line[: len(kernelspec.WRAPPER)] == list(kernelspec.WRAPPER)
    start, end = line.index("--name"), line.index("--")
    assert line[start : start + 2] == ["--name", "gpushare"]
    found = line[start + 2 : end]
    assert sorted(found) == sorted(options)
    assert content["metadata"]["gpushare"]["budget"] == budget
    assert content["display_name"].endswith(f"[GPU: {budget}]")
    assert out.splitlines()[0] == f"installed gpushare: {content['display_name']}"
    assert out.splitlines()[1].endswith("share/jupyter/kernels/gpushare")


def test_another_one_of_that_name_is_replaced(gpushare, place):
    for begins in ("installed", "replaced"):
        code, out, _ = gpushare(
            "kernel", "install", "--prefix", str(place), "--name", "Mine", "--display-name", "My own"
        )
        assert code == 0 and out.splitlines()[0] == f"{begins} mine: My own"
    assert made(place, "mine")["display_name"] == "My own"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--limit", "8"], "--limit"),
        (["--priority", "x"], "--priority"),
        (["--grace", "x"], "--grace"),
        (["--visible", "x"], "--visible"),
        (["--driver", "x"], "--driver"),
        (["--name", "a b"], "cannot be a kernel's name"),
        (["--gpus", "0"], "--gpus"),
        (["--base", "none"], "there is no kernel none"),
    ],
)
def test_what_no_start_could_read_is_refused_now(gpushare, place, words, said):
    code, out, err = gpushare("kernel", "install", "--prefix", str(place), *words)
    assert (code, out) == (2, "") and said in err and not place.exists()


def test_the_environment_of_now_is_not_the_kernels(gpushare, place, monkeypatch):
    monkeypatch.setenv("GPUSHARE_LIMIT", "odd")
    assert gpushare("kernel", "install", "--prefix", str(place))[0] == 0
    assert "--limit" not in made(place)["argv"]


def test_kernels_are_listed_and_removed(gpushare, place):
    where = ["--prefix", str(place)]
    assert gpushare("kernel", "list", *where) == (0, "", "no kernel of gpushare is installed here\n")
    gpushare("kernel", "install", *where, "--limit", "8Gi")
    code, out, _ = gpushare("kernel", "list", *where)
    head, line = out.splitlines()
    assert code == 0 and head.split() == ["NAME", "BUDGET", "BASE", "DISPLAY", "NAME", "DIRECTORY"]
    directory = place / "share" / "jupyter" / "kernels" / "gpushare"
    assert line.split()[:4] == ["gpushare", "limit", "8Gi", "ipykernel"] and line.endswith(str(directory))
    (listed,) = json.loads(gpushare("kernel", "list", *where, "--json")[1])["kernels"]
    assert {key: listed[key] for key in ("name", "directory", "base", "budget", "options")} == {
        "name": "gpushare",
        "directory": str(directory),
        "base": "ipykernel",
        "budget": "limit 8Gi",
        "options": ["--limit", "8Gi"],
    }
    assert listed["argv"] == made(place)["argv"]
    assert gpushare("kernel", "remove", "gpushare", *where) == (0, f"removed {directory}\n", "")
    assert not directory.exists()


def test_without_a_place_it_is_the_users_and_with_one_that_alone(environ, tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    assert kernel._target(None, False) == tmp_path / "data"
    assert kernel._target(tmp_path / "p", False) == tmp_path / "p" / "share" / "jupyter"
    assert kernel._target(None, True) == Path(sys.prefix) / "share" / "jupyter"
    assert kernel._places(None, True) == [Path(sys.prefix) / "share" / "jupyter"]
    assert tmp_path / "data" in kernel._places(None, False)
    monkeypatch.chdir(tmp_path)
    assert kernel._places(Path("p"), False) == [tmp_path / "p" / "share" / "jupyter"]


def test_a_kernel_with_an_odd_mark_is_listed_with_question_marks():
    odd = kernelspec.Kernel("k", Path("/k"), {"argv": ["x"], "metadata": {"gpushare": {}}})
    assert kernel._row(odd) == ["k", "?", "?", "k", "/k"]
    unmarked = kernelspec.Kernel("k", Path("/k"), {"argv": ["x"]})
    assert kernel._row(unmarked) == ["k", "?", "?", "k", "/k"] and kernel._as_json(unmarked) == kernel._as_json(odd)
    assert kernel._as_json(odd) == {"name": "k", "display_name": "k", "directory": "/k", "argv": ["x"]}
