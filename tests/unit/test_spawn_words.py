"""Why a program did not start: as a shell would tell it, with its exit statuses."""

from __future__ import annotations

import errno

import pytest

from gpushare import spawn


@pytest.mark.parametrize(
    ("error", "there", "status", "said"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file or directory"), False, 127, "command not found: {}"),
        (
            FileNotFoundError(errno.ENOENT, "No such file or directory"),
            True,
            126,
            "cannot execute {}: its interpreter does not exist",
        ),
        (PermissionError(errno.EACCES, "Permission denied"), True, 126, "cannot execute {}: permission denied"),
        (OSError(errno.ENOEXEC, "Exec format error"), True, 126, "cannot execute {}: exec format error"),
        (OSError("Odd"), True, 126, "cannot execute {}: odd"),
        (ValueError("embedded null byte"), True, 2, "cannot execute {}: embedded null byte"),
    ],
)
def test_why_it_did_not_start(error, there, status, said, tmp_path, monkeypatch):
    path = tmp_path / "program"
    if there:
        path.write_text("")

    def fail(*_, **__):
        raise error

    monkeypatch.setattr(spawn.os, "execve", fail)
    monkeypatch.setattr(spawn.os, "posix_spawn", fail)
    monkeypatch.setattr(spawn.signal, "signal", lambda number, action: None)
    told = spawn.exec_program(str(path), ["program"], {})
    assert (told.message, told.exit_code) == (said.format(path), status)
    with pytest.raises(type(told)) as caught:
        spawn.spawn_program(str(path), ["program"], {}, set())
    assert caught.value.message == told.message


def test_who_becomes_the_program_takes_no_signals_along_that_python_ignores(monkeypatch):
    restored = {}
    monkeypatch.setattr(spawn.signal, "signal", restored.__setitem__)
    monkeypatch.setattr(spawn.os, "execve", lambda *_: (_ for _ in ()).throw(OSError(errno.EACCES, "no")))
    spawn.exec_program("/x", ["x"], {})
    assert set(restored) == set(spawn.RESTORED) and set(restored.values()) == {spawn.signal.SIG_DFL}
    assert spawn.signal.SIGPIPE in restored
