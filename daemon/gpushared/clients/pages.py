"""Credit pages: makes them, maps them, finds them again after a restart.

A page is a file of 4096 bytes in DIR/pages, named by its id in hexadecimal, mode 0600; shim/credit.h defines its
content. Processes do not send their `used` words: the daemon reads them here, so a restarted daemon knows them without
the help of any process. The file is removed when its process has ended. A few pages are made ahead, in DIR/spare-pages,
because a program that opens its first context waits for its page.

A process can write anything into its page, and truncate the file. The daemon believes only `used`, up to the credit
that it gave. The ledger, which no process can reach, has the owner and the credit (ledger.py). A truncated page reads
as zeros, and its process is given up (shim/guard.h).

Each process gets an open file of its own, with a lock on it. The kernel drops the lock when the last descriptor and
the last mapping of that open file are gone. So the daemon notices an exec without reading the process's memory.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpushare._layout import ffi, lib
from gpushare.printable import printable
from gpushared.clients.ledger import Account, Header, Ledger, Terms
from gpushared.core.events import TrimSeen
from gpushared.system.logs import facts, log
from gpushared.system.processes import Process

PAGE_BYTES = int(lib.GS_PAGE_BYTES)
LINES = int(lib.GS_PAGE_LINES)
UNIT = int(lib.GS_UNIT_BYTES)
MAX_UNITS = 2**32 - 1

SPARES = 4


def uuid_bytes(gpu: str) -> bytes:
    """GPU-8-4-4-4-12 or MIG-8-4-4-4-12 as the 16 bytes that the driver gives out."""
    return uuid.UUID(gpu.split("-", 1)[1]).bytes


def units(size: int) -> int:
    return min(MAX_UNITS, -(-size // UNIT))


NOBODY = Header(0, 0, 0, 0, 0, 0, 0, "")


class OtherVersion(ValueError):
    """A page whose layout this daemon no longer knows."""

    def __init__(self, version: int) -> None:
        super().__init__(f"a page of version {version}")
        self.version = version


@dataclass(frozen=True, slots=True)
class LineSeen:
    """One line of a page that an earlier daemon made; bytes."""

    index: int
    uuid: bytes
    used: int
    credit: int
    overhead: int
    request: int
    limit: int


class Page:
    """One process's page, mapped."""

    __slots__ = ("_struct", "account", "fd", "gpus", "header", "lines", "path", "published")

    def __init__(self, fd: int, path: Path | None, *, fresh: bool = False) -> None:
        """Takes the descriptor over. `path`: None if the file has no name any more. `fresh`: it is all zeros."""
        mapped = lib.gs_page_map(fd)
        if mapped == ffi.NULL:
            raise OSError(ffi.errno, os.strerror(ffi.errno))
        self._struct = ffi.cast("struct gs_page *", mapped)
        self.account: Account | None = None
        """The page's record in the ledger; None until its owner is known."""
        self.fd = fd
        self.path = path
        self.lines: dict[str, Any] = {}
        """GPU -> its line (a cffi pointer)."""
        self.gpus: list[str] = []
        """By line number."""
        self.published: dict[str, object] = {}
        """GPU -> the figures that were last written into its line."""
        self.header = NOBODY if fresh else self._read_header()

    @property
    def id(self) -> int:
        return self.header.page_id

    def _read_header(self) -> Header:
        page = self._struct
        name = bytes(ffi.buffer(page.job_name)).split(b"\0", 1)[0].decode(errors="replace")
        return Header(
            page.page_id, page.job_id, page.start_time, page.pid, page.uid, page.priority, page.grace_ms, name
        )

    def write_header(self, header: Header) -> None:
        """The magic number is written last: a page without it was not finished."""
        page = self._struct
        page.version, page.size = lib.GS_PAGE_VERSION, PAGE_BYTES
        page.page_id, page.job_id, page.start_time = header.page_id, header.job_id, header.start_time
        page.pid, page.uid = header.pid, header.uid
        page.priority, page.grace_ms = header.priority, min(header.grace_ms, MAX_UNITS)
        page.job_name = cut(header.job_name, 47)
        page.magic = lib.GS_PAGE_MAGIC
        self.header = header

    def is_sound(self) -> bool:
        page = self._struct
        return bool(
            page.magic == lib.GS_PAGE_MAGIC
            and page.version >= lib.GS_PAGE_OLDEST
            and page.size == PAGE_BYTES
            and page.page_id != 0
            and page.page_id == self.header.page_id
        )

    @property
    def version(self) -> int:
        return int(self._struct.version) if self._struct.magic == lib.GS_PAGE_MAGIC else 0

    def line_of(self, gpu: str) -> int | None:
        """The number of the GPU's line, a fresh one if it has none; None: all are in use."""
        if gpu in self.lines:
            return self.gpus.index(gpu)
        if len(self.gpus) == LINES:
            return None
        line = self._struct.line[len(self.gpus)]
        ffi.buffer(line.uuid)[:] = uuid_bytes(gpu)
        self.gpus.append(gpu)
        self.lines[gpu] = ffi.addressof(line)
        if self.account is not None:
            self.account.open_line(uuid_bytes(gpu))
        return len(self.gpus) - 1

    def lines_seen(self) -> list[LineSeen]:
        """What an earlier daemon has given, and the process uses of it."""
        seen = []
        for index, given in enumerate(self.account.lines if self.account is not None else ()):
            line = self._struct.line[index]
            word = lib.gs_word_load(ffi.addressof(line))
            used = min(word >> 32, given.credit)
            credit = max(used, min(word & MAX_UNITS, given.credit))
            bounds = line.request * UNIT, line.limit * UNIT
            seen.append(LineSeen(index, given.uuid, used * UNIT, credit * UNIT, given.overhead * UNIT, *bounds))
        return seen

    def claimed_lines(self, most: Mapping[bytes, int]) -> None:
        """Enter the page's own amounts where the ledger has none. `most`: bytes to believe at most, by GPU."""
        assert self.account is not None
        for index in range(LINES):
            line = self._struct.line[index]
            identity = bytes(ffi.buffer(line.uuid))
            if identity not in most or any(known.uuid == identity for known in self.account.lines):
                break
            word = lib.gs_word_load(ffi.addressof(line))
            allowed = most[identity] // UNIT
            self.account.open_line(identity)
            overhead = min(line.overhead, allowed // 8) if line.attached else 0
            self.account.enter(index, min(max(word >> 32, word & MAX_UNITS), allowed), overhead)

    def take_lines(self, gpus: Mapping[bytes, str]) -> list[tuple[str, LineSeen]]:
        """After a restart: the lines by GPU. The line of a GPU that is gone keeps its number, without a usable name."""
        taken = []
        for seen in self.lines_seen():
            gpu = gpus.get(seen.uuid, f"GPU-{uuid.UUID(bytes=seen.uuid)}")
            self.gpus.append(gpu)
            self.lines[gpu] = ffi.addressof(self._struct.line[seen.index])
            if self.account is not None:
                self.account.correct(seen.index, units(seen.credit))
            if seen.uuid in gpus:
                taken.append((gpu, seen))
        return taken

    def ask_trim(self, gpu: str, wanted: int, within_ms: int) -> None:
        """Ask for so many units of this GPU. An unfinished trim of other GPUs stays asked for."""
        self._forget_last_trim()
        self.lines[gpu].trim_units = wanted
        self._ask_library(within_ms)

    def ask_quiet(self, within_ms: int) -> None:
        """A trim of nothing: with the gate closed the library's thread answers it when no call is in the driver."""
        self._forget_last_trim()
        self._ask_library(within_ms)

    def _forget_last_trim(self) -> None:
        page = self._struct
        if page.trim_done == page.trim_asked:
            for line in self.lines.values():
                line.trim_units = 0

    def _ask_library(self, within_ms: int) -> None:
        self._struct.trim_ms = min(within_ms, MAX_UNITS)
        lib.gs_ask_trim(self._struct)

    def wake_trimmer(self) -> None:
        """Have the library's thread look at the words of the lines."""
        lib.gs_wake_trimmer(self._struct)

    def may_be_asked_to_trim(self) -> None:
        """Let the process be asked to trim although its job borrows nothing. Call this before it opens a GPU."""
        self._struct.trim_ms = int(lib.GS_TRIM_MS)

    def trim_seen(self) -> TrimSeen | None:
        """How far the process is with the last trim; None: it cannot be asked to trim."""
        page = self._struct
        if not page.trim_ready:
            return None
        asked = page.trim_asked
        return TrimSeen(page.trim_begun == asked, page.trim_done == asked)

    def driver_copies(self) -> int:
        """How many copies of the driver its process says that it has, beside the one on which it is counted."""
        return int(self._struct.copies)

    def used(self) -> dict[str, int]:
        return {gpu: (lib.gs_word_load(line) >> 32) * UNIT for gpu, line in self.lines.items()}

    def move(self, path: Path) -> None:
        """Give a spare page its place: it has an owner now."""
        assert self.path is not None
        self.path.rename(path)
        self.path = path

    @property
    def broken(self) -> bool:
        """Its process has truncated the file: this mapping no longer shows what the process writes."""
        return bool(lib.gs_page_broken(self._struct))

    @contextlib.contextmanager
    def for_its_process(self) -> Iterator[int]:
        """A descriptor to send: an open file of its own, locked."""
        fd = os.open(f"/proc/self/fd/{self.fd}", os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH)
            yield fd
        finally:
            os.close(fd)

    def is_held(self) -> bool:
        """Whether the process, or one that it has forked, still has the file that was sent, open or mapped."""
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(self.fd, fcntl.LOCK_UN)
        return False

    def close(self, *, remove: bool) -> None:
        self.lines.clear()
        lib.gs_page_unmap(self._struct)
        self._struct = None
        os.close(self.fd)
        if remove and self.path is not None:
            self.path.unlink(missing_ok=True)
        if remove and self.account is not None:
            self.account.strike_out()
            self.account = None


def cut(text: str, size: int) -> bytes:
    """The text's first `size` bytes of UTF-8 at most, without half characters and without control characters."""
    data = printable(text).encode()
    return data if len(data) <= size else data[:size].decode(errors="ignore").encode()


class Pages:
    """The directory of them."""

    def __init__(self, directory: Path, *, adopts: bool = True) -> None:
        """`adopts`: a page without file and ledger is believed. Not if several users share the daemon: a user could
        keep the descriptor of a page and write any amount of credit into it."""
        self._directory = directory
        self._adopts = adopts
        self._spares_directory = directory.with_name(f"spare-{directory.name}")
        self._spares: list[tuple[int, Path, Page]] = []
        directory.mkdir(mode=0o700, exist_ok=True)
        self._spares_directory.mkdir(mode=0o700, exist_ok=True)
        for path in self._spares_directory.iterdir():
            path.unlink(missing_ok=True)  # an earlier daemon's, which had no owner yet
        self._device = directory.stat().st_dev
        self.ledger = Ledger(directory.with_name("ledger"))

    def create(
        self, owner: Process, uid: int, *, job: str, priority: int, grace_ms: int, name: str, terms: Terms | None = None
    ) -> Page:
        page_id, home, page = self._spares.pop() if self._spares else self._make()
        try:
            page.write_header(Header(page_id, int(job, 16), owner.start_time, owner.pid, uid, priority, grace_ms, name))
            page.account = self.ledger.open(page.header)
            if terms is not None:
                page.account.set_terms(terms)
            page.move(home)
        except BaseException:
            page.close(remove=True)
            raise
        return page

    def make_spares(self) -> None:
        """Make the next pages ready. Call this when no process waits."""
        while len(self._spares) < SPARES:
            self._spares.append(self._make())

    def close(self) -> None:
        while self._spares:
            self._spares.pop()[-1].close(remove=True)
        self.ledger.close()

    def _make(self) -> tuple[int, Path, Page]:
        """A page without an owner, with the id and the path that it will have."""
        page_id, home = 0, self._directory
        while page_id == 0 or home.exists():
            page_id = secrets.randbits(64)
            home = self._path(page_id)
        path = self._spares_directory / f"{page_id:016x}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            # Not ftruncate: on a full disk it would succeed, and the first store would raise a signal.
            os.posix_fallocate(fd, 0, PAGE_BYTES)
            return page_id, home, Page(fd, path, fresh=True)
        except BaseException:
            os.close(fd)
            path.unlink(missing_ok=True)
            raise

    def reopen(self) -> Iterator[tuple[Page, Process]]:
        """The pages of an earlier daemon whose processes live; the others are removed."""
        for path in sorted(self._directory.iterdir()):
            try:
                found = self._reopen_one(path)
            except OtherVersion as error:
                # Kept as it is: the daemon that made it may come back. Its program is outside of gpushare until then.
                log.warning("a page is too old for this daemon", extra=facts(page=path.name, version=error.version))
                self.ledger.found.pop(int(path.name, 16))
                continue
            if found is None:
                log.info("page removed: its process is gone", extra=facts(page=path.name))
                path.unlink(missing_ok=True)
            else:
                yield found
        self.ledger.forget_found()

    def _reopen_one(self, path: Path) -> tuple[Page, Process] | None:
        try:
            account = self.ledger.found[int(path.name, 16)]
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except (OSError, KeyError, ValueError):
            return None
        page = map_checked(fd, path)
        if page is None:
            return None
        owner = Process.open(account.header.pid, account.header.start_time)
        # Still held? The process may have become another program while no daemon was looking.
        if owner is not None and page.id == account.header.page_id and page.is_held():
            page.header, page.account = account.header, account
            del self.ledger.found[page.id]
            return page, owner
        if owner is not None:
            owner.close()
        page.close(remove=False)
        return None

    def adopt(self, fd: int) -> Page | None:
        """A page that a process presents and whose file is no longer in the directory (it was cleaned up).

        The file must be made by a daemon of this user, not by the presenting user. The descriptor stays the caller's:
        closing a descriptor of another user may take as long as that user likes.
        """
        if not self._adopts or not lib.gs_page_is_ours(fd, self._device):
            return None
        with contextlib.suppress(OtherVersion):
            return map_checked(os.dup(fd), None)
        return None

    def _path(self, page_id: int) -> Path:
        return self._directory / f"{page_id:016x}"


def map_checked(fd: int, path: Path | None) -> Page | None:
    """Map a page that another process has written; None if it is no page, and the descriptor is closed."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_size != PAGE_BYTES:
        os.close(fd)
        return None
    try:
        page = Page(fd, path)
    except (OSError, ValueError):
        os.close(fd)
        return None
    if not page.is_sound():
        version = page.version
        page.close(remove=False)
        if 0 < version < lib.GS_PAGE_OLDEST:
            raise OtherVersion(version)
        return None
    return page
