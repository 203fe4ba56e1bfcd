"""A job that is suspended, in the page: the word, the bars, the marks of its chart."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from browser.conftest import MODULES, Browser, dashboard
from browser.test_page import ROW, serious, shows
from integration.conftest import puppets  # noqa: F401  (a fixture)
from integration.node import Node
from integration.test_suspending import GPU, PART, borrower


@pytest.fixture
def node(tmp_path: Path, puppets: Path) -> Iterator[Node]:  # noqa: F811
    with Node(tmp_path, puppets, sim=GPU) as one:
        one.start_daemon_of_user()
        yield one


def test_a_suspended_job_is_seen_to_go_and_to_come_back(browser: Browser, node: Node) -> None:
    browser.go(dashboard(node))
    browser.see("No job runs here")
    borrower(node)
    shows(browser, "A", "borrowing", time.monotonic())
    owner = node.puppet("B", "--request", "2Gi")
    owner.alloc(5 * PART)
    shows(browser, "A", "suspended", time.monotonic())
    (gpu,) = node.job("A")["gpus"]
    assert gpu["usage"] == 0 and gpu["suspended"] >= 12 * PART, "what it had, with its context"
    label = f"{gpu['suspended'] / 2**30:.1f} GiB wait in host memory"
    bar = browser.do(f"return {ROW}.getByRole('img').getAttribute('aria-label')", job="A")
    assert bar.endswith(label), bar
    browser.see("in host memory")
    axe = (MODULES / "axe-core" / "axe.min.js").read_text()
    for theme in ("light", "dark"):
        browser.do("await page.getByRole('combobox', {name: 'colours'}).selectOption(given.theme)", theme=theme)
        assert not serious(browser, axe)
        browser.picture(f"suspended-{theme}")
    browser.do(f"await {ROW}.getByRole('link').click()", job="A")
    browser.do("await page.getByRole('button', {name: /^suspend.* at/}).first().waitFor()")
    browser.picture("suspended-job")
    assert owner.end() == 0
    browser.do("await page.locator('h1 + .badge').getByText('borrowing').waitFor({timeout: 15000})")
    browser.see("resumed")
    assert node.job("A")["gpus"][0]["suspended"] == 0
