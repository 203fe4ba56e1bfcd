"""What a client sends, field by field: each has a type and bounds, and what is left over is refused by name."""

from __future__ import annotations

import json
import math

import pytest

from gpushare.errors import UsageError
from gpushare.job_spec import FOREVER, OPTIONS, JobSpec, plain_options
from gpushared.api.request_body import COMMAND, RequestBody, number, shortened

# Numbers, not the daemon's own names for them: that they stay is a part of what is tested.
MAX_TEXT = 4096

READ = {
    "text": lambda body: body.text("x", longest=3),
    "long text": lambda body: body.text("x"),
    "texts": lambda body: body.texts("x", most=2, longest=3),
    "any texts": lambda body: body.texts("x", most=2),
    "integer": lambda body: body.integer("x", -2, 5),
    "seconds": lambda body: body.seconds("x", 9.0),
    "share": lambda body: body.share("x"),
    "flag": lambda body: body.flag("x", True),
}
GOOD = [
    *(("text", value) for value in ("", "abc", "äöü")),
    ("long text", "a" * MAX_TEXT),
    *(("integer", value) for value in (-2, 0, 5)),
    *(("share", value) for value in (0.001, 1, 1.0)),
    *(("seconds", value) for value in (0, 0.5, 9)),
    *(("flag", value) for value in (True, False)),
]
BAD = [
    *(("text", value, "x is not a text of at most 3 characters") for value in ("abcd", "a\0", 1, ["a"], True)),
    ("long text", "a" * (MAX_TEXT + 1), f"x is not a text of at most {MAX_TEXT} characters"),
    *(("texts", value, "x is not a list of at most 2 texts") for value in ("a", [1], ["a", None], ["a"] * 3, {})),
    ("texts", ["abc", "abcd"], "x has a text of more than 3 characters"),
    *(("integer", value, "x is not a whole number from -2 to 5") for value in (-3, 6, 1.0, "1", True)),
    *(("seconds", value, "x is not a number of seconds from 0 to 9") for value in (-0.1, 9.1, math.nan, "1", True)),
    *(("share", value, "x is not a part of the whole") for value in (0, 1.01, -1, math.nan, "1", True)),
    *(("flag", value, "x is neither true nor false") for value in (0, 1, "true")),
]


@pytest.mark.parametrize(("kind", "value"), GOOD)
def test_what_is_within_the_bounds_is_taken(kind, value):
    body = RequestBody({"x": value, "y": None})
    assert body.has("x") and not body.has("y") and not body.has("z")
    assert READ[kind](body) == value
    body.text("y")
    body.finish({})


@pytest.mark.parametrize(("kind", "value", "says"), BAD)
def test_what_is_not_is_refused_in_words(kind, value, says):
    with pytest.raises(UsageError) as error:
        READ[kind](RequestBody({"x": value}))
    assert error.value.code == "bad_request" and error.value.message.startswith(says)


@pytest.mark.parametrize("kind", READ)
def test_what_is_null_or_left_out_is_the_default(kind):
    default = True if kind == "flag" else None
    assert READ[kind](RequestBody({"x": None})) is default and READ[kind](RequestBody({})) is default


def test_lists_of_texts():
    assert RequestBody({"x": ["abc", ""]}).texts("x", most=2, longest=3) == ("abc", "")
    assert READ["any texts"](RequestBody({"x": ["a" * 9999]})) == ("a" * 9999,)


@pytest.mark.parametrize("value", [None, [], "x", 1])
def test_a_body_is_an_object(value):
    with pytest.raises(UsageError, match="not a JSON object"):
        RequestBody(value)


def test_what_is_left_is_named_with_what_there_is():
    body = RequestBody({"x": 1, "zz": 1, "y" * 70: 1})
    body.integer("x", 0, 1)
    with pytest.raises(UsageError) as error:
        body.finish({"x": int, "w": int})
    assert error.value.code == "unknown_field" and error.value.hint == "there are: x, w"
    assert error.value.message == f"the request has an unknown field {'y' * 60!r}"


EXAMPLES = {
    "integer": 1,
    "seconds": 1.5,
    "share": 0.5,
    "text": "a",
    "texts": ["a", "b"],
    "steps": "term,kill",
    "amount": "1Gi",
}


@pytest.mark.parametrize("name", sorted(plain_options()))
def test_each_option_of_a_job_has_its_kind_and_its_default(name):
    kind, default = OPTIONS[name].kind, JobSpec._field_defaults[name]
    assert RequestBody({}).option(name) == default
    sent = not default if kind == "flag" else EXAMPLES[kind]
    got = RequestBody({name: sent}).option(name)
    if kind in ("steps", "amount"):
        assert got is not None and got != default
    else:
        assert got == (tuple(sent) if kind == "texts" else sent)
    with pytest.raises(UsageError):
        RequestBody({name: {}}).option(name)


@pytest.mark.parametrize(("text", "value"), [("0", 0), ("7", 7), ("07", 7), ("20", 20)])
def test_a_number_in_a_query(text, value):
    assert number(text, "n", 20) == value


@pytest.mark.parametrize("text", ["", "-1", "+1", "21", "1.0", "007", "٣", "1" * 5000])
def test_no_number_in_a_query(text):
    with pytest.raises(UsageError, match="is not a whole number from 0 to 20"):
        number(text, "n", 20)


def test_a_command_is_kept_as_far_as_there_is_room_for_it():
    assert shortened(["a", "b c"]) == ("a", "b c")
    assert shortened(["a" * (COMMAND - 4)]) == ("a" * (COMMAND - 4),), "with its quotes and the next one's comma"
    assert shortened(["a" * (COMMAND - 4), "b"]) == ("a" * (COMMAND - 4),)
    cut = shortened(["é" * COMMAND])
    assert len(cut) == 1 and 0 < len(cut[0]) <= COMMAND // 6 and set(cut[0]) == {"é"}
    many = shortened(["abc"] * COMMAND)
    assert len(many) == COMMAND // 7


# ---- the bounds of each call ------------------------------------------------------------------------

NUMBERS = {
    "POST /v1/jobs": {"gpus": (1, 64)},
    "PUT /v1/jobs/JOB/main": {"pid": (1, 2**22)},
    "PATCH /v1/jobs/JOB": {"priority": (-(2**31), 2**31 - 1)},
    "DELETE /v1/jobs/JOB": {"exit_code": (0, 255), "signal": (1, 64)},
    "POST /v1/jobs/JOB/hooks": {"number": (0, 2**53), "milliseconds": (0, 2**40)},
    "POST /v1/jobs/JOB/suspender": {"number": (0, 2**53), "milliseconds": (0, 2**40), "pid": (1, 2**22)},
    "POST /v1/reservations": {"gpus": (1, 64)},
    "PUT /v1/placements/p": {"attempt": (1, 2**62), "uid": (0, 2**32 - 2), "session": (2, 2**22), "holder": (2, 2**22)},
}
TEXTS = {
    "POST /v1/jobs": {
        **{"job": 16, "request": 64, "limit": 64, "request_source": 4096, "limit_source": 4096},
        **{"mode": 4096, "name": 256, "reservation": 64, "cwd": 4096},
    },
    "PATCH /v1/jobs/JOB": {"request": 64, "limit": 64},
    "POST /v1/jobs/JOB/hooks": {"problem": 300},
    "POST /v1/jobs/JOB/suspender": {"where": 16, "problem": 300},
    "POST /v1/reservations": {"request": 64, "name": 256},
    "PUT /v1/placements/p": {"request": 64, "limit": 64, "name": 256, "job": 16, "cgroup": 4096},
}
LISTS = {
    "POST /v1/jobs": {"devices": (64, 128), "command": (100_000, None)},
    "POST /v1/reservations": {"devices": (64, 128)},
    "PUT /v1/placements/p": {"gpus": (64, 128), "cgroups": (256, 4096)},
}
FLAGS = {
    "POST /v1/jobs/JOB/stop": ["now"],
    "PATCH /v1/jobs/JOB": ["dry_run"],
    "POST /v1/jobs/JOB/hooks": ["wakes"],
}
SECONDS = {"POST /v1/jobs": ["wait"], "POST /v1/reservations": ["lasting"]}
SOUND = {
    "PUT /v1/placements/p": {"attempt": 1, "uid": 1, "gpus": ["0"], "request": "1Gi"},
    "POST /v1/jobs/JOB/suspender": {"number": 1, "where": "running"},
}


def test_each_call_names_the_bounds_of_each_of_its_fields(daemon) -> None:
    job = daemon.client.register({"name": "train", "command": ["x"], "request": "1Gi", "limit": "2Gi"})["id"]

    def refusal(call: str, field: str, value: object) -> str:
        method, target = call.replace("JOB", job).split()
        body = json.dumps({**SOUND.get(call, {}), field: value}).encode()
        status, answer = daemon.http(method, target, body)
        error = json.loads(answer)["error"]
        assert (status, error["code"]) == (400, "bad_request"), (call, field, error)
        return str(error["message"])

    for call, fields in NUMBERS.items():
        for field, (least, most) in fields.items():
            for value in (least - 1, most + 1, "x"):
                assert refusal(call, field, value) == f"{field} is not a whole number from {least} to {most}"
    for call, longest in TEXTS.items():
        for field, length in longest.items():
            for value in (7, "x" * (length + 1)):
                assert refusal(call, field, value) == f"{field} is not a text of at most {length} characters"
    for call, lists in LISTS.items():
        for field, (most, each) in lists.items():
            assert refusal(call, field, "x") == f"{field} is not a list of at most {most} texts"
            if each is not None:
                assert refusal(call, field, ["x" * (each + 1)]) == f"{field} has a text of more than {each} characters"
    for call, flags in FLAGS.items():
        for field in flags:
            assert refusal(call, field, 1) == f"{field} is neither true nor false"
    for call, spans in SECONDS.items():
        for field in spans:
            for wrong in (-1, "x", FOREVER + 1):
                assert refusal(call, field, wrong) == f"{field} is not a number of seconds from 0 to {FOREVER:g}"
    assert [one["id"] for one in daemon.client.jobs()] == [job] and daemon.client.placements() == []
