"""Frames of the shims' socket (shim/wire.h): their numbers, and memory for the frames of one system call."""

from __future__ import annotations

from gpushare._layout import ffi, lib
from gpushare.reasons import Code

FRAME_BYTES = int(lib.GS_FRAME_BYTES)
TEXT_BYTES = int(lib.GS_TEXT_BYTES)
MAGIC, VERSION, OLDEST = int(lib.GS_WIRE_MAGIC), int(lib.GS_WIRE_VERSION), int(lib.GS_WIRE_OLDEST)
HELLO, WELCOME, ATTACH = int(lib.GS_HELLO), int(lib.GS_WELCOME), int(lib.GS_ATTACH)
ASK, DETACH, ANSWER = int(lib.GS_ASK), int(lib.GS_DETACH), int(lib.GS_ANSWER)
TRIMMED = int(lib.GS_TRIMMED)
HEADER = {"magic": MAGIC, "version": VERSION, "size": FRAME_BYTES}
NO_BODY = bytes(FRAME_BYTES - ffi.offsetof("struct gs_frame", "u"))
OK, BAD_FRAME, UNKNOWN = int(lib.GS_OK), int(lib.GS_BAD_FRAME), int(lib.GS_UNKNOWN)
DRIVER_FAILED, FAILED_AGAIN = int(lib.GS_ASK_DRIVER_FAILED), int(lib.GS_ASK_FAILED_AGAIN)

AT_ONCE = 32
"""Frames that one system call receives, or sends."""

STATUS = {
    Code.OVER_LIMIT: int(lib.GS_OVER_LIMIT),
    Code.NOT_FREE: int(lib.GS_NOT_FREE),
    Code.CLAIM_TIMED_OUT: int(lib.GS_TIMED_OUT),
    Code.NOT_ADMITTED: int(lib.GS_NOT_ADMITTED),
    Code.TOO_LARGE: int(lib.GS_NOT_ADMITTED),
    Code.BAD_BUDGET: int(lib.GS_NOT_ADMITTED),
    Code.GPU_UNHEALTHY: int(lib.GS_NOT_ADMITTED),
    Code.SUSPENDED: int(lib.GS_ASK_AGAIN),
    Code.NO_SUCH_GPU: UNKNOWN,
    Code.NO_SUCH_JOB: UNKNOWN,
}
"""The wire's status for the code of a refusal."""


class FrameBatch:
    """Memory for a frame each of AT_ONCE connections, as the C functions of _layout take it."""

    def __init__(self) -> None:
        self.sockets = ffi.new("int[]", AT_ONCE)
        self.results = ffi.new("int[]", AT_ONCE)
        """Results of the system calls: sizes, or errors."""
        self.frames = ffi.new("struct gs_frame[]", [HEADER] * AT_ONCE)
        self.each = [self.frames + number for number in range(AT_ONCE)]
