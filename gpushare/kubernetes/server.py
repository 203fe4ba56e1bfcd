"""The API server of the cluster, by plain HTTPS (connection.py).

`gpushare-dra` needs six requests, and the scheduler a dozen. The official client of Kubernetes for Python has all
others, too, and takes more memory than the whole plugin may have. access.py says where the server is and who asks.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from http.client import HTTPMessage, HTTPResponse
from typing import Any, NamedTuple

from gpushare.errors import GpushareError, NoSuchJob
from gpushare.kubernetes.access import Access
from gpushare.kubernetes.connection import FAILURES, Connection, Connections
from gpushare.kubernetes.stored import PROTOBUF

__all__ = ["JSON", "MERGE", "STRATEGIC", "Access", "Answer", "Server", "Stream", "Unanswered"]

JSON, MERGE, APPLY = "application/json", "application/merge-patch+json", "application/apply-patch+yaml"
STRATEGIC = "application/strategic-merge-patch+json"
"""Lists whose entries have names are merged by name. Only objects of Kubernetes itself take it."""
PIECE = 2**16
LONGEST_MESSAGE = 1000
NOT_FOUND = 404
CLAIMS = "/apis/resource.k8s.io/v1/"
NO_KIND = ("404 page not found", "could not find the requested resource")
"""What an API server says of a kind that it does not know, and not of an object."""


class Unanswered(GpushareError):
    """The API server cannot be reached, or does not answer in time."""

    code = "no_api_server"


class Answer(GpushareError):
    """The API server has refused."""

    def __init__(self, message: str, status: int, retry_after: float | None = None) -> None:
        super().__init__(message, code="api_server_refused")
        self.status = status
        self.retry_after = retry_after
        """Seconds, where it says when to ask again."""


class Reply(NamedTuple):
    status: int
    headers: HTTPMessage
    data: bytes


class Server:
    """Requests, each answered once or failed. May be used by several threads."""

    def __init__(self, access: Access, *, agent: str = "gpushare-dra", connections: int = 4) -> None:
        """`agent`: how it calls itself. `connections`: how many it keeps open."""
        self._access = access
        self._agent = agent
        self._counting = threading.Lock()
        self._answered: Counter[tuple[str, str]] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._connections = Connections(access, connections)
        self._date = ""
        self.ahead = 0.0
        """Seconds that the API server's clock is ahead of this machine's, by its last answer."""

    def close(self) -> None:
        self._connections.close()

    @property
    def answered(self) -> dict[tuple[str, str], int]:
        """Requests so far, by method and status; "none": it did not answer."""
        with self._counting:
            return dict(self._answered)

    @property
    def seconds(self) -> dict[str, float]:
        """That requests took, by method; of a watch, until it began."""
        with self._counting:
            return dict(self._seconds)

    def ask(self, method: str, path: str, body: object = None, kind: str = JSON) -> dict[str, Any]:
        """The object that it answers. `body`: bytes are sent as they are. Raises Unanswered, Answer, and NoSuchJob for
        what is not there."""
        answer = self._request(method, path, body, kind)
        content = _object(answer.data)
        if answer.status >= 400:
            raise _refusal(method, path, answer, content)
        if content is None:
            raise Unanswered(f"what answers at {self._access.url} is no API server")
        return content

    def has_claims(self) -> bool:
        """Whether it serves resource.k8s.io/v1: Kubernetes 1.34 and later. Raises GpushareError."""
        try:
            self.ask("GET", CLAIMS.rstrip("/"))
        except NoSuchJob:
            return False
        return True

    def claim(self, namespace: str, name: str) -> dict[str, Any]:
        """Raises as ask()."""
        return self.ask("GET", f"{CLAIMS}namespaces/{namespace}/resourceclaims/{name}")

    def stored(self, path: str) -> bytes:
        """The object as it is stored (stored.py). Raises as ask()."""
        answer = self._request("GET", path, accept=PROTOBUF)
        if answer.status >= 400:
            raise _refusal("GET", path, answer, _object(answer.data))
        return answer.data

    def stream(self, path: str, silence: float) -> Stream:
        """An answer that goes on: a watch. It ends when nothing has come for `silence` seconds. Raises as ask()."""
        with self._counted("GET") as statuses, contextlib.ExitStack() as stack:
            connection = Connection(self._access)
            stack.callback(connection.close)
            answer = connection.ask("GET", path, None, self._headers(JSON), silence)
            statuses.append(str(answer.status))
            if answer.status < 400:
                stack.pop_all()
                return Stream(answer, connection)
            refused = Reply(answer.status, answer.headers, answer.read())
        raise _refusal("GET", path, refused, _object(refused.data))

    def _request(self, method: str, path: str, body: object = None, kind: str = JSON, accept: str = JSON) -> Reply:
        sent = body if body is None or isinstance(body, bytes) else _compact(body)
        with self._counted(method) as statuses, self._connections.one() as connection:
            answer = connection.ask(method, path, sent, self._headers(accept, "" if sent is None else kind))
            found = Reply(answer.status, answer.headers, answer.read())
            statuses.append(str(found.status))
        self._note_clock(found.headers)
        return found

    def _headers(self, accept: str, kind: str = "") -> dict[str, str]:
        headers = {"Accept": accept, "User-Agent": self._agent}
        token = self._access.token()
        if token:
            headers["Authorization"] = f"Bearer {token}"
        if kind:
            headers["Content-Type"] = kind
        return headers

    @contextlib.contextmanager
    def _counted(self, method: str) -> Iterator[list[str]]:
        """A request. The status of its answer comes into the list. Raises Unanswered."""
        began = time.monotonic()
        statuses: list[str] = []
        try:
            yield statuses
        except FAILURES as error:
            raise Unanswered(f"the API server at {self._access.url} does not answer: {error}") from None
        finally:
            with self._counting:
                self._answered[method, statuses[0] if statuses else "none"] += 1
                self._seconds[method] += time.monotonic() - began

    def _note_clock(self, headers: HTTPMessage) -> None:
        date = headers.get("Date", "")
        if date != self._date:  # it has whole seconds, so the first answer of a second says most
            self._date = date
            with contextlib.suppress(TypeError, ValueError):
                self.ahead = parsedate_to_datetime(date).timestamp() - time.time()

    def apply(self, path: str, body: object) -> dict[str, Any]:
        """Server-side: the fields of `body` are this driver's."""
        return self.ask("PATCH", f"{path}?fieldManager=gpushare-dra&force=true", body, APPLY)


class Stream:
    """Objects as they come, one a line. end() may be called by another thread."""

    def __init__(self, answer: HTTPResponse, connection: Connection) -> None:
        self._answer = answer
        self._connection = connection

    def objects(self) -> Iterator[dict[str, Any]]:
        """Until the server ends it, or end() does. Raises Unanswered."""
        rest = b""
        try:
            while piece := self._answer.read1(PIECE):
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    found = _object(line)
                    if found is None:
                        raise Unanswered("the API server's watch is none")
                    yield found
        except FAILURES as error:
            raise Unanswered(f"the API server's watch ended: {error}") from None
        finally:
            self._answer.close()
            self._connection.close()

    def end(self) -> None:
        self._connection.end()


def _compact(body: object) -> bytes:
    """Without white space and in the order of names: so what the API server stores as it was sent is as it writes it
    itself, and everybody can patch the object (stored.py)."""
    return json.dumps(body, separators=(",", ":"), sort_keys=True).encode()


def _refusal(method: str, path: str, answer: Reply, content: Mapping[str, Any] | None) -> GpushareError:
    words = answer.data.decode(errors="replace") if content is None else content.get("message")
    message = str(words or f"status {answer.status}").strip()[:LONGEST_MESSAGE]
    if answer.status == NOT_FOUND:
        if path.startswith(CLAIMS) and any(words in message for words in NO_KIND):
            message = "the API server has no claims (resource.k8s.io/v1); these need Kubernetes 1.34 or later"
        return NoSuchJob(message, code="not_found")
    after = answer.headers.get("Retry-After", "")
    seconds = float(after) if after.isdecimal() else None
    return Answer(f"the API server refuses {method} {path}: {message}", answer.status, seconds)


def _object(data: bytes) -> dict[str, Any] | None:
    """None: it is none. Of a path that it does not know at all, the API server speaks in plain words."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None
