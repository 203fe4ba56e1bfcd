"""What the page knows of the user who looks at it, and of this machine."""

from __future__ import annotations

import os
import pwd
import socket
from typing import TypedDict

from gpushare import __version__

__all__ = ["About", "about"]


class About(TypedDict):
    key: str  # of the session; empty in a report, which has none
    uid: int
    user: str
    host: str
    version: str
    read_only: bool


def about(key: str, *, read_only: bool) -> About:
    return {
        "key": key,
        "uid": os.getuid(),
        "user": _user_name(),
        "host": socket.gethostname(),
        "version": __version__,
        "read_only": read_only,
    }


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
