"""docs/api.md and docs/openapi are what the servers' handlers and types say, and OpenAPI."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
from openapi_spec_validator import validate

from gpushared.api.calls import calls_of

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_api", DOCS / "man" / "generate_api.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_files_are_those_of_the_code(generate: ModuleType) -> None:
    for path, text in generate.files().items():
        assert path.read_text() == text, f"{path}: run `make man`"


@pytest.mark.parametrize("name", ["node", "cluster"])
def test_they_are_openapi(name: str) -> None:
    validate(json.loads((DOCS / "openapi" / f"{name}.json").read_text()))


def test_every_handler_says_what_it_does(generate: ModuleType) -> None:
    for _, _, kinds in generate.SERVERS.values():
        for kind in kinds:
            assert list(calls_of(kind)), kind
            for name, _ in calls_of(kind):
                assert generate.first_paragraph(getattr(kind, name)).endswith("."), f"{kind.__name__}.{name}"


def test_meanings_are_those_beside_the_fields(generate: ModuleType) -> None:
    from gpushare import api
    from gpushare.cluster.answers import NodeView

    assert generate.meanings(api.Waiting)["until"] == "when it is refused"
    assert generate.meanings(api.Job)["longest_grace"].startswith("seconds"), "those of what it inherits from"
    assert generate.meanings(NodeView)["free"].startswith("Bytes of each GPU not promised")
