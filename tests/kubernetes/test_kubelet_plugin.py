"""The plugin as the kubelet sees it: registration, prepare, unprepare; each part killed in the middle."""

from __future__ import annotations

import json
import signal
import tempfile
import time
from pathlib import Path

import pytest
from claims import NODE, budget
from kube_stage import Kubelet, until

from gpushare.kubernetes.plugin import Plugin
from gpushare.kubernetes.publish import CLAIMS
from gpushare.kubernetes.wire import methods

GIB = 2**30


def job_of(node, number: int = 0):
    return node.placed()[number]["job"]


# ---- the wire ------------------------------------------------------------------------------------------


def test_messages_have_the_bytes_that_the_kubelets_documentation_says():
    """Field 1, 2, 3 of a claim are namespace, uid, name; a map's entries have key 1 and value 2."""
    asked = methods("v1")["NodePrepareResources"].request(claims=[{"namespace": "n", "uid": "u", "name": "m"}])
    assert asked.SerializeToString() == b"\x0a\x09\x0a\x01n\x12\x01u\x1a\x01m"
    device = {"request_names": ["r"], "pool_name": "p", "device_name": "d", "cdi_device_ids": ["c"]}
    answer = methods("v1")["NodePrepareResources"].response(claims={"u": {"devices": [device], "error": "e"}})
    inner = b"\x0a\x01r\x12\x01p\x1a\x01d\x22\x01c"
    value = b"\x0a" + bytes([len(inner)]) + inner + b"\x12\x01e"
    entry = b"\x0a\x01u\x12" + bytes([len(value)]) + value
    assert answer.SerializeToString() == b"\x0a" + bytes([len(entry)]) + entry
    info = methods()["GetInfo"].response(type="t", name="n", endpoint="e", supported_versions=["v"])
    assert info.SerializeToString() == b"\x0a\x01t\x12\x01n\x1a\x01e\x22\x01v"
    status = methods()["NotifyRegistrationStatus"].request(plugin_registered=True, error="e")
    assert status.SerializeToString() == b"\x08\x01\x12\x01e"


def test_calls_have_the_kubelets_paths():
    assert methods()["GetInfo"].path == "/pluginregistration.Registration/GetInfo"
    for version in ("v1", "v1beta1"):
        path = f"/k8s.io.kubelet.pkg.apis.dra.{version}.DRAPlugin/NodeUnprepareResources"
        assert methods(version)["NodeUnprepareResources"].path == path


# ---- prepare and unprepare -----------------------------------------------------------------------------


def test_it_offers_itself_as_a_dra_driver_and_hears_what_the_kubelet_says(node):
    info = node.kubelet.register()
    assert (info.type, info.name, list(info.supported_versions)) == (
        "DRAPlugin",
        "gpushare.dev",
        ["v1.DRAPlugin", "v1beta1.DRAPlugin"],
    )
    until(lambda: "the kubelet has taken the driver" in node.log(), "its log")
    node.kubelet.register("no such version")
    until(lambda: "the kubelet has not taken the driver: no such version" in node.log(), "its log")


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_a_prepared_claim_is_a_placement_of_its_pod_and_a_cdi_device(node, version):
    node.kubelet.version = version
    node.claim(
        "c-1", "1Gi", config=[budget(limit="2Gi", priority=-7, grace="4s", onReclaim=["term"], visible="request")]
    )
    answer = node.kubelet.prepare("c-1")["c-1"]
    assert answer.error == ""
    (device,) = answer.devices
    assert (list(device.request_names), device.pool_name, device.device_name) == (["gpu"], NODE, node.uuids[0].lower())
    assert list(device.cdi_device_ids) == ["gpushare.dev/claim=c-1"]
    (placed,) = node.placed()
    assert placed["id"].startswith("kubernetes/c-1/") and placed["cgroups"] == ["/kubepods/podp-c-1"]
    job = placed["job"]
    assert (job["name"], job["uid"], job["priority"], job["grace"]) == ("team-a/claim-c-1", 0, -7, 4.0)
    assert job["on_reclaim"] == ["term", "kill"]
    assert [(gpu["uuid"], gpu["request"], gpu["limit"]) for gpu in job["gpus"]] == [(node.uuids[0], GIB, 2 * GIB)]
    edits = json.loads((node.cdi / "gpushare.dev-claim_c-1.json").read_text())["devices"][0]["containerEdits"]
    assert f"GPUSHARE_JOB={job['id']}" in edits["env"] and "GPUSHARE_VISIBLE=request" in edits["env"]
    assert node.kubelet.unprepare("c-1") == {"c-1": ""}
    assert node.leftovers() == []


def test_both_can_be_repeated_and_a_claim_that_is_not_known_is_unprepared_already(node):
    node.claim("c-1")
    assert node.kubelet.unprepare("c-1", "unseen", "../../etc") == {"c-1": "", "unseen": "", "../../etc": ""}
    first = node.kubelet.prepare("c-1")
    before = node.placed()
    assert node.kubelet.prepare("c-1") == first and node.placed() == before
    for _ in range(2):
        assert node.kubelet.unprepare("c-1") == {"c-1": ""}


def test_a_claim_can_be_prepared_again_after_it_was_unprepared(node):
    """A claim that outlives its pod is given to the next one."""
    node.claim("c-1")
    for _ in range(3):
        assert node.kubelet.prepare("c-1")["c-1"].error == ""
        assert node.kubelet.unprepare("c-1") == {"c-1": ""}


def test_a_claim_whose_placement_was_ended_is_placed_again(node):
    """An unprepare that could not remove the CDI file, or an administrator, has ended it."""
    node.claim("c-1")
    assert node.kubelet.prepare("c-1")["c-1"].error == ""
    (placed,) = node.placed()
    node.client.displace(placed["id"], placed["attempt"])
    until(lambda: node.placed() == [], "its end")
    assert node.kubelet.prepare("c-1")["c-1"].error == ""
    (again,) = node.placed()
    assert again["id"] != placed["id"] and again["job"]["id"] != placed["job"]["id"]
    edits = json.loads((node.cdi / "gpushare.dev-claim_c-1.json").read_text())["devices"][0]["containerEdits"]
    assert f"GPUSHARE_JOB={again['job']['id']}" in edits["env"]
    assert node.kubelet.unprepare("c-1") == {"c-1": ""} and node.leftovers() == []


def test_one_claim_that_fails_says_why_and_the_others_are_prepared(node):
    node.claim("c-1")
    node.claim("c-2", config=[budget(limit="12Mi")])
    node.claim("c-3", "3Gi")
    node.claim("c-4", "3Gi")
    node.claim("c-5", pods=())
    found = node.kubelet.prepare("c-1", "c-2", "c-3", "c-5", "c-6")
    assert (found["c-1"].error, [len(answer.devices) for answer in found.values()].count(1)) == ("", 1)
    assert found["c-2"].error.startswith("claim team-a/claim-c-2: Budget.limit 12Mi is below the request 1Gi; raise")
    words = found["c-3"].error
    assert words.startswith("claim team-a/claim-c-3: no room for a request of 3.0 GiB on GPU 0; ")
    assert words.endswith("; the kubelet asks again")
    assert "held: team-a/claim-c-1 (root) 1.0 GiB" in words
    assert found["c-5"].error.startswith("claim team-a/claim-c-5: no cgroup of its pod is on this node")
    assert "not found" in found["c-6"].error
    assert node.leftovers() == ["file gpushare.dev-claim_c-1.json", "placement c-1", "record c-1"]


def test_another_claim_of_the_same_name_is_not_prepared_in_place_of_the_first(node):
    node.claim("c-1")
    made = node.api.objects[CLAIMS.format("team-a", "claim-c-1")]
    made["metadata"]["uid"] = "another"
    assert "is another one now" in node.kubelet.prepare("c-1")["c-1"].error


# ---- each part is killed -------------------------------------------------------------------------------


def test_the_plugin_is_killed_and_the_next_one_goes_on_where_it_was(node):
    node.claim("c-1")
    first = node.kubelet.prepare("c-1")
    before = node.placed()
    node.kill(node.plugin)
    node.api.stop()
    node.start_plugin()
    assert node.kubelet.prepare("c-1") == first, "without the API server, too"
    assert node.placed() == before
    node.api.start()
    assert node.kubelet.unprepare("c-1") == {"c-1": ""} and node.leftovers() == []


def test_a_plugin_that_is_ended_takes_its_sockets_with_it(node):
    assert node.kill(node.plugin, signal.SIGTERM) == 0
    assert not list(node.kubelet.folder.rglob("*.sock"))


@pytest.mark.parametrize("lost", ["notes", "record", "file"])
def test_what_was_lost_meanwhile_is_made_again_or_taken_away(node, lost):
    node.claim("c-1")
    first = node.kubelet.prepare("c-1")
    job = job_of(node)["id"]
    node.kill(node.plugin)
    if lost == "notes":
        node.kill(node.daemon)
        (node.daemon_folder / "state.json").unlink()
        node.start_daemon()
        assert node.placed() == []
    elif lost == "record":
        (node.state / "claims" / "c-1.json").write_text("{")
    else:
        (node.cdi / "gpushare.dev-claim_c-1.json").unlink()
    node.start_plugin()
    if lost == "notes":
        until(lambda: [one["job"]["id"] for one in node.placed()] == [job], "the placement to be back")
    if lost == "record":
        until(lambda: node.placed() == [], "what has no record to be gone")
    answer = node.kubelet.prepare("c-1")
    assert answer == first and len(node.placed()) == 1
    assert node.kubelet.unprepare("c-1") == {"c-1": ""} and node.leftovers() == []


def test_a_file_that_somebody_removed_is_made_again_while_the_pod_runs(node):
    """Its container may start again, and the kubelet does not ask then."""
    node.claim("c-1")
    node.kubelet.prepare("c-1")
    file = node.cdi / "gpushare.dev-claim_c-1.json"
    before = file.read_text()
    file.unlink()
    until(file.exists, "the file to be back")
    assert file.read_text() == before and file.stat().st_mode & 0o777 == 0o600
    assert node.kubelet.unprepare("c-1") == {"c-1": ""} and node.leftovers() == []
    node.passes(3)
    assert not file.exists()


def test_a_placement_that_somebody_ended_is_made_again_while_the_pod_runs(node):
    """Without it a container that starts again would have no limit. The kubelet does not ask then."""
    node.claim("c-1")
    node.claim("c-2")
    for uid in ("c-1", "c-2"):
        assert node.kubelet.prepare(uid)[uid].error == ""
    ended = {one["id"]: one for one in node.placed()}
    for id, one in ended.items():
        node.client.displace(id, one["attempt"])
    until(
        lambda: len(node.placed()) == 2 and not ended.keys() & {one["id"] for one in node.placed()}, "other placements"
    )
    for placed in node.placed():
        file, job = node.cdi / f"gpushare.dev-claim_{placed['id'].split('/')[1]}.json", placed["job"]["id"]
        until(lambda file=file, job=job: f"GPUSHARE_JOB={job}" in file.read_text(), "its file, which comes after it")
    assert node.kubelet.unprepare("c-1", "c-2") == {"c-1": "", "c-2": ""} and node.leftovers() == []
    node.passes(3)
    assert node.placed() == [], "what was unprepared is not made again"


def test_a_prepared_claim_without_room_is_placed_as_soon_as_there_is_some(node):
    """Somebody ended its placement, and another took the memory before the next pass."""
    node.claim("c-1", "3Gi")
    assert node.kubelet.prepare("c-1")["c-1"].error == ""
    node.api.stop()  # a claim's object is read before it is placed again
    (placed,) = node.placed()
    node.client.displace(placed["id"], placed["attempt"])
    until(lambda: node.placed() == [], "its end")
    taken = node.client.reserve({"name": "other", "gpus": 2, "request": "3Gi"})
    node.api.start()
    until(lambda: "claim team-a/claim-c-1: no room" in node.log(), node.log)
    node.client.release(taken["id"])
    until(node.placed, "the placement to be back")
    assert node.kubelet.unprepare("c-1") == {"c-1": ""} and node.leftovers() == []


def test_no_claim_is_prepared_without_the_library(node):
    """The container would start without its limit, or not at all."""
    (library,) = (node.state / "lib").glob("libgpushare-*.so")
    text = library.read_bytes()
    library.unlink()
    node.claim("c-1")
    said = node.kubelet.prepare("c-1")["c-1"].error
    assert said == f"claim team-a/claim-c-1: {library} is gone; restart gpushare-dra: it makes it again"
    library.write_bytes(text)
    assert node.kubelet.prepare("c-1")["c-1"].error == ""


class Astray:
    """A preparer with a mistake in it."""

    def prepare(self, uid, *_):
        if uid == "c-1":
            raise RecursionError("maximum recursion depth exceeded")
        return []

    def unprepare(self, uid):
        self.prepare(uid)


@pytest.mark.parametrize("call", ["NodePrepareResources", "NodeUnprepareResources"])
def test_an_error_that_nobody_foresaw_is_one_claims(call, caplog):
    with tempfile.TemporaryDirectory(prefix="gs-k-") as folder:  # the path of a socket is short
        kubelet, plugin = Kubelet(Path(folder)), Plugin(Astray(), Path(folder))
        plugin.start()
        try:
            found = kubelet.claims(call, [("c-1", "claim-c-1"), ("c-2", "claim-c-2")])
        finally:
            plugin.stop()
    assert found["c-1"].error == "claim team-a/claim-c-1: gpushare-dra failed (RecursionError); its log says more"
    assert found["c-2"].error == "" and "maximum recursion depth" in caplog.text


def test_while_the_daemon_is_away_claims_wait_and_nothing_is_lost(node):
    node.claim("c-1")
    node.claim("c-2")
    node.kubelet.prepare("c-1")
    before = node.placed()
    node.kill(node.daemon)
    assert "no daemon listens" in node.kubelet.prepare("c-2")["c-2"].error
    assert "no daemon listens" in node.kubelet.unprepare("c-1")["c-1"]
    node.start_daemon()
    assert node.placed() == before
    assert node.kubelet.prepare("c-2")["c-2"].error == ""
    assert node.kubelet.unprepare("c-1", "c-2") == {"c-1": "", "c-2": ""} and node.leftovers() == []


def test_a_second_plugin_waits_for_the_first_to_end(node):
    first = node.plugin
    node.start_plugin()
    time.sleep(0.5)
    assert node.plugin.poll() is None and first.poll() is None
    node.plugin, second = first, node.plugin
    node.claim("c-1")
    assert node.kubelet.prepare("c-1")["c-1"].error == ""
    node.kill(first, signal.SIGTERM)
    node.plugin = second
    node.kubelet.register()
    assert node.kubelet.unprepare("c-1") == {"c-1": ""}


def test_a_kubelet_of_a_later_version_that_asks_for_nothing_known_is_refused_not_crashed(node):
    strange = Kubelet(node.kubelet.folder)
    method = methods("v1")["NodePrepareResources"]._replace(path="/k8s.io.kubelet.pkg.apis.dra.v9.DRAPlugin/X")
    with pytest.raises(Exception, match="UNIMPLEMENTED"):
        strange._call(node.kubelet.folder / "plugins" / "gpushare.dev" / "dra.sock", method)
    assert node.plugin.poll() is None
