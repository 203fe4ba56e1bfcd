"""Who keeps the certificate: a Secret has it, the webhook's configuration has the CAs that the API server trusts.

Each replica looks every few seconds. One that finds the certificate too old, or begun too late, makes another and
writes it into the Secret that it has read: of two, one is told that the Secret has changed, and takes what is there.
A new certificate is served one look after its CA was told, and at once where the old one is not valid.
"""

from __future__ import annotations

import base64
import binascii
import logging
import os
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from gpushare.errors import NoSuchJob, UsageError
from gpushare.kubernetes.server import MERGE, Answer, Server
from gpushare.kubernetes.webhook.certificates import Kept, is_valid, renewed

__all__ = ["Keeper", "Place", "load"]

log = logging.getLogger(__name__)
SECRET = "/api/v1/namespaces/{}/secrets/{}"
CONFIGURATION = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{}"
KEYS: Mapping[str, str] = {"bundle": "ca.crt", "ca_key": "ca.key", "certificate": "tls.crt", "key": "tls.key"}
"""Fields of Kept, and of the Secret."""
SKEW = 60.0
"""Seconds between clocks that are worth a line in the log."""
CONFLICT = 409
END = b"-----END"
"""Of a certificate in a bundle."""


@dataclass(frozen=True, slots=True)
class Place:
    namespace: str
    secret: str
    configuration: str


class Keeper:
    def __init__(self, server: Server, place: Place, names: Sequence[str]) -> None:
        """`names`: by which the API server calls the webhook, the first one first."""
        self._server = server
        self._secret = SECRET.format(place.namespace, place.secret)
        self._configuration = CONFIGURATION.format(place.configuration)
        self._names = tuple(names)
        self._serves = Kept()
        self._skewed = False

    @property
    def now(self) -> datetime:
        """By the clock of the API server, as it was in its last answer."""
        return datetime.now(UTC) + timedelta(seconds=self._server.ahead)

    def look(self) -> Kept | None:
        """What is to be served from now on, if that is not what is served. Raises GpushareError."""
        kept = self._kept()
        told = self._tell(kept.bundle)
        self._say_skew()
        if kept == self._serves or (told and self._is_trusted(kept.bundle)):
            return None
        self._serves = kept
        return kept

    def _is_trusted(self, bundle: bytes) -> bool:
        """What is served now, by who knows this bundle."""
        ca = self._serves.bundle.partition(END)[0]
        return ca in bundle and is_valid(self._serves.certificate, self.now)

    def _kept(self) -> Kept:
        """As the Secret has it, after it was renewed where that was due."""
        while True:
            try:
                found = self._server.ask("GET", self._secret)
            except NoSuchJob:
                raise UsageError(f"there is no {self._secret}", hint="apply deploy/kubernetes/webhook") from None
            kept, why = renewed(_read(found), self._names, self.now)
            if not why:
                return kept
            data = {key: base64.b64encode(getattr(kept, name)).decode() for name, key in KEYS.items()}
            version = {"resourceVersion": found["metadata"].get("resourceVersion")}
            try:
                self._server.ask("PATCH", self._secret, {"metadata": version, "data": data}, MERGE)
            except Answer as error:
                if error.status != CONFLICT:
                    raise
                time.sleep(0.05)  # another replica was first: its certificate counts
                continue
            log.info("%s", why)
            return kept

    def _tell(self, bundle: bytes) -> bool:
        """Whether the API server did not trust these CAs yet."""
        try:
            found = self._server.ask("GET", self._configuration)
        except NoSuchJob:
            raise UsageError(f"there is no {self._configuration}", hint="apply deploy/kubernetes/webhook") from None
        wanted = base64.b64encode(bundle).decode()
        webhooks = found.get("webhooks") or []
        if all(one["clientConfig"].get("caBundle") == wanted for one in webhooks):
            return False
        said = [{**one, "clientConfig": {**one["clientConfig"], "caBundle": wanted}} for one in webhooks]
        version = {"resourceVersion": found["metadata"].get("resourceVersion")}
        try:
            self._server.ask("PATCH", self._configuration, {"metadata": version, "webhooks": said}, MERGE)
        except Answer as error:
            if error.status != CONFLICT:
                raise
        else:
            log.info("the API server trusts the CA now: %s", self._configuration)
        return True

    def _say_skew(self) -> None:
        ahead = self._server.ahead
        if (abs(ahead) > SKEW) != self._skewed:
            self._skewed = not self._skewed
            where = f"{abs(ahead):.0f} s {'behind' if ahead > 0 else 'ahead of'} the API server's"
            log.warning(
                "this machine's clock is %s; certificates follow the API server's",
                where if self._skewed else "right again",
            )


def load(context: ssl.SSLContext, kept: Kept) -> None:
    """Connections from now on are served with it. Python takes only names of files. Raises OSError."""
    descriptor = os.memfd_create("gpushare-webhook", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, kept.certificate + kept.key)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def _read(secret: Mapping[str, Any]) -> Kept:
    data = secret.get("data") or {}
    try:
        return Kept(**{name: base64.b64decode(data.get(key) or "", validate=True) for name, key in KEYS.items()})
    except (binascii.Error, TypeError, ValueError):
        return Kept()
