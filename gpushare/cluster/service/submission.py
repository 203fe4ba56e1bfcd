"""A submission as it comes over the API: which words there are, and what they mean.

    {"job": {"queue": "vision", "gpus": 2, "request": "25%", "limit": "80%"}, "array": 20, "after": ["12"],
     "hold": false, "requeue": null, "run": {"command": ["python", "train.py"]}}

`job` has the words of a cluster's file (spec_parser.py), and `request`: a share of each GPU, or memory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpushare.cluster import spec_parser
from gpushare.cluster.model import Job
from gpushare.cluster.yaml_source import Item, parse_line
from gpushare.errors import UsageError
from gpushare.nearest import did_you_mean
from gpushare.printable import one_line

__all__ = ["Wanted", "read"]

KEYS = ("job", "array", "after", "hold", "requeue", "run")
MOST_OF_AN_ARRAY = 10_000
MOST_AFTER = 100
ANY_ID = "0"
"""In place of the id, which the job gets when it is queued."""


@dataclass(frozen=True, slots=True)
class Wanted:
    job: Job
    """Its id is none yet; its queue is "" where the submission names none."""
    run: Mapping[str, Any]
    array: int | None = None
    after: tuple[str, ...] = ()
    hold: bool = False
    requeue: bool = True


def read(body: object) -> Wanted:
    """UsageError for what makes no sense."""
    if not isinstance(body, dict):
        raise _bad("a submission is a JSON object")
    for key in body:
        if key not in KEYS:
            raise UsageError(
                f"the submission has an unknown field {one_line(key[:60])!r}",
                code="unknown_field",
                hint=did_you_mean(key, KEYS) or f"there are: {', '.join(KEYS)}",
            )
    said = {key: value for key, value in body.items() if value is not None}
    run = said.get("run", {})
    if not isinstance(run, dict):
        raise _bad("run is not a JSON object")
    return Wanted(
        job=_job(said.get("job", {})),
        run=run,
        array=_array(said.get("array")),
        after=_after(said.get("after", [])),
        hold=_flag(body, "hold", default=False),
        requeue=_flag(body, "requeue", default=True),
    )


def _job(words: object) -> Job:
    if not isinstance(words, dict):
        raise _bad("job is not a JSON object")
    item = parse_line(json.dumps(words), "the job", 0)
    item.only(*spec_parser.JOB_KEYS, "request")
    named = item["name"].name() if "name" in item else ""
    said = {key: value for key, value in item.value.items() if key not in ("name", "request")}
    said["name"] = Item(ANY_ID, "the job", "name")
    if "queue" not in item:
        said["queue"] = Item(ANY_ID, "the job", "queue")
    if "request" in item:
        for other in ("share", "memory", "groups"):
            if other in item:
                item[other].refuse("beside `request`", hint="leave one of the two out")
        text = item["request"].text()
        said["share" if _is_share(text) else "memory"] = item["request"]
    job = spec_parser.job(replace(item, value=said))
    return replace(job, id="", name=named, queue=job.queue if "queue" in item else "")


def _is_share(text: str) -> bool:
    return text.strip().rstrip("%").replace(".", "", 1).strip().isdecimal()


def _array(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _bad(f"array is not a whole number from 1 to {MOST_OF_AN_ARRAY}")
    if value > MOST_OF_AN_ARRAY:
        raise UsageError(
            f"an array of {value} jobs is too large",
            code="bad_request",
            hint=f"submit several arrays of at most {MOST_OF_AN_ARRAY}",
        )
    return value


def _after(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > MOST_AFTER or not all(isinstance(one, str) for one in value):
        raise _bad(f"after is not a list of at most {MOST_AFTER} ids")
    return tuple(dict.fromkeys(value))


def _flag(body: Mapping[str, Any], name: str, *, default: bool) -> bool:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise _bad(f"{name} is neither true nor false")
    return value


def _bad(message: str) -> UsageError:
    return UsageError(message, code="bad_request")
