"""Small functions that many commands use: close names, texts that are cut, reasons that are joined, rounded sizes."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from gpushare import killed, nearest, reasons, unixhttp
from gpushare.advice import limit_for
from gpushare.cli import top
from gpushare.client import Client, Events
from gpushare.printable import one_line, printable, shortened
from gpushare.reasons import Code, Mention, Text, Told, joined, words

MIB, GIB = 2**20, 2**30


# ---- names that are close --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "known", "found"),
    [
        ("tr", ["train", "tail", "trim"], ["train", "trim"]),
        ("t", ["train", "tail"], []),
        ("TR", ["Train"], ["Train"]),
        ("ab", ["ab1", "ab2", "ab3", "ab4"], ["ab1", "ab2", "ab3"]),
        ("limt", ["limit", "lime", "other"], ["limit", "lime"]),
        ("xyz", ["limit"], []),
    ],
)
def test_the_nearest_names(word, known, found):
    assert nearest.nearest(word, known) == found


@pytest.mark.parametrize(
    ("word", "known", "hint"),
    [
        ("xy", [], "there is none yet"),
        ("xy", ["a", "b"], "there are: a, b"),
        ("xy", list("abcdefgh"), "there are: a, b, c, d, e, f, g, h"),
        ("xy", list("abcdefghi"), "there are: a, b, c, d, e, f, g, h"),
        ("tra", ["train", "other"], "did you mean train?"),
        ("tra", ["train1", "train2"], "did you mean train1 or train2?"),
        ("tra", ["train1", "train2", "train3"], "did you mean train1, train2 or train3?"),
    ],
)
def test_what_there_is_or_what_was_meant(word, known, hint):
    assert nearest.what_there_is(word, known) == hint


# ---- texts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("most", "found"),
    [
        (0, []),
        (1, ["p"]),
        (6, ["python"]),
        (7, ["python"]),
        (8, ["python", "t"]),
        (15, ["python", "train.py"]),
        (16, ["python", "train.py"]),
        (17, ["python", "train.py", "-"]),
        (99, ["python", "train.py", "-x"]),
    ],
)
def test_a_command_line_is_cut_at_so_many_characters(most, found):
    assert shortened(["python", "train.py", "-x"], most) == found


def test_a_terminal_gets_no_control_characters():
    assert one_line("a\tb\nc\x1b") == "a\\tb\\nc\\x1b"
    assert printable("a\tb\nc\x1b\u202e") == "a\tb\nc\\x1b\\u202e"


def mention(name: str) -> Mention:
    return Mention(1000, name, None, None, None)


def test_words_without_a_mention_are_a_string_and_with_one_a_text():
    one = mention("x")
    assert words("a", "b", "c") == "abc" and words() == ""
    assert words("a", one, "b") == Text(("a", one, "b"))
    assert words(words("a", one), "b", words("c", "d")) == Text(("a", one, "b", "cd"))


def test_items_are_joined_with_what_is_between_them():
    one = mention("x")
    assert joined(", ", ["a", "b", "c"]) == "a, b, c" and joined(", ", ["a"]) == "a" and joined(", ", []) == ""
    assert joined(", ", ["a", one]) == Text(("a", ", ", one))
    with pytest.raises(TypeError, match="needs a reader"):
        str(joined(", ", ["a", one]))
    assert reasons.Code.RECLAIM == "reclaim"


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        (Told(Code.RECLAIM, "no room"), "no room"),
        (Told(Code.RECLAIM, "no room", hint="wait"), "no room\nhint: wait"),
        (
            Told(Code.RECLAIM, "no\nroom", (("free", "1 GiB"), ("in the way", "a\x1bb")), "wait"),
            "no\\nroom\n  free        1 GiB\n  in the way  a\\x1bb\nhint: wait",
        ),
    ],
)
def test_a_reason_is_lines_that_any_terminal_can_show(told, shown):
    assert told.render() == shown


# ---- amounts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("peak", "limit"),
    [
        (0, "0Gi"),
        (10 * MIB, "256Mi"),
        (256 * MIB * 10 // 11, "256Mi"),
        (256 * MIB, "512Mi"),
        (2 * GIB * 10 // 11, "2Gi"),
        (2 * GIB * 10 // 11 + 2, "3Gi"),
        (1500 * MIB, "1792Mi"),
        (int(3.5 * GIB), "4Gi"),
    ],
)
def test_the_limit_that_is_advised(peak, limit):
    assert limit_for(peak, 80 * GIB) == limit


def of(code: str) -> killed.Cause:
    return killed.cause(code)


def test_what_each_cause_means_for_who_reads_of_it():
    assert [
        (code, of(code).owes, of(code).again) for code in ("reclaim", "breach", "suspend_stuck", "later", None)
    ] == [
        ("reclaim", True, True),
        ("breach", False, False),
        ("suspend_stuck", False, True),
        ("later", True, True),
        (None, True, True),
    ]


@pytest.mark.parametrize(
    ("code", "how", "said"),
    [
        ("reclaim", "", "stopped to return borrowed memory: 1.0 GiB owed to train (ada)"),
        ("reclaim", " at 10:00", "stopped at 10:00 to return borrowed memory: 1.0 GiB owed to train (ada)"),
        ("breach", "", "stopped: it used more memory than its limit"),
        ("suspend_stuck", " here", "stopped here: it could not be brought back after a suspension"),
    ],
)
def test_an_end_in_one_line(code, how, said):
    end = {"code": code, "owner": "train", "owner_user": "ada", "asked": GIB, "usage": 2 * GIB}
    assert killed.stopped(end, how) == said


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("reclaim", "1.0 GiB owed to train (ada)"),
        ("breach", "used 2.0 GiB"),
        ("suspend_stuck", "could not be brought back"),
    ],
)
def test_an_end_in_a_column(code, said):
    end = {"code": code, "owner": "train", "owner_user": "ada", "asked": GIB, "usage": 2 * GIB}
    assert of(code).brief(end) == said


# ---- answers over HTTP ---------------------------------------------------------------------------------------


def fed(*pieces: bytes) -> tuple[unixhttp.Parser, bytes]:
    parser = unixhttp.Parser()
    return parser, b"".join(parser.feed(piece) for piece in pieces)


def test_no_content_is_complete_without_a_length():
    parser, body = fed(b"HTTP/1.1 204 No Content\r\n\r\n")
    assert (parser.status, parser.complete, body) == (204, True, b"")
    parser, body = fed(b"HTTP/1.1 200 OK\r\n\r\nabc")
    assert (parser.complete, body) == (False, b"abc")
    parser.end()
    assert parser.complete


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"])
def test_a_head_or_a_chunk_without_an_end_is_not_read_for_ever(head):
    parser, _ = fed(head, b"1" * (unixhttp.MAX_HEAD - 100))
    assert not parser.complete
    with pytest.raises(unixhttp.DaemonUnreachable):
        parser.feed(b"1" * 200)


# ---- what a client tells ----------------------------------------------------------------------------------------


def test_answers_of_helpers_go_to_their_jobs(monkeypatch, tmp_path):
    sent = []

    def exchange(path, method, target, body, timeout):
        sent.append((path, method, target, json.loads(body), timeout))
        return 200, b"{}"

    monkeypatch.setattr(unixhttp, "exchange", exchange)
    client = Client(tmp_path / "s", 3.0)
    client.suspender_answers("a1", {"number": 1})
    client.hook_answers("a/2", {"number": 2})
    assert sent == [
        (tmp_path / "s", "POST", "/v1/jobs/a1/suspender", {"number": 1}, 3.0),
        (tmp_path / "s", "POST", "/v1/jobs/a%2F2/hooks", {"number": 2}, 3.0),
    ]


def test_a_stream_that_cannot_be_asked_for_is_closed(monkeypatch, tmp_path):
    closed = []

    def sendall(_data):
        raise BrokenPipeError(32, "Broken pipe")

    connection = SimpleNamespace(sendall=sendall, close=lambda: closed.append(True))
    monkeypatch.setattr(unixhttp, "connect", lambda path, timeout: connection)
    with pytest.raises(unixhttp.DaemonUnreachable, match="Broken pipe"):
        Events(tmp_path / "s", "/v1/jobs/a/events", 1.0, dict)
    assert closed == [True]


# ---- keys of `top` ------------------------------------------------------------------------------------------------


JOBS = [{"id": id, "name": id, "since": 0, "gpus": []} for id in "abc"]


@pytest.mark.parametrize(
    ("before", "key", "readonly", "after"),
    [
        ({"selected": "b"}, "k", True, {"selected": "b", "note": "k is off: --readonly"}),
        ({}, "k", False, {"note": "select a job first: arrow keys"}),
        ({"selected": "b"}, "k", False, {"selected": "b", "asking": JOBS[1]}),
        ({"selected": "gone"}, "k", False, {"note": "select a job first: arrow keys"}),
        ({"selected": "b", "asking": JOBS[1]}, "y", False, {"selected": "b", "stop": JOBS[1]}),
        ({"selected": "b", "asking": JOBS[1]}, "Y", False, {"selected": "b", "stop": JOBS[1]}),
        ({"selected": "b", "asking": JOBS[1]}, "n", False, {"selected": "b"}),
        ({"selected": "b", "asking": JOBS[1]}, "q", False, {"selected": "b"}),
        ({"note": "x"}, "x", False, {}),
        ({"note": "x"}, "", False, {"note": "x"}),
        ({"help": True}, "q", False, {}),
        ({}, "h", False, {"help": True}),
        ({}, "q", False, {"over": True}),
        ({}, "gone", False, {"over": True}),
        ({}, "s", False, {"sort": "loan"}),
        ({"sort": "name"}, "s", False, {"sort": "usage"}),
        ({}, "a", False, {"sort": "age"}),
        ({}, "down", False, {"selected": "a"}),
        ({}, "up", False, {"selected": "c"}),
        ({"selected": "c"}, "down", False, {"selected": "c"}),
        ({"selected": "a"}, "up", False, {"selected": "a"}),
        ({"selected": "b"}, "escape", False, {}),
    ],
)
def test_what_a_key_does(before, key, readonly, after):
    assert top.press(top.View(**before), key, JOBS, readonly=readonly) == top.View(**after)
