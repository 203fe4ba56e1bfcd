"""`gpushare doctor` where much is broken: it answers 0 or 1, and never with a traceback."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import shutil
import socket
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

ROUNDS = int(os.environ.get("GPUSHARE_TEST_ROUNDS", "30"))
pytestmark = pytest.mark.timeout(600)  # a wheel is built first
SEED = int(os.environ.get("GPUSHARE_TEST_SEED", "1"))
MAIN = "import sys; from gpushare_installation import main; sys.exit(main())"
IN_ANOTHER_DIRECTORY = "import pathlib, gpushare.paths as p; p.SYSTEM_DIR = pathlib.Path({!r}); " + MAIN
DAMAGE = ("missing", "empty", "garbage", "cut", "other machine", "closed")
CHECKS = 16


class Doctor:
    """`gpushare doctor` of an installation. As a user whom a file's mode can keep out: root without its rights."""

    def __init__(self, home: Path, base: Path) -> None:
        self.home = home
        (self.site,) = home.glob("lib/python*/site-packages")
        self.env = {"PATH": os.environ["PATH"], "HOME": str(base), "XDG_RUNTIME_DIR": str(base), "COLUMNS": "300"}
        self.env["GPUSHARE_SOCKET"] = ""

    def line(self, code: str, *options: str) -> list[str]:
        line = [str(self.home / "bin" / "python"), "-P", "-c", code, "doctor", *options]
        if os.getuid() != 0:
            return line
        return [str(shutil.which("setpriv")), "--bounding-set=-dac_override,-dac_read_search", "--", *line]

    def __call__(
        self, environ: Mapping[str, str | bytes | None] | None = None, code: str = MAIN, *options: str
    ) -> subprocess.CompletedProcess[str]:
        env = {name: value for name, value in {**self.env, **(environ or {})}.items() if value is not None}
        line = self.line(code, *options)
        done = subprocess.run(
            line, env=env, cwd=self.home, capture_output=True, text=True, errors="replace", timeout=60
        )
        said = done.stdout + done.stderr
        assert done.returncode in (0, 1), (done.returncode, said)
        assert "Traceback" not in said, said
        if "this installation is damaged" not in done.stderr and "-o" not in options:
            assert len(re.findall(r"^GS\d\d +(?:ok|warn|fail|skip) ", done.stdout, re.MULTILINE)) == CHECKS, said
        return done


@pytest.fixture(scope="module")
def doctor(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doctor]:
    if os.getuid() == 0 and shutil.which("setpriv") is None:
        pytest.skip("not installed: setpriv")
    base = tmp_path_factory.mktemp("home")
    base.chmod(0o700)
    # The dependencies are others' files, so what is broken here must not be restored from there.
    yield Doctor(installed, base)


def found(done: subprocess.CompletedProcess[str], check: str) -> list[str]:
    """The state of a check and what it said."""
    (row,) = [line for line in done.stdout.splitlines() if line.startswith(f"{check} ")]
    _, state, _, said = re.split(r"\s{2,}", row, maxsplit=3)
    return [state, said]


def test_what_is_whole_is_well(doctor):
    done = doctor()
    assert done.returncode == 0, done.stdout
    assert found(done, "GS14") == ["ok", "gpushare-cuda 0.1.0"]


def damage(path: Path, kind: str, dice: random.Random) -> Callable[[], None]:
    """Break a file or directory, and return what mends it."""
    mode, content = path.stat().st_mode, None if path.is_dir() else path.read_bytes()

    def mend() -> None:
        path.chmod(mode) if path.exists() else None
        if content is not None:
            path.write_bytes(content)
        path.chmod(mode)

    if kind == "closed" or content is None:
        path.chmod(0)
    elif kind == "missing":
        path.unlink()
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "garbage":
        path.write_bytes(dice.randbytes(max(1, len(content))))
    elif kind == "cut":
        path.write_bytes(content[: len(content) // 10])
    else:
        path.write_bytes(content[:18] + b"\xb7\x00"[:: 1 if content[18:20] != b"\xb7\x00" else -1] + content[20:])
    return mend


def parts(doctor: Doctor) -> list[Path]:
    """Files and directories of the installation, those of the distribution's metadata too."""
    folders = [doctor.site / name for name in ("gpushare", "gpushared", "gpushare_docs", "gpushare_examples")]
    folders += doctor.site.glob("gpushare_cuda-*.dist-info")
    found = {path for folder in folders for path in [folder, *folder.rglob("*")]}
    return sorted(path for path in found if "__pycache__" not in path.parts)


def test_any_part_that_is_broken_is_a_finding(doctor):
    dice = random.Random(SEED)
    everything = parts(doctor)
    started = [path for path in everything if path.suffix in (".so", ".1") or path.parent.name in ("gpushare", "cli")]
    for number in range(ROUNDS):
        path = dice.choice(started if number % 2 else everything)
        kind = dice.choice(DAMAGE)
        empty = path.is_file() and path.stat().st_size == 0
        mend = damage(path, kind, dice)
        try:
            done = doctor()
        except BaseException as error:
            error.add_note(f"{kind}: {path} (seed {SEED}, round {number})")
            raise
        finally:
            mend()
        if ".dist-info" in str(path) or (empty and kind in ("empty", "garbage", "cut")):
            continue
        assert done.returncode == 1, (kind, path, done.stdout, done.stderr)
        name = str(path.relative_to(doctor.site))
        assert name in done.stdout + done.stderr or path.is_dir(), (kind, path, done.stdout, done.stderr)


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize(
    "name", ["lib/libgpushare.so", "_layout.abi3.so", "doctor/__init__.py", "__init__.py", "cli/doctor.py"]
)
def test_the_parts_that_doctor_itself_uses(doctor, name, kind):
    path = doctor.site / "gpushare" / name
    mend = damage(path, kind, random.Random(SEED))
    try:
        done = doctor()
    finally:
        mend()
    assert done.returncode == 1
    assert f"gpushare/{name}" in done.stdout + done.stderr
    if name == "lib/libgpushare.so":
        assert found(done, "GS02")[0] == "fail"
    if name == "_layout.abi3.so":
        assert found(done, "GS04")[0] == "fail"


@pytest.mark.parametrize("module", ["pynvml", "rich", "click", "psutil", "aiohttp", "yaml", "cffi", "_cffi_backend"])
def test_a_dependency_that_is_missing_or_broken(doctor, tmp_path, module):
    raising = f'raise ModuleNotFoundError("No module named {module!r}", name={module!r})\n'
    (tmp_path / f"{module}.py").write_text(raising)
    done = doctor({"PYTHONPATH": str(tmp_path)})
    if module in ("click", "rich"):
        assert done.returncode == 1 and f"{module} cannot be imported: No module named {module!r}" in done.stderr


ODD = {
    "HOME": [None, "", "/nonexistent", "relative", "/root/closed", b"/tmp/\xff\xfe"],
    "XDG_RUNTIME_DIR": [None, "", "/dev/null", "/nonexistent", "relative", "/" + "x" * 120, b"/tmp/\xff", "/proc/1"],
    "XDG_CONFIG_HOME": ["", "/dev/null", "/nonexistent", b"/tmp/\xff", "/proc/1/root"],
    "GPUSHARE_CONFIG": ["/dev/null", "/", "/nonexistent", "/bin/true", b"\xff", "/proc/self/mem"],
    "GPUSHARE_SOCKET": ["/", "/dev/null", "relative", "/nonexistent/api.sock", b"/tmp/\xff", "/" + "x" * 200],
    "GPUSHARE_LIMIT": ["", "4g", b"\xff\xfe", "\x1b[31m", "9" * 400, "-1", "nan"],
    "GPUSHARE_REQUEST": ["inf", "1e400", "%", b"\x80"],
    "GPUSHARE_PRIORITY": ["x", "9" * 5000, "1.5"],
    "GPUSHARE_GRACE": ["1h", "soon", "-1s"],
    "GPUSHARE_DRIVER": ["nvidia", "sim", "other"],
    "GPUSHARE_LOG": ["loud", ""],
    "GPUSHARE_SIM": ["gpus=x", "memory=,,,", "pool=/dev/null"],
    "LD_PRELOAD": ["/nonexistent.so", "/dev/null", "/usr/lib/libvgpu.so"],
    "CUDA_VISIBLE_DEVICES": ["", "x", "-1", "0,0,0"],
    "PATH": [None, "", "/nonexistent", b"/\xff"],
    "TMPDIR": ["/nonexistent", "/dev/null"],
    "LANG": [None, "C", "xx_YY.bad"],
    "PYTHONIOENCODING": ["ascii", "latin-1"],
    "COLUMNS": ["300", "0", "-5", "x", ""],
    "TERM": [None, "", "dumb", "x" * 300],
    "KUBERNETES_SERVICE_HOST": ["x"],
}


def test_odd_environments(doctor):
    dice = random.Random(SEED)
    names = sorted(ODD)
    for number in range(ROUNDS):
        chosen = {names[number % len(names)], *dice.sample(names, dice.randint(0, 2))} - {"COLUMNS"}
        environ = {name: dice.choice(ODD[name]) for name in sorted(chosen)}
        try:
            doctor(environ)
        except BaseException as error:
            error.add_note(f"{environ} (seed {SEED}, round {number})")
            raise


@pytest.mark.parametrize("columns", ["0", "-5", "x", ""])
def test_odd_terminals(doctor, columns):
    for option in ("--fix-hints", "--output=table"):
        done = subprocess.run(doctor.line(MAIN, option), env={**doctor.env, "COLUMNS": columns}, capture_output=True)
        assert done.returncode == 0 and done.stderr in (b"", b"nothing to repair\n")
    done = doctor({"COLUMNS": columns}, MAIN, "-o", "json")
    assert done.returncode == 0 and len(json.loads(done.stdout)["checks"]) == CHECKS


CONFIGS = [b"", b"\xff\xfe", b"limit = ", b"limit = 4", b"[limit]", b'limit = "4Gi"\nlimit = ""', b"x = 1", b"\0" * 9]


@pytest.mark.parametrize("content", CONFIGS)
@pytest.mark.parametrize("mode", [0o600, 0])
def test_broken_settings(doctor, tmp_path, content, mode):
    config = tmp_path / "gpushare" / "config.toml"
    config.parent.mkdir()
    config.write_bytes(content)
    config.chmod(mode)
    done = doctor({"XDG_CONFIG_HOME": str(tmp_path)})
    if mode == 0:
        assert done.returncode == 1 and f"cannot read {config}" in done.stdout


def test_a_closed_directory_of_settings(doctor, tmp_path):
    (tmp_path / "gpushare").mkdir(mode=0)
    done = doctor({"XDG_CONFIG_HOME": str(tmp_path)})
    assert done.returncode == 1 and f"cannot read {tmp_path}/gpushare/config.toml" in done.stdout


NOT_THERE = ("absent", "dangling", "open", "dead", "file in it", "folder in it")
CLOSED_OR_ODD = ("loop", "file", "no entry", "closed", "rude")


@pytest.mark.parametrize("kind", [*NOT_THERE, *CLOSED_OR_ODD])
def test_an_odd_directory_of_the_system_daemon(doctor, kind, tmp_path):
    directory = tmp_path / "s"
    if kind == "file":
        directory.write_text("x")
    elif kind in ("dangling", "loop"):
        directory.symlink_to(directory if kind == "loop" else tmp_path / "nowhere")
    elif kind != "absent":
        directory.mkdir(mode={"open": 0o777, "no entry": 0o600, "closed": 0}.get(kind, 0o755))
    api = directory / "api.sock"
    rude = socket.socket(socket.AF_UNIX)
    if kind == "file in it":
        api.write_text("x")
    elif kind == "folder in it":
        api.mkdir()
    elif kind in ("dead", "rude"):
        rude.bind(os.path.relpath(api))
        if kind == "rude":
            rude.listen(0)
    done = doctor({}, IN_ANOTHER_DIRECTORY.format(str(directory)))
    rude.close()
    assert found(done, "GS03")[0] == ("skip" if kind in NOT_THERE else "fail"), done.stdout


OTHER = {
    "gpushare/__init__.py": "from .client import GPUShareClient\n",
    "gpushare/client.py": "class GPUShareClient: pass\n",
    "gpushare-0.1.11.dist-info/METADATA": "Metadata-Version: 2.1\nName: gpushare\nVersion: 0.1.11\n",
    "gpushare-0.1.11.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "gpushare-0.1.11.dist-info/RECORD": "",
}
"""The other project of that name, as far as it matters."""


def test_the_other_project_over_ours_is_told_and_mended(wheel, pip_install, tmp_path):
    other = tmp_path / "gpushare-0.1.11-py3-none-any.whl"
    with zipfile.ZipFile(other, "w") as packed:
        for name, text in OTHER.items():
            packed.writestr(name, text)
    home = tmp_path / "venv"
    venv.create(home, symlinks=True)
    (site,) = home.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    for one in (wheel, other):
        pip_install(home, one)
    env = {"PATH": os.environ["PATH"], "XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)}

    def doctor() -> subprocess.CompletedProcess[str]:
        line = [str(home / "bin" / "gpushare"), "doctor"]
        return subprocess.run(line, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60)

    done = doctor()
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "a distribution called gpushare is installed" in done.stderr
    assert "gpushare/__init__.py was changed" in done.stderr
    uninstall, install = [shlex.split(line.removeprefix("hint: ")) for line in done.stderr.splitlines()[-2:]]
    for line in (uninstall, install):
        assert line[:3] == [str(home / "bin" / "python"), "-m", "pip"] and "gpushare-cuda" not in line
        here = [sys.executable, "-m", "pip", "--python", line[0], *line[3:]]
        subprocess.run(here, check=True, capture_output=True, timeout=120)
    mended = doctor()
    assert "distribution called gpushare" not in mended.stdout + mended.stderr
    assert found(mended, "GS14")[0] == "ok"
