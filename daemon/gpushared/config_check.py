"""Settings that are allowed and probably a mistake, for `gpushared --check-config`.

The daemon starts with them all the same: a user may get an account tomorrow. To look accounts up asks the machine's
name service; a check may wait for that, a starting daemon should not.
"""

from __future__ import annotations

import grp
import pwd
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gpushare.quantity import Kind, Quantity, format_duration
from gpushared.config import Config
from gpushared.core.rules import Table
from gpushared.system.address import is_local


def doubts(config: Config) -> list[str]:
    return [*_accounts(config), *_grace(config), *_maxima(config), *_address(config)]


def _accounts(config: Config) -> Iterator[str]:
    for place, group, does in (
        ("$.daemon.admin_group", config.admin_group, "administers"),
        ("$.placements.group", config.engine_group, "places jobs"),
    ):
        if group and not _is_group(group):
            yield f"{place}: there is no group {group!r} on this machine: only root {does}"
    for table in config.rules.tables:
        for user in sorted(table.users):
            if not _is_user(user):
                yield f"{table.path}: there is no user {user!r} on this machine"
        for group in sorted(table.groups):
            if not _is_group(group):
                yield f"{table.path}: there is no group {group!r} on this machine"


def _is_user(name: str) -> bool:
    return name.isdecimal() or _known(pwd.getpwnam, name)


def _is_group(name: str) -> bool:
    return name.isdecimal() or _known(grp.getgrnam, name)


def _known(look_up: Callable[[str], Any], name: str) -> bool:
    try:
        look_up(name)
    except (KeyError, ValueError):
        return False
    return True


def _grace(config: Config) -> Iterator[str]:
    policy = config.policy()
    most = policy.longest_grace
    graces: list[tuple[str, float | None]] = [("$.reclaim.grace", config.grace)]
    graces += [(f"{table.path}.max_grace", table.values.get("max_grace")) for table in config.rules.tables]
    for place, grace in graces:
        if grace is not None and grace > most:
            yield (
                f"{place} is {format_duration(grace)}, and no borrower gets more than {format_duration(most)}:"
                f" claim_timeout {format_duration(policy.claim_timeout)}, less the time for teardown"
            )


def _maxima(config: Config) -> Iterator[str]:
    everybody: Mapping[str, Any] = next((one.values for one in config.rules.tables if one.path == "$.policy"), {})
    for table in config.rules.tables:
        for key in ("request", "limit"):
            given, most = getattr(table.budget, key, None), {**everybody, **table.values}.get(f"max_{key}")
            if _above(given, most):
                yield f"{table.path}: {key} {given} is above max_{key} {most}: a job that asks for nothing is refused"
        if _above(table.values.get("max_request"), table.values.get("max_limit")):
            yield f"{_both(table)}: no job may have a limit for its largest request"


def _both(table: Table) -> str:
    return f"{table.path}: max_request {table.values['max_request']} is above max_limit {table.values['max_limit']}"


def _above(one: object, other: object) -> bool:
    """Where that is so on every GPU. `max` above an amount is right: it means all that one may have."""
    if not isinstance(one, Quantity) or not isinstance(other, Quantity):
        return False
    return one.kind is other.kind and one.kind in (Kind.BYTES, Kind.SHARE) and one.value > other.value


def _address(config: Config) -> Iterator[str]:
    if not config.metrics_listen:
        return
    if not is_local(config.metrics_listen):
        yield (
            f"$.metrics.listen: {config.metrics_listen} is open to other machines, which read there what each job uses;"
            " 127.0.0.1 is this machine alone"
        )
