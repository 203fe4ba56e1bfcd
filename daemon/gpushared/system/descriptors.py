"""Closes descriptors that clients send (SCM_RIGHTS) and that the daemon did not ask for.

Closing a descriptor may take long: a TCP socket that lingers waits for its data to be sent; a file on the sender's own
file system (FUSE) waits for that to answer. The kernel waits in the same way if a receiver leaves no room for
descriptors. So the daemon receives all of them (at most MOST_IN_ONE in a message) and closes them on a thread for the
user who sent them: only that user waits for stuck ones.
"""

from __future__ import annotations

import array
import contextlib
import os
import socket
import struct
import threading
from collections import deque

from gpushare._layout import lib

MOST_IN_ONE = int(lib.GS_MOST_DESCRIPTORS)
SPACE = socket.CMSG_SPACE(MOST_IN_ONE * 4)
MOST_OPEN = 1024
"""Descriptors of one user that are not closed yet. With more, the daemon does not serve the user until they are."""
NO_LINGER = struct.pack("ii", 0, 0)


def descriptors_in(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    found = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return list(found)


class DescriptorCloser:
    """Closes descriptors, and knows how many of each user are still open."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[int, deque[int]] = {}
        self._open: dict[int, int] = {}

    def take(self, uid: int, descriptors: list[int]) -> None:
        if not descriptors:
            return
        with self._lock:
            self._open[uid] = self._open.get(uid, 0) + len(descriptors)
            waiting = self._waiting.get(uid)
            if waiting is not None:
                waiting.extend(descriptors)
                return
            self._waiting[uid] = deque(descriptors)
        threading.Thread(target=self._close_all, args=(uid,), name=f"descriptors-{uid}", daemon=True).start()

    def too_many(self, uid: int) -> bool:
        return self._open.get(uid, 0) > MOST_OPEN

    def _close_all(self, uid: int) -> None:
        while True:
            with self._lock:
                waiting = self._waiting[uid]
                if not waiting:
                    del self._waiting[uid]
                    self._open.pop(uid, None)
                    return
                descriptor = waiting.popleft()
            _close(descriptor)
            with self._lock:
                self._open[uid] -= 1


def _close(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        stranger = socket.socket(fileno=descriptor)  # an error if it is no socket
        with contextlib.suppress(OSError):
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
        stranger.close()
        return
    with contextlib.suppress(OSError):
        os.close(descriptor)


class CarefulSocket(socket.socket):
    """A stream for a transport of asyncio. Descriptors that come with the data go to the closer."""

    def __init__(self, sock: socket.socket, closer: DescriptorCloser, uid: int, most: int) -> None:
        """Takes the socket over. `most`: bytes that are read at once, because all that is read is handled at once."""
        super().__init__(fileno=sock.detach())
        self._closer = closer
        self._uid = uid
        self._most = most

    def recv(self, size: int, flags: int = 0) -> bytes:
        data, ancillary, _, _ = self.recvmsg(min(size, self._most), SPACE, flags | socket.MSG_CMSG_CLOEXEC)
        if ancillary:
            self._closer.take(self._uid, descriptors_in(ancillary))
        return data
