"""The daemon's log: one line an event on stderr, as text or JSON, with journald's priority in front under systemd."""

from __future__ import annotations

import argparse
import json
import logging
import os
import time
from typing import Any

log = logging.getLogger("gpushared")

_PRIORITY = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}
LEVELS = {"error": logging.ERROR, "warning": logging.WARNING, "info": logging.INFO, "debug": logging.DEBUG}


def add_options(parser: argparse.ArgumentParser) -> None:
    """--log-format and --log-level."""
    parser.add_argument("--log-format", choices=("text", "json"), default="text", help="of its log, on standard error")
    level = os.environ.get("GPUSHARE_LOG", "")
    parser.add_argument(
        "--log-level",
        choices=tuple(LEVELS),
        default=level if level in LEVELS else "info",
        help="default: GPUSHARE_LOG, or info",
    )


class TextFormatter(logging.Formatter):
    """`message key=value key=value`; journald knows the time and the priority by itself."""

    def __init__(self, journal: bool) -> None:
        super().__init__()
        self._journal = journal

    def format(self, record: logging.LogRecord) -> str:
        line = " ".join([record.getMessage(), *(f"{key}={_plain(value)}" for key, value in facts_of(record).items())])
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        if self._journal:
            priority = f"<{_PRIORITY.get(record.levelno, 6)}>"
            return "\n".join(priority + part for part in line.splitlines())
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        return f"{clock} {record.levelname.lower()} {line}"


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {"time": round(record.created, 3), "level": record.levelname.lower()}
        entry["message"] = record.getMessage()
        entry.update(facts_of(record))
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def facts_of(record: logging.LogRecord) -> dict[str, Any]:
    facts = getattr(record, "facts", None)
    return dict(facts) if facts else {}


def _plain(value: object) -> str:
    text = str(value)
    return json.dumps(text) if not text.isprintable() or any(c in text for c in ' "=') or not text else text


def set_up(level: str, style: str) -> None:
    handler = logging.StreamHandler()
    journal = "JOURNAL_STREAM" in os.environ
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter(journal))
    log.handlers[:] = [handler]
    log.propagate = False
    log.setLevel(LEVELS[level])
    for name in ("aiohttp.server", "asyncio"):
        # Without: clients could write a line for each bad request.
        other = logging.getLogger(name)
        other.handlers[:] = [handler]
        other.propagate = False
        other.addFilter(_OncePerMinute())
    logging.getLogger("aiohttp.server").addFilter(_without_traceback)


def facts(**values: object) -> dict[str, Any]:
    """For `log.info("...", extra=facts(job=...))`."""
    return {"facts": values}


class Sparingly:
    """Allows one message per key in a while, and counts the rest: a broken client must not fill the disk."""

    def __init__(self, seconds: float = 60.0) -> None:
        self._seconds = seconds
        self._last: dict[object, float] = {}
        self._left_out: dict[object, int] = {}

    def allow(self, key: object) -> int | None:
        """How many were left out since the last one, or None: not now."""
        now = time.monotonic()
        if now - self._last.get(key, -self._seconds) < self._seconds:
            self._left_out[key] = self._left_out.get(key, 0) + 1
            return None
        if len(self._last) > 1000:
            self._last.clear()
        self._last[key] = now
        return self._left_out.pop(key, 0)


def _without_traceback(record: logging.LogRecord) -> bool:
    """The message is about a client's data: where the parser noticed it does not matter."""
    if record.exc_info and record.exc_info[0] is not None:
        record.msg, record.args = f"{record.getMessage()}: {record.exc_info[0].__name__}", ()
        record.exc_info = record.exc_text = None
    return True


class _OncePerMinute(logging.Filter):
    """Passes each message of another library on once a minute."""

    def __init__(self) -> None:
        super().__init__()
        self._sparingly = Sparingly()

    def filter(self, record: logging.LogRecord) -> bool:
        return self._sparingly.allow(record.msg) is not None
