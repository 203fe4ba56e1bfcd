"""Makes the HTTP requests of a hook that is a URL: `python -m gpushare.hook_url`, a process that can be killed.

Which ones is in engine_hooks.py. The URL, which hook it is and the time for it are in the environment (hook_call.py,
hook_runner.py). If a request fails it says why on standard error, and ends with status 1. It uses no proxy: the server
is a job of this machine.
"""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any

from gpushare.engine_hooks import ENGINES, GENERIC, Call, split
from gpushare.quantity import format_bytes

__all__ = ["Failed", "make_calls"]

LONGEST_ANSWER = 2**20
LONGEST_QUOTE = 100
"""Characters of an answer in the reason of a failure."""
PAUSE = 0.1
"""Seconds until a request is repeated."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """What is called is what the user has named: another address is an error (HTTP 302 and the like)."""

    def redirect_request(self, *_: object) -> None:
        return None


class Failed(Exception):
    """A request has failed, for good."""


def make_calls(url: str, hook: str, within: float) -> None:
    """`hook`: relief or resume. Raises Failed."""
    until = time.monotonic() + within
    name, address = split(url)
    engine = ENGINES[name] if name else GENERIC
    for call in engine.relief if hook == "relief" else engine.resume:
        for body in _bodies(address, call, until):
            _repeat(address, call, body, until)


def _bodies(address: str, call: Call, until: float) -> Iterator[Mapping[str, object] | None]:
    if call.each is None or call.body is None:
        yield call.body
        return
    path, key, name = call.each
    listing = Call(path, method="GET")
    entries = _value(listing, _request(address, listing, None, until), key)
    if entries is not None and not (isinstance(entries, list) and all(_has(entry, name) for entry in entries)):
        raise Failed(f"{listing.method} {path}: {key} is {_short(repr(entries))}")
    for entry in entries or ():
        yield {field: entry[name] if value is None else value for field, value in call.body.items()}


def _repeat(address: str, call: Call, body: Mapping[str, object] | None, until: float) -> None:
    while True:
        try:
            answer = _request(address, call, body, until)
        except Failed:
            if not call.again or time.monotonic() + PAUSE >= until:
                raise
        else:
            if call.until is None or _is_met(call, *call.until, answer):
                return
            if time.monotonic() + PAUSE >= until:
                wanted = json.dumps(call.until[1])
                raise Failed(f"{call.method} {call.path}: {call.until[0]} is not {wanted} in time")
        time.sleep(PAUSE)


def _is_met(call: Call, key: str, wanted: object, answer: bytes) -> bool:
    """Raises Failed if the answer is of another kind than what is waited for: it says neither yes nor no."""
    value = _value(call, answer, key)
    if value is None and isinstance(wanted, list):
        value = []
    if type(value) is not type(wanted):
        raise Failed(f"{call.method} {call.path}: {key} is {_short(repr(value))}")
    return bool(value == wanted)


def _value(call: Call, answer: bytes, key: str) -> Any:
    """Raises Failed if the answer has none of this name."""
    try:
        found = json.loads(answer)
    except (ValueError, RecursionError):
        found = None
    if not _has(found, key):
        said = answer[: 2 * LONGEST_QUOTE].decode("utf-8", "replace")
        raise Failed(f"{call.method} {call.path}: the answer has no {key}: {_short(said)}")
    return found[key]


def _has(found: object, key: str) -> bool:
    return isinstance(found, dict) and key in found


def _short(said: str) -> str:
    return said if len(said) <= LONGEST_QUOTE else f"{said[:LONGEST_QUOTE]}..."


def _request(address: str, call: Call, body: Mapping[str, object] | None, until: float) -> bytes:
    """The answer. Raises Failed."""
    what = f"{call.method} {call.path or address.partition('?')[0]}"  # what follows may be a secret
    data = b"" if body is None else json.dumps(dict(body)).encode()
    request = urllib.request.Request(
        address + call.path,
        data=data if call.method == "POST" else None,
        headers={"Content-Type": "application/json"} if data else {},
        method=call.method,
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)
    try:
        with opener.open(request, timeout=max(PAUSE, until - time.monotonic())) as answer:
            text = answer.read(LONGEST_ANSWER + 1)
    except urllib.error.HTTPError as error:
        said = error.read(200).decode("utf-8", "replace").strip().partition("\n")[0]
        raise Failed(f"{what}: HTTP {error.code}" + (f", {said}" if said else "")) from None
    except (OSError, ValueError) as error:
        raise Failed(f"{what}: {getattr(error, 'reason', error)}") from None
    if len(text) > LONGEST_ANSWER:
        raise Failed(f"{what}: its answer is longer than {format_bytes(LONGEST_ANSWER)}")
    return bytes(text)


if __name__ == "__main__":
    given = os.environ
    try:
        make_calls(given["GPUSHARE_HOOK_URL"], given["GPUSHARE_HOOK"], float(given["GPUSHARE_HOOK_SECONDS"]))
    except Failed as failed:
        sys.exit(str(failed))
