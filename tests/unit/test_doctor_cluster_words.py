"""What `gpushare doctor --cluster` finds of objects of the test's making, without a server, word by word."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from gpushare.doctor import cluster as doctor
from gpushare.doctor.cluster import APPLY, APPLY_ATTACH, APPLY_OLDER, APPLY_SCHEDULER, PLUGIN, SCHEDULER, Cluster
from gpushare.errors import DaemonUnreachable, NoSuchJob, NotPermitted
from gpushare.kubernetes.names import ATTACHED, NODE_GPUS, NVIDIA, OWN_CLASS
from gpushare.kubernetes.reader import NotServed

NOW = 1_790_000_000.0
AHEAD = 100.0
"""By so much the server's clock is ahead of ours."""
DRA = "/apis/resource.k8s.io/v1"
SLICES, CLASS = f"{DRA}/resourceslices", f"{DRA}/deviceclasses/gpushare.dev"
PODS, NODES, EVENTS = "/api/v1/namespaces/gpushare/pods", "/api/v1/nodes", "/api/v1/events"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/gpushare/leases/{SCHEDULER}"
QUEUES = "/apis/gpushare.dev/v1/queues"
MARKS = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolic{}/gpushare-marks"
ALL_KINDS = {"resources": [{"name": one} for one in ("resourceclaims", "resourceslices", "deviceclasses")]}


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    monkeypatch.setattr(doctor, "time", SimpleNamespace(time=lambda: NOW))


def at(seconds_ago: float) -> str:
    """That long ago, by the server's clock."""
    return datetime.fromtimestamp(NOW + AHEAD - seconds_ago, UTC).isoformat()


class Server:
    """Objects by path; an error in the place of one is raised. `may`: what accounts are denied."""

    ahead = AHEAD

    def __init__(self, **objects: Any) -> None:
        self.objects: dict[str, Any] = {DRA: ALL_KINDS}
        self.denied: set[str] = set()
        self.asked: list[Any] = []

    def _found(self, path: str, none: Any) -> Any:
        found = self.objects.get(path, none)
        if isinstance(found, Exception):
            raise found
        return found

    def all(self, path: str) -> Any:
        return self._found(path, [])

    def ask(self, path: str, body: Any = None) -> Any:
        if body is None:
            return self._found(path, NoSuchJob("not found"))
        spec = body["spec"]
        right = spec["resourceAttributes"]
        assert not {".", "/"} & set(right["resource"]) and (not right["group"] or "." in right["group"]), right
        kind = "/".join(filter(None, (right["group"], right["resource"], right.get("subresource"))))
        return {"status": {"allowed": f"{spec['user'].rpartition(':')[2]}: {right['verb']} {kind}" not in self.denied}}


@pytest.fixture
def server():
    return Server()


def found(check: Any, server: Server) -> tuple[Any, ...]:
    one = check(Cluster(server))  # type: ignore[arg-type]
    return one.state, one.detail, one.fix


def condition(kind: str = "Ready", status: str = "True") -> dict[str, str]:
    return {"type": kind, "status": status}


def node(name: str, *conditions: dict[str, str], label: str = "true") -> dict[str, Any]:
    meta = {"name": name, "labels": {"gpushare.dev/node": label}}
    return {"metadata": meta, "status": {"conditions": list(conditions or [condition()])}}


def pod(on: str, *conditions: dict[str, str], app: str = PLUGIN) -> dict[str, Any]:
    status = {"conditions": list(conditions or [condition()])}
    return {"metadata": {"name": f"p-{on}", "labels": {"app": app}}, "spec": {"nodeName": on}, "status": status}


def device(name: str = "g0", *, part: Any = True, index: Any = None, taints: Any = (), attach: bool = False) -> Any:
    attributes = {"index": {"int": index}} if index is not None else {}
    if attach:
        attributes[ATTACHED] = {"bool": True}
    found = {"name": name, "attributes": attributes, "taints": list(taints)}
    return found if part is None else {**found, "allowMultipleAllocations": part}


def published(on: str, *devices: Any, driver: str = "gpushare.dev", count: int = 1, generation: int = 1) -> Any:
    pool = {"name": on, "generation": generation, "resourceSliceCount": count}
    return {"spec": {"driver": driver, "nodeName": on, "pool": pool, "devices": list(devices)}}


# ---- the server ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "state", "detail"),
    [
        ("v1.34.1", "ok", "Kubernetes v1.34.1"),
        ("1.34+k3s", "ok", "Kubernetes 1.34+k3s"),
        ("soon", "warn", "it does not say its version: 'soon'"),
        ("", "warn", "it does not say its version: ''"),
    ],
)
def test_its_version(server, version, state, detail):
    server.objects["/version"] = {"gitVersion": version}
    assert found(doctor.check_server, server) == (state, detail, ())


def test_a_server_that_is_silent_is_not_asked_again(server):
    server.objects["/version"] = DaemonUnreachable("no route")
    one = Cluster(server)  # type: ignore[arg-type]
    answer = doctor.check_server(one)
    assert (answer.state, answer.detail) == ("fail", "no route") and "kubectl get nodes" in (answer.hint or "")
    with pytest.raises(DaemonUnreachable, match="the API server does not answer"):
        doctor.check_claims(one)
    server.objects["/version"] = NotPermitted("you may not")
    with pytest.raises(NotPermitted):
        doctor.check_server(Cluster(server))  # type: ignore[arg-type]


def test_who_carries_claims(server):
    assert found(doctor.check_claims, server) == ("ok", "resource.k8s.io/v1 is served", ())
    server.objects[DRA] = {"resources": [{"name": "deviceclasses"}]}
    lacks = "resource.k8s.io/v1 lacks resourceclaims, resourceslices"
    assert found(doctor.check_claims, server) == ("fail", lacks, ())
    server.objects[DRA] = NoSuchJob("no")
    state, detail, fix = found(doctor.check_claims, server)
    assert (state, fix) == ("ok", ()) and detail.startswith("annotations of pods carry them")
    server.objects[NODE_GPUS] = NotServed("no")
    fails = "resource.k8s.io/v1 is not served, nor is the kind NodeGpus"
    assert found(doctor.check_claims, server) == ("fail", fails, (APPLY_OLDER,))


@pytest.mark.parametrize(
    ("devices", "state", "detail"),
    [
        ([], "skip", "no GPU is published yet"),
        ([device(), device("g1")], "ok", "claims may have parts of GPUs"),
        ([device(), device("g1", part=None)], "warn", "1 of 2 GPUs go to one claim as a whole"),
        ([device(part=False), device("g1", part="true")], "warn", "2 of 2 GPUs go to one claim as a whole"),
        ([device(attach=True, part=None)], "skip", "no GPU is published yet"),
    ],
)
def test_parts_of_gpus(server, devices, state, detail):
    server.objects[SLICES] = [published("n1", *devices)]
    assert found(doctor.check_parts, server) == (state, detail, ())


def selects(*expressions: str) -> dict[str, Any]:
    return {"spec": {"selectors": [{"cel": {"expression": one}} for one in expressions]}}


@pytest.mark.parametrize(
    ("of_class", "attaches", "expected"),
    [
        (None, False, ("fail", "there is no DeviceClass gpushare.dev", (APPLY,))),
        (selects(f"  {OWN_CLASS}\n"), False, ("ok", "DeviceClass gpushare.dev", ())),
        (selects(), False, ("warn", "DeviceClass gpushare.dev selects all devices", (APPLY,))),
        (selects("b", "a"), False, ("warn", "DeviceClass gpushare.dev selects a, b", (APPLY,))),
        (selects(OWN_CLASS), True, ("fail", "there is no DeviceClass attach.gpushare.dev", (APPLY_ATTACH,))),
    ],
)
def test_the_device_class(server, of_class, attaches, expected):
    if of_class is not None:
        server.objects[CLASS] = of_class
    server.objects[SLICES] = [published("n1", device(attach=attaches))]
    assert found(doctor.check_class, server) == expected
    if attaches:
        server.objects[f"{DRA}/deviceclasses/attach.gpushare.dev"] = {}
        assert found(doctor.check_class, server) == ("ok", "DeviceClass gpushare.dev, attach.gpushare.dev", ())


def test_without_claims_there_are_neither_parts_nor_classes(server):
    server.objects[DRA] = NoSuchJob("no")
    assert found(doctor.check_parts, server) == ("skip", "annotations of pods carry claims", ())
    assert found(doctor.check_class, server)[0] == "skip"
    server.objects[NODE_GPUS] = NotServed("no")
    assert Cluster(server).slices == {}  # type: ignore[arg-type]
    assert Cluster(server).apply == APPLY_OLDER  # type: ignore[arg-type]


# ---- nodes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "state", "detail"),
    [
        ([], "fail", "no node has the label gpushare.dev/node=true"),
        ([node("n1", label="false")], "fail", "no node has the label gpushare.dev/node=true"),
        ([node("n1")], "ok", "1 node with the label gpushare.dev/node=true"),
        ([node("n1"), node("n2"), node("n3", label="")], "ok", "2 nodes with the label gpushare.dev/node=true"),
        ([node("n2", condition(status="False")), node("n1", condition(status="Unknown"))], "warn", "not ready: n1, n2"),
        (
            [node("n1", condition("Pressure", "False"), condition())],
            "ok",
            "1 node with the label gpushare.dev/node=true",
        ),
        ([node("n1", condition("Pressure"), condition(status="False"))], "warn", "not ready: n1"),
        ([node(f"n{n}", condition(status="")) for n in range(5)], "warn", "not ready: n0, n1, n2, n3 and 1 more"),
        ([node(f"n{n}", condition(status="")) for n in range(4)], "warn", "not ready: n0, n1, n2, n3"),
    ],
)
def test_nodes(server, nodes, state, detail):
    server.objects[NODES] = nodes
    fix = ("kubectl label node NAME gpushare.dev/node=true",) if state == "fail" else ()
    assert found(doctor.check_nodes, server) == (state, detail, fix)


N1, N2 = node("n1"), node("n2")


@pytest.mark.parametrize(
    ("nodes", "pods", "slices", "expected"),
    [
        ([], [], [], ("skip", "no node has the label", ())),
        ([N1], [pod("n1")], [], ("ok", "gpushare-dra runs on 1 node", ())),
        ([N1, N2], [pod("n1"), pod("n2"), pod("n3")], [], ("ok", "gpushare-dra runs on 2 nodes", ())),
        (
            [N1, N2],
            [pod("n1")],
            [published("n2")],
            ("ok", "gpushare-dra has no pod on n2: it runs there as a service, or did", ()),
        ),
        ([N1, N2], [pod("n1")], [published("n1")], ("fail", "gpushare-dra does not run on n2", ())),
        ([N1, N2], [], [published("n2")], ("fail", "gpushare-dra does not run on n1", (APPLY,))),
        ([N1], [pod("n1", condition(status="False"))], [], ("fail", "gpushare-dra does not run on n1", ())),
        ([N1], [pod("n1", app="other")], [], ("fail", "gpushare-dra does not run on n1", (APPLY,))),
    ],
)
def test_the_plugin(server, nodes, pods, slices, expected):
    server.objects |= {NODES: nodes, PODS: pods, SLICES: slices}
    assert found(doctor.check_plugin, server) == expected


@pytest.mark.parametrize(
    ("nodes", "slices", "state", "detail"),
    [
        ([], [], "skip", "no node has the label"),
        ([N1, N2], [published("n2", device())], "fail", "no GPU is published by n1"),
        ([N1], [published("n1", device(), device("g1"))], "ok", "2 GPUs on 1 node"),
        ([N1, N2], [published("n2", device()), published("n1", device())], "ok", "2 GPUs on 2 nodes"),
        ([N1], [published("n1", device())], "ok", "1 GPU on 1 node"),
        ([N1], [published("n1", device(), count=2)], "warn", "some of the slices are missing: n1"),
        ([N1], [published("n1", device(), count=2), published("n1", device("g1"), count=2)], "ok", "2 GPUs on 1 node"),
        ([N1], [published("n1")], "warn", "no GPU is in the slices of n1"),
        ([N1], [published("n1", device(), driver="other.dev")], "fail", "no GPU is published by n1"),
        (
            [N1],
            [published("n1", device(), generation=3), published("n1", device(), device("g1"), generation=2)],
            "ok",
            "1 GPU on 1 node",
        ),
        (
            [N1],
            [published("n1", device()), published("n1", device(), driver=NVIDIA)],
            "warn",
            f"both gpushare.dev and {NVIDIA} publish the GPUs of n1",
        ),
        ([N1], [published("n1", device()), published("n1", driver=NVIDIA)], "ok", "1 GPU on 1 node"),
        ([N1], [published("n1", device(attach=True))], "warn", f"{NVIDIA} publishes no GPU that n1 could attach to"),
        (
            [N1, N2],
            [published("n1", device(attach=True)), published("n1", device(), driver=NVIDIA), published("n2", device())],
            "ok",
            f"1 GPU on 1 node; n1: {NVIDIA}'s",
        ),
    ],
)
def test_what_is_published(server, nodes, slices, state, detail):
    server.objects |= {NODES: nodes, SLICES: slices}
    assert found(doctor.check_slices, server) == (state, detail, ())


def test_who_may_not_know_what_is_published_is_not_told_of_attaching(server):
    server.objects[SLICES] = NotPermitted("you may not")
    assert Cluster(server).attaching == []  # type: ignore[arg-type]


SICK, KEY = {"key": "gpushare.dev/health", "value": "sick"}, {"key": "busy"}


@pytest.mark.parametrize(
    ("devices", "state", "detail"),
    [
        ([], "skip", "no GPU is published yet"),
        ([device()], "ok", "no GPU has a taint"),
        ([device(taints=[SICK], index="3")], "warn", "n1 GPU 3: sick"),
        ([device(taints=[SICK]), device("g1")], "warn", "n1 GPU g0: sick"),
        ([device(taints=[SICK, KEY])], "warn", "n1 GPU g0: busy, sick"),
        (
            [device(f"g{n}", taints=[KEY]) for n in range(6)],
            "warn",
            "; ".join(f"n1 GPU g{n}: busy" for n in range(4)) + " and 2 more",
        ),
    ],
)
def test_the_health_of_the_gpus(server, devices, state, detail):
    server.objects[SLICES] = [published("n1", *devices)]
    assert found(doctor.check_health, server) == (state, detail, ())


# ---- the scheduler ---------------------------------------------------------------------------------------------


def lease(holder: str = "s-1:/var", renewed: str | float = 7, lasts: Any = 20) -> dict[str, Any]:
    moment = renewed if isinstance(renewed, str) else at(renewed)
    return {"spec": {"holderIdentity": holder, "renewTime": moment, "leaseDurationSeconds": lasts}}


@pytest.mark.parametrize(
    ("of_lease", "queues", "state", "detail"),
    [
        (None, False, "skip", "it is not set up: another scheduler places the pods"),
        (None, True, "fail", "no lease gpushare/gpushare-scheduler: none has led yet"),
        (lease(), True, "ok", "s-1 leads, and said so 7 s ago"),
        (lease(), False, "ok", "s-1 leads, and said so 7 s ago"),
        (lease(renewed=-5), True, "ok", "s-1 leads, and said so 0 s ago"),
        (lease(renewed=20), True, "ok", "s-1 leads, and said so 20 s ago"),
        (lease(renewed=21), True, "fail", "s-1 led, and has been silent for 21 s"),
        (lease(renewed=1, lasts="odd"), True, "ok", "s-1 leads, and said so 1 s ago"),
        (lease(renewed=2, lasts=0), True, "fail", "s-1 led, and has been silent for 2 s"),
        (lease(holder=""), True, "fail", "no scheduler leads"),
        (lease(renewed="soon"), True, "fail", "no scheduler leads"),
    ],
)
def test_who_leads(server, of_lease, queues, state, detail):
    if of_lease is not None:
        server.objects[LEASE] = of_lease
    server.objects[QUEUES] = [] if queues else NotServed("no")
    assert found(doctor.check_scheduler, server) == (state, detail, ())


def queue(name: str, accepted: str = "True", message: str = "", **spec: Any) -> dict[str, Any]:
    said = {"type": "Accepted", "status": accepted, "message": message}
    return {"metadata": {"name": name}, "spec": spec, "status": {"conditions": [said]}}


FIVE = [f"q{number}" for number in range(5)]


@pytest.mark.parametrize(
    ("queues", "of_lease", "expected"),
    [
        (None, None, ("skip", "the kind Queue of gpushare.dev/v1 is not served", ())),
        (None, lease(), ("warn", "the kind Queue of gpushare.dev/v1 is not served", (APPLY_SCHEDULER,))),
        ([queue("a", namespaces=["x"])], None, ("ok", "1 queue, all accepted", ())),
        (
            [queue("b"), queue("a")],
            None,
            ("ok", "2 queues, all accepted; unless open_queues is false, all may use a, b", ()),
        ),
        (
            [queue(name) for name in FIVE],
            None,
            (
                "ok",
                "5 queues, all accepted; unless open_queues is false, all may use q0, q1, q2, q3 and 1 more",
                (),
            ),
        ),
        ([queue("a"), queue("b", "False", "no number")], None, ("warn", "b: no number", ())),
        (
            [queue(name, "False", "odd") for name in FIVE],
            None,
            ("warn", "q0: odd; q1: odd; q2: odd; q3: odd and 1 more", ()),
        ),
    ],
)
def test_queues(server, queues, of_lease, expected):
    server.objects[QUEUES] = NotServed("no") if queues is None else queues
    if of_lease is not None:
        server.objects[LEASE] = of_lease
    assert found(doctor.check_queues, server) == expected


@pytest.mark.parametrize("lacking", ["ies", "ybindings"])
def test_who_may_write_the_schedulers_annotation(server, lacking):
    server.objects[QUEUES] = NotServed("no")
    assert found(doctor.check_marks, server) == ("skip", "no scheduler of gpushare", ())
    server.objects[QUEUES] = []
    server.objects |= {MARKS.format(kind): {} for kind in ("ies", "ybindings")}
    assert found(doctor.check_marks, server) == ("ok", "only the scheduler writes its annotation", ())
    del server.objects[MARKS.format(lacking)]
    state, detail, fix = found(doctor.check_marks, server)
    kind = f"validatingadmissionpolic{lacking}"
    assert (state, fix) == ("warn", (APPLY_SCHEDULER,)) and detail.startswith(f"{kind} gpushare-marks is not there")


def event(name: str, message: str, ago: float, kind: str = "Warning", field: str = "lastTimestamp") -> dict[str, Any]:
    return {"type": kind, "message": message, field: at(ago), "involvedObject": {"namespace": "a", "name": name}}


NONE = "no event of the last 1h tells of a failure"


@pytest.mark.parametrize(
    ("events", "state", "detail"),
    [
        ([], "ok", NONE),
        ([event("x", "gpushare.dev: no", 3599)], "warn", "1 pod with failures, such as a/x: gpushare.dev: no"),
        ([event("x", "gpushare.dev: no", 3600)], "warn", "1 pod with failures, such as a/x: gpushare.dev: no"),
        ([event("x", "gpushare.dev: no", 3601)], "ok", NONE),
        (
            [event("x", "gpushare.dev: " + "x" * 500, 9)],
            "warn",
            "1 pod with failures, such as a/x: gpushare.dev: " + "x" * 286,
        ),
        ([event("x", "gpushare.dev: no", 3700)], "ok", NONE),
        (
            [event("x", "gpushare.dev: no", 9, field="eventTime")],
            "warn",
            "1 pod with failures, such as a/x: gpushare.dev: no",
        ),
        ([event("x", "gpushare.dev: no", 9, kind="Normal")], "ok", NONE),
        ([event("x", "another driver", 9)], "ok", NONE),
        ([{"type": "Warning", "message": "gpushare.dev: no", "lastTimestamp": "soon"}], "ok", NONE),
        (
            [event("x", "gpushare.dev:  b\n", 9), event("c", "gpushare.dev: a", 9), event("x", "gpushare.dev: a", 8)],
            "warn",
            "2 pods with failures, such as a/c: gpushare.dev: a",
        ),
        (
            [event("x", "gpushare.dev: \n lo\nng", 9)],
            "warn",
            "1 pod with failures, such as a/x: gpushare.dev: lo ng",
        ),
    ],
)
def test_claims_that_failed(server, events, state, detail):
    server.objects[EVENTS] = events
    assert found(doctor.check_events, server) == (state, detail, ())


@pytest.mark.parametrize(
    ("claims", "scheduler", "attaches", "denied", "detail", "fix"),
    [
        (True, True, False, [], f"{PLUGIN} and {SCHEDULER} may do what they need to", ()),
        (True, False, False, [], f"{PLUGIN} may do what they need to", ()),
        (True, False, False, [f"{SCHEDULER}: list nodes"], f"{PLUGIN} may do what they need to", ()),
        (True, False, False, [f"{PLUGIN}: get nodes"], f"{PLUGIN}: get nodes", (APPLY,)),
        (True, True, False, [f"{SCHEDULER}: create pods/binding"], None, (APPLY, APPLY_SCHEDULER)),
        (True, True, False, [f"{SCHEDULER}: patch gpushare.dev/queues/status"], None, (APPLY, APPLY_SCHEDULER)),
        (True, False, False, [f"{PLUGIN}: list {doctor.SLICES}"], f"{PLUGIN} may do what they need to", ()),
        (True, False, True, [f"{PLUGIN}: list {doctor.SLICES}"], None, (APPLY, APPLY_ATTACH)),
        (True, True, True, [f"{SCHEDULER}: list {doctor.SLICES}"], None, (APPLY, APPLY_ATTACH, APPLY_SCHEDULER)),
        (False, False, False, [f"{PLUGIN}: list pods"], None, (APPLY_OLDER,)),
        (False, False, False, [], f"{PLUGIN} may do what they need to", ()),
        (
            False,
            True,
            False,
            [f"{SCHEDULER}: list {doctor.GPUS_OF_NODES}"],
            None,
            (APPLY_OLDER,),
        ),
        (
            False,
            True,
            False,
            [f"{SCHEDULER}: list {doctor.SLICES}"],
            f"{PLUGIN} and {SCHEDULER} may do what they need to",
            (),
        ),
    ],
)
def test_rights(server, claims, scheduler, attaches, denied, detail, fix):
    """None: what is lacking is named."""
    if not claims:
        server.objects[DRA] = NoSuchJob("no")
    server.objects[QUEUES] = [] if scheduler else NotServed("no")
    server.objects[SLICES] = [published("n1", device(attach=attaches))]
    server.denied = set(denied)
    told = found(doctor.check_rights, server)
    assert told == ("fail" if fix else "ok", detail or "; ".join(denied), fix)


def test_many_rights_that_are_lacking_are_counted(server):
    server.objects[QUEUES] = NotServed("no")
    rights = [f"{PLUGIN}: {verb} {what}" for what, verbs in doctor.RIGHTS[PLUGIN].items() for verb in verbs.split()]
    server.denied = set(rights)
    assert found(doctor.check_rights, server) == (
        "fail",
        "; ".join(rights[:4]) + f" and {len(rights) - 4} more",
        (APPLY,),
    )
