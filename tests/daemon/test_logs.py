"""The daemon's log: a line as text, as JSON and for journald, and how a flood of one message is held."""

from __future__ import annotations

import argparse
import json
import logging
import re
import sys
import time

import pytest

from gpushared.system import logs

FACTS = logs.facts(job="a1", name="two words", empty="", equal="a=b", quote='say "x"', bell="\a", gpus=[0, 1])


def record(level: int = logging.INFO, message: str = "granted", error: BaseException | None = None, **extra: object):
    exc_info = (type(error), error, None) if error is not None else None
    made = logging.LogRecord("gpushared", level, __file__, 1, message, (), exc_info)
    made.__dict__.update(extra)
    return made


@pytest.fixture
def root(monkeypatch):
    """The loggers as they were, after it."""
    loggers = [logs.log, logging.getLogger("aiohttp.server"), logging.getLogger("asyncio")]
    kept = [(one.handlers[:], one.filters[:], one.propagate, one.level) for one in loggers]
    monkeypatch.delenv("JOURNAL_STREAM", raising=False)
    yield
    for one, (handlers, filters, propagate, level) in zip(loggers, kept, strict=True):
        one.handlers[:], one.filters[:], one.propagate = handlers, filters, propagate
        one.setLevel(level)


# ---- a line


def test_a_line_of_text_has_the_time_the_level_and_the_facts():
    made = record(logging.WARNING, **FACTS)
    clock = time.strftime("%H:%M:%S", time.localtime(made.created))
    assert logs.TextFormatter(journal=False).format(made) == (
        f'{clock} warning granted job=a1 name="two words" empty="" equal="a=b" quote="say \\"x\\"" bell="\\u0007" '
        'gpus="[0, 1]"'
    )


def test_an_error_is_followed_by_its_traceback():
    first, *rest = logs.TextFormatter(journal=False).format(record(error=ValueError("odd"))).split("\n")
    assert first.endswith(" info granted") and rest == ["ValueError: odd"]


@pytest.mark.parametrize(
    ("level", "priority"),
    [(logging.DEBUG, 7), (logging.INFO, 6), (25, 6), (logging.WARNING, 4), (logging.ERROR, 3), (logging.CRITICAL, 2)],
)
def test_journald_has_the_priority_in_front_of_each_line(level, priority):
    written = logs.TextFormatter(journal=True).format(record(level, error=ValueError("odd"), **logs.facts(job="a1")))
    assert written == f"<{priority}>granted job=a1\n<{priority}>ValueError: odd"


def test_json_is_one_object_a_line():
    made = record(logging.ERROR, error=ValueError("odd"), **logs.facts(job="a1", path=object))
    written = logs.JsonFormatter().format(made)
    assert "\n" not in written
    assert json.loads(written) == {
        "time": round(made.created, 3),
        "level": "error",
        "message": "granted",
        "job": "a1",
        "path": str(object),
        "traceback": "ValueError: odd",
    }
    assert "traceback" not in json.loads(logs.JsonFormatter().format(record()))


# ---- options and streams


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    logs.add_options(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize(("variable", "level"), [(None, "info"), ("debug", "debug"), ("loud", "info")])
def test_the_level_is_the_options_or_the_variables(monkeypatch, variable, level):
    monkeypatch.delenv("GPUSHARE_LOG", raising=False)
    if variable is not None:
        monkeypatch.setenv("GPUSHARE_LOG", variable)
    assert (options().log_level, options().log_format) == (level, "text")
    assert options("--log-level", "error").log_level == "error"


@pytest.mark.parametrize(
    ("level", "shown"), [("debug", "debug info error"), ("info", "info error"), ("error", "error")]
)
def test_what_is_below_the_level_is_not_written(root, capfd, level, shown):
    logs.set_up(level, "text")
    for one in ("debug", "info", "error"):
        getattr(logs.log, one)("a line")
    assert [line.split()[1] for line in capfd.readouterr().err.splitlines()] == shown.split()


@pytest.mark.parametrize(
    ("style", "journal", "expected"),
    [
        ("text", False, r"\d\d:\d\d:\d\d warning careful"),
        ("text", True, "<4>careful"),
        ("json", True, r'\{"time": [\d.]+, "level": "warning", "message": "careful"\}'),
    ],
)
def test_lines_from_the_level_on_go_to_standard_error_once(root, capfd, monkeypatch, style, journal, expected):
    if journal:
        monkeypatch.setenv("JOURNAL_STREAM", "8:1")
    for _ in range(2):
        logs.set_up("warning", style)
    logging.getLogger().addHandler(handler := logging.StreamHandler(sys.stderr))  # of somebody who has one, too
    try:
        logs.log.info("not this")
        logs.log.warning("careful")
    finally:
        logging.getLogger().removeHandler(handler)
    out, err = capfd.readouterr()
    assert out == "" and re.fullmatch(f"{expected}\n", err), err


def test_what_clients_make_the_server_say_is_short_and_said_once_a_minute(root, capfd):
    logs.set_up("info", "text")
    handlers = logging.getLogger().handlers
    handlers.append(handler := logging.StreamHandler(sys.stderr))
    server, loop = logging.getLogger("aiohttp.server"), logging.getLogger("asyncio")
    for number in range(3):
        try:
            raise ValueError(f"bytes of client {number}")
        except ValueError:
            server.exception("Error handling request")
            loop.error("task %d was lost", number, exc_info=True)
    err = capfd.readouterr().err
    assert err.count("Error handling request: ValueError") == err.count("task 0 was lost") == 1
    assert "task 1" not in err
    assert err.count("Traceback") == 1 and err.index("task 0") < err.index("Traceback"), "not of a client's data"
    server.error("another", exc_info=True)  # of no exception
    handlers.remove(handler)
    assert re.fullmatch(r"\d\d:\d\d:\d\d error another\n(NoneType: None\n)?", capfd.readouterr().err)


# ---- a flood


def test_one_message_in_a_while_and_how_many_were_left_out(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(logs.time, "monotonic", lambda: now[0])
    sparingly = logs.Sparingly()
    assert sparingly.allow("a") == 0
    assert [sparingly.allow("a"), sparingly.allow("b"), sparingly.allow("a")] == [None, 0, None]
    now[0] += 59.0
    assert sparingly.allow("a") is None
    now[0] += 1.0
    assert [sparingly.allow("a"), sparingly.allow("b")] == [3, 0]
    now[0] += 60.0
    assert sparingly.allow("a") == 0


def test_keys_of_a_clients_making_do_not_fill_memory():
    sparingly = logs.Sparingly(60.0)
    for number in range(5000):
        assert sparingly.allow(number) == 0
    assert len(sparingly._last) <= 1001
