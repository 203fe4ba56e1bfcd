"""KAI's annotations of a single container: what they mean, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from test_webhook_claims import refusal, said
from webhook_cases import cluster, pod, variable

from gpushare.kubernetes.webhook.limits import Rules
from gpushare.kubernetes.webhook.review import claimed

OF_MAIN = "nvidia.com/container.main"
REQUEST, LIMIT, MODE = f"{OF_MAIN}.gpu-memory.request", f"{OF_MAIN}.gpu-memory.limit", f"{OF_MAIN}.gpu-compute.mode"
PORTION = "kai.scheduler/container.main.gpu-memory.portion.limit"
COMPUTE = f"{OF_MAIN}.gpu-compute.request"
DEVICES = f"{OF_MAIN}.gpus.devices"
SIDE = "nvidia.com/container.side.gpu-memory.request"
TWO = [{"name": "main", "image": "x"}, {"name": "side", "image": "x"}]


@pytest.mark.parametrize(
    ("annotations", "env", "expected"),
    [
        ({REQUEST: "8Gi"}, None, (1, "8Gi", None)),
        ({REQUEST: "8Gi", LIMIT: "16Gi"}, None, (1, "8Gi", "16Gi")),
        ({LIMIT: "16Gi"}, None, (1, "16Gi", None)),
        ({REQUEST: "8589934592"}, None, (1, "8Gi", None)),
        ({REQUEST: "1e9", LIMIT: "2G"}, None, (1, "960Mi", "1953125Ki")),
        ({REQUEST: "8Gi", "gpu-fraction-num-devices": "2"}, None, (2, "8Gi", None)),
        ({REQUEST: "8Gi", MODE: "time-slicing", DEVICES: "0"}, None, (1, "8Gi", None)),
        ({REQUEST: "8Gi", "gpu-fraction-container-name": "main"}, None, (1, "8Gi", None)),
        ({REQUEST: "8Gi"}, variable("1"), (1, "8Gi", "max")),
        ({"gpu-fraction": "0.25", PORTION: "0.8"}, None, (1, "20224Mi", "0.8")),
        ({"gpu-fraction": "0.25", MODE: "time-slicing"}, None, (1, "20224Mi", None)),
        ({"gpu-memory": "2000", MODE: "time-slicing"}, None, (1, "2Gi", None)),
    ],
)
def test_what_they_mean(annotations, env, expected):
    assert said(pod(annotations, env=env)) == expected


def used_by(annotations: dict[str, Any], **more: Any) -> list[str]:
    """Containers that use the claim."""
    one = pod(annotations, **more)
    found = claimed(one, "team-a", cluster(), Rules())
    assert found is not None
    paths = [step["path"] for step in found[1] if step["path"].endswith("/resources/claims")]
    paths += [step["path"] for step in found[1] if step["path"].endswith("/resources")]
    return [one["spec"][path.split("/")[2]][int(path.split("/")[3])]["name"] for path in paths]


def test_the_container_that_they_name_uses_it():
    assert used_by({SIDE: "8Gi"}, containers=TWO) == ["side"]
    assert used_by({REQUEST: "8Gi"}, containers=TWO) == ["main"]
    start = [{"name": "side", "image": "x"}]
    assert used_by({SIDE: "8Gi"}, containers=TWO[:1], initContainers=start) == ["side"]
    mode = {"gpu-fraction": "0.5", "nvidia.com/container.side.gpu-compute.mode": "time-slicing"}
    assert used_by(mode, containers=TWO) == ["side"], "as KAI has it"


def test_what_kai_s_binder_writes_asks_for_nothing():
    assert claimed(pod({DEVICES: "0"}), "team-a", cluster(), Rules()) is None
    assert claimed(pod({"nvidia.com/container.main.other": "0"}), "team-a", cluster(), Rules()) is None


@pytest.mark.parametrize(
    ("one", "sentence"),
    [
        (
            pod({REQUEST: "8Gi", SIDE: "8Gi"}, containers=TWO),
            f"annotations {REQUEST} and {SIDE} are about two containers; one container of a pod has a part of a GPU: "
            "make two pods of it",
        ),
        (
            pod({REQUEST: "16Gi", LIMIT: "8Gi"}),
            f"annotation {LIMIT} '8Gi' is below {REQUEST} 16Gi; raise the limit, or leave it out",
        ),
        (
            pod({REQUEST: "8Gi", "gpu-fraction": "0.5"}),
            f"annotations gpu-fraction and {REQUEST} both say the request; keep one of them",
        ),
        (
            pod({LIMIT: "8Gi", "gpu-memory": "4096"}),
            f"annotations gpu-memory and {LIMIT} both say the request; keep one of them",
        ),
        (
            pod({REQUEST: "much"}),
            f"annotation {REQUEST}: cannot read 'much' as an amount of Kubernetes; write 8Gi or 1536Mi",
        ),
        (
            pod({REQUEST: "0"}),
            f"annotation {REQUEST}: '0' is not an amount of memory; write 8Gi or 1536Mi",
        ),
        (pod({SIDE: "8Gi"}), f"annotation {SIDE}: the pod has no container 'side'; name one of its containers"),
        (
            pod({REQUEST: "8Gi", "gpu-fraction-container-name": "side"}, containers=TWO),
            f"annotation gpu-fraction-container-name is 'side', and annotation {REQUEST} is of another; name one",
        ),
        (
            pod({REQUEST: "8Gi", MODE: "sm-sharing"}),
            f"annotation {MODE} is 'sm-sharing'; leave it out, or write time-slicing",
        ),
        (
            pod({REQUEST: "8Gi", COMPUTE: "0.5"}),
            f"annotation {COMPUTE}: gpushare divides memory here, not computing; leave it out",
        ),
        (
            pod({REQUEST: "8Gi", PORTION: "0.5"}),
            f"annotation {PORTION} is not the limit of {REQUEST}; write {LIMIT}",
        ),
        (
            pod({REQUEST: "8Gi", "gpu-memory-limit": "16Gi"}),
            f"annotation gpu-memory-limit is not the limit of {REQUEST}; write {LIMIT}",
        ),
        (
            pod({PORTION: "0.5"}),
            f"annotation {PORTION} stands alone; add gpu-fraction or gpu-memory, which say the request",
        ),
        (
            pod({"gpu-fraction": "0.5", PORTION: "0.3"}),
            f"annotation {PORTION} '0.3' is below gpu-fraction 0.5; raise the limit, or leave it out",
        ),
        (
            pod({"gpu-fraction": "0.5", PORTION: "0.6", "gpu-fraction-limit": "0.7"}),
            f"annotation gpu-fraction-limit '0.7' and annotation {PORTION} '0.6' are two limits; keep one of them",
        ),
        (
            pod({REQUEST: "8Gi", LIMIT: "16Gi"}, env=variable("12Gi")),
            f"annotation {LIMIT} '16Gi' and variable RUNAI_GPU_MEMORY_LIMIT '12Gi' are two limits; keep one of them",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(one, sentence):
    assert refusal(one) == sentence
