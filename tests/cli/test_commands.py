"""The commands that look and change, against a daemon that is only its API."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time

import pytest
from fake_api import GIB, UUID, make_job, refusal

from gpushare.cli import output, ps
from gpushare.cli import status as status_command
from gpushare.client import Client
from gpushare.paths import SYSTEM_DIR


@pytest.fixture
def busy(fake):
    """A borrower and an owner on one GPU."""
    base = {"gpus": 1, "priority": 0, "lend": True, "grace": None, "request_source": "--request"}
    borrower = make_job(
        "a1b2c3d4e5f60718",
        {**base, "name": "train", "command": ["python", "train.py"], "request": "4Gi", "limit": "14Gi"}
        | {"limit_source": "GPUSHARE_LIMIT=14Gi"},
    )
    borrower["state"] = "borrowing"
    borrower["gpus"][0] |= {"usage": 12 * GIB, "loan": 8 * GIB, "peak": 13 * GIB, "grantable": 2 * GIB}
    borrower["processes"] = [{"pid": 4121, "command": "python", "gpus": {UUID.format(0): 12 * GIB}}]
    owner = make_job(
        "b7b7b7b7b7b7b7b7",
        {**base, "name": "nb-2", "command": ["jupyter", "lab"], "request": "8Gi", "limit": "8Gi", "limit_source": ""},
    )
    owner["uid"], owner["user"] = os.getuid() + 1, "bob"
    fake.jobs = {job["id"]: job for job in (borrower, owner)}
    fake.unmanaged = 300 * 2**20
    return fake


def columns(table: str) -> list[list[str]]:
    return [re.split(r" {2,}", line.strip()) for line in table.splitlines()]


def test_ps(gpushare, busy):
    code, out, err = gpushare("ps")
    assert (code, err) == (0, "")
    assert columns(out) == [
        ["GPU", "JOB", "USER", "PID", "AGE", "USAGE", "REQUEST", "LIMIT", "LOAN", "STATE", "COMMAND"],
        *(
            [
                *("0", "train", "alice", "4121", "1m15s", "12.0 GiB", "4.0 GiB", "14.0 GiB", "8.0 GiB"),
                *("borrowing", "python train.py"),
            ],
            ["0", "nb-2", "bob", "-", "1m15s", "0 B", "8.0 GiB", "8.0 GiB", "-", "running", "jupyter lab"],
        ),
    ]


def test_ps_is_not_cut_when_piped(gpushare, busy, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    job = busy.jobs["a1b2c3d4e5f60718"]
    job["command"] = ["python", "x" * 300]
    assert f"python {'x' * 300}\n" in gpushare("ps")[1]


def test_ps_wide(gpushare, busy):
    row = columns(gpushare("ps", "-o", "wide")[1])[1]
    assert row[10:17] == ["a1b2c3d4e5f60718", "0", "13.0 GiB", "-", "-", UUID.format(0), "GPUSHARE_LIMIT=14Gi"]


def test_ps_json(gpushare, busy):
    code, out, _ = gpushare("ps", "-o", "json")
    found = json.loads(out)
    assert (code, found["schema"]) == (0, "gpushare.ps/1")
    assert [job["name"] for job in found["jobs"]] == ["train", "nb-2"]
    assert gpushare("ps", "--json")[1] == out
    lines = [json.loads(line) for line in gpushare("ps", "-o", "jsonl")[1].splitlines()]
    assert [(line["schema"], line["name"]) for line in lines] == [("gpushare.ps/1", "train"), ("gpushare.ps/1", "nb-2")]


def test_ps_of_a_job_that_waits_for_a_gpu(gpushare, busy):
    busy.jobs["b7b7b7b7b7b7b7b7"] |= {"gpus": [], "state": "queued"}
    row = columns(gpushare("ps")[1])[2]
    assert (row[0], row[1], row[9]) == ("-", "nb-2", "queued")


def test_ps_of_jobs_that_have_ended(gpushare, busy):
    outcome = {"exit_code": 3, "signal": None, "killed": None, "peak": {UUID.format(0): 9 * GIB}, "refusals": 0}
    gone = busy.jobs["b7b7b7b7b7b7b7b7"]
    gone |= {"state": "ended", "outcome": outcome | {"duration": 75.4}}
    assert [row[1] for row in columns(gpushare("ps")[1])[1:]] == ["train"]

    def shown() -> list[str]:
        return columns(gpushare("ps", "-a")[1])[2]

    assert shown()[4:10] == ["1m15s", "9.0 GiB", "8.0 GiB", "8.0 GiB", "-", "exit 3"]
    killed = {"code": "reclaim", "claim": "x", "owner": None, "owner_user": None, "asked": 1, "got": 1, "loan": 1}
    killed |= {"usage": 1, "request": 0, "grace": 5.0, "reason": "", "time": 0.0}
    for change, state in (
        ({"signal": 9, "exit_code": None}, "SIGKILL"),
        ({"signal": 64, "exit_code": None}, "SIGRTMAX"),
        ({"exit_code": None}, "ended"),
        ({"killed": killed}, "reclaimed"),
        ({"killed": killed | {"code": "breach"}}, "over limit"),
    ):
        gone["outcome"] = outcome | {"duration": 75.4} | change
        assert shown()[9] == state
    assert [job["state"] for job in json.loads(gpushare("ps", "-a", "--json")[1])["jobs"]] == ["borrowing", "ended"]


def test_ps_of_one_user_or_gpu(gpushare, busy):
    def names(*arguments: str) -> list[str]:
        return [row[1] for row in columns(gpushare("ps", *arguments)[1])[1:]]

    assert names("--user", "bob") == ["nb-2"] == names("--user", str(os.getuid() + 1))
    assert names("--gpu", "0") == ["train", "nb-2"] == names("--gpu", UUID.format(0)[:12].lower())
    code, out, err = gpushare("ps", "--gpu", "7")
    assert (code, out) == (2, "")
    assert err == "gpushare: this node has no GPU '7'\n\nhint: there are: 0; see `gpushare status`\n"
    assert json.loads(gpushare("ps", "--user", "carol", "-o", "json")[1])["jobs"] == []


@pytest.mark.parametrize(
    ("wanted", "gpus"),
    [
        ("0", [0]),
        ("1", [1]),
        ("12", []),  # a number is a number, even where a UUID begins with it
        ("GPU-12", [0]),
        ("gpu-", [0]),
        ("12ab", [1]),
        ("12AB34", [1]),
        ("2ab", []),
    ],
)
def test_a_gpu_is_named_by_its_number_or_the_beginning_of_its_uuid(wanted, gpus):
    uuids = ["GPU-12", "12ab34"]
    assert [index for index, uuid in enumerate(uuids) if ps._is(wanted, index, uuid)] == gpus


@pytest.mark.parametrize(
    ("width", "titles"),
    [
        (200, "GPU JOB USER PID AGE USAGE REQUEST LIMIT LOAN STATE COMMAND"),
        (80, "GPU JOB USER PID AGE USAGE REQUEST LIMIT LOAN STATE"),
        (66, "GPU JOB USER USAGE REQUEST LIMIT LOAN STATE"),
        (40, "GPU JOB USAGE LOAN STATE"),
        (10, "GPU JOB USAGE STATE"),
    ],
)
def test_a_narrow_terminal_shows_less_and_never_half_a_column(busy, width, titles):
    shown = ps.rows(busy.jobs["a1b2c3d4e5f60718"])
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in output.table([*ps.COLUMNS, ps.COMMAND], shown, width)]
    assert lines[0].split() == titles.split()
    assert len(lines) == 2 and "12.0 GiB" in lines[1] and "borrowing" in lines[1]
    assert max(map(len, lines)) <= max(width, 35)


def test_what_a_user_asks_for_is_wrapped_and_not_left_out(gpushare, busy, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    out = gpushare("ps", "-o", "wide")[1]
    assert "a1b2c3d4e5f60718" in out and UUID.format(0) in out and "4121" in out
    out = gpushare("status")[1]
    assert "[####" not in out and "3.2 GiB" in out
    out = gpushare("status", "-o", "wide")[1]
    assert "[######" in out and "3.2 GiB" in out and ".....]" in out and "gpushare …" in out


def test_ps_without_jobs(gpushare, fake):
    assert gpushare("ps") == (0, "", "no jobs\n")


def test_status(gpushare, busy):
    code, out, err = gpushare("status")
    assert (code, err) == (0, "")
    head, _, titles, row, _, legend, jobs = out.splitlines()
    assert head == "gpushared 0.1.0 (software driver), up 3m20s, 2 jobs"
    assert titles.split()[:8] == ["GPU", "NAME", "TOTAL", "CAPACITY", "REQUESTED", "USAGE", "LENT", "FREE"]
    assert columns(row)[0] == [
        *("0", "gpushare software GPU", "16.0 GiB", "15.5 GiB", "12.0 GiB", "12.0 GiB", "8.0 GiB", "3.2 GiB"),
        *("300.0 MiB", "ok", "[######++++++++++++!.....]"),
    ]
    assert legend == "# guaranteed  + borrowed  ! outside gpushare  . free"
    assert jobs == "jobs: 1 borrowing, 1 running"
    assert json.loads(gpushare("status", "-o", "json")[1])["schema"] == "gpushare.status/1"


def test_what_is_wrong_with_a_gpu_is_said(gpushare, busy):
    ailment = {"state": "sick", "cause": "xid_48", "text": "Xid 48, double-bit ECC error", "hint": "reset it"}
    busy.health = {"state": "sick", "shortfall": 0, "ailments": [ailment | {"facts": {}}]}
    out = gpushare("status")[1]
    assert columns(out.splitlines()[3])[0][9] == "sick"
    said = ["GPU 0 is sick: Xid 48, double-bit ECC error", "  hint: reset it"]
    assert out.splitlines()[-2:] == said
    assert [line.strip() for line in gpushare("explain")[1].splitlines()[1:3]] == [line.strip() for line in said]
    wide = gpushare("ps", "-o", "wide")[1]
    assert wide.splitlines()[0].split()[-3:-1] == ["GPU", "HEALTH"]
    assert columns(wide)[1][17] == "ok", "as the job's own line says it"
    checks = {check["id"]: check for check in json.loads(gpushare("doctor", "--json")[1])["checks"]}
    assert checks["GS13"]["state"] == "fail"
    assert checks["GS13"]["detail"] == "GPU 0 is sick: Xid 48, double-bit ECC error"
    busy.health = {"state": "ok", "shortfall": 0, "ailments": []}
    checks = {check["id"]: check for check in json.loads(gpushare("doctor", "--json")[1])["checks"]}
    assert checks["GS13"]["detail"] == "1 GPU is well"


def test_explain(gpushare, busy):
    code, out, _ = gpushare("explain")
    assert code == 0
    assert out.splitlines() == [
        "GPU 0 (gpushare software GPU): 3.2 GiB free of 15.5 GiB, 12.0 GiB used by jobs (8.0 GiB of it lent),"
        " 300.0 MiB outside gpushare",
        "",
        "no job waits for memory",
    ]


def record(text: str, name: str | None = None) -> dict:
    return {"time": time.time(), "event": "e", "gpu": None, "job": None, "name": name, "text": text, "facts": {}}


def test_explain_ends_with_the_latest_events(gpushare, busy):
    busy.records = [record(f"event {number}", "train" if number % 2 else None) for number in range(25)]
    busy.records.append(record("asked back\n  5.0 GiB\n  in 10 s", "nb-2"))
    lines = gpushare("explain")[1].splitlines()
    assert lines[2:5] == ["no job waits for memory", "", "latest events (`gpushare events -n 1000` lists more)"]
    told = [line[8:] for line in lines[5:]]
    assert told[:2] == ["  event 6", "  train: event 7"], "the last twenty, with the jobs' names"
    assert told[-4:] == ["  event 24", "  nb-2: asked back", "    5.0 GiB", "    in 10 s"]
    assert len(told) == 20 + 2
    busy.records = []
    assert gpushare("explain")[1].splitlines()[-1] == "no job waits for memory"


def test_explain_a_job(gpushare, busy):
    busy.records = [
        {
            "time": time.time(),
            "event": "admitted",
            "gpu": None,
            "job": "a1",
            "name": "train",
            "text": "admitted",
            "facts": {},
        },
        {
            "time": time.time(),
            "event": "asked_back",
            "gpu": None,
            "job": "a1",
            "name": "train",
            "text": "asked back\n  5.0 GiB",
            "facts": {},
        },
    ]
    for name in ("train", "a1b2", "4121"):
        code, out, _ = gpushare("explain", name)
        assert code == 0
        lines = out.splitlines()
        assert lines[0] == "job train (a1b2c3d4e5f60718) of alice: borrowing"
        assert lines[1] == (
            "  GPU 0  uses 12.0 GiB, 8.0 GiB of it on loan; request 4.0 GiB, limit 14.0 GiB; could get 2.0 GiB more now"
        )
        assert [line[8:] for line in lines[3:]] == ["  admitted", "  asked back", "    5.0 GiB"]
    assert json.loads(gpushare("explain", "train", "-o", "json")[1])["schema"] == "gpushare.explain/1"


def test_explain_says_what_a_stopped_job_can_do(gpushare, busy):
    stopped = busy.jobs["a1b2c3d4e5f60718"]
    stopped["state"] = "stopped"
    says = "  stopped by Ctrl-Z or SIGSTOP: `fg` in its shell or `kill -CONT` continues it"
    lines = gpushare("explain", "train")[1].splitlines()
    assert lines[2] == says + "; until then it cannot act when its loan is wanted back"
    stopped["gpus"][0]["loan"] = 0
    assert gpushare("explain", "train")[1].splitlines()[2] == says


def test_set(gpushare, busy):
    code, out, _ = gpushare("set", "train", "--limit", "10Gi", "--priority", "2")
    assert code == 0
    assert out.splitlines() == [
        "job train (a1b2c3d4e5f60718)",
        "  priority  0 → 2",
        "  GPU 0     request 4.0 GiB   limit 14.0 GiB → 10.0 GiB",
        "nothing is asked back",
    ]
    assert busy.jobs["a1b2c3d4e5f60718"]["gpus"][0]["limit"] == 10 * GIB


def test_set_dry_run_changes_nothing(gpushare, busy):
    code, out, _ = gpushare("set", "4121", "--limit", "25%", "--dry-run")
    assert code == 0
    assert "would change" in out
    assert busy.jobs["a1b2c3d4e5f60718"]["gpus"][0]["limit"] == 14 * GIB
    assert json.loads(gpushare("set", "train", "--limit", "25%", "--dry-run", "--json")[1])["dry_run"] is True


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["set", "train"], 2, "nothing to change"),
        (["set", "train", "--limit", "4g"], 2, "--limit: cannot read '4g'"),
        (["set", "train", "--request", "15Gi"], 1, "the request is above the limit"),
        (["set", "nobody", "--limit", "4Gi"], 5, "no job nobody"),
        (["explain", "nobody"], 5, "no job nobody"),
        (["explain", "99999"], 5, "no job 99999"),
        (["ps", "-o", "xml"], 2, "'xml'"),
        (["nonsense"], 2, "no such command"),
        ([], 2, "Usage: gpushare"),
    ],
)
def test_errors(gpushare, busy, arguments, code, says):
    found, out, err = gpushare(*arguments)
    assert found == code
    assert says in err
    assert out == ""


def test_not_permitted_is_4(gpushare, busy, monkeypatch):
    answer = refusal(403, "not_permitted", "job nb-2 belongs to bob")
    monkeypatch.setattr(busy, "_on_job", lambda method, *_: answer)
    assert gpushare("set", "nb-2", "--limit", "4Gi") == (4, "", "gpushare: job nb-2 belongs to bob\n")


@pytest.mark.parametrize("command", ["ps", "status", "explain", "set x --limit 1Gi", "daemon status", "daemon stop"])
def test_no_daemon_is_3(gpushare, environ, command, monkeypatch):
    monkeypatch.setattr("gpushare.locate.SYSTEM_DIR", SYSTEM_DIR / "nowhere")
    code, out, err = gpushare(*command.split())
    assert (code, out) == (3, "")
    assert err.startswith("gpushare: no daemon runs on this node\n")


@pytest.mark.parametrize("garbage", [b"garbage\n", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", b""])
@pytest.mark.parametrize("command", ["ps", "status", "explain"])
def test_garbage_is_3_and_no_traceback(gpushare, fake, command, garbage):
    fake.garbage = garbage
    code, out, err = gpushare(command)
    assert (code, out) == (3, "")
    assert err.startswith("gpushare: ")


def test_an_answer_that_lacks_something_names_it(gpushare, busy):
    del busy.jobs["a1b2c3d4e5f60718"]["gpus"][0]["loan"]
    code, _, err = gpushare("ps")
    assert code == 3
    assert "$.jobs[0].gpus[0].loan is missing" in err


def test_a_socket_that_we_may_not_open(fake, tmp_path):
    """Tried as somebody else, which takes root; the error must name the socket and not be a traceback."""
    if os.getuid() != 0:
        pytest.skip("needs root to become somebody else")
    from gpushare.client import Client
    from gpushare.errors import DaemonUnreachable

    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgid(65534)
            os.setuid(65534)
            Client(fake.socket).version()
        except DaemonUnreachable as error:
            os.write(writer, error.message.encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)
    with os.fdopen(reader) as said:
        assert said.read() == f"cannot talk to the daemon at {fake.socket}: Permission denied"


def test_a_file_in_the_sockets_place(gpushare, environ, tmp_path, monkeypatch):
    (tmp_path / "api.sock").touch()
    monkeypatch.setenv("GPUSHARE_SOCKET", str(tmp_path / "api.sock"))
    code, _, err = gpushare("ps")
    assert code == 3
    assert str(tmp_path / "api.sock") in err


def test_a_relative_socket_is_refused(gpushare, environ, monkeypatch):
    monkeypatch.setenv("GPUSHARE_SOCKET", "api.sock")
    assert gpushare("ps")[0] == 2


def test_daemon_status(gpushare, fake):
    code, out, _ = gpushare("daemon", "status")
    assert code == 0
    assert out == f"gpushared 0.1.0 (pid {os.getpid()}, user, driver sim), up 3m20s\n  {fake.socket}\n"
    assert json.loads(gpushare("daemon", "status", "-o", "json")[1])["socket"] == str(fake.socket)


def test_the_systems_daemon_is_not_stopped_from_here(gpushare, fake):
    fake.scope = "system"
    code, _, err = gpushare("daemon", "stop")
    assert code == 1
    assert "systemctl stop gpushared" in err


@pytest.mark.parametrize(
    ("lasting", "words"), [("0s", "--for 0s reserves nothing"), ("soon", "--for: cannot read 'soon' as a duration")]
)
def test_a_reservation_for_no_time(gpushare, fake, lasting, words):
    code, _, err = gpushare("reserve", "1Gi", "--for", lasting)
    assert code == 2
    assert words in err
    assert "hint: " in err


def test_a_reservation_of_nothing_is_told_what_can_be_reserved(gpushare, fake):
    code, _, err = gpushare("reserve", "0")
    assert code == 2 and "AMOUNT: cannot read '0' as an amount of memory: nothing" in err
    assert "hint: write at least 1Mi\n" in err and "none" not in err
    assert not [path for method, path, _ in fake.calls if method == "POST"]


def test_a_socket_where_nobody_listens_names_what_says_so(gpushare, environ, tmp_path, monkeypatch):
    monkeypatch.setenv("GPUSHARE_SOCKET", str(tmp_path / "none.sock"))
    code, _, err = gpushare("ps")
    assert code == 3
    assert f"hint: start it, or take away what names it: GPUSHARE_SOCKET={tmp_path / 'none.sock'}" in err


def test_events_of_a_job_that_has_none(gpushare, fake, monkeypatch):
    monkeypatch.setattr("gpushare.client.Client.records", lambda *_: [])
    assert gpushare("events", "--job", "nobody") == (0, "", "no events of a job 'nobody'\n")


def test_daemon_has_no_other_commands(gpushare, fake):
    code, _, err = gpushare("daemon", "restart")
    assert code == 2
    assert "no such command 'daemon restart'" in err


def test_daemon_runs_gpushared(environ):
    command = [sys.executable, "-m", "gpushare", "daemon", "--help-daemon"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert result.returncode == 0
    assert "--user" in result.stdout


def test_doctor(gpushare, busy):
    code, out, _ = gpushare("doctor", "-o", "json")
    found = json.loads(out)
    assert found["schema"] == "gpushare.doctor/1"
    checks = {check["id"]: check for check in found["checks"]}
    assert [*checks] == [f"GS{number:02}" for number in range(1, 17)]
    assert code == (1 if any(check["state"] == "fail" for check in checks.values()) else 0)
    assert all(check["hint"] for check in checks.values() if check["state"] in ("warn", "fail"))
    assert (checks["GS08"]["state"], checks["GS08"]["detail"]) == ("warn", "300.0 MiB on GPU 0")
    assert checks["GS03"]["state"] == "ok"
    assert checks["GS11"]["state"] == "ok"


def test_doctor_names_what_is_wrong(gpushare, fake, monkeypatch):
    monkeypatch.setenv("GPUSHARE_LIMITT", "4Gi")
    monkeypatch.setenv("LD_PRELOAD", "/usr/lib/libvgpu.so")
    fake.garbage = b"garbage"
    code, out, _ = gpushare("doctor")
    assert code == 1
    rows = {row[0]: row for row in columns(out) if row[0].startswith("GS")}
    assert rows["GS03"][1] == "fail"
    assert rows["GS05"][1:4] == ["warn", "other preload libraries", "found libvgpu.so"]
    assert rows["GS09"][3] == "there is no variable GPUSHARE_LIMITT: did you mean GPUSHARE_LIMIT?"
    assert "hint: GS09: unset what you do not mean" in out


def test_doctor_without_a_daemon(gpushare, environ, tmp_path, monkeypatch):
    """None at all is no problem, for `run` starts one; one that was named must be there."""
    monkeypatch.setattr("gpushare.locate.SYSTEM_DIR", SYSTEM_DIR / "nowhere")
    assert next(row for row in columns(gpushare("doctor")[1]) if row[0] == "GS03")[1] == "skip"
    monkeypatch.setenv("GPUSHARE_SOCKET", str(tmp_path / "api.sock"))
    assert next(row for row in columns(gpushare("doctor")[1]) if row[0] == "GS03")[1] == "fail"


def test_doctor_of_variables_that_are_wrong(gpushare, fake, monkeypatch):
    monkeypatch.setenv("GPUSHARE_LIMIT", "4g")
    row = next(row for row in columns(gpushare("doctor")[1]) if row[0] == "GS09")
    assert row[1] == "fail"
    assert row[3].startswith("GPUSHARE_LIMIT=4g: cannot read '4g'")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(gpushare, shell):
    code, out, _ = gpushare("completion", shell)
    assert code == 0
    assert "_GPUSHARE_COMPLETE" in out


def test_help_and_version(gpushare):
    code, out, _ = gpushare("--help")
    assert code == 0
    for name in ("run", "ps", "status", "set", "explain", "doctor", "demo", "daemon", "shim-path", "completion"):
        assert re.search(rf"^  {name} ", out, re.MULTILINE), name
    assert gpushare("--version")[1].startswith("gpushare 0.")


def test_colour_only_on_a_terminal_and_not_with_no_color(busy, environ, monkeypatch):
    import pty

    for no_color, coloured in (("", True), ("1", False)):
        monkeypatch.setenv("NO_COLOR", no_color)
        monkeypatch.setenv("TERM", "xterm-256color")
        pid, terminal = pty.fork()
        if pid == 0:
            os.execv(sys.executable, [sys.executable, "-m", "gpushare", "ps"])
        shown = b""
        try:
            while data := os.read(terminal, 4096):
                shown += data
        except OSError:
            pass
        os.waitpid(pid, 0)
        os.close(terminal)
        assert b"train" in shown
        assert (b"\x1b[33m" in shown) is coloured


def test_the_python_names(busy, environ):
    import gpushare as package

    assert package.status()["daemon"]["jobs"] == 2
    assert package.set_limit("train", "10Gi")["after"]["gpus"][0]["limit"] == 10 * GIB
    with pytest.raises(package.errors.QuantityError):
        package.set_limit("train", "10g")


def test_a_moment_of_another_day_has_its_date():
    now = time.time()
    assert re.fullmatch(r"\d\d:\d\d:\d\d", output.clock(now))
    assert output.clock(now - 366 * 86400) == time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now - 366 * 86400))


@pytest.mark.parametrize("term", ["dumb", "xterm"])
def test_a_dumb_terminal_is_as_wide_as_it_says(monkeypatch, term):
    monkeypatch.setenv("TERM", term)
    columns = [output.Column("A"), output.Column("B"), output.Column("C")]
    (_, line) = output.table(columns, [["a" * 40, "b" * 30, "c" * 20]], 100)
    assert re.compile(r"\x1b\[[0-9;]*m").sub("", line) == f"{'a' * 40}  {'b' * 30}  {'c' * 20}"


def test_status_on_a_narrow_terminal_leaves_the_bar_out_and_wraps_nothing(busy, gpushare):
    status = Client(busy.socket).status()
    rows = [status_command._row(gpu, wide=False) for gpu in status["gpus"]]
    for width in (60, 70, 80, 120, 200):
        lines = [
            re.compile(r"\x1b\[[0-9;]*m").sub("", line) for line in output.table(status_command.COLUMNS, rows, width)
        ]
        assert len(lines) == 1 + len(rows)
        assert all(len(line) <= width for line in lines)
        assert ("MEMORY" in lines[0]) == (width >= 80)
