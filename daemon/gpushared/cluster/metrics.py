"""/metrics of the service for Prometheus: jobs and GPUs of each queue, nodes, and what was decided so far."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gpushare import __version__
from gpushare.cluster.quantity import MICRO
from gpushare.cluster.service.overview import state_of
from gpushared.cluster.writer import Writer

__all__ = ["render"]


def render(writer: Writer) -> bytes:
    """In the writer's thread."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(writer))
    return generate_latest(registry)


class _Collector:
    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._service = writer.service

    def collect(self) -> Iterator[Metric]:
        allocator = self._service.store.allocator
        build = GaugeMetricFamily("gpushare_cluster_build_info", "Version and engine.", labels=("version", "engine"))
        build.add_metric((__version__, self._service.engine), 1)
        yield build
        jobs = GaugeMetricFamily("gpushare_cluster_jobs", "Jobs that are not over.", labels=("queue", "state"))
        used = GaugeMetricFamily("gpushare_cluster_queue_gpus", "GPUs that a queue holds.", labels=("queue",))
        for name, view in allocator.queues.items():
            jobs.add_metric((name, "waiting"), view.pending)
            jobs.add_metric((name, "running"), view.running)
            used.add_metric((name,), view.allocated / MICRO)
        yield jobs
        yield used
        nodes = GaugeMetricFamily("gpushare_cluster_nodes", "Nodes.", labels=("state",))
        states = {"ready": 0, "cordoned": 0, "unknown": 0, "lost": 0}
        for node in allocator.nodes.values():
            states[state_of(node)] += 1
        for state, number in states.items():
            nodes.add_metric((state,), number)
        yield nodes
        decided = CounterMetricFamily("gpushare_cluster_decisions", "Decisions about jobs.", labels=("kind",))
        counts = self._service.work.counts
        for kind in ("start", "wait", "preempt", "move", "shrink", "grow", "stop", "refuse"):
            decided.add_metric((kind,), counts[kind])
        yield decided
        totals: tuple[tuple[str, str, float], ...] = (
            ("submitted", "Jobs that were submitted.", counts["submitted"]),
            ("rounds", "Rounds in which decisions were compared with what runs.", self._service.work.count),
            ("round_seconds", "Time that these took.", self._writer.round_seconds),
            ("errors", "Requests and rounds that failed; see the log.", self._writer.errors),
        )
        for name, text, total in totals:
            yield CounterMetricFamily(f"gpushare_cluster_{name}", text, value=total)
