"""Who sees what of whom: the whole table of viewers and levels."""

from __future__ import annotations

import pytest

from gpushared.core.visibility import OPERATOR, Viewer, program

OWN, OTHER = 1000, 2000


@pytest.mark.parametrize("level", ["name", "user", "none"])
@pytest.mark.parametrize(
    ("viewer", "all_"), [((OTHER, True), True), ((0, False), True), ((OWN, False), True), ((OTHER, False), False)]
)
def test_all_of_a_job_is_for_its_user_for_root_and_for_administrators(level, viewer, all_) -> None:
    uid, admin = viewer
    one = Viewer(uid, level, admin)
    assert one.may_see(OWN) is all_
    assert one.may_see_all is (admin or uid == 0)
    assert one.sees_name(OWN) is (all_ or level == "name")
    assert one.sees_user(OWN) is (all_ or level != "none")
    assert ("python" in (one.word(program(OWN, "python", 7)) or "")) is all_


def test_the_daemons_log_is_told_all() -> None:
    assert OPERATOR.may_see(OWN)
