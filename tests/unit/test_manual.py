"""The documentation that `gpushare docs` shows: where it lies, and which topic is meant."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gpushare import manual
from gpushare.errors import GpushareError, UsageError


@pytest.fixture
def docs(tmp_path, monkeypatch):
    """An installation with four topics."""
    folder = tmp_path / "gpushare_docs"
    folder.mkdir()
    for name in ("reasons", "running", "restart", "run"):
        (folder / f"{name}.md").write_text(
            f"intro\n# Title of {name}\n## Not this\n# Nor this\ngrün\n", encoding="utf-8"
        )
    (folder / "notes.txt").touch()
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path / "none"), str(folder)])
    monkeypatch.setattr(manual.importlib.util, "find_spec", lambda name: spec if name == "gpushare_docs" else None)
    return folder


def test_the_topics_are_in_order(docs):
    assert manual.topics() == ["reasons", "restart", "run", "running"]


@pytest.mark.parametrize(
    ("typed", "topic"),
    [("running", "running"), ("run", "run"), ("rea", "reasons"), ("runn", "running"), ("res", "restart")],
)
def test_a_topic_is_meant_by_its_name_or_by_a_beginning_that_fits_it_alone(docs, typed, topic):
    text = manual.read(typed)
    assert manual.title(text) == f"Title of {topic}" and text.endswith("grün\n")


@pytest.mark.parametrize(
    ("typed", "message", "hint"),
    [
        ("re", "'re' fits several topics", "did you mean reasons or restart? topics: reasons, restart, run, running"),
        ("", "'' fits several topics", "topics: reasons, restart, run, running"),
        ("reson", "no topic is called 'reson'", "did you mean reasons? topics: reasons, restart, run, running"),
        ("xyz", "no topic is called 'xyz'", "topics: reasons, restart, run, running"),
    ],
)
def test_else_what_there_is_is_told(docs, typed, message, hint):
    with pytest.raises(UsageError) as caught:
        manual.read(typed)
    assert (caught.value.message, caught.value.hint, caught.value.code) == (message, hint, "bad_topic")


def test_a_text_without_a_heading_has_no_title():
    assert manual.title("## small\ntext # not one\n#nor this\n") == ""


@pytest.mark.parametrize("spec", [None, SimpleNamespace(submodule_search_locations=None)])
def test_in_a_source_tree_it_lies_beside_the_package(docs, monkeypatch, tmp_path, spec):
    monkeypatch.setattr(manual.importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(manual, "__file__", str(tmp_path / "gpushare" / "manual.py"))
    with pytest.raises(GpushareError, match="the documentation is not installed") as caught:
        manual.topics()
    assert (caught.value.code, caught.value.hint) == ("no_docs", "reinstall gpushare")
    docs.rename(tmp_path / "docs")
    assert manual.topics() == ["reasons", "restart", "run", "running"]
