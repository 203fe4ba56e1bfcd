"""What `gpushare doctor` finds of the libraries that are installed, where they do not fit this machine."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace

import pytest

import gpushare_installation
from gpushare.doctor import compiled

REINSTALL = ("pip install it again",)
NEW, OLD = (2, 39), (2, 17)
SHIM, LATE = "libgpushare.so", "libgpushare-late.so"


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """Files in place of the libraries; `needs` by name."""
    one = SimpleNamespace(
        lib=tmp_path / "lib", sim=tmp_path / "sim", here=(2, 36), needs={}, wrong=None, asked=[], environ={}
    )
    for folder in (one.lib, one.sim):
        folder.mkdir()
    for path in (one.lib / SHIM, one.lib / LATE, one.lib / "libgpushare-late-nvml.so", one.sim / "libcuda.so.1"):
        path.touch()
        one.needs[path.name] = OLD

    def needed(path):
        one.asked.append(path.name)
        if one.wrong is not None:
            raise one.wrong
        return one.needs[path.name]

    monkeypatch.setattr(compiled, "library", lambda: one.lib / SHIM)
    monkeypatch.setattr(compiled, "attach_library", lambda: one.lib / LATE)
    monkeypatch.setattr(compiled, "software_driver_dir", lambda: one.sim)
    monkeypatch.setattr(compiled.glibc, "here", lambda: one.here)
    monkeypatch.setattr(compiled.glibc, "needed", needed)
    monkeypatch.setattr(gpushare_installation, "reinstall", lambda: REINSTALL)
    return one


def test_what_fits_is_told_with_its_numbers(installed):
    found = compiled.check_glibc(installed)
    assert (found.state, found.fix) == ("ok", ())
    assert found.detail == f"glibc 2.36; {SHIM} needs 2.17, {LATE} needs 2.17"
    assert sorted(installed.asked) == sorted(installed.needs)


def test_as_new_as_this_machine_is_new_enough(installed):
    installed.needs[SHIM] = installed.here
    assert compiled.check_glibc(installed).state == "ok"


@pytest.mark.parametrize("name", [SHIM, "libcuda.so.1"])
def test_a_library_without_which_nothing_goes_and_that_is_too_new(installed, name):
    installed.needs[name] = NEW
    found = compiled.check_glibc(installed)
    assert (found.state, found.fix) == ("fail", REINSTALL)
    assert found.detail == f"glibc 2.36; {name} needs 2.39"


@pytest.mark.parametrize("name", [LATE, "libgpushare-late-nvml.so"])
def test_one_that_only_notebooks_need_has_a_way_around_it(installed, name):
    installed.needs[name] = NEW
    found = compiled.check_glibc(installed)
    assert (found.state, found.fix) == ("warn", ("gpushare kernel install",))
    assert found.detail == f"glibc 2.36; {name} needs 2.39: gpushare.enable() cannot work here"
    assert "start notebooks with `gpushare run`" in found.hint


def test_a_library_that_is_not_there(installed):
    (installed.lib / SHIM).unlink()
    found = compiled.check_glibc(installed)
    assert (found.state, found.fix) == ("fail", REINSTALL)
    assert found.detail == f"glibc 2.36; {LATE} needs 2.17"
    for path in (*installed.lib.iterdir(), *installed.sim.iterdir()):
        path.unlink()
    assert compiled.check_glibc(installed).detail == "glibc 2.36; no library of gpushare is there"
    found = compiled.check_shim_loads(installed)
    assert (found.state, found.detail, found.fix) == ("fail", f"{installed.lib / SHIM} is not there", REINSTALL)


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), ValueError("not a 64-bit ELF file")])
def test_a_library_that_cannot_be_read(installed, error):
    installed.wrong = error
    found = compiled.check_glibc(installed)
    assert (found.state, found.detail, found.hint, found.fix) == ("fail", str(error), "reinstall gpushare", REINSTALL)


def test_another_c_library(installed):
    installed.here = None
    found = compiled.check_glibc(installed)
    assert (found.state, found.detail) == ("fail", "the C library is not glibc")
    assert "an image that has it" in found.hint


# ---- it is preloaded ----------------------------------------------------------------------------------------


def ends(monkeypatch, *results):
    left, asked = list(results), []

    def run(command, **how):
        asked.append((command, how))
        code, stdout, stderr = left.pop(0)
        return subprocess.CompletedProcess(command, code, stdout, stderr)

    monkeypatch.setattr(compiled.subprocess, "run", run)
    return asked


WELL = (0, "", "")


def test_it_is_preloaded_into_a_c_program_and_into_python_with_every_symbol(installed, monkeypatch):
    asked = ends(monkeypatch, WELL, WELL)
    installed.environ = {"A": "1", "LD_PRELOAD": "other.so"}
    found = compiled.check_shim_loads(installed)
    assert found.state == "ok" and found.detail.endswith("all symbols bound at once")
    first, second = asked
    assert first[0][0].endswith("true") and second[0][1:] == ["-c", "pass"]
    for _, how in asked:
        assert how["env"] == {"A": "1", "LD_PRELOAD": str(installed.lib / SHIM), "LD_BIND_NOW": "1"}


@pytest.mark.parametrize(("found", "shown"), [(None, "/bin/true"), ("/opt/bin/true", "/opt/bin/true")])
def test_the_c_program_is_the_one_that_is_there(installed, monkeypatch, found, shown):
    monkeypatch.setattr(compiled.shutil, "which", lambda _name: found)
    asked = ends(monkeypatch, WELL, WELL)
    assert compiled.check_shim_loads(installed).detail.startswith(f"into {shown} and ")
    assert asked[0][0] == [shown]


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("exit 0", None),
        ("printf 'caf\\351 is lacking\\n' >&2", "caf\ufffd is lacking"),
        ("echo first >&2; echo second >&2; exit 3", "first"),
        ("echo to nobody; exit 3", "exit code 3"),
    ],
)
def test_what_a_program_says_is_kept_from_the_terminal_and_told(installed, monkeypatch, capfd, script, problem):
    monkeypatch.setattr(compiled, "library", lambda: "")
    assert compiled._preload_problem(["/bin/sh", "-c", script], {"PATH": "/bin:/usr/bin"}) == problem
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("results", "detail"),
    [
        (
            [(0, "", "ERROR: ld.so: it cannot be preloaded: ignored.\nmore\n")],
            "ERROR: ld.so: it cannot be preloaded: ignored.",
        ),
        ([(127, "", "")], "exit code 127"),
        ([(1, "", "  \n")], "exit code 1"),
        ([WELL, (-11, "", "")], "exit code -11"),
    ],
)
def test_a_loader_that_complains_or_a_program_that_dies(installed, monkeypatch, results, detail):
    ends(monkeypatch, *results)
    found = compiled.check_shim_loads(installed)
    assert found.state == "fail" and found.detail.endswith(f": {detail}") and found.fix == REINSTALL


# ---- its layout ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "state", "detail"),
    [
        ((0, "page version 3\n", ""), "ok", "page version 3"),
        ((1, "", "Traceback\n  a line of it\nImportError: file too short\n"), "fail", "ImportError: file too short"),
        ((-7, "", ""), "fail", "loading gpushare._layout ended a process with status -7"),
    ],
)
def test_the_layout_is_looked_at_in_another_process(installed, monkeypatch, result, state, detail):
    ends(monkeypatch, result)
    found = compiled.check_layout(installed)
    assert (found.state, found.detail, found.fix) == (state, detail, () if state == "ok" else REINSTALL)


def test_the_layout_of_this_installation_and_a_process_that_dies(installed, monkeypatch, capfd):
    assert compiled.check_layout(installed).detail.startswith("page version ")
    monkeypatch.setattr(compiled, "sys", SimpleNamespace(executable="/bin/false"))
    found = compiled.check_layout(installed)
    assert (found.state, found.detail) == ("fail", "loading gpushare._layout ended a process with status 1")
    assert capfd.readouterr() == ("", "")


def test_a_layout_of_another_size_is_named(monkeypatch, capsys):
    from gpushare import _layout

    compiled.print_layout()
    assert capsys.readouterr().out.startswith("page version ")
    real = _layout.ffi
    sizes = {"struct gs_line": 120, "struct gs_page": 1}
    wrong = SimpleNamespace(sizeof=lambda name: sizes.get(name) or real.sizeof(name))
    monkeypatch.setattr(_layout, "ffi", wrong)
    with pytest.raises(SystemExit) as caught:
        compiled.print_layout()
    page = _layout.lib.GS_PAGE_BYTES
    assert caught.value.code == f"struct gs_page is 1 bytes, not {page}, struct gs_line is 120 bytes, not 128"


# ---- the package ---------------------------------------------------------------------------------------------


def test_what_is_wrong_with_the_installation_is_told_with_one_way_out_for_all(monkeypatch):
    problems = [SimpleNamespace(text="a is lacking", fix=("x", "y")), SimpleNamespace(text="b is old", fix=("y", "z"))]
    monkeypatch.setattr(gpushare_installation, "problems", lambda: problems)
    found = compiled.check_installation(None)
    assert (found.state, found.detail, found.fix) == ("fail", "a is lacking; b is old", ("x", "y", "z"))
    monkeypatch.setattr(gpushare_installation, "problems", list)
    for version, words in (("1", f"{gpushare_installation.NAME} {compiled.__version__}"), (None, "not installed")):
        monkeypatch.setattr(gpushare_installation, "distribution", lambda version=version: version)
        found = compiled.check_installation(None)
        assert found.state == "ok" and found.detail.endswith(words)
