"""The command line of the service, and its run from the file's lock to its end."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from gpushare.cluster.client import SYSTEM_SOCKET
from gpushare.cluster.engines.registry import ENGINES, QUEUE_ENGINES, make, make_queue_engine
from gpushare.cluster.engines.runner import Context
from gpushare.cluster.model import Policy
from gpushare.cluster.service.common import Common
from gpushare.cluster.service.lock import Lock
from gpushare.cluster.service.of_queue import QueueService
from gpushare.cluster.service.service import Service
from gpushare.cluster.store import Store, default_path
from gpushare.errors import GpushareError, NotPermitted
from gpushare.paths import SOCKET_PATH_BYTES, make_private, own_dir
from gpushared.cluster.notice_file import NoticeFile
from gpushared.cluster.settings import Settings, load
from gpushared.system import logs
from gpushared.system.address import is_local, listen
from gpushared.system.logs import facts, log
from gpushared.system.runtime_dir import bind
from gpushared.system.systemd import Notifier

__all__ = ["COLLECT_AFTER", "main"]

SYSTEM_STORE = Path("/var/lib/gpushare-cluster/cluster.db")
COLLECT_AFTER = 50_000
"""New objects. What is kept here has no cycles: at Python's own 700 a scheduler that starts 200 pods a second would be
looking for some an eighth of its time."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    logs.set_up(options.log_level, options.log_format)
    try:
        return _serve(options)
    except GpushareError as error:
        print(error.render(), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="gpushare cluster serve",
        description="Run the jobs of a cluster: decide who may run where, start, stop, and say why.",
    )
    made.add_argument("--engine", metavar="NAME", help=f"what runs the jobs: {', '.join(ENGINES)} (default: local)")
    made.add_argument("--system", action="store_true", help="for all users, as root; as a service, under systemd")
    made.add_argument("--store", type=Path, metavar="FILE", help="the cluster's file, which is made if it is not there")
    made.add_argument("--socket", type=Path, metavar="PATH", help="where to listen")
    made.add_argument("--config", type=Path, metavar="FILE", help="default: /etc/gpushare/cluster.toml")
    logs.add_options(made)
    return made


def _serve(options: argparse.Namespace) -> int:
    settings = load(options.config.absolute() if options.config is not None else None)
    os.umask(0o077)
    if options.system and os.geteuid() != 0:
        raise NotPermitted("--system serves all users, and needs root for it", hint="leave --system out")
    path = options.store.absolute() if options.store is not None else SYSTEM_STORE if options.system else default_path()
    where = _socket(options)
    engine = options.engine or settings.engine
    with contextlib.ExitStack() as stack:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise NotPermitted(
                f"cannot make {path.parent}: {error.strerror}", hint="name a file with --store"
            ) from None
        lock = Lock(path, where)
        stack.callback(lock.release)
        store = Store.open(path) if path.exists() else Store.create(path, Policy(endings="reported"))
        stack.callback(store.close)
        service = _service(store, engine, settings, system=options.system)
        stack.callback(service.work.engine.close)
        asyncio.run(_run(service, settings, where, system=options.system))
    return 0


def _socket(options: argparse.Namespace) -> Path:
    if options.socket is not None:
        where = Path(options.socket).absolute()
    elif options.system:
        where = SYSTEM_SOCKET
    else:
        directory, _ = own_dir("", os.environ)
        where = directory / "cluster.sock"
    if len(os.fsencode(where)) > SOCKET_PATH_BYTES - 12:
        raise GpushareError(f"{where} is too long for a socket's name", hint="name a shorter one with --socket")
    return where


def _service(store: Store, engine: str, settings: Settings, *, system: bool) -> Common:
    directory = store.path.with_name(f"{store.path.name}.{engine}")
    make_private(directory)
    nodes = tuple(view.node for view in store.allocator.nodes.values() if view.alive)
    options = settings.options
    if options.queues_below and options.queues_below not in store.allocator.queues:
        log.warning("there is no queue below which users get theirs", extra=facts(queues_below=options.queues_below))
    most = options.max_grace if system else math.inf
    context = Context(settings.engines.get(engine, {}), time.time, directory, nodes, system, most)
    if engine in QUEUE_ENGINES:
        made = make_queue_engine(engine, context)
        return QueueService(store, made, engine=engine, clock=time.time, options=options)
    return Service(store, make(engine, context), engine=engine, clock=time.time, options=options)


async def _run(service: Common, settings: Settings, where: Path, *, system: bool) -> None:
    from aiohttp import web

    from gpushared.api.http_listener import HttpListener, listener_options
    from gpushared.api.metrics_port import serve_metrics
    from gpushared.cluster.history import QueueHistory
    from gpushared.cluster.routes import Api
    from gpushared.cluster.writer import Writer
    from gpushared.history.usage import UsageHistory
    from gpushared.limits.identities import Identities
    from gpushared.limits.limits import Limits

    loop, notifier, stop = asyncio.get_running_loop(), Notifier(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        limits, identities = Limits.make(loop), Identities(loop)
        stack.callback(identities.close)
        writer = Writer(service)
        directory = service.store.path.with_name(f"{service.store.path.name}.history")
        _keep_notices(service, NoticeFile(directory))
        usage = UsageHistory(directory)
        history = QueueHistory(writer, usage, limits)
        api = Api(writer, limits, identities, settings.admin_group, history)
        runner = web.AppRunner(api.application(), handler_cancellation=True, shutdown_timeout=1.0, **listener_options())
        await runner.setup()
        assert runner.server is not None
        gc.collect()
        gc.freeze()
        gc.set_threshold(COLLECT_AFTER)
        stack.callback(usage.close)
        usage.start()
        writer.start()
        stack.push_async_callback(asyncio.to_thread, writer.stop)
        stack.push_async_callback(runner.cleanup)
        stack.callback(api.end_streams)
        stack.callback(usage.end_streams)
        sampling = asyncio.create_task(history.run())
        stack.callback(sampling.cancel)
        if settings.metrics_listen:
            if not is_local(settings.metrics_listen):
                log.warning("metrics are open to other machines", extra=facts(address=settings.metrics_listen))
            await serve_metrics(stack, api.metrics_application(), listen(settings.metrics_listen), limits)
        api.guard.listener = listener = HttpListener(runner.server, limits)
        listener.start(_bind(where, system=system))
        stack.callback(listener.close)
        stack.callback(where.unlink, missing_ok=True)
        notifier.ready(f"engine {service.engine}")
        log.info("ready", extra=facts(engine=service.engine, store=str(service.store.path), socket=str(where)))
        await _until(stop, notifier)
        notifier.stopping()
    log.info("stopped; what runs goes on")


def _keep_notices(service: Common, file: NoticeFile) -> None:
    service.notices.recall(file.read())
    service.notices.follow(service.notices.seq, file.put)


async def _until(stop: asyncio.Event, notifier: Notifier) -> None:
    while not stop.is_set():
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(notifier.watchdog_interval):
                await stop.wait()
        notifier.alive()


def _bind(path: Path, *, system: bool) -> socket.socket:
    try:
        if system and not path.parent.is_dir():
            path.parent.mkdir(mode=0o755)
            path.parent.chmod(0o755)
        return bind(path, socket.SOCK_STREAM, for_all=system)
    except OSError as error:
        raise GpushareError(f"cannot listen at {path}: {error.strerror}", hint="name a place with --socket") from None
