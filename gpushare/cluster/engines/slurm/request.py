"""What a user asks for with `--gpushare=gpus=2,request=25%,limit=80%,queue=vision`, and what of it is kept in the job.

The plug-in for submission (job_submit.lua) checks the words and puts them into the job's AdminComment, which only
operators can change:

    gpushare ask=gpus=2,request=25% count=2 nodes=n[1-2]

`count` is how many nodes it takes (-N), and `nodes` are those that the user has named (-w).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpushare.cluster import spec_parser
from gpushare.cluster.model import Job, Selector
from gpushare.cluster.yaml_source import parse_line
from gpushare.errors import UsageError
from gpushare.nearest import did_you_mean

__all__ = ["Asked", "job_of", "read", "words_of"]

FIRST = "gpushare"
FROM = "--gpushare"
DEFAULT = "default"
"""What the option has for no words."""
KEYS: Mapping[str, str] = {
    "gpus": "gpus",
    "request": "request",
    "limit": "limit",
    "queue": "queue",
    "priority": "priority",
    "preemptible": "preemptible",
    "min_run_time": "min_runtime",
    "movable": "movable",
    "checkpoint_every": "checkpoint_every",
}
"""Words of the option, and those of spec_parser.py. job_submit.lua has the same list; a test compares them."""
NUMBERS = ("gpus", "priority")
FLAGS = {"yes": True, "no": False}
FLAG_KEYS = ("preemptible", "movable")


@dataclass(frozen=True, slots=True)
class Asked:
    """What is in a job's AdminComment."""

    words: str = ""
    nodes: str = ""
    """As the user wrote them."""
    count: int = 1
    """How many tasks it has, each on a node: a gang."""


def read(admin_comment: str) -> Asked | None:
    """None: it is no job of ours."""
    first, *words = admin_comment.split()[:16] or [""]
    if first != FIRST:
        return None
    said = dict(word.partition("=")[::2] for word in words)
    count = said.get("count", "")
    return Asked(said.get("ask", ""), said.get("nodes", ""), int(count) if count.isdecimal() else 1)


def job_of(id: str, asked: Asked, name: str, selector: Selector) -> Job:
    """UsageError for what makes no sense. Its queue is "" where the words name none."""
    said = _said(asked.words)
    queue = said.pop("queue", "")
    share = said.pop("request", None)
    if share is not None:
        said["share" if _is_share(share) else "memory"] = share
    entry = {"name": id, "queue": queue or "-", "tasks": asked.count, **said}
    try:
        job = spec_parser.job(parse_line(json.dumps(entry), FROM, 0))
    except UsageError as error:
        raise UsageError(_as_written(error.message), hint=error.hint) from None
    return replace(job, queue=queue, name=name, selector=selector)


def words_of(words: str) -> dict[str, str]:
    """As they were written, by key. Raises UsageError."""
    found: dict[str, str] = {}
    for word in filter(None, words.split(",") if words != DEFAULT else ()):
        key, equals, value = word.partition("=")
        if key not in KEYS or not equals or not value:
            why = f"no word {key!r}" if key not in KEYS else f"{key} has no value"
            raise UsageError(f"--gpushare: {why}", hint=did_you_mean(key, KEYS) or f"there are: {', '.join(KEYS)}")
        found[key] = value
    return found


def _as_written(message: str) -> str:
    """With the user's word for what is wrong, in place of that of spec_parser.py."""
    for theirs, ours in (*KEYS.items(), ("request", "share"), ("request", "memory")):
        if message.startswith(f"{FROM}: {ours}: "):
            return f"{FROM}: {theirs}: {message.removeprefix(f'{FROM}: {ours}: ')}"
    return message


def _said(words: str) -> dict[str, Any]:
    return {KEYS[key]: _value(key, value) for key, value in words_of(words).items()}


def _value(key: str, value: str) -> Any:
    if key in FLAG_KEYS:
        if value not in FLAGS:
            raise UsageError(f"--gpushare: {key} is yes or no, not {value!r}")
        return FLAGS[value]
    if key in NUMBERS and value.lstrip("-").isdecimal():
        return int(value)
    return value


def _is_share(text: str) -> bool:
    return text.rstrip("%").replace(".", "", 1).isdecimal()
