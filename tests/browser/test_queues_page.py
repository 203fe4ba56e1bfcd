"""The cluster's view in a real browser, while a service decides about the jobs of two queues."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from browser.conftest import MODULES, Browser, dashboard
from browser.test_page import LATE, serious
from cluster_service.service_process import Process, until
from gpushare.cluster.model import Node as Machine
from gpushare.cluster.model import NodeAdded, Policy, Queue, QueueAdded
from gpushare.cluster.quantity import MICRO, gpus
from integration.node import Node

GIVEN = (
    *(NodeAdded(Machine(name, 4)) for name in ("n1", "n2")),
    *(QueueAdded(Queue(name, quota=gpus(4))) for name in ("lab", "team")),
)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Process]:
    """Two nodes with four GPUs each, and queues `lab` and `team` with half of them each."""
    one = Process(tmp_path, GIVEN, Policy(protect=0.0, reserve_after=None))
    one.start()
    yield one
    if one.process is not None:
        one.end()


@pytest.fixture
def queues(node: Node, service: Process) -> str:
    """The address of the cluster's view."""
    node.env["GPUSHARE_CLUSTER_SOCKET"] = str(service.socket)
    return dashboard(node)


def go(browser: Browser, url: str) -> None:
    browser.go(url)
    browser.do("await page.getByRole('link', {name: 'Cluster'}).click()")


def submit(service: Process, queue: str, name: str, count: int = 1, wide: int = 1) -> str:
    job = {"queue": queue, "name": name, "gpus": wide}
    return service.client.submit({"job": job, "array": count, "run": {"duration": 600}})


def cells(browser: Browser, queue: str) -> list[str]:
    row = "page.locator('tr[data-queue=\"' + given.queue + '\"] td')"
    return browser.do(f"return {row}.allInnerTexts()", queue=queue)


def shows(browser: Browser, queue: str, held: int) -> float:
    """Wait until the table says so; seconds."""
    since = time.monotonic()
    browser.do(
        "await page.locator('tr[data-queue=\"' + given.queue + '\"] td').first()"
        ".filter({hasText: new RegExp('^' + given.held + '$')}).waitFor({timeout: 15000})",
        queue=queue,
        held=held,
    )
    return time.monotonic() - since


def test_a_story_of_two_queues_shows_as_it_happens(browser: Browser, service: Process, queues: str) -> None:
    go(browser, queues)
    shows(browser, "lab", 0)
    browser.do("await page.evaluate(() => { window.notLoadedAgain = true })")
    submit(service, "lab", "sweep", 10)
    took = [shows(browser, "lab", 8)]
    browser.see("lab borrows 4 GPUs from team")
    assert cells(browser, "lab")[:3] == ["8", "4", "8 = 4 of its quota + 4 of the surplus (4/4 of 4)"]
    browser.see("2 jobs wait")

    submit(service, "team", "train", 3)
    took.append(shows(browser, "team", 3))
    took.append(shows(browser, "lab", 5))
    browser.see("lab borrows 1 GPU from team")
    browser.see("stopped 1 time")
    browser.see("below its share and takes back")
    label = "GPUs by queue. Now: lab 5, team 3; 8 in all"
    browser.do("await page.getByRole('img', {name: given.label}).waitFor({timeout: 5000})", label=label)
    on = browser.do("return page.locator('.cells').evaluateAll((all) => all.map((one) => one.ariaLabel))")
    assert sum(one.count("(team)") for one in on) == 3 and sum(one.count("(lab)") for one in on) == 5
    browser.picture("cluster")
    assert max(took) < LATE, took
    assert browser.do("return page.evaluate(() => window.notLoadedAgain)") is True


def test_what_waits_says_what_would_start_it(browser: Browser, service: Process, queues: str) -> None:
    submit(service, "lab", "sweep", 4, wide=2)
    id = submit(service, "team", "wide", wide=4) + "_0"
    go(browser, queues)
    service.client.hold(submit(service, "team", "later"))
    browser.see("held")
    last = submit(service, "lab", "more", wide=4) + "_0"
    row = "page.locator('li[data-job=\"' + given.id + '\"]')"
    browser.do(f"await {row}.getByRole('button', {{name: 'What would start it?'}}).click()", id=last)
    browser.do(f"await {row}.getByText(/It would start|No single change/).waitFor()", id=last)
    until(lambda: service.client.job(id)["state"] in ("running", "pending"))
    browser.picture("cluster-waiting")


def test_a_cancel_says_first_what_would_follow(browser: Browser, service: Process, queues: str) -> None:
    id = submit(service, "lab", "sweep", 9)
    go(browser, queues)
    browser.see("1 job waits")
    browser.do("await page.getByRole('button', {name: given.name, exact: true}).click()", name=f"Cancel {id}_0…")
    browser.see(f"stop {id}_0 (sweep)")
    assert len(service.client.jobs()) == 9
    browser.do("await page.locator('dialog[open]').getByRole('button', {name: 'Cancel it'}).click()")
    until(lambda: len(service.client.jobs()) == 8)
    browser.see("No job waits for GPUs.")


def test_a_quota_is_changed_after_a_look(browser: Browser, service: Process, queues: str) -> None:
    submit(service, "lab", "a", 4)
    submit(service, "team", "b", 8)
    go(browser, queues)
    shows(browser, "team", 4)
    browser.do("await page.getByRole('button', {name: 'Change team…'}).click()")
    browser.do("await page.getByLabel('quota of team, GPUs').fill('6')")
    browser.do("await page.getByRole('button', {name: 'What would follow?'}).click()")
    browser.do("await page.getByRole('button', {name: 'Change it'}).waitFor()")
    quota = lambda: next(one["quota"] for one in service.client.overview()["queues"] if one["name"] == "team")  # noqa: E731
    assert quota() == 4 * MICRO
    browser.do("await page.getByRole('button', {name: 'Change it'}).click()")
    browser.see("team is changed")
    assert quota() == 6 * MICRO
    until(lambda: cells(browser, "team")[1] == "6")


@pytest.mark.console_errors
def test_a_service_that_is_away_is_told_and_found_again(browser: Browser, service: Process, queues: str) -> None:
    submit(service, "lab", "sweep", 2)
    go(browser, queues)
    shows(browser, "lab", 2)
    service.end()
    browser.see("No service runs jobs here.")
    browser.picture("cluster-away")
    service.start()
    browser.do("await page.locator('.phase.live').waitFor({timeout: 15000})")
    shows(browser, "lab", 2)
    browser.do("await page.getByRole('link', {name: 'Node', exact: true}).click()")
    browser.see("GPU 0")


def test_the_past_of_the_queues_is_there_when_the_page_opens(browser: Browser, service: Process, queues: str) -> None:
    id = submit(service, "lab", "sweep", 3)
    until(lambda: service.client.overview()["queues"][0]["held"] == 3 * MICRO)
    time.sleep(2.5)  # the history has seconds
    service.client.cancel(id)
    go(browser, queues)
    browser.do("await page.setViewportSize({width: 2300, height: 900})")
    shows(browser, "lab", 0)
    drawn = """
        const canvas = page.getByRole('img', {name: /GPUs by queue/}).locator('canvas');
        return canvas.evaluate((canvas) => {
          const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
          const colour = getComputedStyle(document.documentElement).getPropertyValue('--job0').trim();
          const [r, g, b] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
          let found = 0;
          for (let i = 0; i < data.length; i += 4) found += data[i] === r && data[i + 1] === g && data[i + 2] === b;
          return found;
        })
    """
    until(lambda: browser.do(drawn) > 100)
    browser.do("await page.setViewportSize({width: 1280, height: 900})")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious_in_the_cluster(browser: Browser, service: Process, queues: str, theme: str) -> None:
    submit(service, "lab", "sweep", 7)
    submit(service, "team", "train", 3)
    go(browser, queues)
    browser.do("await page.getByRole('combobox', {name: 'colours'}).selectOption(given.theme)", theme=theme)
    browser.see("2 jobs wait")
    browser.do("await page.getByRole('button', {name: 'Change team…'}).click()")
    assert serious(browser, (MODULES / "axe-core" / "axe.min.js").read_text()) == []
    browser.picture(f"cluster-{theme}")


@pytest.mark.parametrize("width", [360, 400, 3840])
def test_the_cluster_fits_the_window(browser: Browser, service: Process, queues: str, width: int) -> None:
    submit(service, "lab", "a-job-with-quite-a-long-name-as-sweeps-have-them", 12)
    go(browser, queues)
    browser.do("await page.setViewportSize({width: given.width, height: 800})", width=width)
    browser.see("4 jobs wait")
    assert browser.do("return page.evaluate(() => document.documentElement.scrollWidth)") <= width
    browser.picture(f"cluster-{width}")
    browser.do("await page.setViewportSize({width: 1280, height: 900})")
