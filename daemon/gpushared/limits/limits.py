"""All that one user may take of a server."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from gpushared.limits.byte_budget import ByteBudget
from gpushared.limits.fair_share import FairShare
from gpushared.limits.user_limits import UserLimits
from gpushared.system.descriptors import DescriptorCloser


class Limits(NamedTuple):
    users: UserLimits
    """Descriptors and jobs."""
    time: FairShare
    bytes: ByteBudget
    descriptors: DescriptorCloser

    @classmethod
    def make(cls, loop: asyncio.AbstractEventLoop) -> Limits:
        users = UserLimits()
        return cls(users, FairShare(loop), ByteBudget(users.is_bound), DescriptorCloser())
