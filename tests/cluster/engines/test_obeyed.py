"""The newest command obeyed for each task."""

from __future__ import annotations

import pytest

from gpushare.cluster.engines.obeyed import Obeyed
from gpushare.cluster.engines.seam import Deposed


def test_a_command_is_news_once() -> None:
    obeyed = Obeyed()
    assert obeyed.is_news("1", 0, 0, (1, 1))
    obeyed.note("1", 0, 0, (1, 2))
    assert not obeyed.is_news("1", 0, 0, (1, 2)) and not obeyed.is_news("1", 0, 0, (1, 1))
    assert obeyed.is_news("1", 0, 0, (1, 3)) and obeyed.is_news("1", 0, 0, (2, 1))


def test_a_command_holds_for_one_task_of_one_job() -> None:
    obeyed = Obeyed()
    obeyed.note("1", 0, 0, (1, 5))
    assert obeyed.is_news("1", 0, 1, (1, 1)) and obeyed.is_news("1", 1, 0, (1, 1)) and obeyed.is_news("2", 0, 0, (1, 1))


def test_what_is_read_after_a_restart_in_any_order_keeps_the_newest() -> None:
    obeyed = Obeyed()
    for token in ((1, 3), (2, 1), (1, 9)):
        obeyed.note("1", 0, 0, token)
    assert not obeyed.is_news("1", 0, 0, (2, 1)) and obeyed.is_news("1", 0, 0, (2, 2))
    with pytest.raises(Deposed):
        obeyed.check_term((1, 10))


def test_an_older_term_is_deposed_once_a_newer_one_has_spoken() -> None:
    obeyed = Obeyed()
    obeyed.check_term((3, 1))
    obeyed.check_term((3, 2))
    with pytest.raises(Deposed, match="term 2 is over"):
        obeyed.check_term((2, 9))
    obeyed.check_term((4, 1))
    assert obeyed.term == 4


def test_a_job_that_is_forgotten_is_new_and_the_term_stays() -> None:
    obeyed = Obeyed()
    obeyed.note("1", 0, 0, (2, 2))
    obeyed.note("2", 0, 0, (2, 3))
    obeyed.forget("1")
    obeyed.forget("unknown")
    assert obeyed.is_news("1", 0, 0, (2, 1)) and not obeyed.is_news("2", 0, 0, (2, 3))
    assert obeyed.term == 2
