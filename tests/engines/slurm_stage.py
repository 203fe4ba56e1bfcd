"""A real Slurm cluster on this machine: one controller, several slurmd, each with GPUs that are device files.

Everything is in a folder of its own and is stopped by the process ids that it has noted. Nothing of the system's own
Slurm is touched.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import slurm_root
from local_stage import alive

from gpushare.cluster.engines import slurm as package
from gpushare.cluster.engines.runner import Context
from gpushare.cluster.engines.slurm.engine import Slurm
from gpushare.cluster.model import Policy, Queue, QueueAdded
from gpushare.cluster.quantity import gpus
from gpushare.cluster.service.common import Caller
from gpushare.cluster.service.driver import Options
from gpushare.cluster.service.of_queue import QueueService
from gpushare.cluster.store import Store

Done = subprocess.CompletedProcess[str]
PROGRAMS = ("munged", "slurmctld", "slurmd", "scontrol", "squeue", "sbatch", "scancel")
PACKAGES = "slurmctld slurmd slurm-client munge slurm-wlm-basic-plugins libslurm-dev"
PLUGIN = "usr/lib/x86_64-linux-gnu/slurm-wlm/job_submit_lua.so"
SBIN = "/usr/local/sbin:/usr/sbin:/sbin"
if entered := slurm_root.enter():
    os.environ["PATH"] = f"{entered}:{os.environ['PATH']}"
FILES = Path(package.__file__).parent
ROOT = Caller(0, 0, "root", admin=True)
WITHIN = 100.0
"""Seconds: a loaded machine is slow."""

CONF = """
ClusterName=gpushare
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge/socket
CredType=cred/munge
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool/%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.%n.pid
SlurmctldLogFile={root}/log/slurmctld.log
SlurmdLogFile={root}/log/slurmd.%n.log
SlurmctldDebug=info
SlurmdDebug=info
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType={accounting}
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0,sched_min_interval=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu,shard,gpumem
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
JobRequeue=1
MaxJobCount=20000
MinJobAge=300
KillWait={kill_wait}
SlurmctldTimeout=5
SlurmdTimeout={node_timeout}
MessageTimeout=10
PropagateResourceLimits=NONE
SlurmdParameters=config_overrides
{more}
"""
NODE = (
    "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=64 Sockets=1 CoresPerSocket=64"
    " ThreadsPerCore=1 RealMemory=1000 Gres=gpu:{gpus},shard:{shards},{counters} State=UNKNOWN"
)


def missing() -> str:
    """Why no cluster can be started here; "" if it can."""
    if not os.environ.get("GPUSHARE_TEST_ENGINES"):
        return "starts real servers: make test-engines"
    if wrong := slurm_root.wrong():
        return wrong
    path = os.environ["PATH"] + ":" + SBIN
    absent = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if absent:
        return f"needs {', '.join(absent)}: apt-get install --no-install-recommends {PACKAGES}"
    if os.geteuid() != 0:
        return "needs root: jobs of several users are started"
    if not (slurm_root.directory() or Path("/")).joinpath(PLUGIN).exists():
        return f"needs /{PLUGIN}: apt-get install slurm-wlm-basic-plugins"
    return ""


@dataclass
class Cluster:
    """Of a folder, which must be readable by everybody."""

    root: Path
    nodes: int = 2
    gpus: int = 2
    memory: int = 16 * 1024
    """MiB of one GPU."""
    kill_wait: int = 3
    node_timeout: int = 10
    accounting: str = "accounting_storage/none"
    more: Sequence[str] = ()
    """Further lines of slurm.conf. `{root}` is the folder."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Name -> text of further files beside slurm.conf. `{root}` is the folder."""
    partitions: Sequence[str] = ("PartitionName=gpushare Nodes=ALL Default=YES MaxTime=INFINITE State=UP",)

    @property
    def conf(self) -> Path:
        return self.root / "etc" / "slurm.conf"

    @property
    def names(self) -> list[str]:
        return [f"n{number}" for number in range(self.nodes)]

    @property
    def environ(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "GPUSHARE"))}
        return {**kept, "SLURM_CONF": str(self.conf), "PATH": f"{os.environ['PATH']}:{SBIN}"}

    # ---- start and stop --------------------------------------------------------------------------------

    def up(self) -> Cluster:
        self._write()
        self._start_munge()
        self.start_controller("-c")
        for name in self.names:
            self.start_node(name)
        self.until(lambda: self.ready() == self.nodes, "the nodes did not come up")
        return self

    def ready(self) -> int:
        shown = self.run("scontrol", "-o", "show", "node").stdout.splitlines()
        return sum("State=IDLE" in line and "SlurmdStartTime=2" in line for line in shown)

    def down(self) -> None:
        """Jobs first, so that no slurmstepd is left."""
        with contextlib.suppress(subprocess.SubprocessError):
            if self._pid("slurmctld"):
                self.cancel_all()
        for path in sorted(self.root.glob("*.pid"), key=lambda path: path.name == "munged.pid"):
            self.kill(path.stem, signal.SIGTERM)
        for path in list(self.root.glob("*.pid")):
            if not self._ended(path.stem, 10.0):
                self.kill(path.stem)

    def take_jobs_again(self) -> None:
        """A controller that was killed before it wrote what it had started drains the node of such a job ("Duplicate
        jobid"), until an administrator has looked. Nodes that need nothing refuse it."""
        for name in self.names:
            self.run("scontrol", "update", f"NodeName={name}", "State=RESUME")

    def cancel_all(self) -> None:
        ids = self.run("squeue", "-h", "-o", "%A", timeout=10).stdout.split()
        if ids:
            self.run("scancel", *sorted(set(ids)), timeout=20)
        deadline = time.monotonic() + 20
        while self.run("squeue", "-h", "-o", "%A", timeout=10).stdout.split() and time.monotonic() < deadline:
            time.sleep(0.1)

    def start_controller(self, *options: str) -> None:
        self._forget("slurmctld")
        self.run("slurmctld", "-f", str(self.conf), *options, check=True)
        self.until(lambda: "UP" in self.run("scontrol", "ping").stdout, "slurmctld does not answer")

    def start_node(self, name: str) -> None:
        self._forget(f"slurmd.{name}")
        self.run("slurmd", "-f", str(self.conf), "-N", name, check=True)

    def kill(self, daemon: str, number: signal.Signals = signal.SIGKILL) -> None:
        """slurmctld, or slurmd.n0 and so on."""
        pid = self._pid(daemon)
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def stop(self, daemon: str, number: signal.Signals = signal.SIGTERM) -> None:
        self.kill(daemon, number)
        assert self._ended(daemon, WITHIN), f"{daemon} did not stop"

    def _ended(self, daemon: str, seconds: float) -> bool:
        deadline, pid = time.monotonic() + seconds, self._pid(daemon)
        while pid and alive(pid):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def _pid(self, daemon: str) -> int:
        """0: it does not run."""
        with contextlib.suppress(OSError, ValueError):
            pid = int((self.root / f"{daemon}.pid").read_text())
            return pid if alive(pid) else 0
        return 0

    def _forget(self, daemon: str) -> None:
        assert not self._pid(daemon), f"{daemon} runs already"
        (self.root / f"{daemon}.pid").unlink(missing_ok=True)

    def _start_munge(self) -> None:
        folder = self.root / "munge"
        key = folder / "key"
        if not key.exists():
            key.write_bytes(os.urandom(128))
            key.chmod(0o400)
        places = {"key-file": key, "socket": folder / "socket", "pid-file": self.root / "munged.pid"}
        places |= {"log-file": self.root / "log" / "munged.log", "seed-file": folder / "seed"}
        self._forget("munged")
        options = [f"--{name}={path}" for name, path in places.items()]
        self.run("munged", "--force", "--num-threads=2", *options, check=True)
        self.until((folder / "socket").exists, "munged has no socket")

    def _write(self) -> None:
        for name in ("etc", "state", "log", "dev", "spool", "munge", "jobs"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        self.root.chmod(0o755)
        (self.root / "jobs").chmod(0o1777)
        ports = free_ports(self.nodes + 1)
        host = socket.gethostname().split(".")[0]
        more = "\n".join(self.more).replace("{root}", str(self.root))
        lines = [
            CONF.format(
                host=host,
                port=ports[0],
                root=self.root,
                kill_wait=self.kill_wait,
                node_timeout=self.node_timeout,
                accounting=self.accounting,
                more=more,
            )
        ]
        gres = ["AutoDetect=off"]
        for name, port in zip(self.names, ports[1:], strict=True):
            (self.root / "spool" / name).mkdir(exist_ok=True)
            counters = ",".join(f"gpumem:g{gpu}:{self.memory}" for gpu in range(self.gpus))
            shards = 100 * self.gpus
            lines.append(NODE.format(name=name, host=host, port=port, gpus=self.gpus, shards=shards, counters=counters))
            for gpu in range(self.gpus):
                device(self.root / "dev" / f"{name}-gpu{gpu}")
            files = f"{self.root}/dev/{name}-gpu[0-{self.gpus - 1}]"
            gres.append(f"NodeName={name} Name=gpu File={files}")
            gres.append(f"NodeName={name} Name=shard Count={shards} File={files}")
            gres += [
                f"NodeName={name} Name=gpumem Type=g{gpu} Count={self.memory} Flags=CountOnly"
                for gpu in range(self.gpus)
            ]
        self.conf.write_text("\n".join([*lines, *self.partitions]) + "\n")
        (self.root / "etc" / "gres.conf").write_text("\n".join(gres) + "\n")
        if self.version() >= (23, 11):
            (self.root / "etc" / "cgroup.conf").write_text("CgroupPlugin=disabled\n")
        for name, text in self.files.items():
            path = self.root / "etc" / name
            path.write_text(text.replace("{root}", str(self.root)))
            path.chmod(0o755)

    # ---- use -------------------------------------------------------------------------------------------

    def version(self) -> tuple[int, ...]:
        """Such as (22, 5, 8)."""
        said = self.run("slurmctld", "-V", check=True).stdout.split()[-1]
        return tuple(int(part) for part in re.findall(r"\d+", said)[:3])

    def run(self, *words: str, user: str | None = None, check: bool = False, **more: Any) -> Done:
        """A command of Slurm, as root or as another user."""
        timeout = more.pop("timeout", 30.0)
        identity = {} if user is None else {"user": user, "group": user, "extra_groups": []}
        environ = {**self.environ, **more.pop("env", {})}
        done = subprocess.run(
            words,
            env=environ,
            cwd=more.pop("cwd", self.root / "jobs"),
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
            **identity,
            **more,
        )
        if check and done.returncode:
            raise AssertionError(f"{' '.join(words)}: {done.returncode}: {done.stdout}{done.stderr}")
        return done

    def sbatch(self, script: str, *options: str, user: str | None = None) -> str:
        """The id of the job."""
        path = self.root / "jobs" / f"job-{time.monotonic_ns()}.sh"
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)
        done = self.run("sbatch", "--parsable", "-o", "job-%j.out", *options, str(path), user=user, check=True)
        return done.stdout.strip().split(";")[0]

    def state(self, id: str) -> str:
        """As squeue says it; "" if it is over and forgotten."""
        return self.run("squeue", "-h", "-t", "all", "-j", id, "-o", "%T").stdout.strip()

    def show(self, id: str) -> dict[str, str]:
        shown = self.run("scontrol", "-o", "show", "job", id).stdout.split("\n")[0]
        return dict(word.partition("=")[::2] for word in shown.split(" ") if "=" in word)

    def output(self, id: str) -> str:
        path = self.root / "jobs" / f"job-{id}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def until(self, true: Callable[[], Any], what: str, seconds: float = WITHIN) -> Any:
        deadline = time.monotonic() + seconds
        while not (found := true()):
            assert time.monotonic() < deadline, f"{what}\n{self.picture()}"
            time.sleep(0.05)
        return found

    def picture(self) -> str:
        """What Slurm says of its jobs and nodes, and the end of its log: for who reads of a failure."""
        jobs = self.run("squeue", "-a", "-t", "all", "-o", "%i %T %r %N %S").stdout
        nodes = self.run("sinfo", "-N", "-o", "%N %T %E").stdout
        log = (self.root / "log" / "slurmctld.log").read_text(errors="replace").splitlines()
        return "\n".join([jobs, nodes, *log[-60:]])


@contextlib.contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that other users can enter: pytest closes its own."""
    with tempfile.TemporaryDirectory(prefix="gs-slurm-", dir="/tmp", ignore_cleanup_errors=True) as path:
        Path(path).chmod(0o755)
        yield Path(path)


NO_BUDGET = """#!/bin/sh
mkdir -p {root}/budgets
: > {root}/budgets/$SLURM_JOB_ID.$SLURMD_NODENAME.env
: > {root}/budgets/$SLURM_JOB_ID.$SLURMD_NODENAME.place
"""
"""A Prolog where no node daemon is: tasks get no variables, and steps join nothing."""


def with_plugins(root: Path, prolog: str = NO_BUDGET, kind: type[Cluster] = Cluster, **more: Any) -> Cluster:
    """A cluster whose jobs are held for the allocator."""
    files = {name: (FILES / name).read_text() for name in ("job_submit.lua", "gpushare_submit.lua")}
    files["plugstack.conf"] = f"required {build_spank(root)} dir={root}/budgets\n"
    files["prolog"] = prolog
    lines = ["JobSubmitPlugins=lua", "PlugStackConfig={root}/etc/plugstack.conf", "Prolog={root}/etc/prolog"]
    lines += more.pop("more", ())
    return kind(root, files={**files, **more.pop("files", {})}, more=lines, **more)


@contextlib.contextmanager
def running() -> Iterator[Cluster]:
    """Such a cluster, until the end of the block."""
    with open_folder() as root:
        cluster = with_plugins(root)
        try:
            yield cluster.up()
        finally:
            cluster.down()


def build_spank(folder: Path) -> Path:
    """AssertionError with the compiler's words."""
    made = folder / "spank_gpushare.so"
    words = ["gcc", "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-o", str(made)]
    done = subprocess.run([*words, str(FILES / "spank_gpushare.c")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return made


def device(path: Path) -> None:
    """Slurm takes only character devices for GPUs."""
    if path.is_symlink() or path.exists():
        return
    try:
        os.mknod(path, 0o666 | 0o020000, os.makedev(1, 3))
    except OSError:
        path.symlink_to("/dev/null")


def free_ports(count: int) -> list[int]:
    """So many on which nobody listens."""
    sockets = []
    try:
        for _ in range(count):
            one = socket.socket()
            one.bind(("127.0.0.1", 0))
            sockets.append(one)
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


class Stage:
    """A cluster with the plug-in for submission, and one service after the other over it."""

    def __init__(self, cluster: Cluster, directory: Path, **settings: Any) -> None:
        self.cluster = cluster
        self.directory = directory
        self.open(**settings)

    def open(self, **settings: Any) -> QueueService:
        """The service starts, perhaps again."""
        self.directory.mkdir(exist_ok=True)
        path = self.directory / "cluster.db"
        self.store = Store.open(path) if path.exists() else Store.create(path, Policy(endings="reported"))
        known = {"conf": str(self.cluster.conf), **settings}
        self.engine = Slurm(Context(known, time.time, self.directory, (), True))
        self.service = QueueService(
            self.store, self.engine, engine="slurm", clock=time.time, options=Options(grace=2.0)
        )
        return self.service

    def crash(self, **settings: Any) -> None:
        """The service is gone, and another one starts."""
        self.store.close()
        self.open(**settings)

    def clear(self) -> None:
        """No job is left, all nodes take jobs, and nobody leads."""
        self.cluster.cancel_all()
        self.cluster.take_jobs_again()
        self.engine.close()
        self.store.close()

    def round(self) -> None:
        self.service.work.round()

    def until(self, true: Callable[[], Any], what: str, seconds: float = WITHIN) -> Any:
        """Round after round."""

        def looked() -> Any:
            self.round()
            return true()

        return self.cluster.until(looked, what, seconds)

    def job(self, id: str) -> dict[str, Any]:
        return self.service.show(id, ROOT)

    def running(self, id: str) -> dict[str, Any]:
        """Wait until it runs."""
        self.until(lambda: self.cluster.state(id) == "RUNNING", f"{id} does not run: {self.cluster.show(id)}")
        self.until(lambda: self.job(id)["state"] == "running", f"{id} is not shown as running")
        return self.job(id)

    def gpus(self, id: str) -> list[tuple[str, tuple[int, ...]]]:
        return [(task["node"], tuple(task["gpus"])) for task in self.job(id)["tasks"]]

    def queues(self, **quotas: float) -> None:
        """With these guarantees (GPUs)."""
        self.service.work.append([QueueAdded(Queue(name, quota=gpus(quota))) for name, quota in quotas.items()])
