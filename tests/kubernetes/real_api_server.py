"""A real API server with its etcd, from a folder of binaries: GPUSHARE_TEST_KUBE_BIN. etcd may also be on the PATH.

It serves one folder and ports of its own, and is stopped by the process ids that were noted here.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from gpushare.errors import GpushareError, NoSuchJob
from gpushare.kubernetes.server import Access, Answer, Server

HERE = Path(__file__).parent
DEPLOY = HERE.parents[1] / "deploy" / "kubernetes"
PLUGIN = "system:serviceaccount:gpushare:gpushare-dra"
WEBHOOK = "system:serviceaccount:gpushare:gpushare-webhook"
SCHEDULER = "system:serviceaccount:gpushare:gpushare-scheduler"
GROUPS = "system:serviceaccounts,system:serviceaccounts:gpushare,system:authenticated"
ACCOUNTS = "/api/v1/namespaces/gpushare/serviceaccounts"
WITH_NODES = {"enable-admission-plugins": "NodeRestriction", "enable-aggregator-routing": "true"}
"""Webhooks are called at the addresses of their pods: nobody serves those of services."""
WITHIN = 60.0
HAS = "test/claim"
"""Annotation of a pod: its claim (with_claims)."""
KINDS = {
    "DeviceClass": "deviceclasses",
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
    "PodDisruptionBudget": "poddisruptionbudgets",
}
NAMESPACED = (
    *("serviceaccounts", "daemonsets", "deployments", "configmaps", "roles", "rolebindings"),
    *("secrets", "services", "poddisruptionbudgets"),
)
NEWER = ("admissionregistration.k8s.io", "policy")
"""Groups of which an old server has less."""
DROPS = "MutatingWebhookConfiguration"
"""An old server drops its matchConditions when it is created, and refuses to apply it with them."""


def binary(name: str) -> str | None:
    folder = os.environ.get("GPUSHARE_TEST_KUBE_BIN", "")
    found = Path(folder) / name
    return str(found) if folder and found.exists() else shutil.which(name)


def missing() -> str:
    """Why none can be started; "" if it can."""
    if not os.environ.get("GPUSHARE_TEST_KUBE_BIN"):
        return "needs kube-apiserver: name its folder in GPUSHARE_TEST_KUBE_BIN"
    absent = [name for name in ("kube-apiserver", "etcd", "openssl") if binary(name) is None]
    return f"needs {', '.join(absent)} in GPUSHARE_TEST_KUBE_BIN or on the PATH" if absent else ""


class RealApiServer:
    """One server. `kubeconfig` is the administrator's, `plugins` is that of gpushare-dra and `schedulers` that of the
    scheduler, `webhooks` that of the webhook, with the rights that deploy/kubernetes gives them."""

    def __init__(self, folder: Path, nodes: Sequence[str] = (), features: Mapping[str, str] | None = None) -> None:
        """`nodes`: those that have kubelets. Then pods have service accounts, and controllers are expected.
        `features`: options that switch on what is off by default, as `feature-gates` and `runtime-config`."""
        self.folder = folder
        self.features = features or {}
        self.ports = free_ports(3)
        self.nodes = nodes
        self.kubeconfig = folder / "admin"
        self.plugins = folder / "plugin"
        self.schedulers = folder / "scheduler"
        self.webhooks = folder / "webhook"
        self.own = True
        """It serves resource.k8s.io/v1 itself."""
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.url = f"https://127.0.0.1:{self.ports[0]}"
        subprocess.run(["openssl", "genrsa", "-out", folder / "sa.key", "2048"], check=True, capture_output=True)
        tokens = ["admin,admin,admin,system:masters", f'plugin,{PLUGIN},plugin,"{GROUPS}"']
        tokens.append(f'scheduler,{SCHEDULER},scheduler,"{GROUPS}"')
        tokens.append(f'webhook,{WEBHOOK},webhook,"{GROUPS}"')
        tokens += [f'{name},system:node:{name},{name},"system:nodes,system:authenticated"' for name in nodes]
        (folder / "tokens").write_text("\n".join(tokens) + "\n")
        for path, token in (
            (self.kubeconfig, "admin"),
            (self.plugins, "plugin"),
            (self.schedulers, "scheduler"),
            (self.webhooks, "webhook"),
        ):
            path.write_text(json.dumps(self._config(token)))
        for name in nodes:
            self.node(name).write_text(json.dumps(self._config(name)))
        self._start(
            "etcd",
            *("--data-dir", folder / "etcd", "--unsafe-no-fsync"),
            *("--listen-client-urls", self._etcd(1), "--advertise-client-urls", self._etcd(1)),
            *("--listen-peer-urls", self._etcd(2), "--initial-advertise-peer-urls", self._etcd(2)),
            *("--initial-cluster", f"default={self._etcd(2)}"),
        )
        try:
            self.start()
        except BaseException:
            self.end()
            raise

    @property
    def server(self) -> Server:
        return Server(Access.of_kubeconfig(self.kubeconfig))

    def node(self, name: str) -> Path:
        """The kubeconfig of its kubelet."""
        return self.folder / f"node-{name}"

    def plugin_of(self, name: str) -> Path:
        """The kubeconfig of gpushare-dra as a service of that node: its token says which node it is on."""
        found = self.server.ask("GET", f"/api/v1/nodes/{name}")["metadata"]
        bound = {"kind": "Node", "apiVersion": "v1", "name": name, "uid": found["uid"]}
        asked = {"spec": {"audiences": [], "expirationSeconds": 86400, "boundObjectRef": bound}}
        token = self.server.ask("POST", f"{ACCOUNTS}/gpushare-dra/token", asked)["status"]["token"]
        path = self.folder / f"plugin-{name}"
        path.write_text(json.dumps(self._config(token)))
        return path

    def start(self) -> None:
        said = {
            "etcd-servers": self._etcd(1),
            "bind-address": "127.0.0.1",
            "advertise-address": "127.0.0.1",
            "secure-port": self.ports[0],
            "cert-dir": self.folder / "certs",
            "token-auth-file": self.folder / "tokens",
            "authorization-mode": "Node,RBAC" if self.nodes else "RBAC",
            "service-account-key-file": self.folder / "sa.key",
            "service-account-signing-key-file": self.folder / "sa.key",
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-cluster-ip-range": "10.96.0.0/24",
            "endpoint-reconciler-type": "none",
            **(WITH_NODES if self.nodes else {"disable-admission-plugins": "ServiceAccount"}),
            **self.features,
        }
        self._start("kube-apiserver", *(f"--{name}={value}" for name, value in said.items()))
        deadline = time.monotonic() + WITHIN
        while not self._ready():
            assert self._processes["kube-apiserver"].poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.1)

    def kill(self) -> None:
        self._processes["kube-apiserver"].kill()
        self._processes["kube-apiserver"].wait()

    def end(self) -> None:
        for name, number in (("kube-apiserver", signal.SIGKILL), ("etcd", signal.SIGKILL)):
            process = self._processes.get(name)
            if process is not None and process.poll() is None:
                process.send_signal(number)
                process.wait()

    def log(self) -> str:
        return (self.folder / "kube-apiserver.log").read_text()[-3000:]

    def cpu_seconds(self) -> float:
        """That the API server and etcd have used."""
        fields = [
            Path(f"/proc/{one.pid}/stat").read_text().rpartition(")")[2].split() for one in self._processes.values()
        ]
        return sum(int(one[11]) + int(one[12]) for one in fields) / os.sysconf("SC_CLK_TCK")

    def version(self) -> str:
        return str(self.server.ask("GET", "/version")["gitVersion"])

    def serve_claims(self) -> None:
        """As custom resources, if it has none itself."""
        server = self.server
        try:
            server.ask("GET", "/apis/resource.k8s.io/v1")
        except NoSuchJob:
            self.own = False
            for one in yaml.safe_load_all((HERE / "crds.yaml").read_text()):
                server.ask("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", one)
            self._until(lambda: server.ask("GET", "/apis/resource.k8s.io/v1/resourceslices"))

    def deploy(self, part: str = ".", without: Sequence[str] = ()) -> None:
        """What a folder of deploy/kubernetes has, as `kubectl apply -k` makes it of it, `without` these kinds. A server
        that is too old for policies of admission does without these."""
        folder = DEPLOY / part
        (kustomization,) = yaml.safe_load_all((folder / "kustomization.yaml").read_text())
        for name in kustomization["resources"]:
            for one in yaml.safe_load_all((folder / name).read_text()):
                if one["kind"] in without:
                    continue
                group, _, version = one["apiVersion"].rpartition("/")
                base = f"/apis/{group}/{version}" if group else f"/api/{version}"
                kind = KINDS.get(one["kind"], f"{one['kind'].lower()}s")
                if group in NEWER and not self._serves(f"{base}/{kind}"):
                    continue
                inside = f"/namespaces/{kustomization['namespace']}" if kind in NAMESPACED else ""
                self._until(lambda path=f"{base}{inside}/{kind}", one=one: self._put(path, one))

    def _serves(self, path: str) -> bool:
        try:
            self.server.ask("GET", path)
        except NoSuchJob:
            return False
        return True

    def _put(self, path: str, one: dict[str, Any]) -> dict[str, Any]:
        if one["kind"] == DROPS:
            return self.server.ask("POST", path, one)
        return self.server.apply(f"{path}/{one['metadata']['name']}", one)

    def _until(self, what: Any) -> Any:
        deadline = time.monotonic() + WITHIN
        while True:
            try:
                return what()
            except (NoSuchJob, Answer):
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.1)

    def _ready(self) -> bool:
        try:
            self.server.ask("GET", "/readyz?verbose=no")
        except GpushareError as error:
            return "is no API server" in error.message  # it says ok, which is no JSON
        return True

    def _start(self, name: str, *words: object) -> None:
        program = binary(name)
        assert program is not None
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen([program, *map(str, words)], stdout=log, stderr=log)

    def _etcd(self, number: int) -> str:
        return f"http://127.0.0.1:{self.ports[number]}"

    def _config(self, token: str) -> dict[str, Any]:
        return {
            "current-context": "x",
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": self.url, "insecure-skip-tls-verify": True}}],
            "users": [{"name": "u", "user": {"token": token}}],
        }


def with_claims(keeps: Callable[..., Any]) -> Callable[..., Any]:
    """A server before 1.34 drops `resourceClaims` of pods: an annotation says which claim a pod has, and the scheduler
    sees it where it would see the field. `keeps`: that of the engine's api.py."""

    def made(path: str, scheduler: str) -> Any:
        keep = keeps(path, scheduler)

        def one(pod: dict[str, Any]) -> Any:
            claim = (pod["metadata"].get("annotations") or {}).get(HAS)
            if claim:
                had = [{"name": "gpu", "resourceClaimName": claim}]
                pod = {**pod, "spec": {**pod["spec"], "resourceClaims": had}}
            return keep(pod)

        return one

    return made


def free_ports(count: int) -> list[int]:
    held = [socket.socket() for _ in range(count)]
    try:
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()
