"""Who may write to a cluster's file: one service alone, or commands together."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushare.cluster.service.lock import Lock, serving, writing
from gpushare.cluster.store import StoreError

SOCKET = Path("/run/here.sock")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "cluster.db"


def test_commands_write_together_and_a_service_waits_until_they_have_ended(store: Path) -> None:
    with writing(store), writing(store):
        with pytest.raises(StoreError, match=r"in use$") as refused:
            Lock(store, SOCKET)
        assert refused.value.code == "already_running"
    lock = Lock(store, SOCKET)
    assert serving(store) == SOCKET
    lock.release()


def test_no_command_and_no_other_service_writes_while_one_service_has_the_file(store: Path) -> None:
    lock = Lock(store, SOCKET)
    with pytest.raises(StoreError, match="a service writes"), writing(store):
        pass
    with pytest.raises(StoreError, match=f"in use by the service at {SOCKET}"):
        Lock(store, SOCKET)
    lock.release()
    assert serving(store) is None
    with writing(store):
        assert serving(store) is None, "a command is no service"
    Lock(store, SOCKET).release()


def test_who_has_failed_with_the_file_leaves_it_to_others(store: Path) -> None:
    with pytest.raises(ZeroDivisionError), writing(store):
        raise ZeroDivisionError
    Lock(store, SOCKET).release()


def test_the_service_that_has_the_file_is_named_whatever_one_before_it_has_left(store: Path) -> None:
    """One that was killed has left its name, which may be longer."""
    (store.parent / f"{store.name}.lock").write_text("x" * 60)
    lock = Lock(store, SOCKET)
    assert serving(store) == SOCKET
    lock.release()
    assert (store.parent / f"{store.name}.lock").read_text() == ""
