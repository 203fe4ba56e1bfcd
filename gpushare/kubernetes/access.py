"""Where the API server is, and who asks.

In a pod the address, the authority and the token are those of its service account, whose token changes: it is read
again for each request. Elsewhere they come from a kubeconfig, with a token, a client's certificate or, for people, a
program that logs them in.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gpushare.errors import GpushareError, UsageError

__all__ = ["Access", "kubeconfigs"]

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
LOGIN = 120.0
"""Seconds that a program which logs in may take: it may ask its user something."""
VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
TOKEN, CERTIFICATE, KEY = "token", "clientCertificateData", "clientKeyData"


@dataclass(frozen=True, slots=True)
class Access:
    url: str
    token: Callable[[], str | None] = lambda: None
    tls: Mapping[str, Any] = field(default_factory=dict)
    """Names of files: ca_certs, cert_file, key_file. With `insecure` the server's certificate is not checked."""
    namespace: str = "default"
    """That of its context."""

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
        """Of its current context, for a service: no program is run. Raises UsageError."""
        return cls.of_kubeconfigs([path], programs=False)

    @classmethod
    def of_kubeconfigs(cls, paths: Sequence[Path], context: str | None = None, *, programs: bool = True) -> Access:
        """Of the named context, else of the current one; the first file that has something says what it is, as for
        kubectl. `programs`: one that its user names may be run to log in. Raises UsageError, and GpushareError where
        that program fails."""
        import yaml

        shown = ", ".join(map(str, paths))
        try:
            files = [(path, yaml.safe_load(path.read_text()) or {}) for path in paths]
            current = (content["current-context"] for _, content in files if content.get("current-context"))
            _, found = _named(files, "contexts", context or next(current))
            at, cluster = _named(files, "clusters", found["context"]["cluster"])
            of, entry = _named(files, "users", found["context"]["user"])
            cluster, user = cluster["cluster"], entry.get("user") or {}
            tls: dict[str, Any] = {}
            if cluster.get("insecure-skip-tls-verify"):
                tls["insecure"] = True
            else:
                tls |= _file(cluster, "certificate-authority", "ca_certs", at)
            tls |= _file(user, "client-certificate", "cert_file", of) | _file(user, "client-key", "key_file", of)
            url, namespace = _address(str(cluster["server"])), found["context"].get("namespace") or "default"
        except StopIteration:
            why = f"it has no context {context!r}" if context else "its current context is not there"
            raise UsageError(f"cannot read {shown} as a kubeconfig: {why}", code="bad_config") from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError) as error:
            raise UsageError(f"cannot read {shown} as a kubeconfig: {error}", code="bad_config") from None
        if "auth-provider" in user or ("exec" in user and not programs):
            raise UsageError(f"{of}: its user runs a program to log in", hint="give it a token, or a certificate")
        if "exec" in user:
            said = _log_in(user["exec"], of)
            tls |= _file(said, CERTIFICATE.removesuffix("Data"), "cert_file", of, "Data")
            tls |= _file(said, KEY.removesuffix("Data"), "key_file", of, "Data")
            return cls(url, lambda: said.get(TOKEN), tls, namespace)
        return cls(url, _token(user, of), tls, namespace)


def kubeconfigs(environ: Mapping[str, str] = os.environ) -> list[Path]:
    """As kubectl finds them: those that KUBECONFIG names and that are there, else the user's own. None: there is no
    such file."""
    said = [Path(one) for one in environ.get("KUBECONFIG", "").split(os.pathsep) if one]
    own = Path(environ.get("HOME") or "~").expanduser() / ".kube" / "config"
    return [path for path in said or [own] if path.exists()]


def _address(text: str) -> str:
    """Raises ValueError."""
    url = urlsplit(text)
    if url.scheme not in ("http", "https") or not url.hostname or url.port == 0:  # one that is no number raises it
        raise ValueError(f"{text!r} is no address of an API server")
    return text.rstrip("/")


def _named(files: Sequence[tuple[Path, Any]], kind: str, name: str) -> tuple[Path, dict[str, Any]]:
    return next((path, one) for path, content in files for one in content.get(kind) or () if one["name"] == name)


def _token(user: Mapping[str, Any], path: Path) -> Callable[[], str | None]:
    if user.get("tokenFile"):
        return lambda: (path.parent / user["tokenFile"]).read_text().strip()
    return lambda: user.get("token")


def _file(said: Mapping[str, Any], name: str, argument: str, path: Path, data: str = "-data") -> dict[str, str]:
    """A path as it is; data goes to a file of this process."""
    if said.get(f"{name}{data}"):
        content = said[f"{name}{data}"]
        return {argument: _own_file(base64.b64decode(content) if data == "-data" else str(content).encode())}
    return {argument: str(path.parent / said[name])} if said.get(name) else {}


def _own_file(data: bytes) -> str:
    """For libraries that take only the names of files. It is there as long as this process."""
    descriptor = os.memfd_create("gpushare-kubeconfig")
    os.write(descriptor, data)
    return f"/proc/self/fd/{descriptor}"


def _log_in(said: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    """What the program answers that a kubeconfig names for this (client.authentication.k8s.io)."""
    try:
        version, command = said["apiVersion"], str(said["command"])
        if version not in VERSIONS:
            raise UsageError(
                f"{path}: its program to log in speaks {version!r}", hint=f"known are {', '.join(VERSIONS)}"
            )
        words = [command if "/" not in command else str(path.parent / command), *map(str, said.get("args") or ())]
        more = {str(one["name"]): str(one["value"]) for one in said.get("env") or ()}
        asked = {"apiVersion": version, "kind": "ExecCredential", "spec": {"interactive": False}}
        environ = {**os.environ, **more, "KUBERNETES_EXEC_INFO": json.dumps(asked)}
        run = subprocess.run(
            words, env=environ, capture_output=True, timeout=LOGIN, check=True, stdin=subprocess.DEVNULL
        )
        status = dict(json.loads(run.stdout)["status"])
    except subprocess.CalledProcessError as error:
        last = error.stderr.decode(errors="replace").strip().rpartition("\n")[2] or f"status {error.returncode}"
        raise GpushareError(f"{words[0]}, which logs you in, has failed: {last}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, subprocess.TimeoutExpired) as error:
        raise GpushareError(f"the program of {path} that logs you in does not: {error}") from None
    return status
