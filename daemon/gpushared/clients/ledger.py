"""The ledger: the daemon's own record of the owner of each credit page, and of the credit that it gave.

Processes can write anything into their pages: another program's pid, another user's job, any credit. A daemon that
restarts must not believe it. The ledger is a file beside the pages, on the same tmpfs, and no process gets it. The
daemon changes it with plain stores into a mapping, so it is complete up to the daemon's last instruction. Credit is
entered before it is given and struck out after it was taken: the ledger never has less than an honest page.

The terms of each job are here too, so that a job keeps its limit even if state.json is old or lost (recovery.py).

Older and newer daemons read each other's ledger: a record only grows at its end, and zero there means "not said".
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass, field
from pathlib import Path

from gpushare._layout import lib
from gpushare.job_spec import JobSpec
from gpushare.quantity import Kind, Quantity
from gpushare.reclaim_steps import JOB_STEPS, STEP_BITS, USUAL_STEPS, ReclaimStep

LINES = int(lib.GS_PAGE_LINES)
_HEADER = struct.Struct("<QQQIIiI48s")  # page, job, start time, pid, uid, priority, grace, name
_LINE = struct.Struct("<16sII")  # uuid, credit and overhead in units
_AMOUNTS = struct.Struct("<II")
_PAGE_ID = struct.Struct("<Q")
_TERMS = struct.Struct("<BBHIQQ")  # kinds of request and limit, reclaim steps, least run time in ms, request, limit
LINES_AT = 96
TERMS_AT = LINES_AT + LINES * _LINE.size
AMOUNTS_AT = 16
"""Behind the uuid."""
RECORD_BYTES = 1024
GROWTH = 64
"""Records by which the file grows."""

KINDS = (None, Kind.BYTES, Kind.SHARE, Kind.MAX, Kind.NONE)
"""The kinds of amounts, by their numbers in the terms. None: not said."""

assert _HEADER.size <= LINES_AT and TERMS_AT + _TERMS.size <= RECORD_BYTES


@dataclass(frozen=True, slots=True)
class Terms:
    """A job's budget and reclaim options, as far as the environment alone can set them."""

    request: Quantity
    limit: Quantity
    on_reclaim: tuple[ReclaimStep, ...]
    min_run_time: float

    @classmethod
    def of(cls, spec: JobSpec) -> Terms:
        return cls(spec.request, spec.limit, spec.on_reclaim, spec.min_run_time)


@dataclass(frozen=True, slots=True)
class Header:
    """The process and job that a page belongs to."""

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
    """The credit and overhead on one GPU, in units."""

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
    terms: Terms | None = None

    def set_terms(self, terms: Terms) -> None:
        """Record the terms of its job."""
        self.terms = terms
        steps = sum(STEP_BITS[step] for step in terms.on_reclaim)
        _TERMS.pack_into(
            self.ledger.map,
            self.number * RECORD_BYTES + TERMS_AT,
            KINDS.index(terms.request.kind),
            KINDS.index(terms.limit.kind),
            steps,
            min(int(terms.min_run_time * 1000), 2**32 - 1),
            terms.request.value,
            terms.limit.value,
        )

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

    def correct(self, index: int, credit: int) -> None:
        """Set the credit (units): an earlier daemon entered more than it gave before it ended."""
        self.enter(index, credit - self.lines[index].credit, None)

    def strike_out(self) -> None:
        """Remove the record: the page is removed."""
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
        """Records that an earlier daemon left, by page; taken out when the page is found."""
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
        """Remove the records whose pages were not found."""
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
        account.terms = _read_terms(_TERMS.unpack_from(self.map, at + TERMS_AT))
        return account


def _read_terms(found: tuple[int, ...]) -> Terms | None:
    request, limit, steps, min_run_ms, request_value, limit_value = found
    amounts = _quantity(request, request_value), _quantity(limit, limit_value)
    if amounts[0] is None or amounts[1] is None:
        return None
    on_reclaim = tuple(step for step in JOB_STEPS if steps & STEP_BITS[step])
    return Terms(amounts[0], amounts[1], on_reclaim or USUAL_STEPS, min_run_ms / 1000)


def _quantity(number: int, value: int) -> Quantity | None:
    kind = KINDS[number] if number < len(KINDS) else None
    return None if kind is None else Quantity.plain(kind, value)
