"""A node of its own for a test of hosts, on which scripts run with cuda_client in reach."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from integration.node import ROOT, Node

HERE = Path(__file__).resolve().parent
SIM = ROOT / "gpushare" / "sim"
SHIM = ROOT / "gpushare" / "lib" / "libgpushare.so"
CONTEXT = 256 * 2**20


class Hosts(Node):
    """A node on which scripts run with cuda_client in reach."""

    def __init__(self, directory: Path, sim: str) -> None:
        super().__init__(directory, directory, sim=sim)
        self.env["PYTHONPATH"] += f":{ROOT / 'tests' / 'shim'}:{HERE}"

    def script(self, body: str) -> list[str]:
        return [sys.executable, "-c", "from cuda_client import *\n" + textwrap.dedent(body)]

    def python(self, body: str, *options: object, **env: str) -> Any:
        """What the script said under `gpushare run`: the value, or the list of them."""
        done = self.gpushare("run", *options, "--", *self.script(body), **env)
        assert done.returncode == 0, done.stderr
        return said(done.stdout)

    def start(self, body: str, *options: object, **env: str) -> subprocess.Popen[str]:
        return self.run(*options, "--", *self.script(body), **env)

    def bare(self, **more: str) -> dict[str, str]:
        """The environment of a program on the software driver that nobody has put under gpushare."""
        self.runtime.mkdir(mode=0o700, exist_ok=True)
        self.drivers.mkdir(exist_ok=True)
        for name, file in (("libcuda", "libcuda.so.1"), ("libnvidia-ml", "libnvidia-ml.so.1")):
            for link in (f"{name}.so", f"{name}.so.1"):
                if not (self.drivers / link).exists():
                    (self.drivers / link).symlink_to(SIM / file)
        return self.env | {"LD_LIBRARY_PATH": str(self.drivers)} | more


def said(text: str) -> Any:
    values = [json.loads(line) for line in text.splitlines()]
    return values[0] if len(values) == 1 else values
