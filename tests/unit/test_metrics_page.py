"""docs/metrics.md lists what the daemon answers."""

from __future__ import annotations

import importlib.util
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_page_is_the_list() -> None:
    spec = importlib.util.spec_from_file_location("generate_metrics", DOCS / "man" / "generate_metrics.py")
    assert spec is not None and spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    assert (DOCS / "metrics.md").read_text() == generate.page(), "run `make man`"
