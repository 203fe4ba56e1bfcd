"""GS_HELLO: who may join which job, and which page is whose."""

from __future__ import annotations

import os

import pytest
from daemon_harness import GIB, GPU, until
from shim_client import ShimClient

from gpushare._layout import lib
from gpushared.core.events import JobSubmitted


def register(daemon, **fields):
    body = {"name": "train", "command": ["train.py"], "request": "4Gi", "limit": "14Gi", "gpus": 1}
    return daemon.client.register(body | fields)


def test_a_process_of_a_job_gets_its_page(daemon):
    job = register(daemon, grace=2.5, priority=7)
    shim = daemon.connect()
    welcome = shim.hello(job["id"], request=4 * GIB, limit=14 * GIB)
    assert welcome.status == lib.GS_OK and f"{welcome.job_id:016x}" == job["id"]
    assert 3000 < welcome.patience_ms < 60_000
    page = shim.page
    assert page.page_id == welcome.page_id and page.pid == os.getpid() and page.uid == os.getuid()
    assert page.priority == 7 and page.grace_ms == 2500
    attached = shim.attach(GPU)
    assert (attached.status, attached.line) == (lib.GS_OK, 0)
    line = page.line[0]
    assert (line.request * 512, line.limit * 512) == (4 * GIB, 14 * GIB)
    assert line.attached and line.overhead and line.grantable
    (process,) = daemon.client.job(job["id"])["processes"]
    assert process["pid"] == os.getpid()
    shim.close()


def test_the_page_follows_what_others_do(daemon):
    """cuMemGetInfo reads it without asking."""
    mine, other = daemon.connect(), daemon.connect()
    mine.hello(request=2 * GIB, limit=14 * GIB)
    mine.attach(GPU)
    line = mine.page.line[0]
    before = until(lambda: line.grantable) * 512
    other.hello(request=4 * GIB, limit=8 * GIB)
    other.attach(GPU)
    other.allocate(6 * GIB)
    until(lambda: line.grantable * 512 <= before - 4 * GIB)
    mine.allocate(GIB)
    until(lambda: line.job_usage * 512 >= GIB)
    for shim in (mine, other):
        shim.close()


def test_the_environment_alone_makes_a_job_that_ends_with_its_process(daemon, program):
    one = program(daemon.shim)
    welcome = one.call("hello", request=2 * GIB, limit=3 * GIB, name="by-env", priority=4, grace_ms=1500)
    assert welcome["status"] == lib.GS_OK
    assert one.call("attach", GPU)["status"] == lib.GS_OK
    job = daemon.client.job("by-env")
    assert job["id"] == f"{welcome['job_id']:016x}" and job["priority"] == 4 and job["grace"] == 1.5
    assert (job["gpus"][0]["request"], job["gpus"][0]["limit"]) == (2 * GIB, 3 * GIB)
    one.close()
    until(lambda: daemon.client.jobs() == [])


def test_a_child_with_the_same_environment_joins_its_parents_job(daemon, program):
    one = program(daemon.shim)
    parent = one.call("hello", request=2 * GIB, limit=3 * GIB)
    child = one.call("fork_and_hello", 2 * GIB, 3 * GIB, False)
    other = one.call("fork_and_hello", GIB, GIB, False)
    assert child["job_id"] == parent["job_id"] and child["page_id"] != parent["page_id"]
    assert other["job_id"] != parent["job_id"]
    stranger = program(daemon.shim).call("hello", request=2 * GIB, limit=3 * GIB)
    assert stranger["job_id"] != parent["job_id"]


def test_a_limit_alone_is_the_request_too(daemon):
    shim = daemon.connect()
    shim.hello(limit=3 * GIB)
    shim.attach(GPU)
    assert shim.page.line[0].request == shim.page.line[0].limit == 3 * GIB // 512
    shim.close()


@pytest.mark.parametrize(
    ("request_amount", "limit", "says"),
    [(4 * GIB, 2 * GIB, "above the limit"), (2**63, None, "no amount"), ("2.0", None, "no amount")],
)
def test_budgets_that_make_no_sense_are_refused_with_words(daemon, request_amount, limit, says):
    shim = daemon.connect()
    welcome = shim.hello(request=request_amount, limit=limit)
    assert welcome.status == lib.GS_NOT_ADMITTED and says in welcome.text
    assert shim.page is None
    # The connection is still good for a better HELLO.
    assert shim.hello(request=GIB, limit=GIB).status == lib.GS_OK
    shim.close()


def test_a_job_on_which_the_core_fails_is_refused_with_words(make_daemon):
    daemon = make_daemon()

    def hello(**budget):
        shim = daemon.connect()
        welcome = shim.hello(**budget)
        shim.close()
        return welcome

    sound = daemon.call(lambda: daemon.shell.core.handle)

    def fails(event, now):
        if isinstance(event, JobSubmitted):  # and not a sample that comes just before
            raise RuntimeError
        return sound(event, now)

    daemon.call(lambda: setattr(daemon.shell.core, "handle", fails))  # of this core: the next one is sound
    welcome = hello(request=GIB, limit=GIB)
    assert welcome.status == lib.GS_NOT_ADMITTED and "the daemon failed on this request" in welcome.text
    assert daemon.client.jobs() == []
    assert hello(request=GIB, limit=GIB).status == lib.GS_OK
    daemon.shell.core_loop.errors = 0  # it was made


def test_a_request_that_has_no_place_is_refused_where_the_context_opens(daemon):
    register(daemon, request="12Gi", devices=["0"])
    shim = daemon.connect()
    assert shim.hello(request=8 * GIB, limit=8 * GIB).status == lib.GS_OK
    answer = shim.attach(GPU)
    assert answer.status == lib.GS_NOT_ADMITTED and "train" in answer.text and "12.0 GiB" in answer.text
    shim.close()


def test_a_gpu_that_nobody_knows(daemon):
    shim = daemon.connect()
    shim.hello(request=GIB, limit=GIB)
    answer = shim.attach("GPU-ffffffff-0000-0000-0000-000000000001")
    assert answer.status == lib.GS_UNKNOWN and "gpushare status" in answer.text
    shim.close()


def test_a_job_that_nobody_knows_any_more_is_made_again(daemon):
    shim = daemon.connect()
    welcome = shim.hello("00000000000000aa", request=GIB, limit=2 * GIB, name="survivor")
    assert welcome.status == lib.GS_OK and welcome.job_id == 0xAA
    # Its wrapper comes later.
    job = register(daemon, job="00000000000000aa", name="survivor")
    assert job["id"] == "00000000000000aa" and len(job["processes"]) == 1
    shim.close()


def test_reconnecting_with_the_page_changes_nothing(daemon):
    shim = daemon.connect()
    first = shim.hello(request=4 * GIB, limit=8 * GIB)
    shim.attach(GPU)
    shim.allocate(3 * GIB)
    word = shim.word()
    shim.reconnect(daemon.shim)
    again = shim.hello(request=4 * GIB, limit=8 * GIB, present=True)
    assert (again.status, again.page_id, again.job_id) == (lib.GS_OK, first.page_id, first.job_id)
    assert shim.word() == word
    assert shim.ask(GIB).status == lib.GS_OK
    assert len(daemon.shell.clients) == 1
    shim.close()


def test_a_page_whose_file_was_cleaned_away_is_taken_back(daemon, directory):
    shim = daemon.connect()
    first = shim.hello(request=4 * GIB, limit=8 * GIB, name="old-tmp")
    shim.attach(GPU)
    shim.allocate(3 * GIB)
    (file,) = (directory / "pages").iterdir()
    # A daemon that knows nothing of it: as after its directory was cleaned, and it was restarted.
    file.unlink()
    client = daemon.shell.clients.get(first.page_id)

    def forget():
        page, fd = client.page, os.dup(client.page.fd)
        daemon.shell.processes.gone(client)
        os.close(fd)
        return page

    daemon.call(forget)
    until(lambda: daemon.client.jobs() == [])
    shim.reconnect(daemon.shim)
    again = shim.hello(request=4 * GIB, limit=8 * GIB, present=True)
    assert again.page_id == first.page_id
    (job,) = daemon.client.jobs()
    assert job["gpus"][0]["accounted"] == 3 * GIB and job["name"] == "old-tmp"
    assert shim.ask(GIB).status == lib.GS_OK
    shim.close()


def test_a_forked_child_does_not_get_its_parents_page(daemon, program):
    one = program(daemon.shim)
    parent = one.call("hello", request=2 * GIB, limit=3 * GIB)
    child = one.call("fork_and_hello", 2 * GIB, 3 * GIB, True)
    assert child["status"] == lib.GS_OK and child["page_id"] != parent["page_id"]
    assert one.call("attach", GPU)["status"] == lib.GS_OK


def test_without_room_for_a_page_nothing_is_left_behind(daemon, monkeypatch):
    import errno

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(daemon.daemon.shims.handshake.pages, "create", full)
    shim = daemon.connect()
    welcome = shim.hello(request=GIB, limit=GIB)
    assert welcome.status == lib.GS_SHUTTING_DOWN and "No space" in welcome.text
    assert daemon.client.jobs() == []
    monkeypatch.undo()
    assert shim.hello(request=GIB, limit=GIB).status == lib.GS_OK
    shim.close()


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to be two users")
def test_another_users_job_is_not_for_us(make_daemon, directory):
    daemon = make_daemon()
    job = register(daemon)
    directory.chmod(0o711)
    daemon.shim.chmod(0o666)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        status = 255
        try:
            os.setgid(65534)
            os.setuid(65534)
            shim = ShimClient(daemon.shim)
            welcome = shim.hello(job["id"], request=GIB, limit=GIB)
            os.write(write, f"{welcome.status} {welcome.text}".encode())
            # But a job of its own it may have.
            status = shim.hello(request=GIB, limit=GIB).status
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    said = os.read(read, 4096).decode()
    os.close(read)
    os.close(write)
    assert said.startswith(f"{lib.GS_NOT_ALLOWED} ") and "another user" in said
    assert os.waitstatus_to_exitcode(status) == lib.GS_OK
