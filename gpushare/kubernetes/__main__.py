"""`gpushare-dra`: the plugin of a node. Runs as root, because the kubelet's folders are root's."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from gpushare import locate
from gpushare.client import Client
from gpushare.config import load_settings
from gpushare.container import inside
from gpushare.errors import DaemonUnreachable, GpushareError, UsageError
from gpushare.interval import Interval
from gpushare.kubernetes.cdi import CDI
from gpushare.kubernetes.cgroups import CGROUPS
from gpushare.kubernetes.prepare import Folders
from gpushare.kubernetes.program import needs_extra, run
from gpushare.paths import library

if TYPE_CHECKING:
    from gpushare.kubernetes.plugin import Plugin
    from gpushare.kubernetes.prepare import Preparer
    from gpushare.kubernetes.server import Server

__all__ = ["main"]

log = logging.getLogger("gpushare.kubernetes")
FOLDER = click.Path(path_type=Path)
FIRST = 30.0
"""Seconds that the node daemon may take to answer at the start."""
WHOLE = 5
"""One look in so many asks the API server about all claims."""
ANNOTATIONS = "annotations"
"""In its note of what carries claims."""
POD_EVERY = 0.2
"""Seconds between two looks for new pods. More than that passes between a pod's cgroup and its first container."""


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--node", envvar="NODE_NAME", required=True, help="This node's name in the cluster; also in NODE_NAME.")
@click.option("--kubeconfig", type=FOLDER, help="Without it: the service account of its pod.")
@click.option("--kubelet", type=FOLDER, default="/var/lib/kubelet", help="The kubelet's folder.")
@click.option("--state", type=FOLDER, default="/var/lib/gpushare-dra", help="Its own folder.")
@click.option("--cdi", type=FOLDER, default=str(CDI), help="Where the container runtime reads CDI files.")
@click.option("--cgroups", type=FOLDER, default=str(CGROUPS), help="The host's cgroups.")
@click.option("--every", type=Interval(0.05, 60), default=2.0, help="Seconds between two looks at this node.")
def command(node: str, kubeconfig: Path | None, every: float, **folders: Path) -> None:
    """The DRA driver gpushare.dev: pods' claims become budgets of the node daemon, which must run on this node.

    GPUSHARE_SOCKET names the daemon's api.sock, if it is not /run/gpushare/api.sock.
    """
    serve(node, kubeconfig, folders, every)


def main() -> None:
    run(command)


def serve(node: str, kubeconfig: Path | None, folder: Mapping[str, Path], every: float) -> None:
    with needs_extra():
        from gpushare.kubernetes.pods import Carried, PodKeeper
        from gpushare.kubernetes.prepare import Preparer
        from gpushare.kubernetes.publish import Publisher, of_nvidia
        from gpushare.kubernetes.records import Records
        from gpushare.kubernetes.server import Access, Server
        from gpushare.kubernetes.sync import Sync
    state = folder["state"]
    folders = Folders(folder["cdi"], (Path("/etc/cdi"), folder["cdi"]), folder["cgroups"], state / "pods")
    ended = threading.Event()
    _end_on_signals(ended)
    server = Server(Access.of_kubeconfig(kubeconfig) if kubeconfig else Access.of_pod())
    state.mkdir(mode=0o755, parents=True, exist_ok=True)
    lock = _alone(state, ended)
    found = _node_daemon(ended)
    api = found.runtime.api_socket

    def daemon() -> Client:
        return Client(api)

    has_claims = _has_claims(server, state, ended)
    carried = None if has_claims else Carried(server, node)
    preparer = Preparer(
        node,
        daemon,
        server.claim if carried is None else carried.read,
        Records(state / "claims"),
        inside=inside(found, copied(library(), state / "lib"), os.environ),
        folders=folders,
        others=lambda: of_nvidia(server, node),
    )
    sync = Sync(node, daemon, Publisher(server, node, claims=has_claims), preparer, folders)
    asks = _of_kubelet(preparer, folder["kubelet"]) if carried is None else PodKeeper(carried, preparer, server)
    asks.start()
    log.info("serves %s, for the node daemon at %s", "pods" if carried else f"the kubelet at {folder['kubelet']}", api)
    looks = 0
    while not ended.is_set():
        sync.once(whole=looks % WHOLE == 0)
        looks += 1
        rest = every
        while rest > 0 and not ended.wait(min(rest, POD_EVERY)):
            rest -= POD_EVERY
            sync.follow_new_pods()
    asks.stop()
    os.close(lock)


def _of_kubelet(preparer: Preparer, kubelet: Path) -> Plugin:
    from gpushare.kubernetes.plugin import Plugin

    return Plugin(preparer, kubelet)


def _has_claims(server: Server, state: Path, ended: threading.Event) -> bool:
    """As the API server says; while it is away, as it said the last time. It is waited for the first time alone."""
    noted = state / "carrier"
    while True:
        try:
            found = server.has_claims()
        except GpushareError as error:
            known = noted.read_text() if noted.exists() else ""
            if known or any((state / "claims").glob("*.json")):
                return known != ANNOTATIONS
            log.warning("%s", error)
            if ended.wait(1.0):
                raise
        else:
            noted.write_text("claims" if found else ANNOTATIONS)
            return found


def copied(path: Path, folder: Path) -> Path:
    """A copy whose name depends on its content, so that running containers keep theirs. The file itself may be in the
    plugin's image, where the host cannot read it."""
    data = path.read_bytes()
    target = folder / f"{path.stem}-{hashlib.sha256(data).hexdigest()[:16]}{path.suffix}"
    if not target.exists():
        folder.mkdir(mode=0o755, exist_ok=True)
        folder.chmod(0o755)
        fresh = target.with_suffix(f".{os.getpid()}.tmp")
        shutil.copyfile(path, fresh)
        fresh.chmod(0o755)
        fresh.replace(target)
    return target


def _alone(state: Path, ended: threading.Event) -> int:
    lock = os.open(state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    for _ in range(int(FIRST)):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        if ended.wait(1.0):  # an earlier plugin may just be ending
            break
    raise UsageError(f"another gpushare-dra uses {state}", code="already_running")


def _node_daemon(ended: threading.Event) -> locate.Node:
    """Waits for it: both may just be starting."""
    settings, waited = load_settings({}, os.environ), 0.0
    while True:
        try:
            return locate.find(settings)
        except DaemonUnreachable:
            if waited >= FIRST or ended.wait(1.0):
                raise
            waited += 1.0


def _end_on_signals(ended: threading.Event) -> None:
    def end(_: int, __: FrameType | None) -> None:
        ended.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)


if __name__ == "__main__":
    main()
