"""What `gpushare doctor` says to mend things with: that it is said, and that it does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpushare import doctor
from gpushare.doctor import Surroundings, compiled
from gpushare.paths import library
from gpushare_installation import Problem


@pytest.fixture
def checks(gpushare):
    """The checks by their ids, as programs read them."""

    def checks() -> dict[str, dict]:
        return {check["id"]: check for check in json.loads(gpushare("doctor", "-o", "json")[1])["checks"]}

    return checks


def after(fix: list[str], check: str) -> dict:
    """The same check in a shell in which the commands were typed."""
    again = f"{sys.executable} -m gpushare doctor -o json"
    done = subprocess.run(["sh", "-c", "\n".join([*fix, again])], capture_output=True, text=True)
    return next(one for one in json.loads(done.stdout)["checks"] if one["id"] == check)


def test_they_are_a_script_to_read(gpushare, fake, monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", "/usr/lib/libvgpu.so")
    fake.unmanaged = 2**30
    _, out, _ = gpushare("doctor", "--fix-hints")
    lines = out.splitlines()
    assert lines[lines.index("# GS05 warn, other preload libraries: found libvgpu.so") + 1] == "unset LD_PRELOAD"
    outside = next(number for number, line in enumerate(lines) if line.startswith("# GS08 warn"))
    assert lines[outside + 1].startswith("#   no command repairs it: guarantees hold only")
    assert subprocess.run(["sh", "-n"], input=out, text=True).returncode == 0
    assert "GS04" not in out, "what is well is not spoken of"


def test_below_the_table_and_apart_from_it_is_what_to_do_about_each_finding(gpushare, fake, monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", "/usr/lib/libvgpu.so")
    fake.unmanaged = 2**30
    table, between, hints = gpushare("doctor")[1].partition("\n\n")
    assert between and table.split()[:4] == ["ID", "STATE", "CHECK", "FOUND"] and "hint:" not in table
    told = [line.split(": ", 2) for line in hints.splitlines()]
    assert {word for word, *_ in told} == {"hint"} and {"GS05", "GS08"} <= {id for _, id, _ in told}
    assert all(words for *_, words in told)


def test_the_exit_code_is_that_of_the_table(gpushare, fake, monkeypatch):
    monkeypatch.setenv("GPUSHARE_LIMIT", "4g")
    assert gpushare("doctor", "--fix-hints")[0] == gpushare("doctor")[0] == 1


@pytest.mark.parametrize(
    ("check", "variable", "value"),
    [
        ("GS03", "GPUSHARE_SOCKET", "/nowhere/api.sock"),
        ("GS05", "LD_PRELOAD", "/usr/lib/libvgpu.so"),
        ("GS05", "CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"),
        ("GS09", "GPUSHARE_LIMIT", "4g"),
        ("GS09", "GPUSHARE_LIMITT", "4Gi"),
        ("GS09", "RUNAI_GPU_MEMORY_LIMIT", "lots"),
        ("GS09", "GPUSHARE_MODE", "sometimes"),
    ],
)
def test_variables_are_mended(checks, environ, monkeypatch, check, variable, value):
    monkeypatch.setattr("gpushare.locate.SYSTEM_DIR", Path("/nowhere"))
    monkeypatch.setenv(variable, value)
    found = checks()[check]
    assert found["state"] in ("warn", "fail") and f"unset {variable}" in found["fix"]
    assert after(found["fix"], check)["state"] in ("ok", "skip")


def test_a_runtime_directory_that_is_open_to_others_is_closed(checks, environ):
    directory = Path(environ["XDG_RUNTIME_DIR"]) / "gpushare"
    directory.mkdir()
    directory.chmod(0o755)
    found = checks()["GS06"]
    assert (found["state"], found["fix"]) == ("fail", [f"chmod 700 {directory}"])
    assert after(found["fix"], "GS06")["state"] == "ok"


def test_a_link_in_its_place_is_removed(checks, environ, tmp_path):
    link = Path(environ["XDG_RUNTIME_DIR"]) / "gpushare"
    link.symlink_to(tmp_path)
    assert after(checks()["GS06"]["fix"], "GS06")["state"] == "ok"
    assert tmp_path.exists() and not link.is_symlink()


@pytest.mark.parametrize(
    ("scope", "fix"), [("user", ["gpushare daemon stop"]), ("system", ["sudo systemctl restart gpushared"])]
)
def test_a_daemon_of_another_version_is_restarted(checks, fake, monkeypatch, scope, fix):
    monkeypatch.setattr("gpushare.doctor.daemon.__version__", "9.9")
    fake.scope = scope
    found = checks()["GS03"]
    assert (found["state"], found["fix"]) == ("warn", fix)


def test_a_sick_gpu_is_reset_when_nobody_uses_it(checks, fake):
    hint = "reset it when no program uses it: stop gpushared, `nvidia-smi --gpu-reset -i UUID`, start gpushared"
    ailment = {"state": "sick", "cause": "xid_95", "text": "Xid 95", "hint": hint, "facts": {}}
    fake.scope = "system"
    fake.health = {"state": "sick", "shortfall": 0, "ailments": [ailment]}
    stop, reset, start = checks()["GS13"]["fix"]
    assert (stop, start) == ("sudo systemctl stop gpushared", "sudo systemctl start gpushared")
    assert reset == "sudo nvidia-smi --gpu-reset -i GPU-00000000-0000-0000-0000-000000000000"
    ailment["hint"] = "restart the machine"
    assert checks()["GS13"]["fix"] == []


def test_compiled_parts_that_are_missing_are_built_where_they_are(monkeypatch, tmp_path):
    monkeypatch.setattr(compiled, "library", lambda: tmp_path / "libgpushare.so")
    (fix,) = compiled.check_shim_loads(Surroundings(os.environ)).fix
    root = Path(__file__).resolve().parents[2]
    assert fix == f"{sys.executable} -m pip install --no-deps -e {root}"
    monkeypatch.setattr("gpushare_installation.reinstall", lambda: ("as it was installed",))
    assert compiled.check_shim_loads(Surroundings(os.environ)).fix == ("as it was installed",)


def test_a_check_that_fails_itself_is_a_finding_and_ends_no_other():
    def breaks(_: Surroundings) -> doctor.Finding:
        raise KeyError("libgpushare.so")

    def is_well(_: Surroundings) -> doctor.Finding:
        return doctor.Finding("ok", "well")

    checks = (doctor.Check("A", "a", breaks, "do this"), doctor.Check("B", "b", is_well, ""))
    (_, first), (_, second) = doctor.examine(Surroundings({}), checks)
    assert (first.state, first.hint) == ("fail", "do this")
    assert first.detail == "the check itself failed: KeyError: 'libgpushare.so'"
    assert second == doctor.Finding("ok", "well")


def test_without_the_shim_the_c_library_is_judged_by_what_is_there(monkeypatch, tmp_path):
    monkeypatch.setattr(compiled, "library", lambda: tmp_path / "lib" / "libgpushare.so")
    found = compiled.check_glibc(Surroundings({}))
    assert found.state == "fail" and "no library of gpushare is there" in found.detail and found.fix
    for name, state in (("libgpushare-late.so", "fail"), ("libgpushare.so", "ok")):
        (tmp_path / "lib").mkdir(exist_ok=True)
        (tmp_path / "lib" / name).symlink_to(library())
        found = compiled.check_glibc(Surroundings({}))
        assert found.state == state and f"{name} needs 2." in found.detail


def test_the_installation_is_judged(monkeypatch):
    problems = [Problem("a is missing", ("one", "two")), Problem("b was changed", ("two",))]
    monkeypatch.setattr("gpushare_installation.problems", lambda: problems)
    found = compiled.check_installation(Surroundings({}))
    assert (found.state, found.detail, found.fix) == ("fail", "a is missing; b was changed", ("one", "two"))
    monkeypatch.setattr("gpushare_installation.problems", list)
    monkeypatch.setattr("gpushare_installation.distribution", lambda: None)
    found = compiled.check_installation(Surroundings({}))
    assert (found.state, found.detail) == ("ok", f"{compiled.PACKAGE}, not installed")


def test_layouts_of_another_version_are_a_finding(monkeypatch, tmp_path):
    """The package of a directory of its own, in which the compiled part is another."""
    package = tmp_path / "gpushare"
    package.symlink_to(compiled.PACKAGE)
    monkeypatch.setattr(compiled, "PACKAGE", package)
    assert compiled.check_layout(Surroundings({})).detail == "page version 1, frame version 1"
    package.unlink()
    package.mkdir()
    for path in library().parents[1].iterdir():
        if path.name != "_layout.abi3.so":
            (package / path.name).symlink_to(path)
    (tmp_path / "gpushare_installation.py").symlink_to(library().parents[2] / "gpushare_installation.py")
    sizes = {"struct gs_page": 4, "struct gs_frame": 8, "struct gs_line": 128}
    (package / "_layout.py").write_text(
        f"class lib: GS_PAGE_BYTES, GS_FRAME_BYTES = 4, 16\nclass ffi: sizeof = {sizes}.__getitem__\n"
    )
    found = compiled.check_layout(Surroundings({}))
    assert (found.state, found.detail) == ("fail", "struct gs_frame is 8 bytes, not 16")
    assert found.fix
    (package / "_layout.py").write_text("import os; os.kill(os.getpid(), 7)")
    found = compiled.check_layout(Surroundings({}))
    assert (found.state, found.detail) == ("fail", "loading gpushare._layout ended a process with status -7")
