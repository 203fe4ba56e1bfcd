"""Pages: made, found again, and given up when their process is gone. Nothing that is not a page gets mapped."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpushare._layout import ffi, lib
from gpushared.clients.pages import OtherVersion, Page, Pages, cut, map_checked, units
from gpushared.system.processes import Process, start_time

GPU = "GPU-00000000-0000-0000-0000-00000000000a"
MIG = "MIG-00000000-0000-0000-0000-00000000000b"


@pytest.fixture
def pages(directory):
    return Pages(directory / "pages")


@pytest.fixture
def me():
    process = Process.open(os.getpid())
    yield process
    process.close()


def make(pages: Pages, owner: Process, name: str = "train") -> Page:
    return pages.create(owner, 1000, job="00000000000000ff", priority=-3, grace_ms=2500, name=name)


def open_descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def reopened(pages: Pages):
    """What another daemon finds."""
    later = Pages(pages._directory)
    found = list(later.reopen())
    for page, owner in found:
        page.close(remove=False)
        owner.close()
    later.close()
    return [page.id for page, _ in found]


def test_a_new_page_says_whose_it_is(pages, me, directory):
    page = make(pages, me)
    header = page.header
    assert header.pid == os.getpid() and header.start_time == me.start_time
    assert (header.uid, header.job_id, header.priority, header.grace_ms) == (1000, 0xFF, -3, 2500)
    assert page.id != 0 and page.is_sound()
    file = directory / "pages" / f"{page.id:016x}"
    assert file.stat().st_size == lib.GS_PAGE_BYTES and file.stat().st_mode & 0o777 == 0o600
    page.close(remove=True)
    assert not file.exists()


def test_times_and_sizes_that_a_page_has_no_bits_for_are_the_most_that_it_has(pages, me):
    """Of 32 bits: 49 days in milliseconds, 2 TiB in units. Without that the job would not begin at all."""
    most, year = 2**32 - 1, 365 * 86400 * 1000
    page = pages.create(me, 1000, job="00000000000000ff", priority=0, grace_ms=year, name="train")
    page.line_of(GPU)
    page.ask_trim(GPU, 1, year)
    assert (page._struct.grace_ms, page._struct.trim_ms) == (most, most)
    assert units(2**50) == most
    page.close(remove=True)


def test_a_page_is_found_again_with_its_words(pages, me, directory):
    page = make(pages, me)
    assert page.line_of(GPU) == 0 and page.line_of(MIG) == 1 and page.line_of(GPU) == 0
    page.account.enter(0, 1000, 7)
    lib.gs_grant(page.lines[GPU], 1000)
    assert lib.gs_reserve(page.lines[GPU], 600)
    page.lines[GPU].overhead, page.lines[GPU].attached = 7, 1
    with page.for_its_process():
        ((again, owner),) = Pages(directory / "pages").reopen()
    ((gpu, seen),) = again.take_lines({bytes(15) + b"\x0a": GPU})
    assert (gpu, seen.used, seen.credit, seen.overhead) == (GPU, 600 * 512, 1000 * 512, 7 * 512)
    assert again.line_of(GPU) == 0, "the line keeps its number"
    assert again.header.job_name == "train"
    for one in (page, again):
        one.close(remove=False)
    owner.close()


def test_a_page_that_is_too_old_is_named_and_kept_as_it_is(pages, me, directory, caplog, monkeypatch):
    def of_version_1(fd, _path):
        """No version has been dropped yet."""
        os.close(fd)
        raise OtherVersion(1)

    page = make(pages, me)
    monkeypatch.setattr("gpushared.clients.pages.map_checked", of_version_1)
    before = Path(page.path).read_bytes()
    with page.for_its_process():
        assert list(Pages(directory / "pages").reopen()) == []
    (said,) = (one for one in caplog.records if one.levelname == "WARNING")
    assert said.getMessage() == "a page is too old for this daemon"
    assert said.facts == {"page": f"{page.id:016x}", "version": 1}
    assert Path(page.path).read_bytes() == before
    page.close(remove=True)


def test_a_page_of_a_dead_process_is_removed(pages, directory):
    child = subprocess.Popen(["sleep", "60"])
    owner = Process.open(child.pid)
    page = make(pages, owner)
    with page.for_its_process():  # somebody has it, but not the one whose page it is
        assert reopened(pages) == [page.id]
        page.close(remove=False)
        child.send_signal(signal.SIGKILL)
        time.sleep(0.05)  # a zombie: not waited for
        assert start_time(child.pid) is not None
        assert reopened(pages) == []
    assert list((directory / "pages").iterdir()) == []
    child.wait()
    owner.close()


def test_a_page_of_a_process_that_has_become_another_program_is_removed(pages):
    with subprocess.Popen(["sleep", "60"]) as child:
        owner = Process.open(child.pid)
        page = make(pages, owner)
        with page.for_its_process():
            assert page.is_held() and reopened(pages) == [page.id]
        # It lives, under the same pid and start time, but nobody has the page any more.
        assert not page.is_held() and reopened(pages) == []
        page.close(remove=False)
        owner.close()
        child.kill()


def test_the_pid_alone_is_not_enough(pages, me):
    page = make(pages, SimpleNamespace(pid=me.pid, start_time=me.start_time - 1))
    with page.for_its_process():
        assert reopened(pages) == []
    page.close(remove=True)


def test_what_a_process_writes_about_itself_is_not_believed(pages, me):
    """Somebody else's pid and job, credit without end, less overhead, another GPU."""
    page = make(pages, me)
    page.line_of(GPU)
    page.account.enter(0, 1000, 7)
    lib.gs_grant(page.lines[GPU], 1000)
    struct, line = page._struct, page.lines[GPU]
    struct.pid, struct.start_time, struct.uid, struct.job_id = 1, 1, 0, 0xEE
    line.word, line.overhead = 0xFFFFFFF0_FFFFFFFF, 0
    ffi.buffer(line.uuid)[:] = b"\xff" * 16
    ffi.buffer(struct.line[1].uuid)[:] = b"\xee" * 16
    with page.for_its_process():
        later = Pages(pages._directory)
        ((again, owner),) = later.reopen()
    assert again.header == page.header and again.header.pid == me.pid and again.header.job_id == 0xFF
    ((gpu, seen),) = again.take_lines({bytes(15) + b"\x0a": GPU})
    assert (gpu, seen.used, seen.credit, seen.overhead) == (GPU, 1000 * 512, 1000 * 512, 7 * 512)
    for one in (page, again):
        one.close(remove=False)
    owner.close()
    later.close()


def test_used_lower_than_it_is_leaves_the_credit_that_was_given(pages, me):
    page = make(pages, me)
    page.line_of(GPU)
    page.account.enter(0, 1000, None)
    lib.gs_grant(page.lines[GPU], 1000)
    page.lines[GPU].word = 1000  # used: nothing
    (seen,) = page.lines_seen()
    assert (seen.used, seen.credit) == (0, 1000 * 512)
    page.close(remove=True)


def test_a_page_that_was_cut_short_reads_as_zeros_and_says_so(pages, me):
    page, other = make(pages, me), make(pages, me)
    page.line_of(GPU)
    line = page.lines[GPU]
    lib.gs_grant(line, 1000)
    before = lib.gs_pages_broken()
    with page.for_its_process() as fd:
        os.ftruncate(fd, 0)
    assert lib.gs_word_load(line) == 0 and page.broken and lib.gs_pages_broken() == before + 1
    lib.gs_grant(line, 5)
    assert lib.gs_revoke(line, 9) == 5, "whatever is done to it now is done to nobody"
    assert not other.broken and other.is_sound()
    page.close(remove=True)
    again = make(pages, me)  # in the same place
    assert not again.broken and again.is_sound()
    again.close(remove=True)
    other.close(remove=True)


def test_the_ledger_grows_and_is_read_again(pages, me):
    made = [make(pages, me) for _ in range(200)]
    for number, page in enumerate(made):
        page.line_of(GPU)
        page.account.enter(0, number, None)
    for page in made[::2]:
        page.close(remove=True)
    ledger = Pages(pages._directory).ledger
    assert {id: account.lines[0].credit for id, account in ledger.found.items()} == {
        page.id: number for number, page in enumerate(made) if number % 2
    }
    ledger.forget_found()
    assert Pages(pages._directory).ledger.found == {}
    for page in made[1::2]:
        page.close(remove=False)


@pytest.mark.parametrize("content", [b"", b"x" * 4095, b"x" * 4096, bytes(4096), bytes(8192)])
def test_what_is_no_page_is_not_mapped(pages, me, content):
    page = make(pages, me)
    with page.for_its_process():
        assert reopened(pages) == [page.id]
        page.path.write_bytes(content)
        assert reopened(pages) == []
    assert not page.path.exists()
    page.close(remove=False)
    fd = os.open("/dev/null", os.O_RDWR)
    assert map_checked(fd, None) is None


def test_links_out_of_the_directory_are_not_followed(pages, me, directory, tmp_path):
    page = make(pages, me)
    outside = tmp_path / "outside"
    page.path.rename(outside)
    page.path.symlink_to(outside)
    with page.for_its_process():
        assert reopened(pages) == []
    assert outside.exists()
    page.close(remove=False)


def test_a_page_without_a_name_is_adopted_and_a_users_own_file_is_not(pages, me, tmp_path):
    page = make(pages, me)
    mine = os.dup(page.fd)
    page.path.unlink()
    adopted = pages.adopt(mine)
    assert adopted is not None and adopted.id == page.id
    adopted.close(remove=False)
    os.close(mine)
    # The content is right, but anybody could have written this file.
    copy = tmp_path / "copy"
    copy.write_bytes(bytes(ffi.buffer(page._struct)))
    assert pages.adopt(os.open(copy, os.O_RDWR)) is None
    memory = os.memfd_create("page")
    os.write(memory, copy.read_bytes())
    os.fchmod(memory, 0o644)
    assert pages.adopt(memory) is None
    page.close(remove=False)


def test_lines_run_out(pages, me):
    page = make(pages, me)
    gpus = [f"GPU-00000000-0000-0000-0000-{index + 1:012x}" for index in range(lib.GS_PAGE_LINES + 1)]
    assert [page.line_of(gpu) for gpu in gpus] == [*range(lib.GS_PAGE_LINES), None]
    page.close(remove=True)


def test_names_are_cut_between_characters(pages, me):
    page = make(pages, me, name="ü" * 60)
    again = Page(os.dup(page.fd), None)
    assert again.header.job_name == "ü" * 23
    assert cut("aé", 2) == b"a"
    again.close(remove=False)
    page.close(remove=True)


def test_no_descriptor_is_left(pages, me):
    before = open_descriptors()
    for _ in range(3):
        make(pages, me).close(remove=True)
    fd = os.open("/dev/null", os.O_RDWR)
    assert map_checked(fd, None) is None
    assert open_descriptors() == before
