"""A report as one HTML file."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

from gpushare.report import page
from reports.recorded import HOSTILE, JOBS, Client, job_report, node_report


class Elements(HTMLParser):
    """The file as a browser would take it apart."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[int, str] = {}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        self.found.append(("", {}))

    def handle_data(self, data: str) -> None:
        number = len(self.found) - 1
        self.texts[number] = self.texts.get(number, "") + data

    def all(self, tag: str) -> list[tuple[dict[str, str | None], str]]:
        return [(attrs, self.texts.get(i, "")) for i, (found, attrs) in enumerate(self.found) if found == tag]


def test_a_name_ends_no_element_and_comes_back_whole() -> None:
    report = node_report()
    text = page.render(report)
    scripts = Elements(text).all("script")
    assert [attrs.get("type") for attrs, _ in scripts] == ["application/json", "module"]
    assert scripts[0][0]["id"] == "report"
    assert not set("<>&\u2028\u2029") & set(scripts[0][1])
    assert json.loads(scripts[0][1]) == report
    assert any(one["name"] == HOSTILE for one in json.loads(scripts[0][1])["state"]["jobs"])
    assert Elements(text).all("img") == []


def test_the_policy_names_the_only_script_and_style() -> None:
    elements = Elements(page.render(node_report()))
    (policy,) = [attrs["content"] for attrs, _ in elements.all("meta") if "http-equiv" in attrs]
    rules = dict(rule.strip().split(" ", 1) for rule in str(policy).split(";"))
    assert rules.pop("default-src") == rules.pop("base-uri") == rules.pop("form-action") == "'none'"
    assert rules.pop("img-src") == "data:"
    for rule, tag, number in (("script-src", "script", 1), ("style-src", "style", 0)):
        digest = hashlib.sha256(elements.all(tag)[number][1].encode()).digest()
        assert rules.pop(rule) == f"'sha256-{base64.b64encode(digest).decode()}'"
    assert not rules


def test_it_names_no_other_file() -> None:
    elements = Elements(page.render(node_report()))
    named = [(tag, attrs[name]) for tag, attrs in elements.found for name in ("src", "href") if name in attrs]
    assert [tag for tag, _ in named] == ["link"]
    assert str(named[0][1]).startswith("data:image/svg+xml;base64,")


def test_the_bundle_can_be_written_into_a_page() -> None:
    """What would end its element is not in it."""
    assert not re.search(r"</script|<!--", (page.STATIC / "app.js").read_text(), re.IGNORECASE)
    assert "</style" not in (page.STATIC / "app.css").read_text().lower()


def test_the_host_is_text() -> None:
    report = job_report(JOBS[0]["id"], Client())
    report["about"]["host"] = "<b>&"
    assert "<title>&lt;b&gt;&amp;: report</title>" in page.render(report)
