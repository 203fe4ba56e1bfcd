"""gpushare top: its picture at several sizes, and the terminal it is on, against a daemon that is only its API."""

from __future__ import annotations

import contextlib
import copy
import errno
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time

import pytest
from fake_api import GIB, UUID, make_job

from gpushare.cli import main, screen, top
from gpushare.client import Client
from gpushare.stop import ask_to_stop

ANSI = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@pytest.fixture
def busy(fake):
    """A borrower with half of its loan past what is requested, and a job that queues."""
    base = {"gpus": 1, "priority": 0, "lend": True, "grace": None, "request_source": "", "limit_source": ""}
    train = make_job(
        "a1b2c3d4e5f60718",
        {**base, "name": "train", "command": ["python", "train.py"], "request": "4Gi", "limit": "14Gi"},
    )
    train["state"] = "borrowing"
    train["gpus"][0] |= {"usage": 12 * GIB, "loan": 8 * GIB}
    train["processes"] = [{"pid": 4121, "command": "python", "gpus": {UUID.format(0): 12 * GIB}}]
    late = make_job(
        "b7b7b7b7b7b7b7b7", {**base, "name": "a-late-one", "command": ["x"], "request": "8Gi", "limit": "8Gi"}
    )
    late |= {"gpus": [], "state": "queued", "since": time.time()}
    fake.jobs = {job["id"]: job for job in (train, late)}
    return fake


def picture(fake, columns: int, lines: int, jobs: int = 0, gpus: int = 0, **look: object) -> list[str]:
    status = Client(fake.socket).status()
    one = next(job for job in status["jobs"] if job["gpus"])
    status["jobs"] += [{**copy.deepcopy(one), "name": f"more-{number}"} for number in range(jobs)]
    status["gpus"] += [{**copy.deepcopy(status["gpus"][0]), "index": number + 1} for number in range(gpus)]
    drawn = top.frame("gpushared", status, top.Look(os.terminal_size((columns, lines)), **look))
    return [ANSI.sub("", line) for line in drawn]


def test_a_picture(busy):
    head, bar, numbers, legend, _, titles, train, late = picture(busy, 110, 24)
    assert re.fullmatch(r"gpushared +\d\d:\d\d:\d\d", head) and len(head) == 110
    assert bar == "GPU 0 [########|++++++++++++++.......]  12.0 GiB used   3.5 GiB free"
    assert numbers.split() == ["requested", "4.0", "GiB", "lent", "8.0", "GiB", "capacity", "15.5", "GiB"]
    assert legend == top.LEGEND
    assert titles.split() == [
        "GPU",
        "JOB",
        "USER",
        "PID",
        "AGE",
        "USAGE",
        "REQUEST",
        "LIMIT",
        "LOAN",
        "STATE",
        "GPU%",
        "COMMAND",
    ]
    assert train.split()[:4] == ["0", "train", "alice", "4121"] and train.endswith("borrowing     -  python train.py")
    assert late.split()[:2] == ["-", "a-late-one"] and "queued" in late


def test_what_is_wrong_with_a_gpu_is_beside_its_bar(busy):
    ailment = {"state": "sick", "cause": "xid_48", "text": "Xid 48, double-bit ECC error", "hint": "reset it"}
    busy.health = {"state": "sick", "shortfall": 0, "ailments": [ailment | {"facts": {}}]}
    busy.unmanaged = GIB
    _, bar, numbers, *_ = picture(busy, 120, 24)
    assert bar.endswith("  is sick: Xid 48, double-bit ECC error")
    busy.health["ailments"].insert(0, ailment | {"state": "degraded", "text": "it is slow", "facts": {}})
    assert picture(busy, 120, 24)[1].endswith("  is degraded: it is slow"), "the first, without what to do"
    busy.health["ailments"].reverse()
    assert numbers.endswith("outside gpushare 1.0 GiB")


@pytest.mark.parametrize("columns", [1, 10, 39, 40, 60, 80, 81, 100, 132, 300])
@pytest.mark.parametrize("lines", [1, 3, 8, 24, 50])
def test_it_fits_any_terminal(busy, columns, lines):
    for jobs, gpus in ((0, 0), (40, 7), (3, 15)):
        for name in ("train", "x" * 63):
            busy.jobs["a1b2c3d4e5f60718"]["name"] = name
            drawn = picture(busy, columns, lines, jobs, gpus, footer="q quit   s sort by loan   every 2 s")
            assert len(drawn) == lines or lines < 8, "the footer is at the bottom"
            assert max(len(line) for line in drawn[-lines:]) <= columns
            assert drawn[-1] == "q quit   s sort by loan   every 2 s"[:columns]


def test_with_many_jobs_it_says_how_many_are_left_out(busy):
    drawn = picture(busy, 80, 24, jobs=30, footer="q quit")
    (said,) = [line for line in drawn if re.fullmatch(r"and \d+ more", line)]
    shown = [line for line in drawn if "borrowing" in line or "queued" in line]
    assert len(shown) + int(said.split()[1]) == 32


def test_with_many_gpus_each_has_its_bar(busy):
    drawn = picture(busy, 80, 24, jobs=4, gpus=7)
    assert [line[:6] for line in drawn if line.startswith("GPU ") and "[" in line] == [f"GPU {n} " for n in range(8)]


def test_on_a_narrow_terminal_the_columns_that_matter_stay(busy):
    drawn = picture(busy, 50, 24)
    titles = next(line for line in drawn if line.startswith("GPU  JOB")).split()
    assert titles == ["GPU", "JOB", "USAGE", "LOAN", "STATE"]


def test_on_a_narrow_terminal_a_bar_has_one_number_and_that_one_whole(busy):
    assert picture(busy, 40, 24)[1] == "GPU 0 [####|+++++++.....]   3.5 GiB free"


@pytest.mark.parametrize(
    ("sort", "first"), [("usage", "train"), ("loan", "train"), ("age", "train"), ("name", "a-late-one")]
)
def test_jobs_are_sorted(busy, sort, first):
    drawn = picture(busy, 100, 24, sort=sort)
    assert drawn[6].split()[1] == first


@pytest.mark.parametrize("arguments", [["top"], ["top", "--once"]])
def test_piped_it_is_one_whole_picture_without_colours(busy, capsys, arguments):
    busy.jobs["a1b2c3d4e5f60718"]["command"] = ["python", "x" * 300]
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert "\x1b" not in out and f"python {'x' * 300}\n" in out and "q quit" not in out and err == ""


def test_without_a_daemon(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert main(["top"]) == 3
    assert "no daemon runs on this node" in capsys.readouterr().err


# ---- on a terminal ---------------------------------------------------------------------------------


class Terminal:
    """`gpushare top` on a pseudo terminal; what it draws."""

    def __init__(self, columns: int = 80, lines: int = 24, *arguments: str, program: str | None = None) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "xterm"
            os.environ |= {"COLUMNS": "200", "LINES": "50"}  # of whatever has started us: the terminal knows better
            os.environ.pop("NO_COLOR", None)
            for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):  # ignored, if we run in the background
                signal.signal(number, signal.SIG_DFL)
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
            python = ["-m", "gpushare"] if program is None else ["-c", program]
            command = [sys.executable, *python, "top", "-i", "0.2", *arguments]
            os.execve(sys.executable, command, os.environ)
        self.text = ""
        self.before = termios.tcgetattr(self.fd)

    def read_until(self, found, within: float = 20.0) -> str:
        end = time.monotonic() + within
        while not found(self.text):
            ready, _, _ = select.select([self.fd], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"not within {within} s: {self.text[-2000:]!r}"
            try:
                data = os.read(self.fd, 65536)
            except OSError as error:
                assert error.errno == errno.EIO  # it has closed its terminal
                data = b""
            assert data, f"it has ended: {self.text[-2000:]!r}"
            self.text += data.decode()
        return self.text

    def forget(self) -> None:
        self.text = ""

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def type(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    def end(self) -> int:
        """What it exited with; all that it drew until then is read."""
        with contextlib.suppress(OSError):
            while data := os.read(self.fd, 65536):
                self.text += data.decode()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.fixture
def terminal(busy):
    made = []

    def make(*arguments, **options):
        made.append(Terminal(*arguments, **options))
        return made[-1]

    yield make
    for one in made:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(one.pid, signal.SIGKILL)
            os.waitpid(one.pid, 0)
        os.close(one.fd)


def test_it_draws_again_and_again_and_q_ends_it(terminal, busy):
    one = terminal()
    one.read_until(lambda text: "train" in text)
    busy.jobs["a1b2c3d4e5f60718"]["name"] = "renamed"
    one.read_until(lambda text: "renamed" in text)
    assert one.text.startswith(screen.ENTER)
    one.type("q")
    assert one.end() == 0
    assert one.text.endswith(screen.LEAVE), "what was on the terminal before is there again"


def test_s_sorts_at_once(terminal):
    one = terminal()
    one.read_until(lambda text: "s sort by loan" in text)
    one.type("sss")  # one press of a key at a time counts: the rest is of the same read
    one.read_until(lambda text: "s sort by age" in text)
    one.type("\x04")
    assert one.end() == 0


def test_another_size_is_drawn_at_once_and_fits(terminal):
    one = terminal(80, 24, "-i", "3600")
    one.read_until(lambda text: "every 3600 s" in text)
    for columns, lines in ((40, 10), (120, 30), (80, 5), (20, 3)):
        one.forget()
        one.resize(columns, lines)
        one.read_until(lambda text: screen.BELOW in text.rpartition(screen.HOME)[2] and screen.HOME in text)
        last = ANSI.sub("", one.text.split(screen.HOME)[-1]).split("\r\r\n")
        assert len(last) <= lines and max(map(len, last)) <= columns, (columns, lines, one.text)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGQUIT, 131)]
)
def test_a_signal_leaves_the_terminal_as_it_was(terminal, number, code):
    one = terminal()
    one.read_until(lambda text: "q quit" in text)
    os.kill(one.pid, number)
    assert one.end() == code
    assert one.text.endswith(screen.LEAVE)


def test_ctrl_z_gives_the_terminal_back_for_the_time(terminal):
    one = terminal()
    one.read_until(lambda text: "q quit" in text)
    one.type("\x1a")
    _, status = os.waitpid(one.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    one.read_until(lambda text: screen.LEAVE in text)
    assert termios.tcgetattr(one.fd)[3] & termios.ICANON, "the shell's terminal is as it was"
    one.forget()
    os.kill(one.pid, signal.SIGCONT)
    one.read_until(lambda text: screen.ENTER in text and "q quit" in text)
    assert not termios.tcgetattr(one.fd)[3] & termios.ICANON
    one.type("q")
    assert one.end() == 0


def test_a_daemon_that_goes_is_waited_for(terminal, busy):
    one = terminal()
    one.read_until(lambda text: "train" in text)
    busy.stop()
    one.read_until(lambda text: "trying again" in text)
    one.forget()
    busy.start()
    one.read_until(lambda text: "train" in text)
    one.type("q")
    assert one.end() == 0


def test_a_bug_leaves_the_terminal_as_it_was(terminal):
    program = "import sys; from gpushare.cli import main, top; top.frame = None; sys.exit(main(sys.argv[1:]))"
    one = terminal(program=program)
    assert one.end() == 1
    assert one.text.index(screen.LEAVE) < one.text.index("TypeError"), "what went wrong is on the terminal, to be read"


def test_a_stop_from_elsewhere_and_a_shell_that_has_used_the_terminal_meanwhile(terminal):
    one = terminal()
    one.read_until(lambda text: "q quit" in text)
    os.kill(one.pid, signal.SIGSTOP)
    os.waitpid(one.pid, os.WUNTRACED)
    termios.tcsetattr(one.fd, termios.TCSANOW, one.before)
    assert termios.tcgetattr(one.fd)[3] & termios.ICANON
    one.forget()
    os.kill(one.pid, signal.SIGCONT)
    one.read_until(lambda text: "q quit" in text)
    assert not termios.tcgetattr(one.fd)[3] & termios.ICANON
    assert screen.ENTER not in one.text, "it has never left: the terminal keeps one screen only"
    one.type("q")
    assert one.end() == 0


def test_the_arrows_select_a_job_and_help_lists_the_keys(terminal):
    one = terminal(120, 24)
    one.read_until(lambda text: "q quit" in text)
    one.forget()
    one.type("\x1b[B")
    one.read_until(lambda text: re.search(r"\x1b\[7m *0 +train", text))
    one.forget()
    one.type("\x1bOB")  # as a terminal sends it in application mode
    one.read_until(lambda text: re.search(r"\x1b\[7m *- +a-late-one", text))
    one.type("?")
    one.read_until(lambda text: all(what in text for what in top.HELP.values()))
    one.type(" ")
    one.forget()
    one.read_until(lambda text: "a-late-one" in text)
    one.forget()
    one.type("\x1b")
    one.read_until(lambda text: "q quit" in text.rpartition(screen.HOME)[2] and "\x1b[7m" not in text)
    one.type("q")
    assert one.end() == 0


@pytest.fixture
def victim(busy):
    """A program of the job train; ends by SIGTERM."""
    process = subprocess.Popen(["sleep", "600"])
    busy.jobs["a1b2c3d4e5f60718"]["processes"] = [{"pid": process.pid, "command": "sleep", "gpus": {}}]
    yield process
    process.kill()
    process.wait()


def test_a_job_is_asked_to_stop_after_a_question(terminal, victim):
    one = terminal(120, 24)
    one.read_until(lambda text: "q quit" in text)
    one.type("k")
    one.read_until(lambda text: "select a job first" in text)
    one.type("\x1b[B")
    one.read_until(lambda text: "\x1b[7m" in text)
    one.type("k")
    one.read_until(lambda text: "y/n  ask job train of alice (a1b2c3d4e5f60718) to stop?" in text)
    assert "\x1b[1my/n" in one.text, "bold: it is to be read"
    one.type("n")
    one.read_until(lambda text: "q quit" in text.rpartition("y/n")[2])
    assert "\x1b[2mh help" in one.text.rpartition("y/n")[2], "dim"
    assert victim.poll() is None
    one.type("k")
    one.read_until(lambda text: "y/n" in text.rpartition("q quit")[2])
    one.type("y")
    one.read_until(lambda text: "asked job train to stop: SIGTERM to 1 process" in text)
    assert victim.wait(20) == -signal.SIGTERM
    one.type("q")
    assert one.end() == 0


def test_readonly(terminal, victim):
    one = terminal(120, 24, "--readonly")
    one.read_until(lambda text: "q quit" in text)
    one.type("\x1b[B")
    one.read_until(lambda text: "\x1b[7m" in text)
    one.type("k")
    one.read_until(lambda text: "k is off: --readonly" in text)
    one.type("y")
    one.read_until(lambda text: "q quit" in text.rpartition("--readonly")[2])
    one.type("h")
    one.read_until(lambda text: "keys of gpushare top" in text)
    assert top.HELP[top.STOP] not in one.text
    assert victim.poll() is None


# ---- the keys, without a terminal ------------------------------------------------------------------


def jobs_of(fake):
    return Client(fake.socket).status()["jobs"]


def pressed(jobs, *keys, view=None, **options):
    view = view or top.View()
    for key in keys:
        view = top.press(view, key, jobs, **options)
    return view


TRAIN, LATE = "a1b2c3d4e5f60718", "b7b7b7b7b7b7b7b7"


@pytest.mark.parametrize(
    ("keys", "selected"),
    [
        (["down"], TRAIN),
        (["up"], LATE),
        (["down", "down"], LATE),
        (["down", "down", "down"], LATE),
        (["down", "up"], TRAIN),
        (["down", "escape"], None),
        (["n", "down"], LATE),  # by name it is the first
        (["down", "n"], TRAIN),
    ],
)
def test_the_selection_is_a_job_and_not_a_line(busy, keys, selected):
    assert pressed(jobs_of(busy), *keys).selected == selected


def test_a_job_that_ends_is_no_longer_selected(busy):
    jobs = jobs_of(busy)
    view = pressed(jobs, "down")
    assert pressed(jobs[1:], "", view=view).selected is None
    assert pressed([], "down").selected is None


@pytest.mark.parametrize("key", ["n", "q", "escape", "k", "x", "down"])
def test_only_y_is_yes(busy, key):
    view = pressed(jobs_of(busy), "down", "k", key)
    assert (view.stop, view.asking, view.over) == (None, None, False)
    assert pressed(jobs_of(busy), "down", "k", "", "y").stop["id"] == TRAIN


def test_every_sort_has_a_key_of_its_own(busy):
    assert len(top.BY_LETTER) == len(top.SORTS) and not top.BY_LETTER.keys() & set("hqsk?")
    for key, sort in top.BY_LETTER.items():
        assert pressed(jobs_of(busy), key).sort == sort


def test_the_selected_job_is_always_seen(busy):
    for number in range(40):
        busy.jobs[f"{number:016x}"] = {**busy.jobs[LATE], "id": f"{number:016x}", "name": f"more-{number:02}"}
    jobs = jobs_of(busy)
    view = top.View(sort="name")
    for _ in range(50):
        view = top.press(view, "down", jobs)
        drawn = picture(busy, 100, 20, sort="name", footer="q", selected=view.selected)
        name = next(job["name"] for job in jobs if job["id"] == view.selected)
        assert any(f" {name} " in line for line in drawn)
        assert len(drawn) == 20


# ---- asking to stop --------------------------------------------------------------------------------


def test_a_queued_job_leaves_the_queue(busy):
    assert ask_to_stop(Client(busy.socket), LATE) == "job a-late-one has left the queue"
    assert busy.calls[-1] == ("POST", f"/v1/jobs/{LATE}/stop", {"now": False})


def test_a_job_is_asked(busy, victim):
    assert ask_to_stop(Client(busy.socket), TRAIN) == "asked job train to stop: SIGTERM to 1 process"
    assert victim.wait(20) == -signal.SIGTERM
    busy.jobs[TRAIN]["processes"] = []
    assert ask_to_stop(Client(busy.socket), TRAIN) == "asked job train to stop: SIGTERM to 0 processes"


def test_a_wide_terminal_has_a_longer_bar(busy):
    widths = {columns: len(re.search(r"\[(.*?)\]", picture(busy, columns, 24)[1])[1]) for columns in (60, 110, 140)}
    assert widths[60] <= 30 == widths[110] < widths[140] == 60


def test_the_legend_is_whole_on_a_narrow_terminal(busy):
    lines = picture(busy, 60, 24)
    assert [line for line in lines if "borrowed" in line or ("requested" in line and "capacity" not in line)]
    assert top.legend(200) == [top.LEGEND]
    assert "  ".join(top.legend(60)) == "  ".join(top.legend(5)) == top.LEGEND
    assert max(map(len, top.legend(60))) <= 60
    assert len(top.legend(60)) == 2
