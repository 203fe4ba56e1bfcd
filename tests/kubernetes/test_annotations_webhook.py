"""The webhook on a server without claims: what a pod gets so that it carries its own."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from typing import Any

import pytest
from claims import GIB, gpu
from cluster_double import ClusterDouble
from kube_stage import until
from webhook_cases import SIZES, cluster, patched, pod
from webhook_stage import deploy, webhook_at

from gpushare.cluster.engines.kubernetes import request as requests
from gpushare.kubernetes import carried
from gpushare.kubernetes.names import NODE_GPUS
from gpushare.kubernetes.publish import node_gpus
from gpushare.kubernetes.webhook.limits import Rules
from gpushare.kubernetes.webhook.review import answer, claimed

OURS = {"schedulerName": "gpushare"}
NO_GPU = {"NVIDIA_VISIBLE_DEVICES": "void"}
"""To NVIDIA's runtime a container of this is one like any other."""
WITHOUT_CLAIMS = ("/apis/resource.k8s.io/",)


def admitted(one: dict[str, Any], rules: Rules = Rules()) -> dict[str, Any]:  # noqa: B008
    response = reviewed(one, rules)
    assert response["allowed"], response
    return patched(one, json.loads(base64.b64decode(response["patch"])))


def reviewed(one: dict[str, Any], rules: Rules = Rules(), **more: Any) -> dict[str, Any]:  # noqa: B008
    request = {"uid": "u", "namespace": "team-a", "object": one, **more}

    def made(_: object) -> None:
        raise AssertionError("there are no templates")

    known = replace(cluster(None), claims=False)
    return dict(answer({"request": request}, lambda: known, rules, made)["response"])


def of(stored: dict[str, Any]) -> dict[str, Any]:
    return dict(json.loads(stored["metadata"]["annotations"][carried.CLAIM]))


def variables(container: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one.get("value") or one["valueFrom"]["fieldRef"]["fieldPath"] for one in container["env"]}


def test_a_pod_gets_what_a_cdi_file_gives_elsewhere():
    stored = admitted(pod({"gpu-fraction": "0.25", "gpu-fraction-limit": "0.8"}, **OURS))
    assert of(stored) == {"memory": "20224Mi", "limit": "0.8"}
    assert "resourceClaims" not in stored["spec"]
    (container,) = stored["spec"]["containers"]
    gate = carried.gate_of(stored)
    assert gate is not None
    library, sockets = stored["spec"]["volumes"]
    assert library["hostPath"] == {"path": f"/var/lib/gpushare-dra/pods/{gate}/libgpushare.so", "type": "File"}
    assert sockets["hostPath"] == {"path": "/run/gpushare/containers", "type": "Directory"}
    mounted = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    assert mounted == {"gpushare": "/usr/local/lib/libgpushare.so", "gpushare-sockets": "/run/gpushare"}
    assert all(one["readOnly"] for one in container["volumeMounts"])
    assert variables(container) == {
        "LD_PRELOAD": "/usr/local/lib/libgpushare.so",
        "GPUSHARE_MODE": "enforce",
        "GPUSHARE_SOCKET": "/run/gpushare/api.sock",
        "GPUSHARE_JOB": gate[:16],
        "GPUSHARE_NAME": "metadata.name",
        "GPUSHARE_REQUEST": "metadata.annotations['gpushare.dev/request']",
        "GPUSHARE_LIMIT": "metadata.annotations['gpushare.dev/limit']",
        "CUDA_VISIBLE_DEVICES": "metadata.annotations['gpushare.dev/gpus']",
        "NVIDIA_VISIBLE_DEVICES": "metadata.annotations['gpushare.dev/gpus']",
    }


def test_what_it_carries_is_what_the_scheduler_reads():
    stored = admitted(pod({"gpu-memory": "8Gi", "gpu-memory-limit": "24Gi", "gpu-fraction-num-devices": "2"}, **OURS))
    meta = {**stored["metadata"], "namespace": "team-a", "uid": "p-1"}
    one = {**stored, "metadata": meta}
    claim = carried.of_pod(one)
    assert claim is not None
    kinds = {name: kind for (_, name), kind in carried.class_of({}).items()}
    asked = requests.read(one, {("team-a", "notebook"): claim}, kinds)
    assert asked is not None
    assert (asked.tasks.gpus, asked.tasks.memory, asked.tasks.limit) == (2, 8 * GIB, 24 * GIB)


BUDGET = {"gpushare.dev/budget": '{"grace": "5s", "priority": 3}'}


def test_what_a_budget_says_beside_the_limit_is_carried_and_in_a_template_elsewhere():
    one = pod({"gpu-memory": "8Gi", "gpu-memory-limit": "24Gi", **BUDGET}, **OURS)
    assert of(admitted(one)) == {"memory": "8Gi", "limit": "24Gi", "grace": "5s", "priority": 3}
    found = claimed(one, "team-a", cluster(None), Rules())
    assert found is not None and found[0] is not None
    (block,) = found[0]["spec"]["spec"]["devices"]["config"]
    said = {name: value for name, value in block["opaque"]["parameters"].items() if name not in ("apiVersion", "kind")}
    assert said == {"limit": "24Gi", "grace": "5s", "priority": 3}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[", "annotation gpushare.dev/budget is not an object of JSON; write"),
        ('{"limit": "1Gi"}', "annotation gpushare.dev/budget says the limit; write gpu-fraction-limit"),
        ('{"memory": "1Gi"}', "annotation gpushare.dev/budget: Budget has no field 'memory'"),
        ('{"grace": "soon"}', "annotation gpushare.dev/budget: Budget.grace:"),
    ],
)
def test_a_budget_that_makes_no_sense_is_refused(text, told):
    response = reviewed(pod({"gpu-fraction": "0.5", "gpushare.dev/budget": text}, **OURS))
    assert response["status"]["message"].startswith(told), response


def test_what_the_pod_says_itself_is_replaced_and_all_else_stays():
    own = [{"name": "LD_PRELOAD", "value": "mine.so"}, {"name": "MY", "value": "1"}, {"name": "GPUSHARE_LIMIT"}]
    one = pod({"gpu-fraction": "0.5", "mine": "x"}, env=own, volumes=[{"name": "data", "emptyDir": {}}], **OURS)
    one["spec"]["containers"][0]["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    stored = admitted(one)
    (container,) = stored["spec"]["containers"]
    names = [each["name"] for each in container["env"]]
    assert names[0] == "MY" and len(names) == len(set(names))
    assert variables(container)["LD_PRELOAD"] == "/usr/local/lib/libgpushare.so"
    assert [each["name"] for each in stored["spec"]["volumes"]] == ["data", "gpushare", "gpushare-sockets"]
    assert container["volumeMounts"][0] == {"name": "data", "mountPath": "/data"}
    assert stored["metadata"]["annotations"]["mine"] == "x"


def test_a_copy_of_a_pod_has_a_gate_of_its_own_and_nothing_that_the_other_was_given():
    first = admitted(pod({"gpu-fraction": "0.5"}, **OURS))
    first["metadata"]["annotations"] |= {name: "x" for name in carried.WRITTEN}
    second = admitted(first)
    assert carried.gate_of(first) != carried.gate_of(second)
    assert not set(carried.WRITTEN) & set(second["metadata"]["annotations"])
    assert len(second["spec"]["volumes"]) == 2 and len(second["spec"]["containers"][0]["env"]) == 9


def test_another_container_that_is_named_gets_it_and_no_other():
    one = pod({"gpu-fraction": "0.5", "gpu-fraction-container-name": "prepare"}, **OURS)
    one["spec"]["initContainers"] = [{"name": "prepare", "image": "x"}]
    stored = admitted(one)
    assert variables(stored["spec"]["containers"][0]) == NO_GPU
    assert variables(stored["spec"]["initContainers"][0])["GPUSHARE_MODE"] == "enforce"


@pytest.mark.parametrize("kind", ["containers", "initContainers"])
def test_other_containers_have_no_gpu_and_none_of_its_volumes(kind):
    """Images of CUDA say NVIDIA_VISIBLE_DEVICES=all. Who may write into the folder of the socket takes its place."""
    mounts = [{"name": "gpushare-sockets", "mountPath": "/x"}, {"name": "gpushare", "mountPath": "/y"}]
    data = {"name": "data", "mountPath": "/data"}
    env = [{"name": "MY", "value": "1"}, {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    other = {"name": "other", "image": "cuda", "env": env, "volumeMounts": [*mounts, data]}
    one = pod({"gpu-fraction": "0.5"}, **OURS)
    one["spec"].setdefault(kind, []).append(other)
    stored = admitted(one)
    found = stored["spec"][kind][-1]
    assert variables(found) == {"MY": "1", **NO_GPU} and found["volumeMounts"] == [data]
    assert variables(stored["spec"]["containers"][0])["GPUSHARE_MODE"] == "enforce"


def test_a_container_for_debugging_has_no_gpu_either():
    stored = admitted(pod({"gpu-fraction": "0.5"}, **OURS))
    known = {"name": "known", "image": "cuda"}
    added = {"name": "added", "image": "cuda", "volumeMounts": [{"name": "gpushare-sockets", "mountPath": "/x"}]}
    before = {**stored, "spec": {**stored["spec"], "ephemeralContainers": [known]}}
    after = {**stored, "spec": {**stored["spec"], "ephemeralContainers": [known, added]}}
    response = reviewed(after, subResource="ephemeralcontainers", oldObject=before)
    found = patched(after, json.loads(base64.b64decode(response["patch"])))["spec"]["ephemeralContainers"]
    assert found[0] == known, "nobody may change it"
    assert variables(found[1]) == NO_GPU and found[1]["volumeMounts"] == []
    other = pod({"gpu-fraction": "0.5"}, ephemeralContainers=[added], schedulerName="another")
    assert reviewed(other, subResource="ephemeralcontainers", oldObject=other) == {"uid": "u", "allowed": True}


@pytest.mark.parametrize("scheduler", [{}, {"schedulerName": "default-scheduler"}])
def test_a_pod_of_kube_scheduler_is_refused_because_nobody_would_give_it_a_gpu(scheduler):
    response = reviewed(pod({"gpu-fraction": "0.5"}, **scheduler))
    assert not response["allowed"] and response["status"]["code"] == 403
    assert response["status"]["message"] == (
        "on this server only gpushare's scheduler gives parts of GPUs (gpu-fraction 0.5); write schedulerName: gpushare"
    )


def test_a_pod_that_names_its_node_is_refused_because_the_scheduler_passes_it_by():
    response = reviewed(pod({"gpu-fraction": "0.5"}, nodeName="big-1", **OURS))
    assert response["status"]["message"] == (
        "the pod names its node big-1, so gpushare's scheduler gives it no GPU (gpu-fraction 0.5); write nodeSelector "
        "in place of nodeName"
    )


def test_what_makes_no_sense_is_refused_in_the_same_words_as_elsewhere():
    message = reviewed(pod({"gpu-fraction": "0.5", "gpu-fraction-limit": "0.3"}, **OURS))["status"]["message"]
    assert "gpu-fraction-limit '0.3' is below gpu-fraction 0.5" in message


def test_the_webhook_finds_out_by_itself_and_needs_no_rights_to_claims(tmp_path):
    api = ClusterDouble(tmp_path)
    api.lacks = WITHOUT_CLAIMS
    deploy(api)
    for name, size in SIZES.items():
        labels = {"size": name.partition("-")[0]}
        api.put(f"/api/v1/nodes/{name}", {"metadata": {"name": name, "labels": labels}, "spec": {}})
        api.put(f"{NODE_GPUS}/{name}", node_gpus(name, [gpu(capacity=size * GIB)], "sim"))
    try:
        with webhook_at(api, tmp_path) as webhook:
            webhook.ready()
            stored = webhook.admit(pod({"gpu-fraction": "0.5"}, **OURS))
            assert re.fullmatch("[0-9a-f]{32}", str(carried.gate_of(stored)))
            assert of(stored) == {"memory": "40448Mi"}
            assert webhook.admit(pod({"other": "x"})) == pod({"other": "x"})
            asked = {path for _, path in api.requests if "resource.k8s.io" in path}
            assert asked <= {"/apis/resource.k8s.io/v1", "/apis/resource.k8s.io/v1/resourceclaimtemplates"}
            assert "templates" not in webhook.log
    finally:
        api.stop()


def test_a_webhook_whose_api_server_does_not_say_what_it_has_is_not_ready(tmp_path):
    api = ClusterDouble(tmp_path)
    deploy(api)

    def refuses(_, path, __):
        return (503, {"message": "it starts"}) if path == "/apis/resource.k8s.io/v1" else None

    api.refuses = refuses
    try:
        with webhook_at(api, tmp_path) as webhook:
            until(lambda: "answers the API server" in webhook.log, lambda: webhook.log)
            assert webhook.request("GET", "/ready")[0] == 503
            assert webhook.review(pod({"gpu-fraction": "0.5"}, **OURS))["status"]["code"] == 503
            api.refuses = lambda *_: None
            until(lambda: webhook.request("GET", "/ready")[0] == 200, "the webhook to be ready")
    finally:
        api.stop()
