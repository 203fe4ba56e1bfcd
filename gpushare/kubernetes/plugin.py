"""The two sockets that the kubelet calls: one says which driver this is, the other prepares claims.

    /var/lib/kubelet/plugins_registry/gpushare.dev-reg.sock     registration; the kubelet watches the folder
    /var/lib/kubelet/plugins/gpushare.dev/dra.sock              NodePrepareResources, NodeUnprepareResources

A failure of one claim is the answer for that claim: the pod shows its text, and the kubelet asks again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc

from gpushare.errors import GpushareError
from gpushare.kubernetes.names import DRIVER
from gpushare.kubernetes.prepare import Preparer, words
from gpushare.kubernetes.wire import VERSIONS, Method, methods

__all__ = ["Plugin"]

log = logging.getLogger(__name__)
AGAIN = "the kubelet asks again"
WORKERS = 4
ENDS_WITHIN = 5.0


class Plugin:
    """Both sockets."""

    def __init__(self, preparer: Preparer, kubelet: Path) -> None:
        """`kubelet`: its folder, /var/lib/kubelet."""
        self._preparer = preparer
        self._endpoint = kubelet / "plugins" / DRIVER / "dra.sock"
        self._registration = kubelet / "plugins_registry" / f"{DRIVER}-reg.sock"
        self._servers: list[grpc.Server] = []
        self.registered: str | None = None
        """None: the kubelet has not said yet; "": it has taken the driver; else why it has not."""

    def start(self) -> None:
        """Raises OSError. The socket that the kubelet waits for comes last: then the other one answers."""
        calls: dict[Method, Callable[[Any], Any]] = {}
        for version in VERSIONS:
            own = methods(version)
            prepare, unprepare = own["NodePrepareResources"], own["NodeUnprepareResources"]
            calls[prepare] = self._answering(prepare, self._prepared)
            calls[unprepare] = self._answering(unprepare, self._unprepared)
        self._serve(self._endpoint, calls)
        about = methods()
        info = about["GetInfo"].response(
            type="DRAPlugin",
            name=DRIVER,
            endpoint=str(self._endpoint),
            supported_versions=[f"{version}.DRAPlugin" for version in VERSIONS],
        )
        notified = about["NotifyRegistrationStatus"]
        self._serve(
            self._registration,
            {about["GetInfo"]: lambda _: info, notified: lambda said: self._note(said, notified.response)},
        )

    def stop(self) -> None:
        """What is being prepared is finished; nothing new is taken."""
        for path in (self._registration, self._endpoint):
            path.unlink(missing_ok=True)
        for event in [server.stop(ENDS_WITHIN) for server in self._servers]:
            event.wait(ENDS_WITHIN)

    def _serve(self, path: Path, calls: Mapping[Method, Callable[[Any], Any]]) -> None:
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        server = grpc.server(futures.ThreadPoolExecutor(WORKERS, path.stem), handlers=[_Handler(calls)])
        try:
            server.add_insecure_port(f"unix:{path}")
        except RuntimeError as error:
            raise OSError(f"cannot make {path}: {error}") from None
        server.start()
        self._servers.append(server)

    def _note(self, said: Any, response: Any) -> Any:
        self.registered = "" if said.plugin_registered else said.error or "no reason"
        if said.plugin_registered:
            log.info("the kubelet has taken the driver")
        else:
            log.error("the kubelet has not taken the driver: %s", self.registered)
        return response()

    # ---- claims ----------------------------------------------------------------------------------------

    def _answering(self, method: Method, one: Callable[[Any], dict[str, Any]]) -> Callable[[Any], Any]:
        return lambda asked: method.response(claims={claim.uid: one(claim) for claim in asked.claims})

    def _prepared(self, claim: Any) -> dict[str, Any]:
        started = time.monotonic()
        try:
            devices = self._preparer.prepare(claim.uid, claim.namespace, claim.name)
        except Exception as error:
            return self._failed("prepare", claim, error)
        log.info("prepared %s/%s in %.0f ms", claim.namespace, claim.name, (time.monotonic() - started) * 1000)
        shown = [
            {
                "request_names": [one["request"]],
                "pool_name": one["pool"],
                "device_name": one["device"],
                "cdi_device_ids": one["cdi"],
            }
            for one in devices
        ]
        return {"devices": shown}

    def _unprepared(self, claim: Any) -> dict[str, Any]:
        try:
            self._preparer.unprepare(claim.uid)
        except Exception as error:
            return self._failed("unprepare", claim, error)
        return {}

    def _failed(self, what: str, claim: Any, error: Exception) -> dict[str, Any]:
        """An error of one claim is no error of the others in the same call, whatever it is."""
        name, text = f"{claim.namespace}/{claim.name}", words(error, AGAIN)
        if isinstance(error, GpushareError | OSError):
            log.warning("cannot %s %s: %s", what, name, text)
        else:
            log.error("cannot %s %s", what, name, exc_info=error)
        return {"error": text if name in text else f"claim {name}: {text}"}


class _Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Finds calls by their path."""

    def __init__(self, calls: Mapping[Method, Callable[[Any], Any]]) -> None:
        self._found = {
            method.path: grpc.unary_unary_rpc_method_handler(
                lambda asked, _, answer=answer: answer(asked),
                request_deserializer=method.request.FromString,
                response_serializer=method.response.SerializeToString,
            )
            for method, answer in calls.items()
        }

    def service(self, handler_call_details: Any) -> Any:
        return self._found.get(handler_call_details.method)
