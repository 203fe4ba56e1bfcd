"""What is said about hooks and about --exec when a job starts."""

from __future__ import annotations

import pytest

from gpushare import hook_settings
from gpushare.env import Settings
from gpushare.errors import UsageError

SOFTLY = "trim,suspend,term,kill"


def steps(settings: Settings, *, replaced: bool) -> str:
    return hook_settings.of(settings).steps(settings, replaced=replaced)


def test_who_types_exec_and_the_step_suspend_is_refused() -> None:
    settings = Settings({"GPUSHARE_ON_RECLAIM": SOFTLY}, {})
    with pytest.raises(UsageError, match="--exec replaces gpushare run"):
        steps(settings, replaced=True)
    assert steps(settings, replaced=False) == SOFTLY


def test_the_step_suspend_of_the_environment_is_left_out_with_exec_and_that_is_said_once() -> None:
    """A notebook's kernel is started with --exec."""
    settings = Settings({}, {"GPUSHARE_ON_RECLAIM": SOFTLY})
    assert [steps(settings, replaced=True) for _ in range(2)] == ["trim,term,kill"] * 2
    (said,) = settings.warnings
    assert said.startswith("the step suspend is left out: ")


@pytest.mark.parametrize("name", ["RELIEF", "RESUME"])
@pytest.mark.parametrize("text", ["", "  "])
def test_an_empty_command_is_refused(name: str, text: str) -> None:
    flags = {"GPUSHARE_RELIEF_CMD": "true", f"GPUSHARE_{name}_CMD": text}
    with pytest.raises(UsageError, match="the command is empty"):
        hook_settings.of(Settings(flags, {}))


def test_an_engine_without_a_call_to_resume_is_refused_as_a_resume_hook() -> None:
    flags = {"GPUSHARE_RELIEF_CMD": "true", "GPUSHARE_RESUME_URL": "ollama+http://localhost:11434"}
    with pytest.raises(UsageError, match="ollama has no call to resume"):
        hook_settings.of(Settings(flags, {}))
    flags["GPUSHARE_RESUME_URL"] = "http://localhost:11434/load"
    assert hook_settings.of(Settings(flags, {})).resume is not None
