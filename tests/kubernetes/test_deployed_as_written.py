"""What documents and manifests say is what the plugin needs and takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from api_double import SERVED
from claims import NODE, claim, gpu
from click.testing import CliRunner
from kube_stage import until

from gpushare.kubernetes import claim as claims
from gpushare.kubernetes.__main__ import command
from gpushare.kubernetes.attach import with_gpus
from gpushare.kubernetes.budget import FIELDS
from gpushare.kubernetes.names import ATTACH, ATTACHED, DRIVER, NVIDIA
from gpushare.kubernetes.publish import CLAIMS

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy" / "kubernetes"
PAGE = (ROOT / "docs" / "kubernetes.md").read_text()
VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch"}


def objects(name: str) -> list[dict]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def test_the_claim_of_the_page_is_read():
    block, *_ = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)  # the others are about queues
    template, pod = yaml.safe_load_all(block)
    devices = template["spec"]["spec"]["devices"]
    (request,) = devices["requests"]
    assert request["exactly"]["deviceClassName"] == objects("deviceclass.yaml")[0]["metadata"]["name"]
    memory = request["exactly"]["capacity"]["requests"]["memory"]
    result = {"request": request["name"], "driver": DRIVER, "pool": NODE, "device": gpu()["uuid"].lower()}
    allocated = claim(
        {**result, "consumedCapacity": {"memory": memory}},
        config=[{"source": "FromClaim", **one} for one in devices["config"]],
    )
    body = claims.body(claims.read(allocated, NODE), [gpu(capacity=80 * 2**30)])
    assert (body["request"], body["limit"]) == ("8Gi", "24Gi")
    assert pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] == template["metadata"]["name"]


def test_the_page_has_a_row_for_each_field():
    assert re.findall(r"^\| `(\w+)` \|", PAGE.partition("## Queues")[0], re.MULTILINE) == [
        *("limit", "grace", "onReclaim", "priority", "minRunTime", "lend", "visible"),
    ]
    assert {"limit", "grace", "onReclaim", "priority", "minRunTime", "lend", "visible"} == set(FIELDS)


def test_the_plugin_may_do_what_it_does_and_nothing_else(node):
    node.claim("c-1")
    node.kubelet.prepare("c-1")
    until(lambda: node.api.objects[CLAIMS.format("team-a", "claim-c-1")]["status"].get("devices"), "its status")
    del node.api.objects[f"/apis/resource.k8s.io/v1/resourceslices/{NODE}-gpushare.dev"]
    until(lambda: node.api.of("resourceslices"), "the slice to be made again")
    node.api.of("resourceslices")[0]["spec"]["devices"].pop()
    until(lambda: any(method == "PUT" for method, _ in node.api.requests), "the slice to be corrected")
    asked = {(VERBS[method], resource(path)) for method, path in node.api.requests if path != SERVED}
    role = next(one for one in objects("rbac.yaml") if one["kind"] == "ClusterRole")
    granted = {(verb, what) for rule in role["rules"] for what in rule["resources"] for verb in rule["verbs"]}
    newer = {("update", "resourceclaims/status")}  # of a claim that no patch may touch: test_stored_claims.py
    assert asked == {(verb, what) for verb, what in granted if what != "resourceclaims/driver"} - newer


def resource(path: str) -> str:
    words = path.split("/")
    kind = next(word for word in words if word in ("nodes", "resourceslices", "resourceclaims"))
    return f"{kind}/status" if words[-1] == "status" else kind


def test_the_manifests_are_a_whole():
    (kustomization,) = objects("kustomization.yaml")
    here = {path.name for path in DEPLOY.iterdir()} - {
        "kustomization.yaml",
        "Containerfile",
        "attach",
        "scheduler",
        "webhook",
    }
    assert set(kustomization["resources"]) == here
    (role, binding) = (
        next(o for o in objects("rbac.yaml") if o["kind"] == k) for k in ("ClusterRole", "ClusterRoleBinding")
    )
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    (node,) = objects("node.yaml")
    spec = node["spec"]["template"]["spec"]
    assert binding["subjects"][0] == {
        "kind": "ServiceAccount",
        "name": spec["serviceAccountName"],
        "namespace": kustomization["namespace"],
    }
    (container,) = spec["containers"]
    assert {one["name"] for one in container["volumeMounts"]} == {one["name"] for one in spec["volumes"]}
    hosts = {one["name"]: one["hostPath"]["path"] for one in spec["volumes"]}
    inside = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    assert hosts == inside, "CDI files name paths of the host"


def test_the_manifest_mounts_what_the_plugin_looks_for_unasked():
    shown = CliRunner().invoke(command, ["--help"]).output
    mounted = [
        one["mountPath"] for one in objects("node.yaml")[0]["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    ]
    for option in ("--kubelet", "--state", "--cdi", "--cgroups"):
        default = re.search(rf"{option}.*?\[default:\s+([^\]]+)\]", shown, re.DOTALL)[1]
        assert any(path == default or path.startswith(f"{default}/") for path in mounted), default
    assert "/run/gpushare" in mounted


def test_the_claim_of_the_page_that_attaches_is_read_and_its_manifests_are_a_whole():
    block = next(one for one in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) if "attach.gpushare.dev" in one)
    devices = yaml.safe_load(block)["spec"]["spec"]["devices"]
    of_nvidia, ours = devices["requests"]
    (kind,) = objects("attach/deviceclass.yaml")
    assert ours["exactly"] == {"deviceClassName": kind["metadata"]["name"]}
    memory = of_nvidia["exactly"]["capacity"]["requests"]["memory"]
    results = [
        {
            "request": of_nvidia["name"],
            "driver": NVIDIA,
            "pool": NODE,
            "device": "gpu-0",
            "consumedCapacity": {"memory": memory},
        },
        {"request": ours["name"], "driver": DRIVER, "pool": NODE, "device": ATTACH},
    ]
    found = claim(*results, config=[{"source": "FromClaim", **one} for one in devices["config"]])
    device = {
        "name": "gpu-0",
        "attributes": {"uuid": {"string": gpu()["uuid"]}},
        "capacity": {"memory": {"value": "80Gi"}},
    }
    slices = [{"spec": {"driver": NVIDIA, "pool": {"name": NODE, "generation": 1}, "devices": [device]}}]
    held = with_gpus(claims.read(found, NODE), slices, [gpu(capacity=78 * 2**30)])
    body = claims.body(held, [gpu()])
    assert (body["request"], body["limit"]) == ("8Gi", "24Gi")
    domain = ATTACHED.partition("/")[0]
    assert f'"{domain}" in device.attributes' in kind["spec"]["selectors"][0]["cel"]["expression"]
    (kustomization,) = objects("attach/kustomization.yaml")
    assert {path.name for path in (DEPLOY / "attach").iterdir()} == {"kustomization.yaml", *kustomization["resources"]}
    role, binding = objects("attach/rbac.yaml")
    assert role["rules"] == [{"apiGroups": ["resource.k8s.io"], "resources": ["resourceslices"], "verbs": ["list"]}]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"] == objects("rbac.yaml")[2]["subjects"]


@pytest.mark.parametrize("words", [[], ["--node", "n", "--every", "0"]])
def test_the_command_says_what_is_missing(words):
    result = CliRunner().invoke(command, words, env={"NODE_NAME": None})
    assert result.exit_code == 2 and ("--node" in result.output or "--every" in result.output)
