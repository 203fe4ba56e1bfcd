"""The local engine with the real node daemon, on the software driver: what is in force in the program itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
from cuda_program import OPENED
from local_stage import Stage, alive, kill

from gpushare.cluster.engines.seam import Accepted
from gpushare.cluster.model import Place, Tasks
from gpushare.paths import SYSTEM_DIR, library

MIB = 2**20
LOOK = (
    OPENED
    + """
import os
within = cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(100 << 20))
beyond = cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1000 << 20))
print(os.environ["CUDA_VISIBLE_DEVICES"], count.value, total.value >> 20, within, beyond, flush=True)
"""
)
"""What a program sees, and whether it may have 100 MiB and then 1000 MiB more."""
PROGRAM = [sys.executable, "-c", LOOK]
BUDGET = (Tasks(memory=800 * MIB, limit=1000 * MIB),)
"""Room for a context, too."""


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    if not library().exists():
        pytest.skip(f"{library()} is not built")
    if SYSTEM_DIR.exists():
        pytest.skip("a system daemon's directory exists on this machine and comes first")
    directory = tmp_path_factory.mktemp("real")
    runtime = directory / "run"
    runtime.mkdir(mode=0o700)
    environ = {"PATH": os.environ["PATH"], "HOME": str(directory), "XDG_RUNTIME_DIR": str(runtime)}
    environ |= {"XDG_CONFIG_HOME": str(directory / "config"), "XDG_STATE_HOME": str(directory / "state")}
    environ["GPUSHARE_SIM"] = f"gpus=2,memory=4Gi,pool={directory}/pool"
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("GPUSHARE_")]:
            patch.delenv(name)
        for name, value in environ.items():
            patch.setenv(name, value)
        stage = Stage(directory, plain=False, environ=environ)
        stage.until(stage.runner.nodes)
        pid = stage.runner.daemon.client().version()["pid"]
        yield stage
        stage.clear()
        kill(pid)


def at(real: Stage, gpu: int, amount: int = 800 * MIB) -> list[Place]:
    (seen,) = real.runner.nodes()
    return [Place(0, 0, seen.node.name, (gpu,), amount, 0)]


def test_the_budget_is_in_force_on_exactly_its_gpu_whatever_the_environment_says(real) -> None:
    (seen,) = real.runner.nodes()
    assert (seen.state, seen.node.gpus, seen.node.broken, len(seen.node.uuids)) == ("ready", 2, frozenset(), 2)
    hostile = {"GPUSHARE_LIMIT": "max", "GPUSHARE_REQUEST": "max", "GPUSHARE_MODE": "off", "GPUSHARE_DRIVER": "nvidia"}
    hostile |= {"CUDA_VISIBLE_DEVICES": "0", "GPUSHARE_JOB": "feed", "GPUSHARE_SOCKET": "/nowhere/api.sock"}
    hostile |= {"GPUSHARE_PROFILE": "none such", "GPUSHARE_REQUIRE_DAEMON": "0", "RUNAI_GPU_MEMORY_LIMIT": "1.0"}
    for id, extra in (("1", {}), ("2", hostile)):
        record = real.record(id, PROGRAM, tasks=BUDGET, run={"env": {**real.environ, **extra}})
        assert real.start(record, places=at(real, 1)) == Accepted()
        done = real.over(id)
        assert (done.phase, done.exit, done.gpus) == ("done", 0, (1,)), real.output(id)
        assert real.output(id).splitlines()[-1] == f"{seen.node.uuids[1]} 1 1000 0 2", real.output(id)
        real.runner.collect(id)


def test_two_gpus_are_two_gpus(real) -> None:
    (seen,) = real.runner.nodes()
    record = real.record("3", PROGRAM, tasks=(replace(BUDGET[0], gpus=2),))
    real.start(record, places=[at(real, 0)[0]._replace(gpus=(1, 0))])
    assert real.over("3").exit == 0
    assert real.output("3").splitlines()[-1] == f"{seen.node.uuids[1]},{seen.node.uuids[0]} 2 1000 0 2"


def test_a_whole_gpu_is_all_that_there_is_to_have(real) -> None:
    (seen,) = real.runner.nodes()
    real.start(real.record("4", PROGRAM), places=at(real, 0, seen.node.memory))
    assert real.over("4").exit == 0
    assert real.output("4").split()[2:] == [str(seen.node.memory // MIB), "0", "0"]


def test_what_others_have_is_foreign_and_what_is_ours_is_not(real) -> None:
    record = real.record("5", ["sleep", "60"], tasks=BUDGET, name="mine", run={"grace": 5.0})
    real.start(record, places=at(real, 0))
    real.until(lambda: real.task("5").phase == "running")
    other = subprocess.Popen(
        [sys.executable, "-P", "-m", "gpushare", "run", "-q", "--gpu", "1", "--request", "64Mi", "sleep", "60"],
        env={**real.environ, "GPUSHARE_DRIVER": "sim"},
    )
    try:
        (seen,) = real.until(lambda: (nodes := real.runner.nodes())[0].foreign and nodes)
        assert seen.foreign == ((1, 64 * MIB),)
        job = next(job for job in real.runner.daemon.client().jobs() if job["name"] == "mine")
        assert (job["priority"], job["grace"]) == (0, 5.0)
        assert [(gpu["request"], gpu["limit"]) for gpu in job["gpus"]] == [(800 * MIB, 1000 * MIB)]
        assert real.start(record, places=at(real, 0, 900 * MIB)) == Accepted()
        assert real.runner.daemon.client().job(job["id"])["gpus"][0]["request"] == 900 * MIB
    finally:
        other.send_signal(signal.SIGTERM)
        other.wait()
        real.evict("5")
    assert real.over("5") is None
    real.until(lambda: real.runner.nodes()[0].foreign == ())


def test_a_program_that_is_not_there_ends_its_job_and_is_named(real) -> None:
    real.start(real.record("6", ["./nowhere"]), places=at(real, 0))
    done = real.over("6")
    assert (done.phase, done.exit, done.why) == ("done", 127, "command not found: ./nowhere")


def test_its_status_is_known_although_keeper_and_service_were_killed(real) -> None:
    script = "echo up; while [ ! -e go ]; do sleep 0.05; done; exit 9"
    real.start(real.record("7", script, tasks=BUDGET), places=at(real, 0))
    real.said("up", "7")
    real.kill_keeper("7")
    real.crash()
    real.until(real.runner.nodes)
    assert real.task("7").phase == "running"
    (real.directory / "go").touch()
    assert (real.over("7").phase, real.over("7").exit) == ("done", 9)


def test_a_task_that_was_stopped_starts_again_in_the_same_attempt_of_its_job(real) -> None:
    record = real.record("9", "echo up; sleep 60", tasks=BUDGET)
    for times in (1, 2, 3):
        real.until(lambda: real.start(record, places=at(real, 1)) == Accepted())
        real.until(lambda wanted=times: real.output("9").count("up") == wanted)
        real.evict("9", 0.0)
        assert real.over("9") is None


def test_the_node_daemon_is_killed_and_nothing_of_it_is_lost(real) -> None:
    real.start(real.record("8", "echo up; sleep 60", tasks=BUDGET), places=at(real, 1))
    real.said("up", "8")
    client = real.runner.daemon.client()
    pid = client.version()["pid"]
    kill(pid)
    real.until(lambda: not alive(pid))
    (seen,) = real.until(real.runner.nodes)
    assert (seen.state, seen.node.gpus) == ("ready", 2), "this user's daemon was started again"
    assert real.task("8").phase == "running"
    real.until(lambda: real.runner.nodes()[0].foreign == () and real.runner.daemon.client().jobs())
    real.evict("8")
    assert real.over("8") is None
    kill(real.runner.daemon.client().version()["pid"])
