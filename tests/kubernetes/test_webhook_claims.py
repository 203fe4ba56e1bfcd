"""From annotations to claims: what each means, what is refused and in which words."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from claims import gpu
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from webhook_cases import BIG, Cluster, cluster, patched, pod, variable

from gpushare.cluster.engines.kubernetes import request as requests
from gpushare.errors import UsageError
from gpushare.kubernetes import claim as claims
from gpushare.kubernetes.webhook import limits
from gpushare.kubernetes.webhook.asked import ANNOTATIONS
from gpushare.kubernetes.webhook.limits import FIELDS, Limits, Rules
from gpushare.kubernetes.webhook.review import answer, claimed

GIB = 2**30
CLASSES = {
    "gpushare.dev": {
        "metadata": {"name": "gpushare.dev"},
        "spec": {"selectors": [{"cel": {"expression": 'device.driver == "gpushare.dev"'}}]},
    }
}
FRACTION, MEMORY = {"gpu-fraction": "0.5"}, {"gpu-memory": "8192"}


def said(one: dict[str, Any], queues: Any = None, rules: Rules = Rules()) -> tuple[int, str | None, str | None]:  # noqa: B008
    """What the claim of a pod says: GPUs, memory, limit."""
    found = claimed(one, "team-a", cluster(queues), rules)
    assert found is not None
    devices = found[0]["spec"]["spec"]["devices"]
    (request,) = devices["requests"]
    (block,) = devices.get("config") or [{"opaque": {"parameters": {}}}]
    memory = request["exactly"].get("capacity", {}).get("requests", {}).get("memory")
    return request["exactly"]["count"], memory, block["opaque"]["parameters"].get("limit")


def review_of(one: dict[str, Any]) -> dict[str, Any]:
    return {"request": {"uid": "u", "namespace": "team-a", "object": one}}


def refusal(one: dict[str, Any], queues: Any = None, rules: Rules = Rules()) -> str:  # noqa: B008
    made: list[Any] = []
    response = answer(review_of(one), lambda: cluster(queues), rules, made.append)["response"]
    assert not response["allowed"] and not made
    return str(response["status"]["message"])


@pytest.mark.parametrize(
    ("annotations", "env", "expected"),
    [
        ({"gpu-fraction": "0.5"}, None, (1, "40448Mi", None)),
        ({"gpu-fraction": "1"}, None, (1, None, None)),
        ({"gpu-fraction": "0.25", "gpu-fraction-num-devices": "2"}, None, (2, "20224Mi", None)),
        ({"gpu-fraction": "0.25", "gpu-fraction-limit": "0.8"}, None, (1, "20224Mi", "0.8")),
        ({"gpu-fraction": "0.25", "gpu-fraction.limit": "0.8"}, None, (1, "20224Mi", "0.8")),
        ({"gpu-fraction": "0.25"}, variable("0.95"), (1, "20224Mi", "0.95")),
        ({"gpu-fraction": "0.25"}, variable("1"), (1, "20224Mi", "max")),
        ({"gpu-fraction": "0.25"}, variable(""), (1, "20224Mi", None)),
        ({"gpu-fraction": "0.25", "gpu-fraction-limit": "1"}, None, (1, "20224Mi", "max")),
        ({"gpu-fraction": "0.25", "gpu-fraction-limit": "1"}, variable("1.0"), (1, "20224Mi", "max")),
        ({"gpu-memory": "2000", "gpu-memory-limit": "max"}, None, (1, "2Gi", "max")),
        ({"gpu-fraction": "0.25", "gpu-fraction-limit": "0.80"}, variable("0.8"), (1, "20224Mi", "0.8")),
        ({"gpu-fraction": "1", "gpu-fraction-num-devices": "32"}, None, (32, None, None)),
        ({"gpu-memory": "8192"}, None, (1, "8Gi", None)),
        ({"gpu-memory": "8Gi"}, None, (1, "8Gi", None)),
        ({"gpu-memory": "1000"}, None, (1, "1Gi", None)),
        ({"gpu-memory": "1000", "gpu-memory-limit": "1010"}, None, (1, "1Gi", None)),
        ({"gpu-memory": "8192", "gpu-memory-limit": "16384"}, None, (1, "8Gi", "16Gi")),
        ({"gpu-memory": "2000"}, variable("4Gi"), (1, "2Gi", "4Gi")),
        ({"gpu-memory": "2000"}, variable("2500000000"), (1, "2Gi", "2500000000")),
        ({"gpu-memory": "2000"}, variable("1"), (1, "2Gi", "max")),
    ],
)
def test_what_annotations_mean(annotations, env, expected):
    assert said(pod(annotations, env=env)) == expected


def test_a_pod_without_them_is_let_alone():
    assert claimed(pod({"other": "x"}, env=variable("1")), "team-a", cluster(), Rules()) is None


def test_a_fraction_is_one_of_the_smallest_gpu_that_the_pod_may_get():
    assert said(pod(FRACTION))[1] == "40448Mi", "half of 79Gi, not of 80Gi or 24Gi"
    assert said(pod(FRACTION, nodeSelector={"size": "small"}))[1] == "12Gi"
    named = {"key": "metadata.name", "operator": "In", "values": ["small"]}
    terms = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": [named]}]}}
    assert said(pod(FRACTION, nodeSelector=None, affinity={"nodeAffinity": terms}))[1] == "12Gi"
    assert said(pod(MEMORY, nodeSelector={"size": "none"}))[1] == "8Gi", "an amount needs no GPU to be known"


@pytest.mark.parametrize(
    ("one", "sentence"),
    [
        (
            pod({"gpu-fraction": "1.5"}),
            "annotation gpu-fraction: cannot read '1.5' as an amount of memory: more than the whole GPU; write a "
            "part of one GPU, as in 0.5, or 1 for all of it",
        ),
        (
            pod({"gpu-fraction": "half"}),
            "annotation gpu-fraction: cannot read 'half' as an amount of memory: not a number; write a part of "
            "one GPU, as in 0.5, or 1 for all of it",
        ),
        (
            pod({"gpu-fraction": "8Gi"}),
            "annotation gpu-fraction: '8Gi' is not a part of a GPU; write a part of one GPU, as in 0.5, or 1 for "
            "all of it",
        ),
        (
            pod({"gpu-fraction": "0.0001"}),
            "gpu-fraction 0.0001 of a GPU with 79Gi is less than 64Mi; ask for more",
        ),
        (
            pod({"gpu-memory": "8g"}),
            "annotation gpu-memory: cannot read '8g' as an amount of memory: two meanings; write MiB, as in "
            "8192, or an amount with its unit, as in 8Gi",
        ),
        (
            pod({"gpu-memory": "0.5"}),
            "annotation gpu-memory: '0.5' is not an amount of memory; write MiB, as in 8192, or an amount with "
            "its unit, as in 8Gi",
        ),
        (
            pod({**FRACTION, "gpu-fraction-num-devices": "9" * 41}),
            f"annotation gpu-fraction-num-devices: '{'9' * 37}...' is not a number of GPUs from 1 to 32",
        ),
        (
            pod({**FRACTION, "gpu-fraction-num-devices": "33"}),
            "annotation gpu-fraction-num-devices: '33' is not a number of GPUs from 1 to 32",
        ),
        (
            pod({**FRACTION, "gpu-fraction-num-devices": "0"}),
            "annotation gpu-fraction-num-devices: '0' is not a number of GPUs from 1 to 32",
        ),
        (
            pod({"gpu-fraction-limit": "0.5"}),
            "annotation gpu-fraction-limit stands alone; add gpu-fraction or gpu-memory, which say the request",
        ),
        (
            pod({**FRACTION, **MEMORY}),
            "annotations gpu-fraction and gpu-memory both say the request; keep one of them",
        ),
        (
            pod({**FRACTION, "gpu-fraction-limit": "0.3"}),
            "annotation gpu-fraction-limit '0.3' is below gpu-fraction 0.5; raise the limit, or leave it out",
        ),
        (
            pod(MEMORY, env=variable("4G")),
            "variable RUNAI_GPU_MEMORY_LIMIT '4G' is below gpu-memory 8192; raise the limit, or leave it out",
        ),
        (
            pod({**FRACTION, "gpu-memory-limit": "4096"}),
            "annotation gpu-memory-limit is not the limit of gpu-fraction; write gpu-fraction-limit",
        ),
        (
            pod(MEMORY, env=variable("0.5")),
            "variable RUNAI_GPU_MEMORY_LIMIT: '0.5' is not an amount of memory; write an amount with its unit, "
            "as in 16Gi, or 1 for the whole GPU",
        ),
        (
            pod({**FRACTION, "gpu-fraction-limit": "0.7"}, env=variable("0.8")),
            "annotation gpu-fraction-limit '0.7' and variable RUNAI_GPU_MEMORY_LIMIT '0.8' are two limits; keep "
            "one of them",
        ),
        (
            pod(FRACTION, env=[{"name": "RUNAI_GPU_MEMORY_LIMIT", "valueFrom": {"fieldRef": {}}}]),
            "variable RUNAI_GPU_MEMORY_LIMIT has its value from elsewhere; write the value itself",
        ),
        (
            pod({**FRACTION, "gpu-fraction-num-devices": "two"}),
            "annotation gpu-fraction-num-devices: 'two' is not a number of GPUs from 1 to 32",
        ),
        (
            pod({**FRACTION, "gpu-fraction-container-name": "worker"}),
            "annotation gpu-fraction-container-name: the pod has no container 'worker'; name one, or leave it "
            "out for the first",
        ),
        (
            pod(FRACTION, containers=[{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]),
            "container main asks for nvidia.com/gpu, and annotation gpu-fraction for a part of a GPU; leave one "
            "of them out",
        ),
        (
            pod(FRACTION, resourceClaims=[{"name": "gpushare", "resourceClaimTemplateName": "mine"}]),
            "the pod has a claim 'gpushare' of its own; leave it out, or its annotations",
        ),
        (
            pod(FRACTION, nodeSelector={}),
            "the GPUs that this pod may get have from 24Gi to 80Gi; choose its nodes with nodeSelector, or say "
            "the amount with gpu-memory",
        ),
        (
            pod(FRACTION, nodeSelector={"size": "none"}),
            "no node that this pod may run on has published a GPU that can be shared; say the amount with "
            "gpu-memory, or wait for the node",
        ),
        (
            pod(FRACTION, labels={"gpushare.dev/queue": "visoin"}),
            "label gpushare.dev/queue: there is no queue 'visoin'; kubectl get queues.gpushare.dev",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(one, sentence):
    assert refusal(one, {"vision": {}}) == sentence


def test_gpus_that_nobody_can_have_do_not_count():
    """Of a node that is gone, and of another driver; and a node may have published none."""
    known = cluster()
    small = next(one for one in known.slices if one["spec"]["nodeName"] == "small")
    other = copy.deepcopy(small)
    other["spec"] |= {"driver": "gpu.example.com", "nodeName": "big-1"}
    empty = {"spec": {**other["spec"], "driver": "gpushare.dev", "devices": None}}
    whole = copy.deepcopy(small)
    whole["spec"]["nodeName"] = "big-1"
    del whole["spec"]["devices"][0]["allowMultipleAllocations"]
    nodes = {name: one for name, one in known.nodes.items() if name != "small"}
    nodes["big-2"]["metadata"].pop("labels")
    more = Cluster([*known.slices, other, empty, whole], nodes, None)
    for selector in ({}, BIG):
        found = claimed(pod(FRACTION, nodeSelector=selector), "team-a", more, Rules())
        assert found is not None
        (request,) = found[0]["spec"]["spec"]["devices"]["requests"]
        assert request["exactly"]["capacity"]["requests"]["memory"] == ("40Gi" if selector else "40448Mi")


def test_a_tenth_is_the_most_that_gpus_may_differ():
    known = cluster()
    for size, taken in (("72Gi", True), ("71Gi", False)):
        for one in known.slices:
            if one["spec"]["nodeName"] == "big-2":
                one["spec"]["devices"][0]["capacity"]["memory"]["value"] = size
        response = answer(review_of(pod(FRACTION)), lambda: known, Rules(), lambda _: None)["response"]
        assert response["allowed"] == taken


# ---- limits of queues and of the cluster ---------------------------------------------------------------

QUEUES = {
    "research": {"maxLimit": "0.75", "defaultLimit": "50%"},
    "vision": {"parent": "research", "quota": 2, "interactiveLimit": 1},
    "open": {},
    "lavish": {"parent": "research", "maxLimit": "0.85"},
    "modest": {"parent": "research", "maxLimit": "0.6"},
}


def shared(size: str) -> Any:
    return limits.read({"defaultLimit": size}, "this cluster")


@pytest.mark.parametrize(
    ("queue", "annotations", "more", "expected"),
    [
        ("vision", {"gpu-fraction": "0.25"}, {}, "0.5"),
        ("vision", {"gpu-fraction": "0.6"}, {}, "0.6"),
        ("vision", {"gpu-fraction": "0.25"}, {"priorityClassName": "build"}, "0.75"),
        ("vision", {"gpu-memory": "8192"}, {}, "39.5Gi"),
        ("vision", {"gpu-memory": "8192"}, {"priorityClassName": "interactive-preemptible"}, "59.25Gi"),
        ("vision", {"gpu-memory": "8192", "gpu-memory-limit": "9Gi"}, {}, "9Gi"),
        ("vision", {"gpu-fraction": "1"}, {}, None),
        ("open", {"gpu-fraction": "0.25"}, {}, "0.9"),
        ("open", {"gpu-memory": "8192"}, {"priorityClassName": "train"}, "71.1Gi"),
        ("open", {"gpu-memory": "8192"}, {"priorityClassName": "build"}, "max"),
    ],
)
def test_queues_and_the_cluster_have_default_limits(queue, annotations, more, expected):
    rules = Rules(limits.read({"defaultLimit": "0.9", "interactiveLimit": 1}, "this cluster"))
    found = said(pod(annotations, labels={"gpushare.dev/queue": queue}, **more), QUEUES, rules)[2]
    if expected is not None and expected.endswith("Gi"):
        assert requests.parse(found) == int(float(expected[:-2]) * GIB)
    else:
        assert found == expected


def test_kai_says_the_priority_class_in_a_label_too():
    labels = {"gpushare.dev/queue": "vision", "priorityClassName": "build"}
    assert said(pod({"gpu-fraction": "0.25"}, labels=labels, priorityClassName="train"), QUEUES)[2] == "0.75"


def test_where_no_queues_are_served_any_name_will_do():
    named = pod(FRACTION, labels={"gpushare.dev/queue": "vision"})
    assert said(named, None, Rules(limits.read({"defaultLimit": 1}, "this cluster")))[2] == "max"


@pytest.mark.parametrize("value", ["half", "2Gi", "max", 2, 0, -1, True, [], {}, "1.01"])
def test_a_limit_is_a_part_of_one_gpu(value):
    with pytest.raises(UsageError, match=r"^spec\.maxLimit: .* is not a part of a GPU$"):
        limits.read({"maxLimit": value}, "queue a")


def test_a_pod_is_in_the_queue_of_its_namespace():
    assert said(pod({"gpu-fraction": "0.25"}), {"team-a": {"defaultLimit": 1}})[2] == "max"


@pytest.mark.parametrize(
    ("one", "sentence"),
    [
        (
            pod({"gpu-fraction": "0.25", "gpu-fraction-limit": "0.8"}, labels={"gpushare.dev/queue": "vision"}),
            "annotation gpu-fraction-limit '0.8' is above what queue research allows; ask for at most 0.75 of a GPU",
        ),
        (
            pod({"gpu-fraction": "0.8"}, labels={"gpushare.dev/queue": "lavish"}),
            "gpu-fraction 0.8 is above what queue research allows; ask for at most 0.75 of a GPU",
        ),
        (
            pod({"gpu-fraction": "0.7"}, labels={"gpushare.dev/queue": "modest"}),
            "gpu-fraction 0.7 is above what queue modest allows; ask for at most 0.6 of a GPU",
        ),
        (
            pod({"gpu-fraction": "0.25"}, env=variable("1"), labels={"gpushare.dev/queue": "vision"}),
            "variable RUNAI_GPU_MEMORY_LIMIT '1' is above what queue research allows; ask for at most 0.75 of a GPU",
        ),
        (
            pod({"gpu-memory": "70000"}, labels={"gpushare.dev/queue": "vision"}),
            "gpu-memory 70000 is above what queue research allows; ask for at most 60672Mi of a GPU",
        ),
        (
            pod({"gpu-fraction": "0.95"}, labels={"gpushare.dev/queue": "open"}),
            "gpu-fraction 0.95 is above what this cluster allows; ask for at most 0.9 of a GPU",
        ),
    ],
)
def test_no_limit_is_above_the_least_maximum(one, sentence):
    assert refusal(one, QUEUES, Rules(limits.read({"maxLimit": "0.9"}, "this cluster"))) == sentence


def test_a_queue_whose_limit_makes_no_sense_is_named():
    sentence = refusal(pod(FRACTION), {"team-a": {"maxLimit": 2}})
    assert sentence.startswith("queue team-a: spec.maxLimit: '2' is not a part of a GPU; write")


def test_queues_that_are_each_other_s_parent_end():
    assert said(pod(FRACTION), {"team-a": {"parent": "b"}, "b": {"parent": "team-a"}})[2] is None


# ---- patches -------------------------------------------------------------------------------------------


def mutated(one: dict[str, Any]) -> tuple[dict[str, Any], str]:
    found = claimed(one, "team-a", cluster(), Rules())
    assert found is not None
    return patched(one, found[1]), found[0]["metadata"]["name"]


def test_a_notebook_keeps_all_that_it_says_and_gets_a_claim():
    before = pod(FRACTION, containers=[{"name": "jupyter", "resources": {"limits": {"cpu": "1"}}}, {"name": "sidecar"}])
    after, name = mutated(before)
    assert after["spec"]["restartPolicy"] == "Always"
    assert after["spec"].pop("resourceClaims") == [{"name": "gpushare", "resourceClaimTemplateName": name}]
    assert after["spec"]["containers"][0]["resources"].pop("claims") == [{"name": "gpushare"}]
    assert after == before


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"resourceClaims": []},
        {"resourceClaims": [{"name": "net", "resourceClaimName": "net"}]},
        {"resourceClaims": [{"name": "gpushare", "resourceClaimTemplateName": f"gpushare-{'0' * 20}"}]},
        {"containers": [{"name": "main", "resources": {}}]},
        {"containers": [{"name": "main", "resources": {"claims": [{"name": "net"}]}}]},
        {"containers": [{"name": "main", "resources": {"claims": [{"name": "gpushare"}]}}]},
    ],
)
def test_the_claim_comes_beside_others_and_once(more):
    first, name = mutated(pod(FRACTION, **more))
    assert {"name": "gpushare", "resourceClaimTemplateName": name} in first["spec"]["resourceClaims"]
    assert first["spec"]["containers"][0]["resources"]["claims"].count({"name": "gpushare"}) == 1
    assert mutated(copy.deepcopy(first)) == (first, name)


def test_the_container_that_is_named_uses_it():
    containers = [{"name": "wait"}, {"name": "main"}]
    after, _ = mutated(pod({**FRACTION, "gpu-fraction-container-name": "main"}, containers=containers))
    assert [one.get("resources") for one in after["spec"]["containers"]] == [None, {"claims": [{"name": "gpushare"}]}]
    named = pod({**FRACTION, "gpu-fraction-container-name": "load"}, initContainers=[{"name": "load"}])
    assert mutated(named)[0]["spec"]["initContainers"][0]["resources"] == {"claims": [{"name": "gpushare"}]}


def test_a_pod_that_says_all_already_is_allowed_and_its_template_made():
    stored, name = mutated(pod(FRACTION))
    made: list[Any] = []
    response = answer(review_of(stored), cluster, Rules(), made.append)["response"]
    assert response == {"uid": "u", "allowed": True} and [one["metadata"]["name"] for one in made] == [name]


@pytest.mark.parametrize(
    "object_", [{}, {"namespace": "n"}, {"object": pod(FRACTION)}, {"object": pod(FRACTION), "namespace": ""}]
)
def test_a_request_without_a_pod_in_a_namespace_is_refused(object_):
    review = {"request": {"uid": "u", **object_}}
    response = answer(review, cluster, Rules(), lambda _: None)["response"]
    assert (response["allowed"], response["status"]["code"]) == (False, 400)


def test_pods_that_ask_for_the_same_have_one_template():
    names = [mutated(pod(one))[1] for one in ({"gpu-memory": "8192"}, {"gpu-memory": "8Gi"}, {"gpu-memory": "9Gi"})]
    assert names[0] == names[1] != names[2]


# ---- whatever comes ------------------------------------------------------------------------------------

AMOUNTS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        ["0.5", "1", "0.3", "50%", "8192", "8Gi", "max", "none", "1e9", "", "-1", "0", "99999999999999999999"]
    ),
    st.floats(allow_nan=True).map(str),
    st.integers(-5, 10**12).map(str),
)
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
MANY = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
OF_A_CONTAINER = [
    "nvidia.com/container.main.gpu-memory.request",
    "nvidia.com/container.main.gpu-memory.limit",
    "kai.scheduler/container.main.gpu-memory.portion.limit",
]
SHARES = st.none() | st.sampled_from(["0.1", "50%", 1, "0.75"])
LIMITS = st.fixed_dictionaries({name: SHARES for name in FIELDS})


@MANY
@given(
    st.dictionaries(st.sampled_from([*ANNOTATIONS, *OF_A_CONTAINER, "other"]), AMOUNTS, max_size=5),
    st.none() | AMOUNTS,
    LIMITS,
    st.sampled_from([BIG, {}, {"size": "small"}, {"size": "none"}]),
)
@example({"gpu-fraction": "0.5"}, None, dict.fromkeys(FIELDS), BIG)
def test_any_annotations_give_a_claim_that_is_read_or_a_refusal(annotations, value, spec, selector):
    """By scheduler and plugin, on each node that the pod may run on."""
    one = pod(annotations, env=None if value is None else variable(value), nodeSelector=selector)
    known = cluster({"team-a": spec})
    try:
        found = claimed(one, "team-a", known, Rules())
    except UsageError as error:
        assert error.message
        return
    assert (found is None) == (not set(annotations) & {*ANNOTATIONS, *OF_A_CONTAINER})
    if found is None:
        return
    after = patched(one, found[1])
    after["metadata"]["namespace"] = "team-a"
    after["status"] = {"resourceClaimStatuses": [{"name": "gpushare", "resourceClaimName": "made"}]}
    made = {"metadata": {"name": "made", "namespace": "team-a", "uid": "c"}, "spec": found[0]["spec"]["spec"]}
    asked = requests.read(after, {("team-a", "made"): made}, CLASSES)
    assert asked is not None
    for name, node in known.nodes.items():
        if selector.items() <= node["metadata"]["labels"].items():
            size = next(one for one in known.slices if one["spec"]["nodeName"] == name)["spec"]["devices"][0]
            capacity = requests.parse(size["capacity"]["memory"]["value"])
            _is_placed(made, asked, name, capacity)


def _is_placed(made: dict[str, Any], asked: Any, node: str, capacity: int) -> None:
    count, gpus = asked.tasks.gpus, [gpu(f"GPU-{index}", index, capacity=capacity) for index in range(asked.tasks.gpus)]
    devices = [requests.Device(f"gpu-{index}", 0, shared=asked.tasks.memory is not None) for index in range(count)]
    given = requests.allocation(made, CLASSES, node, devices, asked.tasks.memory or 0)
    body = claims.body(claims.read({**made, "status": {"allocation": given}}, node), gpus)
    request, limit = (requests.Quantity.parse(body[name]).resolve(capacity) for name in ("request", "limit"))
    said_as_share = asked.tasks.memory is not None and asked.tasks.limit is None
    assert request <= limit or (said_as_share and request > capacity)


@MANY
@given(ANY, ANY)
def test_any_object_gives_an_answer(metadata, spec):
    review = {"request": {"uid": "u", "namespace": "n", "object": {"metadata": metadata, "spec": spec}}}
    response = answer(review, lambda: cluster({}), Rules(), lambda _: None)["response"]
    assert response["uid"] == "u" and isinstance(response["allowed"], bool)
    broken = {
        "request": {"uid": "u", "namespace": "n", "object": {"metadata": {"annotations": FRACTION}, "spec": spec}}
    }
    assert not answer(broken, lambda: cluster({}), Rules(), lambda _: None)["response"]["allowed"]


@MANY
@given(ANY)
def test_what_is_no_review_is_told_so(content):
    with pytest.raises(UsageError, match="no AdmissionReview"):
        answer(content, lambda: cluster({}), Rules(), lambda _: None)


def test_limits_say_nothing_by_default():
    assert Limits() == limits.read({}, "this cluster")
