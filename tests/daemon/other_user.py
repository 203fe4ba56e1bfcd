"""Doing something as another user, for tests that run as root."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from gpushare.errors import GpushareError

ALICE, BOB, CAROL = 61001, 61002, 61003
"""Users without accounts: nobody's files, nobody's processes."""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as several users")


def as_user(uid: int, function: Callable[[], Any]) -> Any:
    """The result of the function in a forked child of that user; its GpushareError comes back as (code, text)."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read)
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            try:
                answer = {"result": function()}
            except GpushareError as error:
                answer = {"refused": [error.code, error.render()]}
            except BaseException:
                answer = {"failed": traceback.format_exc()}
            with os.fdopen(write, "w") as pipe:
                json.dump(answer, pipe)
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    answer = json.loads(text)
    assert "failed" not in answer, answer["failed"]
    return answer["result"] if "result" in answer else tuple(answer["refused"])
