"""A simulated run in a real browser: the figure of NetApp's test, moment by moment, with the right numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from browser.conftest import MODULES, Browser
from browser.test_page import serious
from gpushare.cli.cluster import command

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "cluster"
HELD = [
    {"a": 4, "b": 4, "c": 4, "d": 4},
    {"a": 4, "b": 2, "c": 4, "d": 6},
    {"a": 4, "b": 2, "c": 2, "d": 8},
    {"a": 4, "b": 2, "c": 2, "d": 8},
    {"a": 8, "b": 4, "c": 4, "d": 0},
]
"""GPUs after each step, as the technical report has them."""
QUOTAS = {"a": 4, "b": 2, "c": 2, "d": 8}


@pytest.fixture(scope="module")
def netapp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("play") / "netapp.html", "a1-netapp.yaml")


def written(file: Path, name: str, *more: str) -> Path:
    done = CliRunner().invoke(command, ["simulate", str(EXAMPLES / name), "--report", str(file), *more])
    assert done.exit_code == 0, done.output
    return file


def go_to(browser: Browser, step: int) -> None:
    browser.do("await page.getByRole('slider').fill(String(given.step))", step=step)


def table(browser: Browser, run: int = 0) -> dict[str, list[float]]:
    """What each queue holds, its quota, its fair share and what it asks for."""
    rows: list[Any] = browser.do(
        """
        const table = page.locator('.play').nth(given.run).locator('table');
        return table.locator('tbody tr').evaluateAll((rows) => rows.map((row) => [row.dataset.queue,
          ...[...row.querySelectorAll('td')].map((cell) => Number(cell.innerText))]))
        """,
        run=run,
    )
    return {name: values for name, *values in rows}


def test_the_figure_of_netapp_has_the_right_numbers(browser: Browser, netapp: Path) -> None:
    browser.go(netapp.as_uri())
    browser.see("NetApp TR 4.8 to 4.10")
    for step, held in enumerate(HELD):
        go_to(browser, step)
        browser.see(f"After step {step + 1}")
        found = table(browser)
        assert {name: values[0] for name, values in found.items()} == held, f"step {step + 1}"
        assert {name: values[1] for name, values in found.items()} == QUOTAS
        label = browser.do("return page.getByRole('img', {name: /GPUs by queue/}).getAttribute('aria-label')")
        said = ", ".join(f"{name} {amount}" for name, amount in held.items())
        assert f"At {step + 1}: {said}; 16 in all" in label
    assert {name: values[2] for name, values in table(browser).items()} == {"a": 8, "b": 4, "c": 4, "d": 0}
    browser.picture("netapp")


def test_each_decision_is_at_its_step(browser: Browser, netapp: Path) -> None:
    browser.go(netapp.as_uri())
    for step, evicted in ((1, "b-4"), (2, "c-4")):
        go_to(browser, step)
        decisions = browser.do("return page.locator('.decisions li').allInnerTexts()")
        assert [one.split()[1] for one in decisions if one.startswith("evict")] == [evicted]
    go_to(browser, 3)
    assert not [one for one in browser.do("return page.locator('.decisions li').allInnerTexts()") if "evict" in one]


def test_the_lines_are_drawn_where_the_numbers_say(browser: Browser, netapp: Path) -> None:
    """The pixels: at step 1 the highest coloured row of the stack is where 16 GPUs are."""
    browser.go(netapp.as_uri())
    drawn = browser.do(
        """
        const canvas = page.locator('.play canvas').first();
        return canvas.evaluate((canvas) => {
          const {width, height} = canvas;
          const data = canvas.getContext('2d').getImageData(0, 0, width, height).data;
          const column = Math.round(width * 0.3);
          const rgb = (y) => [0, 1, 2].map((c) => data[4 * (y * width + column) + c]).join(',');
          const bands = [];
          for (let y = 0; y < height; y++)
            if (bands.at(-1)?.[0] !== rgb(y)) bands.push([rgb(y), 1]);
            else bands.at(-1)[1]++;
          return bands.filter(([, rows]) => rows > 12).map(([colour, rows]) => rows);
        })
        """
    )
    # Above the stack is the background; then d, c, b and a; below is the axis. At step 2: 6, 4, 2 and 4 GPUs.
    d, c, b, a = drawn[-5:-1]
    assert abs(d / a - 6 / 4) < 0.1 and abs(b / a - 2 / 4) < 0.1 and abs(c / a - 1) < 0.1, drawn


def test_two_runs_stand_beside_each_other(browser: Browser, tmp_path: Path) -> None:
    beside = tmp_path / "other.yaml"
    beside.write_text((EXAMPLES / "a1-netapp.yaml").read_text().replace("quota: 8}", "quota: 8, static: true}"))
    browser.go(written(tmp_path / "two.html", "a1-netapp.yaml", "--beside", str(beside)).as_uri())
    assert browser.do("return page.locator('.play').count()") == 2
    assert browser.do("return page.getByRole('slider').count()") == 1
    go_to(browser, 2)
    assert table(browser, 0)["d"][0] == table(browser, 1)["d"][0] == 8
    browser.picture("two-runs")


def test_a_run_in_which_time_passes(browser: Browser, tmp_path: Path) -> None:
    browser.go(written(tmp_path / "university.html", "university.yaml").as_uri())
    browser.see("A university")
    go_to(browser, 0)
    before = table(browser)
    assert before["vision"][0] == 28 and before["lattice"][0] == 0
    go_to(browser, 1)
    assert table(browser)["lattice"][0] == 8
    browser.see("lattice has a gang - vision, which is beyond its share, stops its newest, at 1h")
    browser.picture("university")
    browser.go(written(tmp_path / "seconds.html", "day.yaml").as_uri())
    browser.do("await page.getByRole('slider').focus(); await page.keyboard.press('Home')")
    browser.see("At the beginning")
    browser.do("await page.keyboard.press('End')")
    assert browser.do("return page.getByText('At the beginning').count()") == 0


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious_in_a_run(browser: Browser, netapp: Path, theme: str) -> None:
    browser.go(netapp.as_uri())
    browser.do("await page.getByRole('combobox', {name: 'colours'}).selectOption(given.theme)", theme=theme)
    assert serious(browser, (MODULES / "axe-core" / "axe.min.js").read_text()) == []
    browser.picture(f"netapp-{theme}")


def test_a_run_fits_a_narrow_window(browser: Browser, netapp: Path) -> None:
    browser.go(netapp.as_uri())
    browser.do("await page.setViewportSize({width: 360, height: 800})")
    browser.see("NetApp TR")
    assert browser.do("return page.evaluate(() => document.documentElement.scrollWidth)") <= 360
    browser.picture("netapp-360")
    browser.do("await page.setViewportSize({width: 1280, height: 900})")
