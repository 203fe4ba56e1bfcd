"""GPU time in the history, in a job's view and in its report: a program that computes, and one that does not."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
from pathlib import Path

from browser.conftest import MODULES, Browser
from browser.test_page import ROW, serious
from integration.node import Node, wait_for
from integration.test_gpu_time import COMPUTES


def part(node: Node, name: str) -> float | None:
    """How much of the time it computes, by the last point of the history."""
    points = node.api("GET", f"/v1/history?job={node.job(name)['id']}")["series"][0]["points"]
    known = [one[6] for one in points if len(one) > 6]
    return known[-1] if known else None


def test_gpu_time_is_kept_shown_and_reported(browser: Browser, node: Node, url: str, tmp_path: Path) -> None:
    for name, kernels in (("busy", 1), ("idle", 0)):
        node.run("--name", name, "--request", "2Gi", "--gpu", "0", sys.executable, "-c", COMPUTES, kernels)
    wait_for(lambda: part(node, "busy"), "the history to have GPU time")
    assert 0.1 < part(node, "busy") <= 1 and part(node, "idle") == 0
    browser.go(url)
    browser.do(f"await {ROW}.getByRole('link').click()", job="busy")
    browser.do("await page.getByRole('img', {name: /^GPU time of busy on GPU 0: [1-9].* on average/}).waitFor()")
    assert browser.do("return page.locator('canvas').count()") == 2
    assert not serious(browser, (MODULES / "axe-core" / "axe.min.js").read_text())
    browser.picture("gpu-time")
    file = tmp_path / "busy.csv"
    command = [sys.executable, "-m", "gpushare", "report", "busy", "--step", "1s", "-o", str(file)]
    subprocess.run(command, env=node.env, check=True, capture_output=True, timeout=60)
    rows = list(csv.DictReader(io.StringIO(file.read_text())))
    assert max(float(row["computing"]) for row in rows) > 0.1
