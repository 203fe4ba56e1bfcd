"""The templates that the webhook makes: one for each budget and namespace, removed when no pod has used it for long."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from gpushare.errors import GpushareError, NoSuchJob, UsageError
from gpushare.kubernetes.server import MERGE, Answer, Server
from gpushare.kubernetes.webhook.template import LABEL, LABEL_VALUE, USED

__all__ = ["Templates"]

log = logging.getLogger(__name__)
ALL = "/apis/resource.k8s.io/v1/resourceclaimtemplates"
OF_NAMESPACE = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaimtemplates"
PODS = "/api/v1/namespaces/{}/pods"
PAGE = 500
NOTED = timedelta(minutes=10)
"""So long the date of the last use may be behind."""
KEPT = timedelta(hours=1)
"""After its last use, even if there is no pod: one may just be on its way from the webhook to the API server."""
CONFLICT = 409
FORM = "%Y-%m-%dT%H:%M:%SZ"
Thing = Mapping[str, Any]


class Templates:
    def __init__(self, server: Server) -> None:
        self._server = server

    @property
    def now(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=self._server.ahead)

    def make(self, wanted: dict[str, Any]) -> None:
        """If it is not there. Raises GpushareError; UsageError for another's of that name."""
        place = OF_NAMESPACE.format(wanted["metadata"]["namespace"])
        path = f"{place}/{wanted['metadata']['name']}"
        used = {"metadata": {"annotations": {USED: self.now.strftime(FORM)}}}
        try:
            found = self._server.ask("GET", path)
        except NoSuchJob:
            try:
                self._server.ask("POST", place, {**wanted, "metadata": wanted["metadata"] | used["metadata"]})
            except Answer as error:
                if error.status != CONFLICT:
                    raise
                found = self._server.ask("GET", path)  # another replica was first
            else:
                return
        if not _says(found.get("spec"), wanted["spec"]):
            name = "{namespace}/{name}".format(**wanted["metadata"])
            raise UsageError(f"ResourceClaimTemplate {name} says something else", hint="delete it")
        if self.now - _used(found) > NOTED:
            self._server.ask("PATCH", path, used, MERGE)

    def clean(self) -> None:
        """Remove what no pod uses any more. Raises GpushareError."""
        try:
            old = [one for one in self._list(f"{ALL}?labelSelector={LABEL}%3D{LABEL_VALUE}") if self._is_old(one)]
        except NoSuchJob:
            return  # a server without claims has no templates
        for namespace in sorted({one["metadata"]["namespace"] for one in old}):
            pods = self._list(f"{PODS.format(namespace)}?")
            named = {
                claim.get("resourceClaimTemplateName")
                for pod in pods
                for claim in pod["spec"].get("resourceClaims") or ()
            }
            for one in old:
                meta = one["metadata"]
                if meta["namespace"] == namespace and meta["name"] not in named:
                    self._remove(meta)

    def _is_old(self, one: Thing) -> bool:
        mine = (one["metadata"].get("labels") or {}).get(LABEL) == LABEL_VALUE
        return mine and self.now - _used(one) > KEPT

    def _remove(self, meta: Thing) -> None:
        """As it was when it was read: one that a pod has used since stays."""
        held = {name: meta[name] for name in ("uid", "resourceVersion")}
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": held}
        try:
            self._server.ask("DELETE", f"{OF_NAMESPACE.format(meta['namespace'])}/{meta['name']}", options)
        except NoSuchJob:
            return
        except Answer as error:
            if error.status != CONFLICT:
                raise
            return
        log.info("no pod uses %s/%s any more: removed", meta["namespace"], meta["name"])

    def _list(self, path: str) -> Iterator[Thing]:
        more = ""
        while True:
            answer = self._server.ask("GET", f"{path}&limit={PAGE}{more}")
            yield from answer.get("items") or ()
            token = answer["metadata"].get("continue")
            if not token:
                return
            more = f"&continue={token}"


def _used(one: Thing) -> datetime:
    said = (one["metadata"].get("annotations") or {}).get(USED)
    try:
        return datetime.strptime(str(said), FORM).replace(tzinfo=UTC)
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)


def _says(found: Any, wanted: Any) -> bool:
    """All that is wanted. A server adds fields with what they mean anyway."""
    if isinstance(wanted, Mapping):
        return isinstance(found, Mapping) and all(_says(found.get(name), value) for name, value in wanted.items())
    if isinstance(wanted, list):
        same = isinstance(found, list) and len(found) == len(wanted)
        return same and all(map(_says, found, wanted))
    return bool(found == wanted)


def clean_quietly(templates: Templates) -> None:
    """What fails is tried again at the next time."""
    try:
        templates.clean()
    except GpushareError as error:
        log.warning("templates that nobody uses are not removed: %s", error)
