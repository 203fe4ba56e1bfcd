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


def page() -> str:
    return "\n".join([INTRODUCTION, *_tables()])


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
