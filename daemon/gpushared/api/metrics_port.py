"""The TCP port for metrics: /metrics and nothing else, because who calls is unknown there."""

from __future__ import annotations

import contextlib
import socket

from aiohttp import web

from gpushared.api.http_listener import HttpListener, listener_options
from gpushared.limits.limits import Limits

__all__ = ["serve_metrics"]


async def serve_metrics(
    stack: contextlib.AsyncExitStack, application: web.Application, listener: socket.socket, limits: Limits
) -> None:
    """Serve until `stack` ends."""
    runner = web.AppRunner(application, shutdown_timeout=1.0, **listener_options())
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    assert runner.server is not None
    http = HttpListener(runner.server, limits)
    http.start(listener)
    stack.callback(http.close)
