"""The messages between kubelet and plugin (registration v1, DRA v1 and v1beta1), from their documented fields.

They are made here and not by a compiler from a file: there are few, and their tables are short. The names of the
packages are part of the calls' paths; v1 and v1beta1 differ in nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

__all__ = ["DRA", "REGISTRATION", "VERSIONS", "Method", "methods"]

REGISTRATION = "pluginregistration"
DRA = "k8s.io.kubelet.pkg.apis.dra"
VERSIONS = ("v1", "v1beta1")
"""Of DRA, as a plugin announces them: the first is preferred."""

Field = descriptor_pb2.FieldDescriptorProto
REGISTRATION_MESSAGES: Mapping[str, Mapping[str, str]] = {
    "InfoRequest": {},
    "PluginInfo": {"type": "string", "name": "string", "endpoint": "string", "supported_versions": "repeated string"},
    "RegistrationStatus": {"plugin_registered": "bool", "error": "string"},
    "RegistrationStatusResponse": {},
}
DRA_MESSAGES: Mapping[str, Mapping[str, str]] = {
    "Claim": {"namespace": "string", "uid": "string", "name": "string"},
    "Device": {
        "request_names": "repeated string",
        "pool_name": "string",
        "device_name": "string",
        "cdi_device_ids": "repeated string",
    },
    "NodePrepareResourcesRequest": {"claims": "repeated Claim"},
    "NodePrepareResourcesResponse": {"claims": "map NodePrepareResourceResponse"},
    "NodePrepareResourceResponse": {"devices": "repeated Device", "error": "string"},
    "NodeUnprepareResourcesRequest": {"claims": "repeated Claim"},
    "NodeUnprepareResourcesResponse": {"claims": "map NodeUnprepareResourceResponse"},
    "NodeUnprepareResourceResponse": {"error": "string"},
}
"""Message -> its fields, which are numbered from 1 in this order."""


class Method(NamedTuple):
    """One call."""

    path: str
    request: Any
    response: Any


@cache
def methods(version: str = "") -> dict[str, Method]:
    """The calls of the registration, or of a version of DRA, by name."""
    package = f"{DRA}.{version}" if version else REGISTRATION
    found = _messages(package, DRA_MESSAGES if version else REGISTRATION_MESSAGES)
    service = f"/{package}.{'DRAPlugin' if version else 'Registration'}"
    calls = (
        {name: (f"{name}Request", f"{name}Response") for name in ("NodePrepareResources", "NodeUnprepareResources")}
        if version
        else {
            "GetInfo": ("InfoRequest", "PluginInfo"),
            "NotifyRegistrationStatus": ("RegistrationStatus", "RegistrationStatusResponse"),
        }
    )
    return {
        name: Method(f"{service}/{name}", found(asked), found(answered)) for name, (asked, answered) in calls.items()
    }


def _messages(package: str, table: Mapping[str, Mapping[str, str]]) -> Callable[[str], Any]:
    file = descriptor_pb2.FileDescriptorProto(name=f"gpushare/{package}.proto", package=package, syntax="proto3")
    for name, fields in table.items():
        message = file.message_type.add(name=name)
        for number, (field, kind) in enumerate(fields.items(), 1):
            _add(package, message, field, number, kind)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return lambda name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))


def _add(package: str, message: descriptor_pb2.DescriptorProto, name: str, number: int, kind: str) -> None:
    *how, of = kind.split()
    field = message.field.add(name=name, number=number, label=Field.LABEL_OPTIONAL)
    if how:
        field.label = Field.LABEL_REPEATED
    if how == ["map"]:
        entry = message.nested_type.add(name=f"{name.title()}Entry")
        entry.options.map_entry = True
        _add(package, entry, "key", 1, "string")
        _add(package, entry, "value", 2, of)
        field.type, field.type_name = Field.TYPE_MESSAGE, f".{package}.{message.name}.{entry.name}"
    elif of in ("string", "bool"):
        field.type = Field.TYPE_STRING if of == "string" else Field.TYPE_BOOL
    else:
        field.type, field.type_name = Field.TYPE_MESSAGE, f".{package}.{of}"
