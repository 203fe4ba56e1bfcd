"""Every block of README and docs/ is run by a test, or a table says why not. A new block fails until then."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from doc_blocks import ROOT, Block, blocks
from gpushared import config
from integration.node import Node, wait_for

BLOCKS = list(blocks())
IN_ANOTHER_TEST = {
    "README.md: gpushare run --name train": "tests/integration/test_readme_runs.py",
    "README.md: make demo": "tests/integration/test_demo.py",
    "daemon/deploy/README.md: ": "tests/packaging/test_node.py",
    "docs/notebooks.md: gpushare kernel install": "tests/integration/test_readme_runs.py",
    "docs/running.md: import gpushare": "tests/integration/test_readme_runs.py",
    "docs/notebooks.md: import gpushare": "tests/notebook/test_enable.py",
    "docs/cluster.md: ": "tests/cluster/test_cluster_page.py",
    "docs/metrics.md: gpushare_gpu": "tests/integration/test_prometheus.py",
    "docs/metrics.md: label_replace": "tests/integration/test_prometheus.py",
    "docs/metrics.md: sum by": "tests/integration/test_prometheus.py",
    "docs/metrics.md: histogram_quantile": "tests/integration/test_prometheus.py",
    "docs/metrics.md: # prometheus.yml": "tests/integration/test_prometheus.py",
    "docs/reasons.md: ": "tests/unit/test_message_catalog.py",
}
"""How a block's name begins -> the test that runs it, or that compares it with what is printed."""
NOT_RUN = {
    "README.md: python3 -m venv": "takes packages from the network; tests/packaging installs the wheel and its files",
    "CONTRIBUTING.md: make .venv/installed-test": "it is how this test came to run; the last one is a commit",
    "docs/dashboard.md: ssh": "needs another machine",
    "docs/gpu-day.md: ": "needs a GPU; tests/gpuday runs its checks on the software driver",
    "docs/slurm.md: ": "needs Slurm; tests/engines runs such jobs, plug-in, Prolog and Epilog included",
    "docs/kubernetes.md: ": "needs a cluster; tests/kubernetes reads the claim, and runs what a node does with it",
    "docs/hooks.md: ": "needs vLLM and a GPU; tests/integration/test_hooking.py has hooks asked by real jobs",
    "docs/turns.md: ": "needs a node with turns; tests/integration/test_turn_taking.py has such jobs",
    "docs/concepts.md: ": "drawings",
    "docs/notebooks.md: job torch-8g": "a picture of what tests/notebook compares",
    "docs/running.md: gpushare run [--request": "the form of a command",
    "docs/running.md: gpushare run --limit 8Gi --container": "tests/integration/test_containers.py",
    "docs/running.md: gpushare cdi small": "tests/integration/test_named_devices.py",
}
"""How a block's name begins -> why it is not run."""


def listed(block: Block) -> list[str]:
    return [start for start in (*IN_ANOTHER_TEST, *NOT_RUN) if block.name.startswith(start)]


def key_of(block: Block) -> str:
    return f"{block.page}:{block.line}"


HERE = [block for block in BLOCKS if not listed(block)]
COMMANDS = [block for block in HERE if block.commands]
SETTINGS = [block for block in HERE if block.kind == "toml"]


def test_the_pages_have_blocks() -> None:
    assert len(BLOCKS) > 100 and len(COMMANDS) >= 8, "they are not found"


def test_what_is_neither_run_nor_named_is_found_out() -> None:
    others = [block.name for block in HERE if block not in COMMANDS and block not in SETTINGS]
    assert not others, "run them here, or say in a table where they are run or why not"


def test_the_tables_have_nothing_that_is_gone() -> None:
    found = {start for block in BLOCKS for start in listed(block)}
    assert found == {*IN_ANOTHER_TEST, *NOT_RUN}
    assert not [block.name for block in BLOCKS if len(listed(block)) > 1]
    for file in IN_ANOTHER_TEST.values():
        assert (ROOT / file).is_file(), file


@pytest.mark.parametrize("block", SETTINGS, ids=key_of)
def test_settings_are_what_the_daemon_takes(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "gpushared.toml"
    file.write_text("\n".join(block.lines))
    loaded = config.load(file)
    assert len(loaded.from_file) == sum(len(table) for table in tomllib.loads(file.read_text()).values())


# ---- commands ----------------------------------------------------------------------------------------


class Typist:
    """Types commands one after the other, in a directory with the programs that the pages speak of."""

    def __init__(self, node: Node, where: Path) -> None:
        self.node, self.where = node, where
        self.job = ""
        """The id that the last `gpushare submit` has printed."""

    def type(self, command: str) -> None:
        """Run it as it stands, but for places that are another on this machine."""
        command = command.replace("/run/gpushare/", f"{self.node.runtime}/")
        command = re.sub(r"^(gpushare logs -f) 17$", rf"\1 {self.job}", command)
        endless = command.endswith(" &") or command == "gpushare dashboard"
        if endless:
            self._begin(command.removesuffix(" &"))
            return
        if command.startswith("gpushare report"):
            wait_for(self._has_a_past, "the history to have a step of eight hours")
        done = subprocess.run(
            ["sh", "-c", command], cwd=self.where, env=self.node.env, capture_output=True, text=True, timeout=90
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        if command.startswith("gpushare submit"):
            self.job = done.stdout.split()[-1]

    def _has_a_past(self) -> bool:
        return bool(self.node.api("GET", f"/v1/history?since={time.time() - 8 * 3600:.0f}&step=48")["series"])

    def _begin(self, command: str) -> None:
        """A command that goes on until the end of the test."""
        child = self.node.spawn(["sh", "-c", f"cd {self.where}; exec {command}"])
        if "serve" in command:
            wait_for(lambda: child.poll() is None and self._answers(), "the service")
        else:
            assert child.stdout is not None and child.stdout.readline().startswith("http://127.0.0.1:")

    def _answers(self) -> bool:
        command = [sys.executable, "-m", "gpushare", "queue"]
        return subprocess.run(command, env=self.node.env, capture_output=True, check=False).returncode == 0


BEFORE: dict[str, tuple[str, ...]] = {
    "docs/reports.md: ": ("gpushare run --name train --request 1Gi python train.py",),
    "docs/restart.md: ": ("gpushare run --name train --request 1Gi python train.py",),
    "docs/service.md: ": (f"gpushare cluster apply {ROOT}/examples/cluster/cluster.yaml",),
}
"""What a page takes for granted: typed before the block."""


@pytest.fixture
def typist(node: Node, tmp_path: Path) -> Iterator[Typist]:
    where = tmp_path / "work"
    where.mkdir()
    for name in ("train", "serve"):
        (where / f"{name}.py").write_text("import time\nprint('working')\ntime.sleep(1.2)\n")
    for name in ("XDG_STATE_HOME", "XDG_DATA_HOME", "JUPYTER_DATA_DIR", "HOME"):
        node.env[name] = str(tmp_path / name.lower())
        Path(node.env[name]).mkdir()
    node.put_commands_on_path()
    node.start_daemon_of_user()
    yield Typist(node, where)


@pytest.mark.parametrize("block", COMMANDS, ids=key_of)
def test_a_block_of_commands_does_what_it_says(block: Block, typist: Typist) -> None:
    if block.commands[0].startswith("curl") and shutil.which("curl") is None:
        pytest.skip("no curl")
    if any("kernel" in command for command in block.commands):
        pytest.importorskip("ipykernel")
    for start, commands in BEFORE.items():
        if block.name.startswith(start):
            for command in commands:
                typist.type(command)
    for command in block.commands:
        typist.type(command)
