"""/metrics of the service for Prometheus: jobs and GPUs of each queue, nodes, and what was decided so far."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gpushare import __version__
from gpushare.cluster.engines.seam import Measured
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
        yield from self._engine()
        decided = CounterMetricFamily("gpushare_cluster_decisions", "Decisions about jobs.", labels=("kind",))
        counts = self._service.work.counts
        for kind in ("start", "wait", "preempt", "move", "shrink", "grow", "stop", "refuse"):
            decided.add_metric((kind,), counts[kind])
        yield decided
        answers = CounterMetricFamily(
            "gpushare_cluster_answers",
            "Answers of the engine to commands; none: nobody knows whether it was done.",
            labels=("command", "answer"),
        )
        for (command, answer), count in sorted(self._service.work.loop.answers.items()):
            answers.add_metric((command, answer), count)
        yield answers
        totals: tuple[tuple[str, str, float], ...] = (
            ("submitted", "Jobs that were submitted.", counts["submitted"]),
            ("rounds", "Rounds in which decisions were compared with what runs.", self._service.work.count),
            ("round_seconds", "Time that these took.", self._writer.round_seconds),
            ("errors", "Requests and rounds that failed; see the log.", self._writer.errors),
        )
        for name, text, total in totals:
            yield CounterMetricFamily(f"gpushare_cluster_{name}", text, value=total)

    def _engine(self) -> Iterator[Metric]:
        work = self._service.work
        yield GaugeMetricFamily(
            "gpushare_cluster_leads", "1 if this service decides, 0 if another.", work.leads is True
        )
        for one in work.engine.measures() if isinstance(work.engine, Measured) else ():
            kind = CounterMetricFamily if one.name.endswith("_total") else GaugeMetricFamily
            made = kind(f"gpushare_cluster_{one.name}", one.text, labels=one.labels)
            for values, value in sorted(one.values.items()):
                made.add_metric(values, value)
            yield made
