"""A notebook without its browser: jupyter_client starts the kernel, runs cells, and reads what they say."""

from __future__ import annotations

import json
import queue
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager

from integration.node import Node

PATIENCE = 60.0


def plain_kernel(node: Node, environ: Mapping[str, str]) -> None:
    """Install a kernel `plain`, as one does who knows nothing of gpushare."""
    directory = node.directory / "data" / "kernels" / "plain"
    directory.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    content = {"argv": argv, "env": dict(environ), "display_name": "plain", "language": "python"}
    (directory / "kernel.json").write_text(json.dumps(content))


class Notebook:
    """A kernel and a client of it. `manager` is what the server would have."""

    def __init__(self, kernel: str, kernels: Path, environ: Mapping[str, str]) -> None:
        specs = KernelSpecManager(kernel_dirs=[str(kernels)], ensure_native_kernel=False)
        self.manager = KernelManager(kernel_name=kernel, kernel_spec_manager=specs)
        self.manager.start_kernel(env=dict(environ))
        self.client: BlockingKernelClient = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=PATIENCE)

    @property
    def pid(self) -> int:
        return int(self.manager.provisioner.pid)

    def send(self, cell: str) -> str:
        return str(self.client.execute(cell))

    def run(self, cell: str) -> str:
        """What the cell writes and shows; the error's name and text if it ends with one."""
        return self.answer(self.send(cell))

    def answer(self, request: str) -> str:
        said: list[str] = []
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            message = self._next()
            if message is None or message["parent_header"].get("msg_id") != request:
                continue
            content = message["content"]
            match message["msg_type"]:
                case "stream":
                    said.append(content["text"])
                case "execute_result":
                    said.append(content["data"]["text/plain"])
                case "error":
                    said.append(f"{content['ename']}: {content['evalue']}")
                case "status" if content["execution_state"] == "idle":
                    return "".join(said)
        raise AssertionError(f"no answer: {said}")

    def _next(self) -> dict | None:
        try:
            return dict(self.client.get_iopub_msg(timeout=1.0))
        except queue.Empty:
            assert self.manager.is_alive(), "the kernel has ended"
            return None

    def ready(self) -> None:
        """After a restart."""
        self.client.wait_for_ready(timeout=PATIENCE)

    def close(self) -> None:
        self.client.stop_channels()
        if self.manager.has_kernel:
            self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()
