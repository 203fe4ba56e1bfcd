"""Slurm on the conformance suite's stand: real batch jobs of a real cluster, without node daemons."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from conformance_stand import RUNS, Queued, Work
from local_conformance import script_of
from local_stage import alive
from slurm_stage import Cluster, missing, open_folder, with_plugins

from gpushare.cluster.engines.runner import Context
from gpushare.cluster.engines.slurm import engine
from gpushare.cluster.engines.slurm.listing import nodes

MIB = 2**20
USER = "games"
PARTITIONS = (
    "PartitionName=gpushare Nodes=ALL Default=YES MaxTime=INFINITE State=UP",
    "PartitionName=plain Nodes=ALL MaxTime=INFINITE State=UP",
)
HEAD = "export GPUSHARE_ARRAY_INDEX=$SLURM_ARRAY_TASK_ID\n"
CANNOT = {**engine.CANNOT, "budget": "no node daemon is here; test_slurm_budget.py shows it"}


class Ground:
    """One cluster for one stand after the other. A job has the licence `never`, so who needs it never starts."""

    def __init__(self, *, nodes: int = 2, gpus: int = 2) -> None:
        self._folder = open_folder()
        root = self._folder.__enter__()
        more = ["Licenses=never:1"]
        self.cluster: Cluster = with_plugins(
            root, more=more, partitions=PARTITIONS, node_timeout=300, kill_wait=3, nodes=nodes, gpus=gpus
        )
        self._holder = ""
        try:
            self.cluster.up()
            self.hold_licence()
        except BaseException:
            self.stop()
            raise

    def hold_licence(self) -> None:
        """The job that has it ends with its node, when a test loses that."""
        if not self._holder or self.cluster.state(self._holder) != "RUNNING":
            options = ("-p", "plain", "-L", "never:1", "--no-requeue")
            holder = self._holder = self.cluster.sbatch("sleep infinity", *options)
            self.cluster.until(lambda: self.cluster.state(holder) == "RUNNING", "nobody has the licence")

    def stop(self) -> None:
        self.cluster.down()
        self._folder.__exit__(None, None, None)


def ground(directory: Path, patch: pytest.MonkeyPatch) -> Ground:
    if missing():
        pytest.skip(missing())
    return Ground()


class SlurmStand(Queued):
    name = "slurm"
    cannot = CANNOT
    within = 90.0
    ground = staticmethod(ground)

    def __init__(self, directory: Path, ground: Ground) -> None:
        ground.hold_licence()
        self.directory = directory
        self.cluster = ground.cluster
        self.marks = self.cluster.root / "jobs" / directory.name
        self.marks.mkdir(mode=0o777)
        self.marks.chmod(0o777)
        self.keys: dict[str, str] = {}
        self.outputs: dict[str, Path] = {}
        self.others: dict[tuple[str, int], str] = {}
        self.count = 0
        self.open_engine()
        self.open_ledger()

    def open_engine(self) -> None:
        settings = {"conf": str(self.cluster.conf), "start_within": 8}
        self.engine = engine.Slurm(Context(settings, self.clock, self.directory, (), True))

    def seen_of_all(self) -> str:
        return f"{super().seen_of_all()}\n{self.cluster.picture()}"

    # ---- jobs ------------------------------------------------------------------------------------------

    def submit(
        self,
        work: Work = RUNS,
        *,
        queue="a",
        gpus=1,
        tasks=1,
        share=None,
        limit=None,
        priority=50,
        held=False,
        preemptible=True,
        movable=False,
    ) -> str:
        queue += ("" if preemptible else ",preemptible=no") + (",movable=yes" if movable else "")
        return self._submit(work, queue, gpus, tasks, share, limit, priority, *(["--hold"] if held else []))

    def submit_array(self, count: int, work: Work = RUNS, *, queue: str = "a") -> list[str]:
        array = self._submit(work, queue, 1, 1, None, None, 50, f"--array=0-{count - 1}")
        uids = [f"{array}_{index}" for index in range(count)]
        for index, uid in enumerate(uids):
            self.keys[uid], self.outputs[uid] = f"{self.keys[array]}_{index}", self.outputs[array]
        return uids

    def _submit(self, work: Work, queue, gpus, tasks, share, limit, priority, *options: str) -> str:
        self.count += 1
        key, cwd = f"k{self.count}", self.marks / f"work{self.count}"
        cwd.mkdir(mode=0o777)
        cwd.chmod(0o777)
        words = {"queue": queue, "gpus": gpus, "priority": priority}
        words |= {name: f"{one * 100:g}%" for name, one in (("request", share), ("limit", limit)) if one is not None}
        said = ",".join(f"{name}={value}" for name, value in words.items())
        script = self.marks / f"{key}.sh"
        script.write_text(f"#!/bin/sh\n{HEAD}{script_of(work, self.marks / key)}")
        script.chmod(0o755)
        if tasks > 1:
            gang = self.marks / f"{key}.gang"
            gang.write_text(f"#!/bin/sh\nexec srun -n{tasks} {script}\n")
            gang.chmod(0o755)
            options, script = (*options, f"-N{tasks}"), gang
        if work.broken:
            options = (*options, "-L", "never:1")
        done = self.cluster.run(
            *["sbatch", "--parsable", f"--gpushare={said}", f"--output={cwd}/out", f"--chdir={cwd}", *options],
            str(script),
            user=USER,
            check=True,
            env=dict(work.env or {}),
        )
        uid = done.stdout.strip()
        self.keys[uid], self.outputs[uid] = key, cwd / "out"
        return uid

    def cancel(self, uid: str) -> None:
        self.cluster.run("scancel", uid, user=USER)

    def cancel_each(self, uids: Iterable[str]) -> None:
        """By one command: a thousand take minutes on a loaded machine."""
        self.cluster.run("scancel", *uids, user=USER)

    def release(self, uid: str) -> None:
        self.cluster.run("scontrol", "release", uid, user=USER, check=True)

    def _pids(self, uid: str, end: str = "") -> list[int]:
        path = self.marks / f"{self.keys[uid]}{end}"
        return [int(one) for one in path.read_text().split()] if path.exists() else []

    def began(self, uid: str) -> int:
        return len(self._pids(uid))

    def alive(self, uid: str) -> int:
        return sum(alive(pid) for end in ("", ".left") for pid in self._pids(uid, end))

    def output(self, uid: str) -> str:
        return self.outputs[uid].read_text() if self.outputs[uid].exists() else ""

    def result(self, uid: str) -> tuple[str, int | None] | None:
        if self.cluster.state(uid) not in ("COMPLETED", "FAILED", "CANCELLED"):
            return None
        if self.cluster.state(uid) == "CANCELLED":
            return "cancelled", None
        status, number = map(int, self.cluster.show(uid)["ExitCode"].split(":"))
        return ("failed" if status or number else "done"), (-number or status)

    # ---- the world -------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def clock(self) -> float:
        return time.time() + self.shift

    def _set(self, node: str, *changes: str) -> None:
        self.cluster.run("scontrol", "update", f"NodeName={node}", *changes)

    def cordon(self, node: str, *, draining: bool = False) -> None:
        self._set(node, "State=DRAIN", f"Reason={engine.LEAVE if draining else 'closed'}")

    def uncordon(self, node: str) -> None:
        self._set(node, "State=RESUME")

    def foreign(self, node: str, gpu: int, amount: int) -> None:
        if amount:
            options = ["-p", "plain", "-w", node, f"--gres=gpumem:g{gpu}:{amount // MIB}"]
            self.others[node, gpu] = self.cluster.sbatch("sleep 1000", *options)
        else:
            self.cluster.run("scancel", self.others.pop((node, gpu)))

    def silence(self, node: str) -> None:
        self.cluster.kill(f"slurmd.{node}", signal.SIGSTOP)
        while self._answers(node):  # what it had said before may count until then
            self._set(node, "State=NORESP")
            time.sleep(1.5)

    def _answers(self, node: str) -> bool:
        shown = nodes(self.cluster.run("scontrol", "-o", "show", "node", node, check=True).stdout)
        return next(shown).responds

    def lose(self, node: str) -> None:
        ids = self.cluster.run("squeue", "-h", "-p", "gpushare", "-w", node, "-o", "%A").stdout.split()
        self.cluster.stop(f"slurmd.{node}", signal.SIGKILL)
        for pid in processes(self.cluster.conf, node, ids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._set(node, "State=DOWN", "Reason=lost")

    def bring_back(self, node: str) -> None:
        """Killed: one of Slurm 24.11 that was silent may take minutes to end when it is asked to. Its jobs go on."""
        self.cluster.kill(f"slurmd.{node}", signal.SIGCONT)
        self.cluster.stop(f"slurmd.{node}", signal.SIGKILL)
        self.cluster.start_node(node)
        self._set(node, "State=RESUME")

    def kill_engine(self) -> None:
        """After a while in which Slurm notes what has happened: of the last seconds it forgets everything."""
        time.sleep(8)
        daemons = ["slurmctld", *(f"slurmd.{name}" for name in self.cluster.names)]
        for daemon in daemons:
            self.cluster.stop(daemon, signal.SIGKILL)
        self.cluster.start_controller()
        for name in self.cluster.names:
            self.cluster.start_node(name)

    def clear(self) -> None:
        self.cluster.run("scancel", "-p", "gpushare", "--full", "-s", "KILL", timeout=20)
        self.cluster.run("scancel", "-p", "gpushare", timeout=20)
        for other in self.others.values():
            self.cluster.run("scancel", other)
        self.cluster.until(
            lambda: not self.cluster.run("squeue", "-h", "-p", "gpushare").stdout.strip(), "jobs are left"
        )
        for one in self.engine.snapshot().nodes:
            if one.state != "ready":
                self.bring_back(one.node.name)
            self._set(one.node.name, "Extra=")
        self.cluster.take_jobs_again()
        self.close()


def processes(conf: Path, node: str, ids: list[str]) -> Iterator[int]:
    """Of these jobs on this node: Slurm's own and theirs. Another cluster on this machine, with a configuration of its
    own, may have a node and a job of the same names."""
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (path / "cmdline").read_bytes().decode(errors="replace")
            environ = (path / "environ").read_bytes().split(b"\0")
            if f"SLURM_CONF={conf}".encode() not in environ:
                continue
            stepd = words.startswith("slurmstepd: [") and words[13:].split(".")[0] in ids
            if stepd or f"SLURMD_NODENAME={node}".encode() in environ:
                yield int(path.name)


__all__ = ["SlurmStand"]
