"""What an answer of the daemon that is an error becomes in the client: its class, and so the command's exit status."""

from __future__ import annotations

import pytest

from gpushare.client import error_of


@pytest.mark.parametrize(
    ("status", "kind", "exit_code"),
    [
        (400, "UsageError", 2),
        (401, "NotPermitted", 4),
        (403, "NotPermitted", 4),
        (404, "NoSuchJob", 5),
        (409, "Refused", None),
        (500, "GpushareError", 1),
        (503, "DaemonUnreachable", 3),
        (504, "GpushareError", 1),
        (507, "NotNoted", None),
    ],
)
def test_each_status_is_an_error_of_its_kind_with_all_that_was_said(status, kind, exit_code):
    said = {"code": "odd", "message": "it is so", "facts": [["a", 1], ["b", "c"], ["alone"]], "hint": "do that"}
    error = error_of(status, {"error": said})
    assert type(error).__name__ == kind and exit_code in (None, error.exit_code)
    assert (error.message, error.code, error.hint) == ("it is so", "odd", "do that")
    assert list(error.facts) == [("a", "1"), ("b", "c")]


def test_what_is_not_said_is_left_out():
    error = error_of(403, {"error": {"message": "no", "hint": 7, "code": None, "facts": None}})
    assert (error.code, error.hint, list(error.facts)) == (type(error).code, None, [])


@pytest.mark.parametrize("value", [None, [], "x", {}, {"error": "no"}, {"error": {}}, {"error": {"message": 7}}])
def test_an_error_of_another_shape_is_no_answer_of_a_daemon(value):
    error = error_of(409, value)
    assert error.code == "garbage" and "is no gpushare daemon" in error.message
