"""The event of a pod that waits, as `kubectl describe pod` and `kubectl get events` show it."""

from __future__ import annotations

import re

from gpushare.kubernetes.events import SOURCE


def test_an_event_is_of_its_pod_and_happened_once(cluster, ruled):
    for number in range(4):
        cluster.submit(f"runs{number}", memory=None, queue="a")
    uid = cluster.submit("waits", memory=None, queue="a")
    ruled.go(lambda: [one for one in cluster.api.of("events") if one["involvedObject"]["name"] == "waits"])
    (event,) = [one for one in cluster.api.of("events") if one["involvedObject"]["name"] == "waits"]
    pod = cluster.pod("waits")["metadata"]
    about = {"apiVersion": "v1", "kind": "Pod", "namespace": pod["namespace"], "name": "waits", "uid": uid}
    assert about.items() <= event["involvedObject"].items()
    assert event["metadata"]["namespace"] == pod["namespace"]
    assert (event["type"], event["reason"], event["count"]) == ("Normal", "Waiting", 1)
    assert event["source"]["component"] == event["reportingComponent"] == SOURCE
    assert event["message"] == ruled.store.allocator.explain(uid).reason.message
    assert event["firstTimestamp"] == event["lastTimestamp"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", event["firstTimestamp"])
