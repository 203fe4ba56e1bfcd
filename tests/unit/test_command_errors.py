"""How a command ends where something goes wrong: its exit status, and what is told and where."""

from __future__ import annotations

import errno
import io
import os
import re
from types import SimpleNamespace

import click
import pytest

from gpushare import cli
from gpushare.cli import run_group
from gpushare.errors import GpushareError, UsageError


@pytest.fixture
def fails(monkeypatch):
    """The next command ends so."""

    def fails(error):
        def main(*_arguments, **_how):
            if isinstance(error, BaseException):
                raise error
            return error

        monkeypatch.setattr(cli.cli, "main", main)

    return fails


@pytest.fixture
def silenced(monkeypatch):
    """What would have been done to this process's standard output."""
    done = []

    def opened(path, flags):
        done.append((path, flags))
        return 99

    def dup2(old, new):
        done.append((old, new))

    stand_in = SimpleNamespace(open=opened, dup2=dup2, devnull=os.devnull, O_WRONLY=os.O_WRONLY)
    monkeypatch.setattr(cli, "os", stand_in)
    return done


AWAY = [("/dev/null", os.O_WRONLY), (99, 1)]


@pytest.mark.parametrize(("result", "status"), [(None, 0), (0, 0), (3, 3), (125, 125)])
def test_a_command_says_its_own_status(fails, result, status):
    fails(result)
    assert cli.main(["ps"]) == status


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (GpushareError("it is so", hint="do that"), 1, "gpushare: it is so\n\nhint: do that\n"),
        (UsageError("no such thing", hint="try another"), 2, "gpushare: no such thing\n\nhint: try another\n"),
        (KeyboardInterrupt(), 130, ""),
        (click.Abort(), 130, ""),
    ],
)
def test_an_error_of_ours_is_told_on_standard_error(fails, capsys, error, status, told):
    fails(error)
    assert cli.main(["ps"]) == status
    found = capsys.readouterr()
    assert (found.out, found.err) == ("", told)


def test_a_reader_that_has_gone_is_no_error(fails, capsys, silenced):
    fails(BrokenPipeError())
    assert cli.main(["ps"]) == 1
    assert silenced == AWAY, "else Python complains when it ends"
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_told(fails, capsys, silenced, number):
    fails(OSError(number, "No room"))
    assert cli.main(["ps"]) == 1
    assert silenced == AWAY
    assert capsys.readouterr().err == "gpushare: cannot write: No room\n\nhint: free some space there\n"


def test_another_error_of_the_system_is_a_bug_of_ours(fails, silenced):
    fails(OSError(errno.EIO, "odd"))
    with pytest.raises(OSError, match="odd"):
        cli.main(["ps"])
    assert silenced == []


@pytest.mark.parametrize("error", [RuntimeError("a bug"), OSError(errno.EIO, "a bug"), OSError(errno.ENOSPC, "full")])
def test_a_bug_is_raised_but_under_run_its_status_is_none_of_the_programs(fails, monkeypatch, error):
    told = []
    monkeypatch.setattr(cli.sys, "excepthook", lambda kind, value, _trace: told.append((kind, value)))
    fails(error)
    if "bug" in str(error):
        with pytest.raises(type(error)):
            cli.main(["ps"])
    assert told == [] and cli.main(["run", "true"]) == 125
    assert told == [(type(error), error)], "its traceback is shown"


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (["run", "--nonsense", "true"], 125, "`gpushare run --help` lists the options"),
        (["ps", "--user"], 2, "`gpushare ps --help` lists the options"),
        (["ps", "x", "--user"], 2, "`gpushare ps --help` lists the options"),
        (["cluster", "nodes", "--output"], 2, "`gpushare cluster nodes --help` lists the options"),
        (["cluster", "--fil"], 2, "`gpushare cluster --help` lists the commands"),
        (["--nonsense"], 2, "`gpushare --help` lists the commands"),
        (["--version", "ps", "--gpu"], 0, ""),
        (["nonsense"], 2, "`gpushare --help` lists"),
    ],
)
def test_a_line_that_is_wrong_has_the_way_to_its_help(capsys, words, status, told):
    assert cli.main(words) == status
    found = capsys.readouterr()
    assert told in found.err and bool(found.err) is bool(told) and ".\n" not in found.err.partition("hint:")[0]


def test_help_has_a_line_for_each_command_in_one_column(capsys):
    assert cli.main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    found = [match for line in lines for name in cli.COMMANDS if (match := re.match(rf"  {name} +\b", line))]
    assert len(found) == len(cli.COMMANDS) and len({match.end() for match in found}) == 1


# ---- another program's commands -----------------------------------------------------------------------------------


@click.group(name="it")
def group() -> None:
    """Another program."""


@group.command()
@click.option("--how", default="well")
def do(how: str) -> int:
    errors = {
        "wrong": GpushareError("it is so", hint="do that"),
        "interrupted": KeyboardInterrupt(),
        "unread": BrokenPipeError(),
    }
    if how in errors:
        raise errors[how]
    return 7


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (["do"], 7, ""),
        (["do", "--how", "wrong"], 1, "gpushare: it is so\n\nhint: do that\n"),
        (["do", "--how", "interrupted"], 130, "\n"),
        (["do", "--hwo", "x"], 2, "gpushare: no such option"),
        (["undo"], 2, "gpushare: no such command"),
    ],
)
def test_they_have_the_same_errors_and_statuses(capsys, words, status, told):
    assert run_group(group, words, "kubectl it") == status
    found = capsys.readouterr()
    assert found.out == "" and found.err.startswith(told) and bool(found.err) is bool(told)
    if status == 2:
        assert found.err.endswith(" --help` says what there is\n") and "`kubectl it" in found.err
        assert ".\n" not in found.err.partition("hint:")[0]


def test_theirs_whose_reader_has_gone(capsys, silenced):
    assert run_group(group, ["do", "--how", "unread"], "kubectl it") == 1
    assert silenced == AWAY and capsys.readouterr().err == ""


def test_without_a_word_they_show_their_help(capsys):
    status = run_group(group, [], "kubectl it")
    found = capsys.readouterr()
    assert status in (0, 2) and "Another program." in found.out + found.err and "hint:" not in found.err


# ---- as a program ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("words", "exits"), [(["run", "true"], True), (["ps"], False)])
def test_run_ends_at_once_and_odd_characters_are_written_all_the_same(fails, monkeypatch, words, exits):
    ended = []
    monkeypatch.setattr(cli, "os", SimpleNamespace(_exit=ended.append))
    monkeypatch.setattr(cli.sys, "argv", ["gpushare", *words])
    streams = [io.TextIOWrapper(io.BytesIO(), "ascii") for _ in range(2)]
    monkeypatch.setattr(cli.sys, "stdout", streams[0])
    monkeypatch.setattr(cli.sys, "stderr", streams[1])
    fails(4)
    assert cli.main() == 4
    assert ended == ([4] if exits else [])
    assert [one.errors for one in streams] == ["backslashreplace"] * 2
