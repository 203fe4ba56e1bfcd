"""The HTTPS server that the API server asks, and what goes on beside it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import ssl
import threading
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from gpushare.cluster.engines.kubernetes.cache import Watched
from gpushare.cluster.engines.kubernetes.names import NODES, QUEUES, SLICES
from gpushare.errors import GpushareError, UsageError
from gpushare.kubernetes.names import NODE_GPUS
from gpushare.kubernetes.server import Server, Unanswered
from gpushare.kubernetes.webhook.keeper import Keeper, load
from gpushare.kubernetes.webhook.limits import Rules
from gpushare.kubernetes.webhook.makers import Templates, clean_quietly
from gpushare.kubernetes.webhook.review import Cluster, answer

__all__ = ["Known", "Webhook"]

log = logging.getLogger(__name__)
LONGEST_BODY = 8 * 2**20
"""Bytes. A pod has at most 1.5 MiB."""
WITHIN = 3.0
"""Seconds that a pod may wait for the first lists."""
READ = 10.0
"""Seconds that a request may take to come."""
CLEAN = 600.0


class Known:
    """What is known of the cluster, as it was last seen: the API server that asks may be slow with the rest."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._watched = {path: self._watch(path) for path in (NODES, QUEUES)}
        self._gpus = ""
        """The collection in which nodes publish them; "": the API server was not asked yet."""
        self._asking = threading.Lock()

    def _watch(self, path: str) -> Watched:
        return Watched(self._server, path, _nothing, keep=_small, optional=path == QUEUES)

    def find(self) -> None:
        """What carries claims, once. Raises GpushareError."""
        with self._asking:
            if not self._gpus:
                path = SLICES if self._server.has_claims() else NODE_GPUS
                self._watched[path] = self._watch(path)
                self._gpus = path

    def cluster(self) -> Cluster:
        """Raises GpushareError where something was never seen."""
        self.find()
        slices, nodes, queues = (self._objects(path) for path in (self._gpus, NODES, QUEUES))
        by_name = {name: one for (_, name), one in nodes.items()}
        known = None if self._watched[QUEUES].absent else {name: one for (_, name), one in queues.items()}
        return Cluster(list(slices.values()), by_name, known, claims=self._gpus == SLICES)

    def is_seen(self) -> bool:
        with contextlib.suppress(GpushareError):
            self.find()
        return bool(self._gpus) and all(one.absent or one.seen for one in list(self._watched.values()))

    def _objects(self, path: str) -> Mapping[tuple[str, str], Mapping[str, Any]]:
        one = self._watched[path]
        objects, trouble = one.objects(WITHIN)
        if not one.seen and not one.absent:
            raise Unanswered(trouble)
        return objects

    def close(self) -> None:
        for one in self._watched.values():
            one.close()


class Webhook:
    def __init__(self, keeper: Keeper, known: Known, templates: Templates, rules: Rules) -> None:
        self._keeper = keeper
        self._known = known
        self._templates = templates
        self._rules = rules
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._told = ""

    async def run(self, address: str, port: int, every: float, ended: asyncio.Event) -> None:
        """Until `ended`. Raises OSError where it cannot listen."""
        while not await self._look():
            if await _is_set(ended, min(every, 1.0)):
                return
        app = web.Application(client_max_size=LONGEST_BODY)
        app.add_routes([web.post("/pods", self._pods), web.get("/ready", self._ready)])
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        cleaner = asyncio.create_task(self._clean())
        try:
            await web.TCPSite(runner, address, port, ssl_context=self._context).start()
            log.info("answers the API server at https://%s:%s/pods", *runner.addresses[0][:2])
            while not await _is_set(ended, every):
                await self._look()
        finally:
            cleaner.cancel()
            await runner.cleanup()

    async def _look(self) -> bool:
        """Whether all went well. The certificate is changed between handshakes, which this thread does, too."""
        try:
            kept = await asyncio.to_thread(self._keeper.look)
            if kept is not None:
                load(self._context, kept)
        except (GpushareError, OSError) as error:
            self._say(f"certificate: {error}")
            return False
        except (KeyError, TypeError, AttributeError) as error:
            self._say(f"certificate: the API server's objects cannot be read: {error!r}")
            return False
        self._told = ""
        return True

    def _say(self, trouble: str) -> None:
        if trouble != self._told:
            log.warning("%s", trouble)
        self._told = trouble

    async def _clean(self) -> None:
        while True:
            await asyncio.to_thread(clean_quietly, self._templates)
            await asyncio.sleep(CLEAN)

    async def _pods(self, request: web.Request) -> web.Response:
        try:
            async with asyncio.timeout(READ):
                review = json.loads(await request.read())
        except (ValueError, RecursionError, TimeoutError):
            return web.Response(status=400, text="this is no AdmissionReview\n")
        try:
            said = await asyncio.to_thread(answer, review, self._known.cluster, self._rules, self._templates.make)
        except UsageError as error:
            return web.Response(status=400, text=f"{error.message}\n")
        return web.json_response(said)

    async def _ready(self, _: web.Request) -> web.Response:
        seen = self._known.is_seen()
        return web.Response(status=200 if seen else 503, text="ready\n" if seen else "the cluster was not listed yet\n")


async def _is_set(event: asyncio.Event, within: float) -> bool:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), within)
    return event.is_set()


def _small(thing: dict[str, Any]) -> Mapping[str, Any]:
    """Of a node's status nothing is needed."""
    return {name: value for name, value in thing.items() if name in ("metadata", "spec")}


def _nothing() -> None:
    pass
