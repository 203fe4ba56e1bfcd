"""What somebody may read of a cluster, with the rights of a kubeconfig; and in one line which right is missing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpushare.errors import GpushareError, NoSuchJob, NotPermitted, UsageError
from gpushare.kubernetes import fields
from gpushare.kubernetes.access import Access, kubeconfigs
from gpushare.kubernetes.server import Answer, Server

__all__ = ["NotServed", "Reader", "own_access"]

PAGE = 500
PATH = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/v[^/]+(?:/namespaces/(?P<in>[^/]+)(?=/))?/(?P<kind>[^/?]+)(?P<one>/[^?]+)?"
)
OF_NO_NAMESPACE = ("nodes", "queues", "nodegpus", "resourceslices", "deviceclasses", "subjectaccessreviews")


class NotServed(GpushareError):
    """The API server does not know that kind."""

    code = "not_served"


def own_access(kubeconfig: Path | None, context: str | None) -> Access:
    """Of the kubeconfig that is named, else as kubectl finds it, else of the pod that this is. Raises UsageError."""
    paths = [kubeconfig] if kubeconfig is not None else kubeconfigs()
    if paths:
        return Access.of_kubeconfigs(paths, context)
    try:
        return Access.of_pod()
    except UsageError:
        raise UsageError(
            "there is no kubeconfig", hint="name one: --kubeconfig FILE, or KUBECONFIG in the environment"
        ) from None


class Reader:
    """Each method raises GpushareError: NotPermitted where a right is missing, NotServed, NoSuchJob."""

    def __init__(self, access: Access) -> None:
        self.namespace = access.namespace
        self._server = Server(access, agent="kubectl-gpushare")

    def close(self) -> None:
        self._server.close()

    @property
    def ahead(self) -> float:
        """Seconds that the API server's clock is ahead of this machine's."""
        return self._server.ahead

    def all(self, path: str) -> list[Mapping[str, Any]]:
        """Of a collection, whole."""
        return list(self._all(path))

    def _all(self, path: str) -> Iterator[Mapping[str, Any]]:
        more = ""
        while True:
            try:
                answer = self.ask(f"{path}?limit={PAGE}{more}")
            except NoSuchJob as error:
                raise NotServed(f"the API server does not know {self._words(path)}: {error.message}") from None
            yield from fields.objects(answer, "items")
            token = fields.text(answer, "metadata/continue")
            if not token:
                return
            more = f"&continue={token}"

    def ask(self, path: str, body: object = None) -> dict[str, Any]:
        """One object; with `body` what is answered to it."""
        try:
            return self._server.ask("GET" if body is None else "POST", path, body)
        except Answer as error:
            if error.status == 401:
                raise NotPermitted("the API server does not know who you are", hint="log in again") from None
            if error.status == 403:
                raise self._forbidden(path, error, "get" if body is None else "create") from None
            raise

    def _forbidden(self, path: str, error: Answer, verb: str) -> NotPermitted:
        found = PATH.fullmatch(path.partition("?")[0])
        if found is None:
            return NotPermitted(error.message)
        verb = verb if found["one"] or verb == "create" else "list"
        where = f" in the namespace {found['in']}" if found["in"] else " in all namespaces"
        if found["kind"] in OF_NO_NAMESPACE:
            where = ""
        resource = f"{found['kind']}.{found['group']}" if found["group"] else found["kind"]
        scope = f" -n {found['in']}" if found["in"] else " -A" if where else ""
        asks = f"kubectl auth can-i {verb} {resource}{scope}"
        hint = f"an administrator gives you this right; `{asks}` says whether you have it"
        return NotPermitted(f"you may not {verb} {resource}{where}", hint=hint)

    def _words(self, path: str) -> str:
        found = PATH.fullmatch(path)
        return f"{found['kind']}.{found['group']}" if found is not None and found["group"] else path
