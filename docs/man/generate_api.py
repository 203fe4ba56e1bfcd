"""Writes docs/api.md and docs/openapi/ from the calls that the servers' handlers are marked with (daemon/gpushared/api/
calls.py) and the types of their answers: python docs/man/generate_api.py
"""

from __future__ import annotations

import ast
import enum
import inspect
import json
import re
import sys
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from gpushare import __version__, api, api_bodies
from gpushare.cluster.reasons import Reason
from gpushare.cluster.service import api as cluster_api
from gpushare.job_spec import OPTIONS
from gpushared.api.application import NOUNS
from gpushared.api.calls import PARAMETERS, Call, calls_of
from gpushared.cluster.routes import Api as ClusterApi

DOCS = Path(__file__).resolve().parents[1]
SERVERS: Mapping[str, tuple[str, str, Sequence[type]]] = {
    "node": ("The node daemon", "/run/gpushare/api.sock", NOUNS),
    "cluster": ("The service behind `gpushare cluster serve`", "/run/gpushare-cluster/api.sock", (ClusterApi,)),
}
PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", types.NoneType: "null"}
SHOWN: Mapping[str, Any] = {**api_bodies.KINDS, "seconds": float | None, "share": float | None, "steps": list[str]}
"""The type of each kind of a job's options in an answer."""
Schema = dict[str, Any]

INTRODUCTION = """\
# The API

The node daemon and the cluster's service answer HTTP with JSON on Unix sockets. The kernel tells them which user calls,
so there are no passwords. This page is made from their code; [openapi/node.json](openapi/node.json) and
[openapi/cluster.json](openapi/cluster.json) are the same as OpenAPI 3.1, for programs that make clients.

```console
$ curl --unix-socket /run/gpushare/api.sock http://localhost/v1/version
```

A user's own daemon has its socket in `$XDG_RUNTIME_DIR/gpushare`; `gpushare doctor` names it. New versions add fields
and never remove or rename one, so ignore those that you do not know.

An error has a status from 400 on and always the same shape: `{"error": {"code", "message", "facts", "hint"}}`.
[Every message](reasons.md) explains the codes. A stream is one JSON object a line until one side closes the connection;
an empty line says that the server is there. Amounts of memory are bytes, times are seconds since 1970.
"""


# ---- types -------------------------------------------------------------------------------------------


class Schemas:
    """JSON Schemas of types. Named ones are collected."""

    def __init__(self) -> None:
        self.named: dict[str, Schema] = {}

    def of(self, kind: Any) -> Schema:
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if kind is Any:
            return {}
        if kind is Reason:
            return self.of(cluster_api.Reason)
        if kind in PLAIN:
            return {"type": PLAIN[kind]}
        if origin is Literal:
            return {"enum": list(arguments)}
        if origin is Annotated:
            return self._object([arguments[0], arguments[1]])
        if origin in (types.UnionType, typing.Union):
            return {"anyOf": [self.of(one) for one in arguments]}
        if origin in (dict, Mapping) or getattr(origin, "__name__", "") == "Mapping":
            return {"type": "object", "additionalProperties": self.of(arguments[1])}
        if origin is tuple and arguments[-1] is not ...:
            parts = [self.of(one) for one in arguments]
            return {"type": "array", "prefixItems": parts, "minItems": len(parts), "maxItems": len(parts)}
        if origin in (list, tuple, frozenset):
            return {"type": "array", "items": self.of(arguments[0])}
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return {"enum": [one.value for one in kind]}
        if kind.__name__ not in self.named:
            self.named[kind.__name__] = {}  # for a type that has itself in it
            self.named[kind.__name__] = self._object([kind])
        return {"$ref": f"#/components/schemas/{kind.__name__}"}

    def fields(self, kind: Any) -> Schema:
        """Of a TypedDict, or of a mapping of names to types."""
        if isinstance(kind, Mapping):
            return {"type": "object", "properties": {name: self.of(one) for name, one in kind.items()}}
        return self.of(kind)

    def _object(self, kinds: Sequence[Any]) -> Schema:
        properties: dict[str, Schema] = {}
        required: set[str] = set()
        for kind in kinds:
            said = meanings(kind)
            hints = typing.get_type_hints(kind, include_extras=True)
            for name, one in hints.items():
                properties[name] = self.of(one)
                if name in said:
                    properties[name] = {**properties[name], "description": said[name]}
            required |= set(getattr(kind, "__required_keys__", hints))
            if kind is api.Job:  # it shows every such option, also one that no reader of ours needs a type for
                for name, option in OPTIONS.items():
                    if option.shown and name not in properties:
                        properties[name] = {**self.of(SHOWN[option.kind]), "description": option.help}
        found: Schema = {"type": "object", "properties": properties}
        if required:
            found["required"] = sorted(required)
        words = first_paragraph(kinds[0])
        return {"description": words, **found} if words else found


def first_paragraph(of: Any) -> str:
    text = inspect.cleandoc(of.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
    made_up = text.startswith(f"{getattr(of, '__name__', '')}(") or text.startswith("dict() ->")
    return "" if made_up else text


def meanings(kind: Any) -> dict[str, str]:
    """What the comments and texts beside the fields of a class say."""
    lines = textwrap.dedent(inspect.getsource(kind)).splitlines()
    (definition,) = ast.parse("\n".join(lines)).body
    assert isinstance(definition, ast.ClassDef)
    found: dict[str, str] = {}
    for base in definition.bases:
        known = vars(sys.modules[kind.__module__]).get(base.id) if isinstance(base, ast.Name) else None
        if typing.is_typeddict(known):
            found |= meanings(known)
    for here, after in zip(definition.body, [*definition.body[1:], None], strict=True):
        if not (isinstance(here, ast.AnnAssign) and isinstance(here.target, ast.Name)):
            continue
        comment = lines[(here.end_lineno or 1) - 1].partition("  # ")[2]
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            comment = inspect.cleandoc(str(after.value.value)).replace("\n", " ")
        if comment and "noqa" not in comment:
            found[here.target.id] = comment
    return found


# ---- the description ---------------------------------------------------------------------------------


def handlers(kinds: Sequence[type]) -> Iterator[tuple[Call, str, Any]]:
    """Each call with its path as OpenAPI writes it, and its handler."""
    for kind in kinds:
        for name, one in calls_of(kind):
            yield one, re.sub(r":[^}]*}", "}", one.path), getattr(kind, name)


def description(name: str) -> Schema:
    """The API of one of SERVERS as OpenAPI."""
    title, socket, kinds = SERVERS[name]
    schemas, paths = Schemas(), dict[str, Schema]()
    for one, path, handler in handlers(kinds):
        paths.setdefault(path, {})[one.method.lower()] = _operation(schemas, one, path, handler)
    error = {"code": str, "message": str, "facts": list[list[str]], "hint": str | None}
    known = {"description": "A refusal", "type": "object", "required": ["error"]}
    schemas.named["Error"] = {**known, "properties": {"error": schemas.fields(error)}}
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": __version__, "description": f"HTTP on the Unix socket {socket}."},
        "servers": [{"url": "http://localhost"}],
        "paths": paths,
        "components": {"schemas": dict(sorted(schemas.named.items()))},
    }


def _operation(schemas: Schemas, one: Call, path: str, handler: Any) -> Schema:
    found: Schema = {"operationId": handler.__qualname__.replace("._", "."), "summary": first_paragraph(handler)}
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}, "description": PARAMETERS[name]}
        for name in re.findall(r"{(\w+)}", path)
    ]
    parameters += [
        {"name": name, "in": "query", "schema": {"type": "string"}, "description": text}
        for name, text in one.query.items()
    ]
    if parameters:
        found["parameters"] = parameters
    if one.body is not None:
        found["requestBody"] = {"content": {"application/json": {"schema": schemas.fields(one.body)}}}
    content: Schema = {}
    if one.answer is not None:
        content["application/json"] = {"schema": schemas.of(one.answer)}
    if one.line is not None:
        content["application/x-ndjson"] = {"schema": schemas.of(one.line)}
    answers: Schema = {
        str(status): {"description": "Done", "content": content or {"text/plain": {"schema": {"type": "string"}}}}
        for status in one.statuses
    }
    refusal = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    answers["default"] = {"description": "Refused, or failed", "content": refusal}
    return {**found, "responses": answers}


def openapi(name: str) -> str:
    return json.dumps(description(name), indent=1) + "\n"


# ---- the page ----------------------------------------------------------------------------------------


def page() -> str:
    parts = [INTRODUCTION]
    for name, (title, socket, _) in SERVERS.items():
        found = description(name)
        parts.append(f"## {title}\n\nIts socket is `{socket}`.\n")
        for path, operations in found["paths"].items():
            for method, one in operations.items():
                parts += _call(f"{method.upper()} {path}", one, name)
        parts.append(f"### Types of {'a node' if name == 'node' else 'a cluster'}\n")
        for kind, schema in found["components"]["schemas"].items():
            parts += _fields(f"#### {_title(name, kind)}", schema, name)
    return "\n".join(parts)


def _title(server: str, kind: str) -> str:
    return f"{kind} of a {server}"


def _call(title: str, one: Schema, server: str) -> Iterator[str]:
    yield f"### `{title}`\n\n{one['summary']}\n"
    for parameter in one.get("parameters", []):
        if parameter["in"] == "query":
            yield f"* `?{parameter['name']}`: {parameter['description']}"
    body = one.get("requestBody")
    if body is not None:
        schema = body["content"]["application/json"]["schema"]
        names = ", ".join(f"`{name}`" for name in schema.get("properties", {}))
        yield f"* body: {names or _words(schema, server)}"
    (status, answer), *_ = one["responses"].items()
    for kind, words in (("application/json", "answer"), ("application/x-ndjson", "a line of the stream")):
        if kind in answer["content"]:
            yield f"* {words}: {_words(answer['content'][kind]['schema'], server)}" + (
                f", with status {status}" if words == "answer" and status != "200" else ""
            )
    if "text/plain" in answer["content"]:
        yield "* answer: text"
    yield ""


def _fields(title: str, schema: Schema, server: str) -> Iterator[str]:
    yield f"{title}\n"
    if schema.get("description"):
        yield f"{schema['description']}\n"
    if schema["properties"]:
        yield "| field | type | meaning |\n|---|---|---|"
    for name, one in schema["properties"].items():
        optional = "" if name in schema.get("required", ()) else ", not always"
        yield f"| `{name}` | {_words(one, server)}{optional} | {one.get('description', '').replace('|', ' or ')} |"
    yield ""


def _words(schema: Schema, server: str) -> str:
    """A type in a few words, with links."""
    if "$ref" in schema:
        kind = schema["$ref"].rpartition("/")[2]
        return f"[{kind}](#{_title(server, kind).lower().replace(' ', '-')})"
    if "anyOf" in schema:
        return " or ".join(_words(one, server) for one in schema["anyOf"])
    if "enum" in schema:
        return "one of " + ", ".join(f"`{one}`" for one in schema["enum"])
    match schema.get("type"):
        case "array" if "prefixItems" in schema:
            return "[" + ", ".join(_words(one, server) for one in schema["prefixItems"]) + "]"
        case "array":
            return f"list of {_words(schema['items'], server)}"
        case "object" if "additionalProperties" in schema:
            return f"object of {_words(schema['additionalProperties'], server)}"
        case "object":
            return "object with " + ", ".join(f"`{name}`" for name in schema.get("properties", {}))
        case None:
            return "anything"
        case kind:
            return str(kind)


def files() -> dict[Path, str]:
    return {DOCS / "api.md": page()} | {DOCS / "openapi" / f"{name}.json": openapi(name) for name in SERVERS}


if __name__ == "__main__":
    (DOCS / "openapi").mkdir(exist_ok=True)
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
