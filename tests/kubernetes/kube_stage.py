"""A node for tests: the real node daemon on software GPUs, the real plugin, and stand-ins for the kubelet, which speaks
its protocol over its sockets, and for the container runtime, which does what a CDI file says.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import grpc
from api_double import ApiDouble
from claims import NODE, claim, result

from gpushare.client import Client
from gpushare.errors import GpushareError
from gpushare.kubernetes.publish import CLAIMS
from gpushare.kubernetes.wire import methods
from gpushare.paths import software_driver_dir

ROOT = Path(__file__).resolve().parents[2]
PYTHONPATH = f"{ROOT}:{ROOT / 'daemon'}"
SIM = "gpus=2,memory=4Gi"
WITHIN = 30.0
"""Seconds: a loaded machine is slow."""
OVER = (
    "mkdir -p /run/.over/{0}/up /run/.over/{0}/work; "
    "mount -t overlay none -o lowerdir=/{0},upperdir=/run/.over/{0}/up,workdir=/run/.over/{0}/work /{0}"
)
"""What a container makes in that folder is not made on this machine: the points where files are mounted, too."""
PREPARED = {"driver": "gpushare.dev", "type": "DRAPlugin"}


def until(condition: Callable[[], Any], what: str, seconds: float = WITHIN) -> Any:
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {seconds} s: {what() if callable(what) else what}"
        time.sleep(0.02)


class Kubelet:
    """Its client's side: it finds the plugin by its registration's socket, and asks it to prepare claims."""

    def __init__(self, folder: Path, version: str = "v1") -> None:
        self.folder = folder
        self.version = version

    def register(self, error: str = "") -> Any:
        socket = self.folder / "plugins_registry" / "gpushare.dev-reg.sock"
        until(socket.exists, "the plugin to offer itself")
        info = self._call(socket, methods()["GetInfo"])
        self._call(socket, methods()["NotifyRegistrationStatus"], plugin_registered=not error, error=error)
        return info

    def prepare(self, *uids: str) -> dict[str, Any]:
        """Claim -> (CDI ids by device, error)."""
        return self.claims("NodePrepareResources", [(uid, f"claim-{uid}") for uid in uids])

    def unprepare(self, *uids: str) -> dict[str, str]:
        answers = self.claims("NodeUnprepareResources", [(uid, f"claim-{uid}") for uid in uids])
        return {uid: answer.error for uid, answer in answers.items()}

    def claims(self, call: str, claims: Iterable[tuple[str, str]]) -> dict[str, Any]:
        """`claims`: uids and names."""
        asked = [{"namespace": "team-a", "uid": uid, "name": name} for uid, name in claims]
        socket = Path(self.register().endpoint)
        return dict(self._call(socket, methods(self.version)[call], claims=asked).claims)

    def _call(self, socket: Path, method: Any, **fields: Any) -> Any:
        with grpc.insecure_channel(f"unix:{socket}", options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            call = channel.unary_unary(method.path, method.request.SerializeToString, method.response.FromString)
            return call(method.request(**fields), timeout=WITHIN, wait_for_ready=True)


class KubeNode:
    """Everything below one folder. Nothing outlives it."""

    def __init__(self, folder: Path, make_api: Callable[[Path], ApiDouble] = ApiDouble) -> None:
        self.folder = folder
        self.daemon_folder = folder / "gpushare"
        self.pool = folder / "pool"
        self.cdi = folder / "cdi"
        self.state = folder / "state"
        self.cgroups = folder / "cgroups"
        self.pool.mkdir()
        self.cgroups.mkdir()
        (self.cgroups / "cgroup.controllers").touch()
        self.pods = self.cgroups / "kubepods"
        self.kubelet = Kubelet(folder / "kubelet")
        self.api = make_api(folder)
        self.api.put(f"/api/v1/nodes/{NODE}", {"metadata": {"name": NODE, "uid": "node-uid"}})
        self.daemon: subprocess.Popen[bytes] | None = None
        self.plugin: subprocess.Popen[bytes] | None = None
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("GPUSHARE", "KUBE"))}
        self.environ = {
            **kept,
            "PYTHONPATH": PYTHONPATH,
            "GPUSHARE_SIM": f"{SIM},pool={self.pool}",
            "GPUSHARE_SOCKET": str(self.daemon_folder / "api.sock"),
            "GPUSHARE_DRIVER": "sim",
        }

    # ---- processes -------------------------------------------------------------------------------------

    def start_daemon(self) -> None:
        line = ["-m", "gpushared", "--system", "--driver", "sim", "--dir", str(self.daemon_folder)]
        self.daemon = self._start("daemon", *line)
        until(self._answers, "the daemon to answer")

    def start_plugin(self, kubeconfig: Path | None = None, every: float = 0.2) -> None:
        said = {"--kubelet": self.kubelet.folder, "--state": self.state, "--cdi": self.cdi, "--cgroups": self.cgroups}
        said |= {"--kubeconfig": kubeconfig or self.api.kubeconfig, "--node": Path(NODE)}
        said["--every"] = Path(str(every))
        words = [str(word) for pair in said.items() for word in pair]
        self.plugin = self._start("plugin", "-m", "gpushare.kubernetes", *words)

    def _start(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen([sys.executable, *words], env=self.environ, stderr=log, stdout=log)

    def kill(self, process: subprocess.Popen[bytes] | None, number: int = signal.SIGKILL) -> int:
        assert process is not None
        process.send_signal(number)
        return process.wait(WITHIN)

    def log(self, name: str = "plugin") -> str:
        return (self.folder / f"{name}.log").read_text()

    def _answers(self) -> bool:
        assert self.daemon is not None and self.daemon.poll() is None, self.log("daemon")
        with contextlib.suppress(GpushareError):
            return bool(self.client.version()["pid"] == self.daemon.pid)
        return False

    def passes(self, count: int) -> None:
        """Until the plugin has gone over the node so often. Each whole pass asks for the slices after all that it does
        on the node."""

        def asked() -> int:
            return sum("resourceslices" in path for _, path in self.api.requests)

        begun = asked()
        until(lambda: asked() >= begun + count, f"{count} passes")

    def refresh(self) -> None:
        """Start what a test has ended."""
        self.kubelet.version = "v1"
        self.api.start()
        if self.daemon is None or self.daemon.poll() is not None:
            self.start_daemon()
        if self.plugin is None or self.plugin.poll() is not None:
            self.start_plugin()
        self.kubelet.register()

    def clear(self) -> None:
        """Nothing of claims is left, and the API server forgets them."""
        self.refresh()
        known = {Path(path).name.removeprefix("claim-") for path in self.api.objects if "/resourceclaims/" in path}
        left = {uid: error for uid, error in self.kubelet.unprepare(*known).items() if error}
        assert not left and self.leftovers() == [], (left, self.leftovers())
        self.api.objects = {path: one for path, one in self.api.objects.items() if "/resourceclaims/" not in path}
        shutil.rmtree(self.pods, ignore_errors=True)

    def end(self) -> None:
        for process in (self.plugin, self.daemon):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()
        self.api.stop()

    # ---- claims and pods -------------------------------------------------------------------------------

    @property
    def client(self) -> Client:
        return Client(self.daemon_folder / "api.sock")

    @property
    def uuids(self) -> list[str]:
        return [gpu["uuid"] for gpu in self.client.status()["gpus"]]

    def pod(self, uid: str) -> Path:
        folder = self.pods / f"pod{uid}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def claim(self, uid: str, memory: str = "1Gi", gpu: int = 0, **more: Any) -> None:
        """Allocated to the pod `p-UID`, whose cgroup is there."""
        more.setdefault("pods", (f"p-{uid}",))
        for pod in more["pods"]:
            self.pod(pod)
        made = claim(result(self.uuids[gpu], memory), uid=uid, name=f"claim-{uid}", **more)
        self.api.put(CLAIMS.format("team-a", f"claim-{uid}"), made)

    def placed(self) -> list[dict[str, Any]]:
        return [dict(one) for one in self.client.placements()]

    def leftovers(self) -> list[str]:
        """What is on the node of claims, by kind."""
        return sorted(
            [f"placement {one['id'].split('/')[1]}" for one in self.placed()]
            + [f"file {path.name}" for path in self.cdi.glob("*") if path.suffix == ".json"]
            + [f"record {path.stem}" for path in (self.state / "claims").glob("*.json")]
        )

    # ---- containers ------------------------------------------------------------------------------------

    def container(self, uid: str, line: list[str], **environ: str) -> subprocess.Popen[str]:
        """A program with mounts and environment of a claim's CDI file, in the cgroup of the claim's pod, with these
        variables of its own. Needs root, and a real cgroup file system."""
        content = json.loads((self.cdi / f"gpushare.dev-claim_{uid}.json").read_text())
        (device,) = content["devices"]
        edits = device["containerEdits"]
        mounts = [(one["hostPath"], one["containerPath"]) for one in edits["mounts"]]
        return self._contained(f"p-{uid}", mounts, edits["env"], line, environ)

    def carrying(self, stored: dict[str, Any], line: list[str], **environ: str) -> subprocess.Popen[str]:
        """The same of a pod that carries its claim, with what its first container says, and with a driver."""
        (one, *_), hosts = stored["spec"]["containers"], {}
        for volume in stored["spec"]["volumes"]:
            path = volume["hostPath"]["path"].replace("/run/gpushare/", f"{self.daemon_folder}/")
            hosts[volume["name"]] = path.replace("/var/lib/gpushare-dra", str(self.state))
        mounts = [(hosts[mount["name"]], mount["mountPath"]) for mount in one["volumeMounts"]]
        driver = {"LD_LIBRARY_PATH": "/usr/local/lib/gpushare-sim"}
        driver |= {name: self.environ[name] for name in ("GPUSHARE_SIM", "GPUSHARE_DRIVER")}
        mounts += [(str(software_driver_dir()), driver["LD_LIBRARY_PATH"]), (str(self.pool), str(self.pool))]
        said = [f"{each['name']}={value_of(each, stored)}" for each in one["env"]]
        said += [f"{name}={value}" for name, value in driver.items()]
        return self._contained(stored["metadata"]["uid"], mounts, said, line, environ)

    def _contained(
        self, pod: str, mounts: list[tuple[str, str]], env: list[str], line: list[str], environ: dict[str, str]
    ) -> subprocess.Popen[str]:
        steps = ["set -e", f"echo $$ > {self.pod(pod)}/cgroup.procs", "mount -t tmpfs none /run"]
        absent = [Path(inside) for _, inside in mounts if not Path(inside).exists()]
        steps += [OVER.format(top) for top in sorted({path.parts[1] for path in absent} - {"run"})]
        for host, inside in mounts:
            make = f"mkdir -p {inside}" if Path(host).is_dir() else f"mkdir -p {Path(inside).parent}; touch {inside}"
            steps += [make, f"mount --bind {host} {inside}"]
        variables = " ".join(f"'{one}'" for one in env)
        steps.append(f'exec env {variables} "$@"')
        command = ["unshare", "-m", "--propagation", "private", "sh", "-c", "; ".join(steps), "sh", *line]
        kept, pipe = {"PATH": os.environ["PATH"], **environ}, subprocess.PIPE
        return subprocess.Popen(command, env=kept, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def value_of(variable: dict[str, Any], stored: dict[str, Any]) -> str:
    """As the kubelet makes it of the pod."""
    if "value" in variable:
        return str(variable["value"])
    path = str(variable["valueFrom"]["fieldRef"]["fieldPath"])
    found = re.fullmatch(r"metadata\.annotations\['(.*)'\]", path)
    return str(stored["metadata"]["annotations"].get(found[1], "") if found else stored["metadata"]["name"])


@contextlib.contextmanager
def node_in(folder: Path, make_api: Callable[[Path], ApiDouble] = ApiDouble) -> Iterator[KubeNode]:
    """KubeNode.refresh() starts its parts."""
    node = KubeNode(folder, make_api)
    try:
        yield node
    finally:
        node.end()
        shutil.rmtree(node.pool, ignore_errors=True)


def missing() -> str:
    return "" if (software_driver_dir() / "libcuda.so.1").exists() else "the software driver is not built"
