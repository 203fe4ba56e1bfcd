"""A node whose GPUs NVIDIA's own DRA driver allocates: budgets beside its claims, and no second inventory."""

from __future__ import annotations

import json

import pytest
from claims import GIB, GPU, GPU2, NODE, budget, claim, gpu, result
from enforced_stage import Program, enforced_node
from kube_stage import KubeNode, until

from gpushare.cluster.engines.kubernetes import views
from gpushare.errors import GpushareError
from gpushare.kubernetes import claim as claims
from gpushare.kubernetes.attach import with_gpus
from gpushare.kubernetes.publish import CLAIMS, use_of
from gpushare.kubernetes.slices import STEP, resource_slice
from gpushare.kubernetes.webhook import sizes

NVIDIA = "gpu.nvidia.com"
NODE_PATH = f"/api/v1/nodes/{NODE}"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
OURS = f"{SLICES}/{NODE}-gpushare.dev"
THEIRS = f"{SLICES}/{NODE}-nvidia"
MIB = 2**20


def device(name: str, uuid: str, memory: str = "16Gi", **more):
    capacity = {"memory": {"value": memory}} | {key: {"value": value} for key, value in more.pop("shares", {}).items()}
    attributes = {"uuid": {"string": uuid}, "type": {"string": more.pop("type", "gpu")}}
    return {"name": name, "attributes": attributes, "capacity": capacity, "allowMultipleAllocations": True}


def nvidias(*devices, generation: int = 1, pool: str = NODE):
    found = list(devices) or [device("gpu-1", GPU), device("gpu-0", GPU2)]
    spec = {"driver": NVIDIA, "nodeName": NODE, "pool": {"name": pool, "generation": generation}, "devices": found}
    return {"metadata": {"name": "n1-nvidia"}, "spec": spec}


def attach(name: str = "attach", request: str = "budget"):
    return {"request": request, "driver": "gpushare.dev", "pool": NODE, "device": name, "shareID": "ours"}


def theirs(name: str = "gpu-1", memory: str | None = "8Gi", request: str = "gpu", **more):
    booked = {} if memory is None else {"consumedCapacity": {"memory": memory, **more}, "shareID": "theirs"}
    return {"request": request, "driver": NVIDIA, "pool": NODE, "device": name, **booked}


def body(*results, slices=None, gpus=None, config=()):
    gpus = gpus or [gpu(), gpu(GPU2, 1)]
    read = claims.read(claim(*results, config=config), NODE)
    held = with_gpus(read, [nvidias()] if slices is None else slices, gpus)
    return claims.body(held, claims.gpus_of(held, gpus))


def refusal(*results, **more):
    with pytest.raises(GpushareError) as caught:
        body(*results, **more)
    return caught.value.message, caught.value.hint


# ---- the slice -----------------------------------------------------------------------------------------


def test_such_a_node_publishes_one_device_without_capacity_and_no_gpu():
    (only,) = resource_slice(NODE, [gpu(), gpu(GPU2, 1)], "sim", attach=True)["spec"]["devices"]
    assert only == {
        "name": "attach",
        "attributes": {"attach.gpushare.dev/driver": {"string": NVIDIA}},
        "allowMultipleAllocations": True,
    }


def test_where_devices_are_not_shared_there_is_one_for_each_gpu():
    found = resource_slice(NODE, [gpu(), gpu(GPU2, 1)], "sim", attach=True, shared=False)["spec"]["devices"]
    assert [one["name"] for one in found] == ["attach-0", "attach-1"]
    assert body(theirs(memory=None), attach("attach-1"))["gpus"] == [GPU]


# ---- what the claim has --------------------------------------------------------------------------------


def test_the_gpu_is_that_of_the_uuid_and_what_is_booked_is_the_request():
    """NVIDIA's driver numbers devices by their minor number, which need not be the index."""
    made = body(theirs("gpu-0", "3Gi"), attach(), config=[budget(limit="6Gi")])
    assert (made["gpus"], made["request"], made["limit"]) == ([GPU2], "3Gi", "6Gi")
    assert body(theirs("gpu-1", "100Mi"), attach())["request"] == "100Mi", "it books in steps of 1 MiB"


@pytest.mark.parametrize(
    "found",
    [
        budget(limit="12Gi"),
        budget(requests=("budget",), limit="12Gi"),
        budget(requests=("gpu",), limit="12Gi"),
        budget("FromClass", requests=("gpu",), limit="12Gi"),
    ],
)
def test_the_block_may_name_either_request_or_be_in_either_class(found):
    assert body(theirs(), attach(), config=[found])["limit"] == "12Gi"
    of_others = budget(requests=("gpu",), driver=NVIDIA, anything=1)
    assert body(theirs(), attach(), config=[of_others, found])["limit"] == "12Gi"


def test_several_gpus_are_one_job():
    made = body(theirs(), theirs("gpu-0", request="more"), attach())
    assert (made["gpus"], made["request"]) == ([GPU, GPU2], "8Gi")


def test_a_whole_device_is_a_whole_gpu_though_the_node_daemon_gives_out_less():
    for whole in (theirs(memory=None), theirs(memory="16Gi")):
        assert body(whole, attach())["request"] == "15Gi"


def test_a_share_of_a_device_is_that_part_of_the_gpu():
    shared = [nvidias(device("gpu-1", GPU, shares={"shares": "4"}))]
    assert body(theirs(memory="0", shares="1"), attach(), slices=shared)["request"] == "3840Mi"
    assert body(theirs(memory="0", shares="4"), attach(), slices=shared)["request"] == "15Gi"
    assert body(theirs(memory="2Gi", shares="1"), attach(), slices=shared)["request"] == "2Gi", "what is said counts"
    odd = body(theirs(memory="0", shares="1"), attach(), slices=[nvidias(device("gpu-1", GPU, shares={"shares": "7"}))])
    assert odd["request"] == f"{15 * GIB // 7 // STEP * 64}Mi", "seven of these fit"
    for published, share in (({"shares": "4"}, "5"), ({"shares": "4"}, "0"), ({}, "1")):
        words, hint = refusal(
            theirs(memory="0", shares=share), attach(), slices=[nvidias(device("gpu-1", GPU, shares=published))]
        )
        assert f"{share} of {published.get('shares', 0)} shares" in words and "memory: 8Gi" in hint


def test_of_several_generations_of_a_pool_the_newest_counts():
    old = nvidias(device("gpu-1", GPU2), device("gpu-9", GPU2), generation=3)
    new = nvidias(device("gpu-1", GPU), generation=4)
    other = nvidias(device("gpu-1", GPU2), generation=1, pool="other")
    for slices in ([old, new, other], [other, new, old]):
        assert body(theirs(), attach(), slices=slices)["gpus"] == [GPU]
        assert "is not published" in refusal(theirs("gpu-9"), attach(), slices=slices)[0]


@pytest.mark.parametrize(
    ("results", "slices", "words", "hint"),
    [
        ((attach(),), None, "has no GPU of gpu.nvidia.com to attach to", "deviceClassName: gpu.nvidia.com"),
        ((theirs(), attach(), result()), None, "has GPUs of both drivers", "two claims"),
        ((theirs("gpu-7"), attach()), None, "gpu.nvidia.com's device gpu-7 is not published on", "delete the pod"),
        ((theirs(), attach()), [], "gpu.nvidia.com's device gpu-1 is not published on", "delete the pod"),
        (
            (theirs(), attach()),
            [nvidias(device("gpu-1", "GPU-other"))],
            "is GPU-other of type gpu, and the node daemon has no such GPU",
            "gpushare status",
        ),
        (
            (theirs(), attach()),
            [nvidias(device("gpu-1", "MIG-1", type="mig"))],
            "is MIG-1 of type mig, and the node daemon has no such GPU",
            'device.attributes["gpu.nvidia.com"].type == "gpu"',
        ),
        ((theirs(), attach()), [nvidias({"name": "gpu-1"})], "is without a uuid", "gpushare status"),
        ((theirs(memory="0"), attach()), None, "no memory of gpu.nvidia.com's device gpu-1 is booked", "memory: 8Gi"),
        (
            (theirs(memory="15872Mi"), attach()),
            None,
            "15872Mi of gpu.nvidia.com's device gpu-1 are booked",
            "whole GPU",
        ),
        ((theirs(), theirs(request="b"), attach()), None, "has one GPU twice", "the sum of both"),
        ((theirs(), theirs("gpu-0", "1Gi", "b"), attach()), None, "has 1Gi and 8Gi on its GPUs", "two claims"),
        ((theirs(memory="x"), attach()), None, "cannot read 'x' as an amount", "8Gi"),
    ],
)
def test_a_refusal_says_the_cause_and_the_way_out(results, slices, words, hint):
    said = refusal(*results, slices=slices)
    assert words in said[0] and hint in (said[1] or "")


def test_how_it_uses_its_gpus_is_told_of_the_device_that_is_ours():
    found = claim(theirs(), theirs("gpu-0", request="b"), attach())
    gpus = [{"uuid": uuid, "usage": 2 * GIB, "loan": GIB, "request": GIB, "limit": 3 * GIB} for uuid in (GPU, GPU2)]
    (told,) = use_of(found, NODE, {"state": "borrowing", "gpus": gpus})
    assert (told["device"], told["shareID"], told["data"]["usage"], told["data"]["loan"]) == (
        "attach",
        "ours",
        "4Gi",
        "2Gi",
    )
    assert told["conditions"][0]["message"] == "uses 4.0 GiB of 2.0 GiB requested; 2.0 GiB of that are on loan"


def test_nobody_is_named_as_lender_where_it_is_not_known_on_which_gpu_a_claim_is():
    uses = [
        views.Use(NODE, "attach", who, 2 * GIB, 4 * GIB, usage, loan, "borrowing", "")
        for who, usage, loan in (("team-a/one", 3 * GIB, GIB), ("team-a/two", 0, 0))
    ]
    (loan,) = views.loans(uses, views.devices([resource_slice(NODE, [gpu()], "sim", attach=True)]))
    assert (loan.use.who, loan.lenders) == ("team-a/one", ())


def test_a_fraction_is_one_of_a_gpu_and_not_of_the_device_of_such_a_node():
    nodes = {name: {"metadata": {"name": name, "labels": {}}, "spec": {}} for name in ("n1", "n2")}
    slices = [resource_slice("n1", [gpu()], "sim", attach=True), resource_slice("n2", [gpu()], "sim")]
    assert sizes.smallest({"metadata": {}, "spec": {}}, slices, nodes) == 15 * GIB


# ---- with the plugin and the node daemon ---------------------------------------------------------------


def label(node: KubeNode, **labels: str) -> None:
    node.api.put(NODE_PATH, {"metadata": {"name": NODE, "uid": "node-uid", "labels": labels}})


def begin(node: KubeNode) -> None:
    """NVIDIA's driver numbers the GPUs the other way round."""
    label(node, **{"gpushare.dev/attach": "true"})
    first, second = node.uuids
    node.api.put(THEIRS, nvidias(device("gpu-0", second, "4Gi"), device("gpu-1", first, "4Gi")))


@pytest.fixture
def attached(node):
    begin(node)
    node.kill(node.plugin)
    node.refresh()
    until(lambda: [one["name"] for one in node.api.objects[OURS]["spec"]["devices"]] == ["attach"], "its device")
    yield node
    node.refresh()
    label(node)
    node.api.objects.pop(THEIRS, None)
    node.kill(node.plugin)
    node.refresh()
    until(lambda: len(node.api.objects[OURS]["spec"]["devices"]) == 2, "the GPUs again")


def made(node: KubeNode, uid: str, *results, **more) -> None:
    node.claim(uid, **more)
    path = CLAIMS.format("team-a", f"claim-{uid}")
    found = json.loads(json.dumps(node.api.objects[path]))
    found["status"]["allocation"]["devices"]["results"] = list(results)
    node.api.put(path, found)


def test_a_claim_of_nvidias_driver_is_a_placement_and_a_cdi_device(attached):
    made(attached, "c-1", theirs("gpu-0", "1Gi"), attach(), config=[budget(limit="2Gi")])
    answer = attached.kubelet.prepare("c-1")["c-1"]
    assert answer.error == ""
    (told,) = answer.devices
    assert (list(told.request_names), told.pool_name, told.device_name) == (["budget"], NODE, "attach")
    assert list(told.cdi_device_ids) == ["gpushare.dev/claim=c-1"], "NVIDIA's driver answers its own"
    (placed,) = attached.placed()
    (used,) = placed["job"]["gpus"]
    assert (used["uuid"], used["request"], used["limit"]) == (attached.uuids[1], GIB, 2 * GIB)
    assert placed["cgroups"] == ["/kubepods/podp-c-1"]
    edits = json.loads((attached.cdi / "gpushare.dev-claim_c-1.json").read_text())["devices"][0]["containerEdits"]
    names = {line.partition("=")[0] for line in edits["env"]}
    assert "LD_PRELOAD" in names and "NVIDIA_VISIBLE_DEVICES" not in names
    first = attached.kubelet.prepare("c-1")
    assert first["c-1"] == answer and len(attached.placed()) == 1
    path = CLAIMS.format("team-a", "claim-c-1")
    (said,) = until(lambda: attached.api.objects[path]["status"].get("devices"), "its status")
    assert (said["device"], said["data"]["request"]) == ("attach", "1Gi")
    for _ in range(2):
        assert attached.kubelet.unprepare("c-1") == {"c-1": ""}
    assert attached.leftovers() == []


def test_after_a_restart_the_answer_is_the_same_without_the_api_server(attached):
    made(attached, "c-1", theirs("gpu-0", "1Gi"), attach())
    first, before = attached.kubelet.prepare("c-1"), attached.placed()
    for process in (attached.plugin, attached.daemon):
        attached.kill(process)
    attached.start_daemon()
    attached.start_plugin()
    until(lambda: attached.placed() == before, "the placement")
    attached.api.stop()
    assert attached.kubelet.prepare("c-1") == first
    (attached.cdi / "gpushare.dev-claim_c-1.json").unlink()
    until((attached.cdi / "gpushare.dev-claim_c-1.json").exists, "its file, which is made again")
    attached.api.start()
    assert attached.kubelet.unprepare("c-1") == {"c-1": ""} and attached.leftovers() == []


def test_a_gpu_that_is_gone_is_told_and_a_claim_that_is_prepared_stays(attached):
    made(attached, "c-1", theirs("gpu-0", "1Gi"), attach())
    made(attached, "c-2", theirs("gpu-0", "1Gi"), attach())
    first = attached.kubelet.prepare("c-1")
    attached.api.put(THEIRS, nvidias(device("gpu-1", attached.uuids[0]), generation=2))
    said = attached.kubelet.prepare("c-2")["c-2"].error
    assert said.startswith(
        "claim team-a/claim-c-2: gpu.nvidia.com's device gpu-0 is not published on this node any more;"
    )
    assert attached.kubelet.prepare("c-1") == first
    begin(attached)
    assert attached.kubelet.prepare("c-2")["c-2"].error == "", "the kubelet asks again, and it is back"
    assert attached.kubelet.unprepare("c-1", "c-2") == {"c-1": "", "c-2": ""} and attached.leftovers() == []


def test_what_both_do_not_count_alike_is_found_at_the_node_daemon(attached):
    """NVIDIA's driver gives out all memory of a GPU, and the node daemon less."""
    made(attached, "c-1", theirs("gpu-0", "2Gi"), attach())
    made(attached, "c-2", theirs("gpu-0", "2Gi"), attach())
    assert attached.kubelet.prepare("c-1")["c-1"].error == ""
    said = attached.kubelet.prepare("c-2")["c-2"].error
    assert said.startswith("claim team-a/claim-c-2: no room for a request of 2.0 GiB on GPU 1; ")
    assert "held: team-a/claim-c-1" in said and said.endswith("the kubelet asks again")
    assert attached.kubelet.unprepare("c-1") == {"c-1": ""}
    assert attached.kubelet.prepare("c-2")["c-2"].error == ""


def test_without_the_label_nvidias_devices_in_a_claim_change_nothing(node):
    node.api.put(THEIRS, nvidias(device("gpu-0", node.uuids[1])))
    try:
        made(node, "c-1", theirs("gpu-0", "3Gi"), result(node.uuids[0], "1Gi", "ours"), config=[budget(limit="2Gi")])
        (told,) = node.kubelet.prepare("c-1")["c-1"].devices
        assert told.device_name == node.uuids[0].lower()
        (used,) = node.placed()[0]["job"]["gpus"]
        assert (used["uuid"], used["request"], used["limit"]) == (node.uuids[0], GIB, 2 * GIB)
        assert len(node.api.objects[OURS]["spec"]["devices"]) == 2
    finally:
        del node.api.objects[THEIRS]


def test_a_missing_right_is_told_with_the_manifest_that_gives_it(attached):
    made(attached, "c-1", theirs("gpu-0", "1Gi"), attach())
    handle = attached.api.handle

    def refuses(method, path, asked, headers):
        if "fieldSelector" in path:
            return 403, {"message": "resourceslices.resource.k8s.io is forbidden"}
        return handle(method, path, asked, headers)

    attached.api.handle = refuses
    try:
        said = attached.kubelet.prepare("c-1")["c-1"].error
    finally:
        del attached.api.handle
    assert "is forbidden" in said and said.endswith("; kubectl apply -k deploy/kubernetes/attach gives it this right")


# ---- programs ------------------------------------------------------------------------------------------


def test_claims_that_nvidias_driver_has_booked_lend_to_each_other():
    with enforced_node() as node:
        node.start_daemon()
        begin(node)
        node.refresh()
        made(node, "owner", theirs("gpu-1", "2Gi"), attach())
        made(
            node,
            "other",
            theirs("gpu-1", "1Gi"),
            attach(),
            config=[budget(limit="3Gi", grace="1s", onReclaim=["term"])],
        )
        answers = node.kubelet.prepare("owner", "other")
        assert [answer.error for answer in answers.values()] == ["", ""]
        programs = [borrower := Program(node, "other"), owner := Program(node, "owner")]
        try:
            assert (borrower.do("total"), borrower.do(2200)) == (3072, 0)
            assert (owner.do("total"), owner.do(1700)) == (2048, 0)
            assert borrower.process.wait(30) == -15
            assert owner.do(1000) == 2, "out of memory: above its limit"
        finally:
            for one in programs:
                one.end()
