"""/metrics for Prometheus: a picture of the state at the moment of scraping, and the core's counters.

Base units, `_total` on counters only. No label is called job or instance (Prometheus has its own of these names)
and none is a pid: a job is its `name`, and two of one name are one series.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gpushare import __version__
from gpushared.core.health_issues import Condition

if TYPE_CHECKING:
    from gpushare.api import Gpu, Job
    from gpushared.api.views import Views
    from gpushared.core.visibility import Viewer
    from gpushared.runtime.shell import Shell

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_GPU_GAUGES = {
    "capacity": "Memory that may be promised and lent: all but the reserve.",
    "reserve": "Memory that is never promised nor lent.",
    "requested": "Sum of the requests of the jobs on this GPU.",
    "usage": "Memory that jobs use, with contexts.",
    "lent": "Memory that jobs use above their requests.",
    "free": "Memory that nobody uses.",
    "unmanaged": "Memory used by programs outside gpushare.",
    "returning": "Memory of ended programs that the driver still shows.",
}
_JOB_GAUGES = {
    "request": "The job's guarantee.",
    "limit": "The job's ceiling.",
    "usage": "Memory that the job uses, with contexts.",
    "loan": "Memory that the job uses above its request.",
}


def render(shell: Shell, views: Views, viewer: Viewer) -> bytes:
    """As the viewer may see it: jobs whose names are not shown are one sum for each user."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(shell, views, viewer))
    return generate_latest(registry)


class _Collector:
    def __init__(self, shell: Shell, views: Views, viewer: Viewer) -> None:
        self._shell = shell
        self._views = views
        self._viewer = viewer

    def collect(self) -> Iterator[Metric]:
        build = GaugeMetricFamily("gpushare_build_info", "Version and driver.", labels=("version", "driver"))
        build.add_metric((__version__, self._shell.gpus.driver.kind), 1)
        yield build
        yield from self._gpus()
        yield from self._jobs()
        yield from self._counters()
        yield from self._shell_counters()

    def _gpus(self) -> Iterator[Metric]:
        gpus = self._views.gpus()
        for key, help_text in _GPU_GAUGES.items():
            gauge = GaugeMetricFamily(f"gpushare_gpu_memory_{key}_bytes", help_text, labels=("gpu_uuid",))
            for gpu in gpus:
                gauge.add_metric((gpu["uuid"],), gpu[key])  # type: ignore[literal-required]
            yield gauge
        yield from self._health(gpus)

    def _health(self, gpus: list[Gpu]) -> Iterator[Metric]:
        states = GaugeMetricFamily(
            "gpushare_gpu_health", "1 for the state in which the GPU is.", labels=("gpu_uuid", "state")
        )
        missing = GaugeMetricFamily(
            "gpushare_gpu_guarantee_shortfall_bytes",
            "By how much the requests exceed what can be had of the GPU.",
            labels=("gpu_uuid",),
        )
        xids = CounterMetricFamily(
            "gpushare_gpu_xids", "Errors that the driver has reported.", labels=("gpu_uuid", "xid")
        )
        for gpu in gpus:
            for state in Condition:
                states.add_metric((gpu["uuid"], str(state)), float(gpu["health"]["state"] == str(state)))
            missing.add_metric((gpu["uuid"],), gpu["health"]["shortfall"])
            for xid, count in sorted(self._shell.core.gpus[gpu["uuid"]].health.counts.items()):
                xids.add_metric((gpu["uuid"], str(xid)), count)
        yield from (states, missing, xids)

    def _jobs(self) -> Iterator[Metric]:
        jobs = list(self._views.jobs(self._viewer))
        states: dict[str, int] = {}
        for job in jobs:
            states[job["state"]] = states.get(job["state"], 0) + 1
        for key, help_text in _JOB_GAUGES.items():
            gauge = GaugeMetricFamily(
                f"gpushare_job_memory_{key}_bytes", help_text, labels=("name", "user", "gpu_uuid")
            )
            for labels, amount in _by_name(jobs, key).items():
                gauge.add_metric(labels, amount)
            yield gauge
        count = GaugeMetricFamily("gpushare_jobs", "Jobs by state.", labels=("state",))
        for state in ("running", "borrowing", "stopped", "trimming", "asked_back", "waiting", "queued", "observed"):
            count.add_metric((state,), states.get(state, 0))
        yield count

    def _counters(self) -> Iterator[Metric]:
        counters = self._shell.core.counters
        yield CounterMetricFamily("gpushare_grants", "Asks for credit that were granted.", value=counters.grants)
        denied = CounterMetricFamily("gpushare_denials", "Asks that were denied.", labels=("reason",))
        for reason, count in sorted(counters.denials.items()):
            denied.add_metric((reason,), count)
        yield denied
        reclaims = CounterMetricFamily("gpushare_reclaims", "Steps taken to get loans back.", labels=("rung",))
        reclaims.add_metric(("trim",), counters.trims)
        reclaims.add_metric(("term",), counters.terms)
        reclaims.add_metric(("kill",), counters.kills)
        reclaims.add_metric(("breach",), counters.kills_for_breach)
        yield reclaims
        yield CounterMetricFamily(
            "gpushare_reclaims_relieved",
            "Jobs that gave back in time, or were no longer needed.",
            value=counters.relieved,
        )
        met = CounterMetricFamily(
            "gpushare_claims_met",
            "Claims that had to wait and were met, by the highest rung it took.",
            labels=("rung",),
        )
        for rung, count in sorted(counters.claims_met.items()):
            met.add_metric((rung,), count)
        yield met
        yield CounterMetricFamily(
            "gpushare_trimmed_bytes", "Memory that caches gave back when asked.", value=counters.trimmed_bytes
        )
        yield from self._stalls()
        yield CounterMetricFamily(
            "gpushare_revoked_bytes", "Unused credit that was taken back.", value=counters.revoked_bytes
        )
        yield CounterMetricFamily(
            "gpushare_claims", "Allocations within a request that did not fit at once.", value=counters.claims
        )
        yield CounterMetricFamily(
            "gpushare_claim_seconds", "Time that claims have waited.", value=counters.claim_seconds
        )
        yield CounterMetricFamily(
            "gpushare_breaches", "Jobs found above their limit by what only the driver sees.", value=counters.breaches
        )
        yield CounterMetricFamily(
            "gpushare_left_alone",
            "Processes that were not stopped, for they had become another user's.",
            value=counters.left_alone,
        )
        violations = CounterMetricFamily(
            "gpushare_guarantee_violations", "Claims that could not be met in time.", labels=("cause",)
        )
        for cause, count in sorted(counters.violations.items()):
            violations.add_metric((cause,), count)
        yield violations

    def _stalls(self) -> Iterator[Metric]:
        core, now = self._shell.core, time.monotonic()
        for kind, help_text in (
            ("some", "Time in which at least one claim waited."),
            ("full", "Time in which all jobs on the GPU had a claim waiting."),
        ):
            stall = CounterMetricFamily(f"gpushare_stall_{kind}_seconds", help_text, labels=("gpu_uuid",))
            for gpu in core.gpus:
                stall.add_metric((gpu,), core.pressure(gpu, now)[kind]["total"])
            yield stall

    def _shell_counters(self) -> Iterator[Metric]:
        shell = self._shell
        clients = GaugeMetricFamily("gpushare_clients", "Programs with a credit page.", labels=("state",))
        connected = sum(1 for client in shell.clients if client.connection is not None)
        clients.add_metric(("connected",), connected)
        clients.add_metric(("detached",), len(shell.clients) - connected)
        yield clients
        traffic = shell.traffic
        yield CounterMetricFamily("gpushare_round_trips", "Asks for credit by programs.", value=traffic.asks)
        yield CounterMetricFamily("gpushare_bad_frames", "Packets that were no frames.", value=traffic.bad_frames)
        yield CounterMetricFamily(
            "gpushare_sample_failures", "Times that the driver did not answer.", value=shell.gpus.failures
        )
        yield CounterMetricFamily("gpushare_internal_errors", "Bugs that the daemon met.", value=shell.core_loop.errors)


def _by_name(jobs: list[Job], key: str) -> dict[tuple[str, str, str], int]:
    sums: dict[tuple[str, str, str], int] = {}
    for job in jobs:
        for gpu in job["gpus"]:
            labels = (job["name"], job["user"], gpu["uuid"])
            amount = gpu[key]  # type: ignore[literal-required]
            sums[labels] = sums.get(labels, 0) + amount
    return sums
