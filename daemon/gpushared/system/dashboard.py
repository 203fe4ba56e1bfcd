"""The dashboard that the daemon serves for administrators: a process of its own, which the daemon starts and keeps.

So no request from a port of localhost is read in the daemon, and no page takes time of its loop. The process ends when
its standard input does, also if the daemon is killed. It asks the daemon over its socket, as the daemon's own user.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path

from gpushared.system.logs import facts, log

__all__ = ["Dashboard"]

AGAIN_AFTER = 1.0
"""Seconds until a server that has ended is started again; twice as long after each time, ..."""
LATEST_AFTER = 60.0
"""... up to this."""
ENDS_WITHIN = 2.0
WORKS_AFTER = 10.0
"""Seconds that a server runs until its next end counts as the first."""


class Dashboard:
    """The dashboard of one daemon."""

    def __init__(self, directory: Path, port: int, *, read_only: bool) -> None:
        """`directory`: the daemon's, where its secret is kept over a restart."""
        words = ["--port", str(port), "--socket", str(directory / "api.sock")]
        words += ["--secret", str(directory / "dashboard.secret"), *(["--read-only"] if read_only else [])]
        self._command = [sys.executable, "-P", "-m", "gpushare.dashboard", *words]
        self._task: asyncio.Task[None] | None = None
        self.url: str | None = None
        """The address with its token, while it runs."""

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _keep(self) -> None:
        pause, loop = AGAIN_AFTER, asyncio.get_running_loop()
        while True:
            started = loop.time()
            try:
                why = await self._run()
            except OSError as error:
                why = str(error)
            if loop.time() - started > WORKS_AFTER:
                pause = AGAIN_AFTER
            log.warning("the dashboard's server has ended", extra=facts(why=why, again_after=pause))
            await asyncio.sleep(pause)
            pause = min(2 * pause, LATEST_AFTER)

    async def _run(self) -> str:
        """Run the server until it ends. Returns why it ended, in its words."""
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*self._command, stdin=pipe, stdout=pipe, stderr=pipe)
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        try:
            self.url = (await process.stdout.readline()).decode().strip() or None
            if self.url is not None:
                log.info("the dashboard is served", extra=facts(port=self._command[5]))
            said = (await process.stderr.read(4096)).decode(errors="replace").strip()
            return f"status {await process.wait()}: {said or 'it said nothing'}"
        finally:
            self.url = None
            process.stdin.close()
            try:
                async with asyncio.timeout(ENDS_WITHIN):
                    await process.wait()
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
