"""The frameworks of `gpushare run --for`: the table is the documented one, and what a user says comes first."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushare.env import Settings
from gpushare.errors import UsageError
from gpushare.frameworks import FRAMEWORKS
from gpushare.quantity import Budget
from gpushare.spawn import program_environ

PAGE = Path(__file__).resolve().parents[2] / "docs" / "hooks.md"


def environ_for(name: str, **environ: str) -> dict[str, str]:
    settings = Settings({"GPUSHARE_FOR": name}, environ)
    nothing = {"name": "x", "devices": (), "driver": "nvidia", "runtime": None, "job": None}
    return program_environ(environ, settings, Budget.of(None, None, limit_is_burst_only=False), **nothing)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_the_page_has_the_table(name: str) -> None:
    found = FRAMEWORKS[name]
    variables = " ".join(f"`{variable}={value}`" for variable, value in found.variables.items())
    assert f"| {name} | {found.visible} | {variables} | {found.why} |".replace("|  |", "| |") in PAGE.read_text()


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_program_gets_what_its_framework_needs(name: str) -> None:
    environ = environ_for(name)
    assert environ["GPUSHARE_VISIBLE"] == FRAMEWORKS[name].visible
    assert FRAMEWORKS[name].variables.items() <= environ.items()


def test_what_the_user_has_said_comes_first() -> None:
    environ = environ_for("jax", XLA_PYTHON_CLIENT_PREALLOCATE="true", GPUSHARE_VISIBLE="request")
    assert environ["XLA_PYTHON_CLIENT_PREALLOCATE"] == "true" and environ["GPUSHARE_VISIBLE"] == "request"


def test_without_a_framework_nothing_is_set() -> None:
    assert Settings({}, {}).find("GPUSHARE_VISIBLE") is None and Settings({}, {}).framework() is None


def test_another_framework_is_refused() -> None:
    with pytest.raises(UsageError, match="is none of vllm"):
        Settings({"GPUSHARE_FOR": "vlm"}, {}).framework()
