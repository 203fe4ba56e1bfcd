"""Where `gpushare cluster` finds the cluster: in a file, or at the service that has the file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar

import click

from gpushare.cluster.allocator import Allocator
from gpushare.cluster.client import ClusterClient, find
from gpushare.cluster.codec import decode, encode_events, read_action
from gpushare.cluster.model import (
    Action,
    Event,
    JobEnded,
    JobHeld,
    JobReleased,
    JobWithdrawn,
    NodeCordoned,
    NodeDrained,
    NodeUncordoned,
    Policy,
)
from gpushare.cluster.service.lock import serving, writing
from gpushare.cluster.snapshot import restore
from gpushare.cluster.store import Store, default_path
from gpushare.cluster.yaml_source import FileError
from gpushare.errors import UsageError

__all__ = ["Cluster", "Served", "opened", "place", "said_in", "stored"]

Function = TypeVar("Function", bound=Callable[..., Any])


def stored(function: Function) -> Function:
    return click.option(
        "--store",
        type=click.Path(path_type=Path, dir_okay=False),
        help="The cluster's file; by default gpushare/cluster.db in XDG_STATE_HOME.",
    )(function)


class Cluster(Protocol):
    """What the commands use of a Store, and of a service in its place."""

    @property
    def allocator(self) -> Allocator: ...

    @property
    def policy(self) -> Policy: ...

    def append(self, events: Sequence[Event], now: float) -> Sequence[Action]: ...

    def at(self, clock: float) -> float: ...


class Served:
    """A cluster that a service has. Questions are answered from a copy of its state, which costs it the least."""

    def __init__(self, client: ClusterClient) -> None:
        self.client = client

    @cached_property
    def _state(self) -> Mapping[str, Any]:
        return {**self.client.state(), "taken": time.time()}

    @cached_property
    def policy(self) -> Policy:
        return decode(self._state["policy"], Policy)

    @cached_property
    def allocator(self) -> Allocator:
        return restore(self.policy, self._state["state"])

    def at(self, clock: float) -> float:
        """The cluster's time when this machine's clock shows so many seconds."""
        then: float = self._state["now"]
        passed: float = clock - self._state["taken"]
        return then + max(0.0, passed)

    def append(self, events: Sequence[Event], now: float) -> Sequence[Action]:  # noqa: ARG002  its clock counts
        """Tell the service, which decides. What has an address of its own there goes to it, one after the other."""
        rest = [event for event in events if not self._told(event)]
        answered = self.client.change(encode_events(rest))["actions"] if rest else []
        return [read_action(action) for action in answered]

    def _told(self, event: Event) -> bool:
        match event:
            case JobWithdrawn(job=job):
                self.client.cancel(job)
            case JobHeld(job=job):
                self.client.hold(job)
            case JobReleased(job=job):
                self.client.release(job)
            case NodeCordoned(node=node):
                self.client.cordon(node)
            case NodeDrained(node=node):
                self.client.drain(node)
            case NodeUncordoned(node=node):
                self.client.uncordon(node)
            case JobEnded(job=job):
                raise UsageError(
                    "the service sees by itself how jobs end", hint=f"cancel it: `gpushare cluster cancel {job}`"
                )
            case _:
                return False
        return True


def place(store: Path | None) -> str:
    """What opened() opens, for people."""
    path = store or default_path()
    service = find(store)
    if service is None or service.api_socket == serving(path):
        return str(path)
    return f"the cluster of the service at {service.api_socket}"


@contextmanager
def opened(store: Path | None, *, read_only: bool = True) -> Iterator[Store | Served]:
    """The service that runs here; else the file, with the time that has passed since the last event."""
    service = find(store)
    if service is not None:
        yield Served(service)
        return
    path = store or default_path()
    if read_only:
        with Store.open(path, read_only=True) as cluster:
            cluster.pass_time(time.time())
            yield cluster
        return
    with writing(path), Store.open(path) as cluster:
        cluster.pass_time(time.time())
        yield cluster


@contextmanager
def said_in(file: Path) -> Iterator[None]:
    """Name this file in the allocator's errors."""
    try:
        yield
    except UsageError as error:
        raise FileError(f"{file}: {error.message}", hint=error.hint, code=error.code) from None
