"""The node's GPUs as the cluster sees them."""

from __future__ import annotations

from claims import GIB, GPU, GPU2, NODE, gpu

from gpushare.kubernetes.amounts import parse
from gpushare.kubernetes.slices import STEP, resource_slice


def devices(*gpus, **more):
    return resource_slice(NODE, gpus, "sim", **more)["spec"]["devices"]


def test_each_gpu_is_one_device_that_many_claims_may_have_parts_of():
    first, second = devices(gpu(), gpu(GPU2, 1, name="Another"))
    assert (first["name"], first["allowMultipleAllocations"]) == (GPU.lower(), True)
    assert first["capacity"]["memory"]["value"] == "15Gi"
    assert second["attributes"] == {
        "uuid": {"string": GPU2},
        "index": {"int": 1},
        "productName": {"string": "Another"},
        "driver": {"string": "sim"},
        "health": {"string": "ok"},
    }
    assert "taints" not in first


def test_the_policy_is_one_that_the_api_server_takes_for_any_capacity():
    """Its rules: min and one step fit in, and the default is a whole number of steps from min."""
    for capacity in (15 * GIB, 15 * GIB + 12_345_678, 2 * STEP, 80 * GIB - 1):
        (device,) = devices(gpu(capacity=capacity))
        memory = device["capacity"]["memory"]
        policy, value = memory["requestPolicy"], parse(memory["value"])
        least, step = parse(policy["validRange"]["min"]), parse(policy["validRange"]["step"])
        assert least + step <= value <= capacity
        assert parse(policy["default"]) == value and (value - least) % step == 0


def test_a_claim_that_says_no_amount_takes_the_whole_gpu():
    (device,) = devices(gpu())
    memory = device["capacity"]["memory"]
    assert memory["requestPolicy"]["default"] == memory["value"]


def test_health_becomes_an_attribute_and_from_sick_on_a_taint():
    for state, effect in (("degraded", None), ("sick", "NoSchedule"), ("lost", "NoExecute")):
        (device,) = devices(gpu(health=state))
        assert device["attributes"]["health"] == {"string": state}
        taints = [{"key": "gpushare.dev/health", "value": state, "effect": effect}] if effect else None
        assert device.get("taints") == taints


def test_a_gpu_without_memory_to_give_is_no_device():
    assert devices(gpu(capacity=0)) == []


def test_for_a_server_without_parts_of_devices_they_are_whole():
    (device,) = devices(gpu(), shared=False)
    assert "allowMultipleAllocations" not in device and device["capacity"] == {"memory": {"value": "15Gi"}}
