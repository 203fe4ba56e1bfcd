"""What the daemon does when it stops, and small parts that end with it."""

from __future__ import annotations

import asyncio
import os
import socket
from types import SimpleNamespace
from typing import Any

import pytest
from daemon_harness import GIB, GPU, InProcess

from gpushare.errors import GpushareError
from gpushared.api import views
from gpushared.api.views import Views
from gpushared.daemon import Daemon
from gpushared.system.descriptors import CarefulSocket
from gpushared.system.epoll import Epoll

pytestmark = pytest.mark.usefixtures("quiet_loop")


def thing(**fields: Any) -> Any:
    return SimpleNamespace(**fields)


def test_a_daemon_that_stops_takes_nothing_more_and_writes_its_notes_last() -> None:
    """Submissions whose calls end now keep their place; nobody connects any more; then the notes are written."""
    done: list[Any] = []

    def note(what: str) -> Any:
        return lambda: done.append(what)

    async def forever() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            done.append("a loop ends")

    registry = thing(closing=False)
    one: Any = object.__new__(Daemon)
    one.shell = thing(
        registry=registry,
        turns=thing(keep=forever),
        commits=thing(quietly=lambda: done.append(("notes", registry.closing))),
    )
    one._sample = one._look_after = one._keep_house = one._write_history = forever
    one._notifier, one.directory, one.shims = (
        *(thing(stopping=note("the service manager hears it")), thing(unbind=note("the sockets go"))),
        thing(stop=note("no new programs")),
    )

    async def story() -> None:
        one._stop = asyncio.Event()
        serving = asyncio.create_task(one._serve())
        await asyncio.sleep(0.01)
        assert done == [] and not registry.closing
        one.stop()
        await asyncio.wait_for(serving, 5)

    asyncio.run(story())
    assert done == [
        *("the service manager hears it", "the sockets go", "no new programs"),
        *["a loop ends"] * 5,
        ("notes", True),
    ]


def test_a_closed_epoll_is_looked_at_no_more() -> None:
    looked: list[int] = []
    loop: Any = thing(add_reader=lambda fd, then: looked.append(fd), remove_reader=looked.remove)
    epoll = Epoll(loop)
    (fd,) = looked
    assert os.fstat(fd)
    epoll.close()
    assert looked == []
    with pytest.raises(OSError):
        os.fstat(fd)


def test_descriptors_that_come_with_a_request_go_to_the_closer() -> None:
    ours, theirs = socket.socketpair()
    taken: list[tuple[int, list[int]]] = []
    careful = CarefulSocket(theirs, thing(take=lambda uid, found: taken.append((uid, found))), 7, 100)  # type: ignore[arg-type]
    socket.send_fds(ours, [b"x"], [ours.fileno()])
    assert careful.recv(100) == b"x"
    ((uid, (fd,)),) = taken
    assert uid == 7 and not os.get_inheritable(fd)
    os.close(fd)
    ours.sendall(b"y")
    assert careful.recv(100) == b"y" and len(taken) == 1
    ours.close()
    careful.close()


def test_so_many_jobs_of_one_name_are_named(daemon: InProcess) -> None:
    for _ in range(9):
        daemon.client.register({"name": "train", "command": ["x"], "request": "1Gi", "limit": "1Gi"})
    with pytest.raises(GpushareError, match="'train' fits 9 jobs") as caught:
        daemon.client.job("train")
    assert caught.value.code == "ambiguous_job" and len(caught.value.facts) == 8


@pytest.mark.parametrize(
    ("request_", "limit", "free", "revocable", "lost", "grantable"),
    [
        *[(2, 9, 5, 1, False, 6), (2, 9, -3, 4, False, 4), (2, 9, -3, 0, False, 2), (2, 4, 8, 0, False, 4)],
        *[(2, 9, 0, 0, False, 2), (2, 9, 20, 1, False, 9), (2, 9, 5, 1, True, 0)],
    ],
)
def test_what_a_job_could_get_without_a_context(monkeypatch, request_, limit, free, revocable, lost, grantable) -> None:
    """Its request at least, and what is free or only kept by others, up to its limit; nothing of a GPU that is lost."""
    core: Any = thing(
        shares_of=lambda job, gpu: [],
        published=lambda gpu, processes: {},
        revocable_on=lambda gpu: revocable * GIB,
        context_cost=lambda gpu, usual: usual,
        guessed=lambda share: 0,
    )
    health = thing(lost=lost)
    gpu: Any = thing(id=GPU, index=0, name="Test GPU", total=16 * GIB, free=free * GIB, health=health)
    bounds = thing(request=request_ * GIB, limit=limit * GIB)
    job: Any = thing(id="a", bounds={GPU: bounds}, observed={}, spec=thing(observe=False))
    totals = thing(note_peak=lambda gpu, usage: None, peak={}, gpu_time={}, computing={})
    shell: Any = thing(turns=thing(turn_of=lambda job, gpu: None, time_of=lambda job, gpu: 0.0), credit=thing())
    monkeypatch.setattr(views.health, "condition_of", lambda gpu: "ok")
    shown = Views(shell)._job_on(gpu, thing(totals=totals), job, core)
    assert shown["grantable"] == grantable * GIB
    assert (shown["usage"], shown["loan"], shown["credit"], shown["peak"], shown["computing"]) == (0, 0, 0, 0, None)
