"""A report, opened from disk in a real browser."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from browser.conftest import MODULES, Browser
from browser.test_page import serious
from gpushare.report import page
from integration.node import GIB, Node
from reports.recorded import (
    HOSTILE,
    SERVER,
    SINCE,
    TRAIN,
    UNTIL,
    Client,
    job,
    job_report,
    node_report,
    point,
    series,
)


def opened(browser: Browser, file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8")
    browser.go(file.as_uri())
    browser.see("report of")


def test_a_story_of_lending_is_in_the_file(browser: Browser, node: Node, tmp_path: Path) -> None:
    borrower = node.puppet("borrower", "--request", "4Gi", "--limit", "14Gi", "--grace", "1s", "--gpu", "0")
    borrower.do("term ignore")
    borrower.alloc(9 * GIB)
    owner = node.puppet("owner", "--request", "8Gi", "--gpu", "0")
    owner.alloc(2 * GIB)
    time.sleep(2)  # the history has seconds
    owner.alloc(5 * GIB)
    time.sleep(2)
    for words in (["--since", "1m"], ["borrower"]):
        made = node.gpushare("report", *words, "-o", tmp_path / f"{words[-1]}.html")
        assert made.returncode == 0, made.stderr
    node.kill_daemon()

    browser.go((tmp_path / "1m.html").as_uri())
    browser.see("report of")
    assert browser.do("return page.locator('canvas').count()") == 2
    label = browser.do("return page.getByRole('img', {name: /Memory of GPU 0/}).getAttribute('aria-label')")
    assert "over 1m. At the end: " in label and "owner 7." in label
    browser.picture("report-lending")
    browser.do("await page.getByRole('link', {name: 'Events'}).click()")
    for text in ("asked to trim its caches", "claim of 5.0 GiB on GPU 0 met"):
        browser.see(text)

    browser.go((tmp_path / "borrower.html").as_uri())
    browser.see("asked with SIGTERM to give back")
    assert browser.do("return page.getByRole('img', {name: /^Memory of/}).count()") == 1
    browser.picture("report-borrower")


def test_the_views_of_a_report_of_a_node(browser: Browser, tmp_path: Path) -> None:
    opened(browser, tmp_path / "node.html", page.render(node_report()))
    assert browser.do("return page.locator('canvas').count()") == 2
    assert browser.do("return page.locator('.phase').count()") == 0, "nothing is live"
    assert browser.do("return page.getByRole('button').count()") == 0, "no range and no change is offered"
    rows = browser.do("return page.locator('tbody tr').allInnerTexts()")
    assert [row.split()[0] for row in rows] == ["train", "server", "</script><script>ran=1</script><img"]
    assert "12.0 GiB" in rows[0] and "7.0 GiB" in rows[1], "the highest"
    ages = [row.split("\t")[-1].strip() for row in rows]
    assert ages == ["1h 51m", "1h 30m", "2h"], "of one that has ended: how long it ran"
    browser.see("evening")
    browser.picture("report-node")

    browser.do("await page.locator('.keys').getByRole('link', {name: 'train'}).click()")
    browser.see("ended with exit code 0")
    browser.see("asked to trim its caches")
    browser.do("await page.getByRole('link', {name: 'Events'}).click()")
    browser.see("waits for 5.0 GiB")
    browser.do("await page.getByRole('link', {name: 'Node', exact: true}).click()")
    browser.see("3 jobs")
    browser.do("await page.evaluate(() => { location.hash = '#/job/00000000000000ff' })")
    browser.see("This report does not have job 00000000000000ff.")


def test_jobs_that_run_have_the_colours_before_those_that_have_ended(browser: Browser, tmp_path: Path) -> None:
    gone = [f"{n:016x}" for n in range(1, 13)]
    over = [job(id, f"gone-{id[-1]}", ended=UNTIL - 600) for id in gone]
    past = [series(id, [point(SINCE, 5), [UNTIL - 600]], f"gone-{id[-1]}") for id in gone]
    small = series(SERVER, [point(SINCE, 1)], "server")
    text = page.render(node_report(Client(jobs=[job(SERVER, "server"), *over], series=[*past, small])))
    opened(browser, tmp_path / "many.html", text)
    keys = browser.do("return page.locator('.keys').first().getByRole('link').allInnerTexts()")
    assert "server" in keys and len(keys) == 7, keys


def test_the_story_of_a_job_opens_at_its_mark(browser: Browser, tmp_path: Path) -> None:
    opened(browser, tmp_path / "job.html", page.render(job_report(TRAIN, now=UNTIL + 9)))
    assert browser.do("return page.getByRole('link', {name: 'Job'}).count()") == 1
    assert browser.do("return page.getByRole('link', {name: 'node'}).count()") == 0, "there is no other view"
    assert browser.do("return page.locator('.story .opened').count()") == 0
    browser.do("await page.getByRole('button', {name: /trim/}).click()")
    browser.do("await page.locator('.story .opened').waitFor()")
    label = "return page.getByRole('img', {name: /Memory of train/}).getAttribute('aria-label')"
    before = browser.do(label)
    assert "At the end 0 B in use" in before
    browser.do("await page.waitForTimeout(2500)")
    assert browser.do(label) == before, "the time stands still"
    browser.do("await page.setViewportSize({width: 400, height: 800}); await page.emulateMedia({colorScheme: 'dark'})")
    browser.see("report of")
    browser.picture("report-job-400-dark")
    wide = browser.do("return page.evaluate(() => document.documentElement.scrollWidth)")
    browser.do("await page.setViewportSize({width: 1280, height: 900}); await page.emulateMedia({colorScheme: null})")
    assert wide <= 400


def test_the_name_of_a_job_does_not_run(browser: Browser, tmp_path: Path) -> None:
    report = node_report()
    report["about"]["host"] = HOSTILE
    opened(browser, tmp_path / "hostile.html", page.render(report))
    assert browser.do("return page.getByRole('row').filter({hasText: '<script>ran=1'}).count()") == 1
    assert browser.do("return page.evaluate(() => window.ran)") is None
    assert browser.do("return page.locator('img[src], #app script').count()") == 0


@pytest.mark.console_errors
def test_no_other_script_runs_in_a_report(browser: Browser, tmp_path: Path) -> None:
    """As if the escaping had failed: the policy keeps it from running."""
    forced = "<script>window.ran=1</script><img src='data:,' onerror='window.ran=1'>"
    text = page.render(node_report()).replace('<div id="app">', f'{forced}<div id="app">')
    opened(browser, tmp_path / "forced.html", text)
    assert browser.do("return page.evaluate(() => window.ran)") is None
    assert "Content Security Policy" in json.dumps(browser.do("return seen.errors"))


def test_a_report_in_the_frame_of_another_page(browser: Browser, tmp_path: Path) -> None:
    """A forge shows an attachment in a frame that may neither store nor send."""
    (tmp_path / "inner.html").write_text(page.render(node_report()), encoding="utf-8")
    frame = f"<iframe sandbox='allow-scripts' style='width:1000px;height:800px' src='{tmp_path.as_uri()}/inner.html'>"
    (tmp_path / "outer.html").write_text(frame)
    browser.go((tmp_path / "outer.html").as_uri())
    count = "const app = page.frameLocator('iframe'); await app.locator('canvas').first().waitFor();"
    assert browser.do(f"{count} return app.locator('canvas').count()") == 2
    browser.do("await page.frameLocator('iframe').getByLabel('colours').selectOption('dark')")
    assert browser.do("return page.frameLocator('iframe').locator('html').getAttribute('data-theme')") == "dark"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious_in_a_report(browser: Browser, tmp_path: Path, theme: str) -> None:
    axe = (MODULES / "axe-core" / "axe.min.js").read_text()
    for name, text in (("node", page.render(node_report())), ("job", page.render(job_report(TRAIN)))):
        opened(browser, tmp_path / f"{name}.html", text)
        browser.do("await page.getByLabel('colours').selectOption(given.theme)", theme=theme)
        browser.do("await page.locator('.panel').first().waitFor(); await page.waitForTimeout(500)")
        found = serious(browser, axe)
        browser.do("await page.getByLabel('colours').selectOption('auto')")
        assert found == []
