"""Parts that the rest of the daemon counts on, each alone: bounds of users, answers in pieces, notices, sums."""

from __future__ import annotations

import asyncio
import errno
import os
from types import SimpleNamespace

import pytest
from aiohttp import web

from gpushared.api import answers
from gpushared.clients.credit import CreditPages
from gpushared.history.gpu_time import EVERY, GpuTime
from gpushared.jobs.notices import Notices
from gpushared.jobs.totals import Totals
from gpushared.limits import byte_budget
from gpushared.limits.backlog import Backlog
from gpushared.limits.byte_budget import MOST, ByteBudget
from gpushared.limits.user_limits import UserLimits
from gpushared.runtime.followers import Followers
from gpushared.shims import connection as shims

pytestmark = pytest.mark.usefixtures("quiet_loop")

# Numbers, not the daemon's own names for them: that they stay is a part of what is tested.
AROUND_A_NOTICE = 1024
KEPT = 64
UNREAD = 1000
WHOLE = 1000

ADA, BOB, CY, DAN, EVE = 70001, 70002, 70003, 70004, 70005


class TestAnswersInPieces:
    @pytest.fixture
    def sent(self, monkeypatch):
        """What goes to the reader, and what is asked before each piece."""
        written = []

        class Stream:
            def __init__(self, headers):
                written.append(headers["Content-Type"])

            async def prepare(self, _request):
                written.append("begun")

            async def write(self, data):
                written.append(data)

            async def write_eof(self):
                written.append("over")

        monkeypatch.setattr(web, "StreamResponse", Stream)
        monkeypatch.setattr(answers, "PIECE", 10)
        return written

    def send(self, written, parts):
        async def room(uid):
            written.append(("room", uid))

        async def enter(uid):
            written.append(("share", uid))

        aborted = []
        request = SimpleNamespace(transport=SimpleNamespace(abort=lambda: aborted.append(True)))
        pieces = answers.Pieces(SimpleNamespace(room=room), SimpleNamespace(enter=enter))
        try:
            return asyncio.run(pieces.send(request, ADA, iter(parts))), aborted
        except ValueError:
            return None, aborted

    def test_a_short_one_is_whole(self, sent, monkeypatch):
        monkeypatch.setattr(web, "Response", lambda **more: more)
        response, _ = self.send(sent, ["a" * 5, "b" * 4])
        assert response == {"text": "aaaaabbbb", "content_type": "application/json", "charset": "utf-8"}
        assert sent == []

    def test_a_long_one_goes_as_far_as_there_is_room_and_time(self, sent):
        self.send(sent, ["a" * 5, "b" * 5, "c" * 9, "d" * 30, "e"])
        assert sent == [
            *("application/json; charset=utf-8", "begun"),
            *(("room", ADA), b"aaaaabbbbb", ("share", ADA)),
            *(("room", ADA), b"c" * 9 + b"d" * 30, ("share", ADA)),
            *(b"e", "over"),
        ]

    @pytest.mark.parametrize(("before", "cut_off"), [("a", []), ("a" * 10, [True])])
    def test_a_failure_cuts_off_what_has_begun(self, sent, before, cut_off):
        def parts():
            yield before
            raise ValueError

        assert self.send(sent, parts()) == (None, cut_off)

    @pytest.mark.parametrize("items", [[], [1], [1, "two", {"3": None}]])
    def test_a_list_made_one_by_one_is_the_same_list(self, items):
        assert "".join(answers.document({"a": 1, "items": iter(items)})) == answers.json.dumps({"a": 1, "items": items})
        assert "".join(answers.document({})) == "{}"


class TestUserLimits:
    def test_one_user_gets_a_fourth_and_all_together_leave_an_eighth(self):
        limits = UserLimits(80)
        limits.enter(ADA, 15)
        assert limits.has_room(ADA, 5) and not limits.has_room(ADA, 6)
        for other in (BOB, CY):
            limits.enter(other, 20)
        limits.enter(DAN, 14)
        assert limits.has_room(EVE, 1) and not limits.has_room(EVE, 2), "the last eighth is the daemon's"
        limits.leave(ADA, 10)
        assert limits.has_room(EVE, 11) and not limits.has_room(EVE, 12)
        assert limits.has_room(ADA, 11) and not limits.has_room(ADA, 12)
        limits.leave(DAN, 14)
        assert limits.has_room(DAN, 20) and not limits.has_room(DAN, 21), "nothing of its past is left"

    @pytest.mark.parametrize("uid", [0, os.geteuid()])
    def test_root_and_the_daemons_user_are_not_bound(self, uid):
        limits = UserLimits(80)
        assert limits.has_room(uid, 1000) and limits.most_jobs(uid) is None and limits.most_api_connections(uid) is None

    @pytest.mark.parametrize(("limit", "jobs", "connections"), [(1024, 64, 256), (2**20, 1024, 1024)])
    def test_most_jobs_and_connections(self, limit, jobs, connections):
        limits = UserLimits(limit)
        assert (limits.most_jobs(ADA), limits.most_api_connections(ADA)) == (jobs, connections)


class TestByteBudget:
    def test_a_bound_user_has_so_many_bytes_and_another_any_number(self):
        held = ByteBudget(lambda uid: uid == ADA)
        for uid in (ADA, BOB):
            held.change(uid, MOST - 1)
        assert held.has_room(ADA, 1) and not held.has_room(ADA, 2) and held.has_room(BOB, MOST)
        held.change(ADA, -MOST)
        assert held.of(ADA) == 0 and held.has_room(ADA, MOST)

    def test_those_who_wait_go_on_a_few_at_once_in_their_order(self):
        async def story():
            held, went = ByteBudget(lambda _uid: True), []

            async def wait(number):
                await held.room(ADA, 10)
                went.append(number)

            held.change(ADA, MOST - 5)
            tasks = [asyncio.ensure_future(wait(number)) for number in range(byte_budget.WOKEN_AT_ONCE + 2)]
            await asyncio.sleep(0)
            assert went == []
            held.change(ADA, -100)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert went and went == sorted(went)
            for _ in range(4):
                held.look_again()
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            assert sorted(went) == [*range(len(tasks))]

        asyncio.run(asyncio.wait_for(story(), 10))


class TestNotices:
    def test_the_last_are_kept_and_who_listens_hears_what_comes(self):
        async def story():
            notices, held = Notices(), ByteBudget(lambda _uid: True)
            for number in range(KEPT + 3):
                notices.put("term", str(number), {"n": number})
            assert [one["text"] for one in notices] == [str(number) for number in range(3, KEPT + 3)]
            reader = notices.backlog(held, ADA)
            assert held.of(ADA) == sum(AROUND_A_NOTICE + len(str(number)) for number in range(3, KEPT + 3))
            notices.listeners.add(reader)
            notices.put("kill", "more", {})
            first, second = await reader.take(0.01), await reader.take(0.01)
            assert [one["text"] for one in [*first.items, *second.items]][-2:] == [str(KEPT + 2), "more"]
            assert len(first.items) == KEPT and not first.ended and not second.ended
            assert held.of(ADA) == 0 and (await reader.take(0.01)).items == []
            notices.end()
            assert await reader.take(1.0) == ([], 0, True)
            notices.put("kill", "late", {})
            assert len(reader) == 0

        asyncio.run(asyncio.wait_for(story(), 10))

    def test_a_reader_that_does_not_keep_up_loses_the_oldest_and_is_told(self):
        async def story():
            reader = Backlog(range(UNREAD + 5), wanted=lambda number: number != 7)
            reader.put(7)
            first = await reader.take(0.01)
            assert first.lost == 4 and first.items[:4] == [4, 5, 6, 8]
            assert (await reader.take(0.01)).lost == 0
            reader.close()
            assert len(reader) == 0

        asyncio.run(asyncio.wait_for(story(), 10))

    def test_without_room_only_the_newest_waits(self):
        counted = []
        reader = Backlog(count=lambda item, sign: counted.append((item, sign)) or False)
        for item in "abc":
            reader.put(item)
        assert len(reader) == 1 and counted == [("a", 1), ("a", -1), ("b", 1), ("b", -1), ("c", 1)]


def test_the_sums_of_a_job():
    totals = Totals()
    for usage in (5, 9, 7):
        totals.note_peak("A", usage)
    totals.note_computing("A", 0.5, 4.0)
    totals.note_computing("A", 0.25, 2.0)
    assert totals.peak == {"A": 9} and totals.gpu_time == {"A": 2.5} and totals.computing == {"A": 0.25}


def test_the_share_of_time_is_a_mean_over_seconds_that_are_over():
    time = GpuTime()
    assert time.means({"a": 4.0}, 100.0) == {}
    assert time.means({"a": 7.0}, 100.0 + EVERY - 1) == {}, "they are not over"
    assert time.means({"a": 9.0, "b": 1.0}, 100.0 + EVERY) == {"a": WHOLE // 2, "b": WHOLE // 10}
    assert time.means({"a": 99.0}, 100.0 + EVERY + 1) == {"a": WHOLE // 2, "b": WHOLE // 10}
    assert time.means({"a": 99.0, "b": 0.0}, 100.0 + 2 * EVERY) == {"a": WHOLE, "b": 0}, (
        "neither above the whole nor below"
    )


class Line:
    """A connection of a program whose socket and loop note what they are told."""

    def __init__(self):
        self.told, self.fails = [], None
        epoll = SimpleNamespace(
            add_reader=lambda fd, _call: self.told.append(("read", fd)),
            remove_reader=lambda fd: self.told.append(("wait", fd)),
        )
        sock = SimpleNamespace(fileno=lambda: 5, send=self.send, close=lambda: self.told.append("closed"))
        self.connection = shims.Connection(
            sock, SimpleNamespace(), ADA, epoll=epoll, on_closed=lambda _one: self.told.append("gone")
        )

    def send(self, frame):
        if self.fails is not None:
            raise self.fails
        self.told.append(frame)


def test_a_program_that_asks_and_does_not_read_is_not_read_until_half_is_answered():
    line = Line()
    one = line.connection
    one.listen(lambda: None)
    for _ in range(255):
        one.expect_answer()
    assert line.told == [("read", 5)]
    one.expect_answer()
    one.expect_answer()
    assert line.told == [("read", 5), ("wait", 5)], "once"
    while one.outstanding > 128:
        one.answered()
    assert len(line.told) == 2
    one.answered()
    one.answered()
    assert line.told == [("read", 5), ("wait", 5), ("read", 5)]


def test_answers_that_wait_go_in_their_order_once_the_program_reads(monkeypatch):
    line = Line()
    loop = SimpleNamespace(
        add_writer=lambda fd, _call: line.told.append(("write", fd)),
        remove_writer=lambda fd: line.told.append(("written", fd)),
    )
    monkeypatch.setattr(shims.asyncio, "get_running_loop", lambda: loop)
    one = line.connection
    for frame in (b"a", b"b"):
        one.expect_answer()
        one.unsendable(frame, errno.EAGAIN)
    assert line.told == [("write", 5)] and one.outstanding == 2
    line.fails = BlockingIOError()
    one._on_writable()
    assert line.told == [("write", 5)] and [*one.unsent] == [b"a", b"b"]
    line.fails = None
    one._on_writable()
    assert line.told == [("write", 5), b"a", b"b", ("written", 5)] and one.outstanding == 0
    one.unsendable(b"c", errno.EAGAIN)
    line.fails = BrokenPipeError()
    one._on_writable()
    assert line.told[4:] == [("write", 5), ("wait", 5), ("written", 5), "closed", "gone"] and one.fd == -1
    one.close()
    one.unsendable(b"d", errno.EAGAIN)
    assert len(line.told) == 9, "it is closed already"


def test_an_answer_to_a_program_that_has_gone_closes_its_connection():
    line = Line()
    line.connection.unsendable(b"a", errno.EPIPE)
    assert line.told == [("wait", 5), "closed", "gone"]


def test_how_far_each_process_is_with_a_trim():
    credit = CreditPages()
    credit.pages = {1: SimpleNamespace(trim_seen=lambda: None), 2: SimpleNamespace(trim_seen=lambda: "seen")}
    assert credit.trims_of([1, 2, 3]) == {2: "seen"}


class Kind(Followers):
    def first(self, job):
        return {"ask": job}

    def has_gone(self, job):
        return ("gone", job)


def test_the_process_that_follows_a_job_is_one_and_its_going_is_told():
    fed, closed, watched = [], [], []

    def process(pid):
        return SimpleNamespace(
            pid=pid, watch=lambda _epoll, call: watched.append(call), close=lambda: closed.append(pid)
        )

    followers = Kind(SimpleNamespace(feed=fed.append), SimpleNamespace(), lambda: None)
    first = followers.come("a", process(1))
    followers.tell("a", {"do": 1})
    followers.tell("b", {"do": 2})
    assert [*first.commands._items] == [{"ask": "a"}, {"do": 1}] and len(followers) == 1
    assert followers.of("a", 1) is first and followers.of("a", 2) is None and followers.of("b", 1) is None
    first.known = "here"
    assert followers.known("a") == "here" and followers.known("b") is None
    second = followers.come("a", process(2))
    assert closed == [1] and followers.of("a", 2) is second and followers.known("a") is None
    watched[0]()
    assert fed == [] and closed == [1], "the one before has been replaced"
    watched[1]()
    assert fed == [("gone", "a")] and closed == [1, 2] and len(followers) == 0
    followers.come("a", process(3))
    followers.come("b", process(4))
    followers.end_job("a")
    followers.end_job("a")
    assert closed == [1, 2, 3] and followers.of("b", 4) is not None
    followers.close()
    assert closed == [1, 2, 3, 4] and fed == [("gone", "a")] and len(followers) == 0
