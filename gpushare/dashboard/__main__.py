"""The server of a page for administrators, as a process of the node daemon: it ends when its standard input does.

It prints the page's address, for the daemon alone. All users of the machine can connect to its port, so it gives up
the rights that it has from the daemon and does not need.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import os
import stat
import sys
from pathlib import Path

from gpushare.cluster.client import need
from gpushare.dashboard.access import new_secret
from gpushare.dashboard.server import Server, listen

__all__ = ["lasting_secret", "main"]

CAPABILITIES_VERSION = 0x20080522
"""Of the kernel's interface; linux/capability.h."""
AGAIN_AFTER = 0.2
TRIES = 50
"""The server of a daemon that was killed has the port for a moment longer."""


def main() -> int:
    options = _options()
    give_up_capabilities()
    try:
        secret = lasting_secret(options.secret)
        return asyncio.run(_serve(options, secret))
    except OSError as error:
        print(error, file=sys.stderr)
        return 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m gpushare.dashboard", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--socket", type=Path, required=True, help="the daemon's api.sock")
    parser.add_argument("--secret", type=Path, required=True, help="where the secret is kept")
    parser.add_argument("--read-only", action="store_true")
    return parser.parse_args()


def give_up_capabilities() -> None:
    """Give up all capabilities. OSError if the kernel refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(CAPABILITIES_VERSION, 0)
    if libc.capset(header, (ctypes.c_uint32 * 6)()) != 0:
        raise OSError(ctypes.get_errno(), "cannot give up capabilities")


def lasting_secret(path: Path) -> str:
    """The secret in this file, which only this user may read; it is made if it is not there. OSError if the file is
    another's, or others may read it."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return _read(path)
    with os.fdopen(descriptor, "w") as file:
        secret = new_secret()
        file.write(secret)
        return secret


def _read(path: Path) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor) as file:
        found = os.fstat(descriptor)
        private = stat.S_ISREG(found.st_mode) and not found.st_mode & 0o077 and found.st_uid == os.geteuid()
        secret = file.read(4096).strip()
    if not private:
        raise PermissionError(f"{path} is not a file of this user's alone")
    if len(secret) < len(new_secret()):
        path.unlink()  # its writer was killed
        return lasting_secret(path)
    return secret


async def _serve(options: argparse.Namespace, secret: str) -> int:
    server = Server(lambda: options.socket, lambda: need().api_socket, read_only=options.read_only, secret=secret)
    for left in range(TRIES, -1, -1):
        try:
            runner, port = await listen(server, options.port)
            break
        except OSError as error:
            if not left:
                raise OSError(f"cannot listen on 127.0.0.1:{options.port}: {os.strerror(error.errno or 0)}") from None
            await asyncio.sleep(AGAIN_AFTER)
    try:
        print(server.url(port), flush=True)
        await _input_ends()
    finally:
        await runner.cleanup()
    return 0


async def _input_ends() -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()


if __name__ == "__main__":
    raise SystemExit(main())
