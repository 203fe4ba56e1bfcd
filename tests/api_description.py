"""Compares a server's answers with the description of its API in docs/openapi: every call, every field."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema

from gpushare import unixhttp

DOCS = Path(__file__).resolve().parents[1] / "docs"


def strict(schema: Any) -> Any:
    """The same, but without fields that the description does not have."""
    if isinstance(schema, dict):
        closed = {"additionalProperties": False} if schema.get("type") == "object" else {}
        return {**closed, **{key: strict(one) for key, one in schema.items()}}
    return [strict(one) for one in schema] if isinstance(schema, list) else schema


class Described:
    """One server. Remembers which calls were made and answered."""

    def __init__(self, name: str, socket: Path) -> None:
        self.document = json.loads((DOCS / "openapi" / f"{name}.json").read_text())
        self.socket = socket
        self.calls = {(method.upper(), path) for path, found in self.document["paths"].items() for method in found}
        self.made: set[tuple[str, str]] = set()

    def fits(self, value: object, content: dict[str, Any], kind: str = "application/json") -> None:
        schema = {**content[kind]["schema"], "components": self.document["components"]}
        jsonschema.Draft202012Validator(strict(schema)).validate(value)

    def answers(self, method: str, path: str) -> dict[str, Any]:
        responses: dict[str, Any] = self.document["paths"][path][method.lower()]["responses"]
        return responses

    def ask(self, method: str, target: str, body: object = None, fails: int | None = None) -> Any:
        """Make the call; the answer is as described. `fails`: it is refused with this status."""
        path = self._path(method, target.partition("?")[0])
        sent = None if body is None else json.dumps(body).encode()
        status, text = unixhttp.exchange(self.socket, method, target, sent, 20.0)
        if fails is not None:
            assert status == fails, text
            self.fits(json.loads(text), self.answers(method, path)["default"]["content"])
            return json.loads(text)["error"]
        assert str(status) in self.answers(method, path), (status, text)
        self.made.add((method, path))
        content = self.answers(method, path)[str(status)]["content"]
        if "application/json" not in content:
            return text.decode()
        value = json.loads(text)
        self.fits(value, content)
        return value

    def line(self, method: str, path: str, value: object) -> None:
        """A line of this call's stream is as described."""
        self.fits(value, self.answers(method, path)["200"]["content"], "application/x-ndjson")
        self.made.add((method, path))

    def _path(self, method: str, path: str) -> str:
        fitting = [
            one for known, one in self.calls if known == method and re.fullmatch(re.sub(r"{\w+}", "[^/]+", one), path)
        ]
        return min(fitting, key=lambda one: one.count("{"))
