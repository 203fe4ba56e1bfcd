"""Claims in protobuf, as the API server stores them: what is changed, and that nothing else is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from claims import claim, result
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from gpushare.cluster.engines.kubernetes.names import CLAIMS
from gpushare.cluster.engines.kubernetes.writes import FINALIZER, Refusal, Writer
from gpushare.kubernetes import stored
from gpushare.kubernetes.publish import Publisher
from gpushare.kubernetes.server import Answer, _compact

FIELD = descriptor_pb2.FieldDescriptorProto
MESSAGES = {
    "Unknown": {1: ("type", "bytes"), 2: ("raw", "bytes"), 4: ("content", "string")},
    "Meta": {1: ("name", "string"), 6: ("version", "string"), 14: ("finalizers", "strings")},
    "Time": {1: ("seconds", "int")},
    "Condition": {
        **{1: ("type", "string"), 2: ("status", "string"), 4: ("time", "Time")},
        **{5: ("reason", "string"), 6: ("message", "string")},
    },
    "Raw": {1: ("raw", "bytes")},
    "Device": {
        **{1: ("driver", "string"), 2: ("pool", "string"), 3: ("device", "string"), 4: ("conditions", "Condition*")},
        **{5: ("data", "Raw"), 7: ("share", "string")},
    },
    "Status": {1: ("allocation", "bytes"), 2: ("reserved", "strings"), 4: ("devices", "Device*")},
    "Claim": {1: ("meta", "Meta"), 2: ("spec", "bytes"), 3: ("status", "Status")},
}
"""As Kubernetes numbers them; what is not looked into is bytes."""
PLAIN = {"bytes": FIELD.TYPE_BYTES, "string": FIELD.TYPE_STRING, "strings": FIELD.TYPE_STRING, "int": FIELD.TYPE_INT64}
SPEC = b'{"kind": "Budget",\n "limit":  "3Gi"}'
SAID = {
    "driver": "gpushare.dev",
    "pool": "n1",
    "device": "gpu-1",
    "shareID": "a-share",
    "data": {"usage": "2Gi", "kind": "Use"},
    "conditions": [
        {
            **{"type": "Borrowing", "status": "True", "reason": "Running", "message": "uses 2 GiB"},
            "lastTransitionTime": "2026-11-24T02:00:00Z",
        }
    ],
}


def make_kinds():
    file = descriptor_pb2.FileDescriptorProto(name="stored.proto", package="t", syntax="proto3")
    for message, fields in MESSAGES.items():
        made = file.message_type.add(name=message)
        for number, (name, kind) in fields.items():
            many = kind == "strings" or kind.endswith("*")
            field = made.field.add(name=name, number=number, label=FIELD.LABEL_REPEATED if many else 1)
            if kind in PLAIN:
                field.type = PLAIN[kind]
            else:
                field.type, field.type_name = FIELD.TYPE_MESSAGE, f".t.{kind.removesuffix('*')}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"t.{name}")) for name in MESSAGES}


KINDS = make_kinds()


def make(**status) -> bytes:
    claim = KINDS["Claim"](meta={"name": "train", "version": "7", "finalizers": ["other"]}, spec=SPEC, status=status)
    unknown = KINDS["Unknown"](type=b"\n\x02v1", raw=claim.SerializeToString())
    return b"k8s\0" + unknown.SerializeToString()


def read(data: bytes):
    assert data.startswith(b"k8s\0")
    unknown = KINDS["Unknown"].FromString(data[4:])
    assert unknown.type == b"\n\x02v1"
    return KINDS["Claim"].FromString(unknown.raw)


def test_a_finalizer_is_added_and_the_bytes_of_the_rest_stay():
    before = make(allocation=b"x" * 300)
    after = read(stored.with_finalizer(before, "resource.kubernetes.io/delete-protection"))
    assert list(after.meta.finalizers) == ["other", "resource.kubernetes.io/delete-protection"]
    del after.meta.finalizers[1]
    assert after == read(before) and after.spec == SPEC


def test_what_a_driver_said_of_devices_is_replaced_and_others_keep_theirs():
    old = [{"driver": "gpushare.dev", "device": "gpu-1"}, {"driver": "other.dev", "device": "x", "share": "s"}]
    before = make(allocation=SPEC, reserved=["p"], devices=old)
    after = read(stored.with_devices(before, "gpushare.dev", [SAID]))
    other, own = after.status.devices
    assert (other.driver, other.device, other.share) == ("other.dev", "x", "s")
    assert (own.driver, own.pool, own.device, own.share) == ("gpushare.dev", "n1", "gpu-1", "a-share")
    assert own.data.raw == b'{"kind":"Use","usage":"2Gi"}'
    (told,) = own.conditions
    assert (told.type, told.status, told.reason, told.message) == ("Borrowing", "True", "Running", "uses 2 GiB")
    assert told.time.seconds == 1795485600
    assert (after.status.allocation, list(after.status.reserved), after.spec) == (SPEC, ["p"], SPEC)


@pytest.mark.parametrize("data", [b"", b"{}", b"k8s\0\x12\x7f", b"k8s\0\x08\x01", b"k8s\0" + b"\xff" * 12])
def test_what_is_none_is_refused(data):
    with pytest.raises(ValueError, match="no object"):
        stored.with_finalizer(data, "x")


class Picky:
    """An API server that takes each patch of a claim for a change of what must not change."""

    def __init__(self, why: str) -> None:
        self.why = why
        self.put: list[tuple[str, Any]] = []

    def apply(self, path: str, body: Any) -> Any:
        raise Answer(f"the API server refuses PATCH {path}: {self.why}", 422)

    def stored(self, path: str) -> bytes:
        return make(devices=[{"driver": "gpushare.dev", "device": "gpu-1"}])

    def ask(self, method: str, path: str, body: Any, kind: str) -> Any:
        if method == "PATCH":
            return self.apply(path, body)
        assert (method, kind) == ("PUT", "application/vnd.kubernetes.protobuf")
        self.put.append((path, read(body)))
        return {**claim(), "status": {"devices": [SAID]}}


PATH = "/apis/resource.k8s.io/v1/namespaces/team-a/resourceclaims/train"


def test_the_plugin_tells_of_a_claim_that_no_patch_may_touch():
    server = Picky("[status.allocation: Forbidden: changing status.allocation]")
    gpu = {"uuid": "GPU-1", "usage": 2**31, "loan": 2**30, "request": 2**30, "limit": 3 * 2**30}
    told = claim(result("GPU-1"))
    Publisher(server, "n1").tell(told, {"gpus": [gpu], "state": "running"})  # type: ignore[arg-type]
    ((path, found),) = server.put
    assert path == f"{PATH}/status"
    assert (
        found.status.devices[0].conditions[0].message
        == "uses 2.0 GiB of 1.0 GiB requested; 1.0 GiB of that are on loan"
    )
    with pytest.raises(Answer, match="forbidden"):
        Publisher(Picky("it is forbidden"), "n1").tell(told, {"gpus": [gpu], "state": "running"})  # type: ignore[arg-type]


def test_the_scheduler_protects_a_claim_that_no_patch_may_touch():
    kept: list[Any] = []
    found_claim = claim()
    found_claim["metadata"]["resourceVersion"] = "7"
    member = SimpleNamespace(claims=(found_claim,))
    server = Picky("spec: Invalid value: ...: field is immutable")
    writer = Writer(server, {CLAIMS: SimpleNamespace(put=kept.append)})  # type: ignore[arg-type,dict-item]
    writer._protect(member, 0)  # type: ignore[arg-type]
    ((path, found),) = server.put
    assert (path, list(found.meta.finalizers)) == (PATH, ["other", FINALIZER])
    assert len(kept) == 1 and member.claims == (kept[0],)
    member.claims = (found_claim,)
    with pytest.raises(Refusal, match="it is forbidden"):
        Writer(Picky("it is forbidden"), {})._protect(member, 0)  # type: ignore[arg-type]


def test_what_is_sent_is_as_an_api_server_writes_it():
    """So that others can patch it, too."""
    assert _compact({"b": [1, {"d": 2, "c": "x y"}], "a": None}) == b'{"a":null,"b":[1,{"c":"x y","d":2}]}'
