"""What `gpushare submit` makes of its options, and refuses before anything is queued; what logs and wait tell."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import ClassVar

import pytest

from gpushare.cli import logs, main, queued, submit
from gpushare.errors import CommandNotFound, UsageError

OPTIONS = {
    "gpus": "1",
    "name": None,
    "queue": None,
    "request": None,
    "limit": None,
    "priority": None,
    "min_run_time": None,
    "limit_time": None,
    "grace": None,
    "log": None,
    "array": None,
    "after": (),
    "hold": False,
    "requeue": True,
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A directory, and an environment with a place for output."""
    monkeypatch.chdir(tmp_path)
    return {"PATH": os.environ["PATH"], "XDG_STATE_HOME": str(tmp_path / "state"), "HOME": str(tmp_path)}


def made(environ, *command, **options):
    return submit.submission(command or ("true",), {**OPTIONS, **options}, environ)


def test_without_options_a_job_is_a_gpu_of_its_users_queue(here, tmp_path):
    before = os.umask(0o027)
    try:
        body = made(here)
    finally:
        assert os.umask(before) == 0o027, "it is only looked at"
    assert body["job"] == {"gpus": "1", "name": "true"}
    assert (body["array"], body["after"], body["hold"], body["requeue"]) == (None, [], False, True)
    run = body["run"]
    assert (run["command"], run["cwd"], run["env"], run["umask"]) == (["true"], str(tmp_path), here, 0o027)
    assert (run["time"], run["grace"]) == (None, None)
    assert run["output"] == str(tmp_path / "state" / "gpushare" / "logs" / "%j.log")
    assert (tmp_path / "state" / "gpushare" / "logs").stat().st_mode & 0o777 == 0o700


def test_each_option_is_in_its_place(here, tmp_path):
    said = {"name": "n", "queue": "q", "request": "25%", "limit": "80%", "priority": 7, "min_run_time": "5m"}
    body = made(here, **said, limit_time="8h", grace="30s", log="out/%j.log", array=3, after=("1", "2"), hold=True)
    assert body["job"] == {
        "gpus": "1",
        "name": "n",
        "queue": "q",
        "request": "25%",
        "limit": "80%",
        "priority": 7,
        "min_runtime": "5m",
    }
    assert (body["array"], body["after"], body["hold"]) == (3, ["1", "2"], True)
    assert (body["run"]["time"], body["run"]["grace"]) == (28800.0, 30.0)
    assert body["run"]["output"] == str(tmp_path / "out" / "%j.log")


@pytest.mark.parametrize(
    ("request_", "limit", "amounts"),
    [
        (None, None, (None, None)),
        ("25%", None, ("25%", None)),
        (None, "80%", ("80%", "80%")),
        (None, "max", ("100%", "100%")),
        ("max", None, ("100%", None)),
        ("max", "max", ("100%", "100%")),
        ("0.25", "max", ("0.25", "100%")),
        ("4Gi", "12Gi", ("4Gi", "12Gi")),
    ],
)
def test_amounts(request_, limit, amounts):
    assert submit._amounts(request_, limit) == amounts


@pytest.mark.parametrize(
    ("request_", "limit", "words", "hint"),
    [
        ("4Gi", "max", "--limit max beside --request 4Gi: they have different units", "in bytes, too"),
        ("4Gi", "50%", "--request 4Gi and --limit 50% have different units", "both in bytes"),
        ("25%", "4Gi", "--request 25% and --limit 4Gi have different units", "both as parts"),
        ("max", "4Gi", "--request 100% and --limit 4Gi have different units", "both"),
        ("none", None, "--request: a job of the queue needs memory", submit.AMOUNTS),
        (None, "none", "--limit: a job of the queue needs memory", submit.AMOUNTS),
        ("much", None, "--request: ", ""),
        (None, "4g", "--limit: ", "4Gi"),
    ],
)
def test_amounts_that_make_no_sense(request_, limit, words, hint):
    with pytest.raises(UsageError) as caught:
        submit._amounts(request_, limit)
    assert caught.value.message.startswith(words) and hint in caught.value.hint
    assert "none" not in caught.value.hint, "a job of the queue has memory"


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        ("jobs.yaml", "`gpushare cluster submit jobs.yaml`"),
        ("jobs.yml", "`gpushare cluster submit jobs.yml`"),
        ("trace.jsonl", "`gpushare cluster submit trace.jsonl`"),
        ("tarin", ""),
    ],
)
def test_a_program_that_is_not_there_is_not_queued(here, command, hint):
    with pytest.raises(CommandNotFound) as caught:
        made(here, command)
    assert hint in (caught.value.hint or "") and bool(caught.value.hint) is bool(hint)


@pytest.mark.parametrize(
    ("command", "noted"),
    [
        (("python3", "tarin.py"), "there is no tarin.py here now"),
        (("sh", "run.sh"), "there is no run.sh here now"),
        (("python3", "train.py"), ""),
        (("python3", "-c"), ""),
        (("python3",), ""),
        (("true", "tarin.py"), ""),
    ],
)
def test_a_script_that_is_not_there_is_a_note(here, tmp_path, capsys, command, noted):
    (tmp_path / "train.py").touch()
    made(here, *command)
    err = capsys.readouterr().err
    assert noted in err and bool(err) is bool(noted)


@pytest.mark.parametrize(
    ("command", "name"),
    [(("python", "a b.py"), "a_b"), (("x" * 300,), "x" * 200), (("/bin/a\tb",), "a_b"), (("a\x1bb",), "a_b")],
)
def test_the_name_of_a_job_has_letters_alone(command, name):
    assert submit._name_of(command) == name


def test_from_a_directory_that_is_gone_nothing_is_queued(here, tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    with pytest.raises(UsageError, match="the current directory does not exist any more"):
        made(here)
    os.chdir(tmp_path)


# ---- where its output goes ------------------------------------------------------------------------------------


def logged(tmp_path, wanted, **environ):
    return submit._log(wanted, str(tmp_path), environ)


def test_a_log_that_is_named(tmp_path):
    (tmp_path / "old.log").touch()
    assert logged(tmp_path, "new.log") == str(tmp_path / "new.log")
    assert logged(tmp_path, "old.log") == str(tmp_path / "old.log")
    assert logged(tmp_path, "deep/er/new.log") == str(tmp_path / "deep" / "er" / "new.log"), "folders are made"
    assert logged(tmp_path, f"{tmp_path}/a.log") == str(tmp_path / "a.log")


@pytest.mark.parametrize(
    ("wanted", "words", "hint"),
    [
        ("", "--log: the name of the file is empty", "write --log run-%j.log"),
        ("folder", "--log: {}/folder is a directory", "name a file in it: --log folder/%j.log"),
        ("link.log", "--log: {}/link.log is no regular file", "name another file"),
        ("lost.log", "--log: {}/lost.log is no regular file", "name another file"),
        ("pipe", "--log: {}/pipe is no regular file", "name another file"),
        ("file/x.log", "--log: {}/file/x.log cannot be written: {}/file is no directory", "name another file"),
    ],
)
def test_a_log_that_could_not_be_opened_later_is_refused_now(tmp_path, wanted, words, hint):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "link.log").symlink_to(tmp_path / "file")
    (tmp_path / "lost.log").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError) as caught:
        logged(tmp_path, wanted)
    assert caught.value.message == words.replace("{}", str(tmp_path)) and caught.value.hint == hint


def test_a_folder_of_somebody_else(tmp_path, monkeypatch):
    (tmp_path / "theirs").mkdir()
    monkeypatch.setattr(submit.os, "access", lambda path, mode: path != tmp_path / "theirs")
    with pytest.raises(UsageError, match="theirs is not yours to write to"):
        logged(tmp_path, "theirs/x.log")
    assert logged(tmp_path, "x.log")
    monkeypatch.setattr(submit.os, "access", lambda path, mode: False)
    with pytest.raises(UsageError, match="logs is not yours to write to"):
        logged(tmp_path, None, XDG_STATE_HOME=str(tmp_path / "state"))


def test_the_place_of_output_that_nobody_named(tmp_path):
    (tmp_path / "home").mkdir()
    home = str(tmp_path / "home")
    assert logged(tmp_path, None, HOME=home) == f"{home}/.local/state/gpushare/logs/%j.log"
    assert (
        logged(tmp_path, None, HOME=home, XDG_STATE_HOME="not/absolute") == f"{home}/.local/state/gpushare/logs/%j.log"
    )
    state = str(tmp_path / "state")
    assert logged(tmp_path, None, XDG_STATE_HOME=state) == f"{state}/gpushare/logs/%j.log", "without a home"


@pytest.mark.parametrize(
    ("environ", "why"),
    [
        ({}, "you have no home directory (HOME is not set)"),
        ({"HOME": "/nowhere/at/all"}, "your home directory /nowhere/at/all is not there"),
        ({"HOME": "relative"}, "your home directory relative is not there"),
    ],
)
def test_without_a_place_the_way_out_is_told(tmp_path, environ, why):
    with pytest.raises(UsageError) as caught:
        logged(tmp_path, None, **environ)
    assert caught.value.message == f"no place for its output: {why}"
    assert caught.value.hint == "name one: --log /scratch/logs/%j.log"


def test_a_place_that_cannot_be_made(tmp_path):
    (tmp_path / "state").touch()
    with pytest.raises(UsageError, match=r"cannot make .*/state/gpushare/logs: Not a directory") as caught:
        logged(tmp_path, None, XDG_STATE_HOME=str(tmp_path / "state"))
    assert caught.value.hint == "name one: --log /scratch/logs/%j.log"


# ---- the answer, the log and the end ----------------------------------------------------------------------------


def job(id="7", state="running", **more):
    base = {
        "id": id,
        "name": "train",
        "user": "ada",
        "state": state,
        "array": None,
        "index": None,
        "asks": [{"least": 1, "most": None}],
        "started": 10.0,
        "ended": None,
        "tasks": [{"gpus": [0]}] if state == "running" else [],
        "result": None,
        "reason": None,
    }
    return base | more


def ended(id="7", how="done", exit=0, **more):
    result = {"how": how, "exit": exit, "text": ""}
    return job(id, "ended", ended=13.0, result=result, **more)


@pytest.fixture
def service(monkeypatch):
    """`moments`: by id, what the job is each time that it is looked at."""
    one = SimpleNamespace(moments={}, sent=[], never={}, meanwhile=[])
    one.submitted = lambda body: one.sent.append(body) or {"id": "7", "never": one.never}

    def until(_client, id, meanwhile=lambda: None):
        for moment in one.moments[id]:
            meanwhile()
            yield moment

    monkeypatch.setattr(queued, "service", lambda: one)
    monkeypatch.setattr(queued, "until", until)
    monkeypatch.setattr(queued, "named", lambda client, name: [one.moments[id][0] for id in name.split("+")])
    return one


def told(capsys, *words, code=0):
    assert main(list(words)) == code
    return capsys.readouterr()


def test_the_id_is_the_output_and_what_can_never_start_a_note(service, here, monkeypatch, capsys):
    for name, value in here.items():
        monkeypatch.setenv(name, value)
    found = told(capsys, "submit", "--", "true")
    assert (found.out, found.err) == ("7\n", "") and service.sent[0]["run"]["command"] == ["true"]
    service.never = {"7": {"message": "it asks for 9 GPUs"}}
    found = told(capsys, "submit", "--", "true")
    assert found.out == "7\n"
    assert "as it is it can never start: it asks for 9 GPUs; take it back: `gpushare cancel 7`" in found.err


def test_wait_tells_how_each_ended_and_has_the_status_of_the_first_that_failed(service, capsys):
    service.moments = {"7": [job(), ended()], "8": [ended("8", "failed", 3)], "9": [ended("9", "failed", 4)]}
    found = told(capsys, "wait", "7", "8+9", code=3)
    assert found.out.splitlines() == [
        "job 7 (train) is done after 3 s",
        "job 8 (train) has failed after 3 s: exit status 3",
        "job 9 (train) has failed after 3 s: exit status 4",
    ]
    assert told(capsys, "wait", "-q", "7").out == ""


def test_wait_names_a_job_that_is_held_once_for_each_reason(service, capsys):
    held = [job(state="held", reason={"message": words}) for words in ("by ada", "by ada", "by root")]
    service.moments = {"7": [*held, ended()]}
    lines = told(capsys, "wait", "7").err.splitlines()
    assert [line.partition("by itself: ")[2] for line in lines] == [
        "by ada; `gpushare release 7`, or `gpushare cancel 7`",
        "by root; `gpushare release 7`, or `gpushare cancel 7`",
    ]
    assert told(capsys, "wait", "-q", "7").err == ""


def test_wait_no_longer_than_it_is_told(service, capsys, monkeypatch):
    from gpushare.cli import wait

    now = [100.0]
    monkeypatch.setattr(wait.time, "monotonic", lambda: now[0])

    def moments():
        for _ in range(5):
            now[0] += 1.0
            yield job()

    service.moments = {"7": [job()]}
    monkeypatch.setattr(queued, "until", lambda client, id: moments())
    found = told(capsys, "wait", "--time", "3s", "7", code=124)
    assert "job 7 has not ended: it is running" in found.err and now[0] == 103.0


class Grows:
    """Its log, piece by piece."""

    pieces: ClassVar[list[bytes]] = []

    def __init__(self, path, last) -> None:
        self.path, self.last = path, last

    def read(self) -> bytes:
        return Grows.pieces.pop(0) if Grows.pieces else b""


@pytest.fixture
def log(monkeypatch):
    monkeypatch.setattr(queued, "Tail", Grows)
    monkeypatch.setattr(queued, "log_files", lambda job: ["/log"])
    Grows.pieces = []
    return Grows


def test_logs_are_shown_as_they_are(service, log, capsysbinary):
    service.moments = {"7": [job()]}
    log.pieces = [b"a\x1b[1mb\xff\n"]
    assert main(["logs", "7"]) == 0
    found = capsysbinary.readouterr()
    assert (found.out, found.err) == (b"a\x1b[1mb\xff\n", b"")


@pytest.mark.parametrize(
    ("now", "noted"),
    [
        (job(state="pending", reason={"message": "it waits for a GPU"}), "has not started: it waits for a GPU"),
        (job(), ""),
        (ended(), ""),
    ],
)
def test_why_there_is_no_output(service, log, capsys, now, noted):
    service.moments = {"7": [now]}
    err = told(capsys, "logs", "7").err
    assert noted in err and bool(err) is bool(noted)


def test_what_is_there_now_is_all_that_is_shown(service, log, capsys):
    service.moments = {"7": [job()]}
    log.pieces = [b"one\n", b"two\n"]
    assert logs.show("7", follow=False, last=None) == job()
    assert capsys.readouterr().out == "one\n"


@pytest.mark.parametrize(("jobs", "words"), [(["7"], "cancelled x\n"), (["7", "8"], "cancelled x: 2 jobs\n")])
def test_how_many_jobs_are_taken_back(service, capsys, jobs, words):
    asked = []
    service.cancel = lambda name, now: asked.append((name, now)) or {"jobs": jobs}
    assert told(capsys, "cancel", "x").out == told(capsys, "cancel", "--now", "x").out == words
    assert asked == [("x", False), ("x", True)]


def test_logs_are_followed_to_the_end_of_the_job(service, log, capsys):
    waits = job(state="pending", reason={"message": "it waits for a GPU"})
    service.moments = {"7": [waits, waits, job(), ended(), job()]}
    log.pieces = [b"", b"", b"", b"", b"one\n", b"two\n", b"three\n", b"four\n"]
    shown = logs.show("7", follow=True, last=None)
    found = capsys.readouterr()
    assert shown["state"] == "ended", "no further"
    assert found.out == "one\ntwo\nthree\nfour\n"
    assert found.err.count("has not started") == 1


def test_the_log_of_one_job_at_a_time(service, log, capsys):
    service.moments = {str(number): [job(str(number))] for number in range(10, 20)}
    found = told(capsys, "logs", "+".join(service.moments), code=2)
    assert "is 10 jobs" in found.err and "name one of them: 10, 11, 12, 13, 14, 15, 16, 17\n" in found.err
