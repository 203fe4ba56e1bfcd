"""The daemon's own book of what it has put into the credit pages: whose each page is, and the credit of its lines.

Processes write into their pages, and may write anything there: another program's pid, another user's job, credit
without end. A daemon that was killed and comes again must not believe that. This file is beside the pages, on the
same tmpfs, and never handed out; it is changed with plain stores into its mapping, so it is as old as the last
instruction of the daemon that went. Credit is entered before it is given and struck out after it was taken: what
stands here is never less than what the page honestly says.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass, field
from pathlib import Path

from gpushare._layout import lib

LINES = int(lib.GS_PAGE_LINES)
_HEADER = struct.Struct("<QQQIIiI48s")  # page, job, start time, pid, uid, priority, grace, name
_LINE = struct.Struct("<16sII")  # uuid, credit and overhead in units
_AMOUNTS = struct.Struct("<II")
_PAGE_ID = struct.Struct("<Q")
LINES_AT = 96
AMOUNTS_AT = 16
"""Behind the uuid."""
RECORD_BYTES = 1024
GROWTH = 64
"""Records by which the file grows."""

assert _HEADER.size <= LINES_AT and LINES_AT + LINES * _LINE.size <= RECORD_BYTES


@dataclass(frozen=True, slots=True)
class Header:
    """Who a page belongs to."""

    page_id: int
    job_id: int
    start_time: int
    pid: int
    uid: int
    priority: int
    grace_ms: int
    job_name: str


@dataclass(slots=True)
class Line:
    """What was given on one GPU, in units."""

    uuid: bytes
    at: int
    """Where in the file its amounts stand."""
    credit: int = 0
    overhead: int = 0


@dataclass(slots=True)
class Account:
    """One page's record."""

    ledger: Ledger
    number: int
    header: Header
    lines: list[Line] = field(default_factory=list)

    def open_line(self, uuid: bytes) -> None:
        """The next line of the page is this GPU's."""
        at = self.number * RECORD_BYTES + LINES_AT + len(self.lines) * _LINE.size
        self.lines.append(Line(uuid, at + AMOUNTS_AT))
        _LINE.pack_into(self.ledger.map, at, uuid, 0, 0)

    def enter(self, index: int, given: int, overhead: int | None) -> None:
        """Credit that is given (below zero: that was taken back), and the overhead as it is now; None: as it was."""
        line = self.lines[index]
        if not given and (overhead is None or overhead == line.overhead):
            return
        line.credit = max(0, min(line.credit + given, 2**32 - 1))
        if overhead is not None:
            line.overhead = overhead
        _AMOUNTS.pack_into(self.ledger.map, line.at, line.credit, line.overhead)

    def strike_out(self) -> None:
        """The page is no more."""
        self.ledger.strike_out(self)


class Ledger:
    """All records."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        size = os.fstat(self._fd).st_size // RECORD_BYTES * RECORD_BYTES
        self._records = max(GROWTH, size // RECORD_BYTES)
        os.posix_fallocate(self._fd, 0, self._records * RECORD_BYTES)
        self.map = mmap.mmap(self._fd, self._records * RECORD_BYTES)
        self._free: list[int] = []
        self.found: dict[int, Account] = {}
        """What an earlier daemon has left, by page; whoever knows the page takes it out."""
        for number in reversed(range(self._records)):
            account = self._read(number)
            if account is None:
                self._free.append(number)
            else:
                self.found[account.header.page_id] = account

    def open(self, header: Header) -> Account:
        """A record for a new page. The id is written last: without it there is no record."""
        if not self._free:
            self._grow()
        account = Account(self, self._free.pop(), header)
        at = account.number * RECORD_BYTES
        self.map[at : at + RECORD_BYTES] = bytes(RECORD_BYTES)
        name = header.job_name.encode()[:47].decode(errors="ignore").encode()
        _HEADER.pack_into(
            self.map,
            at,
            0,
            header.job_id,
            header.start_time,
            header.pid,
            header.uid,
            header.priority,
            min(header.grace_ms, 2**32 - 1),
            name,
        )
        _PAGE_ID.pack_into(self.map, at, header.page_id)
        return account

    def strike_out(self, account: Account) -> None:
        _PAGE_ID.pack_into(self.map, account.number * RECORD_BYTES, 0)
        self._free.append(account.number)

    def forget_found(self) -> None:
        """The records whose pages nobody has any more."""
        for account in self.found.values():
            self.strike_out(account)
        self.found.clear()

    def close(self) -> None:
        self.map.close()
        os.close(self._fd)

    def _grow(self) -> None:
        records = self._records + GROWTH
        os.posix_fallocate(self._fd, 0, records * RECORD_BYTES)
        self.map.resize(records * RECORD_BYTES)
        self._free = list(reversed(range(self._records, records)))
        self._records = records

    def _read(self, number: int) -> Account | None:
        at = number * RECORD_BYTES
        page, job, start, pid, uid, priority, grace, name = _HEADER.unpack_from(self.map, at)
        if page == 0:
            return None
        text = name.split(b"\0", 1)[0].decode(errors="replace")
        account = Account(self, number, Header(page, job, start, pid, uid, priority, grace, text))
        for index in range(LINES):
            line_at = at + LINES_AT + index * _LINE.size
            uuid, credit, overhead = _LINE.unpack_from(self.map, line_at)
            if not any(uuid):
                break
            account.lines.append(Line(uuid, line_at + AMOUNTS_AT, credit, overhead))
        return account
