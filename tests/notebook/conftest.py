"""Notebooks on the software driver: a node of its own for each test, and kernels that Jupyter's own client starts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from integration.node import Node
from notebook.kernels import Notebook


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """One software GPU of 16 GiB; kernels are installed below `data`."""
    with Node(tmp_path, tmp_path, sim="memory=16Gi,context=512Mi") as one:
        one.env |= {
            "JUPYTER_DATA_DIR": str(tmp_path / "data"),
            "JUPYTER_RUNTIME_DIR": str(tmp_path / "jupyter"),
            "IPYTHONDIR": str(tmp_path / "ipython"),
            "NUMBA_CACHE_DIR": str(tmp_path / "numba"),
        }
        yield one


@pytest.fixture
def open_notebook(node: Node) -> Iterator[Callable[[str], Notebook]]:
    opened: list[Notebook] = []

    def start(kernel: str) -> Notebook:
        opened.append(Notebook(kernel, node.directory / "data" / "kernels", node.env))
        return opened[-1]

    # What Jupyter does to its own environment is not the other tests' business.
    before = dict(os.environ)
    yield start
    for notebook in opened:
        notebook.close()
    os.environ.clear()
    os.environ.update(before)
