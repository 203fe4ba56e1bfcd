"""A claim as a placement: what is read from it, and what is refused in which words."""

from __future__ import annotations

import pytest
from claims import GIB, GPU, GPU2, NODE, budget, claim, gpu, result

from gpushare.errors import GpushareError, QuantityError
from gpushare.kubernetes import amounts
from gpushare.kubernetes import claim as claims


def body(found, *gpus):
    read = claims.read(found, NODE)
    return claims.body(read, claims.gpus_of(read, gpus or [gpu()]))


def refusal(found, *gpus):
    with pytest.raises(GpushareError) as caught:
        body(found, *gpus)
    return caught.value.message


def test_what_was_booked_is_the_request_and_without_a_block_the_limit():
    assert body(claim()) == {
        "attempt": 1,
        "uid": 0,
        "gpus": [GPU],
        "request": "8Gi",
        "limit": "8Gi",
        "name": "team-a/train",
    }


def test_the_block_of_the_claim_says_the_rest():
    said = budget(limit="12Gi", grace="30s", onReclaim=["trim", "term"], priority=-7, minRunTime="10m", lend=False)
    made = body(claim(config=[said, budget("FromClass", minRunTime="1h")]))
    assert (made["request"], made["limit"], made["grace"], made["priority"]) == ("8Gi", "12Gi", 30.0, -7)
    assert (made["on_reclaim"], made["min_run_time"], made["lend"]) == ("trim,term,kill", 600.0, False)


def test_field_by_field_the_claims_block_counts_before_the_classs_in_whatever_order_they_come():
    config = [
        budget(limit="9Gi"),
        budget("FromClass", limit="12Gi", priority=3),
        budget("FromClaim", visible="request"),
    ]
    made = body(claim(config=config))
    assert (made["limit"], made["priority"]) == ("9Gi", 3)
    assert claims.read(claim(config=config), NODE).budget.visible == "request"


@pytest.mark.parametrize(("booked", "request_"), [("1", "64Mi"), ("100m", "64Mi"), ("1e3", "64Mi"), ("65Mi", "128Mi")])
def test_an_amount_is_bytes_and_rounded_up(booked, request_):
    """A server that knows no policy of the device books it as it was written."""
    assert body(claim(result(memory=booked)))["request"] == request_


def test_no_memory_is_refused_by_the_claims_name():
    assert refusal(claim(result(memory="0"))) == "claim team-a/train: its request gpu has no memory"


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"metadata": {"name": "c"}},
        {**claim(), "metadata": {"name": "c", "namespace": "n"}},
        {**claim(), "status": {"allocation": {"devices": {"results": [5]}}}},
        {**claim(), "status": {**claim()["status"], "reservedFor": [5]}},
        {**claim(), "status": {**claim()["status"], "reservedFor": [{"resource": "pods"}]}},
    ],
)
def test_what_is_no_claim_is_refused(odd):
    with pytest.raises(GpushareError):
        claims.read(odd, NODE)


@pytest.mark.parametrize(
    ("of_class", "allowed", "refused"),
    [
        ({}, {"priority": 0, "minRunTime": "0s"}, {"priority": 1}),
        ({}, {}, {"minRunTime": "1s"}),
        ({"priority": 5}, {"priority": 5}, {"priority": 6}),
        ({"priority": -5}, {"priority": -9}, {"priority": 0}),
        ({"minRunTime": "10m"}, {"minRunTime": "10m"}, {"minRunTime": "601s"}),
        ({"grace": "5s"}, {"grace": "4s"}, {"grace": "6s"}),
    ],
)
def test_a_claim_takes_no_more_from_others_than_its_class_allows(of_class, allowed, refused):
    """Who may write claims may be anybody."""
    blocks = [budget("FromClass", **of_class)]
    assert body(claim(config=[*blocks, budget(**allowed)]))
    (field,) = refused
    assert refusal(claim(config=[*blocks, budget(**refused)])).startswith(
        f"claim team-a/train: Budget.{field}: a claim may not say more than its class"
    )


def test_blocks_of_other_drivers_and_for_other_requests_do_not_count():
    config = [budget(driver="gpu.nvidia.com", limit="1Gi"), budget(requests=("other",), limit="2Gi")]
    assert body(claim(config=config))["limit"] == "8Gi"
    named = claim(result(request="gpu/small"), config=[budget(requests=("gpu",), limit="11Gi")])
    assert body(named)["limit"] == "11Gi", "an alternative of the request"


def test_several_gpus_have_the_same_amounts_and_stay_in_their_order():
    both = claim(result(GPU2), result(GPU))
    assert body(both, gpu(), gpu(GPU2, 1))["gpus"] == [GPU2, GPU]
    uneven = claim(result(GPU2, "4Gi"), result(GPU))
    assert refusal(uneven, gpu(), gpu(GPU2, 1)) == "claim team-a/train has 4Gi and 8Gi on its GPUs"
    assert refusal(claim(result(), result())) == "claim team-a/train has one GPU twice"


def test_a_device_without_amounts_is_a_whole_gpu():
    assert body(claim(result(memory=None)))["request"] == "15Gi"


def test_what_is_of_others_is_left_alone():
    theirs = {**result(), "driver": "gpu.nvidia.com"}
    elsewhere = {**result(GPU2), "pool": "n2"}
    assert body(claim(theirs, elsewhere, result()))["gpus"] == [GPU]
    assert refusal(claim(theirs)) == "claim team-a/train has no GPU of gpushare.dev on n1"
    waiting = claim()
    del waiting["status"]["allocation"]
    assert refusal(waiting) == "claim team-a/train has no GPU of gpushare.dev on n1"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"limit": "4Gi"}, "Budget.limit 4Gi is below the request 8Gi"),
        ({"limit": "24g"}, "Budget.limit: cannot read '24g' as an amount of memory: two meanings"),
        ({"limit": ["24Gi"]}, "Budget.limit: ['24Gi'] is not an amount"),
        ({"limit": True}, "Budget.limit: True is not an amount"),
        ({"grace": "soon"}, "Budget.grace: cannot read 'soon' as a duration"),
        ({"grace": True}, "Budget.grace: True is not a duration"),
        ({"grace": ["30s"]}, "Budget.grace: ['30s'] is not a duration"),
        ({"grace": -1}, "Budget.grace: -1 is not a time from 0 to 86400 seconds"),
        ({"grace": float("nan")}, "Budget.grace: nan is not a time from 0 to 86400 seconds"),
        ({"onReclaim": ["beg"]}, "Budget.onReclaim: 'beg' is no reclaim step"),
        (
            {"onReclaim": ["trim", "suspend"]},
            "Budget.onReclaim: the step suspend is done by `gpushare run`, which is not in a pod",
        ),
        ({"onReclaim": "hook"}, "Budget.onReclaim: the step hook is done by `gpushare run`, which is not in a pod"),
        ({"onReclaim": []}, "Budget.onReclaim: [] is not a list of steps"),
        ({"onReclaim": 5}, "Budget.onReclaim: 5 is not a list of steps"),
        ({"onReclaim": {"trim": 1}}, "Budget.onReclaim: {'trim': 1} is not a list of steps"),
        ({"priority": "high"}, "Budget.priority: 'high' is not a whole number"),
        ({"priority": True}, "Budget.priority: True is not a whole number"),
        ({"priority": 2**31}, "Budget.priority: 2147483648 is not between -2147483648 and 2147483647"),
        ({"priority": -(2**31) - 1}, "Budget.priority: -2147483649 is not between -2147483648 and 2147483647"),
        ({"lend": "no"}, "Budget.lend: 'no' is neither true nor false"),
        ({"visible": "all"}, "Budget.visible: 'all' is neither limit nor request"),
        ({"limits": "24Gi"}, "Budget has no field 'limits'"),
        ({"kind": "Limit"}, "gpushare.dev/v1 Limit is not a kind of the driver"),
        ({"apiVersion": "gpushare.dev/v9"}, "gpushare.dev/v9 Budget is not a kind of the driver"),
    ],
)
def test_what_is_wrong_in_a_block_is_named_with_the_claim_and_the_field(said, words):
    assert refusal(claim(config=[budget(**said)])).removeprefix("claim team-a/train: ") == words


def test_a_block_that_is_no_object_and_an_amount_that_is_none():
    odd = budget()
    odd["opaque"]["parameters"] = "24Gi"
    assert refusal(claim(config=[odd])) == "claim team-a/train: the block of gpushare.dev/v1 is not an object"
    assert refusal(claim(result(memory="lots"))) == "claim team-a/train: cannot read 'lots' as an amount of Kubernetes"


def test_a_gpu_that_is_gone():
    assert refusal(claim(result(GPU2))) == f"claim team-a/train: this node has no GPU {GPU2.lower()}"


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        *(("8Gi", 8 * GIB), ("1536Mi", 1536 * 2**20), ("0.5Gi", GIB // 2), (".5Gi", GIB // 2), ("8589934592", 8 * GIB)),
        *(("500M", 500_000_000), ("1e9", 10**9), ("1E", 10**18), ("1500m", 2), ("1k", 1000), ("+1Ki", 1024), (7, 7)),
    ],
)
def test_amounts_of_kubernetes(text, amount):
    assert amounts.parse(text) == amount


@pytest.mark.parametrize("text", ["", "Gi", "8 Gi", "8gi", "-1", "1e999", "0x10", "8GiB", "e", None, True, 0.5, "٣"])
def test_what_is_no_amount_of_kubernetes(text):
    with pytest.raises(QuantityError):
        amounts.parse(text)


@pytest.mark.parametrize("amount", [0, 1, 1023, 1024, 1536 * 2**20, 8 * GIB, 2**60 + 2**50])
def test_written_amounts_are_read_as_the_same(amount):
    assert amounts.parse(amounts.written(amount)) == amount
