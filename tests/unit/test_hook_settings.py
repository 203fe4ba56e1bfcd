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


@pytest.mark.parametrize("chosen", ["trim,kill", "term,kill"])
def test_other_steps_can_be_had_with_exec(chosen: str) -> None:
    settings = Settings({"GPUSHARE_ON_RECLAIM": chosen}, {})
    assert steps(settings, replaced=True) == chosen and settings.warnings == []


def test_an_engine_that_can_resume_may_be_the_resume_hook() -> None:
    flags = {"GPUSHARE_RELIEF_CMD": "true", "GPUSHARE_RESUME_URL": "vllm+http://localhost:1"}
    found = hook_settings.of(Settings(flags, {}))
    assert found == (hook_settings.Hook(cmd="true"), hook_settings.Hook(url="vllm+http://localhost:1"))


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


@pytest.mark.parametrize(
    ("flags", "replaced", "words", "hint"),
    [
        ({"ON_RECLAIM": "trim,hook,kill"}, False, "have the step hook, and there is no hook", "--relief-cmd"),
        ({"RELIEF_CMD": "true"}, True, "--exec replaces it", "leave out --exec"),
        ({"RELIEF_CMD": "true", "ON_RECLAIM": "trim,kill"}, False, "trim,kill has no step hook", "--on-reclaim"),
        ({"RESUME_CMD": "true"}, False, "a resume hook without a relief hook", "--relief-url"),
        ({"RELIEF_CMD": "true", "RELIEF_URL": "http://localhost/x"}, False, "both say what to call", "leave one out"),
        ({"RELIEF_URL": "vlm+http://localhost:1"}, False, "there is no engine 'vlm'", "vllm"),
        ({"RELIEF_URL": "nothing+http://localhost:1"}, False, "there is no engine 'nothing'", "engines: "),
    ],
)
def test_what_contradicts_itself_is_refused(flags: dict[str, str], replaced: bool, words: str, hint: str) -> None:
    settings = Settings({f"GPUSHARE_{name}": text for name, text in flags.items()}, {})
    with pytest.raises(UsageError, match=words) as caught:
        steps(settings, replaced=replaced)
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ({}, "trim,term,kill"),
        ({"RELIEF_CMD": "true"}, "trim,hook,term,kill"),
        ({"RELIEF_CMD": "true", "ON_RECLAIM": "hook,kill"}, "hook,kill"),
        ({"ON_RECLAIM": "kill"}, "kill"),
    ],
)
def test_a_hook_is_a_step_of_its_own(flags: dict[str, str], found: str) -> None:
    settings = Settings({f"GPUSHARE_{name}": text for name, text in flags.items()}, {})
    assert steps(settings, replaced=False) == found


@pytest.mark.parametrize(
    ("flags", "resumes"),
    [
        ({"RELIEF_URL": "vllm+http://localhost:1"}, "vllm+http://localhost:1"),
        ({"RELIEF_URL": "ollama+http://localhost:1"}, None),
        ({"RELIEF_URL": "http://localhost:1/free"}, None),
        ({"RELIEF_URL": "vllm+http://localhost:1", "RESUME_URL": "http://localhost:2/x"}, "http://localhost:2/x"),
    ],
)
def test_an_engine_that_can_resume_is_called_for_it(flags: dict[str, str], resumes: str | None) -> None:
    found = hook_settings.of(Settings({f"GPUSHARE_{name}": text for name, text in flags.items()}, {}))
    assert (found.resume.url if found.resume else None) == resumes
    assert hook_settings.from_environ(found.environ()) == found
