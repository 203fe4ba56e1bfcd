"""Jobs that Slurm's own scheduler has placed, by shards or counters of memory: budgets without the allocator.

A job's part of the shards of a GPU is its request there, and so is its counter gpumem:g1, in MiB. What it may use above
that it says with --gpushare=limit=80%; without it the limit is the request. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from gpushare.cluster.engines.slurm.listing import counts, hosts, indices
from gpushare.cluster.engines.slurm.mark import Mark, Spot
from gpushare.cluster.engines.slurm.request import words_of
from gpushare.errors import GpushareError
from gpushare.quantity import Quantity

__all__ = ["Placed", "placed"]

_PART = re.compile(r"\bNodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)")
_SHARDS = re.compile(r"\bshard:(?:[^:(,]+:)?(\d+)\(([^)]*)\)")
_COUNT = re.compile(r"\b(gpu|shard):(?:[^:(,]+:)?(\d+)")
ON = "IDX:"


@dataclass(frozen=True, slots=True)
class Placed:
    mark: Mark
    wrong: str
    """Why the limit that its user has named does not count; "": it does."""


def placed(environ: Mapping[str, str], job: str, node: str, capacities: Sequence[int]) -> Placed | None:
    """Of a job in its Prolog. `job` and `node` are what `scontrol -d -o show` says of them, `capacities` the bytes of
    each GPU. None: it has no shards and no counters here."""
    name = environ["SLURMD_NODENAME"]
    held = next((gres for names, gres in _PART.findall(job) if name in hosts(names)), "")
    requests = {gpu: int(capacities[gpu] * part) for gpu, part in _parts(held, node).items() if gpu < len(capacities)}
    requests |= {gpu: count * 2**20 for gpu, count in counts(held).items() if gpu < len(capacities)}
    if not requests:
        return None
    request, whole = max(requests.values()), min(capacities[gpu] for gpu in requests)
    limit, wrong = _limit(environ.get("SPANK_GPUSHARE", ""), request, whole)
    restarts = int(environ.get("SLURM_JOB_RESTART_COUNT", "0"))
    spot = Spot(name, tuple(sorted(requests)), request, limit)
    return Placed(Mark(attempt=restarts + 1, place=(spot,), restarts=restarts, token=(0, restarts)), wrong)


def _parts(held: str, node: str) -> Mapping[int, Fraction]:
    """By GPU, of "shard:25(25/100,0/100)" or, from 22.05, of "shard:25(IDX:0)"."""
    found: dict[int, Fraction] = {}
    for count, where in _SHARDS.findall(held):
        if where.startswith(ON):
            gpus = list(indices(where.removeprefix(ON)))
            found |= {gpu: Fraction(int(count), len(gpus) * _shards_of_a_gpu(node)) for gpu in gpus}
            continue
        for gpu, part in enumerate(where.split(",")):
            used, _, there = part.partition("/")
            if used.isdecimal() and int(used):
                found[gpu] = Fraction(int(used), int(there))
    return {gpu: min(part, Fraction(1)) for gpu, part in found.items()}


def _shards_of_a_gpu(node: str) -> int:
    """22.05 does not say how many each has; gres.conf gives all the same number."""
    said = re.search(r"\bGres=(\S*)", node)
    there = {kind: 0 for kind in ("gpu", "shard")}
    for kind, count in _COUNT.findall(said[1] if said else ""):
        there[kind] += int(count)
    return max(1, there["shard"] // max(1, there["gpu"]))


def _limit(words: str, request: int, whole: int) -> tuple[int, str]:
    """Bytes. Words that mean nothing must not close the node, as a Prolog that fails does."""
    try:
        said = words_of(words)
        limit = Quantity.parse(said["limit"]).resolve(whole) if "limit" in said else request
    except GpushareError as error:
        return request, error.message
    return min(max(request, limit), whole), ""
