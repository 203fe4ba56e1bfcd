"""Access control of the dashboard's server.

All users of the machine can connect to a port of localhost, and all pages in the user's browser can send requests to
it. Four checks keep them out:

* A **token** in the address that the command prints. It comes after `#`, so browsers send it to no server. The page
  exchanges it once for a session.
* A **session** has two parts. Scripts cannot read the cookie (HttpOnly), and other sites cannot use it
(SameSite=Strict).
  But browsers send the cookies of 127.0.0.1 to all its ports, also to another user's server. So a request also needs
  the key, which the page keeps in its own origin's storage and sends as a header.
* The **Host** header must name this machine. A foreign name that resolves to 127.0.0.1 (DNS rebinding) is refused.
* **Origin and Sec-Fetch-Site**, by which the browser names the page that asks. Other pages are refused.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["KEY_HEADER", "Refusal", "Session", "Sessions", "check_host", "check_site"]

KEY_HEADER = "X-Gpushare-Key"
LOCAL_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]"})
"""Any port is right: with `ssh -L` the browser's port is another than ours."""
MOST_SESSIONS = 32
"""Browsers that are logged in at once; one more ends the oldest session."""


class Refusal(Exception):
    """The request is not answered. The text says why; it contains no secret."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


def _secret() -> str:
    return secrets.token_urlsafe(32)


@dataclass(frozen=True, slots=True)
class Session:
    cookie: str = field(default_factory=_secret, repr=False)
    key: str = field(default_factory=_secret, repr=False)


class Sessions:
    """The token of one run of the command, and the sessions that it has opened."""

    def __init__(self) -> None:
        self.token = _secret()
        self.cookie_name = f"gpushare-{secrets.token_hex(4)}"
        """Another name in each run: two dashboards on localhost share one set of cookies."""
        self._sessions: dict[str, Session] = {}

    def open(self, token: object, cookie: str | None) -> Session:
        """A session for a caller that knows the token: the browser's own if it has one, so that its other tabs go on.
        Refusal where the token is wrong."""
        if not isinstance(token, str) or not _same(token, self.token):
            raise Refusal(403, "wrong_token", "this address is not, or no longer, the one that the command printed")
        known = self._sessions.get(cookie or "")
        if known is not None:
            return known
        session = Session()
        self._sessions[session.cookie] = session
        while len(self._sessions) > MOST_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        return session

    def check(self, cookie: str | None, key: str | None) -> None:
        """Refusal unless both halves belong to one session."""
        session = self._sessions.get(cookie or "")
        if session is None or key is None or not _same(key, session.key):
            raise Refusal(401, "no_session", "open the page with the address that `gpushare dashboard` printed")


def _same(given: str, expected: str) -> bool:
    """Compared in constant time: how long it takes says nothing about how much of it is right."""
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), expected.encode())


def check_host(host: str | None) -> None:
    """Refusal unless the Host header names this machine."""
    name = host or ""
    bare, colon, port = name.rpartition(":")
    if colon and port.isdigit():
        name = bare
    if name.lower() not in LOCAL_NAMES:
        raise Refusal(421, "foreign_host", "this server answers at 127.0.0.1 and localhost only")


def check_site(headers: Mapping[str, str], *, writes: bool) -> None:
    """Refusal if another page than our own asks. A write has to say where it comes from; all browsers do."""
    site, origin = headers.get("Sec-Fetch-Site"), headers.get("Origin")
    own = f"http://{headers.get('Host', '')}"
    foreign = site not in (None, "same-origin") or origin not in (None, own)
    if foreign or (writes and origin is None):
        raise Refusal(403, "cross_site", "only the dashboard's own page may ask")
