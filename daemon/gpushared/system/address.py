"""Addresses of TCP as settings write them: "host:port"."""

from __future__ import annotations

import ipaddress
import socket

from gpushare.errors import GpushareError, UsageError

__all__ = ["address_setting", "is_local", "listen", "split_address"]


def address_setting(value: object) -> str:
    """A setting that is an address, or empty for none. Raises UsageError."""
    if not isinstance(value, str):
        raise UsageError('not a "host:port" in quotes')
    if value:
        split_address(value)
    return value


def split_address(text: str) -> tuple[str, int]:
    """Raises UsageError."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(f'{text!r} is not a "host:port"')
    return host.strip("[]"), int(port)


def is_local(text: str) -> bool:
    """Only this machine reaches it."""
    host, _ = split_address(text)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listen(text: str) -> socket.socket:
    """Raises GpushareError where that cannot be."""
    host, port = split_address(text)
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise GpushareError(f"cannot listen on {text}: {error.strerror}") from None
