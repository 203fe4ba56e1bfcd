"""How engines give memory back and take it again over HTTP: a table, and what a URL names.

    http://localhost:9000/free          POST to exactly this
    vllm+http://localhost:8000          the calls of vLLM's sleep mode
    sglang+http://localhost:30000       those of SGLang's memory saver
    ollama+http://localhost:11434       unload all models; the next request loads its model again

The calls are as these engines document them. hook_url.py makes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import urlsplit

from gpushare.errors import UsageError
from gpushare.nearest import did_you_mean

__all__ = ["ENGINES", "Call", "Engine", "engine_of", "split"]


class Call(NamedTuple):
    """One request. It has failed unless the answer's status is 2xx."""

    path: str
    body: Mapping[str, object] | None = None
    """As JSON; None: empty."""
    method: str = "POST"
    again: bool = False
    """Repeat it until it succeeds: the engine says so while it is busy."""
    until: tuple[str, object] | None = None
    """Repeat it until this key of the answer has this value; one of another type is a failure."""
    each: tuple[str, str, str] | None = None
    """Make it once for each entry of a list: (path of a GET, key of the list, key of an entry). The entry's value is
    put in the body where that says None."""


class Engine(NamedTuple):
    """How one kind of server is asked."""

    relief: tuple[Call, ...]
    resume: tuple[Call, ...]
    """Empty: it takes memory again by itself."""


_NOTHING: Mapping[str, object] = MappingProxyType({})
_UNLOAD: Mapping[str, object] = MappingProxyType({"model": None, "keep_alive": 0, "stream": False})

ENGINES: Mapping[str, Engine] = {
    "vllm": Engine(
        relief=(Call("/sleep?level=1"), Call("/is_sleeping", method="GET", until=("is_sleeping", True))),
        resume=(Call("/wake_up"), Call("/is_sleeping", method="GET", until=("is_sleeping", False))),
    ),
    "sglang": Engine(
        relief=(Call("/flush_cache", again=True), Call("/release_memory_occupation", _NOTHING)),
        resume=(Call("/resume_memory_occupation", _NOTHING),),
    ),
    "ollama": Engine(
        relief=(
            Call("/api/generate", _UNLOAD, each=("/api/ps", "models", "model")),
            Call("/api/ps", method="GET", until=("models", [])),
        ),
        resume=(),
    ),
}
GENERIC = Engine(relief=(Call(""),), resume=(Call(""),))
"""Of a URL that names no engine: what to POST to is the URL itself."""


def split(url: str) -> tuple[str, str]:
    """The engine's name and its address: `vllm+http://host:1/` is ("vllm", "http://host:1"). No name: a plain URL."""
    name, plus, rest = url.partition("+")
    if plus and name.isalnum():  # else the plus is one of the URL
        return name.lower(), rest.rstrip("/")
    return "", url


def engine_of(url: str) -> Engine:
    """Raises UsageError if it is no URL, or names an engine that is not known. A plain URL has no resume of its own."""
    name, address = split(url)
    try:
        parts = urlsplit(address)
        if "@" in parts.netloc:
            hint = "name a command instead: --relief-cmd 'curl -K FILE', with the password in a file"
            raise UsageError("a URL with a user and a password is no URL that can be called", code="bad_url", hint=hint)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
        sound = sound and url.isascii() and url.isprintable() and " " not in url
    except ValueError:  # of urlsplit, or of the port
        sound = False
    if name and name not in ENGINES:
        hint = did_you_mean(name, ENGINES) or f"engines: {', '.join(ENGINES)}; for others write the URL to POST to"
        raise UsageError(f"{url!r}: there is no engine {name!r}", code="bad_url", hint=hint)
    if not sound:
        hint = "write http://localhost:9000/free, or vllm+http://localhost:8000"
        raise UsageError(f"{url!r} is no URL that can be called", code="bad_url", hint=hint)
    return ENGINES[name] if name else GENERIC._replace(resume=())
