"""What `gpushare run` warns of when a job starts."""

from __future__ import annotations

import pytest

from gpushare.start_warnings import start_warnings

JOB = {"grace": 5.0, "longest_grace": 28.0, "longest_protection": 26.0, "gpus": []}


@pytest.mark.parametrize(("seconds", "warned"), [(0.0, False), (26.0, False), (1800.0, True)])
def test_it_is_said_that_claims_may_fail_while_a_job_is_protected(seconds: float, warned: bool) -> None:
    """The settings allow it. A daemon that does not say how long claims wait is an older one."""
    found = list(start_warnings(JOB, {"min_run_time": seconds}))  # type: ignore[arg-type]
    assert len(found) == warned
    assert all("30 min" in one or "1800" in one or "30m" in one for one in found)
    assert not list(start_warnings({"grace": None, "gpus": []}, {"min_run_time": seconds}))  # type: ignore[typeddict-item]
