"""Who sees what of whom: the whole table of viewers and levels."""

from __future__ import annotations

import pytest

from gpushare.job_spec import JobSpec
from gpushare.quantity import MAX
from gpushared.core.visibility import OPERATOR, Viewer, bare_name, name, program, reserved, who

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


@pytest.mark.parametrize(
    ("given", "shown"), [("n" * 63, "n" * 63), ("n" * 64, "n" * 62 + "…"), ("n" * 256, "n" * 62 + "…")]
)
def test_a_long_name_leaves_room_in_a_sentence_and_is_whole_in_data(given, shown) -> None:
    spec = JobSpec(name=given, uid=OWN, user="ada", command=(), request=MAX, limit=MAX)
    viewer = Viewer(OWN, "name")
    assert viewer.word(name(spec)) == shown
    assert viewer.word(who(spec)) == f"{shown} (ada)"
    assert viewer.word(reserved(spec)) == f"reserved as {shown} (ada)"
    assert viewer.word(bare_name(spec)) == given
