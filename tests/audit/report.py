"""What an audit has seen, as text and as JSON."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from typing import Any

from audit.act import Result, Violation
from audit.book import BUCKETS, bucket_end

WAITED = 10_000_000  # nanoseconds: an allocation that took longer has waited for somebody


def quantile(waits: list[int], share: float) -> float:
    """Seconds; the end of the bucket in which it lies."""
    total, seen = sum(waits), 0
    for bucket, count in enumerate(waits):
        seen += count
        if total and seen >= share * total:
            return bucket_end(bucket) / 1e9
    return 0.0


def figures(results: list[Result]) -> dict[str, Any]:
    def total(name: str) -> Counter[str]:
        return sum((getattr(result, name) for result in results), Counter())

    waits = [sum(result.waits[bucket] for result in results) for bucket in range(BUCKETS)]
    claims = [count if bucket_end(bucket) > WAITED else 0 for bucket, count in enumerate(waits)]
    allocations = total("allocations")
    within = sum(count for name, count in allocations.items() if name.endswith((" within", " failed")))
    refused = total("counted")["refused"]
    return {
        "acts": len(results),
        "seconds": sum(result.seconds for result in results),
        "jobs": total("jobs"),
        "deeds": total("deeds"),
        "allocations": allocations,
        "within_request": within,
        "refused_per_1000_within": 1000 * refused / within if within else 0.0,
        "samples": sum(result.samples for result in results),
        "owners_waits": {"p50": quantile(waits, 0.5), "p99": quantile(waits, 0.99)},
        "claims_that_waited": sum(claims),
        "claims_waits": {"p50": quantile(claims, 0.5), "p99": quantile(claims, 0.99)},
        "longest_wait": max((result.longest for result in results), default=0) / 1e9,
        "ends": total("notes"),
        "excused": total("excused"),
        "violations": total("counted"),
    }


def listed(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counter.items())) or "none"


def text(results: list[Result]) -> str:
    sums = figures(results)
    waits, claims = sums["owners_waits"], sums["claims_waits"]
    return "\n".join(
        (
            f"acts         {sums['acts']} in {sums['seconds']:.0f} s, {sums['samples']} samples of NVML",
            f"jobs         {listed(sums['jobs'])}",
            f"deeds        {listed(sums['deeds'])}",
            f"ends         {listed(sums['ends'])}",
            f"allocations  {listed(sums['allocations'])}",
            f"within       {sums['within_request']} within the request, {sums['violations']['refused']} refused: "
            f"{sums['refused_per_1000_within']:.3f} of 1,000",
            f"owners wait  p50 {waits['p50'] * 1e3:.3f} ms, p99 {waits['p99'] * 1e3:.3f} ms, "
            f"longest {sums['longest_wait']:.3f} s",
            f"claims       {sums['claims_that_waited']} waited more than 10 ms: "
            f"p50 {claims['p50']:.3f} s, p99 {claims['p99']:.3f} s",
            f"excused      {listed(sums['excused'])}",
            f"VIOLATIONS   {listed(sums['violations'])}",
        )
    )


def some(violations: list[Violation], most: int) -> list[Violation]:
    """At most so many of each law, and of those first one for each job."""
    found: list[Violation] = []
    for law in dict.fromkeys(violation.law for violation in violations):
        ours = [violation for violation in violations if violation.law == law]
        firsts = list({violation.job: violation for violation in reversed(ours)}.values())[::-1]
        found += (firsts + [violation for violation in ours if violation not in firsts])[:most]
    return found


def account(result: Result, violation: Violation, replay: str) -> str:
    lines = [
        f"VIOLATION ({violation.law}) in {result.kind} after {violation.at:.3f} s: {violation.job}: {violation.text}",
        f"  again: {replay}",
        f"  facts: {json.dumps(violation.facts)}",
    ]
    return "\n".join([*lines, *("  | " + line for line in violation.evidence.splitlines())])


def as_json(results: list[Result]) -> str:
    acts = [vars(result) | {"violations": [asdict(violation) for violation in result.violations]} for result in results]
    return json.dumps({"figures": figures(results), "acts": acts}, indent=1)
