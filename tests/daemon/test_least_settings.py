"""The least values of settings that have one: taken to the last bit, and nothing below; and where a file is no file of
settings at all."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from gpushare.errors import GpushareError
from gpushared import config
from gpushared.system import setting_values

FILE = Path("gpushared.toml")

SECONDS = {
    ("memory", "sample_interval"): 0.05,
    ("reclaim", "claim_timeout"): 0.1,
    **{("reclaim", key): 0.0 for key in ("trim", "grace", "hook", "hook_resume")},
    ("suspend", "runs_after"): 0.0,
    ("compute", "turn"): 0.02,
    ("compute", "longest"): 0.02,
    ("daemon", "health_interval"): 0.05,
    ("daemon", "idle_exit"): 0.0,
    ("policy", "max_grace"): 0.0,
    ("policy", "max_min_run_time"): 0.0,
    ("policy", "idle_release"): 1.0,
}
COUNTS = {
    ("policy", "max_gpus"): 1,
    ("policy", "max_jobs"): 0,
    ("policy", "max_priority"): -(2**31),
    ("policy", "max_reservations"): 0,
}


@pytest.mark.parametrize("place", [*SECONDS, *COUNTS], ids=".".join)
def test_a_setting_has_a_least_value(place) -> None:
    section, key = place
    least = {**SECONDS, **COUNTS}[place]
    below = math.nextafter(least, -1.0) if place in SECONDS else least - 1
    config.parse(f"[{section}]\n{key} = {least}\n", FILE)
    with pytest.raises(GpushareError) as refused:
        config.parse(f"[{section}]\n{key} = {below!r}\n", FILE)
    [(_, why)] = refused.value.facts
    assert why.startswith(f"$.{section}.{key}: ") and ("the least is" in why or "not a whole number from" in why)


def test_suspended_memory_is_half_of_the_machines_unless_the_file_says_more(monkeypatch) -> None:
    monkeypatch.setattr(setting_values, "host_memory", lambda: 1001)
    assert config.Config().suspend_memory == 500


@pytest.mark.parametrize(
    ("text", "line"),
    [("a = = 2\n", 1), ("\n\n[x\n\n", 3), ("[memory]\nchunk = [\n", 3), ('x = """\n\n\n', 4), ("[x]\ny = 1\nz", 3)],
)
def test_what_is_no_toml_is_told_with_its_line(text, line) -> None:
    """Where something is not closed, that is the end of the file."""
    with pytest.raises(GpushareError, match=rf"^gpushared\.toml:{line} is not TOML: "):
        config.parse(text, FILE)
