"""The laws, as functions of what the auditor knows: programs' own results, the driver's figures, its own deeds.

Each returns None if the law was kept, or the words for how it was broken. Times are nanoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SECOND = 1_000_000_000
CLAIM_TIMEOUT = 30 * SECOND  # docs: the longest that an allocation within the request waits
AWAY_PATIENCE = CLAIM_TIMEOUT  # docs/restart.md: so long does an allocation wait for a daemon to come back
CLOCK_SLACK = 1 * SECOND  # between what the auditor sees and what a program sees, on a loaded machine
SHRINKS_WITHIN = CLOCK_SLACK  # docs/reasons.md: what a job above a lowered limit frees may be used again for 0.1 s
STOP_SLACK = 2 * SECOND  # from the decision to stop a job to the moment at which the signal is noticed
FOREVER = 1 << 62


@dataclass
class Away:
    """A time without a daemon: from the auditor's kill to the moment at which one accepts connections again."""

    since: int
    back: int = FOREVER


def excuse(since: int, until: int, aways: list[Away]) -> Away | None:
    """The absence of the daemon for which docs/restart.md allows an allocation from `since` to `until` to fail."""
    least = AWAY_PATIENCE - CLOCK_SLACK // 5
    for away in aways:
        # Once one allocation has waited in vain, the next ones fail at once until there is a daemon.
        if away.back - away.since >= least and until >= away.since + least and since <= away.back + CLOCK_SLACK:
            return away
    return None


def refusal(fact: dict[str, Any], aways: list[Away]) -> str | None:
    """(a) An allocation within the request fails only while there is no daemon."""
    if excuse(fact["since"], fact["until"], aways):
        return None
    waited = (fact["until"] - fact["since"]) / SECOND
    return (
        f"{fact['code']} after {waited:.3f} s for {mib(fact['size'])} ({fact['kind']}), though the job had reserved "
        f"{mib(fact['reserved'])} with it, of a request of {mib(fact['request'])}"
    )


def wait(since: int, until: int, aways: list[Away]) -> str | None:
    """(e) An allocation within the request waits no longer than a claim, which begins again with a new daemon."""
    begin = max([since] + [away.back for away in aways if away.since <= until and away.back >= since])
    if until - begin <= CLAIM_TIMEOUT + CLOCK_SLACK:
        return None
    return f"waited {(until - since) / SECOND:.1f} s, {(until - begin) / SECOND:.1f} s of them with a daemon"


def stop(at: int, held_above: list[int], in_flight: int) -> str | None:
    """(c) Who is stopped was above its request shortly before. `held_above`: for each GPU, when it was so last."""
    last = max(held_above)
    if in_flight or at - last <= STOP_SLACK:
        return None
    if last == 0:
        return "was stopped, and has never had more than its request"
    return f"was stopped {(at - last) / SECOND:.1f} s after it was last above its request"


def final(used: list[int], baseline: list[int]) -> str | None:
    """(d) At the end the driver shows what it showed at the beginning."""
    if used == baseline:
        return None
    return f"the driver shows {[mib(value) for value in used]}, at the beginning {[mib(value) for value in baseline]}"


@dataclass
class Ceiling:
    """(b) What a job may have on one GPU: its limit; or, if that was lowered below its use, never more than then.

    A sample is judged by the highest limit that may be in force: `lower` is told after the change, `lift` before it.
    """

    limit: int
    lowered_at: int = 0
    ratchet: int = 0
    tolerance: int = 0
    seen: list[tuple[int, int]] = field(default_factory=list)  # when, and what

    def lift(self, limit: int) -> None:
        self.limit = max(self.limit, limit)

    def lower(self, limit: int, now: int) -> None:
        if limit < self.limit:
            self.ratchet = max(self.limit, self.ratchet if now - self.lowered_at < CLOCK_SLACK else 0)
            self.limit, self.lowered_at, self.seen = limit, now, []

    def judge(self, used: int, now: int) -> str | None:
        if self.ratchet and now - self.lowered_at >= CLOCK_SLACK:
            # What it had when the limit sank below that; from then on it can only shrink.
            recent = [one for one in self.seen if now - one[0] <= SHRINKS_WITHIN]
            self.seen = recent or self.seen[-1:] or [(now, used)]
            self.ratchet = min(self.ratchet, max([self.limit, *(amount for _, amount in self.seen)]))
            if self.ratchet <= self.limit:
                self.ratchet = 0
        self.seen.append((now, used))
        most = max(self.limit, self.ratchet)
        if used <= most + self.tolerance:
            return None
        return f"the driver shows {mib(used)}, above the limit of {mib(most)}"


def mib(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MiB"
