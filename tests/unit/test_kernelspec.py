"""Jupyter's kernels on disk: which one is found, what is ours, what is replaced and removed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpushare import kernelspec
from gpushare.errors import GpushareError, NotPermitted, UsageError
from gpushare.kernelspec import MARK, Kernel, Plan

FOREIGN = {"argv": ["ipython", "-f", "{connection_file}"], "display_name": "IPython", "language": "python"}


def written(data: Path, name: str, content: object) -> Path:
    directory = data / "kernels" / name
    directory.mkdir(parents=True)
    (directory / "kernel.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return directory


def plan(name: str = "half", **fields) -> Plan:
    base = Kernel("ipykernel", Path(), FOREIGN)
    return Plan(**{"name": name, "base": base, "options": ["--limit", "8Gi"], "budget": "limit 8Gi", **fields})


def test_a_kernel_is_installed_shown_and_removed(tmp_path):
    made, replaced = kernelspec.install(plan(), tmp_path, "1.0")
    assert (made.name, made.directory, replaced) == ("half", tmp_path / "kernels" / "half", False)
    (found,) = kernelspec.installed([tmp_path])
    assert found == made
    assert found.mark == {"version": "1.0", "base": "ipykernel", "budget": "limit 8Gi", "options": ["--limit", "8Gi"]}
    assert found.display_name == "IPython [GPU: limit 8Gi]"
    words = found.content["argv"]
    assert words[words.index("--") + 1 :] == FOREIGN["argv"]
    assert words[words.index("--name") :][:4] == ["--name", "half", "--limit", "8Gi"]
    assert kernelspec.remove("HALF", [tmp_path]) == made.directory
    assert list((tmp_path / "kernels").iterdir()) == []


def test_an_ipython_kernel_loads_the_extension_and_keeps_its_metadata(tmp_path):
    base = Kernel("other", Path(), {**FOREIGN, "metadata": {"debugger": True}, "interrupt_mode": "message"})
    made, _ = kernelspec.install(plan(base=base, tells=True, display_name="My half"), tmp_path, "1.0")
    assert made.content["argv"][-1] == kernelspec.EXTENSION
    assert made.content["metadata"]["debugger"] is True and made.display_name == "My half"
    assert made.content["interrupt_mode"] == "message"


def test_a_link_to_a_kernel_is_replaced_and_removed_and_what_it_leads_to_stays(tmp_path):
    elsewhere = written(tmp_path / "elsewhere", "half", plan().content("1.0"))
    link = tmp_path / "data" / "kernels" / "half"
    link.parent.mkdir(parents=True)
    for act in (
        lambda: kernelspec.remove("half", [tmp_path / "data"]),
        lambda: kernelspec.install(plan(), tmp_path / "data", "2.0"),
    ):
        link.symlink_to(elsewhere)
        act()
        assert not link.is_symlink() and json.loads((elsewhere / "kernel.json").read_text())
    assert kernelspec.installed([tmp_path / "data"])[0].mark["version"] == "2.0"


def test_a_kernel_of_ours_is_replaced_as_a_whole(tmp_path):
    first, _ = kernelspec.install(plan(), tmp_path, "1.0")
    (first.directory / "logo.svg").write_text("<svg/>")
    second, replaced = kernelspec.install(plan(budget="limit 4Gi"), tmp_path, "1.0")
    assert replaced and [one.name for one in second.directory.iterdir()] == ["kernel.json"]
    assert kernelspec.read(second.directory).mark["budget"] == "limit 4Gi"


@pytest.mark.parametrize("dangling", [False, True])
def test_what_is_not_ours_is_left_as_it_is(tmp_path, dangling):
    target = tmp_path / "kernels" / "half"
    if dangling:
        target.parent.mkdir()
        target.symlink_to(tmp_path / "nowhere")
    else:
        written(tmp_path, "half", FOREIGN)
    with pytest.raises(GpushareError) as caught:
        kernelspec.install(plan(), tmp_path, "1.0")
    assert caught.value.code == "not_our_kernel" and str(target) in caught.value.message
    if not dangling:
        with pytest.raises(GpushareError, match="not a kernel of gpushare"):
            kernelspec.remove("half", [tmp_path])
        assert kernelspec.read(target).content == FOREIGN
    assert [one.name for one in (tmp_path / "kernels").iterdir()] == ["half"]


def test_a_place_that_cannot_be_written_is_named_and_nothing_is_left(tmp_path):
    (tmp_path / "kernels").write_text("a file")
    with pytest.raises(NotPermitted) as caught:
        kernelspec.install(plan(), tmp_path, "1.0")
    assert caught.value.code == "cannot_write" and str(tmp_path / "kernels") in caught.value.message
    assert "--prefix" in caught.value.hint


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", {}, {"argv": []}, {"argv": "python"}, {"argv": ["python", 1]}, {"argv": {"0": "python"}}],
)
def test_what_jupyter_could_not_start_is_no_kernel(tmp_path, content):
    assert kernelspec.read(written(tmp_path, "odd", content)) is None
    assert kernelspec.find("odd", [tmp_path]) is None


@pytest.mark.parametrize("metadata", [None, [], {MARK: None}, {MARK: ["half"]}, {"other": {}}])
def test_metadata_without_our_mark_makes_none_of_ours(tmp_path, metadata):
    written(tmp_path, "odd", {**FOREIGN, "metadata": metadata})
    assert kernelspec.installed([tmp_path]) == []
    assert kernelspec.find("odd", [tmp_path]).mark is None


def test_the_first_place_counts_and_hides_the_others(tmp_path):
    near, far = tmp_path / "near", tmp_path / "far"
    kernelspec.install(plan("half"), far, "far")
    kernelspec.install(plan("Whole"), far, "far")
    hidden = written(near, "HALF", FOREIGN)
    assert kernelspec.find("half", [near, far]).directory == hidden
    assert [one.name for one in kernelspec.installed([near, far])] == ["whole"], "Jupyter starts the other one"
    assert [one.name for one in kernelspec.installed([far, near])] == ["half", "whole"]
    assert kernelspec.find("half", [tmp_path / "none", far]).directory == far / "kernels" / "half"


@pytest.mark.parametrize("name", ["", ".half", "a b", "a/b", "../a", "ä"])
def test_a_name_that_jupyter_would_not_take(name):
    with pytest.raises(UsageError) as caught:
        kernelspec.check_name(name)
    assert caught.value.code == "bad_name"


def test_names_are_in_lower_case():
    assert kernelspec.check_name("Torch-8g_1.0") == "torch-8g_1.0"


def test_nothing_of_that_name_says_what_there_is(tmp_path):
    kernelspec.install(plan(), tmp_path, "1.0")
    written(tmp_path, "other", FOREIGN)
    with pytest.raises(UsageError) as caught:
        kernelspec.remove("nope", [tmp_path])
    assert ("ours", "half") in caught.value.facts
    with pytest.raises(UsageError) as caught:
        kernelspec.base_kernel("nope", [tmp_path])
    assert ("known", "half, other") in caught.value.facts
    with pytest.raises(UsageError) as caught:
        kernelspec.base_kernel("half", [tmp_path])
    assert caught.value.code == "wrapped_kernel" and "ipykernel" in caught.value.hint
    for empty in (lambda: kernelspec.remove("x", []), lambda: kernelspec.base_kernel("x", [])):
        with pytest.raises(UsageError) as caught:
            empty()
        assert "none" in dict(caught.value.facts).values()


@pytest.mark.parametrize(
    ("program", "at", "found"),
    [
        ("python3", "bin/python3", True),
        ("python", "bin/python", True),
        ("python3", None, False),
        ("/opt/r/bin/R", None, None),
        ("pythonic", None, None),
    ],
)
def test_a_bare_python_is_the_one_beside_the_kernel_or_ours(tmp_path, program, at, found):
    data = tmp_path / "share" / "jupyter"
    written(data, "base", {**FOREIGN, "argv": [program, "-m", "k"]})
    if at:
        (tmp_path / "bin").mkdir()
        (tmp_path / at).symlink_to(sys.executable)
    first, *rest = kernelspec.base_kernel("base", [data]).content["argv"]
    assert rest == ["-m", "k"]
    assert first == (program if found is None else str(tmp_path / at) if found else sys.executable)


def test_where_jupyter_keeps_the_users_kernels():
    assert kernelspec.user_data({"HOME": "/h"}) == Path("/h/.local/share/jupyter")
    assert kernelspec.user_data({"HOME": "/h", "XDG_DATA_HOME": "/x"}) == Path("/x/jupyter")
    assert kernelspec.user_data({"HOME": "/h", "XDG_DATA_HOME": "/x", "JUPYTER_DATA_DIR": "/d"}) == Path("/d")


@pytest.mark.parametrize("virtual", [False, True])
def test_where_jupyter_looks_and_in_which_order(monkeypatch, virtual):
    monkeypatch.setattr(sys, "prefix", "/env")
    monkeypatch.setattr(sys, "base_prefix", "/usr/base" if virtual else "/env")
    own, user = Path("/env/share/jupyter"), Path("/h/.local/share/jupyter")
    found = kernelspec.data_dirs({"HOME": "/h", "JUPYTER_PATH": os.pathsep.join(("/one", "", "/two"))})
    assert found[:4] == [Path("/one"), Path("/two"), *((own, user) if virtual else (user, own))]
    assert kernelspec.data_dirs({"HOME": "/h", "JUPYTER_PATH": "/env/share/jupyter"}).count(own) == 1


def test_a_user_without_a_variable_for_it_has_a_home_all_the_same(monkeypatch, tmp_path):
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    for environ in ({}, {"HOME": ""}):
        assert kernelspec.user_data(environ) == tmp_path / ".local" / "share" / "jupyter"


def test_pythons_own_kernel_can_be_debugged():
    own = kernelspec.own_kernel()
    assert own.content["argv"] == [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    assert own.content["metadata"] == {"debugger": True} and own.content["language"] == "python"
    assert own.display_name == f"Python {sys.version_info.major}.{sys.version_info.minor}"


def kernel_of(*argv: str) -> Kernel:
    return Kernel("k", Path(), {**FOREIGN, "argv": list(argv)})


@pytest.mark.parametrize(
    ("script", "tells"),
    [("exit 0", True), ("echo no module >&2; exit 1", False), ("echo out", True), ("kill -9 $$", False)],
)
@pytest.mark.parametrize("module", ["ipykernel", "ipykernel_launcher", "ipykernel.kernelapp"])
def test_a_kernel_of_another_python_is_asked_whether_gpushare_is_there(tmp_path, capfd, script, tells, module):
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\ntest "$*" = "-c import gpushare.notebook" || exit 7\ntest $PWD = / || exit 8\n{script}\n'
    )
    python.chmod(0o755)
    assert kernelspec.can_tell(kernel_of(str(python), "-m", module)) is tells
    assert capfd.readouterr() == ("", "")


def test_a_kernel_of_this_python_can_and_one_of_another_language_cannot(monkeypatch):
    monkeypatch.setattr(kernelspec.subprocess, "run", lambda *_, **__: pytest.fail("it is asked"))
    assert kernelspec.can_tell(kernel_of(sys.executable, "-m", "ipykernel_launcher")) is True
    assert kernelspec.can_tell(kernel_of(sys.executable, "-m", "other_kernel")) is None
    assert kernelspec.can_tell(kernel_of("ipykernel", "-f", "x")) is None


def test_a_python_that_is_gone_or_hangs_cannot(monkeypatch):
    gone = kernel_of("/none/python", "-m", "ipykernel")
    assert kernelspec.can_tell(gone) is False

    def hangs(*_, timeout, **__):
        assert timeout == 30.0, "no longer is the installation kept waiting"
        raise subprocess.TimeoutExpired("python", timeout)

    monkeypatch.setattr(kernelspec.subprocess, "run", hangs)
    assert kernelspec.can_tell(gone) is False


def test_a_kernel_keeps_the_logos_of_the_one_that_it_is_based_on(tmp_path):
    base = written(tmp_path / "base", "other", FOREIGN)
    (base / "logo.svg").write_text("a picture")
    made, _ = kernelspec.install(plan(base=Kernel("other", base, FOREIGN)), tmp_path, "1.0")
    assert {one.name for one in made.directory.iterdir()} == {"kernel.json", "logo.svg"}
    assert kernelspec.read(made.directory) == made, "the file is not that of the other"


def test_what_cannot_be_put_in_place_leaves_nothing_beside_it(tmp_path, monkeypatch):
    def refused(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "rename", refused)
    with pytest.raises(NotPermitted, match="No space left on device"):
        kernelspec.install(plan(), tmp_path, "1.0")
    assert list((tmp_path / "kernels").iterdir()) == []
