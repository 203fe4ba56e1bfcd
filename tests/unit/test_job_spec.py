"""What follows from the declaration of a job's options."""

from __future__ import annotations

import struct

import pytest

from gpushare._layout import lib
from gpushare.env import BY_NAME, Settings
from gpushare.errors import UsageError
from gpushare.job_spec import OPTIONS, JobSpec, default_text, from_view, plain_options, variable_of, view
from gpushare.quantity import MAX, NOTHING
from gpushare.reclaim_steps import JOB_STEPS, STEP_BITS, USUAL_STEPS, ReclaimStep, parse_steps


def test_steps_are_ordered_and_are_their_names():
    assert list(ReclaimStep) == sorted(reversed(ReclaimStep)) == ["revoke", "trim", "hook", "suspend", "term", "kill"]
    for lower, higher in zip(ReclaimStep, list(ReclaimStep)[1:], strict=False):
        assert lower < higher and higher > lower and lower <= lower and higher >= lower and not lower > lower
        assert not higher <= lower and not lower >= higher and not lower < lower
    assert f"{ReclaimStep.TERM}" == "term" and max(ReclaimStep) is ReclaimStep.KILL


def test_a_job_chooses_its_steps():
    assert parse_steps("trim,hook,suspend,term,kill") == JOB_STEPS
    assert parse_steps("trim,term,kill") == USUAL_STEPS == JobSpec._field_defaults["on_reclaim"]
    assert parse_steps(" Term ") == (ReclaimStep.TERM, ReclaimStep.KILL), "kill is always the last"
    for odd in ("revoke", "kill,trim", "trim,trim", ""):
        with pytest.raises(UsageError):
            parse_steps(odd)


def test_steps_are_written_as_the_library_writes_them():
    assert {step: int(getattr(lib, f"GS_STEP_{step.name}")) for step in JOB_STEPS} == STEP_BITS


def test_each_option_with_a_variable_can_be_set():
    named = {variable_of(name) for name, option in OPTIONS.items() if option.variable}
    assert named <= set(BY_NAME)
    assert default_text("priority") == "0" and default_text("on_reclaim") == "trim,term,kill"
    assert default_text("grace") is default_text("name") is None


def test_options_have_their_defaults_and_their_values():
    unset = Settings({}, {})
    said = Settings(
        {"GPUSHARE_PRIORITY": "-3", "GPUSHARE_GRACE": "1m", "GPUSHARE_ON_RECLAIM": "kill"},
        {
            "GPUSHARE_MIN_RUN_TIME": "2s",
            "GPUSHARE_NAME": "train",
            "GPUSHARE_COMPUTE": "25%",
            "GPUSHARE_EXCLUSIVE": "3s",
        },
    )
    found = {
        name: (unset.of_job(name), said.of_job(name)) for name, option in plain_options().items() if option.variable
    }
    assert found == {
        "priority": (0, -3),
        "grace": (None, 60.0),
        "on_reclaim": ("trim,term,kill", "kill"),
        "min_run_time": (0.0, 2.0),
        "compute": (None, 0.25),
        "exclusive": (None, 3.0),
    }
    assert (unset.of_job("name"), said.of_job("name")) == (None, "train")


@pytest.mark.parametrize("text", ["0", "1.5", "-1", "nan", "half", "101%", ""])
def test_a_part_of_the_time_is_above_0_and_at_most_1(text):
    with pytest.raises(UsageError, match="no part of the time"):
        Settings({"GPUSHARE_COMPUTE": text}, {}).of_job("compute")


def test_a_view_is_read_again():
    spec = JobSpec("n", 7, "u", ("a", "b"), NOTHING, MAX, priority=2, lend=False, on_reclaim=(ReclaimStep.KILL,))
    shown = view(spec)
    assert shown["command"] == ["a", "b"] and shown["on_reclaim"] == ["kill"] and shown["grace"] is None
    assert not shown.keys() & {"request", "limit", "observe", "reservation", "min_run_time"}
    assert from_view({**shown, "state": "ended"}, request=NOTHING, limit=MAX) == spec
    assert from_view({**shown, "limit_source": None}, request=NOTHING, limit=MAX) == spec


def test_what_the_api_shows_of_a_job_and_takes_as_it_is():
    """The rest it makes of several fields, or keeps for itself."""
    shown = view(JobSpec("n", 7, "u", ("a",), NOTHING, MAX))
    assert set(shown) == {
        *("name", "uid", "user", "command", "priority", "grace", "on_reclaim", "lend", "compute", "exclusive"),
        *("request_source", "limit_source"),
    }
    taken = {"priority", "grace", "on_reclaim", "min_run_time", "lend", "compute", "exclusive"}
    assert set(plain_options()) == taken


def test_a_job_of_which_little_is_said_is_on_one_gpu_lends_and_may_be_stopped():
    spec = JobSpec("n", 7, "u", ("a",), NOTHING, MAX)
    assert (spec.gpus, spec.lend, spec.priority, spec.observe) == (1, True, 0, False)
    assert (spec.min_run_time, spec.compute, spec.exclusive, spec.idle_release) == (0.0, None, None, None)


def test_the_options_of_a_notebooks_kernel():
    """The program that starts it chooses its steps and times."""
    found = {name for name, option in OPTIONS.items() if option.for_kernels}
    assert found == {"request", "limit", "priority", "grace", "lend", "compute"}


@pytest.mark.parametrize(("name", "form"), [("priority", "i"), ("uid", "I")])
def test_a_whole_number_has_all_values_of_its_field_and_no_others(name, form):
    option = OPTIONS[name]
    for value in (option.least, int(option.most)):
        assert struct.unpack(form, struct.pack(form, value)) == (value,)
    for value in (option.least - 1, int(option.most) + 1):
        with pytest.raises(struct.error):
            struct.pack(form, value)
