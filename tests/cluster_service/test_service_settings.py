"""The settings file of the service, and engines by their names."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from gpushare.cluster.engines.registry import make
from gpushare.cluster.engines.runner import Context
from gpushare.cluster.service.driver import Options
from gpushare.errors import UsageError
from gpushared.cluster.settings import Settings, load

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "service.md").read_text()


def written(directory: Path, text: str) -> Path:
    path = directory / "cluster.toml"
    path.write_text(text)
    return path


def test_all_settings_are_read(tmp_path: Path) -> None:
    text = """
        engine = "memory"
        admin_group = "gpu-admins"
        grace = "2m"
        own_queues = false
        queues_below = "users"
        most_jobs = 5
        max_grace = "5m"
        max_min_run_time = "2h"
        metrics_listen = "127.0.0.1:9837"
        [memory]
        seed = 3
    """
    found = load(written(tmp_path, text))
    options = Options(120.0, False, "users", 5, 300.0, 7200.0)
    assert found == Settings("memory", "gpu-admins", options, {"memory": {"seed": 3}}, "127.0.0.1:9837")
    assert load(written(tmp_path, "grace = 1.5")) == Settings(options=Options(grace=1.5))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("engin = 'local'", r"unknown key \$\.engin"),
        ("grace = true", r"\$\.grace"),
        ("grace = -1", r"\$\.grace"),
        ("grace = 'soon'", r"\$\.grace"),
        ("most_jobs = 0", r"\$\.most_jobs"),
        ("max_grace = 'unlimited'", r"\$\.max_grace"),
        ("own_queues = 1", r"\$\.own_queues"),
        ("admin_group = 5", r"\$\.admin_group"),
        ("metrics_listen = 9837", r"\$\.metrics_listen"),
        ("metrics_listen = ':9837'", "host:port"),
        ("grace =", "is not TOML"),
    ],
)
def test_a_wrong_setting_is_refused_by_its_name(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        load(written(tmp_path, text))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        load(tmp_path / "none.toml")


def test_each_setting_is_on_the_page() -> None:
    rows = PAGE.split("| key |", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    told = {word for row in rows for word in re.findall(r"`([a-z_]+)`", row.split("|")[1])}
    own = {field.name for field in dataclasses.fields(Settings)} - {"options", "engines"}
    assert told == own | set(Options._fields)


def test_the_page_says_what_counts_for_a_setting_that_the_file_leaves_out(tmp_path: Path) -> None:
    """Each default of the page, written into a file, changes nothing."""
    rows = PAGE.split("| key |", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    lines = []
    for row in rows:
        _, keys, words, _ = row.split("|")
        told = re.search(r"\bdefault ([^.;)]+)", words)
        values = told[1].strip().split(" and ") if told else []
        lines += [
            f"{key} = {_as_toml(value)}" for key, value in zip(re.findall("`([a-z_]+)`", keys), values, strict=False)
        ]
    own = {field.name for field in dataclasses.fields(Settings)} - {"options", "engines"}
    assert {line.split(" = ")[0] for line in lines} == own | set(Options._fields) - {"queues_below"}
    assert load(written(tmp_path, "\n".join(lines))) == load(written(tmp_path, "")) == Settings()


def _as_toml(value: str) -> str:
    """As a setting's value is written, from how the page says it."""
    word = value.strip("`").replace(",", "")
    if word == "none":
        return '""'
    return word if word.startswith('"') or word.isdigit() or word in ("true", "false") else f'"{word}"'


def test_engines_are_found_by_name(tmp_path: Path) -> None:
    context = Context({}, lambda: 0.0, tmp_path, (), system=False)
    assert make("memory", context).tasks() == {}
    with pytest.raises(UsageError, match="no engine 'memor'") as found:
        make("memor", context)
    assert "memory" in (found.value.hint or "")
    with pytest.raises(UsageError, match="no such key 'sed'"):
        make("memory", context._replace(settings={"sed": 1}))
