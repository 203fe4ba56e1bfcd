"""The distribution's name, and what we tell people to install: never the other project called `gpushare`."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import gpushare_installation as installation

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
INSTALLERS = re.compile(r"\b(?:pip3?|pipx|uv|uvx|conda|mamba|poetry)\b[^\n`;|&]*")


def asked_of_an_index(text: str) -> list[str]:
    """The words in a text that would make an installer look for something of our names on an index."""
    found = []
    for command in INSTALLERS.findall(text):
        for word in re.split(r"[\s,]+", command):
            name = word.strip("'\"()[]:")
            if name.lower().startswith("gpushare") and "/" not in name and not name.endswith((".whl", ".py")):
                found.append(command)
    return found


def installs(text: str) -> list[str]:
    """Those of them that install; `pip uninstall gpushare` is good advice."""
    return [one for one in asked_of_an_index(text) if re.search(r"\b(install|download|add|run|no-binary)\b", one)]


def test_the_search_finds_what_it_must():
    for bad in (
        "pip install gpushare",
        "pip install 'gpushare[plot]'",
        "python -m pip install -U gpushare-cuda==0.1.0",
        "pip install --no-binary gpushare x",
        "pipx install gpushare",
        "uv pip install gpushare",
    ):
        assert installs(bad), bad
    for good in ("pip install .", "pip install ./gpushare_cuda-0.1.0.whl", "pip uninstall -y gpushare"):
        assert not installs(good), good


def test_no_text_of_ours_makes_anybody_install_from_an_index():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        path = ROOT / name
        if not path.is_file() or path == Path(__file__) or path.suffix == ".png":
            continue
        assert not installs(path.read_text(errors="replace")), name


def test_the_name_is_ours_everywhere():
    assert PROJECT["name"] == installation.NAME != installation.OTHER_PROJECT
    own = [word for extra in PROJECT["optional-dependencies"].values() for word in extra if word.startswith("gpushare")]
    assert own and all(re.split(r"\W(?!cuda)", word)[0] == installation.NAME for word in own)
    commands = ["gpushare", "gpushared", "gpushare-dra", "gpushare-webhook", "kubectl-gpushare"]
    assert list(PROJECT["scripts"]) == commands, "the commands keep their names"
    assert f"called `{installation.NAME}`" in " ".join((ROOT / "README.md").read_text().split())


def test_every_package_of_the_source_tree_is_in_the_distribution():
    """An installation in place has them all, listed or not."""
    tops = {"gpushare": ROOT / "gpushare", "gpushared": ROOT / "daemon" / "gpushared"}
    found = {
        ".".join((name, *path.parent.relative_to(top).parts))
        for name, top in tops.items()
        for path in top.rglob("__init__.py")
    }
    with (ROOT / "pyproject.toml").open("rb") as file:
        listed = tomllib.load(file)["tool"]["setuptools"]["packages"]
    assert found == {name for name in listed if name.split(".")[0] in tops}


class Installed:
    """The metadata of an installation."""

    def __init__(self, requires=None, origin=None):
        self.requires = requires
        self.origin = origin

    def read_text(self, name):
        assert name == "direct_url.json"
        return self.origin


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """Say what is installed, far from any source tree."""
    monkeypatch.setattr(installation, "__file__", str(tmp_path / "site-packages" / "gpushare_installation.py"))

    def installed(**facts):
        monkeypatch.setattr(installation, "distribution", lambda: Installed(**facts))

    return installed


def test_requirements_are_those_of_the_project():
    if installation.distribution() is None:
        pytest.skip("this source tree is not installed")
    assert set(installation.requirements()) == set(PROJECT["dependencies"])
    for extra in ("demo", "plot"):
        assert installation.requirements(extra) == PROJECT["optional-dependencies"][extra]


def test_an_extra_is_installed_by_what_it_requires(installed):
    installed(requires=["click>=8.1", 'one>=1.0; extra == "plot"', "two; extra == 'plot'", 'no; extra == "plots"'])
    assert installation.requirements() == ["click>=8.1"]
    assert shlex.split(installation.install_extra("plot")) == [
        *(sys.executable, "-m", "pip", "install"),
        *("one>=1.0", "two"),
    ]
    installed(requires=None)
    assert installation.install_extra("plot") == "pip install '.[plot]' in the source tree"


def test_nothing_installed_is_no_error(monkeypatch):
    monkeypatch.setattr(installation, "NAME", "no-such-distribution")
    assert installation.distribution() is None
    assert installation.requirements() == []


def test_in_a_source_tree_that_tree_is_installed_again():
    (command,) = installation.reinstall()
    assert shlex.split(command) == [sys.executable, "-m", "pip", "install", "--no-deps", "-e", str(ROOT)]


def test_a_wheel_is_installed_again_from_where_it_was(installed, tmp_path):
    wheel = tmp_path / "of mine" / "x.whl"
    wheel.parent.mkdir()
    origin = json.dumps({"url": wheel.as_uri(), "archive_info": {}})
    installed(origin=origin)
    assert installation.reinstall() == (), "it is not there any more"
    wheel.touch()
    (command,) = installation.reinstall()
    words = shlex.split(command)
    assert words == [sys.executable, "-m", "pip", "install", "--force-reinstall", "--no-deps", str(wheel)]


@pytest.mark.parametrize(
    "origin", [None, "", "{", "[]", "{}", '{"url": 5}', '{"url": "https://index.example/"}', '{"url": "file:///none"}']
)
def test_an_unknown_origin_gives_no_command(installed, origin):
    installed(origin=origin)
    assert installation.reinstall() == ()


def test_the_examples_name_what_the_extra_requires():
    said = (ROOT / "examples" / "gpu.py").read_text()
    assert f"pip install {shlex.join(PROJECT['optional-dependencies']['demo'])}" in said


def test_this_environment_has_one_installation():
    """An editable installation under the earlier name would own the same command."""
    if installation.distribution() is None:
        pytest.skip("this source tree is not installed")
    names = {one.metadata["Name"] for one in metadata.distributions() if one.read_text("RECORD")}
    assert installation.OTHER_PROJECT not in names


class Package:
    """An installation with files, and pip's list of them."""

    def __init__(self, root: Path):
        self.root = root
        self.requires = ["click>=8.1"]
        self.record = ""

    def add(self, name: str, content: bytes) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
        self.record += f"{name},sha256={digest},{len(content)}\n"
        return path

    def read_text(self, name):
        return self.record if name == "RECORD" else None

    def locate_file(self, name):
        return self.root / name


@pytest.fixture
def package(installed, monkeypatch, tmp_path):
    installed()
    package = Package(tmp_path / "site-packages")
    monkeypatch.setattr(installation, "distribution", lambda: package)
    monkeypatch.setattr(metadata, "distributions", lambda name: [])
    return package


def test_a_whole_installation_has_no_problems(package):
    package.add("gpushare/a.py", b"a")
    package.record += "gpushare/__pycache__/a.pyc,,\nRECORD,,\nodd\n"
    assert installation.problems() == []


def test_files_that_are_missing_or_changed_are_named(package):
    for number in range(5):
        package.add(f"gpushare/{number}.py", b"a").write_bytes(b"b")
    (package.root / "gpushare/0.py").unlink()
    (problem,) = installation.problems()
    assert problem.text == (
        "gpushare/0.py is missing, gpushare/1.py was changed, gpushare/2.py was changed, and 2 more"
    )
    assert problem.fix == ()
    package.record = "".join(package.record.splitlines(keepends=True)[:3])
    (problem,) = installation.problems()
    assert problem.text.endswith("gpushare/2.py was changed")


def test_a_file_that_cannot_be_read_is_named(package):
    package.add("gpushare/a.py", b"a").unlink()
    (package.root / "gpushare/a.py").mkdir()
    (problem,) = installation.problems()
    assert problem.text == "gpushare/a.py cannot be read (Is a directory)"


def test_a_list_of_files_that_makes_no_sense_is_no_error(package):
    for record in ("x,md9=abc,1\n", "\0\0,\n", '"', "x,sha256=é,1\n"):
        package.record = record
        installation.problems()


def test_a_library_that_is_missing_is_installed_by_the_fix(package):
    package.requires = ["click>=8.1", "no-such-library>=1", 'other; extra == "plot"']
    (problem,) = installation.problems()
    assert problem.text == "not installed: no-such-library>=1"
    assert [shlex.split(line)[-1] for line in problem.fix] == ["no-such-library>=1"]


def test_without_metadata_nothing_else_is_judged(installed, monkeypatch):
    installed()
    monkeypatch.setattr(installation, "distribution", lambda: None)
    (problem,) = installation.problems()
    assert problem.text == f"there are no metadata of {installation.NAME}"
    monkeypatch.setattr(installation, "__file__", str(ROOT / "gpushare_installation.py"))
    assert installation.problems() == [], "a source tree that was only built"


@pytest.mark.parametrize(
    ("record", "here"),
    [("gpushare/__init__.py,,\n", True), ("x.py,,\ngpushare/client.py,,\n", True), ("my-gpushare/x.py,,\n", False)],
)
def test_the_other_project_is_noticed(package, monkeypatch, record, here):
    other = Package(package.root)
    other.record = record
    asked = []
    monkeypatch.setattr(metadata, "distributions", lambda name: asked.append(name) or [other])
    problems = installation.problems()
    assert asked == ["gpushare"] and len(problems) == here
    if here:
        assert "a distribution called gpushare is installed" in problems[0].text
        assert shlex.split(problems[0].fix[0])[1:] == ["-m", "pip", "uninstall", "-y", "gpushare"]


@pytest.fixture
def command(monkeypatch):
    """The command line in the place of ours: it raises the error."""

    def command(error: Exception | None, *words: str) -> int:
        def fails():
            if error is not None:
                raise error
            return 7

        monkeypatch.setattr("gpushare.cli.main", fails)
        monkeypatch.setattr(sys, "argv", ["gpushare", *words])
        return installation.main()

    return command


def test_the_command_is_that_of_the_command_line(command):
    assert command(None) == 7


@pytest.mark.parametrize(("words", "status"), [(["doctor"], 1), (["run", "true"], 125), ([], 1)])
def test_an_error_in_a_damaged_installation_is_told_as_damage(command, monkeypatch, capsys, words, status):
    problems = [installation.Problem("a is missing", ("one", "two")), installation.Problem("b was changed", ("two",))]
    monkeypatch.setattr(installation, "problems", lambda: problems)
    assert command(SyntaxError("x"), *words) == status
    assert capsys.readouterr().err.splitlines() == [
        "gpushare: this installation is damaged",
        *("  a is missing", "  b was changed", "hint: one", "hint: two"),
    ]


def test_an_error_of_ours_in_a_whole_installation_stays_what_it_is(command, monkeypatch):
    monkeypatch.setattr(installation, "problems", list)
    for error in (ValueError("x"), ImportError("x", name="gpushare.cli"), ImportError("x")):
        with pytest.raises(type(error)):
            command(error, "doctor")


def test_a_library_that_is_broken_is_named(command, monkeypatch, capsys):
    monkeypatch.setattr(installation, "problems", list)
    assert command(ImportError("broken", name="rich.table"), "ps") == 1
    assert "  rich.table cannot be imported: broken" in capsys.readouterr().err
