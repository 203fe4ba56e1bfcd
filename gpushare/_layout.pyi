"""Types of the compiled view of shim/credit.h and shim/wire.h; names and sizes come from the headers themselves."""

from typing import Any, Final

class _FFI:
    NULL: Any
    def new(self, cdecl: str, init: Any = ...) -> Any: ...
    def cast(self, cdecl: str, source: Any) -> Any: ...
    def sizeof(self, cdecl: Any) -> int: ...
    def offsetof(self, cdecl: Any, *fields: str | int) -> int: ...
    def typeof(self, cdecl: Any) -> Any: ...
    def addressof(self, cdata: Any, *fields: str | int) -> Any: ...
    def buffer(self, cdata: Any, size: int = ...) -> Any: ...
    def from_buffer(self, cdecl: str, source: Any, require_writable: bool = ...) -> Any: ...
    def memmove(self, dest: Any, src: Any, n: int) -> None: ...
    def string(self, cdata: Any, maxlen: int = ...) -> bytes: ...
    def release(self, cdata: Any) -> None: ...

class _Lib:
    GS_PAGE_MAGIC: Final[int]
    GS_PAGE_VERSION: Final[int]
    GS_PAGE_BYTES: Final[int]
    GS_PAGE_LINES: Final[int]
    GS_UNIT_BYTES: Final[int]
    GS_UNIT_SHIFT: Final[int]
    GS_UUID_BYTES: Final[int]
    GS_WIRE_MAGIC: Final[int]
    GS_WIRE_VERSION: Final[int]
    GS_FRAME_BYTES: Final[int]
    GS_TEXT_BYTES: Final[int]
    GS_HELLO: Final[int]
    GS_WELCOME: Final[int]
    GS_ATTACH: Final[int]
    GS_ASK: Final[int]
    GS_DETACH: Final[int]
    GS_ANSWER: Final[int]
    GS_TRIMMED: Final[int]
    GS_RUNG_TRIM: Final[int]
    GS_RUNG_TERM: Final[int]
    GS_RUNG_KILL: Final[int]
    GS_AMOUNT_UNSET: Final[int]
    GS_AMOUNT_BYTES: Final[int]
    GS_AMOUNT_SHARE: Final[int]
    GS_AMOUNT_MAX: Final[int]
    GS_OK: Final[int]
    GS_OVER_LIMIT: Final[int]
    GS_NOT_FREE: Final[int]
    GS_TIMED_OUT: Final[int]
    GS_NOT_ADMITTED: Final[int]
    GS_NOT_ALLOWED: Final[int]
    GS_UNKNOWN: Final[int]
    GS_BAD_FRAME: Final[int]
    GS_SHUTTING_DOWN: Final[int]
    GS_HELLO_HAS_PAGE: Final[int]
    GS_ASK_DRIVER_FAILED: Final[int]
    def gs_word_load(self, line: Any) -> int: ...
    def gs_word_used(self, word: int) -> int: ...
    def gs_word_credit(self, word: int) -> int: ...
    def gs_units(self, bytes: int) -> int: ...
    def gs_reserve(self, line: Any, units: int) -> int: ...
    def gs_release(self, line: Any, units: int) -> None: ...
    def gs_grant(self, line: Any, units: int) -> None: ...
    def gs_revoke(self, line: Any, units: int) -> int: ...
    def gs_ask_trim(self, page: Any) -> int: ...

ffi: _FFI
lib: _Lib
