"""A headless Chromium, and a node with a dashboard for it to look at. Skipped by name where one of them is not here."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.conftest import puppets  # noqa: F401  (a fixture)
from integration.node import Node

HERE = Path(__file__).resolve().parent
MODULES = HERE.parents[1] / "web" / "node_modules"
SCREENSHOTS = HERE.parents[1] / "build" / "screenshots"


class Browser:
    """Runs the bodies of async functions of (page, context, seen, given) in browser.mjs."""

    def __init__(self, profile: str) -> None:
        chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        if chromium is None or shutil.which("node") is None:
            pytest.skip("no Chromium or no node here")
        if not (MODULES / "playwright-core").is_dir():
            pytest.skip("web/node_modules is not there: `make test-browser` brings it")
        self._process = subprocess.Popen(
            ["node", str(HERE / "browser.mjs"), str(MODULES), chromium, profile],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._answer() == "ready"

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the browser has ended: {self._process.wait(10)}"
        answer = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer["value"]

    def do(self, script: str, **given: object) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"script": script, "given": given}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def see(self, text: str, within: float = 15.0) -> None:
        """Wait until the text can be seen."""
        self.do("await page.getByText(given.text).first().waitFor({timeout: given.ms})", text=text, ms=within * 1000)

    def go(self, url: str) -> None:
        """Load it, as if it were typed: another part behind # alone would not load it."""
        self.do("await page.goto('about:blank'); await page.goto(given.url)", url=url)

    def picture(self, name: str) -> None:
        """For people: the tests do not look at it."""
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.do("await page.screenshot({path: given.path, fullPage: true})", path=str(SCREENSHOTS / f"{name}.png"))

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._process.wait(20)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with tempfile.TemporaryDirectory(prefix="gs-chromium-", ignore_cleanup_errors=True) as profile:
        one = Browser(profile)
        yield one
        one.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """No test may leave an error in the page's console, or a request to another host. Looked at while the node of the
    test still runs: the page says so in its console when that ends."""
    browser = getattr(item, "funcargs", {}).get("browser")
    if browser is None:
        return (yield)
    browser.do("seen.errors.length = seen.foreign.length = 0")
    try:
        result = yield
        seen = browser.do("return seen")
        assert seen["foreign"] == []
        if item.get_closest_marker("console_errors") is None:
            assert seen["errors"] == []
        return result
    finally:
        browser.do("await page.unrouteAll({behavior: 'ignoreErrors'}); await page.goto('about:blank')")


@pytest.fixture
def node(tmp_path: Path, puppets: Path) -> Iterator[Node]:  # noqa: F811
    """Two software GPUs of 16 GiB, with a daemon that stays."""
    with Node(tmp_path, puppets, sim="gpus=2,memory=16Gi") as one:
        one.start_daemon_of_user()
        yield one


def dashboard(node: Node, *options: str) -> str:
    """The address that the command prints."""
    command = node.spawn([sys.executable, "-m", "gpushare", "dashboard", *options])
    assert command.stdout is not None
    return command.stdout.readline().strip()


@pytest.fixture
def url(node: Node) -> str:
    return dashboard(node)
