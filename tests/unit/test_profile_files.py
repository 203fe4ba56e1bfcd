"""Profiles in a configuration file: what is in one, and in which line a mistake is."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushare import config, profiles
from gpushare.env import Setting
from gpushare.errors import UsageError
from gpushare.profiles import find_profile

TEXT = """\
limit = "8Gi"

[profiles.small]
limit = "2Gi"
priority = 3
require_daemon = true

[profiles.empty]
"""


def parsed(tmp_path: Path, text: str) -> dict[str, profiles.Profile]:
    path = tmp_path / "config.toml"
    path.write_text(text)
    return config.load_profiles({"GPUSHARE_CONFIG": str(path)})


@pytest.fixture(autouse=True)
def _alone(monkeypatch, tmp_path):
    monkeypatch.setattr(config, "SYSTEM_FILE", tmp_path / "none.toml")


def test_a_profile_has_its_options_as_a_user_would_write_them_and_its_place(tmp_path):
    found = parsed(tmp_path, TEXT)
    small = found["small"]
    assert list(found) == ["small", "empty"]
    assert (small.name, small.path, small.line) == ("small", str(tmp_path / "config.toml"), 3)
    assert small.options == {"limit": "2Gi", "priority": "3", "require_daemon": "1"}
    settings = small.settings()
    assert settings["GPUSHARE_PRIORITY"] == Setting("3", f"{tmp_path}/config.toml: profiles.small.priority")
    assert set(settings) == {"GPUSHARE_LIMIT", "GPUSHARE_PRIORITY", "GPUSHARE_REQUIRE_DAEMON"}
    assert found["empty"].line == 8 and found["empty"].settings() == {}


@pytest.mark.parametrize(
    ("text", "line", "problem", "hint"),
    [
        ("\nprofiles = 3\n", 2, "$.profiles must be a table", "write [profiles.NAME]"),
        ("\n[profiles]\nsmall = 1\n", 3, "$.profiles.small must be a table", "write [profiles.small]"),
        ("[profiles.a]\n\nlimti = 1\n", 3, "unknown key $.profiles.a.limti", "did you mean limit?"),
        ("[profiles.a]\nsocket = '/x'\n", 2, "unknown key $.profiles.a.socket", "known keys: "),
        ("[profiles.a]\nlimit = '1Gi'\ngrace = [1]\n", 3, "$.profiles.a.grace must be a text or a number", None),
        ("[profiles.a]\nlimit = true\n", 2, "$.profiles.a.limit must be a text or a number", None),
    ],
)
def test_a_mistake_is_told_with_its_line(tmp_path, text, line, problem, hint):
    with pytest.raises(UsageError) as caught:
        parsed(tmp_path, text)
    assert caught.value.message == f"{tmp_path}/config.toml:{line}: {problem}" and caught.value.code == "bad_config"
    assert caught.value.hint is None if hint is None else caught.value.hint.startswith(hint)


@pytest.mark.parametrize(
    ("name", "text", "hint"),
    [
        ("smal", TEXT, "did you mean small?"),
        ("xyz", TEXT, "`gpushare profiles` lists them"),
        ("xyz", "", "there are none; `gpushare profiles --help` shows one"),
    ],
)
def test_a_profile_that_is_not_there(tmp_path, name, text, hint):
    with pytest.raises(UsageError) as caught:
        find_profile(name, parsed(tmp_path, text))
    assert (caught.value.message, caught.value.hint) == (f"there is no profile {name!r}", hint)
    assert caught.value.code == "no_such_profile"
