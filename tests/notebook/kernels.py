"""A notebook without its browser: jupyter_client starts the kernel, runs cells, and reads what they say."""

from __future__ import annotations

import json
import queue
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

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


class Said(NamedTuple):
    text: str
    stream: str
    parent: str | None
    """The request of the cell to whose output a frontend adds it."""


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

    def run(self, cell: str, *, dies: bool = False) -> str:
        """What the cell writes and shows; the error's name and text if it ends with one. `dies`: the kernel ends."""
        request = self.send(cell)
        return "" if dies else self.answer(request)

    def mimes(self, cell: str) -> set[str]:
        """In which forms the one thing that the cell displays is shown."""
        shown = [message["content"]["data"] for message in self.messages(self.send(cell), "display_data")]
        assert len(shown) == 1
        return set(shown[0])

    def help_of(self, cell: str) -> str:
        """What the pager of the frontend shows."""
        return str(
            self.client.execute_interactive(cell, timeout=PATIENCE)["content"]["payload"][0]["data"]["text/plain"]
        )

    def hear(self, words: str) -> Said:
        """What is written by the message that holds these words, from now on."""
        text = ""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            message = self._next()
            if message is not None and message["msg_type"] == "stream":
                text += message["content"]["text"]
                if words in text:
                    return Said(text, message["content"]["name"], message["parent_header"].get("msg_id"))
        raise AssertionError(f"never said {words!r}: {text!r}")

    def restart(self) -> None:
        """As the server does when a kernel has died, or the user asks for it."""
        self.manager.restart_kernel(now=True)
        self.ready()

    def answer(self, request: str) -> str:
        said = []
        for message in self.messages(request):
            content = message["content"]
            match message["msg_type"]:
                case "stream":
                    said.append(content["text"])
                case "execute_result" | "display_data":
                    said.append(content["data"]["text/plain"])
                case "error":
                    said.append(f"{content['ename']}: {content['evalue']}")
        return "".join(said)

    def messages(self, request: str, kind: str | None = None) -> list[dict]:
        """All that a cell makes a frontend show, until it has ended; of one kind, if one is named."""
        found: list[dict] = []
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            message = self._next()
            if message is None or message["parent_header"].get("msg_id") != request:
                continue
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                return found
            if kind in (None, message["msg_type"]):
                found.append(message)
        raise AssertionError(f"no answer: {found}")

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
