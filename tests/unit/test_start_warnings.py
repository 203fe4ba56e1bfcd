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


MIB, GIB = 2**20, 2**30


@pytest.mark.parametrize(
    ("grace", "longest", "said"),
    [
        (30.0, 28.0, "the grace of 30 s is cut to 28 s: an owner's claim waits no longer for its memory"),
        (28.0, 28.0, None),
        (5.0, 28.0, None),
        (None, 28.0, None),
        (30.0, None, None),
    ],
)
def test_a_grace_that_is_cut_is_said(grace, longest, said):
    assert list(start_warnings({**JOB, "grace": grace, "longest_grace": longest}, {})) == ([said] if said else [])


@pytest.mark.parametrize(
    ("limit", "context", "said"),
    [
        (300 * MIB, 400 * MIB, True),
        (400 * MIB, 400 * MIB, False),
        (GIB, 400 * MIB, False),
        (300 * MIB, None, False),
    ],
)
def test_a_limit_below_a_context_is_said_of_each_gpu(limit, context, said):
    gpus = [{"index": 2, "limit": limit, **({} if context is None else {"context": context})}]
    words = (
        "a limit of 300.0 MiB is too small for CUDA on GPU 2: its context alone takes about 400.0 MiB;"
        " write --limit 1Gi or more"
    )
    assert list(start_warnings({**JOB, "gpus": gpus * 2}, {})) == ([words] * 2 if said else [])


def test_a_protection_that_is_no_number_is_none():
    assert list(start_warnings(JOB, {})) == []
