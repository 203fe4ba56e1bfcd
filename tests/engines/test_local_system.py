"""The local engine for all users: real users, a real system daemon that it tells of their tasks, and cgroups.

Software GPUs are there for one user only, so the programs open none. What a program would be given is what `gpushare
run` is told there.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from local_stage import GIB, Stage

from gpushare.client import Client
from gpushare.cluster.engines.seam import Accepted
from gpushare.cluster.model import Place, Tasks
from gpushare.errors import GpushareError
from gpushare.paths import SYSTEM_DIR, software_driver_dir

ROOT = Path(__file__).resolve().parents[2]
PYTHON = Path("/usr/bin/python3")
"""Other users may run it; that of the tests may be in a closed home."""
MIB = 2**20
USERS = ("games", "nobody")
RUN = f"{PYTHON} -m gpushare run -q --limit max --request none"
REPORT = """
import json, os, sys
sys.path.insert(0, os.environ["PYTHONPATH"])
from pathlib import Path
from gpushare.client import Client
from gpushare.errors import GpushareError
client = Client(Path(os.environ["GPUSHARE_SOCKET"]))
said = {"uid": os.getuid(), "cgroup": Path("/proc/self/cgroup").read_text().splitlines()[-1][3:]}
for name, job in (("own", None), ("fresh", "feedfeedfeedfeed"), ("other", os.environ["OTHER_JOB"])):
    try:
        found = client.register({"name": "mine", "command": ["x"], "limit": "max", "request": "none", "job": job})
        said[name] = [found["id"], found["gpus"][0]["limit"]]
    except GpushareError as error:
        said[name] = error.code
try:
    client.change(os.environ["GPUSHARE_QUEUE_JOB_OF_NODE"], {"limit": "max"})
except GpushareError as error:
    said["raise"] = error.code
try:
    Path(os.environ["OTHER_CGROUP"], "cgroup.procs").write_text(str(os.getpid()))
except OSError as error:
    said["enter"] = error.errno
print(json.dumps(said), flush=True)
"""


@pytest.fixture
def cgroup_mount():
    """Where cgroup v2 is mounted: here, if it is nowhere."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    known = next((Path(words[1]) for words in mounts if words[2] == "cgroup2"), None)
    if known is not None:
        yield known
        return
    with tempfile.TemporaryDirectory(prefix="gs-cgroup-") as directory:
        if subprocess.run(["mount", "-t", "cgroup2", "none", directory], capture_output=True).returncode:
            pytest.skip("no cgroup v2 can be mounted here")
        try:
            yield Path(directory)
        finally:
            subprocess.run(["umount", directory], check=True)


@pytest.fixture
def node():
    """The system's daemon, in a folder that all users reach."""
    if os.geteuid() != 0:
        pytest.skip("only root runs jobs of several users")
    if not PYTHON.exists():
        pytest.skip(f"needs {PYTHON}: jobs of several users are started with it")
    if not (software_driver_dir() / "libcuda.so.1").exists():
        pytest.skip("the software driver is not built")
    if SYSTEM_DIR.exists():
        pytest.skip("a system daemon's directory exists on this machine and comes first")
    with tempfile.TemporaryDirectory(prefix="gs-system-") as made:
        directory = Path(made)
        directory.chmod(0o755)
        run = directory / "run"
        run.mkdir(mode=0o755)
        environ = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'daemon'}"}
        environ["GPUSHARE_SIM"] = f"gpus=2,memory=4Gi,pool={directory}/pool"
        line = [sys.executable, "-m", "gpushared", "--system", "--driver", "sim", "--dir", str(run)]
        with (directory / "gpushared.log").open("ab") as log:
            daemon = subprocess.Popen(line, env=environ, stderr=log)
        try:
            deadline = time.monotonic() + 60.0
            while not answers(run):
                assert time.monotonic() < deadline and daemon.poll() is None, (directory / "gpushared.log").read_text()
                time.sleep(0.05)
            yield directory
        finally:
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(30)


def answers(run: Path) -> bool:
    try:
        return bool(Client(run / "api.sock").version())
    except GpushareError:
        return False


@pytest.fixture
def stage(node, cgroup_mount, monkeypatch):
    monkeypatch.setattr("gpushare.cluster.engines.local.keepers.sys.executable", str(PYTHON))
    for name in [name for name in os.environ if name.startswith("GPUSHARE_")]:
        monkeypatch.delenv(name)
    environ = {"PATH": os.environ["PATH"], "GPUSHARE_SOCKET": str(node / "run" / "api.sock")}
    service = node / "service"
    service.mkdir(mode=0o711)
    service.chmod(0o711)
    stage = Stage(service, plain=False, system=True, environ=environ)
    stage.until(stage.runner.nodes)
    yield stage
    stage.clear()
    found = stage.runner.placing._cgroups
    if found is not None:
        with contextlib.suppress(OSError):
            found[0].rmdir()


def submitted(stage: Stage, id: str, user: str, script: str, **env: str):
    account = pwd.getpwnam(user)
    home = stage.directory.parent / f"home-{user}"
    if not home.exists():
        home.mkdir(mode=0o700)
        os.chown(home, account.pw_uid, account.pw_gid)
    run = {"cwd": str(home), "grace": 5.0, "output": str(home / f"{id}.log")}
    run["env"] = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **env}
    tasks = (Tasks(memory=500 * MIB, limit=1000 * MIB),)
    return stage.record(id, script, run=run, uid=account.pw_uid, gid=account.pw_gid, tasks=tasks, name=f"of-{user}")


def output(stage: Stage, id: str, user: str) -> str:
    path = stage.directory.parent / f"home-{user}" / f"{id}.log"
    return path.read_text() if path.exists() else ""


def at(stage: Stage, gpu: int) -> list[Place]:
    (seen,) = stage.runner.nodes()
    return [Place(0, 0, seen.node.name, (gpu,), 500 * MIB, 0)]


def test_what_a_user_does_in_its_job_neither_raises_it_nor_enters_anothers(stage, node) -> None:
    client = Client(node / "run" / "api.sock")
    first = submitted(stage, "1", "games", "echo up; sleep 1000")
    assert stage.start(first, places=at(stage, 0)) == Accepted()
    stage.until(lambda: "up" in output(stage, "1", "games"))
    (theirs,) = client.placements()
    assert (theirs["job"]["user"], theirs["state"]) == ("games", "placed")
    (cgroup,) = theirs["cgroups"]
    assert theirs["sessions"] == [], "it has a cgroup"
    folder = stage.runner.placing._cgroups[0] / cgroup.rsplit("/", 1)[1]
    script = f"{PYTHON} -c '{REPORT}'; setsid {PYTHON} -c '{REPORT}'; echo over"
    hostile = {"GPUSHARE_LIMIT": "max", "GPUSHARE_JOB": "feed", "GPUSHARE_MODE": "off", "OTHER_CGROUP": str(folder)}
    hostile |= {"OTHER_JOB": theirs["job"]["id"], "GPUSHARE_QUEUE_JOB_OF_NODE": "of-nobody"}
    record = submitted(stage, "2", "nobody", script, **hostile)
    assert stage.start(record, places=at(stage, 1)) == Accepted()
    stage.until(lambda: "over" in output(stage, "2", "nobody"))
    lines = [json.loads(line) for line in output(stage, "2", "nobody").splitlines() if line.startswith("{")]
    assert len(lines) == 2, output(stage, "2", "nobody")
    job = next(one for one in client.jobs(ended=True) if one["name"] == "of-nobody")
    for said in lines:
        assert said["uid"] == pwd.getpwnam("nobody").pw_uid
        assert said["cgroup"].rsplit("/", 1)[0] == cgroup.rsplit("/", 1)[0] != ""
        assert said["cgroup"] != cgroup
        for name in ("own", "fresh", "other"):
            assert said[name] == [job["id"], 1000 * MIB], "whatever it asks for, it has its placement's job"
        assert said["raise"] == "placed" and said["enter"] == 13
    stage.over("2")
    assert [one["id"] for one in client.placements()] == [theirs["id"]]
    assert client.job(theirs["job"]["id"])["gpus"][0]["limit"] == 1000 * MIB


def test_a_gpu_is_free_when_engine_and_daemon_say_so(stage, node) -> None:
    client = Client(node / "run" / "api.sock")
    record = submitted(stage, "1", "nobody", "trap '' TERM; echo up; sleep 1000")
    stage.start(record, places=at(stage, 0))
    stage.until(lambda: "up" in output(stage, "1", "nobody"))
    (id,) = [one["id"] for one in client.placements()]
    client.place("other/1", {"attempt": 1, "uid": 0, "gpus": ["1"], "request": "3Gi", "limit": "max"})
    (seen,) = stage.until(lambda: (found := stage.runner.nodes())[0].foreign and found)
    assert seen.foreign == ((1, 3 * GIB),), "what another engine has placed is taken"
    assert {one["id"] for one in client.placements()} == {id, "other/1"}
    stage.evict("1", 0.0)
    assert stage.over("1") is None
    stage.until(lambda: [one["id"] for one in client.placements()] == ["other/1"])
    stage.until(lambda: not list(stage.runner.placing._cgroups[0].glob("1.*")))  # its cgroup is gone, too
    client.displace("other/1", 1)


def test_the_service_and_the_daemon_are_killed_and_the_job_keeps_its_placement(stage, node) -> None:
    client = Client(node / "run" / "api.sock")
    stage.start(submitted(stage, "1", "nobody", "echo up; sleep 1000"), places=at(stage, 0))
    stage.until(lambda: "up" in output(stage, "1", "nobody"))
    before = client.placements()
    stage.crash()
    stage.until(stage.runner.nodes)
    after = client.placements()
    assert [(one["id"], one["attempt"], one["cgroups"]) for one in after] == [
        (one["id"], one["attempt"], one["cgroups"]) for one in before
    ]
    stage.evict("1", 0.0)
    assert stage.over("1") is None and client.placements() == []
