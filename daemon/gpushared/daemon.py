"""The daemon as a whole: puts its parts together, serves, and ends without disturbing programs."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
import signal
import socket
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from gpushare.errors import GpushareError
from gpushare.quantity import format_bytes
from gpushared import config as configuration
from gpushared.api.history import EVERY as HISTORY_EVERY
from gpushared.api.http_listener import HttpListener, listener_options
from gpushared.api.views import Views
from gpushared.clients.pages import Pages
from gpushared.core.node import NodeState
from gpushared.gpus.health_monitor import HealthMonitor
from gpushared.gpus.inventory import Driver, Inventory
from gpushared.history.usage import UsageHistory
from gpushared.jobs import earlier
from gpushared.jobs.historian import Historian
from gpushared.limits.access import Access
from gpushared.limits.identities import Identities
from gpushared.runtime.shell import Shell
from gpushared.shims.handshake import Handshake
from gpushared.shims.server import ShimServer
from gpushared.system.address import listen
from gpushared.system.dashboard import Dashboard
from gpushared.system.logs import facts, log
from gpushared.system.runtime_dir import RuntimeDir
from gpushared.system.systemd import Notifier

CLAIM_MARGIN = 5.0
"""Seconds after the claim timeout until a shim takes the daemon for stuck."""
QUIET_SAMPLING = 10.0
"""Seconds between samples while there is no job."""
HOUSEKEEPING_EVERY = 1.0
CHECK_EVERY = 10.0
"""Seconds between two checks of the core's sums."""


class Daemon:
    """One run."""

    def __init__(
        self,
        directory: RuntimeDir,
        driver: Driver,
        loaded: configuration.Loaded,
        notifier: Notifier | None = None,
        reload: Callable[[], configuration.Loaded] | None = None,
        *,
        history: Path | None = None,
    ) -> None:
        """The directory is locked already. `history`: the directory of the history; None: there is none."""
        self.directory = directory
        self.config = loaded.config
        self._gpus = Inventory(driver)
        self._notifier = notifier or Notifier({})
        self._reload = reload
        self._history = history
        self._stop = asyncio.Event()
        self._busy_at = self._checked_at = time.monotonic()
        self._status = ""

    async def run(self) -> None:
        """Serve until stopped or idle."""
        _raise_descriptor_limit()
        path = self.directory.directory
        core = NodeState(self.config.policy())
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(self._gpus.driver.close)
            historian = Historian(self._history)
            stack.callback(historian.close)
            historian.start()
            before = await earlier.read(historian)
            self.shell = shell = Shell(core, self._gpus, path / "state.json", historian)
            stack.callback(shell.close)
            shell.jobs.picture_of = Views(shell).picture
            shell.driver.find_gpus()
            if not shell.gpus.infos:
                log.warning("no GPU found")
            self.health_monitor = HealthMonitor(
                shell.driver.thread, shell.gpus.driver, lambda: shell.core, shell.feed, shell.driver.take_in_gpus
            )
            shell.driver.on_silence = self.health_monitor.suspect
            stack.callback(self.health_monitor.close)
            self.health_monitor.start()
            pages = Pages(path / "pages", adopts=not self.directory.system)
            stack.callback(pages.close)
            shell.recover(pages)
            shell.turns.start(on=self.config.turns, turn=self.config.turn)
            shell.core.records[:0] = earlier.take_up(shell.registry, before)
            for gpu in self._gpus.infos:
                shell.driver.sample_soon(gpu)
            self._identities = Identities(asyncio.get_running_loop())
            stack.callback(self._identities.close)
            self.access = Access(
                lambda: shell.core,
                lambda: self.config,
                self._identities,
                shell.limits.users,
                system=self.directory.system,
            )
            shell.jobs.viewer_of = self.access.viewer
            handshake = Handshake(shell, pages, lambda: self.config.claim_timeout + CLAIM_MARGIN, self.access)
            self.shims = ShimServer(shell, handshake)
            stack.callback(self.shims.close)
            self.shims.start(self.directory.bind("shim.sock", socket.SOCK_SEQPACKET, for_containers=True))
            self._caution()
            usage = UsageHistory(self._history)
            stack.callback(usage.close)
            usage.start()
            await self._serve_api(stack, usage)
            stack.callback(usage.end_streams)
            stack.callback(shell.end_streams)
            self._handle_signals()
            self._notifier.ready(self._describe())
            gc.collect()
            gc.freeze()  # collections skip the objects of all modules, which would cost clients milliseconds
            gc.enable()
            log.info("ready", extra=facts(directory=str(path), driver=self._gpus.driver.kind, gpus=len(core.gpus)))
            await self._serve()
        log.info("stopped")

    async def _serve(self) -> None:
        lasting = map(self._lasting, (self._sample, self._look_after, self._keep_house))
        loops = (*lasting, self._write_history(), self.shell.turns.keep())
        tasks = [asyncio.create_task(one) for one in loops]
        await self._stop.wait()
        self.shell.registry.closing = True
        self._notifier.stopping()
        self.directory.unbind()
        self.shims.stop()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.shell.commits.quietly()

    async def _lasting(self, loop: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """A bug of ours costs a round, not the loop: without it owners would wait, and suspended programs stay so."""
        while True:
            try:
                await loop()
            except Exception:
                self.shell.core_loop.errors += 1
                log.exception("a round of the daemon failed", extra=facts(what=loop.__name__.strip("_")))

    def stop(self) -> None:
        self._stop.set()

    def _caution(self) -> None:
        """Log doubtful settings. Not in a user's daemon: its user runs the jobs."""
        for caution in configuration.cautions(self.config) if self.directory.system else ():
            log.warning(caution)

    # ---- the API -----------------------------------------------------------------------------------

    async def _serve_api(self, stack: contextlib.AsyncExitStack, usage: UsageHistory) -> None:
        from aiohttp import web

        from gpushared.api.application import Api, metrics_application
        from gpushared.api.metrics_port import serve_metrics

        scope = "system" if self.directory.system else "user"
        self.api = Api(self.shell, lambda: self.config, scope, self.access, usage)
        if self.config.metrics_listen:
            listener = listen(self.config.metrics_listen)
            await serve_metrics(stack, metrics_application(self.api), listener, self.shell.limits)
        if self.config.dashboard_port:
            config, path = self.config, self.directory.directory
            self.api.node.dashboard = page = Dashboard(
                path, config.dashboard_port, read_only=config.dashboard_read_only
            )
            stack.push_async_callback(page.stop)
            page.start()
        runner = web.AppRunner(
            self.api.application(), handler_cancellation=True, shutdown_timeout=1.0, **listener_options()
        )
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        assert runner.server is not None
        self.api.guard.listener = http = HttpListener(runner.server, self.shell.limits)
        http.start(self.directory.bind("api.sock", socket.SOCK_STREAM))
        stack.callback(http.close)

    # ---- periodic work -------------------------------------------------------------------------------

    async def _sample(self) -> None:
        """Compare the ledger with the driver's numbers."""
        sampled = time.monotonic()
        while True:
            await asyncio.sleep(self.config.sample_interval)
            now = time.monotonic()
            busy = any(True for _ in self.shell.registry.live())
            if not busy and now - sampled < QUIET_SAMPLING:
                continue
            sampled = now
            for gpu in self._gpus.infos:
                if not self.shell.core.gpus[gpu].health.lost:
                    self.shell.driver.sample_soon(gpu)

    async def _write_history(self) -> None:
        pause = HISTORY_EVERY
        while True:
            try:
                pause = self.api.history.look()
            except Exception:
                self.shell.core_loop.errors += 1
                log.exception("the usage history took no sample")
            await asyncio.sleep(pause)

    async def _look_after(self) -> None:
        """Poll the GPUs' health, and which GPUs there are."""
        while True:
            await asyncio.sleep(self.config.health_interval)
            self.health_monitor.poll()

    async def _keep_house(self) -> None:
        watchdog = self._notifier.watchdog_interval
        while True:
            await asyncio.sleep(min(HOUSEKEEPING_EVERY, self.config.idle_exit / 4 or 0.05, watchdog or 1.0))
            if watchdog is not None:
                self._notifier.alive()
            self.shell.processes.give_up_broken()
            self.shell.processes.end_replaced()
            self.shell.end_deserted()
            self.shell.outside.suspenders.keep_gates()
            self._check()
            status = self._describe()
            if status != self._status:
                self._status = status
                self._notifier.status(status)
            if not self.directory.system and self._is_idle():
                log.info("no job left")
                self.stop()

    def _check(self) -> None:
        now = time.monotonic()
        if now - self._checked_at >= CHECK_EVERY:
            self._checked_at = now
            self.shell.core_loop.check()

    def _is_idle(self) -> bool:
        """Whether there was no job, no reservation and no request for long enough."""
        now = time.monotonic()
        if self.api.guard.active or self.shell.core.reservations or any(True for _ in self.shell.registry.live()):
            self._busy_at = now
        return now - self._busy_at >= self.config.idle_exit

    def _describe(self) -> str:
        core = self.shell.core
        out = sum(not gpu.health.admits for gpu in core.gpus.values())
        gpus = _count(len(core.gpus), "GPU") + (f" ({out} out of use)" if out else "")
        return f"{gpus}, {_count(len(core.jobs), 'job')}, {format_bytes(core.lent)} lent"

    # ---- signals -----------------------------------------------------------------------------------

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(ValueError, RuntimeError):  # not the main thread: an embedding test stops us itself
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self.stop)
            loop.add_signal_handler(signal.SIGHUP, self.reload_config)

    def reload_config(self) -> None:
        """A file with an error changes nothing."""
        if self._reload is None:
            return
        self._notifier.reloading(time.monotonic())
        try:
            fresh = self._reload().config
        except GpushareError as error:
            why = "; ".join(f"{place} {problem}" for place, problem in error.facts)
            log.error("the settings stay as they were", extra=facts(error=error.message, why=why))
        else:
            changed = configuration.changes(self.config, fresh)
            self.config = fresh
            self._identities.forget()
            self.shell.core.policy = fresh.policy()
            self.health_monitor.poll()
            self._caution()
            log.info("settings read again", extra=facts(changed="; ".join(changed) or "nothing"))
        self._notifier.ready(self._describe())


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _raise_descriptor_limit() -> None:
    """A client costs three descriptors; the usual soft limit of 1024 is for programs that use select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
