"""Access control of the dashboard's server.

All users of the machine can connect to a port of localhost, and all pages in the user's browser can send requests to
it. Four checks keep them out:

* A **token** in the address that the command prints. It comes after `#`, so browsers send it to no server. The page
  exchanges it once for a session.
* A **session** has two parts. Scripts cannot read the cookie (HttpOnly), and other sites cannot use it
  (SameSite=Strict). But browsers send the cookies of 127.0.0.1 to all its ports, also to another user's server. So a
  request also needs the key, which the page keeps in its own origin's storage and sends as a header. Token, cookie and
  key all come from one secret, so the server keeps no list of sessions; one that starts again with the same secret
  knows the pages that are open.
* The **Host** header must name this machine. A foreign name that resolves to 127.0.0.1 (DNS rebinding) is refused.
* **Origin and Sec-Fetch-Site**, by which the browser names the page that asks. Other pages are refused.
"""

from __future__ import annotations

import base64
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["KEY_HEADER", "Refusal", "Session", "Sessions", "check_host", "check_site", "new_secret"]

KEY_HEADER = "X-Gpushare-Key"
LOCAL_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]"})
"""Any port is right: with `ssh -L` the browser's port is another than ours."""


class Refusal(Exception):
    """The request is not answered. The text says why; it contains no secret."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


def new_secret() -> str:
    return secrets.token_urlsafe(32)


@dataclass(frozen=True, slots=True)
class Session:
    cookie: str = field(repr=False)
    key: str = field(repr=False)


class Sessions:
    """The token of one secret, and the sessions that it opens."""

    def __init__(self, secret: str = "") -> None:
        """Without a secret it takes one that nobody else has: the token holds as long as this object."""
        self._secret = (secret or new_secret()).encode()
        self.token = self._made_of("token")
        self.cookie_name = f"gpushare-{self._made_of('name')[:8]}"
        """Another name for each secret: two dashboards on localhost share one set of cookies."""

    def _made_of(self, *words: str) -> str:
        """A text of 256 bits that cannot be made without the secret."""
        made = hmac.digest(self._secret, "\0".join(words).encode("utf-8", "surrogateescape"), "sha256")
        return base64.urlsafe_b64encode(made).decode().rstrip("=")

    def open(self, token: object, cookie: str | None) -> Session:
        """A session for a caller that knows the token: the browser's own if it has one, so that its other tabs go on.
        Refusal where the token is wrong."""
        if not isinstance(token, str) or not _same(token, self.token):
            raise Refusal(403, "wrong_token", "this address is not, or no longer, the one that the command printed")
        nonce = (cookie or "").partition(".")[0]
        if not self._is_ours(cookie):
            nonce = new_secret()
        return Session(f"{nonce}.{self._made_of('cookie', nonce)}", self._made_of("key", nonce))

    def check(self, cookie: str | None, key: str | None) -> None:
        """Refusal unless both halves belong to one session."""
        nonce = (cookie or "").partition(".")[0]
        if not self._is_ours(cookie) or key is None or not _same(key, self._made_of("key", nonce)):
            raise Refusal(401, "no_session", "open the page with the address that `gpushare dashboard` printed")

    def _is_ours(self, cookie: str | None) -> bool:
        nonce, _, proof = (cookie or "").partition(".")
        return bool(cookie) and _same(proof, self._made_of("cookie", nonce))


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
