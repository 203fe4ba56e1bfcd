"""/metrics for Prometheus: METRICS lists them, and docs/metrics.md is written from it.

The state and the core's counters are read at the moment of the scrape. Base units; `_total` on counters only. No label
is called job or instance, which Prometheus sets itself, and none is a pid. A job is its `name`: two jobs of one name
and one user are one series.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family

from gpushare import __version__
from gpushare.reasons import Code
from gpushare.reclaim_steps import ReclaimStep
from gpushared.core import blockers
from gpushared.core.health_issues import Condition
from gpushared.core.histogram import Histogram

if TYPE_CHECKING:
    from gpushare.api import Gpu, Job
    from gpushared.api.views import Views
    from gpushared.core.model import Counters
    from gpushared.core.visibility import Viewer
    from gpushared.runtime.shell import Shell

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Kind = Literal["gauge", "counter", "histogram"]
DENIALS = (Code.OVER_LIMIT, Code.NOT_FREE, Code.CLAIM_TIMED_OUT, Code.DRIVER_FAILED, Code.GPU_UNHEALTHY)
JOB_STATES = (
    "running",
    "borrowing",
    "stopped",
    "trimming",
    "hook",
    "asleep",
    "waking",
    "idle",
    "suspending",
    "suspended",
    "resuming",
    "asked_back",
    "waiting",
    "queued",
    "observed",
)


def render(shell: Shell, views: Views, viewer: Viewer) -> bytes:
    """The metrics as the viewer may see them: jobs whose names are not shown are one sum for each user."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(Scrape(shell, views, viewer)))
    return generate_latest(registry)


@dataclass
class Scrape:
    """What the metrics of one answer are read from."""

    shell: Shell
    views: Views
    viewer: Viewer
    now: float = field(default_factory=time.monotonic)

    @cached_property
    def gpus(self) -> list[Gpu]:
        return self.views.gpus()

    @cached_property
    def jobs(self) -> list[Job]:
        return list(self.views.jobs(self.viewer))

    @property
    def counters(self) -> Counters:
        return self.shell.core.counters


class Sample(NamedTuple):
    labels: tuple[str, ...]
    """In the order of the metric's labels."""
    value: float | Histogram


Read = Callable[[Scrape], Iterable[Sample]]


@dataclass(frozen=True)
class Metric:
    name: str
    """The name as Prometheus stores it: with `_total` if it is a counter."""
    kind: Kind
    help: str
    labels: tuple[str, ...]
    read: Read


def _gauge(name: str, help: str, labels: tuple[str, ...], read: Read) -> Metric:
    return Metric(name, "gauge", help, labels, read)


def _counter(name: str, help: str, labels: tuple[str, ...], read: Read) -> Metric:
    return Metric(name, "counter", help, labels, read)


def _histogram(name: str, help: str, labels: tuple[str, ...], read: Read) -> Metric:
    return Metric(name, "histogram", help, labels, read)


def _one(read: Callable[[Scrape], float]) -> Read:
    return lambda scrape: (Sample((), read(scrape)),)


def _counted(known: Iterable[str], read: Callable[[Counters], Mapping[str, int]]) -> Read:
    """The known ones from the start, at 0: `increase()` does not see the first of a series that comes with it."""
    zero = dict.fromkeys(map(str, known), 0)
    return lambda scrape: (Sample((key,), count) for key, count in sorted({**zero, **read(scrape.counters)}.items()))


def _of_gpu(key: str) -> Read:
    return lambda scrape: (Sample((gpu["uuid"],), gpu[key]) for gpu in scrape.gpus)  # type: ignore[literal-required]


def _of_job(key: str) -> Read:
    return lambda scrape: (Sample(labels, amount) for labels, amount in _by_name(scrape.jobs, key).items())


def _by_name(jobs: Iterable[Job], key: str) -> Counter[tuple[str, str, str]]:
    sums: Counter[tuple[str, str, str]] = Counter()
    for job in jobs:
        for gpu in job["gpus"]:
            sums[job["name"], job["user"], gpu["uuid"]] += gpu[key]  # type: ignore[literal-required]
    return sums


def _gpu_info(scrape: Scrape) -> Iterator[Sample]:
    for gpu in scrape.gpus:
        yield Sample((gpu["uuid"], str(gpu["index"]), gpu["name"], os.uname().nodename), 1)


def _gpu_health(scrape: Scrape) -> Iterator[Sample]:
    for gpu in scrape.gpus:
        for state in Condition:
            yield Sample((gpu["uuid"], str(state)), gpu["health"]["state"] == str(state))


def _xids(scrape: Scrape) -> Iterator[Sample]:
    for id, gpu in scrape.shell.core.gpus.items():
        for xid, count in sorted(gpu.health.counts.items()):
            yield Sample((id, str(xid)), count)


def _stall(kind: str) -> Read:
    def read(scrape: Scrape) -> Iterator[Sample]:
        core = scrape.shell.core
        for id in core.gpus:
            yield Sample((id,), core.pressure(id, scrape.now)[kind]["total"])

    return read


def _jobs_by_state(scrape: Scrape) -> Iterator[Sample]:
    count = Counter(job["state"] for job in scrape.jobs)
    for state in JOB_STATES:
        yield Sample((state,), count[state])


def _reclaims(scrape: Scrape) -> Iterator[Sample]:
    yield Sample((str(ReclaimStep.TRIM),), scrape.counters.trims)
    yield Sample((str(ReclaimStep.HOOK),), scrape.counters.hooks)
    yield Sample((str(ReclaimStep.SUSPEND),), scrape.counters.suspends)
    yield Sample((str(ReclaimStep.TERM),), scrape.counters.terms)
    yield Sample((str(ReclaimStep.KILL),), scrape.counters.kills)


def _claim_waits(scrape: Scrape) -> Iterator[Sample]:
    none = Histogram()
    for step in ReclaimStep:
        yield Sample((str(step),), scrape.counters.claim_waits.get(step, none))


def _clients(scrape: Scrape) -> Iterator[Sample]:
    connected = sum(1 for client in scrape.shell.clients if client.disconnect is not None)
    yield Sample(("connected",), connected)
    yield Sample(("detached",), len(scrape.shell.clients) - connected)


GPU = ("gpu_uuid",)
JOB = ("name", "user", "gpu_uuid")

METRICS: dict[str, tuple[Metric, ...]] = {
    "Memory of a GPU": (
        _gauge(
            "gpushare_gpu_info",
            "Always 1: what to join other series of a GPU by.",
            ("gpu_uuid", "gpu", "model", "hostname"),
            _gpu_info,
        ),
        _gauge(
            "gpushare_gpu_memory_capacity_bytes",
            "Memory that may be promised and lent: all but the reserve.",
            GPU,
            _of_gpu("capacity"),
        ),
        _gauge("gpushare_gpu_memory_reserve_bytes", "Memory that is never promised nor lent.", GPU, _of_gpu("reserve")),
        _gauge(
            "gpushare_gpu_memory_requested_bytes",
            "Sum of the requests of the jobs on this GPU.",
            GPU,
            _of_gpu("requested"),
        ),
        _gauge("gpushare_gpu_memory_usage_bytes", "Memory that jobs use, with contexts.", GPU, _of_gpu("usage")),
        _gauge("gpushare_gpu_memory_lent_bytes", "Memory that jobs use above their requests.", GPU, _of_gpu("lent")),
        _gauge("gpushare_gpu_memory_free_bytes", "Memory that nobody uses.", GPU, _of_gpu("free")),
        _gauge(
            "gpushare_gpu_memory_unmanaged_bytes",
            "Memory used by programs outside gpushare.",
            GPU,
            _of_gpu("unmanaged"),
        ),
        _gauge(
            "gpushare_gpu_memory_returning_bytes",
            "Memory of ended programs that the driver still shows.",
            GPU,
            _of_gpu("returning"),
        ),
    ),
    "Health of a GPU": (
        _gauge("gpushare_gpu_health", "1 for the state in which the GPU is.", ("gpu_uuid", "state"), _gpu_health),
        _gauge(
            "gpushare_gpu_guarantee_shortfall_bytes",
            "By how much the requests exceed what can be had of the GPU.",
            GPU,
            lambda scrape: (Sample((gpu["uuid"],), gpu["health"]["shortfall"]) for gpu in scrape.gpus),
        ),
        _counter("gpushare_gpu_xids_total", "Errors that the driver has reported.", ("gpu_uuid", "xid"), _xids),
        _counter("gpushare_stall_some_seconds_total", "Time in which at least one claim waited.", GPU, _stall("some")),
        _counter(
            "gpushare_stall_full_seconds_total",
            "Time in which all jobs on the GPU had a claim waiting.",
            GPU,
            _stall("full"),
        ),
    ),
    "Jobs": (
        _gauge("gpushare_job_memory_request_bytes", "The job's guarantee.", JOB, _of_job("request")),
        _gauge("gpushare_job_memory_limit_bytes", "The most that the job may use.", JOB, _of_job("limit")),
        _gauge("gpushare_job_memory_usage_bytes", "Memory that the job uses, with contexts.", JOB, _of_job("usage")),
        _gauge("gpushare_job_memory_loan_bytes", "Memory that the job uses above its request.", JOB, _of_job("loan")),
        _counter(
            "gpushare_job_gpu_seconds_total",
            "Time in which the job had the GPU compute, by the driver's samples.",
            JOB,
            _of_job("gpu_time"),
        ),
        _counter(
            "gpushare_job_turn_seconds_total",
            "Time of the job's turns in computing, while others wanted to compute, too.",
            JOB,
            _of_job("turn_time"),
        ),
        _counter(
            "gpushare_gpu_turns_total",
            "Turns in computing, of all jobs, since one has asked for them.",
            GPU,
            lambda scrape: (Sample((gpu["uuid"],), scrape.shell.turns.count_of(gpu["uuid"])) for gpu in scrape.gpus),
        ),
        _gauge("gpushare_jobs", "Jobs by state.", ("state",), _jobs_by_state),
    ),
    "Credit, claims and reclaims": (
        _counter(
            "gpushare_grants_total",
            "Asks for credit that were granted.",
            (),
            _one(lambda scrape: scrape.counters.grants),
        ),
        _counter(
            "gpushare_denials_total",
            "Asks that were denied.",
            ("reason",),
            _counted(DENIALS, lambda counters: counters.denials),
        ),
        _counter(
            "gpushare_claims_total",
            "Allocations within a request that did not fit at once.",
            (),
            _one(lambda scrape: scrape.counters.claims),
        ),
        _histogram(
            "gpushare_claim_wait_seconds",
            "How long claims that were met had waited, by the highest reclaim step that it took.",
            ("step",),
            _claim_waits,
        ),
        _counter(
            "gpushare_guarantee_violations_total",
            "Claims that could not be met in time.",
            ("cause",),
            _counted(blockers.CAUSES, lambda counters: counters.violations),
        ),
        _counter("gpushare_reclaims_total", "Steps taken to get loans back.", ("step",), _reclaims),
        _counter(
            "gpushare_reclaims_relieved_total",
            "Jobs that gave back in time, or were no longer needed.",
            (),
            _one(lambda scrape: scrape.counters.relieved),
        ),
        _counter(
            "gpushare_revoked_bytes_total",
            "Unused credit that was taken back.",
            (),
            _one(lambda scrape: scrape.counters.revoked_bytes),
        ),
        _counter(
            "gpushare_idle_bytes_total",
            "Memory that jobs have given back because they were idle (idle_release).",
            (),
            _one(lambda scrape: scrape.counters.idle_bytes),
        ),
        _counter(
            "gpushare_trimmed_bytes_total",
            "Memory that caches gave back when asked.",
            (),
            _one(lambda scrape: scrape.counters.trimmed_bytes),
        ),
        _counter(
            "gpushare_breaches_total",
            "Jobs found above their limit by what only the driver sees.",
            (),
            _one(lambda scrape: scrape.counters.breaches),
        ),
        _counter(
            "gpushare_breach_kills_total",
            "Jobs that were stopped because they were above their limit.",
            (),
            _one(lambda scrape: scrape.counters.kills_for_breach),
        ),
        _counter(
            "gpushare_left_alone_total",
            "Processes that were not stopped, because they had become another user's.",
            (),
            _one(lambda scrape: scrape.counters.left_alone),
        ),
    ),
    "The daemon": (
        _gauge(
            "gpushare_build_info",
            "Version and driver.",
            ("version", "driver"),
            lambda scrape: (Sample((__version__, scrape.shell.gpus.driver.kind), 1),),
        ),
        _gauge("gpushare_clients", "Programs with a credit page.", ("state",), _clients),
        _counter(
            "gpushare_round_trips_total",
            "Asks for credit by programs.",
            (),
            _one(lambda scrape: scrape.shell.traffic.asks),
        ),
        _counter(
            "gpushare_bad_frames_total",
            "Packets of programs that could not be read.",
            (),
            _one(lambda scrape: scrape.shell.traffic.bad_frames),
        ),
        _counter(
            "gpushare_sample_failures_total",
            "Times that the driver did not answer.",
            (),
            _one(lambda scrape: scrape.shell.gpus.failures),
        ),
        _counter(
            "gpushare_internal_errors_total",
            "Errors of the daemon's own. Each is in its log.",
            (),
            _one(lambda scrape: scrape.shell.core_loop.errors),
        ),
    ),
}
"""The metrics, by their heading in docs/metrics.md."""


class _Collector:
    def __init__(self, scrape: Scrape) -> None:
        self._scrape = scrape

    def collect(self) -> Iterator[Family]:
        for metrics in METRICS.values():
            for metric in metrics:
                yield _family(metric, metric.read(self._scrape))


def _family(metric: Metric, samples: Iterable[Sample]) -> Family:
    if metric.kind == "histogram":
        histogram = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        for labels, value in samples:
            assert isinstance(value, Histogram)
            buckets = [(_bound(bound), count) for bound, count in value.cumulative()]
            histogram.add_metric(labels, buckets, value.seconds)
        return histogram
    family: Any = _FAMILIES[metric.kind](metric.name, metric.help, labels=metric.labels)
    for labels, value in samples:
        family.add_metric(labels, value)
    return family  # type: ignore[no-any-return]


_FAMILIES = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}


def _bound(seconds: float) -> str:
    return "+Inf" if seconds == float("inf") else str(seconds)
