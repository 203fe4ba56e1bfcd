"""The API server of the cluster, by plain HTTPS (urllib3).

`gpushare-dra` needs six requests, and the scheduler a dozen. The official client of Kubernetes for Python has all
others, too, and takes more memory than the whole plugin may have; urllib3 is what that client stands on. In a pod the
address, the authority and the token are those of its service account, whose token changes: it is read again for each
request. Elsewhere they come from a kubeconfig, with a token or a client's certificate.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import urllib3

from gpushare.errors import GpushareError, NoSuchJob, UsageError

__all__ = ["JSON", "MERGE", "STRATEGIC", "Access", "Answer", "Server", "Stream", "Unanswered"]

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
CONNECT = 3.0
"""Seconds."""
TIMEOUT = urllib3.Timeout(connect=CONNECT, read=10.0)
JSON, MERGE, APPLY = "application/json", "application/merge-patch+json", "application/apply-patch+yaml"
STRATEGIC = "application/strategic-merge-patch+json"
"""Lists whose entries have names are merged by name. Only objects of Kubernetes itself take it."""
PIECE = 2**16
LONGEST_MESSAGE = 1000


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


@dataclass(frozen=True, slots=True)
class Access:
    """Where the API server is, and who asks."""

    url: str
    token: Callable[[], str | None] = lambda: None
    tls: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of a pool of connections."""

    @classmethod
    def of_pod(cls, environ: Mapping[str, str] = os.environ, account: Path = ACCOUNT) -> Access:
        """Raises UsageError outside of a pod."""
        host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT", "443")
        if not host or not (account / "token").exists():
            raise UsageError("this is no pod with a service account", hint="name a kubeconfig: --kubeconfig FILE")
        url = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        return cls(url, lambda: (account / "token").read_text().strip(), {"ca_certs": str(account / "ca.crt")})

    @classmethod
    def of_kubeconfig(cls, path: Path) -> Access:
        """Of its current context. Raises UsageError."""
        import yaml

        try:
            content = yaml.safe_load(path.read_text())
            context = _named(content, "contexts", content["current-context"])["context"]
            cluster = _named(content, "clusters", context["cluster"])["cluster"]
            user = _named(content, "users", context["user"]).get("user") or {}
            tls: dict[str, Any] = {}
            if cluster.get("insecure-skip-tls-verify"):
                tls |= {"cert_reqs": "CERT_NONE", "assert_hostname": False}
            else:
                tls |= _file(cluster, "certificate-authority", "ca_certs", path)
            tls |= _file(user, "client-certificate", "cert_file", path) | _file(user, "client-key", "key_file", path)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, StopIteration, yaml.YAMLError) as error:
            raise UsageError(f"cannot read {path} as a kubeconfig: {error}", code="bad_config") from None
        if "exec" in user or "auth-provider" in user:
            raise UsageError(f"{path}: its user runs a program to log in", hint="give it a token, or a certificate")
        return cls(str(cluster["server"]).rstrip("/"), _token(user, path), tls)


class Server:
    """Requests, each answered once or failed. May be used by several threads."""

    def __init__(self, access: Access, *, agent: str = "gpushare-dra", connections: int = 4) -> None:
        """`agent`: how it calls itself. `connections`: how many it keeps open."""
        self._access = access
        self._agent = agent
        if access.tls.get("cert_reqs") == "CERT_NONE":
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        self._pool = urllib3.PoolManager(maxsize=connections, timeout=TIMEOUT, retries=False, **dict(access.tls))

    def close(self) -> None:
        self._pool.clear()

    def ask(self, method: str, path: str, body: object = None, kind: str = JSON) -> dict[str, Any]:
        """The object that it answers. Raises Unanswered, Answer, and NoSuchJob for what is not there."""
        answer = self._request(method, path, body, kind)
        content = _object(answer.data)
        if answer.status >= 400:
            raise _refusal(method, path, answer, content)
        if content is None:
            raise Unanswered(f"what answers at {self._access.url} is no API server")
        return content

    def stream(self, path: str, silence: float) -> Stream:
        """An answer that goes on: a watch. It ends when nothing has come for `silence` seconds. Raises as ask()."""
        answer = self._request(
            "GET", path, preload_content=False, timeout=urllib3.Timeout(connect=CONNECT, read=silence)
        )
        if answer.status < 400:
            return Stream(answer)
        try:
            data = answer.data
        except (OSError, urllib3.exceptions.HTTPError) as error:
            raise self._silent(error) from None
        finally:
            answer.close()
        raise _refusal("GET", path, answer, _object(data))

    def _request(self, method: str, path: str, body: object = None, kind: str = JSON, **how: Any) -> Any:
        headers = {"Accept": JSON, "User-Agent": self._agent}
        try:
            token = self._access.token()
            if token:
                headers["Authorization"] = f"Bearer {token}"
            if body is not None:
                headers["Content-Type"] = kind
            sent = None if body is None else json.dumps(body).encode()
            return self._pool.request(method, self._access.url + path, body=sent, headers=headers, **how)
        except (OSError, urllib3.exceptions.HTTPError) as error:
            raise self._silent(error) from None

    def _silent(self, error: Exception) -> Unanswered:
        return Unanswered(f"the API server at {self._access.url} does not answer: {error}")

    def apply(self, path: str, body: object) -> dict[str, Any]:
        """Server-side: the fields of `body` are this driver's."""
        return self.ask("PATCH", f"{path}?fieldManager=gpushare-dra&force=true", body, APPLY)


class Stream:
    """Objects as they come, one a line. end() may be called by another thread."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

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
        except (OSError, urllib3.exceptions.HTTPError) as error:
            raise Unanswered(f"the API server's watch ended: {error}") from None
        finally:
            self._answer.close()

    def end(self) -> None:
        with contextlib.suppress(OSError, ValueError, RuntimeError):  # it is over already
            self._answer.shutdown()


def _refusal(method: str, path: str, answer: Any, content: Mapping[str, Any] | None) -> GpushareError:
    words = answer.data.decode(errors="replace") if content is None else content.get("message")
    message = str(words or f"status {answer.status}").strip()[:LONGEST_MESSAGE]
    if answer.status == 404:
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


def _named(content: Mapping[str, Any], kind: str, name: str) -> dict[str, Any]:
    return next(one for one in content[kind] if one["name"] == name)


def _token(user: Mapping[str, Any], path: Path) -> Callable[[], str | None]:
    if user.get("tokenFile"):
        return lambda: (path.parent / user["tokenFile"]).read_text().strip()
    return lambda: user.get("token")


def _file(said: Mapping[str, Any], name: str, argument: str, path: Path) -> dict[str, str]:
    """A path as it is; data goes to a file of this process."""
    if said.get(f"{name}-data"):
        return {argument: _own_file(base64.b64decode(said[f"{name}-data"]))}
    return {argument: str(path.parent / said[name])} if said.get(name) else {}


def _own_file(data: bytes) -> str:
    """For libraries that take only the names of files. It is there as long as this process."""
    descriptor = os.memfd_create("gpushare-kubeconfig")
    os.write(descriptor, data)
    return f"/proc/self/fd/{descriptor}"
