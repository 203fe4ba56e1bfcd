"""What the scheduler keeps in memory of objects that are many and large, and that others look after."""

from __future__ import annotations

import json

import pytest
from kube_cluster import PODS

from gpushare.cluster.engines.kubernetes.names import DISKS

LARGE = "x" * 100_000


@pytest.fixture
def kept(cluster, ruled):
    """What is kept of an object that the cluster has."""

    def of(path, name, thing):
        namespace = {"namespace": "team-a"} if path == "/api/v1/pods" else {}
        where = f"{PODS if namespace else path}/{name}"
        metadata = {"name": name, "annotations": {"large": LARGE}, **namespace}
        cluster.api.put(where, {"metadata": metadata, **thing})
        ruled.settle()
        found = ruled.api.watched[path].get((namespace.get("namespace", ""), name))
        assert found is not None
        return found

    return of


def test_of_another_schedulers_pod_is_kept_what_takes_room_on_its_node(kept):
    resources = {"requests": {"cpu": "2", "memory": "1Gi"}}
    spec = {"schedulerName": "default-scheduler", "nodeName": "n1", "volumes": [{"name": LARGE}]}
    spec["containers"] = [{"name": "main", "command": [LARGE], "resources": resources}]
    found = kept("/api/v1/pods", "other", {"spec": spec, "status": {"phase": "Running", "message": LARGE}})
    assert len(json.dumps(found)) < 1000
    assert (found["spec"]["nodeName"], found["status"]["phase"]) == ("n1", "Running")
    assert found["spec"]["needs"]


def test_of_a_volume_is_kept_where_it_is(kept):
    where = {"required": {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name"}]}]}}
    spec = {"nodeAffinity": where, "csi": {"volumeAttributes": {"secret": LARGE}}}
    found = kept(DISKS, "disk", {"spec": spec, "status": {"message": LARGE}})
    assert len(json.dumps(found)) < 1000 and found["spec"]["nodeAffinity"] == where
