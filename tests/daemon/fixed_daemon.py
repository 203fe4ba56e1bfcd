"""A daemon as a process of its own whose GPUs are of our making: for what needs a daemon that can be killed."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from daemon_harness import GIB, GPU, GPU2
from fixed_gpus import FixedGpus

from gpushared import config
from gpushared.daemon import Daemon
from gpushared.gpus.inventory import GpuInfo
from gpushared.system import logs
from gpushared.system.runtime_dir import AlreadyRunning, RuntimeDir


async def main(directory: Path, scope: str = "user") -> None:
    logs.set_up("info", "text")
    taken = RuntimeDir(directory, system=scope == "system")
    taken.take()
    gpus = FixedGpus([GpuInfo(GPU, 0, "Test GPU", 16 * GIB), GpuInfo(GPU2, 1, "Test GPU", 16 * GIB)])
    settings = config.Config(idle_exit=3600.0, sample_interval=0.2)
    await Daemon(taken, gpus, config.Loaded(settings, None, frozenset())).run()


if __name__ == "__main__":
    try:
        asyncio.run(main(Path(sys.argv[1]), *sys.argv[2:]))
    except AlreadyRunning:
        sys.exit(0)
