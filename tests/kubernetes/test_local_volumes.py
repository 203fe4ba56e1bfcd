"""Which volume of those that are there a claim may get, as Kubernetes' own controller has it."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from gpushare.cluster.engines.kubernetes.local_volumes import candidates, enough, is_on, where

CLAIM: dict[str, Any] = {
    "metadata": {"namespace": "team-a", "name": "disk", "uid": "u-1"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "5Gi"}}},
}
VOLUME: dict[str, Any] = {
    "metadata": {"name": "v", "labels": {"tier": "fast"}},
    "spec": {"accessModes": ["ReadWriteOnce", "ReadOnlyMany"], "capacity": {"storage": "5Gi"}},
    "status": {"phase": "Available"},
}
OURS = {"namespace": "team-a", "name": "disk"}
BETTER = {"matchExpressions": [{"key": "tier", "operator": "In", "values": ["fast", "best"]}]}


def made(base: dict[str, Any], **said: Any) -> dict[str, Any]:
    """Another spec; of `metadata` and `status` what is said of them."""
    found = copy.deepcopy(base)
    for part in ("metadata", "status"):
        found[part] = found.get(part, {}) | said.pop(part, {})
    return {**found, "spec": {**found["spec"], **said}}


FITS = {
    "as large": ({}, {}),
    "larger": ({}, {"capacity": {"storage": "5368709121"}}),
    "without a size": ({"resources": {}}, {}),
    "by a label": ({"selector": {"matchLabels": {"tier": "fast"}}}, {}),
    "by an expression": ({"selector": BETTER}, {}),
    "of its mode": ({"volumeMode": "Block"}, {"volumeMode": "Block"}),
    "of the usual mode": ({"volumeMode": "Filesystem"}, {}),
    "kept for its name": ({}, {"claimRef": OURS, "status": {"phase": "Available"}}),
    "given to it": ({}, {"claimRef": {**OURS, "uid": "u-1"}, "status": {"phase": "Bound"}}),
    "named": ({"volumeName": "v"}, {}),
}
FITS_NOT = {
    "smaller": ({}, {"capacity": {"storage": "5368709119"}}),
    "of a size that cannot be read": ({}, {"capacity": {"storage": "much"}}),
    "one mode is missing": ({"accessModes": ["ReadWriteOnce", "ReadWriteMany"]}, {}),
    "another label": ({"selector": {"matchLabels": {"tier": "slow"}}}, {}),
    "another value": ({"selector": BETTER}, {"metadata": {"labels": {"tier": "slow"}}}),
    "a label and not the other": ({"selector": {**BETTER, "matchLabels": {"disk": "ssd"}}}, {}),
    "raw": ({}, {"volumeMode": "Block"}),
    "not raw": ({"volumeMode": "Block"}, {}),
    "of another claim": ({}, {"claimRef": {"namespace": "team-b", "name": "disk"}}),
    "of an earlier claim of that name": ({}, {"claimRef": {**OURS, "uid": "u-0"}}),
    "released": ({}, {"status": {"phase": "Released"}}),
    "about to go": ({}, {"metadata": {"deletionTimestamp": "2026-11-25T12:00:00Z"}}),
    "another is named": ({"volumeName": "w"}, {}),
}


@pytest.mark.parametrize(("claim", "volume"), FITS.values(), ids=FITS)
def test_a_volume_that_fits(claim: dict[str, Any], volume: dict[str, Any]) -> None:
    there = made(VOLUME, **volume)
    assert candidates(made(CLAIM, **claim), [there]) == [there]


@pytest.mark.parametrize(("claim", "volume"), FITS_NOT.values(), ids=FITS_NOT)
def test_a_volume_that_does_not(claim: dict[str, Any], volume: dict[str, Any]) -> None:
    assert candidates(made(CLAIM, **claim), [made(VOLUME, **volume)]) == []


def named(name: str, size: str = "5Gi", **said: Any) -> dict[str, Any]:
    return made(VOLUME, metadata={"name": name}, capacity={"storage": size}, **said)


def test_the_smallest_comes_first_and_of_equals_the_first_by_name() -> None:
    found = candidates(CLAIM, [named("d", "50Gi"), named("c"), named("b", "6Gi"), named("a")])
    assert [one["metadata"]["name"] for one in found] == ["a", "c", "b", "d"]


def test_one_that_was_given_is_the_only_one() -> None:
    given = named("z", "50Gi", claimRef={**OURS, "uid": "u-1"})
    assert candidates(CLAIM, [named("a"), given, named("b")]) == [given]


def on(*names: str, key: str = "kubernetes.io/hostname", **more: Any) -> dict[str, Any]:
    terms = [{"matchExpressions": [{"key": key, "operator": "In", "values": [name]}], **more} for name in names]
    return made(VOLUME, nodeAffinity={"required": {"nodeSelectorTerms": terms}})


def test_where_volumes_are_is_said_in_few_words() -> None:
    odd = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n9"]}]}
    zone = {"key": "zone", "operator": "In", "values": ["z"]}
    host = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["n1", "n2", "n3"]}
    found = where([on("n2"), on("n1", "n3"), on("z", key="zone"), on("n4", **odd), on("n2"), on("n4", **odd)])
    assert found == [
        {"matchExpressions": [host]},
        {"matchExpressions": [zone]},
        *on("n4", **odd)["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"],
    ]


def test_a_volume_without_a_place_is_everywhere() -> None:
    assert where([on("n1"), VOLUME]) == [] and is_on(VOLUME, "n5", {})


def test_a_volume_is_on_the_nodes_of_its_terms() -> None:
    assert [is_on(on("n1", "n2"), "x", {"kubernetes.io/hostname": name}) for name in ("n1", "n2", "n3")] == [
        True,
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("wishes", "there"),
    [
        ([], True),
        (["a"], True),
        ([""], False),
        (["a", "a"], False),
        (["ab", "a"], True),
        (["ab", "ab", "ab"], False),
        (["abc", "a", "ab"], True),
    ],
)
def test_each_claim_needs_a_volume_of_its_own(wishes: list[str], there: bool) -> None:
    assert enough([[named(one) for one in wish] for wish in wishes]) is there
