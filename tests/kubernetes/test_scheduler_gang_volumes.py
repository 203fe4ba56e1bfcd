"""Pods of a group and their volumes: all of them run where each one's volumes allow it, and none before all can."""

from __future__ import annotations

import pytest
from kube_cluster import NODES, Program
from test_scheduler_volumes import (
    CLAIMS,
    VOLUMES,
    bind_volumes,
    given,
    hosts,
    put_claim,
    put_disk,
    put_folder,
    put_wish,
    with_disks,
    zone,
    zones,
)
from test_scheduler_words import events, told

from gpushare.cluster.engines.kubernetes.volumes import NODE

__all__ = ["hosts", "zones"]


def disk(cluster, name, *terms):
    """A claim with a volume of its own."""
    put_disk(cluster, *terms, name=name)
    cluster.api.put(
        f"{VOLUMES}/pv-{name}", {**cluster.api.objects[f"{VOLUMES}/pv-1"], "metadata": {"name": f"pv-{name}"}}
    )
    cluster.api.change(f"{CLAIMS}/{name}", lambda one: one["spec"].update(volumeName=f"pv-{name}"))


def gang(cluster, *specs, memory="8Gi"):
    """Pods p0, p1, ... that start together."""
    annotations = {"gpushare.dev/pod-group-size": str(len(specs))}
    for number, spec in enumerate(specs):
        labels = {"gpushare.dev/pod-group": "g"}
        program = Program(requeue=False)
        cluster.submit(
            f"p{number}", program, queue="a", labels=labels, annotations=annotations, spec=spec, memory=memory
        )


def nodes_of(cluster, count=2):
    return [cluster.pod(f"p{number}")["spec"].get("nodeName") for number in range(count)]


def run(cluster, ruled, count=2):
    ruled.settle()
    ruled.go(lambda: all(cluster.programs[f"p{number}"].began for number in range(count)))
    return nodes_of(cluster, count)


@pytest.mark.parametrize("where", ["z1", "z2"])
@pytest.mark.parametrize("which", [0, 1])
def test_all_run_where_the_volume_of_one_is(zones, ruled, which, where):
    disk(zones, "data", zone(where))
    specs = [{}, {}]
    specs[which] = with_disks("data")
    gang(zones, *specs)
    assert run(zones, ruled) == [{"z1": "n1", "z2": "n2"}[where]] * 2


def test_all_run_where_the_node_selector_of_one_allows_it(zones, ruled):
    gang(zones, {}, {"nodeSelector": {"zone": "z2"}})
    assert run(zones, ruled) == ["n2", "n2"]


def test_all_run_where_the_volumes_of_each_are(zones, ruled):
    disk(zones, "wide", zone("z1", "z2"))
    disk(zones, "narrow", zone("z2"))
    gang(zones, with_disks("wide"), with_disks("narrow"), memory="80Gi")
    assert run(zones, ruled) == ["n2", "n2"]


def test_volumes_of_different_zones_are_told_and_the_pods_start_when_one_node_suits_both(zones, ruled):
    disk(zones, "one", zone("z1"))
    disk(zones, "two", zone("z2"))
    gang(zones, with_disks("one"), with_disks("two"))
    ruled.settle()
    ruled.go(lambda: told(zones, "p0") and told(zones, "p1"))
    for _ in range(5):
        ruled.settle()
        ruled.round()
    for name in ("p0", "p1"):
        assert told(zones, name).startswith(
            "no node suits all pods of its group: 1 node suits the pods before team-a/p1, which may run on none of"
        )
        assert events(zones, name) == [told(zones, name)]
    assert nodes_of(zones) == [None, None] and not ruled.store.allocator.jobs
    terms = {"nodeAffinity": {"required": {"nodeSelectorTerms": [zone("z1", "z2")]}}}
    zones.api.change(f"{VOLUMES}/pv-two", lambda one: one["spec"].update(terms))
    assert run(zones, ruled) == ["n1", "n1"]


def test_a_node_that_is_full_of_cpus_is_no_reason_to_say_that_none_suits(zones, ruled):
    for name in ("n1", "n2"):
        zones.api.change(f"{NODES}/{name}", lambda one: one["status"].update(allocatable={"cpu": "4"}))
    large = {"containers": [{"name": "x", "resources": {"requests": {"cpu": "8"}}}]}
    gang(zones, large, {"nodeSelector": {"zone": "z2"}})
    ruled.settle()
    ruled.go(lambda: told(zones, "p0"))
    assert "suits all" not in told(zones, "p0") and "lack" in told(zones, "p0")


def test_local_volumes_of_two_pods(hosts, ruled):
    for name, node in (("a", "n1"), ("b", "n2"), ("c", "n2")):
        put_folder(hosts, name, node)
    for name in ("one", "two"):
        put_claim(hosts, name)
    gang(hosts, with_disks("one"), with_disks("two"), memory="80Gi")
    ruled.settle()
    ruled.go(lambda: sum(bool(one) for one in given(hosts).values()) == 2)
    bind_volumes(hosts)
    nodes = run(hosts, ruled)
    of = {"a": "n1", "b": "n2", "c": "n2"}
    assert {claim: of[volume] for volume, claim in given(hosts).items() if claim} == dict(
        zip(("one", "two"), nodes, strict=True)
    )


def test_none_is_bound_while_the_volume_of_another_is_made(zones, ruled):
    put_wish(zones)
    gang(zones, {}, with_disks("disk"))
    ruled.settle()
    path = f"{CLAIMS}/disk"
    first = ruled.go(lambda: zones.api.objects[path]["metadata"]["annotations"].get(NODE))
    for _ in range(5):
        ruled.settle()
        ruled.round()
    assert nodes_of(zones) == [None, None]
    zones.api.change(path, lambda one: one["metadata"]["annotations"].pop(NODE))  # it cannot be made there
    ruled.settle()
    second = ruled.go(lambda: zones.api.objects[path]["metadata"]["annotations"].get(NODE))
    assert nodes_of(zones) == [None, None] and second != first
    put_disk(zones, zone("z1", "z2"))
    run(zones, ruled)
    assert zones.pod("p1")["spec"]["nodeName"] == second
