"""Named sets of options; and what `run` asks for by itself: a reservation's amount, advice after --mode observe."""

from __future__ import annotations

import json

import pytest
from fake_api import GIB, UUID

from gpushare.cli import complete

USER = """\
limit = "8Gi"

[profiles.small]
request = "1Gi"
limit = "2Gi"
priority = 3

[profiles.shared]
mode = "observe"
"""
SYSTEM = """\
[profiles.small]
grace = "9s"
[profiles.large]
request = 0.5
require_daemon = true
"""


@pytest.fixture
def files(environ, tmp_path, monkeypatch):
    user, system = tmp_path / "config" / "gpushare" / "config.toml", tmp_path / "system.toml"
    user.parent.mkdir(parents=True)
    user.write_text(USER)
    system.write_text(SYSTEM)
    monkeypatch.setattr("gpushare.config.SYSTEM_FILE", system)
    return user, system


@pytest.fixture
def registered(fake, files, gpushare, monkeypatch):
    """What `run` with these options registers."""
    monkeypatch.setattr("gpushare.launch.Launch._supervise", lambda *_: 0)

    def registered(*options: str) -> dict:
        code, _, err = gpushare("run", *options, "true")
        assert code == 0, err
        return fake.bodies("POST")[-1]

    return registered


def test_the_command_line_then_the_profile_then_the_environment(registered, files, monkeypatch):
    user, _ = files
    body = registered("--profile", "small")
    assert (body["request"], body["limit"], body["priority"], body.get("grace")) == ("1Gi", "2Gi", 3, None)
    assert body["limit_source"] == f"{user}: profiles.small.limit"
    body = registered("--profile", "small", "--limit", "3Gi")
    assert (body["request"], body["limit"], body["limit_source"]) == ("1Gi", "3Gi", "--limit")
    monkeypatch.setenv("GPUSHARE_LIMIT", "5Gi")
    monkeypatch.setenv("GPUSHARE_PRIORITY", "7")
    assert registered()["limit"] == "5Gi"
    body = registered("--profile", "small")
    assert (body["limit"], body["priority"]) == ("2Gi", 3)
    body = registered("--profile", "large")
    assert (body["request"], body["priority"]) == ("0.5", 7)
    monkeypatch.setenv("GPUSHARE_PROFILE", "small")
    assert registered()["limit"] == "2Gi"
    assert registered("--profile", "large", "--limit", "max")["limit"] == "max"


def test_only_run_takes_the_profile(files, fake, gpushare, monkeypatch):
    monkeypatch.setenv("GPUSHARE_PROFILE", "none-such")
    assert gpushare("ps")[0] == 0
    code, _, err = gpushare("run", "true")
    assert code == 125
    assert err == "gpushare: there is no profile 'none-such'\n\nhint: `gpushare profiles` lists them\n"


def test_a_name_that_is_nearly_right(files, fake, gpushare):
    assert "hint: did you mean small?" in gpushare("run", "--profile", "smal", "true")[2]


def test_no_profiles_at_all(fake, gpushare):
    code, out, err = gpushare("profiles")
    assert (code, out, err) == (0, "", "no profiles: `gpushare profiles --help` shows how to write one\n")
    assert "there are none; `gpushare profiles --help` shows one" in gpushare("run", "--profile", "x", "true")[2]


def test_a_list_of_them(files, gpushare):
    user, system = files
    code, out, _ = gpushare("profiles")
    assert code == 0
    assert [line.split() for line in out.splitlines()] == [
        ["PROFILE", "OPTIONS", "FROM"],
        ["large", "request=0.5", "require_daemon=1", f"{system}:3"],
        ["shared", "mode=observe", f"{user}:8"],
        ["small", "request=1Gi", "limit=2Gi", "priority=3", f"{user}:3"],
    ]
    found = json.loads(gpushare("profiles", "--json")[1])
    assert found["schema"] == "gpushare.profiles/1"
    assert found["profiles"][1] == {"name": "shared", "path": str(user), "line": 8, "options": {"mode": "observe"}}
    items = complete.profiles(None, None, "s")
    assert [(item.value, item.help) for item in items] == [("small", "request, limit, priority"), ("shared", "mode")]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[profiles.a]\nlimt = 1\n", ":2: unknown key $.profiles.a.limt\n\nhint: did you mean limit?"),
        ("[profiles.a]\nrequest = 1\nsocket = 'x'\n", ":3: unknown key $.profiles.a.socket"),
        ("\n[profiles]\na = 1\n", ":3: $.profiles.a must be a table\n\nhint: write [profiles.a]"),
        ("profiles = 1\n", ":1: $.profiles must be a table\n\nhint: write [profiles.NAME]"),
        ("[profiles.a]\n\nlimit = [1]\n", ":3: $.profiles.a.limit must be a text or a number"),
        ("[profiles.a]\nlimit = true\n", ":2: $.profiles.a.limit must be a text or a number"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(files, gpushare, text, says):
    files[0].write_text(text)
    code, _, err = gpushare("profiles")
    assert code == 2
    assert err.startswith(f"gpushare: {files[0]}{says}")
    assert complete.profiles(None, None, "") == []


def test_a_value_that_is_wrong_is_named_when_it_is_used(files, fake, gpushare):
    files[0].write_text('[profiles.a]\nlimit = "much"\n')
    assert gpushare("profiles")[0] == 0
    code, _, err = gpushare("run", "--profile", "a", "true")
    assert code == 125
    assert f"{files[0]}: profiles.a.limit: cannot read 'much'" in err


# ---- what `run` asks for by itself -----------------------------------------------------------------


def reserved(name: str, *amounts: int, identity: str = "00000000000000aa") -> dict:
    gpus = [
        {"uuid": UUID.format(index), "index": index, "amount": amount, "remainder": 0}
        for index, amount in enumerate(amounts)
    ]
    return {"id": identity, "name": name, "user": "a", "uid": 0, "since": 1.0, "until": None, "gpus": gpus, "jobs": []}


@pytest.mark.parametrize(
    ("options", "request_", "limit"),
    [
        (["--reservation", "mine"], "3Gi", "3Gi"),
        (["--reservation", "00000000000000aa"], "3Gi", "3Gi"),
        (["--reservation", "mine", "--limit", "max"], "3Gi", "max"),
        (["--reservation", "mine", "--limit", "2Gi"], "2Gi", "2Gi"),
        (["--reservation", "mine", "--request", "1Gi"], "1Gi", "1Gi"),
        (["--reservation", "mine", "--request", "none"], "none", "max"),
        (["--reservation", "two"], "none", "max"),
        (["--reservation", "none-such"], "none", "max"),
        ([], "none", "max"),
    ],
)
def test_a_reservation_without_a_request_asks_for_its_amount(fake, run, options, request_, limit):
    fake.reserved = [reserved("mine", 4 * GIB, 3 * GIB), reserved("two", GIB, identity="b"), reserved("two", GIB)]
    fake.reserved[1]["id"] = "00000000000000bb"
    fake.reserved[2]["id"] = "00000000000000cc"
    result = run(*options, "sh", "-c", "echo $GPUSHARE_REQUEST $GPUSHARE_LIMIT")
    assert (result.returncode, result.stdout) == (0, f"{request_} {limit}\n")
    body = fake.bodies("POST")[-1]
    assert (body["request"], body["limit"]) == (request_, limit)
    if request_ == "3Gi":
        assert body["request_source"] == f"reservation {options[1]}"


def test_what_was_observed_is_told_at_the_end(start, fake, tmp_path):
    report = tmp_path / "report"
    peak_seen = "gpushare: peak 3.3 GiB on GPU 0: ask for it with --limit 4Gi\n"
    nothing = "gpushare: no GPU memory was seen in use: memory held for a second or less may be missed\n"
    cases = (("observe", 33 * GIB // 10, peak_seen), ("observe", 0, nothing), ("enforce", GIB, ""))
    for mode, peak, says in cases:
        process = start("run", "--mode", mode, "--report", report, "sleep", "1")
        fake.calls.clear()
        fake.wait_for_call("GET", "/events")
        for job in fake.jobs.values():
            job["gpus"][0]["peak"] = peak
        _, said = process.communicate(timeout=20)
        assert process.returncode == 0
        assert said == says
        assert json.loads(report.read_text())["recommended_limit"] == ("4Gi" if says == peak_seen else None)
