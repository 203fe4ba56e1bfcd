"""Writes docs/metrics.md from the list that the daemon answers from: python docs/man/generate_metrics.py"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gpushared.api.metrics import METRICS

PAGE = Path(__file__).resolve().parents[1] / "metrics.md"

INTRODUCTION = """\
# Metrics

The node daemon answers Prometheus at `/metrics`, in the text format. By default only on its Unix socket:

    curl --unix-socket /run/gpushare/api.sock http://localhost/metrics

For Prometheus open a TCP port on localhost in `/etc/gpushare/gpushared.toml`, and restart the daemon:

```toml
[metrics]
listen = "127.0.0.1:9836"
```

```yaml
# prometheus.yml
scrape_configs:
  - job_name: gpushare
    static_configs:
      - targets: ["127.0.0.1:9836"]
rule_files: [gpushare-alerts.yml]
```

The port serves `/metrics` and nothing else. It shows what `reveal` in the settings lets every user see: where names of
jobs are hidden, the jobs of a user are one series. On the socket the caller sees its own jobs by name.

* [daemon/deploy/grafana-dashboard.json](../daemon/deploy/grafana-dashboard.json): a dashboard to import into Grafana.
* [daemon/deploy/gpushare-alerts.yml](../daemon/deploy/gpushare-alerts.yml): alert rules. Each says what to do.

Amounts are bytes, times are seconds. Counters start at 0 with the daemon.

## Joins

A GPU is its `gpu_uuid`, as in NVML. `gpushare_gpu_info` adds its number, model and host:

    gpushare_gpu_memory_usage_bytes * on(gpu_uuid) group_left(gpu, model, hostname) gpushare_gpu_info

NVIDIA's DCGM exporter calls the same label `UUID`. Usage by GPU beside how busy the GPU is:

    label_replace(DCGM_FI_DEV_GPU_UTIL, "gpu_uuid", "$1", "UUID", "(.*)")
      * on(gpu_uuid) group_left(hostname) gpushare_gpu_info

The part of a user in a GPU's memory:

    sum by (user, gpu_uuid) (gpushare_job_memory_usage_bytes)
      / on(gpu_uuid) group_left gpushare_gpu_memory_capacity_bytes

How long owners wait for their memory, at the 99th percentile:

    histogram_quantile(0.99, sum by (le) (rate(gpushare_claim_wait_seconds_bucket[10m])))
"""

SERVICE = """\
## The cluster's service

`gpushare cluster serve` answers at `/metrics` on its own socket. `metrics_listen = "127.0.0.1:9837"` in its settings
opens a port that serves `/metrics` and nothing else. In Kubernetes the scheduler's pod has that port open to the
cluster, with the annotations `prometheus.io/scrape`, `prometheus.io/port` and `prometheus.io/path`. Queues have names
there, jobs have none.

| metric | kind | labels | meaning |
|---|---|---|---|
| `gpushare_cluster_build_info` | gauge | `version`, `engine` | Version and engine. |
| `gpushare_cluster_leads` | gauge |  | 1 if this service decides, 0 if another. |
| `gpushare_cluster_jobs` | gauge | `queue`, `state` | Jobs that are not over. |
| `gpushare_cluster_queue_gpus` | gauge | `queue` | GPUs that a queue holds. |
| `gpushare_cluster_nodes` | gauge | `state` | Nodes. |
| `gpushare_cluster_decisions_total` | counter | `kind` | Decisions about jobs. |
| `gpushare_cluster_answers_total` | counter | `command`, `answer` | \
Answers of the engine to commands; none: nobody knows whether it was done. |
| `gpushare_cluster_submitted_total` | counter |  | Jobs that were submitted. |
| `gpushare_cluster_rounds_total` | counter |  | Rounds in which decisions were compared with what runs. |
| `gpushare_cluster_round_seconds_total` | counter |  | Time that these took. |
| `gpushare_cluster_errors_total` | counter |  | Requests and rounds that failed; see the log. |
| `gpushare_cluster_kubernetes_requests_total` | counter | `method`, `code` | \
Requests to the API server, by the status of the answer; none: there was none. |
| `gpushare_cluster_kubernetes_request_seconds_total` | counter | `method` | Time that these took. |
| `gpushare_cluster_kubernetes_watches_total` | counter | `resource` | Watches that began. |
| `gpushare_cluster_kubernetes_lists_total` | counter | `resource` | How often a collection was listed whole. |
| `gpushare_cluster_kubernetes_stale` | gauge | `resource` | 1 while what is known of a collection may be old. |
"""


def page() -> str:
    return "\n".join([INTRODUCTION, *_tables(), SERVICE])


def _tables() -> Iterator[str]:
    for heading, metrics in METRICS.items():
        yield f"## {heading}\n"
        yield "| metric | kind | labels | meaning |"
        yield "|---|---|---|---|"
        for metric in metrics:
            labels = ", ".join(f"`{label}`" for label in metric.labels)
            yield f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |"
        yield ""


if __name__ == "__main__":
    PAGE.write_text(page())
