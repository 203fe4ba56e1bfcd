"""The bounds and times that the documents name are those of the daemon: administrators count on them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushared.api import answers, http_listener, request_body, submit_routes
from gpushared.history import file, gpu_time, levels, usage
from gpushared.jobs import historian, placements
from gpushared.limits import byte_budget, fair_share, user_limits
from gpushared.runtime import recovery, suspenders
from gpushared.shims import connection, handshake
from gpushared.system.logs import Sparingly

DOCS = Path(__file__).resolve().parents[2] / "docs"
KIB, MIB, DAY = 1024, 2**20, 24 * 3600
PARTS = {2: "half", 4: "a fourth", 8: "eighth", 20: "a twentieth"}

NAMED = {
    "security.md": [
        f"{connection.PENDING_PER_UID} connections without a handshake,"
        f" and {handshake.PAGES_PER_PROCESS} pages for each process",
        f"at most {PARTS[user_limits.OWN_SHARE]} of its descriptors",
        f"({http_listener.REQUEST_WITHIN:g} s for a head, {answers.BODY_WITHIN:g} s for a body of at most"
        f" {answers.MAX_BODY / KIB:g} KiB)",
        f"(closed after {http_listener.UNREAD_WITHIN:g} s without progress),"
        f" {user_limits.API_CONNECTIONS:,} connections and {user_limits.JOBS:,} jobs for each user",
        f"sent in pieces of {answers.PIECE / KIB:g} KiB",
        f"above {byte_budget.MOST / MIB:g} MiB that user's next answers and bodies wait",
        f"to {http_listener.NOBODYS_CONNECTIONS} connections at once",
        f"| time of the loop | {fair_share.SLICE * 1000:g} ms of each pass |",
        f"| {byte_budget.MOST / MIB:g} MiB, closed after {http_listener.UNREAD_WITHIN:g} s |",
        f"{request_body.COMMAND / KIB:g} KiB of its command, {submit_routes.LONGEST_SOURCE} characters of each source",
        f"1.5 MiB in files of its own; {historian.USERS} users |",
        f"{file.MOST_PAGES * file.PAGE / MIB:g} MiB for all users;"
        f" one answer of a user at a time, of {file.MOST_POINTS:,} points",
        f"| descriptors | {PARTS[user_limits.OWN_SHARE]}; the last {PARTS[user_limits.KEPT_BACK]} is kept back |",
        f"{user_limits.API_CONNECTIONS:,} to the API; {connection.PENDING_PER_UID} to the shims' socket before HELLO",
        f"| jobs | {user_limits.JOBS:,}, `max_jobs`; {byte_budget.MOST_OF_JOBS / MIB:g} MiB of text |",
    ],
    "restart.md": [
        f"within {recovery.ASKS_AGAIN_WITHIN:g} s. Other clients of the API submit again",
        f"{historian.FILE_BYTES[historian.EVENTS] / KIB:g} KiB of events and"
        f" {historian.FILE_BYTES[historian.JOBS] / KIB:g} KiB of jobs",
        f"{historian.USERS} users; a user's files are removed when others are {historian.KEPT / DAY:g} days younger",
        f"{historian.BURST:g} are written at once and then one a second",
        f"in at most {file.MOST_PAGES * file.PAGE / MIB:g} MiB. A thread commits every {usage.COMMIT_EVERY:g} s",
    ],
    "placements.md": [f"{placements.DESERTED:g} s after the last of them and of its programs has ended"],
    "running.md": [f"within {PARTS[round(1 / suspenders.QUIET_SHARE)]} of the time that the transfer may take"],
    "api.md": [f"the part of the last {gpu_time.EVERY:g} s, up to 1"],
}


@pytest.mark.parametrize("name", NAMED)
def test_what_the_documents_name_is_what_the_daemon_has(name) -> None:
    text = " ".join((DOCS / name).read_text().split())
    missing = [phrase for phrase in NAMED[name] if phrase not in text]
    assert missing == []


def test_how_long_the_usage_history_keeps_what() -> None:
    """restart.md: single seconds for an hour, steps of 10 s for a day, of a minute and of an hour for 30 days.

    Of single seconds a few minutes more: from them the next daemon makes the hour that this one has not finished.
    """
    assert [(one.step, one.kept) for one in levels.LEVELS] == [
        *[(1, 3600 + 300), (10, DAY), (60, 30 * DAY), (3600, 30 * DAY)],
    ]
    assert levels.FRAME == 60, "each series has a point in each minute of single seconds"


def test_how_often_the_log_says_the_same(monkeypatch) -> None:
    """security.md: a failed request once a minute of a kind."""
    now = [100.0]
    monkeypatch.setattr("gpushared.system.logs.time.monotonic", lambda: now[0])
    sparingly = Sparingly()
    told = []
    for now[0] in (100.0, 130.0, 159.9, 160.0, 161.0):
        told.append(sparingly.allow("kind"))
    assert told == [0, None, None, 2, None]
