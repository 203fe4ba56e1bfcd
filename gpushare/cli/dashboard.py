"""gpushare dashboard: the page in the browser."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click

from gpushare.cli import output as _output
from gpushare.client import Client
from gpushare.config import load_settings
from gpushare.errors import GpushareError, UsageError
from gpushare.locate import find


@click.command(short_help="Watch the GPUs and their jobs in a browser.")
@click.option("--port", metavar="PORT", type=click.IntRange(0, 65535), default=0, help="Default: a free one.")
@click.option("--open", "opens", is_flag=True, help="Open the page in this machine's browser.")
@click.option("--read-only", is_flag=True, help="Only watch: the page changes nothing.")
@click.option(
    "--admin", is_flag=True, help="Print the address of the page that the node's daemon serves, for administrators."
)
def command(port: int, *, opens: bool, read_only: bool, admin: bool) -> None:
    """Serve a page with the GPUs, their jobs and what happens on this node, until interrupted.

    It listens on 127.0.0.1 only, and asks the daemon with your rights. Everybody who has the address that it prints
    sees and may do what you do: do not pass it on. From another machine forward the port first: ssh -L
    PORT:127.0.0.1:PORT HOST.

    With --admin nothing is served: the daemon serves a page itself if `port` of [dashboard] in its settings says so.
    """
    if admin:
        if port or opens or read_only:
            raise UsageError("--admin goes with no other option: the daemon's settings say what its page may do")
        _output.echo(Client(_find()).dashboard())
        return
    asyncio.run(_serve(port, opens=opens, read_only=read_only))


def _find() -> Path:
    return find(load_settings()).runtime.api_socket


def _find_service() -> Path:
    from gpushare.cluster.client import need

    return need().api_socket


async def _serve(port: int, *, opens: bool, read_only: bool) -> None:
    from gpushare.dashboard.server import Server, listen

    load_settings()  # settings with a mistake are an error now, not on the page
    server = Server(_find, _find_service, read_only=read_only)
    try:
        runner, port = await listen(server, port)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        hint = "leave --port out: a free one is taken then" if port else None
        raise GpushareError(f"cannot listen on 127.0.0.1:{port}: {why}", code="cannot_listen", hint=hint) from None
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        url = server.url(port)
        _output.echo(url)
        _output.note(
            f"keep this address to yourself: its page acts with your rights; from another machine: {_forward(port)};"
            " Ctrl-C ends it"
        )
        with _opened(url, wanted=opens):
            await stop.wait()
    finally:
        await runner.cleanup()


def _forward(port: int) -> str:
    return f"ssh -L {port}:127.0.0.1:{port} {socket.gethostname()}"


@contextlib.contextmanager
def _opened(url: str, *, wanted: bool) -> Iterator[None]:
    """Open the address through a private file, because other users can read a browser's arguments."""
    if not wanted:
        yield
        return
    directory = os.environ.get("XDG_RUNTIME_DIR")
    with tempfile.NamedTemporaryFile("w", prefix="gpushare-dashboard-", suffix=".html", dir=directory) as file:
        file.write(f'<!doctype html><meta http-equiv="refresh" content="0;url={url}"><title>gpushare</title>')
        file.flush()
        if not _open(Path(file.name).as_uri()):
            _output.note("no browser found here: open the address yourself")
        yield


def _open(address: str) -> bool:
    import webbrowser

    with contextlib.suppress(webbrowser.Error, OSError):
        return webbrowser.open(address)
    return False
