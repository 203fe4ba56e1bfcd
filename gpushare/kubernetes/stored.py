"""A claim as the API server stores it: in protobuf, of which only what is needed is read. Pure.

Drivers' blocks in a claim and in its allocation are stored as the bytes that their writer sent. JSON from the API
server has them without white space, and what it makes of a patch has them so, or in another order. These parts of a
claim may not change; so it refuses such a patch, though that says nothing about them. A claim that goes back in
protobuf has the same bytes.

    k8s\\0 | Unknown {2: claim {1: metadata {14: finalizers}, 3: status {4: devices}}}
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

__all__ = ["PROTOBUF", "with_devices", "with_finalizer"]

PROTOBUF = "application/vnd.kubernetes.protobuf"
MAGIC = b"k8s\0"
VARINT, BYTES = 0, 2
"""Wire types."""
OBJECT = 2
METADATA, STATUS = 1, 3
FINALIZERS = 14
DEVICES = 4
DRIVER, CONDITIONS, DATA = 1, 4, 5
OF_DEVICE = {"driver": DRIVER, "pool": 2, "device": 3, "shareID": 7}
OF_CONDITION = {"type": 1, "status": 2, "reason": 5, "message": 6}
TRANSITION = 4


def with_finalizer(data: bytes, finalizer: str) -> bytes:
    """`data`: a claim as the API server answers it. Raises ValueError for what is none."""
    more = _field(METADATA, _field(FINALIZERS, finalizer.encode()))  # what comes twice is merged, and lists grow
    return _changed(data, lambda claim: claim + more)


def with_devices(data: bytes, driver: str, devices: Iterable[Mapping[str, Any]]) -> bytes:
    """In place of what its `status.devices` says of this driver. Raises ValueError."""
    fresh = b"".join(_field(DEVICES, _device(one)) for one in devices)

    def status(content: bytes) -> bytes:
        kept = [
            (number, one) for number, one in _fields(content) if (number, _driver(number, one)) != (DEVICES, driver)
        ]
        return b"".join(_field(number, one) for number, one in kept) + fresh

    def claim(content: bytes) -> bytes:
        return b"".join(_field(number, status(one) if number == STATUS else one) for number, one in _fields(content))

    return _changed(data, claim)


def _changed(data: bytes, change: Callable[[bytes], bytes]) -> bytes:
    if not data.startswith(MAGIC):
        raise ValueError("no object in protobuf")
    parts = [_field(number, change(one) if number == OBJECT else one) for number, one in _fields(data[len(MAGIC) :])]
    return MAGIC + b"".join(parts)


def _driver(number: int, content: bytes) -> str:
    """Whose it is of the devices."""
    return next((one.decode() for what, one in _fields(content) if what == DRIVER), "") if number == DEVICES else ""


def _device(said: Mapping[str, Any]) -> bytes:
    conditions = b"".join(_field(CONDITIONS, _condition(one)) for one in said["conditions"])
    block = json.dumps(said["data"], separators=(",", ":"), sort_keys=True).encode()
    return _texts(said, OF_DEVICE) + conditions + _field(DATA, _field(1, block))


def _condition(said: Mapping[str, Any]) -> bytes:
    seconds = int(datetime.fromisoformat(said["lastTransitionTime"]).timestamp())
    return _texts(said, OF_CONDITION) + _field(TRANSITION, _number(1 << 3 | VARINT) + _number(seconds))


def _texts(said: Mapping[str, Any], numbers: Mapping[str, int]) -> bytes:
    return b"".join(_field(number, str(said[name]).encode()) for name, number in numbers.items() if name in said)


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        size, at = _varint(data, at)
        if tag & 7 != BYTES or at + size > len(data):
            raise ValueError("no object in protobuf")
        yield tag >> 3, data[at : at + size]
        at += size


def _field(number: int, content: bytes) -> bytes:
    return _number(number << 3 | BYTES) + _number(len(content)) + content


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 64:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
    raise ValueError("no object in protobuf")


def _number(value: int) -> bytes:
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    made.append(value)
    return bytes(made)
