"""What a job that attaches itself is called by, and that the demo of the queue says what it is about to do."""

from __future__ import annotations

import sys
from types import SimpleNamespace

from gpushare import attach, demo_queue


def test_the_command_of_a_program_that_attaches_is_what_it_was_started_with(monkeypatch) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python3", "", "train.py", "--fast"])
    assert attach._command_line() == ["python3", "train.py", "--fast"]
    for nothing in ([], [""]):
        monkeypatch.setattr(sys, "orig_argv", nothing)
        assert attach._command_line() == [sys.executable]


def test_the_demo_says_each_of_its_steps(capsys) -> None:
    demo = next(one for one in vars(demo_queue).values() if isinstance(one, type) and hasattr(one, "say"))
    printed: list[tuple[str, str | None]] = []
    demo.say(SimpleNamespace(print=lambda text, colour: printed.append((text, colour))), "two teams")
    assert printed == [("\ntwo teams", "1;32")]
    demo.print(SimpleNamespace(), "plain", None)
    assert capsys.readouterr().out == "plain\n"
