"""Real nodes of a real API server: a kubelet and a containerd for each, and controllers and kube-scheduler for all.

Each node is a mount namespace of its own, where the usual paths (/var/lib/kubelet, /run/gpushare, /var/run/cdi) are
folders of the test: nothing of this machine's own is touched, several nodes have the same paths, and manifests are
used as they are. There is no network of pods. Images have nothing but names of folders; /usr, Python and the source
tree come from this machine.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from kube_stage import PYTHONPATH, ROOT, until
from real_api_server import RealApiServer, binary, free_ports

from gpushare.client import Client
from gpushare.errors import GpushareError
from gpushare.paths import software_driver_dir

PROGRAMS = ("kube-controller-manager", "kube-scheduler", "kubelet", "containerd", "ctr", "runc")
WITHIN = 90.0
"""Seconds: a loaded machine is slow."""
PLACES = {
    "gpushare": "/run/gpushare",
    "kubelet": "/var/lib/kubelet",
    "cdi": "/run/cdi",
    "dra": "/var/lib/gpushare-dra",
    "nvidia": "/etc/cdi",
    "containerd": "/run/containerd",
    "log": "/var/log/pods",
    "containers": "/var/log/containers",
}
"""Folder of the test -> where a node has it."""
OVER = (
    "mkdir -p /run/.over{0}/up /run/.over{0}/work; "
    "mount -t overlay none -o lowerdir={0},upperdir=/run/.over{0}/up,workdir=/run/.over{0}/work {0}"
)
SYSCTLS = ("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops")
"""The kubelet sets them."""
IMAGE = "gpushare.test/host:1"
PAUSE = "gpushare.test/pause:1"
PAUSES = "#include <signal.h>\n#include <unistd.h>\nint main(void) { for (;;) pause(); }\n"
CNI = """#!/bin/sh
case "$CNI_COMMAND" in
VERSION) echo '{"cniVersion":"0.3.1","supportedVersions":["0.3.1"]}';;
ADD) echo '{"cniVersion":"0.3.1","ips":[{"version":"4","address":"10.99.0.2/24"}]}';;
*) echo '{}';;
esac
"""
CONTAINERD = """
version = 3
root = "{folder}/root"
state = "/run/containerd/state"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "native"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "{pause}"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  enable_cdi = true
  cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{cni}"]
    conf_dir = "{cni}/configuration"
"""
CONTROLLERS = "kube-controller-manager"
PACE = (
    "--controllers=*,-nodeipam,-node-route-controller,-service-lb-controller,-cloud-node-lifecycle-controller",
    "--node-monitor-grace-period=16s",
    "--node-monitor-period=1s",
    "--kube-api-qps=500",
    "--kube-api-burst=1000",
)
OLDEST = 36
"""Of Kubernetes 1: before it a part of a GPU cannot be claimed with what is on by default."""
HIERARCHIES = Path("/sys/fs/cgroup")


def missing() -> str:
    """Why there can be none; "" if there can."""
    absent = [name for name in PROGRAMS if binary(name) is None]
    if absent:
        return f"needs {', '.join(absent)} in GPUSHARE_TEST_KUBE_BIN or on the PATH"
    if os.geteuid() != 0:
        return "needs root: kubelets start containers"
    return "" if (software_driver_dir() / "libcuda.so.1").exists() else "the software driver is not built"


def too_old() -> str:
    program = binary("kube-apiserver")
    if program is None:
        return ""
    said = subprocess.run([program, "--version"], capture_output=True, text=True).stdout.strip()
    found = re.search(r"v1\.(\d+)", said)
    return "" if found and int(found[1]) >= OLDEST else f"{said} has no parts of devices: Kubernetes 1.{OLDEST} has"


class RealNode:
    """One node. Its parts are killed by the process ids that were noted here."""

    def __init__(self, cluster: RealNodes, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.folder = cluster.folder / name
        self.cgroup = f"{cluster.folder.name}-{os.getpid()}-{name}"
        """Of this node alone: a kubelet ends what is in it of no pod of its own, and tests have several clusters."""
        self.pool = self.folder / "pool"
        self.parts: dict[str, subprocess.Popen[bytes]] = {}
        self.ports = free_ports(2)
        for one in (*PLACES, "pool"):
            (self.folder / one).mkdir(parents=True)
        self.folder.chmod(0o755)
        self.pool.chmod(0o777)
        steps = ["set -e", "mount -t tmpfs none /run", *map(OVER.format, ("/var/lib", "/var/log", "/etc"))]
        for mine, theirs in PLACES.items():
            steps.append(f"mkdir -p {theirs}; mount --bind --make-rshared {self.folder / mine} {theirs}")
        steps.append("echo ready; exec sleep infinity")
        self.holder = subprocess.Popen(
            ["unshare", "-m", "--propagation", "private", "sh", "-c", "; ".join(steps)], stdout=subprocess.PIPE
        )
        assert self.holder.stdout is not None
        with self.holder.stdout as told:
            assert told.readline() == b"ready\n"
        make_cgroups(self.cgroup)

    # ---- its parts -------------------------------------------------------------------------------------

    def start(self, part: str) -> None:
        """containerd, kubelet, daemon or plugin; it answers when this returns."""
        line, ready = getattr(self, f"_{part}")()
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("GPUSHARE", "KUBE"))}
        environ["PATH"] = f"{Path(str(binary('kubelet'))).parent}:{os.environ['PATH']}"
        environ |= {"PYTHONPATH": PYTHONPATH, "GPUSHARE_SOCKET": "/run/gpushare/api.sock", **self.driver}
        with (self.folder / f"{part}.log").open("ab") as log:
            words = ["nsenter", "-t", str(self.holder.pid), "-m", *map(str, line)]
            self.parts[part] = subprocess.Popen(words, env=environ, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self.wait_for(part, ready)

    def wait_for(self, part: str, ready: Callable[[], object]) -> None:
        def answers() -> object:
            assert self.parts[part].poll() is None, self.log(part)
            return ready()

        until(answers, lambda: f"{part} of {self.name}: {self.log(part)}", WITHIN)

    def kill(self, part: str, number: int = signal.SIGKILL) -> None:
        process = self.parts[part]
        process.send_signal(number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            process.wait(WITHIN)

    def log(self, part: str, size: int = 3000) -> str:
        return (self.folder / f"{part}.log").read_text(errors="replace")[-size:]

    @property
    def driver(self) -> dict[str, str]:
        return {"GPUSHARE_SIM": f"{self.cluster.gpus},pool={self.pool}", "GPUSHARE_DRIVER": "sim"}

    @property
    def client(self) -> Client:
        return Client(self.folder / "gpushare" / "api.sock")

    def _containerd(self) -> tuple[list[object], Callable[[], object]]:
        config = self.folder / "containerd.toml"
        config.write_text(CONTAINERD.format(folder=self.folder, pause=PAUSE, cni=self.cluster.cni))
        return [binary("containerd"), "--config", config], lambda: self.ctr("version").returncode == 0

    def _kubelet(self) -> tuple[list[object], Callable[[], object]]:
        said = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": "127.0.0.1",
            "port": self.ports[0],
            "healthzPort": self.ports[1],
            "readOnlyPort": 0,
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.cgroup}",
            "enforceNodeAllocatable": [],
            "failSwapOn": False,
            "failCgroupV1": False,
            "makeIPTablesUtilChains": False,
            "nodeStatusUpdateFrequency": "2s",
            "nodeLeaseDurationSeconds": 10,
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {"memory.available": "1Mi"},
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "volumePluginDir": "/var/lib/kubelet/volumes",
        }
        config = self.folder / "kubelet.yaml"
        config.write_text("\n".join(f"{name}: {json.dumps(value)}" for name, value in said.items()))
        line = [binary("kubelet"), f"--config={config}", f"--kubeconfig={self.cluster.api.node(self.name)}"]
        line += ["--root-dir=/var/lib/kubelet", "--cert-dir=/var/lib/kubelet/pki", f"--hostname-override={self.name}"]
        before = self.taken()
        asks = "plugin" in self.parts and self.parts["plugin"].poll() is None and not self.serves_pods()
        return line, lambda: self.cluster.is_ready(self.name) and (not asks or self.taken() > before)

    def _daemon(self) -> tuple[list[object], Callable[[], object]]:
        line = [sys.executable, "-m", "gpushared", "--system", "--driver", "sim", "--dir", "/run/gpushare"]
        return line, lambda: self.daemon_pid() == self.parts["daemon"].pid

    def taken(self) -> int:
        """How often the kubelet has taken the driver."""
        return self.log("plugin", 10**7).count("has taken the driver") if "plugin" in self.parts else 0

    def serves_pods(self) -> bool:
        """No kubelet asks the plugin: the API server has no claims."""
        return "serves pods" in self.log("plugin", 10**7)

    def _plugin(self) -> tuple[list[object], Callable[[], object]]:
        """Ready when the kubelet has taken it: what that asks before is tried again only after a minute."""
        before = self.taken()
        line = [sys.executable, "-m", "gpushare.kubernetes", "--node", self.name, "--every", "0.5"]
        line += ["--kubeconfig", str(self.cluster.api.plugin_of(self.name))]
        return line, lambda: self.taken() > before or self.serves_pods()

    def daemon_pid(self) -> int | None:
        with contextlib.suppress(GpushareError):
            return int(self.client.version()["pid"])
        return None

    # ---- containers ------------------------------------------------------------------------------------

    def ctr(self, *words: str) -> subprocess.CompletedProcess[str]:
        line = [str(binary("ctr")), "-a", "/run/containerd/containerd.sock", "-n", "k8s.io", *words]
        inside = ["nsenter", "-t", str(self.holder.pid), "-m", *line]
        return subprocess.run(inside, capture_output=True, text=True, timeout=WITHIN)

    def import_images(self, paths: Iterable[Path]) -> None:
        for path in paths:
            done = self.ctr("images", "import", str(path))
            assert done.returncode == 0, done.stderr

    def pids(self) -> list[int]:
        """Of all containers."""
        return [int(pid) for pid in processes_of(f"/{self.cgroup}/")]

    def leftovers(self) -> list[str]:
        """What is on the node of claims, by kind."""
        placed = [str(one["id"]).split("/")[1] for one in self.client.placements()]
        return sorted(
            [f"placement {uid}" for uid in placed]
            + [f"file {path.name}" for path in (self.folder / "cdi").glob("*")]
            + [f"record {path.stem}" for path in (self.folder / "dra" / "claims").glob("*.json")]
            + [f"gate {path.name}" for path in (self.folder / "dra" / "pods").glob("*")]
        )

    def end(self) -> None:
        for part in ("plugin", "kubelet", "daemon"):
            if part in self.parts:
                with contextlib.suppress(ProcessLookupError):
                    self.parts[part].kill()
                self.parts[part].wait()
        deadline = time.monotonic() + WITHIN
        while (left := [*self.pids(), *self._shims()]) and time.monotonic() < deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        if "containerd" in self.parts:
            self.parts["containerd"].kill()
            self.parts["containerd"].wait()
        self.holder.kill()
        self.holder.wait()
        remove_cgroups(self.cgroup)

    def _shims(self) -> list[int]:
        """They are in this node's namespace, and nobody's children."""
        mine = Path(f"/proc/{self.holder.pid}/ns/mnt").stat().st_ino
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                shim = b"containerd-shim" in (path / "cmdline").read_bytes().split(b"\0")[0]
                if shim and (path / "ns" / "mnt").stat().st_ino == mine:
                    found.append(int(path.name))
        return found


class RealNodes:
    """Controllers, kube-scheduler, and nodes. `gpus`: of each node, as GPUSHARE_SIM has them."""

    def __init__(
        self,
        folder: Path,
        names: Iterable[str] = ("k1", "k2"),
        gpus: str = "gpus=2,memory=4Gi",
        features: Mapping[str, str] | None = None,
    ) -> None:
        """`features`: as RealApiServer has them; controllers have their gates, too."""
        names = list(names)
        self.folder = folder
        self.features = features or {}
        self.gpus = gpus
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.nodes: dict[str, RealNode] = {}
        self.sysctls = {name: Path("/proc/sys", name).read_text() for name in SYSCTLS}
        self.cni = folder / "cni"
        self.api = RealApiServer(folder, nodes=names, features=self.features)
        try:
            self._network()
            self.images = images(folder)
            for name in (CONTROLLERS, "kube-scheduler"):
                self.start(name)
            for name in names:
                self.add(name)
        except BaseException:
            self.end()
            raise

    @property
    def server(self) -> Any:
        return self.api.server

    def about(self) -> str:
        """What is proved by what passes here."""
        said = [
            subprocess.run([str(binary(name)), "--version"], capture_output=True, text=True, check=True).stdout.split()
            for name in ("containerd", "runc")
        ]
        parts = f"containerd {said[0][2]}, runc {said[1][2]}"
        older = self.features.get("emulated-version")
        carrier = f"annotations; the API server does as {older}" if older else "claims, resource.k8s.io/v1 of its own"
        return f"API server and kubelets {self.api.version()}, {parts}; carrier: {carrier}"

    def add(self, name: str) -> RealNode:
        node = self.nodes[name] = RealNode(self, name)
        node.start("containerd")
        node.import_images(self.images)
        node.start("kubelet")
        return node

    def is_ready(self, name: str) -> bool:
        with contextlib.suppress(GpushareError):
            said = self.server.ask("GET", f"/api/v1/nodes/{name}").get("status", {}).get("conditions") or ()
            return any(one["type"] == "Ready" and one["status"] == "True" for one in said)
        return False

    def _network(self) -> None:
        (self.cni / "configuration").mkdir(parents=True)
        for name in ("noop", "loopback"):
            (self.cni / name).write_text(CNI)
            (self.cni / name).chmod(0o755)
        plugins = {"cniVersion": "0.3.1", "name": "noop", "plugins": [{"type": "noop"}]}
        (self.cni / "configuration" / "10-noop.conflist").write_text(json.dumps(plugins))

    def start(self, name: str) -> None:
        """Controllers, or kube-scheduler."""
        (port,) = free_ports(1)
        line = [str(binary(name)), f"--kubeconfig={self.api.kubeconfig}", "--leader-elect=false"]
        line += ["--bind-address=127.0.0.1", f"--secure-port={port}", f"--cert-dir={self.folder}/{name}"]
        line += [f"--{name}={value}" for name, value in self.features.items() if name == "emulated-version"]
        if name == CONTROLLERS:
            line += [f"--service-account-private-key-file={self.folder}/sa.key"]
            line += [f"--root-ca-file={self.folder}/certs/apiserver.crt", *PACE]
            line += [f"--{name}={value}" for name, value in self.features.items() if name == "feature-gates"]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(line, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].wait()

    def end(self) -> None:
        for node in self.nodes.values():
            node.end()
        for name in self.processes:
            self.kill(name)
        self.api.end()
        for name, value in self.sysctls.items():
            with contextlib.suppress(OSError):
                Path("/proc/sys", name).write_text(value)


# ---- images --------------------------------------------------------------------------------------------


def images(folder: Path) -> list[Path]:
    """Archives of the two that there are."""
    source, program = folder / "pause.c", folder / "pause"
    source.write_text(PAUSES)
    subprocess.run(["gcc", "-static", "-O2", "-o", str(program), str(source)], check=True)
    return [
        image(folder / "pause.tar", PAUSE, {"pause": program}, ["/pause"]),
        image(folder / "host.tar", IMAGE, {}, ["/usr/bin/sh"]),
    ]


def image(path: Path, name: str, files: dict[str, Path], command: list[str]) -> Path:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as layer:
        for folder in ("tmp", "proc", "dev", "sys", "etc", "usr", "root", "run", "var", "work", "opt"):
            made = tarfile.TarInfo(folder)
            made.type, made.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            layer.addfile(made)
        for link in ("bin", "lib", "lib64", "sbin"):
            made = tarfile.TarInfo(link)
            made.type, made.linkname = tarfile.SYMTYPE, f"usr/{link}"
            layer.addfile(made)
        for inside, host in files.items():
            made = layer.gettarinfo(str(host), arcname=inside)
            made.mode, made.uid, made.gid = 0o755, 0, 0
            with host.open("rb") as file:
                layer.addfile(made, file)
    data = raw.getvalue()
    paths = [str(Path(sys.executable).parent), "/usr/sbin", "/usr/bin", "/sbin", "/bin"]
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Cmd": command, "Env": [f"PATH={':'.join(paths)}", f"PYTHONPATH={PYTHONPATH}"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(data).hexdigest()}"]},
    }
    about = json.dumps(config).encode()
    inside = f"{hashlib.sha256(about).hexdigest()}.json"
    manifest = json.dumps([{"Config": inside, "RepoTags": [name], "Layers": ["layer.tar"]}]).encode()
    with tarfile.open(path, "w") as made_archive:
        for entry, content in (("layer.tar", data), (inside, about), ("manifest.json", manifest)):
            found = tarfile.TarInfo(entry)
            found.size = len(content)
            made_archive.addfile(found, io.BytesIO(content))
    return path


def from_host() -> dict[str, Path]:
    """What containers have of this machine, by name of the volume. /usr/local is the container's own: mounts of claims
    are made there."""
    usr = {name: Path("/usr", name) for name in ("bin", "sbin", "lib", "lib64") if Path("/usr", name).is_dir()}
    places = {**usr, "python": Path(sys.base_prefix), "environment": Path(sys.prefix), "source": ROOT}
    tops = set(places.values())
    return {name: path for name, path in places.items() if not any(other in path.parents for other in tops)}


# ---- control groups ------------------------------------------------------------------------------------


def hierarchies() -> list[Path]:
    if (HIERARCHIES / "cgroup.controllers").exists():
        return [HIERARCHIES]
    return [path for path in HIERARCHIES.iterdir() if path.is_dir() and not path.is_symlink()]


def make_cgroups(name: str) -> None:
    for top in hierarchies():
        (top / name).mkdir(exist_ok=True)
        for file in ("cpuset.cpus", "cpuset.mems"):
            if (top / file).exists() and top.name == "cpuset":
                (top / name / file).write_text((top / file).read_text())


def remove_cgroups(name: str) -> None:
    for top in hierarchies():
        folders = [path for path in (top / name).rglob("*") if path.is_dir()]
        for path in (*sorted(folders, reverse=True), top / name):
            with contextlib.suppress(OSError):
                path.rmdir()


def processes_of(cgroup: str) -> list[str]:
    """Ids of processes in it or below it."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f":{cgroup}" in (path / "cgroup").read_text():
                found.append(path.name)
    return found


__all__ = ["IMAGE", "RealNode", "RealNodes", "from_host", "missing", "too_old"]
