"""The documents as a site: all pages are there, in the navigation, and links lead from page to page."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SITE = Path(__file__).resolve().parents[2] / "docs" / "site"


def load():
    spec = importlib.util.spec_from_file_location("assemble", SITE / "assemble.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


assemble = load()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "pages"
    assemble.assemble(folder)
    return folder


def test_each_document_is_a_page_in_the_navigation(site: Path) -> None:
    written = {path.name for path in site.glob("*.md")}
    assert {"index.md", "concepts.md", "compare.md", "security.md", "deploy.md", "architecture.md"} <= written
    assert "overview.md" not in written, "it is the README, which is the first page"
    named = re.findall(r": ([\w-]+\.md)$", (SITE / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(written)


def test_links_of_pages_lead_to_pages(site: Path) -> None:
    links = [(page.name, one[2]) for page in site.glob("*.md") for one in assemble.LINK.findall(page.read_text())]
    inside = [(page, target) for page, target in links if target and not re.match(r"[a-z]+:", target)]
    assert len(inside) > 60
    for page, target in inside:
        assert (site / target).exists() or "`" in target, f"{page}: {target}"


def test_a_link_that_leads_nowhere_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere\.md, which is not there"):
        assemble.rewritten("see [this](nowhere.md)", tmp_path / "page.md", {})


def test_what_is_no_page_becomes_its_name_and_code_stays(tmp_path: Path) -> None:
    (tmp_path / "tool.py").touch()
    (tmp_path / "other.md").touch()
    text = "[a tool](tool.py), [other](other.md#part), [far](https://example.org)\n```\n[x](nowhere)\n```"
    found = assemble.rewritten(text, tmp_path / "page.md", {tmp_path / "other.md": "o.md"})
    assert found == "a tool, [other](o.md#part), [far](https://example.org)\n```\n[x](nowhere)\n```"


@pytest.mark.skipif(importlib.util.find_spec("material") is None, reason="no mkdocs-material here: `make docs` has it")
@pytest.mark.parametrize("broken", [False, True])
def test_the_site_is_built_strictly(site: Path, tmp_path: Path, broken: bool) -> None:
    pages = shutil.copytree(site, tmp_path / "pages")
    if broken:
        (pages / "running.md").write_text("# Run\n\n[away](security.md#no-such-part)\n")
    settings = (SITE / "mkdocs.yml").read_text().replace("../../build/site-pages", str(pages))
    (tmp_path / "mkdocs.yml").write_text(settings.replace("../../build/site", str(tmp_path / "out")))
    line = [sys.executable, "-m", "mkdocs", "build", "-f", str(tmp_path / "mkdocs.yml")]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120)
    assert (done.returncode != 0) is broken, done.stderr
    if not broken:
        assert "time is not" in (tmp_path / "out" / "index.html").read_text()
        loaded = re.findall(r'(?:src|href)="(https?://[^"]+)"', (tmp_path / "out" / "compare.html").read_text())
        assert not [one for one in loaded if "squidfunk" not in one], "a page loads nothing from other hosts"
